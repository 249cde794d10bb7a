/* needs: engine
 * utf8-split of docs/testing.md: wherever the tokens of an answer cut its characters, the pieces that the events carry
 * add up to the whole, and each piece is whole characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "engine/engine.h"
#include "support/requests.h"
#include "tokenizer/tokenizer.h"

#define TINY DI_SOURCE_DIR "/models/tiny"

enum { MAX_IDS = 512, AT_ONCE = 32 };

static const char corpus[] =
    "Gr\xC3\xB6\xC3\x9F"
    "e na\xC3\xAFve \xD0\xBF\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xD8\xB9\xD8\xB1\xD8\xA8\xD9\x89 "
    "\xE4\xB8\xAD\xE6\x96\x87\xE3\x81\x82\xED\x95\x9C\xE0\xB9\x84\xE0\xA4\xA8\xE0\xA5\x8D "
    "e\xCC\x81 \xF0\x9F\x99\x82\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB\xF0\x9D\x84\x9E end";

static int32_t byte_ids[256]; /* ids whose bytes are this one */

static void find_bytes(const di_tokenizer *tokenizer, uint32_t vocabulary) {
    memset(byte_ids, 0xFF, sizeof byte_ids);
    for (int32_t id = 0; id < (int32_t)vocabulary; id++) {
        size_t length = 0;
        const char *bytes = di_tokenizer_bytes(tokenizer, id, &length);
        if (bytes && length == 1 && !di_tokenizer_is_added(tokenizer, id)) byte_ids[(uint8_t)*bytes] = id;
    }
    for (size_t i = 0; i < sizeof corpus - 1; i++) assert_true(byte_ids[(uint8_t)corpus[i]] >= 0);
}

static size_t add_text(di_engine *engine, size_t from, size_t to, int32_t *ids) {
    int32_t *made = NULL;
    size_t count = 0;
    di_error error = {0};
    if (from == to) return 0;
    if (di_tokenize(engine, corpus + from, to - from, false, &made, &count, &error) != DI_OK)
        fail_msg("%s", error.message);
    memcpy(ids, made, count * sizeof *ids);
    di_free(made);
    return count;
}

static bool inside(size_t at) {
    return ((uint8_t)corpus[at] & 0xC0) == 0x80;
}

/* Ids of the corpus in which some token ends at byte `cut`. */
static size_t split_at(di_engine *engine, size_t cut, int32_t ids[MAX_IDS]) {
    size_t begin = cut, end = cut, count;
    while (inside(begin)) begin--;
    while (inside(end)) end++;
    count = add_text(engine, 0, begin, ids);
    for (size_t i = begin; i < end; i++) ids[count++] = byte_ids[(uint8_t)corpus[i]];
    return count + add_text(engine, end, sizeof corpus - 1, ids + count);
}

static di_request *submit(di_engine *engine, const int32_t *ids, size_t count) {
    static const int32_t prompt[] = {40, 41, 42};
    di_segment segment = {.token_ids = prompt, .token_count = 3};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling.golden_token_ids = ids;
    params.sampling.golden_token_count = count;
    params.sampling.max_tokens = (int64_t)count;
    params.sampling.ignore_eos = true;
    di_request *request = NULL;
    di_error error = {0};
    if (di_submit(engine, &params, &request, &error) != DI_OK) fail_msg("%s", error.message);
    return request;
}

static void check(di_request *request, size_t cut) {
    di_text whole = {0};
    for (di_event event; di_request_next(request, -1, &event);) {
        assert_int_equal(event.status, DI_OK);
        /* No piece begins or ends within a character. */
        assert_int_equal(di_utf8_validate(event.text, event.text_length), event.text_length);
        di_text_append(&whole, event.text, event.text_length);
    }
    if (whole.length != sizeof corpus - 1 || memcmp(whole.data, corpus, whole.length) != 0)
        fail_msg("cut at byte %zu: %s", cut, whole.data ? whole.data : "");
    di_text_free(&whole);
    di_request_free(request);
}

static void every_split_adds_up(void **state) {
    (void)state;
    di_engine *engine = di_open_with(TINY, NULL, 0);
    find_bytes(di_engine_tokenizer(engine), di_engine_info(engine)->vocabulary);
    const size_t cuts = sizeof corpus; /* the last: every byte a token of its own */
    for (size_t first = 0; first < cuts; first += AT_ONCE) {
        static int32_t ids[AT_ONCE][MAX_IDS];
        di_request *requests[AT_ONCE] = {0};
        size_t most = cuts - first < AT_ONCE ? cuts - first : AT_ONCE;
        for (size_t i = 0; i < most; i++) {
            size_t count = first + i < cuts - 1 ? split_at(engine, first + i, ids[i]) : 0;
            for (size_t b = 0; first + i == cuts - 1 && b < sizeof corpus - 1; b++)
                ids[i][count++] = byte_ids[(uint8_t)corpus[b]];
            requests[i] = submit(engine, ids[i], count);
        }
        for (size_t i = 0; i < most; i++) check(requests[i], first + i);
    }
    di_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_split_adds_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
