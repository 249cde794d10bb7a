/* session.h - a conversation that is kept by name.
 *
 *   FOLDER/NAME.json    {"deepinfer_session": 1, "messages": [{"role": "user", "content": "..."}, ...]}
 *   FOLDER/NAME.state   the sequence's state (di_save_state), so that resuming does not compute the history again
 *   FOLDER/NAME.lock    one chat at a time
 *
 * FOLDER is --session-dir, else deepinfer/sessions in the user's state folder. The messages are the user's: they are
 * written whole and durably after every turn, and a file that cannot be read is never overwritten. The state may be
 * lost.
 */
#ifndef DI_CLI_SESSION_H
#define DI_CLI_SESSION_H

#include "base/config.h"
#include "recipe/recipe.h"

typedef struct di_session di_session;

/* Makes the folder if need be, and takes the session for this process. */
di_status di_session_open(const di_config *config, const char *name, di_session **session, di_error *error);
void di_session_close(di_session *session); /* NULL is allowed */

/* Every message in order; a new session has none. Texts are borrowed during the call. */
typedef di_status (*di_session_add)(void *arg, di_role role, const char *text, size_t length, di_error *error);
di_status di_session_read(const di_session *session, di_session_add add, void *arg, di_error *error);
/* Replaces the messages. */
di_status di_session_write(const di_session *session, const di_message *messages, size_t count, di_error *error);
const char *di_session_state_path(const di_session *session);

#endif
