/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Level 2 of the golden tests: every production op, with every kernel table of this machine, against the op with
 * reference sums on equal inputs.
 *
 * The model runs with reference sums (test_golden_layers.c: bit-equal to the golden layers); its op table is replaced
 * by one that runs each op a second time with a production table, into other memory, and compares. So every op sees
 * the inputs of the golden layers; random inputs come in by overwriting the stream after the embedding.
 *
 * Figures: bf16 results at most one ulp away and at most 1 % of them different; cos and sin 1 fp32 ulp; coefficients
 * 1e-6; logits 1e-5 of the row's std. An op that quantises in its middle may turn one ulp into another FP8 code, which
 * moves the whole row a little: such rows must be few and close in norm, or what follows the codes is held to them. */
#include "base/json.h"
#include "model/deepseek_v41/v41.h"
#include "support/harness.h"
#include "support/op_memory.h"
#include "support/refsums.h"

#include <math.h>

#define NANO DI_TEST_DATA "/nano"

enum { PROMPT = 129, RANDOM_ROWS = 64, MAX_TABLES = 3 };

static di_harness *h;
static di_ops reference; /* the harness's own table */
static op_memory memory;
static int32_t ids[PROMPT];
static float stream_scale; /* 0: leave the stream alone */
static uint64_t seed = 20260;

/* ---------------------------------------------------------------- figures */

/* What was seen of one output of one op, and what is allowed. */
typedef enum figure_kind {
    ROUNDED, /* bf16: `steps` bf16 steps, 1 % of the elements */
    INNER,   /* the same; a quantisation lies between input and output, so rows may move */
    SINGLE,  /* fp32: within the limit given with the values */
    CODES,   /* stored entries: 1 % of the bytes */
    CHOICE,  /* lists of ids: other ones only where scores nearly tie */
} figure_kind;

typedef struct figure {
    const char *name;
    figure_kind kind;
    int steps; /* two roundings in a row, with a scaling between them, can make two steps out of one */
    size_t elements, different, beyond, rows, moved;
    double worst; /* SINGLE: of the limit; INNER: relative norm of a moved row; CHOICE: distance of swapped scores */
} figure;

/* A moved row: relative norm of its error, and share of the rows. */
#define MOVED_NORM  0.01
#define MOVED_SHARE 0.01
#define NEAR_TIE    0.01
#define DIFFERENT   0.01

enum {
    EMBED,
    COSINE,
    GATE,
    ENGRAM,
    COEFFICIENT,
    COLLAPSE,
    NORM,
    ENTER,
    LEAVE,
    QR,
    Q,
    WINDOW,
    OPEN,
    GLOBAL,
    KEYS,
    SCORES,
    LISTS,
    CANDIDATES,
    ATTEND_CODES,
    ATTEND,
    ROUTE,
    EXPERTS,
    TAP,
    HIDDEN,
    LOGITS,
    FIGURES
};

static const figure EMPTY[FIGURES] = {
    [EMBED] = {.name = "embed", .kind = ROUNDED, .steps = 0},
    [COSINE] = {.name = "rotary: cos, sin", .kind = SINGLE},
    [GATE] = {.name = "engram: gate", .kind = SINGLE},
    [ENGRAM] = {.name = "engram", .kind = ROUNDED, .steps = 1},
    [COEFFICIENT] = {.name = "hyper_enter: pre, post, comb", .kind = SINGLE},
    [COLLAPSE] = {.name = "collapse", .kind = ROUNDED, .steps = 1},
    [NORM] = {.name = "norm alone", .kind = ROUNDED, .steps = 1},
    [ENTER] = {.name = "hyper_enter: x", .kind = ROUNDED, .steps = 2},
    [LEAVE] = {.name = "hyper_leave", .kind = ROUNDED, .steps = 1},
    [QR] = {.name = "project: qr", .kind = ROUNDED, .steps = 2},
    [Q] = {.name = "project: q", .kind = INNER, .steps = 2},
    [WINDOW] = {.name = "project: window codes", .kind = CODES},
    [OPEN] = {.name = "compress: open rows", .kind = SINGLE},
    [GLOBAL] = {.name = "compress: global codes", .kind = CODES},
    [KEYS] = {.name = "compress: index key codes", .kind = CODES},
    [SCORES] = {.name = "index: scores", .kind = INNER},
    [LISTS] = {.name = "index: lists", .kind = CHOICE},
    [CANDIDATES] = {.name = "index: candidates", .kind = CHOICE},
    [ATTEND_CODES] = {.name = "attend: codes before wo_b", .kind = CODES},
    [ATTEND] = {.name = "attend: given these codes", .kind = ROUNDED, .steps = 1},
    [ROUTE] = {.name = "experts: ids", .kind = CHOICE},
    [EXPERTS] = {.name = "experts", .kind = INNER, .steps = 1},
    [TAP] = {.name = "tap", .kind = ROUNDED, .steps = 1},
    [HIDDEN] = {.name = "head: hidden", .kind = ROUNDED, .steps = 1},
    [LOGITS] = {.name = "head: logits", .kind = SINGLE},
};

