/* pretokenise.c - cuts text into the pieces that merges never cross.
 *
 * Three passes, each isolates the matches of an expression: a match is a piece, what lies between matches is a piece,
 * and the next pass works inside each piece on its own (so the end of a piece is the end of the text to a look-ahead).
 *
 * Time is linear. No expression can match empty text, and at one position each alternative looks at a run of like
 * characters at most twice (there and back); a run of white space is entered from at most three positions, because
 * one match takes it up to its last line end and the next one all but its last character.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/tokenizer_internal.h"

#include <pcre2.h>
#include <stdlib.h>

/* PCRE2's \s also matches U+180E, which is no white space since Unicode 6.3: the class is written out. */
#define W        "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define HAN_KANA "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"
#define WORDS                                                                                                          \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"                 \
    " ?[\\p{P}\\p{S}]+[\r\n]*|"

static const struct {
    const char *in_file; /* what tokenizer.json must hold */
    const char *compiled;
} passes[DI_TOKENIZER_PASS_COUNT] = {
    {"\\p{N}{1,3}", "\\p{N}{1,3}"},
    {HAN_KANA, HAN_KANA},
    {WORDS "\\s*[\r\n]+|\\s+(?!\\S)|\\s+", WORDS "[" W "]*[\r\n]+|[" W "]+(?![^" W "])|[" W "]+"},
};
enum { NUMBERS = 0 }; /* pass whose matches no later pass can cut: digits are in none of their classes */

struct di_pretokeniser {
    pcre2_code *codes[DI_TOKENIZER_PASS_COUNT];
};

const char *di_pretokeniser_expression(int pass) {
    return passes[pass].in_file;
}

di_status di_pretokeniser_new(bool use_jit, di_pretokeniser **pretokeniser, di_error *error) {
    di_pretokeniser *made = calloc(1, sizeof *made);
    if (!made) return di_fail(error, DI_ERR_MEMORY, "pre_tokenizer", "no memory for the pre-tokeniser");
    for (int pass = 0; pass < DI_TOKENIZER_PASS_COUNT; pass++) {
        int code = 0;
        PCRE2_SIZE offset = 0;
        made->codes[pass] = pcre2_compile((PCRE2_SPTR)passes[pass].compiled, PCRE2_ZERO_TERMINATED,
                                          PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
        if (!made->codes[pass]) {
            PCRE2_UCHAR reason[128] = "";
            pcre2_get_error_message(code, reason, sizeof reason);
            di_pretokeniser_free(made);
            return di_fail(error, DI_ERR_INTERNAL, "pre_tokenizer", "PCRE2 refuses expression %d at offset %zu: %s",
                           pass, (size_t)offset, (const char *)reason);
        }
        /* Where machine code is not allowed, PCRE2 interprets: the same pieces, slower. */
        if (use_jit) pcre2_jit_compile(made->codes[pass], PCRE2_JIT_COMPLETE);
    }
    *pretokeniser = made;
    return DI_OK;
}

void di_pretokeniser_free(di_pretokeniser *pretokeniser) {
    if (!pretokeniser) return;
    for (int pass = 0; pass < DI_TOKENIZER_PASS_COUNT; pass++) pcre2_code_free(pretokeniser->codes[pass]);
    free(pretokeniser);
}

typedef struct split_run {
    const di_pretokeniser *pretokeniser;
    pcre2_match_data *match;
    pcre2_match_context *context;
    di_piece_function on_piece;
    void *arg;
    di_error *error;
} split_run;

static di_status match_failed(int code, di_error *error) {
    PCRE2_UCHAR reason[128] = "";
    pcre2_get_error_message(code, reason, sizeof reason);
    di_status status = code == PCRE2_ERROR_NOMEMORY ? DI_ERR_MEMORY : DI_ERR_INTERNAL;
    return di_fail(error, status, "text", "PCRE2 cannot pre-tokenise the text: %s", (const char *)reason);
}

static di_status split(const split_run *run, int pass, const char *text, size_t length) {
    if (pass == DI_TOKENIZER_PASS_COUNT) return run->on_piece(run->arg, text, length, run->error);
    size_t at = 0;
    di_status status = DI_OK;
    while (at < length && !status) {
        int code = pcre2_match(run->pretokeniser->codes[pass], (PCRE2_SPTR)text, length, at, PCRE2_NO_UTF_CHECK,
                               run->match, run->context);
        if (code < 0 && code != PCRE2_ERROR_NOMATCH) return match_failed(code, run->error);
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(run->match);
        size_t start = code < 0 ? length : bounds[0], end = code < 0 ? length : bounds[1];
        if (start > at) status = split(run, pass + 1, text + at, start - at);
        if (end > start && !status)
            status = split(run, pass == NUMBERS ? DI_TOKENIZER_PASS_COUNT : pass + 1, text + start, end - start);
        at = end;
    }
    return status;
}

di_status di_pretokenise(const di_pretokeniser *pretokeniser, const char *text, size_t length,
                         di_piece_function on_piece, void *arg, di_error *error) {
    if (length == 0) return DI_OK;
    split_run run = {pretokeniser, pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL), on_piece, arg,
                     error};
    di_status status;
    if (!run.match || !run.context) {
        status = di_fail(error, DI_ERR_MEMORY, "text", "no memory to pre-tokenise");
    } else {
        /* A match goes back over a run of white space once, so the limits below are never reached; they bound what a
         * fault could cost. */
        uint64_t limit = 16 * (uint64_t)length + 1024;
        pcre2_set_match_limit(run.context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
        pcre2_set_depth_limit(run.context, 1024);
        pcre2_set_heap_limit(run.context, 1024);
        status = split(&run, 0, text, length);
    }
    pcre2_match_context_free(run.context);
    pcre2_match_data_free(run.match);
    return status;
}
