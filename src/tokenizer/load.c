/* load.c - tokenizer.json to di_tokenizer: every field that changes ids or text is checked, none is guessed.
 *
 * Ids must be 0 .. n-1 without holes or duplicates, where n counts the vocabulary and those added tokens that are not
 * in it; so an id is never larger than the number of entries, and memory is bounded by the size of the file.
 */
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

typedef struct entry { /* of the string table: one base or added token */
    const char *text;
    uint32_t length;
    uint32_t hash;
    int32_t id; /* -1 = free slot */
} entry;

typedef struct loader {
    const char *name; /* of the file, for errors */
    di_error *error;
    di_arena *scratch; /* freed when loading ends */
    const di_json *root, *vocab, *merges, *added;
    entry *table; /* [mask + 1] by text */
    uint32_t mask;
    const char **texts; /* [capacity] spelling by id, NULL = no such id */
    uint32_t *lengths;  /* [capacity] of the spellings */
    uint8_t *flags;     /* [capacity] DI_TOKEN_* */
    uint32_t capacity;  /* entries in the file: no id reaches it */
    di_tokenizer *tokenizer;
} loader;

/* "NAME: FIELD TEXT" with error->param = FIELD. */
static di_status refuse(const loader *load, di_status status, const char *field, const char *format, ...)
    DI_PRINTF(4, 5);

static di_status refuse(const loader *load, di_status status, const char *field, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return di_fail(load->error, status, field, "%s: %s %s", load->name, field, text);
}

static di_status no_memory(const loader *load) {
    return refuse(load, DI_ERR_MEMORY, "tokenizer", "does not fit in memory");
}

/* Up to 40 bytes of text for a message, whole printable characters only. */
typedef struct excerpt {
    char text[48];
} excerpt;

static excerpt quote(const char *text, size_t length) {
    excerpt out = {{0}};
    size_t used = 0, at = 0;
    while (at < length && used < 36) {
        uint32_t codepoint;
        size_t size = di_utf8_decode(text + at, length - at, &codepoint);
        bool printable = size > 0 && codepoint >= 0x20 && (codepoint < 0x7F || codepoint > 0x9F);
        if (printable)
            memcpy(out.text + used, text + at, size);
        else
            out.text[used] = '?';
        used += printable ? size : 1;
        at += size ? size : 1;
    }
    if (at < length) memcpy(out.text + used, "...", 3);
    return out;
}

/* --- fields that must have one value */

static bool is_off(const di_json *node) {
    return !node || node->type == DI_JSON_NULL || node->type == DI_JSON_FALSE ||
           (node->type == DI_JSON_STRING && node->length == 0);
}

typedef struct required_field {
    const char *key;
    const char *value; /* NULL: must be absent, null, false or "" */
} required_field;

static di_status check_fields(const loader *load, const di_json *object, const char *path, const required_field *fields,
                              size_t count) {
    if (!object) return refuse(load, DI_ERR_FORMAT, path, "is missing; an object is needed");
    if (object->type != DI_JSON_OBJECT)
        return refuse(load, DI_ERR_FORMAT, path, "is %s; an object is needed", di_json_type_name(object->type));
    for (size_t i = 0; i < count; i++) {
        char field[96];
        snprintf(field, sizeof field, "%s.%s", path, fields[i].key);
        const di_json *node = di_json_get(object, fields[i].key);
        if (!fields[i].value) {
            if (!is_off(node))
                return refuse(load, DI_ERR_UNSUPPORTED, field, "is %s; it must be absent, null or false",
                              node->type == DI_JSON_TRUE ? "true" : di_json_type_name(node->type));
        } else if (!node) {
            return refuse(load, DI_ERR_FORMAT, field, "is missing; it must be \"%s\"", fields[i].value);
        } else if (node->type != DI_JSON_STRING) {
            return refuse(load, DI_ERR_FORMAT, field, "is %s; it must be \"%s\"", di_json_type_name(node->type),
                          fields[i].value);
        } else if (!di_json_string_is(node, fields[i].value)) {
            return refuse(load, DI_ERR_UNSUPPORTED, field, "is \"%s\"; it must be \"%s\"",
                          quote(node->text, node->length).text, fields[i].value);
        }
    }
    return DI_OK;
}