typedef struct candidate { /* a production table under test */
    const di_cpu_kernels *kernels;
    di_backend *backend;
    figure figures[FIGURES];
} candidate;
static candidate candidates[MAX_TABLES];
static size_t candidate_count;

/* The one whose results are compared just now. */
static di_backend *production;
static figure *figures;

#define FOR_EACH_PRODUCTION()                                                                                          \
    for (candidate *c_ = candidates;                                                                                   \
         c_ < candidates + candidate_count && (production = c_->backend, figures = c_->figures, true); c_++)

/* Steps on the bf16 number line between two codes; 0 and -0 are one point. */
static int32_t bf16_steps(uint16_t a, uint16_t b) {
    int32_t x = a & 0x8000 ? -(int32_t)(a & 0x7fff) : a, y = b & 0x8000 ? -(int32_t)(b & 0x7fff) : b;
    return abs(x - y);
}

/* One row of bf16 results. A sum that cancels to almost nothing is held to the size of its row: 2^-16 of the largest.
 */
static void compare_row(figure *f, const uint16_t *want, const uint16_t *got, size_t n) {
    size_t different = 0, beyond = 0;
    double largest = 0, squares = 0, error = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)di_bf16_decode(want[i])));
    for (size_t i = 0; i < n; i++) {
        double w = di_bf16_decode(want[i]), e = fabs(w - (double)di_bf16_decode(got[i]));
        squares += w * w;
        error += e * e;
        different += e != 0;
        beyond += bf16_steps(want[i], got[i]) > f->steps && !(e <= largest * 0x1p-16);
    }
    f->rows++;
    if (f->kind == INNER && (beyond || different * 10 > n)) {
        f->moved++;
        f->worst = fmax(f->worst, sqrt(error / squares));
        return;
    }
    f->elements += n;
    f->different += different;
    f->beyond += beyond;
}

static void compare_bf16(figure *f, di_buffer want, di_buffer got, size_t rows, size_t n, size_t stride) {
    for (size_t t = 0; t < rows; t++)
        compare_row(f, (const uint16_t *)di_cpu_at(want) + t * stride, (const uint16_t *)di_cpu_at(got) + t * stride,
                    n);
}

/* fp32 results within `limit` each. */
static void compare_f32(figure *f, const float *want, const float *got, size_t n, double limit) {
    f->rows++;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)want[i] - (double)got[i]) / limit;
        f->elements++;
        f->different += want[i] != got[i];
        if (!(e <= 1)) f->beyond++;
        f->worst = fmax(f->worst, e);
    }
}

static double root_mean_square(const float *x, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    return sqrt(squares / (double)n);
}

/* Stored entries: codes and scales byte by byte. A value one ulp away may fall into the next code, which in packed
 * entries is the next nibble; a block's scale then moves with its largest value. */
static void compare_entry(figure *f, const uint8_t *want, const uint8_t *got, size_t bytes) {
    f->rows++;
    f->elements += bytes;
    for (size_t i = 0; i < bytes; i++) f->different += want[i] != got[i];
}

/* ---------------------------------------------------------------- running an op twice */

static di_buffer room(uint64_t bytes) {
    return op_room(&memory, bytes);
}

static di_buffer copy_of(di_buffer buffer, uint64_t bytes) {
    return op_put(&memory, di_cpu_at(buffer), bytes);
}

static void done(void) {
    di_error error = {0};
    FOR_EACH_PRODUCTION()
    if (production->failure(production, &error)) fail_msg("%s", error.message);
    op_free(&memory);
}

