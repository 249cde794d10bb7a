/* detokenise.c - ids to UTF-8 text.
 *
 * The bytes of the ids form one stream; invalid parts of it become one U+FFFD per maximal bad prefix. At most three
 * bytes wait for the rest of their character.
 */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

void di_detokenizer_init(di_detokenizer *detokenizer, const di_tokenizer *tokenizer) {
    *detokenizer = (di_detokenizer){.tokenizer = tokenizer};
}

/* Emits what is certain of the waiting bytes; afterwards they are empty or an incomplete character. */
static void settle_pending(di_detokenizer *detokenizer, di_text *text) {
    while (detokenizer->pending_count > 0) {
        const char *pending = (const char *)detokenizer->pending;
        uint32_t codepoint;
        bool incomplete = false;
        size_t used = di_utf8_decode(pending, detokenizer->pending_count, &codepoint);
        if (used > 0) {
            di_text_append(text, pending, used);
        } else {
            used = di_utf8_bad_prefix(pending, detokenizer->pending_count, &incomplete);
            if (incomplete) return;
            di_text_puts(text, REPLACEMENT);
        }
        detokenizer->pending_count = (uint8_t)(detokenizer->pending_count - used);
        memmove(detokenizer->pending, detokenizer->pending + used, detokenizer->pending_count);
    }
}

di_status di_detokenizer_push(di_detokenizer *detokenizer, int32_t id, di_text *text, di_error *error) {
    size_t length = 0;
    const char *bytes = di_tokenizer_bytes(detokenizer->tokenizer, id, &length);
    if (!bytes)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "token_ids", "token id %d does not exist; ids are 0..%u", id,
                       di_tokenizer_vocabulary(detokenizer->tokenizer) - 1);
    size_t at = 0;
    while (at < length) {
        if (detokenizer->pending_count == 0) {
            size_t valid = di_utf8_validate(bytes + at, length - at);
            di_text_append(text, bytes + at, valid);
            at += valid;
            if (at == length) break;
        }
        detokenizer->pending[detokenizer->pending_count++] = (uint8_t)bytes[at++];
        settle_pending(detokenizer, text);
    }
    return text->failed ? di_fail(error, DI_ERR_MEMORY, "token_ids", "no memory for the text") : DI_OK;
}

void di_detokenizer_flush(di_detokenizer *detokenizer, di_text *text) {
    /* What waits is the beginning of one character: one maximal bad prefix. */
    if (detokenizer->pending_count > 0) di_text_puts(text, REPLACEMENT);
    detokenizer->pending_count = 0;
}

di_status di_tokenizer_decode(const di_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                              di_text *text, di_error *error) {
    di_detokenizer detokenizer;
    di_detokenizer_init(&detokenizer, tokenizer);
    for (size_t i = 0; i < count; i++) {
        if (skip_special && di_tokenizer_is_special(tokenizer, ids[i])) continue;
        di_status status = di_detokenizer_push(&detokenizer, ids[i], text, error);
        if (status) return status;
    }
    di_detokenizer_flush(&detokenizer, text);
    return text->failed ? di_fail(error, DI_ERR_MEMORY, "token_ids", "no memory for the text") : DI_OK;
}
