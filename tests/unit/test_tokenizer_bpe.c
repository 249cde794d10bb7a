/* needs: tokenizer base */
/* The heap merge against the definition: merge the leftmost pair of lowest rank, again and again. */
#include "support/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_MERGES = 200, MAX_LENGTH = 3000 };

typedef struct toy_tokenizer {
    di_tokenizer *tokenizer;
    char token[256 + MAX_MERGES][64]; /* letters only, so that a spelling is its own bytes */
    int token_count;
    int merges[MAX_MERGES][2]; /* ids, by rank */
    int made[MAX_MERGES];
    int merge_count;
} toy_tokenizer;

static uint32_t random_state = 1;

static uint32_t draw(uint32_t bound) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * bound) >> 32);
}

/* Random merges over the first `letters` letters. Some make a token that is there already, by another pair. */
static void make_toy(toy_tokenizer *toy, unsigned letters, int merges) {
    memset(toy, 0, sizeof *toy);
    int known[256 + MAX_MERGES], known_count = 0;
    for (unsigned i = 0; i < letters; i++) {
        known[known_count++] = (int)('a' + i);
        toy->token['a' + i][0] = (char)('a' + i);
    }
    toy->token_count = 256;
    di_text vocabulary = {0}, list = {0}, file = {0};
    di_text_puts(&vocabulary, "");
    di_text_puts(&list, "");
    while (toy->merge_count < merges) {
        int left = known[draw((uint32_t)known_count)], right = known[draw((uint32_t)known_count)], made = -1;
        char text[128];
        snprintf(text, sizeof text, "%s%s", toy->token[left], toy->token[right]);
        bool again = strlen(text) >= sizeof toy->token[0];
        for (int i = 0; i < toy->merge_count; i++) again |= toy->merges[i][0] == left && toy->merges[i][1] == right;
        if (again) continue;
        for (int i = 256; i < toy->token_count; i++)
            if (strcmp(toy->token[i], text) == 0) made = i;
        if (made < 0) {
            made = toy->token_count++;
            strcpy(toy->token[made], text);
            known[known_count++] = made;
            di_text_printf(&vocabulary, ",\"%s\":%d", text, made);
        }
        di_text_printf(&list, "%s\"%s %s\"", toy->merge_count ? "," : "", toy->token[left], toy->token[right]);
        toy->merges[toy->merge_count][0] = left;
        toy->merges[toy->merge_count][1] = right;
        toy->made[toy->merge_count++] = made;
    }
    small_tokenizer(&file, vocabulary.data, list.data, "");
    di_error error = {0};
    if (di_tokenizer_parse("toy.json", file.data, file.length, &toy->tokenizer, &error)) fail_msg("%s", error.message);
    di_text_free(&vocabulary);
    di_text_free(&list);
    di_text_free(&file);
}

static int merge_by_definition(const toy_tokenizer *toy, int *parts, int count) {
    for (;;) {
        int best = toy->merge_count, at = -1;
        for (int i = 0; i + 1 < count; i++)
            for (int rank = 0; rank < best; rank++)
                if (toy->merges[rank][0] == parts[i] && toy->merges[rank][1] == parts[i + 1]) best = rank, at = i;
        if (at < 0) return count;
        parts[at] = toy->made[best];
        memmove(parts + at + 1, parts + at + 2, (size_t)(count - at - 2) * sizeof *parts);
        count--;
    }
}

static void compare(const toy_tokenizer *toy, const char *text, int length) {
    static int parts[MAX_LENGTH];
    for (int i = 0; i < length; i++) parts[i] = (uint8_t)text[i];
    int count = merge_by_definition(toy, parts, length);
    di_ids ids = {0};
    di_error error = {0};
    assert_int_equal(di_tokenizer_encode(toy->tokenizer, text, (size_t)length, false, &ids, &error), DI_OK);
    if (ids.count != (size_t)count || memcmp(ids.data, parts, (size_t)count * sizeof *parts) != 0)
        fail_msg("other merges than by definition: %.*s", length, text);
    di_ids_free(&ids);
}

static void heap_equals_definition(void **state) {
    (void)state;
    static toy_tokenizer toy;
    char text[MAX_LENGTH];
    for (int round = 0; round < 60; round++) {
        unsigned letters = 1 + draw(4);
        make_toy(&toy, letters, letters == 1 ? 5 : 10 + (int)draw(MAX_MERGES - 10));
        for (int i = 0; i < 40; i++) {
            int length = 1 + (int)draw(i < 30 ? 24 : 200);
            for (int j = 0; j < length; j++) text[j] = (char)('a' + draw(letters));
            compare(&toy, text, length);
        }
        di_tokenizer_free(toy.tokenizer);
    }
}

static void long_pieces_equal_definition(void **state) {
    (void)state;
    static toy_tokenizer toy;
    char text[MAX_LENGTH];
    for (unsigned letters = 1; letters <= 2; letters++) {
        make_toy(&toy, letters, 5);
        for (int j = 0; j < MAX_LENGTH; j++) text[j] = (char)('a' + draw(letters));
        for (int length = MAX_LENGTH - 3; length <= MAX_LENGTH; length++) compare(&toy, text, length);
        di_tokenizer_free(toy.tokenizer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_equals_definition),
        cmocka_unit_test(long_pieces_equal_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