static void close_embed(di_backend *b, const di_embed_args *a) {
    reference.embed(b, a);
    size_t rows = a->rows->count, n = (size_t)a->copies * a->width;
    FOR_EACH_PRODUCTION() {
        di_embed_args again = *a;
        again.stream = room(rows * n * 2);
        again.pre = room(rows * a->copies * 4);
        production->ops->embed(production, &again);
        assert_memory_equal(di_cpu_at(a->pre), di_cpu_at(again.pre), rows * a->copies * 4);
        assert_memory_equal(di_cpu_at(a->stream), di_cpu_at(again.stream), rows * n * 2);
        compare_bf16(&figures[EMBED], a->stream, again.stream, rows, n, n);
    }
    done();
    if (stream_scale == 0) return;
    uint16_t *stream = di_cpu_at(a->stream);
    float *pre = di_cpu_at(a->pre);
    for (size_t i = 0; i < rows * n; i++) {
        float sum = 0; /* about normal */
        for (int k = 0; k < 6; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(seed >> 40) * 0x1p-24f - 0.5f;
        }
        stream[i] = di_bf16_encode(sum * stream_scale);
        if (i % a->width == 0) pre[i / a->width] = fabsf(sum);
    }
}

static void close_rotary(di_backend *b, const di_rotary_args *a) {
    reference.rotary(b, a);
    size_t n = 4 * (size_t)a->rows->count * a->half_width;
    FOR_EACH_PRODUCTION() {
        di_rotary_args again = *a;
        again.table = room(n * 4);
        production->ops->rotary(production, &again);
        const float *want = di_cpu_at(a->table), *got = di_cpu_at(again.table);
        figure *f = &figures[COSINE];
        for (size_t i = 0; i < n; i++) {
            double ulp = nextafterf(fabsf(want[i]), INFINITY) - fabsf(want[i]);
            compare_f32(f, want + i, got + i, 1, ulp);
        }
    }
    done();
}

static void close_engram(di_backend *b, const di_engram_args *a) {
    size_t rows = a->rows->count, n = (size_t)a->copies * a->width;
    di_buffer before = copy_of(a->stream, rows * n * 2);
    di_engram_args first = *a;
    first.gate = room(rows * a->copies * 4);
    reference.engram(b, &first);
    FOR_EACH_PRODUCTION() {
        di_engram_args again = *a;
        again.gate = room(rows * a->copies * 4);
        again.stream = copy_of(before, rows * n * 2);
        production->ops->engram(production, &again);
        /* The gate takes a square root: near zero it magnifies the error of its argument. */
        compare_f32(&figures[GATE], di_cpu_at(first.gate), di_cpu_at(again.gate), rows * a->copies, 4e-6);
        compare_bf16(&figures[ENGRAM], a->stream, again.stream, rows, n, n);
    }
    done();
}

/* collapse and norm, which hyper_enter has inside, each on equal inputs */
static void compare_parts_of_enter(di_backend *b, const di_hyper_enter_args *a) {
    size_t n = a->width;
    di_collapse_args first = {.count = a->count,
                              .copies = a->copies,
                              .width = a->width,
                              .norm_eps = a->norm_eps,
                              .norm = a->norm,
                              .stream = a->stream,
                              .pre = a->pre_in,
                              .x = room(a->count * n * 2),
                              .hidden = room(a->count * n * 2)};
    reference.collapse(b, &first);
    FOR_EACH_PRODUCTION() {
        const di_cpu_kernels *k = ((const di_cpu *)production)->k;
        di_collapse_args again = first;
        again.x = room(a->count * n * 2);
        again.hidden = room(a->count * n * 2);
        production->ops->collapse(production, &again);
        compare_bf16(&figures[COLLAPSE], first.hidden, again.hidden, a->count, n, n);
        compare_bf16(&figures[ENTER], first.x, again.x, a->count, n, n);
        float *wide = di_cpu_at(room(n * 4));
        uint16_t *normed = di_cpu_at(room(n * 2));
        for (size_t t = 0; t < a->count; t++) {
            k->bf16_to_f32((const uint16_t *)di_cpu_at(first.hidden) + t * n, n, wide);
            k->rms_norm(wide, a->norm->values, n, a->norm_eps, normed);
            compare_row(&figures[NORM], (const uint16_t *)di_cpu_at(first.x) + t * n, normed, n);
        }
    }
}

