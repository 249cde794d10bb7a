/* vocabulary.c - the bytes of every token as a trie in depth-first order; see grammar.h. */
#include "grammar/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/expr.h"

enum { LONGEST_TOKEN = 1 << 20, BODY_STATES = 1 << 20 };

typedef struct entry {
    const uint8_t *bytes;
    uint32_t length, id;
} entry;

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    uint32_t common = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->bytes, y->bytes, common);
    if (order) return order;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* clang-format off */
const di_kind_of_character di_character_kinds[] = {
    {0, 1, {'0'}, {'9'}}, {1, 1, {'a'}, {'f'}}, {2, 1, {'g'}, {'z'}}, {3, 1, {'A'}, {'F'}}, {4, 1, {'G'}, {'Z'}},
    {5, 1, {' '}, {' '}}, {6, 1, {'!'}, {'!'}}, {7, 1, {'#'}, {'%'}}, {8, 1, {'&'}, {'\''}}, {9, 1, {'('}, {')'}},
    {10, 1, {'*'}, {'+'}}, {11, 1, {','}, {','}}, {12, 1, {'-'}, {'-'}}, {13, 1, {'.'}, {'.'}}, {14, 1, {'/'}, {'/'}},
    {15, 1, {':'}, {':'}}, {16, 1, {';'}, {';'}}, {17, 1, {'<'}, {'>'}}, {18, 1, {'?'}, {'?'}}, {19, 1, {'@'}, {'@'}},
    {20, 1, {'['}, {'['}}, {20, 1, {']'}, {'^'}}, {21, 1, {'_'}, {'_'}}, {22, 1, {'`'}, {'`'}}, {22, 1, {'{'}, {0x7F}},
    {23, 2, {0xC2, 0x80}, {0xC2, 0xBF}}, {24, 2, {0xC3, 0x80}, {0xDF, 0xBF}},
    {25, 3, {0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}}, {25, 3, {0xE1, 0x80, 0x80}, {0xE1, 0x99, 0xBF}},
    {29, 3, {0xE1, 0x9A, 0x80}, {0xE1, 0x9A, 0xBF}}, {25, 3, {0xE1, 0x9B, 0x80}, {0xE1, 0xBF, 0xBF}},
    {26, 3, {0xE2, 0x80, 0x80}, {0xE2, 0x81, 0xBF}}, {25, 3, {0xE2, 0x82, 0x80}, {0xE2, 0xBF, 0xBF}},
    {30, 3, {0xE3, 0x80, 0x80}, {0xE3, 0x80, 0xBF}}, {27, 3, {0xE3, 0x81, 0x80}, {0xE3, 0xBF, 0xBF}},
    {27, 3, {0xE4, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}}, {25, 3, {0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}},
    {25, 3, {0xEE, 0x80, 0x80}, {0xEE, 0xBF, 0xBF}}, {25, 3, {0xEF, 0x80, 0x80}, {0xEF, 0xBA, 0xBF}},
    {29, 3, {0xEF, 0xBB, 0x80}, {0xEF, 0xBB, 0xBF}}, {25, 3, {0xEF, 0xBC, 0x80}, {0xEF, 0xBF, 0xBF}},
    {28, 4, {0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}},
    {28, 4, {0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}},
    {28, 4, {0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}},
};
/* clang-format on */
const size_t di_character_kind_count = sizeof di_character_kinds / sizeof *di_character_kinds;

/* The bit of the kind of a character; 0 if it belongs in no string. */
static uint32_t kind_of(const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < di_character_kind_count; i++) {
        const di_kind_of_character *c = &di_character_kinds[i];
        bool inside = c->length == length;
        for (size_t b = 0; inside && b < length; b++) inside = bytes[b] >= c->low[b] && bytes[b] <= c->high[b];
        if (inside) return (uint32_t)1 << c->kind;
    }
    return 0;
}

/* Adds the kinds of a string-safe token to the nodes on its path. path: [length + 1]. */
static void add_kinds(di_trie *trie, const entry *e, const uint32_t *path) {
    uint32_t below = 0;
    for (uint32_t end = e->length; end;) {
        uint32_t start = end - 1;
        while ((e->bytes[start] & 0xC0) == 0x80) start--;
        for (uint32_t i = start + 1; i < end; i++) trie->kinds[path[i]] |= below | (uint32_t)1 << DI_INSIDE_CHARACTER;
        below |= kind_of(e->bytes + start, end - start);
        trie->kinds[path[start]] |= below;
        end = start;
    }
}

