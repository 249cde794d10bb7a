/* encode.c - sets of code points and how they are spelled in bytes: UTF-8, or the inside of a JSON string. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "grammar/expr.h"

enum { LAST_POINT = 0x10FFFF };

void di_points_add(di_points *set, uint32_t low, uint32_t high) {
    if (low > high) return;
    if (low < 0xD800 && high >= 0xD800) { /* surrogates are no characters */
        di_points_add(set, low, 0xD7FF);
        low = 0xE000;
    }
    if (low >= 0xD800 && low <= 0xDFFF) low = 0xE000;
    if (high >= 0xD800 && high <= 0xDFFF) high = 0xD7FF;
    if (high > LAST_POINT) high = LAST_POINT;
    if (low > high) return;
    if (!di_grow(&set->ranges, &set->capacity, (uint64_t)set->count + 1, sizeof *set->ranges)) {
        set->failed = true;
        return;
    }
    set->ranges[set->count][0] = low;
    set->ranges[set->count++][1] = high;
}

static int compare_ranges(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

void di_points_sort(di_points *set) {
    if (set->count == 0) return;
    qsort(set->ranges, set->count, sizeof *set->ranges, compare_ranges);
    uint32_t kept = 0;
    for (uint32_t i = 1; i < set->count; i++) {
        uint32_t end = set->ranges[kept][1];
        if (set->ranges[i][0] <= end + 1) {
            if (set->ranges[i][1] > end) set->ranges[kept][1] = set->ranges[i][1];
        } else {
            kept++;
            memmove(set->ranges[kept], set->ranges[i], sizeof *set->ranges);
        }
    }
    set->count = kept + 1;
}

void di_points_invert(di_points *set) {
    di_points out = {0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->ranges[i][0] > next) di_points_add(&out, next, set->ranges[i][0] - 1);
        next = set->ranges[i][1] + 1;
    }
    if (next <= LAST_POINT) di_points_add(&out, next, LAST_POINT);
    di_points_sort(&out);
    out.failed = out.failed || set->failed;
    free(set->ranges);
    *set = out;
}

bool di_points_has(const di_points *set, uint32_t point) {
    uint32_t low = 0, high = set->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (set->ranges[middle][1] < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->count && set->ranges[low][0] <= point;
}

void di_points_free(di_points *set) {
    free(set->ranges);
    *set = (di_points){0};
}

/* How much of low..high is in the set: 0 nothing, 1 a part, 2 all. Surrogates inside do not count as missing. */
static int coverage(const di_points *set, uint32_t low, uint32_t high) {
    bool some = false, all = true;
    uint32_t next = low, i = 0, end = set->count;
    while (i < end) { /* first range that ends at or behind `low` */
        uint32_t middle = (i + end) / 2;
        if (set->ranges[middle][1] < low)
            i = middle + 1;
        else
            end = middle;
    }
    for (; i < set->count && set->ranges[i][0] <= high; i++) {
        some = true;
        uint32_t from = set->ranges[i][0];
        if (from > next && !(next >= 0xD800 && from <= 0xE000)) all = false;
        next = set->ranges[i][1] + 1;
    }
    if (next <= high && !(next >= 0xD800 && high <= 0xDFFF)) all = false;
    return !some ? 0 : all ? 2 : 1;
}

/* Alternatives that begin with one byte each, grouped by what follows. */
typedef struct branches {
    di_expr tails[256];
    di_byte_set bytes[256];
    uint32_t count;
} branches;

static void branch_add(branches *list, uint8_t byte, di_expr tail) {
    if (tail == DI_EXPR_EMPTY) return;
    uint32_t i = 0;
    while (i < list->count && list->tails[i] != tail) i++;
    if (i == list->count) {
        list->tails[i] = tail;
        memset(&list->bytes[i], 0, sizeof list->bytes[i]);
        list->count++;
    }
    list->bytes[i].bits[byte >> 6] |= (uint64_t)1 << (byte & 63);
}

static di_expr branch_join(di_exprs *x, const branches *list) {
    di_expr parts[256];
    for (uint32_t i = 0; i < list->count; i++)
        parts[i] = di_expr_cat(x, di_expr_set(x, &list->bytes[i]), list->tails[i]);
    return di_expr_or(x, parts, list->count);
}

/* `left` continuation bytes that complete the code points base..base + 64^left - 1 of the set. */
static di_expr continuation(di_exprs *x, const di_points *set, uint32_t base, unsigned left) {
    if (left == 0) return di_points_has(set, base) ? DI_EXPR_EPSILON : DI_EXPR_EMPTY;
    uint32_t span = 1u << 6 * left, step = span / 64;
    int covered = coverage(set, base, base + span - 1);
    if (covered == 0 || !di_exprs_spend(x, 1)) return DI_EXPR_EMPTY;
    bool holes = base <= 0xDFFF && base + span > 0xD800;
    if (covered == 2 && !holes) {
        di_expr one = di_expr_range(x, 0x80, 0xBF);
        return left == 1 ? one : di_expr_cat(x, one, continuation(x, set, base, left - 1));
    }
    branches list;
    list.count = 0;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t from = base + i * step;
        if (left > 1 || di_points_has(set, from))
            branch_add(&list, (uint8_t)(0x80 + i), continuation(x, set, from, left - 1));
    }
    return branch_join(x, &list);
}

