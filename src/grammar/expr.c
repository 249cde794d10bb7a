/* expr.c - constructors of expressions with the laws that keep derivatives few; see expr.h. */
#include "grammar/expr.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 0xFFFFFE }; /* an id and a byte make a key of 32 bits */

bool di_exprs_spend(di_exprs *x, uint64_t steps) {
    x->work += steps;
    if (x->work > x->work_limit && x->failed == DI_OK) x->failed = DI_ERR_LIMIT;
    return x->failed == DI_OK;
}

static di_expr fail(di_exprs *x, di_status status) {
    if (x->failed == DI_OK) x->failed = status;
    return DI_EXPR_EMPTY;
}

/* ------------------------------------------------------------------------------------------------------- interning */

/* The id of this node; `list` is the content of OR and AND. */
static di_expr intern(di_exprs *x, di_expr_node node, const uint32_t *list) {
    if (x->failed != DI_OK) return DI_EXPR_EMPTY;
    uint32_t before = x->n.count, id = DI_EXPR_EMPTY;
    di_status status = di_nodes_intern(&x->n, node, list, &id);
    if (status != DI_OK) return fail(x, status);
    if (list && x->n.count > before && !di_exprs_spend(x, node.b)) return DI_EXPR_EMPTY;
    return id;
}

di_status di_exprs_init(di_exprs *x, uint32_t node_limit, uint64_t work_limit) {
    memset(x, 0, sizeof *x);
    x->work_limit = work_limit;
    x->class_sets = UINT32_MAX;
    if (!di_nodes_init(&x->n, node_limit < MAX_NODES ? node_limit : MAX_NODES)) return x->failed = DI_ERR_MEMORY;
    intern(x, (di_expr_node){.kind = DI_KIND_EMPTY}, NULL);
    intern(x, (di_expr_node){.kind = DI_KIND_EPSILON, .nullable = true}, NULL);
    intern(x, (di_expr_node){.kind = DI_KIND_NOT, .a = DI_EXPR_EMPTY, .nullable = true}, NULL);
    return x->failed;
}

di_status di_exprs_copy(di_exprs *to, const di_exprs *from) {
    *to = *from;
    to->sets = NULL, to->multiples = NULL, to->set_table.slots = NULL;
    to->memo = NULL, to->memo_size = to->memo_used = 0;
    to->alive = NULL, to->alive_count = 0;
    to->lengths = NULL, to->length_capacity = 0, to->length_table = (di_table){0};
    to->work = 0;
    to->failed = DI_OK;
    bool ok = di_nodes_copy(&to->n, &from->n) &&
              di_copy_array(&to->sets, from->sets, from->set_count, &to->set_capacity, sizeof *to->sets) &&
              di_copy_array(&to->multiples, from->multiples, from->multiple_count, &to->multiple_capacity,
                            sizeof *to->multiples) &&
              di_copy_array(&to->set_table.slots, from->set_table.slots, from->set_table.size, NULL,
                            sizeof *to->set_table.slots);
    if (ok) return DI_OK;
    di_exprs_free(to);
    return DI_ERR_MEMORY;
}

void di_exprs_forget(di_exprs *x) {
    free(x->memo);
    free(x->alive);
    free(x->lengths);
    free(x->length_table.slots);
    x->memo = NULL, x->memo_size = x->memo_used = 0;
    x->alive = NULL, x->alive_count = 0;
    x->lengths = NULL, x->length_capacity = 0, x->length_table = (di_table){0};
}

void di_exprs_free(di_exprs *x) {
    di_exprs_forget(x);
    di_nodes_free(&x->n);
    free(x->sets);
    free(x->multiples);
    free(x->set_table.slots);
    memset(x, 0, sizeof *x);
}

size_t di_exprs_memory(const di_exprs *x) {
    return di_nodes_memory(&x->n) + x->set_capacity * sizeof *x->sets + (size_t)x->set_table.size * sizeof(uint32_t) +
           x->memo_size * sizeof *x->memo + x->alive_count + x->length_capacity * sizeof *x->lengths;
}

bool di_expr_nullable(const di_exprs *x, di_expr a) {
    return x->n.nodes[a].nullable;
}

/* ---------------------------------------------------------------------------------------------------- constructors */

static uint64_t hash_bytes(const di_byte_set *set) {
    uint64_t hash = 0;
    for (int i = 0; i < 4; i++) hash = di_mix(hash, set->bits[i]);
    return hash;
}

