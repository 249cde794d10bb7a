/* needs: recipe tokenizer base */
/* A prompt cut into segments at the bytes 0 (plain follows) and 1 (a control token follows, if the text is one): plain
 * segments give the ids that they have on their own and no added token, control segments their id, all decode to the
 * text, and invalid text is refused. */
#include "recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 64, MAX_NAME = 64 };

typedef struct pieces {
    di_segment request[MAX_SEGMENTS];
    int32_t ids[MAX_SEGMENTS];
    size_t count;
} pieces;

static int32_t control_of(const di_tokenizer *tokenizer, const char *text, size_t length) {
    char name[MAX_NAME];
    if (length >= sizeof name) return -1;
    if (length) memcpy(name, text, length);
    name[length] = 0;
    return di_tokenizer_added_id(tokenizer, name);
}

static void cut(const di_tokenizer *tokenizer, const uint8_t *data, size_t size, pieces *p) {
    size_t start = 0;
    bool control = false;
    for (size_t i = 0; i <= size && p->count < MAX_SEGMENTS; i++) {
        if (i < size && data[i] > 1) continue;
        const char *text = (const char *)data + start;
        int32_t *id = &p->ids[p->count];
        *id = control ? control_of(tokenizer, text, i - start) : -1;
        p->request[p->count++] =
            *id < 0 ? (di_segment){.text = text, .text_length = i - start} : (di_segment){id, 1, NULL, 0};
        control = i < size && data[i] == 1;
        start = i + 1;
    }
}

static void check(const di_tokenizer *tokenizer, const pieces *p, const di_ids *ids) {
    di_ids single = {0};
    di_text text = {0}, back = {0};
    for (size_t i = 0; i < p->count; i++) {
        const di_segment *s = &p->request[i];
        size_t before = single.count, length = s->text_length;
        const char *bytes = s->token_ids ? di_tokenizer_bytes(tokenizer, p->ids[i], &length) : s->text;
        if (di_tokenizer_encode(tokenizer, bytes, length, s->token_ids != NULL, &single, NULL)) abort();
        for (size_t j = before; j < single.count; j++)
            if (di_tokenizer_is_added(tokenizer, single.data[j]) != (s->token_ids != NULL)) abort();
        if (s->token_ids && single.count != before + 1) abort();
        di_text_append(&text, bytes, length);
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
    pieces p = {.count = 0};
    cut(tokenizer, data, size, &p);
    bool valid = true;
    for (size_t i = 0; i < p.count; i++)
        valid = valid && di_utf8_validate(p.request[i].text, p.request[i].text_length) == p.request[i].text_length;
    di_prompt prompt = {.request = p.request, .count = p.count};
    di_ids ids = {0};
    di_error error = {0};
    if ((di_recipe_encode(tokenizer, &prompt, &ids, &error) == DI_OK) != valid) abort();
    if (valid)
        check(tokenizer, &p, &ids);
    else if (!error.message[0])
        abort();
    di_ids_free(&ids);
    return 0;
}