static void close_enter(di_backend *b, const di_hyper_enter_args *a) {
    reference.hyper_enter(b, a);
    size_t rows = a->count, c = a->copies;
    FOR_EACH_PRODUCTION() {
        di_hyper_enter_args again = *a;
        again.x = room(rows * a->width * 2);
        again.post = room(rows * c * 4);
        again.comb = room(rows * c * c * 4);
        again.pre_out = room(rows * c * 4);
        production->ops->hyper_enter(production, &again);
        figure *f = &figures[COEFFICIENT];
        compare_f32(f, di_cpu_at(a->pre_out), di_cpu_at(again.pre_out), rows * c, 1e-6);
        compare_f32(f, di_cpu_at(a->post), di_cpu_at(again.post), rows * c, 1e-6);
        compare_f32(f, di_cpu_at(a->comb), di_cpu_at(again.comb), rows * c * c, 1e-6);
        compare_bf16(&figures[ENTER], a->x, again.x, rows, a->width, a->width);
    }
    compare_parts_of_enter(b, a);
    done();
}

static void close_leave(di_backend *b, const di_hyper_leave_args *a) {
    size_t n = (size_t)a->copies * a->width;
    di_buffer before = copy_of(a->stream, a->count * n * 2);
    reference.hyper_leave(b, a);
    FOR_EACH_PRODUCTION() {
        di_hyper_leave_args again = *a;
        again.stream = copy_of(before, a->count * n * 2);
        production->ops->hyper_leave(production, &again);
        compare_bf16(&figures[LEAVE], a->stream, again.stream, a->count, n, n);
    }
    done();
}

static void close_project(di_backend *b, const di_project_args *a) {
    reference.project(b, a);
    size_t rows = a->rows->count, all = (size_t)a->heads * a->head_dim, entry = a->head_dim + a->head_dim / 32;
    FOR_EACH_PRODUCTION() {
        di_project_args again = *a;
        again.qr = room(rows * a->q_rank * 2);
        again.q = room(rows * all * 2);
        again.window = room(rows * entry);
        production->ops->project(production, &again);
        compare_bf16(&figures[QR], a->qr, again.qr, rows, a->q_rank, a->q_rank);
        compare_bf16(&figures[Q], a->q, again.q, rows, all, all);
        for (size_t t = 0; t < rows; t++)
            compare_entry(&figures[WINDOW], (const uint8_t *)di_cpu_at(a->window) + t * entry,
                          (const uint8_t *)di_cpu_at(again.window) + t * entry, entry);
    }
    done();
}

static const uint8_t *entry_at(const di_rows *rows, const di_row *row, const di_paged_part *part) {
    const di_sequence_view *s = &rows->sequences[row->sequence];
    uint32_t page = (uint32_t)row->position / rows->page_tokens;
    uint32_t slot = (uint32_t)row->position % rows->page_tokens / part->ratio;
    return di_cpu_at(di_buffer_at(s->pages[page], part->offset + slot * part->entry_bytes));
}

static void compare_compress(const di_compress_args *a) {
    const di_sequence_view *view = &a->rows->sequences[0];
    assert_int_equal(a->rows->sequence_count, 1);
    size_t rows = a->rows->count, d = a->head_dim;
    di_buffer pages[8];
    di_sequence_view other = *view;
    di_rows list = *a->rows;
    assert_true(view->page_count <= 8);
    for (uint32_t i = 0; i < view->page_count; i++)
        pages[i] = copy_of(view->pages[i], di_model_layout(h->model)->page_bytes);
    other.pages = pages;
    list.sequences = &other;
    di_compress_args again = *a;
    again.rows = &list;
    again.open = room(rows * 2 * d * 4);
    production->ops->compress(production, &again);
    for (size_t t = 0; t < rows; t++) {
        if (a->ratio > 1) {
            const float *want = (const float *)di_cpu_at(a->open) + t * 2 * d;
            compare_f32(&figures[OPEN], want, (const float *)di_cpu_at(again.open) + t * 2 * d, 2 * d,
                        1e-6 * root_mean_square(want, 2 * d));
        }
        const di_row *row = &a->rows->rows[t];
        if (((uint32_t)row->position + 1) % a->ratio) continue;
        compare_entry(&figures[GLOBAL], entry_at(a->rows, row, &a->global), entry_at(&list, row, &a->global),
                      a->global.entry_bytes);
        compare_entry(&figures[KEYS], entry_at(a->rows, row, &a->keys), entry_at(&list, row, &a->keys),
                      a->keys.entry_bytes);
    }
}