static uint64_t hash_set(const void *arg, uint32_t index) {
    return hash_bytes(&((const di_exprs *)arg)->sets[index]);
}

di_expr di_expr_set(di_exprs *x, const di_byte_set *set) {
    if (!(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3])) return DI_EXPR_EMPTY;
    if (x->failed != DI_OK) return DI_EXPR_EMPTY;
    if (!di_table_reserve(&x->set_table, hash_set, x)) return fail(x, DI_ERR_MEMORY);
    uint64_t at = hash_bytes(set);
    uint32_t mask = x->set_table.size - 1, slot;
    for (; (slot = x->set_table.slots[at & mask]); at++)
        if (memcmp(&x->sets[slot - 1], set, sizeof *set) == 0) break;
    if (!slot) {
        if (!di_grow(&x->sets, &x->set_capacity, (uint64_t)x->set_count + 1, sizeof *x->sets))
            return fail(x, DI_ERR_MEMORY);
        x->sets[x->set_count++] = *set;
        slot = x->set_table.slots[at & mask] = ++x->set_table.used;
    }
    return intern(x, (di_expr_node){.kind = DI_KIND_SET, .a = slot - 1}, NULL);
}

static void set_add(di_byte_set *set, uint8_t byte) {
    set->bits[byte >> 6] |= (uint64_t)1 << (byte & 63);
}

di_expr di_expr_range(di_exprs *x, uint8_t low, uint8_t high) {
    di_byte_set set = {0};
    for (unsigned b = low; b <= high; b++) set_add(&set, (uint8_t)b);
    return di_expr_set(x, &set);
}

di_expr di_expr_byte(di_exprs *x, uint8_t byte) {
    return di_expr_range(x, byte, byte);
}

static di_expr cat_flat(di_exprs *x, di_expr a, di_expr b) {
    const di_expr_node *na = &x->n.nodes[a], *nb = &x->n.nodes[b];
    bool star = na->kind == DI_KIND_REPEAT && na->low == 0 && na->high == DI_UNBOUNDED;
    if (star && (b == a || (nb->kind == DI_KIND_CAT && nb->a == a))) return b; /* x* x* = x* */
    return intern(x,
                  (di_expr_node){.kind = DI_KIND_CAT,
                                 .nullable = na->nullable && nb->nullable,
                                 .boolean = na->boolean || nb->boolean,
                                 .a = a,
                                 .b = b},
                  NULL);
}

di_expr di_expr_cat(di_exprs *x, di_expr a, di_expr b) {
    if (a == DI_EXPR_EMPTY || b == DI_EXPR_EMPTY) return DI_EXPR_EMPTY;
    if (a == DI_EXPR_EPSILON) return b;
    if (b == DI_EXPR_EPSILON) return a;
    if (x->n.nodes[a].kind != DI_KIND_CAT) return cat_flat(x, a, b);
    uint32_t length = 0, size = 0;
    di_expr *parts = NULL;
    for (; x->n.nodes[a].kind == DI_KIND_CAT; a = x->n.nodes[a].b) {
        if (!di_grow(&parts, &size, (uint64_t)length + 1, sizeof *parts)) {
            free(parts);
            return fail(x, DI_ERR_MEMORY);
        }
        parts[length++] = x->n.nodes[a].a;
    }
    di_exprs_spend(x, length);
    di_expr result = cat_flat(x, a, b);
    while (length && x->failed == DI_OK) result = cat_flat(x, parts[--length], result);
    free(parts);
    return x->failed == DI_OK ? result : DI_EXPR_EMPTY;
}

static void sort_ids(uint32_t *list, uint32_t count) {
    bool sorted = true;
    for (uint32_t i = 1; i < count && sorted; i++) sorted = list[i - 1] <= list[i];
    if (sorted) return;
    if (count > 16) {
        qsort(list, count, sizeof *list, di_compare_ids);
        return;
    }
    for (uint32_t i = 1; i < count; i++) {
        uint32_t value = list[i], j = i;
        for (; j && list[j - 1] > value; j--) list[j] = list[j - 1];
        list[j] = value;
    }
}