static di_expr utf8_points(di_exprs *x, const di_points *set) {
    branches list;
    list.count = 0;
    for (uint32_t b = 0; b < 0x80; b++)
        if (di_points_has(set, b)) branch_add(&list, (uint8_t)b, DI_EXPR_EPSILON);
    if (coverage(set, 0x80, LAST_POINT) == 0) return branch_join(x, &list);
    for (uint32_t b = 0xC2; b <= 0xDF; b++) branch_add(&list, (uint8_t)b, continuation(x, set, (b & 0x1F) << 6, 1));
    for (uint32_t b = 0xE0; b <= 0xEF; b++) {
        uint32_t base = (b & 0x0F) << 12;
        if (b != 0xE0) {
            branch_add(&list, (uint8_t)b, continuation(x, set, base, 2));
            continue;
        }
        branches second; /* E0 80..9F would be overlong */
        second.count = 0;
        for (uint32_t c = 0xA0; c <= 0xBF; c++)
            branch_add(&second, (uint8_t)c, continuation(x, set, (c & 0x3F) << 6, 1));
        branch_add(&list, (uint8_t)b, branch_join(x, &second));
    }
    for (uint32_t b = 0xF0; b <= 0xF4; b++) {
        branches second;
        second.count = 0;
        uint32_t first = b == 0xF0 ? 0x90 : 0x80, last = b == 0xF4 ? 0x8F : 0xBF;
        for (uint32_t c = first; c <= last; c++)
            branch_add(&second, (uint8_t)c, continuation(x, set, (b & 7) << 18 | (c & 0x3F) << 12, 2));
        branch_add(&list, (uint8_t)b, branch_join(x, &second));
    }
    return branch_join(x, &list);
}

/* `left` hexadecimal digits that complete the numbers base..base + 16^left - 1 of the set, followed by `tail`. */
static di_expr hexadecimal(di_exprs *x, const di_points *set, uint32_t base, unsigned left, di_expr tail) {
    if (left == 0) return di_points_has(set, base) ? tail : DI_EXPR_EMPTY;
    uint32_t span = 1u << 4 * left, step = span / 16;
    int covered = coverage(set, base, base + span - 1);
    if (covered == 0 || !di_exprs_spend(x, 1)) return DI_EXPR_EMPTY;
    if (covered == 2 && (base + span <= 0xD800 || base > 0xDFFF)) {
        di_expr digit = di_expr_or(
            x, (di_expr[]){di_expr_range(x, '0', '9'), di_expr_range(x, 'a', 'f'), di_expr_range(x, 'A', 'F')}, 3);
        for (; left; left--) tail = di_expr_cat(x, digit, tail);
        return tail;
    }
    branches list;
    list.count = 0;
    for (uint32_t i = 0; i < 16; i++) {
        di_expr rest = hexadecimal(x, set, base + i * step, left - 1, tail);
        branch_add(&list, (uint8_t)(i < 10 ? '0' + i : 'a' + i - 10), rest);
        if (i >= 10) branch_add(&list, (uint8_t)('A' + i - 10), rest);
    }
    return branch_join(x, &list);
}

/* The digits of surrogate pairs of the set, with the \u between them. */
static di_expr surrogate_pairs(di_exprs *x, const di_points *set) {
    int covered = coverage(set, 0x10000, LAST_POINT);
    if (covered == 0) return DI_EXPR_EMPTY;
    di_points highs[8];
    di_expr lows[8], result = DI_EXPR_EMPTY;
    uint32_t kinds = 0;
    bool failed = false;
    for (uint32_t high = 0; high < 0x400; high++) {
        uint32_t base = 0x10000 + (high << 10);
        if (covered == 2 && kinds) { /* all highs are alike */
            di_points_add(&highs[0], 0x1D800 + high, 0x1DBFF);
            break;
        }
        if (coverage(set, base, base + 0x3FF) == 0) continue;
        di_points low = {0}; /* numbers 0..3FF moved to 1DC00, where no surrogate gap is in the way */
        for (uint32_t i = 0; i < set->count; i++) {
            uint32_t from = set->ranges[i][0] > base ? set->ranges[i][0] : base;
            uint32_t to = set->ranges[i][1] < base + 0x3FF ? set->ranges[i][1] : base + 0x3FF;
            if (from <= to) di_points_add(&low, 0x1DC00 + from - base, 0x1DC00 + to - base);
        }
        di_points_sort(&low);
        di_expr digits = hexadecimal(x, &low, 0x1D000, 3, DI_EXPR_EPSILON);
        failed = failed || low.failed;
        di_points_free(&low);
        digits = di_expr_cat(x, di_expr_literal(x, "\\u", 2),
                             di_expr_cat(x, di_expr_or2(x, di_expr_byte(x, 'd'), di_expr_byte(x, 'D')), digits));
        uint32_t kind = 0;
        while (kind < kinds && lows[kind] != digits) kind++;
        if (kind == 8) { /* rare: many different low parts; finish one by itself */
            di_points one = {0};
            di_points_add(&one, 0x1D800 + high, 0x1D800 + high);
            result = di_expr_or2(x, result, hexadecimal(x, &one, 0x1D000, 3, digits));
            failed = failed || one.failed;
            di_points_free(&one);
            continue;
        }
        if (kind == kinds) {
            highs[kind] = (di_points){0};
            lows[kinds++] = digits;
        }
        di_points_add(&highs[kind], 0x1D800 + high, 0x1D800 + high);
    }
    for (uint32_t kind = 0; kind < kinds; kind++) {
        di_points_sort(&highs[kind]);
        failed = failed || highs[kind].failed;
        result = di_expr_or2(x, result, hexadecimal(x, &highs[kind], 0x1D000, 3, lows[kind]));
        di_points_free(&highs[kind]);
    }
    if (failed) x->failed = DI_ERR_MEMORY;
    return di_expr_cat(x, di_expr_or2(x, di_expr_byte(x, 'd'), di_expr_byte(x, 'D')), result);
}

