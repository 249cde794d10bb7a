/* page.c - see page.h. */
#include "server/page.h"

#include <string.h>

const di_page_file *di_page_find(const char *path) {
    for (size_t i = 0; i < di_page_file_count; i++)
        if (!strcmp(di_page_files[i].path, path)) return &di_page_files[i];
    return NULL;
}

bool di_page_unchanged(const di_page_file *file, const char *if_none_match) {
    if (!if_none_match) return false;
    /* A list of tags, each perhaps weak (W/"..."); the quotes are part of ours, so that no tag is found in another. */
    return !strcmp(if_none_match, "*") || strstr(if_none_match, file->etag) != NULL;
}

static void serve(void *app, di_exchange *exchange) {
    (void)app;
    const di_page_file *file = di_page_find(di_exchange_path(exchange));
    if (!file) {
        di_exchange_fail(exchange, 404, "not_found_error", NULL, "there is no %.200s; the page is at /",
                         di_exchange_path(exchange));
        return;
    }
    const di_header headers[] = {
        {"ETag", file->etag},
        {"Cache-Control", "no-cache"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
         "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
    };
    const size_t count = sizeof headers / sizeof *headers;
    if (di_page_unchanged(file, di_exchange_header(exchange, "If-None-Match")))
        di_exchange_reply(exchange, 304, NULL, headers, count, NULL, 0);
    else
        di_exchange_reply(exchange, 200, file->type, headers, count, (const char *)file->bytes, file->length);
}

static const di_route routes[] = {
    {"GET", "/", DI_ACCESS_STATIC, false, NULL, serve},
    {"GET", "/page/*", DI_ACCESS_STATIC, false, NULL, serve},
};

di_status di_page_add_routes(di_server *server, di_error *error) {
    return di_server_add_routes(server, routes, sizeof routes / sizeof *routes, NULL, error);
}