/* Members of `list` without nesting of the same kind, sorted, once each. False when memory ran out. */
static bool flatten(di_exprs *x, di_expr_kind kind, const di_expr *list, uint32_t count, di_expr **out, uint32_t *n,
                    di_expr *local, uint32_t local_size) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += x->n.nodes[list[i]].kind == kind ? x->n.nodes[list[i]].b : 1;
    if (!di_exprs_spend(x, total)) return false;
    *out = total <= local_size ? local : malloc(total * sizeof **out);
    if (!*out) {
        fail(x, DI_ERR_MEMORY);
        return false;
    }
    *n = 0;
    for (uint32_t i = 0; i < count; i++) {
        const di_expr_node *node = &x->n.nodes[list[i]];
        if (node->kind == kind) {
            memcpy(*out + *n, x->n.pool + node->a, node->b * sizeof **out);
            *n += node->b;
        } else {
            (*out)[(*n)++] = list[i];
        }
    }
    sort_ids(*out, *n);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (!kept || (*out)[kept - 1] != (*out)[i]) (*out)[kept++] = (*out)[i];
    *n = kept;
    return true;
}

static bool has_id(const di_expr *list, uint32_t n, di_expr id) {
    return bsearch(&id, list, n, sizeof *list, di_compare_ids) != NULL;
}

/* Joins the sets of an OR or AND into one; a removed member is set to `skip`. */
static uint32_t join_sets(di_exprs *x, di_expr_kind kind, di_expr *list, uint32_t n) {
    di_byte_set joined = {0};
    uint32_t found = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const di_expr_node *node = &x->n.nodes[list[i]];
        if (node->kind != DI_KIND_SET) continue;
        for (int w = 0; w < 4; w++) {
            uint64_t bits = x->sets[node->a].bits[w];
            if (kind == DI_KIND_OR || !found)
                joined.bits[w] |= bits;
            else
                joined.bits[w] &= bits;
        }
        found++;
    }
    if (found < 2) return n;
    di_expr one = di_expr_set(x, &joined);
    for (uint32_t i = 0; i < n; i++)
        if (x->n.nodes[list[i]].kind != DI_KIND_SET) list[kept++] = list[i];
    list[kept++] = one;
    sort_ids(list, kept);
    return kept;
}

/* k times some characters before any text: the fewer the wider. *kind: of what, before what. False if `a` is no such
 * expression. */
static bool counted_prefix(const di_exprs *x, di_expr a, uint64_t *kind, uint32_t *times) {
    const di_expr_node *n = &x->n.nodes[a];
    if (n->kind != DI_KIND_CAT) return false;
    const di_expr_node *rest = &x->n.nodes[n->b], *head = &x->n.nodes[n->a];
    if (rest->kind == DI_KIND_CAT) rest = &x->n.nodes[rest->a];
    bool any = rest->kind == DI_KIND_REPEAT && rest->low == 0 && rest->high == DI_UNBOUNDED && x->any_point[1] &&
               (rest->a == x->any_point[1] || rest->a == x->any_point[2]);
    if (!any) return false;
    bool repeat = head->kind == DI_KIND_REPEAT && head->low == head->high;
    *kind = (uint64_t)n->b << 32 | (repeat ? head->a : n->a);
    *times = repeat ? head->low : 1;
    return true;
}