static void clip(di_points *to, const di_points *set, uint32_t low, uint32_t high) {
    for (uint32_t i = 0; i < set->count; i++) {
        uint32_t from = set->ranges[i][0] > low ? set->ranges[i][0] : low;
        uint32_t end = set->ranges[i][1] < high ? set->ranges[i][1] : high;
        if (from <= end) di_points_add(to, from, end);
    }
}

static di_expr json_points(di_exprs *x, const di_points *set, bool general) {
    static const char meanings[] = "\"\\/\b\f\n\r\t", letters[] = "\"\\/bfnrt";
    di_points raw = {0}, escaped = {0};
    clip(&raw, set, 0x20, '"' - 1);
    clip(&raw, set, '"' + 1, '\\' - 1);
    clip(&raw, set, '\\' + 1, LAST_POINT);
    di_points_sort(&raw);
    clip(&escaped, set, 0, general ? 0xFFFF : 0x1F);
    if (!general) clip(&escaped, set, 0x7F, 0xFFFF);
    di_points_sort(&escaped);
    branches list;
    list.count = 0;
    for (size_t i = 0; letters[i]; i++)
        if (di_points_has(set, (uint8_t)meanings[i])) branch_add(&list, (uint8_t)letters[i], DI_EXPR_EPSILON);
    di_expr digits = hexadecimal(x, &escaped, 0, 4, DI_EXPR_EPSILON);
    branch_add(&list, 'u', di_expr_or2(x, digits, surrogate_pairs(x, set)));
    di_expr escapes = di_expr_cat(x, di_expr_byte(x, '\\'), branch_join(x, &list));
    di_expr result = di_expr_or2(x, utf8_points(x, &raw), escapes);
    if (raw.failed || escaped.failed) x->failed = DI_ERR_MEMORY;
    di_points_free(&raw);
    di_points_free(&escaped);
    return result;
}

di_expr di_expr_points(di_exprs *x, const di_points *set, di_encoding encoding) {
    if (set->failed) x->failed = DI_ERR_MEMORY;
    if (x->failed != DI_OK) return DI_EXPR_EMPTY;
    if (encoding == DI_ENCODING_UTF8) return utf8_points(x, set);
    return json_points(x, set, encoding == DI_ENCODING_JSON_GENERAL);
}

di_expr di_expr_any_point(di_exprs *x, di_encoding encoding) {
    if (x->any_point[encoding]) return x->any_point[encoding];
    di_points all = {0};
    di_points_add(&all, 0, LAST_POINT);
    di_points_sort(&all);
    di_expr result = di_expr_points(x, &all, encoding);
    di_points_free(&all);
    if (x->failed == DI_OK) x->any_point[encoding] = result;
    return result;
}

di_expr di_expr_text(di_exprs *x, const char *utf8, size_t length, di_encoding encoding) {
    if (encoding == DI_ENCODING_UTF8) return di_expr_literal(x, utf8, length);
    uint32_t *points = malloc((length + 1) * sizeof *points);
    size_t count = 0;
    if (!points) {
        x->failed = DI_ERR_MEMORY;
        return DI_EXPR_EMPTY;
    }
    for (size_t i = 0, used; i < length; i += used) {
        used = di_utf8_decode(utf8 + i, length - i, &points[count]);
        if (!used) break;
        count++;
    }
    di_expr result = DI_EXPR_EPSILON;
    while (count && x->failed == DI_OK) {
        uint32_t point = points[--count];
        bool plain = point >= 0x20 && point < 0x7F && point != '"' && point != '\\' && point != '/';
        di_expr one;
        if (plain && encoding == DI_ENCODING_JSON) {
            one = di_expr_byte(x, (uint8_t)point);
        } else {
            di_points set = {0};
            di_points_add(&set, point, point);
            one = di_expr_points(x, &set, encoding);
            di_points_free(&set);
        }
        result = di_expr_cat(x, one, result);
    }
    free(points);
    return result;
}
