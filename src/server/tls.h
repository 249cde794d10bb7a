/* tls.h - the server's certificate. */
#ifndef DI_SERVER_TLS_H
#define DI_SERVER_TLS_H

#include <openssl/ssl.h>

#include "base/log.h"
#include "base/status.h"

/* TLS 1.2 and 1.3 with the chain and key of two PEM files. Both paths empty: *context is NULL. log may be NULL. */
di_status di_tls_open(const char *certificate, const char *key, di_log *log, SSL_CTX **context, di_error *error);

#endif