static void close_compress(di_backend *b, const di_compress_args *a) {
    reference.compress(b, a);
    FOR_EACH_PRODUCTION()
    compare_compress(a);
    done();
}

static bool listed(const int32_t *list, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

/* Another choice is right only where the scores nearly tie: what was swapped differs by less than 1 % of the row's
 * largest score. `score` NULL: only count. */
static void compare_lists(figure *f, const int32_t *want, const int32_t *got, size_t n, const float *score,
                          double scale) {
    double low = INFINITY, high = -INFINITY;
    f->rows++;
    for (size_t i = 0; i < n; i++) {
        if (want[i] >= 0 && !listed(got, n, want[i]) && score) low = fmin(low, score[want[i]]);
        if (got[i] >= 0 && !listed(want, n, got[i]) && score) high = fmax(high, score[got[i]]);
        if ((want[i] < 0) != (got[i] < 0)) f->beyond++;
    }
    f->elements += n;
    if (memcmp(want, got, n * sizeof *want) == 0) return;
    f->moved++;
    if (score) f->worst = fmax(f->worst, fabs(low - high) / scale);
}

static void compare_scores(figure *f, const float *want, const float *got, size_t groups, double *largest) {
    double error = 0;
    *largest = 1e-30;
    for (size_t g = 0; g < groups; g++) {
        if (isinf(want[g]) != isinf(got[g])) fail_msg("another group is scored");
        if (isinf(want[g])) continue;
        *largest = fmax(*largest, fabs((double)want[g]));
        error = fmax(error, fabs((double)want[g] - (double)got[g]));
    }
    f->rows++;
    f->elements += groups;
    if (error <= 1e-5 * *largest) return;
    f->moved++; /* a code of the query, or a head weight's last bit */
    f->worst = fmax(f->worst, error / *largest);
}

/* first: with scores, done by the reference */
static void compare_index(const di_index_args *first) {
    size_t rows = first->rows->count, groups = first->scores_stride, blocks = first->candidate_blocks;
    di_index_args again = *first;
    again.scores = room((rows * groups + 1) * 4);
    again.lists = room(rows * first->topk * 4);
    if (first->candidate_source) again.candidates = room(rows * blocks * 4);
    production->ops->index(production, &again);
    for (size_t t = 0; t < rows; t++) {
        const float *want = (const float *)di_cpu_at(first->scores) + t * groups;
        double largest;
        compare_scores(&figures[SCORES], want, (const float *)di_cpu_at(again.scores) + t * groups, groups, &largest);
        compare_lists(&figures[LISTS], (const int32_t *)di_cpu_at(first->lists) + t * first->topk,
                      (const int32_t *)di_cpu_at(again.lists) + t * first->topk, first->topk, want, largest);
        if (first->candidate_source)
            compare_lists(&figures[CANDIDATES], (const int32_t *)di_cpu_at(first->candidates) + t * blocks,
                          (const int32_t *)di_cpu_at(again.candidates) + t * blocks, blocks, NULL, 1);
    }
}

static void close_index(di_backend *b, const di_index_args *a) {
    size_t rows = a->rows->count, groups = 0;
    for (size_t t = 0; t < rows; t++) {
        size_t n = ((size_t)a->rows->rows[t].position + 1) / a->ratio;
        groups = n > groups ? n : groups;
    }
    di_index_args first = *a;
    first.scores_stride = (uint32_t)groups;
    first.scores = room((rows * groups + 1) * 4);
    reference.index(b, &first);
    FOR_EACH_PRODUCTION()
    compare_index(&first);
    done();
}

/* What the last matrix of the op reads: the op with a unit matrix in its place. bf16 [T][groups * o_rank] */
static di_buffer attend_codes(di_backend *b, const di_ops *ops, const di_attend_args *a, const di_weight *unit) {
    di_attend_args probe = *a;
    probe.wo_b = unit;
    probe.width = (uint32_t)unit->out;
    probe.y = room((uint64_t)a->rows->count * unit->out * 2);
    ops->attend(b, &probe);
    return probe.y;
}

static void close_attend(di_backend *b, const di_attend_args *a) {
    size_t rows = a->rows->count, n = a->width, z = (size_t)a->groups * a->o_rank;
    float *identity = calloc(z * z, sizeof *identity), *y = di_cpu_at(room(rows * n * 4));
    assert_non_null(identity);
    for (size_t i = 0; i < z; i++) identity[i * z + i] = 1;
    const di_weight *unit = op_matrix(&memory, identity, z, z);
    free(identity);
    reference.attend(b, a);
    di_buffer want = attend_codes(b, &reference, a, unit), expected = room(rows * n * 2);
    FOR_EACH_PRODUCTION() {
        di_attend_args again = *a;
        again.y = room(rows * n * 2);
        production->ops->attend(production, &again);
        di_buffer codes = attend_codes(production, production->ops, a, unit);
        for (size_t t = 0; t < rows; t++)
            compare_entry(&figures[ATTEND_CODES], (const uint8_t *)di_cpu_at(want) + t * z * 2,
                          (const uint8_t *)di_cpu_at(codes) + t * z * 2, z * 2);
        /* the reference's product of the production's codes */
        di_cpu *cpu = (di_cpu *)b;
        di_cpu_input in;
        di_cpu_begin(cpu);
        assert_true(di_cpu_quantise(cpu, di_cpu_at(codes), rows, z, false, &in));
        di_cpu_linear wo_b = di_cpu_whole(a->wo_b, &in, y, n);
        di_cpu_products(cpu, &wo_b, 1);
        di_refsums.f32_to_bf16(y, rows * n, di_cpu_at(expected));
        compare_bf16(&figures[ATTEND], expected, again.y, rows, n, n);
    }
    done();
}

static void close_experts(di_backend *b, const di_experts_args *a) {
    size_t rows = a->rows->count, n = a->width;
    di_experts_args first = *a;
    first.ids = room(rows * a->top * 4);
    reference.experts(b, &first);
    FOR_EACH_PRODUCTION() {
        di_experts_args again = *a;
        again.ids = room(rows * a->top * 4);
        again.y = room(rows * n * 2);
        production->ops->experts(production, &again);
        for (size_t t = 0; t < rows; t++) {
            const int32_t *want = (const int32_t *)di_cpu_at(first.ids) + t * a->top;
            const int32_t *got = (const int32_t *)di_cpu_at(again.ids) + t * a->top;
            compare_lists(&figures[ROUTE], want, got, a->top, NULL, 1);
            if (memcmp(want, got, a->top * sizeof *want) == 0)
                compare_row(&figures[EXPERTS], (const uint16_t *)di_cpu_at(a->y) + t * n,
                            (const uint16_t *)di_cpu_at(again.y) + t * n, n);
        }
    }
    done();
}

static void close_tap(di_backend *b, const di_tap_args *a) {
    reference.tap(b, a);
    FOR_EACH_PRODUCTION() {
        di_tap_args again = *a;
        again.taps = room((uint64_t)a->count * a->stride * 2);
        production->ops->tap(production, &again);
        compare_bf16(&figures[TAP], a->taps, again.taps, a->count, a->width, a->stride);
    }
    done();
}

static void close_head(di_backend *b, const di_head_args *a) {
    size_t v = a->vocabulary, n = a->width;
    di_head_args first = *a;
    first.hidden = room(a->count * n * 2);
    reference.head(b, &first);
    FOR_EACH_PRODUCTION() {
        di_head_args again = *a;
        again.hidden = room(a->count * n * 2);
        again.logits = room(a->count * v * 4);
        production->ops->head(production, &again);
        compare_bf16(&figures[HIDDEN], first.hidden, again.hidden, a->count, n, n);
        for (size_t i = 0; i < a->count; i++) {
            const float *want = (const float *)di_cpu_at(a->logits) + i * v;
            if (memcmp((const uint16_t *)di_cpu_at(first.hidden) + i * n,
                       (const uint16_t *)di_cpu_at(again.hidden) + i * n, n * 2) != 0)
                continue; /* the figure is for the same hidden input */
            compare_f32(&figures[LOGITS], want, (const float *)di_cpu_at(again.logits) + i * v, v,
                        1e-5 * root_mean_square(want, v));
        }
    }
    done();
}

/* ---------------------------------------------------------------- runs and verdict */

static size_t verdict(const candidate *c) {
    size_t faults = 0;
    print_message("%-30s %9s %9s %6s %7s %6s %9s\n", c->kernels->name, "elements", "different", "beyond", "rows",
                  "moved", "worst");
    for (int i = 0; i < FIGURES; i++) {
        const figure *f = &c->figures[i];
        bool bad = f->beyond > 0 || f->rows == 0 || (double)f->moved > MOVED_SHARE * (double)f->rows;
        if (f->kind == ROUNDED || f->kind == INNER || f->kind == CODES)
            bad = bad || (double)f->different > DIFFERENT * (double)f->elements;
        if (f->kind == INNER) bad = bad || f->worst > MOVED_NORM;
        if (f->kind == CHOICE) bad = bad || f->worst > NEAR_TIE;
        print_message("%-30s %9zu %9zu %6zu %7zu %6zu %9.2g%s\n", f->name, f->elements, f->different, f->beyond,
                      f->rows, f->moved, f->worst, bad ? "  <-- not close" : "");
        faults += bad;
    }
    return faults;
}

static void add_candidate(const di_cpu_kernels *kernels) {
    di_error error = {0};
    if (!di_cpu_supports(kernels)) {
        print_message("skipped: this processor has no %s\n", kernels->name);
        return;
    }
    candidate *c = &candidates[candidate_count++];
    c->kernels = kernels;
    memcpy(c->figures, EMPTY, sizeof EMPTY);
    if (di_cpu_backend_with_kernels(kernels, h->pool, &c->backend, &error)) fail_msg("%s", error.message);
}

static int setup(void **state) {
    (void)state;
    h = di_harness_open(NANO, &(di_harness_options){.kernels = &di_refsums, .threads = 1, .max_rows = PROMPT});
    static di_ops comparing;
    reference = *h->backend->ops;
    comparing = reference;
    comparing.embed = close_embed;
    comparing.rotary = close_rotary;
    comparing.engram = close_engram;
    comparing.hyper_enter = close_enter;
    comparing.hyper_leave = close_leave;
    comparing.project = close_project;
    comparing.compress = close_compress;
    comparing.index = close_index;
    comparing.attend = close_attend;
    comparing.experts = close_experts;
    comparing.tap = close_tap;
    comparing.head = close_head;
    h->backend->ops = &comparing;
    memory.backend = h->backend;
    add_candidate(&di_cpu_scalar);
#if defined(__x86_64__)
    add_candidate(&di_cpu_avx2);
    add_candidate(&di_cpu_avx512);
#endif
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL;
    di_error error = {0};
    if (di_json_parse_file(arena, NANO "/golden/prompts.json", 1 << 24, 0, &root, &error))
        fail_msg("%s", error.message);
    size_t n = 0;
    int64_t value;
    for (const di_json *id = di_json_get(di_json_get(root, "129"), "ids")->first; id && n < PROMPT; id = id->next)
        if (di_json_int64(id, &value)) ids[n++] = (int32_t)value;
    di_arena_free(arena);
    return n != PROMPT;
}

static int teardown(void **state) {
    (void)state;
    for (size_t i = 0; i < candidate_count; i++) candidates[i].backend->free(candidates[i].backend);
    di_harness_close(h);
    return 0;
}

static void ops_are_close(void **state) {
    (void)state;
    static const float scales[] = {0, 1, 0.01f, 40};
    float *logits = calloc((size_t)PROMPT * h->config.vocab_size, sizeof *logits);
    assert_non_null(logits);
    for (size_t i = 0; i < 4; i++) {
        stream_scale = scales[i];
        di_state *s = di_harness_state(h, PROMPT);
        di_harness_feed(h, s, ids, i ? RANDOM_ROWS : PROMPT, i ? 40 : 0, true, logits);
        di_state_free(s);
    }
    free(logits);
    size_t faults = 0;
    for (size_t i = 0; i < candidate_count; i++) faults += verdict(&candidates[i]);
    if (faults) fail_msg("%zu outputs of the ops are not close to the reference sums", faults);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ops_are_close)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