#define CHECK_FIELDS(load, object, path, ...)                                                                          \
    check_fields(load, object, path, (const required_field[]){__VA_ARGS__},                                            \
                 sizeof((const required_field[]){__VA_ARGS__}) / sizeof(required_field))

/* A Sequence and the array of its steps, which must have `count` items. */
static di_status check_sequence(const loader *load, const char *path, const char *key, uint32_t count,
                                const di_json **items) {
    const di_json *object = di_json_get(load->root, path);
    di_status status = CHECK_FIELDS(load, object, path, {"type", "Sequence"});
    if (status) return status;
    char field[96];
    snprintf(field, sizeof field, "%s.%s", path, key);
    *items = di_json_get(object, key);
    if (!*items || (*items)->type != DI_JSON_ARRAY) return refuse(load, DI_ERR_FORMAT, field, "must be an array");
    if ((*items)->count != count)
        return refuse(load, DI_ERR_UNSUPPORTED, field, "has %u steps; it must have %u", (*items)->count, count);
    return DI_OK;
}

static di_status check_split(const loader *load, const di_json *step, int pass) {
    char path[64], field[96];
    snprintf(path, sizeof path, "pre_tokenizer.pretokenizers[%d]", pass);
    di_status status = CHECK_FIELDS(load, step, path, {"type", "Split"}, {"behavior", "Isolated"}, {"invert", NULL});
    if (status) return status;
    snprintf(field, sizeof field, "%s.pattern", path);
    const di_json *expression = di_json_get(di_json_get(step, "pattern"), "Regex");
    if (!expression || expression->type != DI_JSON_STRING)
        return refuse(load, DI_ERR_FORMAT, field, "must hold a string named Regex");
    if (!di_json_string_is(expression, di_pretokeniser_expression(pass)))
        return refuse(load, DI_ERR_UNSUPPORTED, field, "is not the expression of the DeepSeek tokenizers: \"%s\"",
                      quote(expression->text, expression->length).text);
    return DI_OK;
}

static di_status check_pretokenizer(const loader *load) {
    const di_json *steps;
    di_status status = check_sequence(load, "pre_tokenizer", "pretokenizers", DI_TOKENIZER_PASS_COUNT + 1, &steps);
    if (status) return status;
    const di_json *step = steps->first;
    for (int pass = 0; pass < DI_TOKENIZER_PASS_COUNT; pass++, step = step->next) {
        status = check_split(load, step, pass);
        if (status) return status;
    }
    status = CHECK_FIELDS(load, step, "pre_tokenizer.pretokenizers[3]", {"type", "ByteLevel"});
    /* Left out, the two options are true in this format. */
    const char *const options[] = {"add_prefix_space", "use_regex"};
    for (int i = 0; i < 2 && !status; i++) {
        char field[96];
        snprintf(field, sizeof field, "pre_tokenizer.pretokenizers[3].%s", options[i]);
        const di_json *node = di_json_get(step, options[i]);
        if (!node || node->type != DI_JSON_FALSE)
            return refuse(load, DI_ERR_UNSUPPORTED, field, "must be false (it is true when left out)");
    }
    return status;
}

