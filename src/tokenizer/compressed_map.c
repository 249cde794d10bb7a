/* compressed_map.c - the Engram compressed-token map (specification 5.1).
 *
 * Every token gets a key, tokens with the same key share a new id, new ids are given in order of first appearance.
 */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define REPLACEMENT "\xEF\xBF\xBD"

typedef struct key_slot {
    uint32_t offset, length; /* of the key in `keys` */
    uint32_t hash;
    int32_t id; /* -1 = free */
} key_slot;

typedef struct map_run {
    di_text keys; /* all distinct keys, one after the other */
    di_text text; /* of the token at hand */
    di_text key;
    key_slot *slots; /* [mask + 1] */
    uint32_t mask;
    uint32_t count;
    utf8proc_int32_t *characters; /* [character_capacity] */
    utf8proc_ssize_t character_capacity;
} map_run;

/* NFKC, then NFD, which together are NFKD; marks are dropped, characters lowercased one by one. */
static bool append_folded(map_run *run, di_text *out) {
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    const utf8proc_uint8_t *text = (const utf8proc_uint8_t *)run->text.data;
    utf8proc_ssize_t length = (utf8proc_ssize_t)run->text.length;
    utf8proc_ssize_t needed = utf8proc_decompose(text, length, run->characters, run->character_capacity, options);
    if (needed > run->character_capacity) {
        utf8proc_int32_t *grown = realloc(run->characters, 2 * (size_t)needed * sizeof *grown);
        if (!grown) return false;
        run->characters = grown;
        run->character_capacity = 2 * needed;
        needed = utf8proc_decompose(text, length, run->characters, run->character_capacity, options);
    }
    if (needed < 0) return false;
    for (utf8proc_ssize_t i = 0; i < needed; i++) {
        utf8proc_category_t category = utf8proc_category(run->characters[i]);
        if (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME)
            continue;
        char utf8[4];
        size_t used = di_utf8_encode((uint32_t)utf8proc_tolower(run->characters[i]), utf8);
        di_text_append(out, utf8, used);
    }
    return !out->failed;
}

static bool is_plain_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Runs of space, tab and line ends become one space. Returns the new length. */
static size_t squeeze_spaces(char *text, size_t length) {
    size_t out = 0;
    for (size_t i = 0; i < length; i++) {
        if (!is_plain_space(text[i]))
            text[out++] = text[i];
        else if (i == 0 || !is_plain_space(text[i - 1]))
            text[out++] = ' ';
    }
    return out;
}

/* Start and length of text without white space at both ends. */
static size_t strip(const char *text, size_t length, size_t *start) {
    size_t first = length, end = 0, used;
    for (size_t i = 0; i < length; i += used) {
        uint32_t codepoint;
        used = di_utf8_decode(text + i, length - i, &codepoint);
        if (di_is_white_space(codepoint)) continue;
        if (first == length) first = i;
        end = i + used;
    }
    *start = first;
    return end > first ? end - first : 0;
}

/* The rule protects a lone space as U+E000 and turns every U+E000 back into a space at the end; so must we. */
static void restore_private_space(di_text *key) {
    size_t out = 0;
    for (size_t i = 0; i < key->length;) {
        bool private_space = key->length - i >= 3 && memcmp(key->data + i, "\xEE\x80\x80", 3) == 0;
        key->data[out++] = private_space ? ' ' : key->data[i];
        i += private_space ? 3 : 1;
    }
    key->length = out;
}

/* The key of a token, in run->key. */
static bool make_key(const di_tokenizer *tokenizer, int32_t id, map_run *run, di_error *error, di_status *status) {
    di_text_clear(&run->text);
    di_text_clear(&run->key);
    *status = di_tokenizer_decode(tokenizer, &id, 1, false, &run->text, error);
    if (*status) return false;
    if (run->text.length == 0) return true;
    if (memmem(run->text.data, run->text.length, REPLACEMENT, strlen(REPLACEMENT))) {
        di_text_puts(&run->key, di_tokenizer_spelling(tokenizer, id));
        return !run->key.failed;
    }
    if (!append_folded(run, &run->key)) return false;
    if (run->key.length > 0) {
        run->key.length = squeeze_spaces(run->key.data, run->key.length);
        bool one_space = run->key.length == 1 && run->key.data[0] == ' ';
        if (!one_space) {
            size_t start, length = strip(run->key.data, run->key.length, &start);
            memmove(run->key.data, run->key.data + start, length);
            run->key.length = length;
        }
    }
    restore_private_space(&run->key);
    if (run->key.length == 0) di_text_append(&run->key, run->text.data, run->text.length);
    return !run->key.failed;
}

/* Id of the key in run->key, a new one if it was not there. */
static int32_t find_or_add(map_run *run) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < run->key.length; i++) hash = (hash ^ (uint8_t)run->key.data[i]) * 16777619u;
    uint32_t at = hash & run->mask;
    for (; run->slots[at].id >= 0; at = (at + 1) & run->mask) {
        const key_slot *slot = &run->slots[at];
        if (slot->hash == hash && slot->length == run->key.length &&
            memcmp(run->keys.data + slot->offset, run->key.data, slot->length) == 0)
            return slot->id;
    }
    run->slots[at] = (key_slot){(uint32_t)run->keys.length, (uint32_t)run->key.length, hash, (int32_t)run->count++};
    di_text_append(&run->keys, run->key.data, run->key.length);
    return run->slots[at].id;
}

di_status di_tokenizer_compressed_map(const di_tokenizer *tokenizer, uint32_t vocabulary, int32_t *map,
                                      uint32_t *compressed, di_error *error) {
    if (vocabulary > tokenizer->vocabulary)
        return di_fail(error, DI_ERR_CHECKPOINT, "vocab_size",
                       "vocab_size is %u but the tokenizer has only %u ids: the compressed-token map cannot be made",
                       vocabulary, tokenizer->vocabulary);
    map_run run = {.mask = 1};
    while (run.mask < 2 * vocabulary) run.mask *= 2;
    run.slots = malloc(run.mask * sizeof *run.slots);
    di_status status = DI_OK;
    bool made = run.slots != NULL;
    for (uint32_t i = 0; made && i < run.mask; i++) run.slots[i].id = -1;
    run.mask--;
    for (uint32_t id = 0; made && id < vocabulary; id++) {
        made = make_key(tokenizer, (int32_t)id, &run, error, &status);
        if (made) map[id] = find_or_add(&run);
        made = made && !run.keys.failed;
    }
    if (!made && !status) status = di_fail(error, DI_ERR_MEMORY, "tokenizer", "no memory for the compressed-token map");
    *compressed = run.count;
    di_text_free(&run.keys);
    di_text_free(&run.text);
    di_text_free(&run.key);
    free(run.slots);
    free(run.characters);
    return status;
}