/* C{5}.* and C{3}.* are C{3}.*: keeps unanchored patterns with counts from growing with every character. */
static uint32_t drop_narrower(di_exprs *x, di_expr *list, uint32_t n) {
    enum { MANY = 64 };
    uint64_t kinds[MANY], kind;
    uint32_t least[MANY], times, count = 0, kept = 0;
    for (uint32_t i = 0; i < n && count < MANY; i++) {
        if (!counted_prefix(x, list[i], &kind, &times)) continue;
        uint32_t j = 0;
        while (j < count && kinds[j] != kind) j++;
        if (j == count) {
            kinds[count] = kind;
            least[count++] = times;
        } else if (times < least[j]) {
            least[j] = times;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        bool wider = false;
        if (count && counted_prefix(x, list[i], &kind, &times))
            for (uint32_t j = 0; j < count; j++) wider = wider || (kinds[j] == kind && least[j] < times);
        if (!wider) list[kept++] = list[i];
    }
    return kept;
}

/* Any characters: x* of a point. The point, or DI_EXPR_EMPTY if `a` is something else. */
static di_expr any_text(const di_exprs *x, di_expr a) {
    const di_expr_node *n = &x->n.nodes[a];
    if (n->kind != DI_KIND_REPEAT || n->low || n->high != DI_UNBOUNDED) return DI_EXPR_EMPTY;
    return n->a == x->any_point[1] || n->a == x->any_point[2] ? n->a : DI_EXPR_EMPTY;
}

/* True if `a` is surely made of whole characters of `point`. */
static bool is_within(di_exprs *x, di_expr a, di_expr point, uint32_t *steps) {
    for (; *steps; --*steps) {
        const di_expr_node n = x->n.nodes[a];
        if (a == DI_EXPR_EPSILON || a == point) return true;
        if (n.kind == DI_KIND_SET) {
            for (unsigned b = 0; b < 256; b++)
                if (di_set_has(&x->sets[n.a], (uint8_t)b) && di_expr_derive(x, point, (uint8_t)b) != DI_EXPR_EPSILON)
                    return false;
            return true;
        }
        for (uint32_t i = 0; n.kind == DI_KIND_OR && i < n.b; i++)
            if (!is_within(x, x->n.pool[n.a + i], point, steps)) return false;
        if (n.kind == DI_KIND_OR) return true;
        if (n.kind == DI_KIND_CAT && !is_within(x, n.a, point, steps)) return false;
        if (n.kind != DI_KIND_CAT && n.kind != DI_KIND_REPEAT) return false;
        a = n.kind == DI_KIND_CAT ? n.b : n.a;
    }
    return false;
}

/* Beside any text nothing else is needed: what is behind an unanchored pattern that was found. */
static uint32_t drop_within(di_exprs *x, di_expr *list, uint32_t n) {
    di_expr point = DI_EXPR_EMPTY;
    for (uint32_t i = 0; i < n && point == DI_EXPR_EMPTY; i++) point = any_text(x, list[i]);
    if (point == DI_EXPR_EMPTY) return n;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t steps = 256;
        if (any_text(x, list[i]) == point || !is_within(x, list[i], point, &steps)) list[kept++] = list[i];
    }
    return kept;
}

static di_expr make_or(di_exprs *x, di_expr *list, uint32_t n) {
    n = join_sets(x, DI_KIND_OR, list, n);
    if (n > 1 && n <= 256) n = drop_narrower(x, list, n);
    if (n > 1 && n <= 64) n = drop_within(x, list, n);
    if (has_id(list, n, DI_EXPR_ALL)) return DI_EXPR_ALL;
    if (n && list[0] == DI_EXPR_EMPTY) list++, n--;
    bool nullable = false, boolean = false, without_epsilon = false;
    for (uint32_t i = 0; i < n; i++) {
        const di_expr_node *node = &x->n.nodes[list[i]];
        nullable = nullable || node->nullable;
        boolean = boolean || node->boolean;
        without_epsilon = without_epsilon || (node->nullable && list[i] != DI_EXPR_EPSILON);
        if (node->kind == DI_KIND_NOT && has_id(list, n, node->a)) return DI_EXPR_ALL;
    }
    if (n && list[0] == DI_EXPR_EPSILON && without_epsilon) list++, n--;
    if (n == 0) return DI_EXPR_EMPTY;
    if (n == 1) return list[0];
    return intern(x, (di_expr_node){.kind = DI_KIND_OR, .nullable = nullable, .boolean = boolean, .b = n}, list);
}

static di_expr make_and(di_exprs *x, di_expr *list, uint32_t n) {
    n = join_sets(x, DI_KIND_AND, list, n);
    uint32_t kept = 0;
    bool nullable = true;
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == DI_EXPR_EMPTY) return DI_EXPR_EMPTY;
        if (list[i] == DI_EXPR_ALL) continue;
        nullable = nullable && x->n.nodes[list[i]].nullable;
        list[kept++] = list[i];
    }
    n = kept;
    if (n == 0) return DI_EXPR_ALL;
    if (list[0] == DI_EXPR_EPSILON) return nullable ? DI_EXPR_EPSILON : DI_EXPR_EMPTY;
    for (uint32_t i = 0; i < n; i++)
        if (x->n.nodes[list[i]].kind == DI_KIND_NOT && has_id(list, n, x->n.nodes[list[i]].a)) return DI_EXPR_EMPTY;
    if (n == 1) return list[0];
    return intern(x, (di_expr_node){.kind = DI_KIND_AND, .nullable = nullable, .boolean = true, .b = n}, list);
}