/* entries: sorted. Tokens of equal bytes are chained in `same`. path: [longest + 1] scratch. */
static bool build_trie(di_trie *trie, const entry *entries, uint32_t count, uint32_t *same, uint32_t *path) {
    uint64_t nodes = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t common = 0;
        if (i)
            while (common < entries[i].length && common < entries[i - 1].length &&
                   entries[i].bytes[common] == entries[i - 1].bytes[common])
                common++;
        nodes += entries[i].length - common;
    }
    if (nodes > UINT32_MAX / 2) return false;
    trie->nodes = malloc(nodes * sizeof *trie->nodes);
    trie->bytes = malloc(nodes);
    if (!trie->nodes || !trie->bytes) return false;
    trie->nodes[0] = (di_trie_node){DI_NO_TOKEN, 1};
    trie->bytes[0] = 0;
    trie->count = 1;
    path[0] = 0;
    uint32_t depth = 0;
    for (uint32_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        uint32_t common = 0;
        if (i)
            while (common < e->length && common < entries[i - 1].length &&
                   e->bytes[common] == entries[i - 1].bytes[common])
                common++;
        for (; depth > common; depth--) trie->nodes[path[depth]].size = trie->count - path[depth];
        for (; depth < e->length; depth++) {
            trie->bytes[trie->count] = e->bytes[depth];
            trie->nodes[trie->count] = (di_trie_node){DI_NO_TOKEN, 1};
            path[depth + 1] = trie->count++;
        }
        di_trie_node *last = &trie->nodes[path[depth]];
        if (last->token != DI_NO_TOKEN) same[e->id] = last->token;
        last->token = e->id;
    }
    for (; depth; depth--) trie->nodes[path[depth]].size = trie->count - path[depth];
    trie->nodes[0].size = trie->count;
    return true;
}

/* Characters of a token that a JSON string takes as it is; 0 if it is no such token. */
static uint32_t safe_characters(const uint8_t *bytes, uint32_t length) {
    uint32_t characters = 0, point;
    for (uint32_t i = 0; i < length; characters++) {
        size_t used = di_utf8_decode((const char *)bytes + i, length - i, &point);
        if (!used || point < 0x20 || point == '"' || point == '\\') return 0;
        i += (uint32_t)used;
    }
    return characters;
}

/* What walks skip by: kinds below every node, and string-safe tokens in the order of the trie. entries: [count] as they
 * made the trie; path: [longest + 1] scratch. */
static bool build_kinds(di_vocabulary *v, const entry *entries, uint32_t count, uint32_t *path) {
    di_trie *trie = &v->all;
    uint32_t used = 0, node = 0, depth = 0;
    trie->kinds = calloc(trie->count, sizeof *trie->kinds);
    trie->safe_before = malloc((trie->count + 1) * sizeof *trie->safe_before);
    v->safe_order = malloc((count + 1) * sizeof *v->safe_order);
    if (!trie->kinds || !trie->safe_before || !v->safe_order) return false;
    path[0] = trie->safe_before[0] = 0;
    for (uint32_t i = 0, made = 1; i < count; i++) {
        const entry *e = &entries[i];
        uint32_t common = 0;
        if (i)
            while (common < e->length && common < entries[i - 1].length &&
                   e->bytes[common] == entries[i - 1].bytes[common])
                common++;
        for (depth = common; depth < e->length;) path[++depth] = made++;
        for (; node < path[depth];) trie->safe_before[++node] = used;
        if (!safe_characters(e->bytes, e->length)) continue;
        v->safe_order[used++] = e->id;
        add_kinds(trie, e, path);
    }
    while (node < trie->count) trie->safe_before[++node] = used;
    return true;
}

static int compare_safe(const void *a, const void *b) {
    const uint32_t *x = a, *y = b; /* {characters, id} */
    if (x[0] != y[0]) return x[0] > y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : x[1] > y[1];
}

