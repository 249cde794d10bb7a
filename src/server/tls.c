/* tls.c - see tls.h. */
#include "server/tls.h"

#include <openssl/err.h>
#include <sys/stat.h>

#include "server/keys.h"

/* Appends OpenSSL's own reason. */
static di_status fail_tls(di_error *error, const char *param, const char *path, const char *what) {
    char reason[160] = "unknown reason";
    unsigned long code = ERR_peek_last_error();
    if (code) ERR_error_string_n(code, reason, sizeof reason);
    ERR_clear_error();
    return di_fail(error, DI_ERR_CONFIG, param, "--%s %s: %s: %s", param, path, what, reason);
}

/* A key with a passphrase would make OpenSSL ask on the terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *arg) {
    (void)buffer, (void)size, (void)writing, (void)arg;
    return -1;
}

/* OpenSSL would wait at a pipe, and with it a server that reads its certificate again. */
static di_status check_file(const char *param, const char *path, di_error *error) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return DI_OK; /* OpenSSL says what is wrong with one that is missing */
    return di_fail(error, DI_ERR_CONFIG, param, "--%s %s is not a plain file", param, path);
}

di_status di_tls_open(const char *certificate, const char *key, di_log *log, SSL_CTX **context, di_error *error) {
    *context = NULL;
    if (!certificate[0] && !key[0]) return DI_OK;
    if (!certificate[0] || !key[0])
        return di_fail(error, DI_ERR_CONFIG, certificate[0] ? "tls-key" : "tls-cert",
                       "--tls-cert and --tls-key belong together");
    di_status status = check_file("tls-cert", certificate, error);
    if (status == DI_OK) status = check_file("tls-key", key, error);
    if (status != DI_OK) return status;
    SSL_CTX *made = SSL_CTX_new(TLS_server_method());
    if (!made) return di_fail(error, DI_ERR_MEMORY, "tls-cert", "out of memory for TLS");
    SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
    SSL_CTX_set_options(made, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(made, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(made, no_passphrase);
    if (SSL_CTX_use_certificate_chain_file(made, certificate) != 1)
        status = fail_tls(error, "tls-cert", certificate, "no certificate chain in PEM form");
    else if (SSL_CTX_use_PrivateKey_file(made, key, SSL_FILETYPE_PEM) != 1)
        status = fail_tls(error, "tls-key", key,
                          "no private key without passphrase in PEM form, or not that of the certificate");
    else if (SSL_CTX_check_private_key(made) != 1)
        status = fail_tls(error, "tls-key", key, "not the key of the certificate");
    if (status == DI_OK) {
        di_warn_public_file(log, key);
        *context = made;
    } else {
        SSL_CTX_free(made);
    }
    return status;
}