static di_expr combine(di_exprs *x, di_expr_kind kind, const di_expr *list, uint32_t count) {
    di_expr local[64], *flat;
    uint32_t n;
    if (x->failed != DI_OK || !flatten(x, kind, list, count, &flat, &n, local, 64)) return DI_EXPR_EMPTY;
    di_expr result = kind == DI_KIND_OR ? make_or(x, flat, n) : make_and(x, flat, n);
    if (flat != local) free(flat);
    return result;
}

di_expr di_expr_or(di_exprs *x, const di_expr *list, uint32_t count) {
    return combine(x, DI_KIND_OR, list, count);
}

di_expr di_expr_and(di_exprs *x, const di_expr *list, uint32_t count) {
    return combine(x, DI_KIND_AND, list, count);
}

di_expr di_expr_or2(di_exprs *x, di_expr a, di_expr b) {
    if (a == b || b == DI_EXPR_EMPTY) return a;
    if (a == DI_EXPR_EMPTY) return b;
    return combine(x, DI_KIND_OR, (di_expr[]){a, b}, 2);
}

di_expr di_expr_and2(di_exprs *x, di_expr a, di_expr b) {
    return a == b ? a : combine(x, DI_KIND_AND, (di_expr[]){a, b}, 2);
}

di_expr di_expr_not(di_exprs *x, di_expr a) {
    if (x->n.nodes[a].kind == DI_KIND_NOT) return x->n.nodes[a].a;
    return intern(x, (di_expr_node){.kind = DI_KIND_NOT, .nullable = !x->n.nodes[a].nullable, .boolean = true, .a = a},
                  NULL);
}

di_expr di_expr_minus(di_exprs *x, di_expr a, di_expr b) {
    return b == DI_EXPR_EMPTY ? a : di_expr_and2(x, a, di_expr_not(x, b));
}

di_expr di_expr_repeat(di_exprs *x, di_expr a, uint32_t low, uint32_t high) {
    if (low > high) return DI_EXPR_EMPTY;
    if (high == 0 || a == DI_EXPR_EPSILON) return DI_EXPR_EPSILON;
    if (a == DI_EXPR_EMPTY) return low ? DI_EXPR_EMPTY : DI_EXPR_EPSILON;
    if (low == 1 && high == 1) return a;
    const di_expr_node *n = &x->n.nodes[a];
    if (a == DI_EXPR_ALL) return a;
    if (n->nullable) low = 0;
    if (n->kind == DI_KIND_REPEAT && n->low == 0 && n->high == DI_UNBOUNDED) return a;
    return intern(
        x,
        (di_expr_node){
            .kind = DI_KIND_REPEAT, .nullable = low == 0, .boolean = n->boolean, .a = a, .low = low, .high = high},
        NULL);
}

di_expr di_expr_optional(di_exprs *x, di_expr a) {
    return di_expr_or2(x, DI_EXPR_EPSILON, a);
}

di_expr di_expr_star(di_exprs *x, di_expr a) {
    return di_expr_repeat(x, a, 0, DI_UNBOUNDED);
}

di_expr di_expr_nonempty(di_exprs *x, di_expr a) {
    if (!x->n.nodes[a].nullable) return a;
    const di_expr_node n = x->n.nodes[a];
    if (a == DI_EXPR_EPSILON) return DI_EXPR_EMPTY;
    if (n.kind == DI_KIND_REPEAT && !x->n.nodes[n.a].nullable) return di_expr_repeat(x, n.a, 1, n.high);
    if (n.kind == DI_KIND_OR) {
        di_expr result = DI_EXPR_EMPTY;
        for (uint32_t i = 0; i < n.b; i++) result = di_expr_or2(x, result, di_expr_nonempty(x, x->n.pool[n.a + i]));
        return result;
    }
    return di_expr_and2(x, a, di_expr_not(x, DI_EXPR_EPSILON));
}

di_expr di_expr_literal(di_exprs *x, const char *bytes, size_t length) {
    di_expr result = DI_EXPR_EPSILON;
    while (length && x->failed == DI_OK) result = di_expr_cat(x, di_expr_byte(x, (uint8_t)bytes[--length]), result);
    return result;
}

/* Phases of MULTIPLE: 0 = no digit yet, 1 = in the integer part, 2 + f = f digits behind the point, of which those
 * beyond the scale must be zeros. At least one digit must follow the point. */