static bool build_safe(di_vocabulary *v, entry *entries, uint32_t *count, uint32_t (*pairs)[2]) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t characters = safe_characters(entries[i].bytes, entries[i].length);
        if (!characters) {
            entries[kept++] = entries[i];
            continue;
        }
        pairs[v->safe_count][0] = characters;
        pairs[v->safe_count++][1] = entries[i].id;
        v->safe[entries[i].id / 64] |= (uint64_t)1 << entries[i].id % 64;
    }
    *count = kept;
    qsort(pairs, v->safe_count, sizeof *pairs, compare_safe);
    v->safe_ids = malloc((v->safe_count + 1) * sizeof *v->safe_ids);
    v->safe_lengths = malloc((v->safe_count + 1) * sizeof *v->safe_lengths);
    if (!v->safe_ids || !v->safe_lengths) return false;
    for (uint32_t i = 0; i < v->safe_count; i++) {
        v->safe_lengths[i] = pairs[i][0];
        v->safe_ids[i] = pairs[i][1];
    }
    uint32_t at = v->safe_count;
    for (uint32_t level = 1; level <= DI_SAFE_LEVELS; level++) {
        uint64_t *bits = v->safe_levels + (size_t)(level - 1) * v->words;
        if (level > 1) memcpy(bits, bits - v->words, v->words * sizeof *bits);
        for (; at && v->safe_lengths[at - 1] <= level; at--)
            bits[v->safe_ids[at - 1] / 64] |= (uint64_t)1 << v->safe_ids[at - 1] % 64;
    }
    return true;
}

static void free_trie(di_trie *trie) {
    free(trie->nodes);
    free(trie->bytes);
    free(trie->ids);
    free(trie->kinds);
    free(trie->safe_before);
}

/* Chains of tokens with equal bytes become runs. chain: [rows]. */
static bool list_ids(di_trie *trie, const uint32_t *chain, uint32_t count) {
    uint32_t used = 0;
    trie->ids = malloc((count + 1) * sizeof *trie->ids);
    if (!trie->ids) return false;
    for (uint32_t p = 0; p < trie->count; p++) {
        uint32_t id = trie->nodes[p].token;
        if (id == DI_NO_TOKEN) continue;
        trie->nodes[p].token = used;
        for (; id != DI_NO_TOKEN; id = chain[id]) trie->ids[used++] = id;
        trie->ids[used - 1] |= DI_LAST_ID;
    }
    return true;
}

/* entries: [count] tokens that are not string-safe. Scratch: ends [count], path [longest + 1]. */
static bool build_after(const di_vocabulary *v, di_exprs *x, di_expr start, di_body *body, const entry *entries,
                        uint32_t count, entry *ends, uint32_t *path) {
    uint32_t *chain = malloc(v->rows * sizeof *chain), used = 0;
    if (!chain) return false;
    for (uint32_t id = 0; id < v->rows; id++) chain[id] = DI_NO_TOKEN;
    for (uint32_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        di_expr state = start;
        uint32_t at = 0;
        while (at < e->length && state > DI_EXPR_EPSILON) state = di_expr_derive(x, state, e->bytes[at++]);
        if (state == DI_EXPR_EPSILON && at < e->length) ends[used++] = (entry){e->bytes + at, e->length - at, e->id};
    }
    qsort(ends, used, sizeof *ends, compare_entries);
    bool ok = build_trie(&body->after, ends, used, chain, path) && list_ids(&body->after, chain, used);
    free(chain);
    return ok;
}

/* The nodes of `rest` that are inside a string or at its end. Scratch: states, ends [nodes]. */
static bool find_inside(di_vocabulary *v, di_exprs *x, di_expr start, di_body *body, di_expr *states, uint32_t *ends) {
    uint32_t at = 0;
    states[0] = start, ends[0] = v->rest.count;
    for (uint32_t p = 1; p < v->rest.count;) {
        while (at && p >= ends[at]) at--;
        const di_trie_node n = v->rest.nodes[p];
        di_expr next = di_expr_derive(x, states[at], v->rest.bytes[p]);
        for (uint32_t id = next == DI_EXPR_EMPTY ? DI_NO_TOKEN : n.token; id != DI_NO_TOKEN; id = v->same[id])
            body->bits[id / 64] |= (uint64_t)1 << id % 64;
        if (next == DI_EXPR_EPSILON) {
            if (!di_grow(&body->quotes, &body->quote_capacity, (uint64_t)body->quote_count + 1, sizeof p)) return false;
            body->quotes[body->quote_count++] = p;
        }
        bool deeper = next != DI_EXPR_EMPTY && next != DI_EXPR_EPSILON;
        if (deeper) states[++at] = next, ends[at] = p + n.size;
        p += deeper ? 1 : n.size;
    }
    return x->failed == DI_OK;
}