static di_status check_pipeline(const loader *load) {
    const char *const unused[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++)
        if (!is_off(di_json_get(load->root, unused[i])))
            return refuse(load, DI_ERR_UNSUPPORTED, unused[i], "is set; it must be null");
    di_status status = DI_OK;
    const di_json *steps;
    if (!is_off(di_json_get(load->root, "normalizer")))
        status = check_sequence(load, "normalizer", "normalizers", 0, &steps);
    if (!status) status = check_pretokenizer(load);
    const di_json *post = di_json_get(load->root, "post_processor");
    if (!status && !is_off(post)) status = CHECK_FIELDS(load, post, "post_processor", {"type", "ByteLevel"});
    if (!status) status = CHECK_FIELDS(load, di_json_get(load->root, "decoder"), "decoder", {"type", "ByteLevel"});
    if (status) return status;
    return CHECK_FIELDS(load, di_json_get(load->root, "model"), "model", {"type", "BPE"}, {"dropout", NULL},
                        {"unk_token", NULL}, {"continuing_subword_prefix", NULL}, {"end_of_word_suffix", NULL},
                        {"fuse_unk", NULL}, {"byte_fallback", NULL}, {"ignore_merges", NULL});
}

/* --- string table */

#define HASH_START 2166136261u

static uint32_t hash_more(uint32_t hash, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash;
}

/* Slot of the text left + right: the one that holds it or the free one where it belongs. */
static entry *find_slot(const loader *load, const char *left, size_t left_length, const char *right,
                        size_t right_length, uint32_t *hash) {
    *hash = hash_more(hash_more(HASH_START, left, left_length), right, right_length);
    for (uint32_t at = (*hash ^ *hash >> 15) & load->mask;; at = (at + 1) & load->mask) {
        entry *slot = &load->table[at];
        if (slot->id < 0) return slot;
        if (slot->hash == *hash && slot->length == left_length + right_length &&
            memcmp(slot->text, left, left_length) == 0 && memcmp(slot->text + left_length, right, right_length) == 0)
            return slot;
    }
}

static int32_t find_id(const loader *load, const char *left, size_t left_length, const char *right,
                       size_t right_length) {
    uint32_t hash;
    return find_slot(load, left, left_length, right, right_length, &hash)->id;
}

/* --- ids */

static di_status read_id(const loader *load, const di_json *node, const char *field, int64_t *id) {
    if (!node || !di_json_int64(node, id)) return refuse(load, DI_ERR_FORMAT, field, "must be an integer");
    if (*id < 0 || *id >= (int64_t)load->capacity)
        return refuse(load, DI_ERR_FORMAT, field, "is %lld, out of range: the file has %u tokens, so ids are 0..%u",
                      (long long)*id, load->capacity, load->capacity - 1);
    return DI_OK;
}

static void set_token(loader *load, entry *slot, uint32_t hash, const char *text, size_t length, int64_t id,
                      uint8_t flags) {
    *slot = (entry){text, (uint32_t)length, hash, (int32_t)id};
    load->texts[id] = text;
    load->lengths[id] = (uint32_t)length;
    load->flags[id] = flags;
}

static di_status read_vocabulary(loader *load) {
    for (const di_json *node = load->vocab->first; node; node = node->next) {
        char field[96];
        snprintf(field, sizeof field, "model.vocab[\"%s\"]", quote(node->key, node->key_length).text);
        int64_t id = 0;
        di_status status = read_id(load, node, field, &id);
        if (status) return status;
        uint32_t hash;
        entry *slot = find_slot(load, node->key, node->key_length, "", 0, &hash);
        if (slot->id >= 0)
            return refuse(load, DI_ERR_FORMAT, field, "is there twice, as id %d and %d", slot->id, (int)id);
        if (load->texts[id])
            return refuse(load, DI_ERR_FORMAT, field, "has id %d, which \"%s\" has already", (int)id,
                          quote(load->texts[id], load->lengths[id]).text);
        if (node->key_length == 0 || memchr(node->key, 0, node->key_length))
            return refuse(load, DI_ERR_FORMAT, field, "(id %d) is empty or holds a zero byte", (int)id);
        set_token(load, slot, hash, node->key, node->key_length, id, DI_TOKEN_PRESENT);
    }
    return DI_OK;
}