static bool multiple_nullable(const di_multiple *m, uint32_t residue, uint32_t phase) {
    if (phase == 0 || phase == 2) return false;
    uint64_t value = residue;
    for (uint32_t f = phase == 1 ? 0 : phase - 2; f < m->scale; f++) value = value * 10 % m->modulus;
    return value == 0;
}

static di_expr multiple_at(di_exprs *x, uint32_t index, uint32_t residue, uint32_t phase) {
    return intern(x,
                  (di_expr_node){.kind = DI_KIND_MULTIPLE,
                                 .nullable = multiple_nullable(&x->multiples[index], residue, phase),
                                 .boolean = true,
                                 .a = index,
                                 .b = residue,
                                 .low = phase},
                  NULL);
}

di_expr di_expr_multiple(di_exprs *x, uint32_t modulus, uint32_t scale) {
    uint32_t i = 0;
    while (i < x->multiple_count && (x->multiples[i].modulus != modulus || x->multiples[i].scale != scale)) i++;
    if (i == x->multiple_count) {
        if (!di_grow(&x->multiples, &x->multiple_capacity, (uint64_t)i + 1, sizeof *x->multiples))
            return fail(x, DI_ERR_MEMORY);
        x->multiples[x->multiple_count++] = (di_multiple){modulus, scale};
    }
    return multiple_at(x, i, 0, 0);
}

static di_expr derive_multiple(di_exprs *x, const di_expr_node *n, uint8_t byte) {
    const di_multiple *m = &x->multiples[n->a];
    if (byte == '.') return n->low == 1 ? multiple_at(x, n->a, n->b, 2) : DI_EXPR_EMPTY;
    if (byte < '0' || byte > '9') return DI_EXPR_EMPTY;
    uint32_t digit = byte - '0';
    bool fraction = n->low >= 2;
    if (fraction && n->low - 2 >= m->scale) { /* beyond the scale */
        if (digit) return DI_EXPR_EMPTY;
        return multiple_at(x, n->a, n->b, n->low == 2 ? 3 : n->low);
    }
    uint32_t residue = (uint32_t)(((uint64_t)n->b * 10 + digit) % m->modulus);
    return multiple_at(x, n->a, residue, fraction ? n->low + 1 : 1);
}

/* What is imported follows the laws already; only the order of members is that of the new ids. */
static di_expr import_list(di_exprs *to, const di_exprs *from, di_expr_node n, uint32_t shared, uint32_t *map) {
    di_expr *list = malloc(n.b * sizeof *list);
    if (!list) return fail(to, DI_ERR_MEMORY);
    for (uint32_t i = 0; i < n.b; i++) list[i] = di_expr_import(to, from, from->n.pool[n.a + i], shared, map);
    sort_ids(list, n.b);
    di_expr result = intern(to, n, list);
    free(list);
    return result;
}

di_expr di_expr_import(di_exprs *to, const di_exprs *from, di_expr a, uint32_t shared, uint32_t *map) {
    if (a < shared) return a;
    if (map[a] != UINT32_MAX || to->failed != DI_OK) return map[a] != UINT32_MAX ? map[a] : DI_EXPR_EMPTY;
    if (to->depth >= DI_EXPR_DEPTH) return fail(to, DI_ERR_LIMIT);
    to->depth++;
    di_expr_node n = from->n.nodes[a];
    di_expr result = DI_EXPR_EMPTY;
    switch ((di_expr_kind)n.kind) {
    case DI_KIND_EMPTY:
    case DI_KIND_EPSILON:
        result = a;
        break;
    case DI_KIND_SET:
        result = di_expr_set(to, &from->sets[n.a]);
        break;
    case DI_KIND_OR:
    case DI_KIND_AND:
        result = import_list(to, from, n, shared, map);
        break;
    case DI_KIND_CAT:
        n.b = di_expr_import(to, from, n.b, shared, map);
        n.a = di_expr_import(to, from, n.a, shared, map);
        result = intern(to, n, NULL);
        break;
    case DI_KIND_NOT:
    case DI_KIND_REPEAT:
        n.a = di_expr_import(to, from, n.a, shared, map);
        result = intern(to, n, NULL);
        break;
    case DI_KIND_MULTIPLE: /* divisors are those of the grammar */
        result = intern(to, n, NULL);
        break;
    }
    to->depth--;
    if (to->failed == DI_OK) map[a] = result;
    return result;
}

