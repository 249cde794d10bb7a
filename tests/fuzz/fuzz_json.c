/* fuzz_json.c - the JSON reader and writer: what was read is written, read again and written again to the same bytes.
 */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_all(di_text *out, const di_json *root) {
    di_json_writer writer;
    di_json_begin(&writer, out);
    di_json_value(&writer, root);
}

static void convert(const di_json *node) {
    int64_t integer;
    uint64_t bits;
    double number;
    if (di_json_int64(node, &integer) && integer >= 0 && (!di_json_uint64(node, &bits) || bits != (uint64_t)integer)) {
        abort();
    }
    if (node->type == DI_JSON_NUMBER) (void)di_json_double(node, &number);
    if (node->type == DI_JSON_STRING && di_utf8_validate(node->text, node->length) != node->length) abort();
    for (const di_json *item = node->first; item; item = item->next) convert(item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_arena *arena = di_arena_new(0);
    const di_json *root, *again;
    di_error error = {0};
    if (di_json_parse(arena, (const char *)data, size, 0, &root, &error) == DI_OK) {
        convert(root);
        di_text first = {0}, second = {0};
        write_all(&first, root);
        if (di_json_parse(arena, first.data, first.length, 0, &again, &error) != DI_OK) abort();
        write_all(&second, again);
        if (first.length != second.length || memcmp(first.data, second.data, first.length) != 0) abort();
        di_text_free(&first);
        di_text_free(&second);
    } else if (error.message[0] == '\0') {
        abort();
    }
    di_arena_free(arena);
    return 0;
}
