/* needs: grammar tokenizer base */
/* fuzz_grammar.c - schemas, expressions and grammars, and texts against them. First byte: kind and options; then the
 * source, a zero byte, and a text. What compiles is walked; every mask bit must be what advancing says. */
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 300, STEPS = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* All bytes, and some longer tokens that cross borders of lexemes. */
static di_vocabulary *make_vocabulary(void) {
    static const char *const more[] = {"\":",   "\",\"",    "},{",    "[]",   "{}",  "true", " ,",  "\"a\"",
                                       "\\u00", "\xC3\xA4", "10",     ".5",   "\"}", "]}",   "abc", "ab",
                                       "\n  ",  "null,",    "\": \"", "aa\"", "+1",  "((",   "=="};
    const char *bytes[TOKENS] = {0};
    uint32_t lengths[TOKENS] = {0};
    static char single[256];
    for (int i = 0; i < 256; i++) {
        single[i] = (char)i;
        bytes[i] = &single[i];
        lengths[i] = 1;
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        bytes[256 + i] = more[i];
        lengths[256 + i] = (uint32_t)strlen(more[i]);
    }
    const int32_t stop = TOKENS - 1;
    di_vocabulary *vocabulary = NULL;
    if (di_vocabulary_new(bytes, lengths, TOKENS, &stop, 1, &vocabulary, NULL) != DI_OK) abort();
    return vocabulary;
}

static void compare(di_matcher *matcher, di_grammar_state state) {
    uint64_t mask[(TOKENS + 63) / 64];
    if (di_matcher_mask(matcher, state, mask, NULL) != DI_OK) return;
    for (uint32_t token = 0; token < TOKENS; token++) {
        di_grammar_state next;
        if (di_matcher_advance(matcher, state, token, &next, NULL) != DI_OK) return;
        if ((mask[token / 64] >> token % 64 & 1) != (next != DI_GRAMMAR_REJECT)) abort();
    }
    bool any = false;
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++) any = any || mask[i];
    if (!any) abort(); /* every live state can be completed */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const uint8_t *end = memchr(data + 1, 0, size - 1);
    size_t length = end ? (size_t)(end - data) - 1 : size - 1, at = length + 2;
    di_grammar_source source = {.kind = (di_grammar_kind)(1 + data[0] % 6),
                                .text = (const char *)data + 1,
                                .length = length,
                                .order = data[0] & 0x40 ? DI_ORDER_ANY : DI_ORDER_SCHEMA,
                                .whitespace = data[0] & 0x80 ? DI_WHITESPACE_COMPACT : DI_WHITESPACE_FLEXIBLE};
    di_grammar_limits limits;
    di_grammar_limits_default(&limits);
    limits.expressions = 20000;
    limits.symbols = 20000;
    limits.work = limits.mask_work = 100000;
    limits.memory = 16u << 20;
    di_grammar *grammar = NULL;
    di_grammar_fault fault;
    di_error error = {0};
    if (di_grammar_compile(&source, &limits, &grammar, &fault, &error) != DI_OK) {
        if (!error.message[0] || fault.reason == DI_REASON_NONE) abort();
        return 0;
    }
    di_vocabulary *vocabulary = make_vocabulary();
    di_matcher *matcher = NULL;
    if (di_matcher_new(grammar, vocabulary, &matcher, &error) == DI_OK) {
        di_grammar_state state = di_matcher_start(matcher), next;
        for (int i = 0; i < STEPS; i++, at++) {
            compare(matcher, state);
            uint8_t byte = at < size ? data[at] : (uint8_t) "{\"a1,}]x"[i % 8];
            if (di_matcher_advance_bytes(matcher, state, &byte, 1, &next, NULL) != DI_OK) break;
            if (next != DI_GRAMMAR_REJECT) state = next;
            if (i % 6 == 5) di_matcher_compact(matcher, &state, 1, NULL);
        }
    }
    di_matcher_free(matcher);
    di_vocabulary_free(vocabulary);
    di_grammar_free(grammar);
    return 0;
}