/* ----------------------------------------------------------------------------------------------------- derivatives */

/* Where the derivative of a key is kept, UINT32_MAX if it is new; NULL when memory ran out. */
static di_expr *memo_slot(di_exprs *x, uint32_t key) {
    if ((uint64_t)x->memo_used * 4 >= (uint64_t)x->memo_size * 3) {
        uint32_t size = x->memo_size ? x->memo_size * 2 : 64;
        di_derivative *fresh = size > x->memo_size ? calloc(size, sizeof *fresh) : NULL;
        if (!fresh) {
            fail(x, DI_ERR_MEMORY);
            return NULL;
        }
        for (uint32_t i = 0; i < x->memo_size; i++) {
            if (!x->memo[i].key) continue;
            uint64_t at = di_mix(0, x->memo[i].key);
            while (fresh[at & (size - 1)].key) at++;
            fresh[at & (size - 1)] = x->memo[i];
        }
        free(x->memo);
        x->memo = fresh;
        x->memo_size = size;
    }
    uint64_t at = di_mix(0, key);
    while (x->memo[at & (x->memo_size - 1)].key && x->memo[at & (x->memo_size - 1)].key != key) at++;
    di_derivative *slot = &x->memo[at & (x->memo_size - 1)];
    if (!slot->key) {
        *slot = (di_derivative){key, UINT32_MAX};
        x->memo_used++;
    }
    return &slot->value;
}

static di_expr derive_list(di_exprs *x, const di_expr_node *n, uint8_t byte) {
    di_expr local[64], *list = n->b <= 64 ? local : malloc(n->b * sizeof *list);
    if (!list) return fail(x, DI_ERR_MEMORY);
    uint32_t count = 0;
    bool dead = false;
    for (uint32_t i = 0; i < n->b && !dead; i++) {
        di_expr d = di_expr_derive(x, x->n.pool[n->a + i], byte);
        if (d != DI_EXPR_EMPTY)
            list[count++] = d;
        else
            dead = n->kind == DI_KIND_AND;
    }
    di_expr result = dead || x->failed != DI_OK || (count == 0) ? DI_EXPR_EMPTY : combine(x, n->kind, list, count);
    if (list != local) free(list);
    return result;
}

static di_expr derive_cat(di_exprs *x, const di_expr_node *n, uint8_t byte) {
    di_expr head = di_expr_cat(x, di_expr_derive(x, n->a, byte), n->b);
    if (!x->n.nodes[n->a].nullable) return head;
    return di_expr_or2(x, head, di_expr_derive(x, n->b, byte));
}

di_expr di_expr_derive(di_exprs *x, di_expr a, uint8_t byte) {
    if (x->failed != DI_OK || a <= DI_EXPR_EPSILON) return DI_EXPR_EMPTY;
    if (a == DI_EXPR_ALL) return a;
    const di_expr_node n = x->n.nodes[a];
    if (n.kind == DI_KIND_SET) return di_set_has(&x->sets[n.a], byte) ? DI_EXPR_EPSILON : DI_EXPR_EMPTY;
    if (n.kind == DI_KIND_CAT && x->n.nodes[n.a].kind == DI_KIND_SET)
        return di_set_has(&x->sets[x->n.nodes[n.a].a], byte) ? n.b : DI_EXPR_EMPTY;
    if (n.kind == DI_KIND_MULTIPLE) return derive_multiple(x, &n, byte);
    uint32_t key = (a << 8 | byte) + 1;
    const di_expr *slot = memo_slot(x, key);
    if (!slot) return DI_EXPR_EMPTY;
    if (*slot != UINT32_MAX) return *slot;
    if (!di_exprs_spend(x, 1)) return DI_EXPR_EMPTY;
    if (x->depth >= DI_EXPR_DEPTH) return fail(x, DI_ERR_LIMIT);
    x->depth++;
    di_expr result = DI_EXPR_EMPTY;
    switch (n.kind) {
    case DI_KIND_CAT:
        result = derive_cat(x, &n, byte);
        break;
    case DI_KIND_OR:
    case DI_KIND_AND:
        result = derive_list(x, &n, byte);
        break;
    case DI_KIND_NOT:
        result = di_expr_not(x, di_expr_derive(x, n.a, byte));
        break;
    case DI_KIND_REPEAT: {
        uint32_t low = n.low ? n.low - 1 : 0, high = n.high == DI_UNBOUNDED ? n.high : n.high - 1;
        di_expr rest = di_expr_repeat(x, n.a, low, high);
        result = di_expr_cat(x, di_expr_derive(x, n.a, byte), rest);
        break;
    }
    default:
        break;
    }
    x->depth--;
    if (x->failed != DI_OK) return DI_EXPR_EMPTY;
    di_expr *out = memo_slot(x, key);
    if (out) *out = result;
    return result;
}