static di_status read_flag(const loader *load, const di_json *node, const char *path, const char *key, bool *value) {
    const di_json *flag = di_json_get(node, key);
    *value = flag && flag->type == DI_JSON_TRUE;
    if (flag && (*value || flag->type == DI_JSON_FALSE)) return DI_OK;
    char field[96];
    snprintf(field, sizeof field, "%s.%s", path, key);
    return refuse(load, DI_ERR_FORMAT, field, "must be true or false");
}

static di_status read_added_token(loader *load, const di_json *node, const char *path) {
    di_status status = CHECK_FIELDS(load, node, path, {"single_word", NULL}, {"lstrip", NULL}, {"rstrip", NULL});
    bool special = false, normalized;
    if (!status) status = read_flag(load, node, path, "special", &special);
    if (!status) status = read_flag(load, node, path, "normalized", &normalized);
    if (status) return status;
    char field[96];
    int64_t id = 0;
    snprintf(field, sizeof field, "%s.id", path);
    status = read_id(load, di_json_get(node, "id"), field, &id);
    if (status) return status;
    const di_json *content = di_json_get(node, "content");
    snprintf(field, sizeof field, "%s.content", path);
    if (!content || content->type != DI_JSON_STRING) return refuse(load, DI_ERR_FORMAT, field, "must be a string");
    if (content->length == 0 || content->length > DI_TOKENIZER_MAX_ADDED_BYTES ||
        memchr(content->text, 0, content->length))
        return refuse(load, DI_ERR_FORMAT, field, "has %zu bytes; 1..%u are allowed, none of them zero",
                      content->length, DI_TOKENIZER_MAX_ADDED_BYTES);
    const excerpt text = quote(content->text, content->length);
    uint32_t hash;
    entry *slot = find_slot(load, content->text, content->length, "", 0, &hash);
    if (slot->id >= 0 && load->flags[slot->id] & DI_TOKEN_ADDED)
        return refuse(load, DI_ERR_FORMAT, field, "\"%s\" is an added token already, with id %d", text.text, slot->id);
    if (slot->id >= 0 && slot->id != id)
        return refuse(load, DI_ERR_FORMAT, path, "\"%s\" has id %d but id %d in model.vocab", text.text, (int)id,
                      slot->id);
    if (slot->id < 0 && load->texts[id])
        return refuse(load, DI_ERR_FORMAT, path, "\"%s\" has id %d, which \"%s\" has already", text.text, (int)id,
                      quote(load->texts[id], load->lengths[id]).text);
    uint8_t flags = (uint8_t)(DI_TOKEN_PRESENT | DI_TOKEN_ADDED | (special ? DI_TOKEN_SPECIAL : 0));
    set_token(load, slot, hash, content->text, content->length, id, flags);
    return DI_OK;
}

static di_status read_added_tokens(loader *load) {
    uint32_t index = 0;
    for (const di_json *node = load->added ? load->added->first : NULL; node; node = node->next, index++) {
        char path[64];
        snprintf(path, sizeof path, "added_tokens[%u]", index);
        di_status status = read_added_token(load, node, path);
        if (status) return status;
    }
    return DI_OK;
}

/* --- token bytes */

/* Bytes that a spelling in the byte alphabet stands for. False if it leaves the alphabet. */
static bool spelled_bytes(const char *text, uint32_t length, char *bytes, uint32_t *count) {
    *count = 0;
    for (uint32_t at = 0; at < length;) {
        uint32_t codepoint = 0;
        size_t used = di_utf8_decode(text + at, length - at, &codepoint);
        int byte = used ? di_byte_of_alphabet(codepoint) : -1;
        if (byte < 0) return false;
        bytes[(*count)++] = (char)byte;
        at += (uint32_t)used;
    }
    return true;
}

