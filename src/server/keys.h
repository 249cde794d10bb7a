/* keys.h - API keys and the tenants they stand for.
 *
 * A key comes from --api-key (one) and from --api-key-file: lines "NAME KEY" or "KEY"; # begins a comment line. NAME is
 * the tenant: its cache namespace, its share of the machine, its name in the access log. A key without a name gets one
 * from its digest, so that it keeps its tenant when lines move. The tenant "operator" sees what others have in
 * progress. Only digests are kept; a comparison takes as long whichever key it is and however much of it is right.
 * Immutable once read.
 */
#ifndef DI_SERVER_KEYS_H
#define DI_SERVER_KEYS_H

#include "base/log.h"
#include "base/status.h"

#define DI_KEYS_OPERATOR "operator"

typedef struct di_keys di_keys;

/* key and path may be "" or NULL. Without any key *keys is NULL. Errors name file and line, never a key. again: the
 * server runs already and must not stand still, so that only a plain file is read; the first time a pipe will do. */
di_status di_keys_read(const char *key, const char *path, bool again, di_log *log, di_keys **keys, di_error *error);
void di_keys_free(di_keys *keys);
/* Warns of a secret file that every user may read. */
void di_warn_public_file(di_log *log, const char *path);
/* Tenant of the key, borrowed; NULL if it is none. */
const char *di_keys_find(const di_keys *keys, const char *key);

#endif