static void add_first(const di_exprs *x, di_expr a, di_byte_set *bytes, uint32_t *steps) {
    static const di_byte_set every = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    for (;;) {
        const di_expr_node *n = &x->n.nodes[a];
        if (*steps == 0) *bytes = every;
        if (*steps == 0 || memcmp(bytes, &every, sizeof every) == 0) return;
        --*steps;
        switch ((di_expr_kind)n->kind) {
        case DI_KIND_EMPTY:
        case DI_KIND_EPSILON:
            return;
        case DI_KIND_SET:
            for (int w = 0; w < 4; w++) bytes->bits[w] |= x->sets[n->a].bits[w];
            return;
        case DI_KIND_CAT:
            if (x->n.nodes[n->a].nullable) add_first(x, n->a, bytes, steps);
            a = x->n.nodes[n->a].nullable ? n->b : n->a;
            break;
        case DI_KIND_OR:
            for (uint32_t i = 0; i < n->b; i++) add_first(x, x->n.pool[n->a + i], bytes, steps);
            return;
        case DI_KIND_AND: /* of any member: the first that is no complement */
            for (uint32_t i = 1; i < n->b && x->n.nodes[x->n.pool[n->a]].kind == DI_KIND_NOT; i++)
                if (x->n.nodes[x->n.pool[n->a + i]].kind != DI_KIND_NOT) {
                    add_first(x, x->n.pool[n->a + i], bytes, steps);
                    return;
                }
            a = x->n.pool[n->a];
            break;
        case DI_KIND_REPEAT:
            a = n->a;
            break;
        case DI_KIND_NOT:
        case DI_KIND_MULTIPLE:
            *bytes = every;
            return;
        }
    }
}

void di_expr_first(const di_exprs *x, di_expr a, di_byte_set *bytes) {
    uint32_t steps = 4096; /* shared parts may be visited more than once */
    add_first(x, a, bytes, &steps);
}

void di_expr_classes(di_exprs *x) {
    if (x->class_sets == x->set_count && x->class_digits == (x->multiple_count > 0)) return;
    uint16_t class_of[256] = {0};
    uint32_t count = 1;
    di_byte_set digits[11] = {{{0}}};
    for (unsigned i = 0; i < 10; i++) set_add(&digits[i], (uint8_t)('0' + i));
    set_add(&digits[10], '.');
    uint32_t extra = x->multiple_count ? 11 : 0;
    for (uint32_t i = 0; i < x->set_count + extra && count < 256; i++) {
        const di_byte_set *set = i < x->set_count ? &x->sets[i] : &digits[i - x->set_count];
        uint16_t inside[256];
        uint32_t sizes[256] = {0}, hits[256] = {0};
        for (unsigned b = 0; b < 256; b++) {
            sizes[class_of[b]]++;
            hits[class_of[b]] += di_set_has(set, (uint8_t)b);
        }
        uint32_t before = count;
        for (uint32_t c = 0; c < before; c++) inside[c] = (uint16_t)(hits[c] && hits[c] < sizes[c] ? count++ : c);
        for (unsigned b = 0; b < 256; b++)
            if (di_set_has(set, (uint8_t)b)) class_of[b] = inside[class_of[b]];
    }
    for (int b = 255; b >= 0; b--) {
        x->class_of[b] = (uint8_t)class_of[b];
        x->class_byte[class_of[b]] = (uint8_t)b;
    }
    x->class_count = count;
    x->class_sets = x->set_count;
    x->class_digits = x->multiple_count > 0;
}

bool di_expr_matches(di_exprs *x, di_expr a, const char *bytes, size_t length) {
    for (size_t i = 0; i < length && a != DI_EXPR_EMPTY; i++) a = di_expr_derive(x, a, (uint8_t)bytes[i]);
    return x->n.nodes[a].nullable;
}