/* entries: [count] tokens that are not string-safe; path: [longest + 1] scratch. */
static bool build_body(di_vocabulary *v, di_encoding encoding, di_body *body, const entry *entries, uint32_t count,
                       uint32_t *path) {
    di_exprs x;
    bool ok = di_exprs_init(&x, BODY_STATES, UINT64_MAX) == DI_OK;
    di_expr inside = ok ? di_expr_star(&x, di_expr_any_point(&x, encoding)) : DI_EXPR_EMPTY;
    di_expr start = di_expr_cat(&x, inside, di_expr_byte(&x, '"'));
    di_expr *states = malloc((v->rest.count + 1) * sizeof *states);
    uint32_t *ends = malloc((v->rest.count + 1) * sizeof *ends);
    entry *behind = malloc((count + 1) * sizeof *behind);
    body->bits = malloc(v->words * sizeof *body->bits);
    ok = ok && states && ends && behind && body->bits;
    if (ok) memcpy(body->bits, v->safe, v->words * sizeof *body->bits);
    ok = ok && find_inside(v, &x, start, body, states, ends) &&
         build_after(v, &x, start, body, entries, count, behind, path) && x.failed == DI_OK;
    free(states);
    free(ends);
    free(behind);
    di_exprs_free(&x);
    return ok;
}

static bool build(di_vocabulary *v, uint32_t count) {
    entry *entries = malloc((count + 1) * sizeof *entries);
    uint32_t(*pairs)[2] = malloc((count + 1) * sizeof *pairs);
    uint32_t *path = malloc((v->longest + 1) * sizeof *path), used = 0;
    bool ok = entries && pairs && path;
    for (uint32_t id = 0; ok && id < count; id++)
        if (v->offsets[id + 1] > v->offsets[id])
            entries[used++] = (entry){v->bytes + v->offsets[id], v->offsets[id + 1] - v->offsets[id], id};
    if (ok) {
        qsort(entries, used, sizeof *entries, compare_entries);
        ok = build_trie(&v->all, entries, used, v->same, path) && build_kinds(v, entries, used, path) &&
             build_safe(v, entries, &used, pairs) && build_trie(&v->rest, entries, used, v->same, path) &&
             build_body(v, DI_ENCODING_JSON, &v->bodies[0], entries, used, path) &&
             build_body(v, DI_ENCODING_JSON_GENERAL, &v->bodies[1], entries, used, path);
    }
    free(entries);
    free(pairs);
    free(path);
    return ok;
}

