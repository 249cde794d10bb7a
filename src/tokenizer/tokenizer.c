/* tokenizer.c - encoding and look-ups. */
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

void di_ids_append(di_ids *ids, int32_t id) {
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *grown = ids->failed ? NULL : realloc(ids->data, capacity * sizeof *grown);
        if (!grown) {
            ids->failed = true;
            return;
        }
        ids->data = grown;
        ids->capacity = capacity;
    }
    ids->data[ids->count++] = id;
}

void di_ids_free(di_ids *ids) {
    free(ids->data);
    *ids = (di_ids){0};
}

const uint32_t di_white_space[][2] = {{0x9, 0xD},
                                      {0x20, 0x20},
                                      {0x85, 0x85},
                                      {0xA0, 0xA0},
                                      {0x1680, 0x1680},
                                      {0x2000, 0x200A},
                                      {0x2028, 0x2029},
                                      {0x202F, 0x202F},
                                      {0x205F, 0x205F},
                                      {0x3000, 0x3000},
                                      {0, 0}};

bool di_is_white_space(uint32_t codepoint) {
    for (size_t i = 0; di_white_space[i][1]; i++)
        if (codepoint >= di_white_space[i][0] && codepoint <= di_white_space[i][1]) return true;
    return false;
}

uint64_t di_tokenizer_digest(const di_tokenizer *tokenizer) {
    return tokenizer->digest;
}

uint32_t di_tokenizer_vocabulary(const di_tokenizer *tokenizer) {
    return tokenizer->vocabulary;
}

static const di_token *find_token(const di_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && (uint32_t)id < tokenizer->vocabulary ? &tokenizer->tokens[id] : NULL;
}

bool di_tokenizer_is_added(const di_tokenizer *tokenizer, int32_t id) {
    const di_token *token = find_token(tokenizer, id);
    return token && token->flags & DI_TOKEN_ADDED;
}

bool di_tokenizer_is_special(const di_tokenizer *tokenizer, int32_t id) {
    const di_token *token = find_token(tokenizer, id);
    return token && token->flags & DI_TOKEN_SPECIAL;
}

const char *di_tokenizer_bytes(const di_tokenizer *tokenizer, int32_t id, size_t *length) {
    const di_token *token = find_token(tokenizer, id);
    if (!token) return NULL;
    *length = token->length;
    return tokenizer->bytes + token->bytes;
}

void di_tokenizer_expect(const di_tokenizer *tokenizer, int32_t id) {
    __builtin_prefetch(find_token(tokenizer, id));
}

const char *di_tokenizer_spelling(const di_tokenizer *tokenizer, int32_t id) {
    const di_token *token = find_token(tokenizer, id);
    return token ? tokenizer->spellings + token->spelling : NULL;
}

typedef struct encode_run {
    const di_tokenizer *tokenizer;
    di_bpe bpe;
    di_ids *ids;
} encode_run;

static di_status encode_piece(void *arg, const char *piece, size_t length, di_error *error) {
    encode_run *run = arg;
    return di_bpe_encode(run->tokenizer, &run->bpe, piece, length, run->ids, error);
}

static di_status encode_valid(encode_run *run, const char *text, size_t length, bool added_tokens, di_error *error) {
    const di_pretokeniser *pretokeniser = run->tokenizer->pretokeniser;
    size_t plain = 0, at = 0;
    while (added_tokens && at < length) {
        size_t token_length = 0;
        int32_t id = di_added_token_at(run->tokenizer, text + at, length - at, &token_length);
        if (id < 0) {
            at++;
            continue;
        }
        di_status status = di_pretokenise(pretokeniser, text + plain, at - plain, encode_piece, run, error);
        if (status) return status;
        di_ids_append(run->ids, id);
        at += token_length;
        plain = at;
    }
    return di_pretokenise(pretokeniser, text + plain, length - plain, encode_piece, run, error);
}

di_status di_tokenizer_encode(const di_tokenizer *tokenizer, const char *text, size_t length, bool added_tokens,
                              di_ids *ids, di_error *error) {
    if (length > INT32_MAX)
        return di_fail(error, DI_ERR_LIMIT, "text", "the text has %zu bytes; at most %d can be encoded at once", length,
                       INT32_MAX);
    size_t valid = length ? di_utf8_validate(text, length) : 0;
    if (valid < length)
        return di_fail(error, DI_ERR_FORMAT, "text", "the text is not valid UTF-8: byte 0x%02X at offset %zu",
                       (unsigned)(uint8_t)text[valid], valid);
    size_t count = ids->count;
    encode_run run = {.tokenizer = tokenizer, .ids = ids};
    di_status status = encode_valid(&run, text, length, added_tokens, error);
    di_bpe_free(&run.bpe);
    if (!status && ids->failed) status = di_fail(error, DI_ERR_MEMORY, "text", "no memory for the token ids");
    if (status) ids->count = count;
    return status;
}

void di_tokenizer_free(di_tokenizer *tokenizer) {
    if (!tokenizer) return;
    di_pretokeniser_free(tokenizer->pretokeniser);
    di_arena *arena = tokenizer->arena;
    free(tokenizer);
    di_arena_free(arena);
}