/* Checks that ids have no holes and sets vocabulary, spellings and bytes. */
static di_status make_tokens(loader *load) {
    di_tokenizer *tokenizer = load->tokenizer;
    uint32_t vocabulary = 0;
    size_t total = 0;
    for (uint32_t id = 0; id < load->capacity; id++) {
        if (!load->texts[id]) continue;
        vocabulary = id + 1;
        total += load->lengths[id] + 1;
    }
    for (uint32_t id = 0; id < vocabulary; id++)
        if (!load->texts[id])
            return refuse(load, DI_ERR_FORMAT, "model.vocab", "has a hole: no token has id %u, but id %u exists", id,
                          vocabulary - 1);
    tokenizer->vocabulary = vocabulary;
    tokenizer->tokens = di_arena_array(tokenizer->arena, vocabulary, sizeof *tokenizer->tokens);
    tokenizer->spellings = di_arena_alloc(tokenizer->arena, total);
    tokenizer->bytes = di_arena_alloc(tokenizer->arena, total);
    if (!tokenizer->tokens || !tokenizer->spellings || !tokenizer->bytes) return no_memory(load);
    uint32_t spelling = 0, bytes = 0;
    for (uint32_t id = 0; id < vocabulary; id++) {
        const char *text = load->texts[id];
        uint32_t length = load->lengths[id], count = length;
        memcpy(tokenizer->spellings + spelling, text, length);
        tokenizer->spellings[spelling + length] = 0;
        if (load->flags[id] & DI_TOKEN_ADDED)
            memcpy(tokenizer->bytes + bytes, text, length);
        else if (!spelled_bytes(text, length, tokenizer->bytes + bytes, &count))
            return refuse(load, DI_ERR_FORMAT, "model.vocab",
                          "id %u (\"%s\") is no added token and has characters outside of the byte alphabet", id,
                          quote(text, length).text);
        tokenizer->tokens[id] = (di_token){spelling, bytes, count, load->flags[id]};
        spelling += length + 1;
        bytes += count;
    }
    for (int byte = 0; byte < 256; byte++) {
        char text[4];
        size_t length = di_utf8_encode(di_byte_alphabet((uint8_t)byte), text);
        int32_t id = find_id(load, text, length, "", 0);
        if (id < 0 || load->flags[id] & DI_TOKEN_ADDED)
            return refuse(load, DI_ERR_FORMAT, "model.vocab", "has no base token for the byte 0x%02X", (unsigned)byte);
        tokenizer->byte_ids[byte] = id;
    }
    return DI_OK;
}

/* --- merges */

/* The two parts of a merge: "left right" or ["left", "right"]. */
static bool merge_parts(const di_json *node, const char *parts[2], size_t lengths[2]) {
    if (node->type == DI_JSON_ARRAY && node->count == 2) {
        const di_json *left = node->first, *right = left->next;
        parts[0] = left->text, lengths[0] = left->length;
        parts[1] = right->text, lengths[1] = right->length;
        return left->type == DI_JSON_STRING && right->type == DI_JSON_STRING;
    }
    if (node->type != DI_JSON_STRING) return false;
    const char *space = memchr(node->text, ' ', node->length);
    if (!space) return false;
    parts[0] = node->text, lengths[0] = (size_t)(space - node->text);
    parts[1] = space + 1, lengths[1] = node->length - lengths[0] - 1;
    return !memchr(parts[1], ' ', lengths[1]);
}

