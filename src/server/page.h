/* page.h - the web page at "/": files that are part of the program, served from memory.
 *
 * The files are src/server/page/; src/server/page/embed.cmake makes di_page_files of them. They are the same for
 * everybody and hold nothing of the server, so they need no key: the page asks for one, and every request that it makes
 * carries it. The page uses no inline script or style and nothing from elsewhere, and the headers forbid both.
 *
 * Everything here is constant; the handler runs on the I/O thread.
 */
#ifndef DI_SERVER_PAGE_H
#define DI_SERVER_PAGE_H

#include "server/http.h"

typedef struct di_page_file {
    const char *path; /* "/", "/page/style.css" */
    const char *type; /* Content-Type */
    const char *etag; /* with its quotes */
    const unsigned char *bytes;
    size_t length;
} di_page_file;

extern const di_page_file di_page_files[]; /* [di_page_file_count] */
extern const size_t di_page_file_count;

/* NULL if there is no such file. */
const di_page_file *di_page_find(const char *path);
/* Does an If-None-Match field (may be NULL) name this file's ETag? */
bool di_page_unchanged(const di_page_file *file, const char *if_none_match);
/* Adds "/" and "/page/" to the server. */
di_status di_page_add_routes(di_server *server, di_error *error);

#endif