di_status di_vocabulary_new(const char *const *bytes, const uint32_t *lengths, uint32_t count, const int32_t *stop_ids,
                            size_t stop_count, di_vocabulary **vocabulary, di_error *error) {
    *vocabulary = NULL;
    uint64_t total = 0;
    if (count == 0 || count > 1u << 24)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "count", "a vocabulary has 1 to %u tokens, not %u", 1u << 24,
                       count);
    for (uint32_t id = 0; id < count; id++) {
        total += lengths[id];
        if (lengths[id] > LONGEST_TOKEN)
            return di_fail(error, DI_ERR_LIMIT, "lengths", "token %u has %u bytes, more than %d", id, lengths[id],
                           LONGEST_TOKEN);
    }
    if (total > UINT32_MAX / 4)
        return di_fail(error, DI_ERR_LIMIT, "lengths", "the tokens have %llu bytes together, more than %u",
                       (unsigned long long)total, UINT32_MAX / 4);
    di_vocabulary *v = calloc(1, sizeof *v);
    if (!v) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a vocabulary");
    v->rows = count;
    v->words = (count + 63) / 64;
    v->bytes = malloc(total + 1);
    v->offsets = malloc((count + 1) * sizeof *v->offsets);
    v->same = malloc(count * sizeof *v->same);
    v->safe = calloc(v->words, sizeof *v->safe);
    v->stop = calloc(v->words, sizeof *v->stop);
    v->safe_levels = calloc(v->words * DI_SAFE_LEVELS, sizeof *v->safe_levels);
    v->stops = malloc((stop_count + 1) * sizeof *v->stops);
    bool ok = v->bytes && v->offsets && v->same && v->safe && v->stop && v->safe_levels && v->stops;
    uint32_t at = 0;
    for (uint32_t id = 0; ok && id < count; id++) {
        v->offsets[id] = at;
        if (lengths[id]) memcpy(v->bytes + at, bytes[id], lengths[id]);
        at += lengths[id];
        v->same[id] = DI_NO_TOKEN;
        if (lengths[id] > v->longest) v->longest = lengths[id];
    }
    if (ok) {
        v->offsets[count] = at;
        ok = build(v, count);
    }
    if (!ok) {
        di_vocabulary_free(v);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a vocabulary of %u tokens", count);
    }
    for (size_t i = 0; i < stop_count; i++) {
        if (stop_ids[i] < 0 || (uint32_t)stop_ids[i] >= count) {
            di_vocabulary_free(v);
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "stop_ids", "stop id %d is not in 0..%u", stop_ids[i],
                           count - 1);
        }
        if (v->stop[stop_ids[i] / 64] >> stop_ids[i] % 64 & 1) continue;
        v->stops[v->stop_count++] = stop_ids[i];
        v->stop[stop_ids[i] / 64] |= (uint64_t)1 << stop_ids[i] % 64;
    }
    *vocabulary = v;
    return DI_OK;
}

di_status di_vocabulary_of_tokenizer(const di_tokenizer *tokenizer, uint32_t rows, const int32_t *stop_ids,
                                     size_t stop_count, di_vocabulary **vocabulary, di_error *error) {
    uint32_t known = di_tokenizer_vocabulary(tokenizer);
    *vocabulary = NULL;
    if (rows == 0) rows = known;
    if (rows < known)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "rows", "%u rows are fewer than the tokenizer's %u ids", rows,
                       known);
    const char **bytes = calloc(rows, sizeof *bytes);
    uint32_t *lengths = calloc(rows, sizeof *lengths);
    di_status status = DI_ERR_MEMORY;
    if (bytes && lengths) {
        for (uint32_t id = 0; id < known; id++) {
            size_t length = 0;
            if (di_tokenizer_is_added(tokenizer, (int32_t)id)) continue;
            bytes[id] = di_tokenizer_bytes(tokenizer, (int32_t)id, &length);
            lengths[id] = bytes[id] ? (uint32_t)length : 0;
        }
        status = di_vocabulary_new(bytes, lengths, rows, stop_ids, stop_count, vocabulary, error);
    } else {
        di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a vocabulary of %u tokens", rows);
    }
    free(bytes);
    free(lengths);
    return status;
}

void di_vocabulary_free(di_vocabulary *v) {
    if (!v) return;
    free(v->bytes);
    free(v->offsets);
    free(v->same);
    free_trie(&v->all);
    free_trie(&v->rest);
    free(v->safe);
    free(v->safe_ids);
    free(v->safe_lengths);
    free(v->safe_order);
    free(v->safe_levels);
    for (int i = 0; i < 2; i++) {
        free(v->bodies[i].bits);
        free(v->bodies[i].quotes);
        free_trie(&v->bodies[i].after);
    }
    free(v->stop);
    free(v->stops);
    free(v);
}

uint32_t di_vocabulary_rows(const di_vocabulary *vocabulary) {
    return vocabulary->rows;
}

size_t di_vocabulary_words(const di_vocabulary *vocabulary) {
    return vocabulary->words;
}

const uint8_t *di_vocabulary_bytes(const di_vocabulary *vocabulary, uint32_t id, uint32_t *length) {
    *length = id < vocabulary->rows ? vocabulary->offsets[id + 1] - vocabulary->offsets[id] : 0;
    return *length ? vocabulary->bytes + vocabulary->offsets[id] : NULL;
}