static di_status read_merge(loader *load, const di_json *node, uint32_t rank) {
    char field[48];
    snprintf(field, sizeof field, "model.merges[%u]", rank);
    const char *parts[2];
    size_t lengths[2];
    int32_t ids[3];
    if (!merge_parts(node, parts, lengths))
        return refuse(load, DI_ERR_FORMAT, field, "must be two tokens with one space between them, or an array of two");
    ids[0] = find_id(load, parts[0], lengths[0], "", 0);
    ids[1] = find_id(load, parts[1], lengths[1], "", 0);
    ids[2] = find_id(load, parts[0], lengths[0], parts[1], lengths[1]);
    const char *const roles[] = {"its left part", "its right part", "what it makes"};
    for (int i = 0; i < 3; i++) {
        if (ids[i] >= 0 && !(load->flags[ids[i]] & DI_TOKEN_ADDED)) continue;
        return refuse(load, DI_ERR_FORMAT, field, "(\"%s\" and \"%s\"): %s is %s", quote(parts[0], lengths[0]).text,
                      quote(parts[1], lengths[1]).text, roles[i],
                      ids[i] < 0 ? "not in model.vocab" : "an added token, which plain text must never become");
    }
    di_tokenizer *tokenizer = load->tokenizer;
    uint32_t first = rank;
    if (!di_pair_insert(tokenizer, ids[0], ids[1], &first))
        return refuse(load, DI_ERR_FORMAT, field, "repeats model.merges[%u]", first);
    tokenizer->merged[rank] = ids[2];
    const di_token *left = &tokenizer->tokens[ids[0]], *right = &tokenizer->tokens[ids[1]];
    if (left->length == 1 && right->length == 1) {
        uint8_t a = (uint8_t)tokenizer->bytes[left->bytes], b = (uint8_t)tokenizer->bytes[right->bytes];
        tokenizer->byte_pair_ranks[a * 256 + b] = rank;
    }
    return DI_OK;
}

static di_status read_merges(loader *load) {
    di_tokenizer *tokenizer = load->tokenizer;
    uint32_t count = load->merges->count, slots = 16;
    while (slots < 2 * count) slots *= 2;
    tokenizer->pairs = di_arena_array(tokenizer->arena, slots, sizeof *tokenizer->pairs);
    tokenizer->merged = di_arena_array(tokenizer->arena, count ? count : 1, sizeof *tokenizer->merged);
    tokenizer->byte_pair_ranks = di_arena_array(tokenizer->arena, 256 * 256, sizeof *tokenizer->byte_pair_ranks);
    if (!tokenizer->pairs || !tokenizer->merged || !tokenizer->byte_pair_ranks) return no_memory(load);
    tokenizer->pair_mask = slots - 1;
    for (uint32_t i = 0; i < slots; i++) tokenizer->pairs[i].rank = DI_TOKENIZER_NO_RANK;
    for (uint32_t i = 0; i < 256 * 256; i++) tokenizer->byte_pair_ranks[i] = DI_TOKENIZER_NO_RANK;
    uint32_t rank = 0;
    for (const di_json *node = load->merges->first; node; node = node->next, rank++) {
        di_status status = read_merge(load, node, rank);
        if (status) return status;
    }
    return DI_OK;
}

/* --- the whole file */

static di_status find_parts(loader *load) {
    const di_json *model = di_json_get(load->root, "model");
    load->vocab = di_json_get(model, "vocab");
    load->merges = di_json_get(model, "merges");
    load->added = di_json_get(load->root, "added_tokens");
    if (load->added && load->added->type == DI_JSON_NULL) load->added = NULL;
    if (!load->vocab || load->vocab->type != DI_JSON_OBJECT)
        return refuse(load, DI_ERR_FORMAT, "model.vocab", "must be an object of token to id");
    if (!load->merges || load->merges->type != DI_JSON_ARRAY)
        return refuse(load, DI_ERR_FORMAT, "model.merges", "must be an array");
    if (load->added && load->added->type != DI_JSON_ARRAY)
        return refuse(load, DI_ERR_FORMAT, "added_tokens", "must be an array");
    uint64_t entries = (uint64_t)load->vocab->count + (load->added ? load->added->count : 0);
    if (entries > DI_TOKENIZER_MAX_ENTRIES || load->merges->count > DI_TOKENIZER_MAX_ENTRIES)
        return refuse(load, DI_ERR_LIMIT, "model", "has %llu tokens and %u merges; at most %u of each are supported",
                      (unsigned long long)entries, load->merges->count, DI_TOKENIZER_MAX_ENTRIES);
    load->capacity = (uint32_t)entries;
    uint32_t slots = 16;
    while (slots < 2 * load->capacity) slots *= 2;
    load->table = di_arena_array(load->scratch, slots, sizeof *load->table);
    load->texts = di_arena_zalloc(load->scratch, (load->capacity + 1) * sizeof *load->texts);
    load->lengths = di_arena_zalloc(load->scratch, (load->capacity + 1) * sizeof *load->lengths);
    load->flags = di_arena_zalloc(load->scratch, load->capacity + 1);
    if (!load->table || !load->texts || !load->lengths || !load->flags) return no_memory(load);
    load->mask = slots - 1;
    for (uint32_t i = 0; i < slots; i++) load->table[i].id = -1;
    return DI_OK;
}

