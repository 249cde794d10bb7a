/* added_tokens.c - literal search for added tokens.
 *
 * The tokens are sorted by their bytes. At a position of the text the range of tokens that agree with it is narrowed
 * byte by byte; of the tokens passed on the way the last one is the longest. A token is at most
 * DI_TOKENIZER_MAX_ADDED_BYTES long, so the search is linear in the text.
 */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *token_bytes(const di_tokenizer *tokenizer, uint32_t index, size_t *length) {
    const di_token *token = &tokenizer->tokens[tokenizer->added[index]];
    *length = token->length;
    return tokenizer->bytes + token->bytes;
}

static int compare_added(const void *a, const void *b, void *arg) {
    const di_tokenizer *tokenizer = arg;
    const di_token *x = &tokenizer->tokens[*(const int32_t *)a], *y = &tokenizer->tokens[*(const int32_t *)b];
    size_t shorter = x->length < y->length ? x->length : y->length;
    int order = memcmp(tokenizer->bytes + x->bytes, tokenizer->bytes + y->bytes, shorter);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

di_status di_added_tokens_index(di_tokenizer *tokenizer, di_error *error) {
    uint32_t count = 0;
    for (uint32_t id = 0; id < tokenizer->vocabulary; id++)
        count += tokenizer->tokens[id].flags & DI_TOKEN_ADDED ? 1 : 0;
    tokenizer->added = di_arena_array(tokenizer->arena, count ? count : 1, sizeof *tokenizer->added);
    if (!tokenizer->added) return di_fail(error, DI_ERR_MEMORY, "added_tokens", "no memory for %u added tokens", count);
    tokenizer->added_count = 0;
    for (uint32_t id = 0; id < tokenizer->vocabulary; id++)
        if (tokenizer->tokens[id].flags & DI_TOKEN_ADDED) tokenizer->added[tokenizer->added_count++] = (int32_t)id;
    qsort_r(tokenizer->added, count, sizeof *tokenizer->added, compare_added, tokenizer);
    uint32_t at = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        tokenizer->added_first[byte] = at;
        while (at < count && (uint8_t)tokenizer->bytes[tokenizer->tokens[tokenizer->added[at]].bytes] == byte) at++;
    }
    tokenizer->added_first[256] = at;
    return DI_OK;
}

/* First index in [low, high) whose byte at `depth` is at least `byte`; all agree before it and are longer. */
static uint32_t lower_bound(const di_tokenizer *tokenizer, uint32_t low, uint32_t high, size_t depth, unsigned byte) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        size_t length;
        const char *bytes = token_bytes(tokenizer, middle, &length);
        if ((uint8_t)bytes[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t di_added_token_at(const di_tokenizer *tokenizer, const char *text, size_t length, size_t *token_length) {
    if (length == 0) return -1;
    uint8_t first = (uint8_t)text[0];
    uint32_t low = tokenizer->added_first[first], high = tokenizer->added_first[first + 1];
    int32_t found = -1;
    for (size_t depth = 1; low < high; depth++) {
        size_t candidate;
        token_bytes(tokenizer, low, &candidate);
        if (candidate == depth) {
            found = tokenizer->added[low++];
            *token_length = depth;
        }
        if (depth == length) break;
        uint8_t byte = (uint8_t)text[depth];
        low = lower_bound(tokenizer, low, high, depth, byte);
        high = lower_bound(tokenizer, low, high, depth, byte + 1u);
    }
    return found;
}

int32_t di_tokenizer_added_id(const di_tokenizer *tokenizer, const char *text) {
    size_t length = strlen(text), found_length = 0;
    int32_t id = di_added_token_at(tokenizer, text, length, &found_length);
    return found_length == length ? id : -1;
}
