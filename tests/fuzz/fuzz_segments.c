/* needs: tokenizer base */
/* Text cut into segments at the bytes 0 (plain follows) and 1 (control follows): the ids are those of the segments on
 * their own, they decode to the text, plain ones hold no added token, and invalid text is refused. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 64 };

static size_t cut(const uint8_t *data, size_t size, di_text_segment segments[MAX_SEGMENTS]) {
    size_t count = 0, start = 0;
    bool control = false;
    for (size_t i = 0; i <= size && count < MAX_SEGMENTS; i++) {
        if (i < size && data[i] > 1) continue;
        segments[count++] = (di_text_segment){(const char *)data + start, i - start, control};
        control = i < size && data[i] == 1;
        start = i + 1;
    }
    return count;
}

static void check(const di_tokenizer *tokenizer, const di_text_segment *segments, size_t count, const di_ids *ids) {
    di_ids single = {0};
    di_text text = {0}, back = {0};
    for (size_t i = 0; i < count; i++) {
        size_t before = single.count;
        if (di_tokenizer_encode(tokenizer, segments[i].text, segments[i].length, segments[i].control, &single, NULL))
            abort();
        for (size_t j = before; j < single.count && !segments[i].control; j++)
            if (di_tokenizer_is_added(tokenizer, single.data[j])) abort();
        di_text_append(&text, segments[i].text, segments[i].length);
    }
    if (single.count != ids->count || (ids->count && memcmp(single.data, ids->data, ids->count * sizeof *ids->data)))
        abort();
    if (di_tokenizer_decode(tokenizer, ids->data, ids->count, false, &back, NULL)) abort();
    if (back.length != text.length || (text.length && memcmp(back.data, text.data, text.length))) abort();
    di_ids_free(&single);
    di_text_free(&text);
    di_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_tokenizer *tokenizer;
    if (!tokenizer && di_tokenizer_load(DI_TEST_DATA "/nano", &tokenizer, NULL)) abort();
    di_text_segment segments[MAX_SEGMENTS];
    size_t count = cut(data, size, segments);
    bool valid = true;
    for (size_t i = 0; i < count; i++)
        valid = valid && di_utf8_validate(segments[i].text, segments[i].length) == segments[i].length;
    di_ids ids = {0};
    di_error error = {0};
    if ((di_tokenizer_encode_segments(tokenizer, segments, count, &ids, &error) == DI_OK) != valid) abort();
    if (valid)
        check(tokenizer, segments, count, &ids);
    else if (ids.count != 0 || !error.message[0])
        abort();
    di_ids_free(&ids);
    return 0;
}
