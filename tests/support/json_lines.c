/* json_lines.c - see json_lines.h. */
#include "support/json_lines.h"

#include "base/arena.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FILE_LIMIT = 1 << 26 };

void di_each_json_line(const char *path, const char *kind,
                       void (*check)(void *arg, di_arena *arena, const di_json *line), void *arg, size_t expected) {
    char *text;
    size_t length, checked = 0;
    di_error error = {0};
    if (di_read_file(path, FILE_LIMIT, &text, &length, &error) != DI_OK) fail_msg("%s", error.message);
    di_arena *arena = di_arena_new(0);
    for (char *at = text, *end; at < text + length; at = end + 1) {
        const di_json *line;
        end = memchr(at, '\n', (size_t)(text + length - at));
        assert_non_null(end);
        if (di_json_parse(arena, at, (size_t)(end - at), 0, &line, &error) != DI_OK) fail_msg("%s", error.message);
        if (!kind || di_json_string_is(di_json_get(line, "kind"), kind)) {
            check(arg, arena, line);
            checked++;
        }
        di_arena_reset(arena);
    }
    if (checked != expected)
        fail_msg("%s: %zu lines of kind %s, not %zu", path, checked, kind ? kind : "any", expected);
    di_arena_free(arena);
    free(text);
}