static di_status build(loader *load) {
    if (load->root->type != DI_JSON_OBJECT)
        return refuse(load, DI_ERR_FORMAT, "tokenizer", "must be an object, not %s",
                      di_json_type_name(load->root->type));
    di_status status = check_pipeline(load);
    if (!status) status = find_parts(load);
    if (!status) status = read_vocabulary(load);
    if (!status) status = read_added_tokens(load);
    if (!status) status = make_tokens(load);
    if (!status) status = read_merges(load);
    if (!status) status = di_added_tokens_index(load->tokenizer, load->error);
    if (!status) status = di_pretokeniser_new(true, &load->tokenizer->pretokeniser, load->error);
    return status;
}

di_status di_tokenizer_parse(const char *name, const char *text, size_t length, di_tokenizer **tokenizer,
                             di_error *error) {
    *tokenizer = NULL;
    loader load = {.name = name, .error = error, .scratch = di_arena_new(length < 1 << 20 ? 0 : 1 << 20)};
    load.tokenizer = calloc(1, sizeof *load.tokenizer);
    if (load.tokenizer) load.tokenizer->arena = di_arena_new(0);
    di_status status = DI_OK;
    if (!load.scratch || !load.tokenizer || !load.tokenizer->arena) status = no_memory(&load);
    if (!status) {
        di_error reason;
        status = di_json_parse(load.scratch, text, length, 0, &load.root, &reason);
        if (status)
            di_fail(error, status, "tokenizer", "%s: %s", name, reason.message);
        else
            status = build(&load);
    }
    di_arena_free(load.scratch);
    if (status) {
        di_tokenizer_free(load.tokenizer);
        return status;
    }
    load.tokenizer->digest = XXH64(text, length, 0);
    *tokenizer = load.tokenizer;
    return DI_OK;
}

di_status di_tokenizer_load(const char *path, di_tokenizer **tokenizer, di_error *error) {
    *tokenizer = NULL;
    di_text file = {0};
    struct stat info;
    di_text_puts(&file, path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) di_text_puts(&file, "/tokenizer.json");
    if (file.failed) return di_fail(error, DI_ERR_MEMORY, "tokenizer", "no memory for the path of tokenizer.json");
    char *text = NULL;
    size_t length = 0;
    di_status status = (di_status)di_read_file(file.data, DI_TOKENIZER_MAX_FILE_BYTES, &text, &length, error);
    if (!status) status = di_tokenizer_parse(file.data, text, length, tokenizer, error);
    free(text);
    di_text_free(&file);
    return status;
}

/* --- byte alphabet: printable Latin-1 bytes stand for themselves, the others follow from 256 in order */

static bool stands_for_itself(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

uint32_t di_byte_alphabet(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    return byte == 173 ? 323 : 289u + (byte - 127u); /* 127..160 follow the 33 control characters and space */
}

int di_byte_of_alphabet(uint32_t codepoint) {
    if (codepoint < 256) return stands_for_itself(codepoint) ? (int)codepoint : -1;
    if (codepoint <= 288) return (int)codepoint - 256;
    if (codepoint <= 322) return (int)codepoint - 289 + 127;
    return codepoint == 323 ? 173 : -1;
}
