/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Level 1 of the golden tests: the ops with reference sums give every primitive array bit for bit. Formats and
 * quantisers (codec.*, fq.*, packed.*) are in test_tensor_codec.c. */
#include "base/json.h"
#include "model/deepseek_v41/v41.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/op_memory.h"
#include "support/refsums.h"
#include "support/small_tokenizer.h"

#include <math.h>

#define NANO    DI_TEST_DATA "/nano"
#define RELEASE DI_TEST_DATA "/release/config.json"

static di_golden *golden;
static di_harness *h;
static di_cpu *cpu;
static const di_cpu_kernels *const K = &di_refsums;
static const di_model_config *config;
static const v41_model *model;
static op_memory memory;

static int setup(void **state) {
    (void)state;
    golden = di_golden_open(NANO "/golden");
    h = di_harness_open(NANO, &(di_harness_options){.kernels = &di_refsums, .threads = 2, .max_rows = 16});
    config = &h->config;
    model = (const v41_model *)h->model;
    cpu = (di_cpu *)h->backend;
    memory.backend = h->backend;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    di_harness_close(h);
    di_golden_close(golden);
    return 0;
}

static int give_back(void **state) {
    (void)state;
    op_free(&memory);
    return 0;
}

static const float *floats(const char *name) {
    return di_golden_f32(golden, name, NULL);
}

static const int64_t *integers(const char *name) {
    di_golden_array array = di_golden_get(golden, name);
    assert_string_equal(array.dtype, "int64");
    return array.data;
}

/* Rows of one sequence at positions first .. first + count - 1. */
typedef struct one_sequence {
    di_row rows[64];
    di_sequence_view view;
    di_rows list;
} one_sequence;

static void make_rows(one_sequence *s, uint32_t first, uint32_t count) {
    *s = (one_sequence){.view = {.committed = (int32_t)first,
                                 .row_count = {count, count},
                                 .first_position = {(int32_t)first, (int32_t)first}}};
    assert_true(count <= 64);
    for (uint32_t t = 0; t < count; t++) s->rows[t].position = (int32_t)(first + t);
    s->list = (di_rows){.rows = s->rows,
                        .count = count,
                        .sequences = &s->view,
                        .sequence_count = 1,
                        .page_tokens = model->base.layout.page_tokens};
}

/* ---------------------------------------------------------------- norms, rotation */

static void norms(void **state) {
    (void)state;
    di_golden_array x = di_golden_get(golden, "rms.in");
    size_t n = x.shape[1];
    uint16_t out[128];
    assert_int_equal(n, 128);
    for (size_t row = 0; row < x.shape[0]; row++) {
        K->rms_norm((const float *)x.data + row * n, floats("rms.weight"), n, 1e-20f, out);
        expect_bf16("rms.out", out, floats("rms.out") + row * n, n);
    }
}

static void check_rotation(const char *tag, const char *kind, const float *table, size_t rows, size_t dim) {
    char name[64];
    float x[64];
    size_t half = dim / 2;
    snprintf(name, sizeof name, "rope.%s.in", tag);
    const float *in = floats(name);
    static const char *const arrays[] = {"cos", "sin", "out", "inverse"};
    for (int a = 0; a < 4; a++) {
        snprintf(name, sizeof name, "rope.%s.%s.%s", tag, kind, arrays[a]);
        const float *want = floats(name);
        for (size_t t = 0; t < rows; t++) {
            const float *cosine = table + t * dim, *sine = cosine + half;
            if (a < 2) {
                expect_f32(name, a ? sine : cosine, want + t * half, half);
                continue;
            }
            memcpy(x, in + t * dim, dim * sizeof *x);
            K->rotate(x, cosine, sine, half, a == 3);
            expect_f32(name, x, want + t * dim, dim);
        }
    }
}

static void rotary_tables(void **state) {
    (void)state;
    static const char *const tags[] = {"release", "nano"};
    const int64_t *positions = integers("rope.pos");
    size_t count = di_golden_get(golden, "rope.pos").count;
    one_sequence s;
    make_rows(&s, 0, (uint32_t)count);
    for (size_t t = 0; t < count; t++) s.rows[t].position = (int32_t)positions[t];
    for (int tag = 0; tag < 2; tag++) {
        di_model_config c = *config;
        c.qk_rope_head_dim = tag ? config->qk_rope_head_dim : 64;
        size_t dim = c.qk_rope_head_dim;
        float frequency[2][32];
        char name[64];
        for (int yarn = 0; yarn < 2; yarn++) {
            v41_frequencies(&c, yarn, frequency[yarn]);
            snprintf(name, sizeof name, "rope.%s.%s.freq", tags[tag], yarn ? "yarn" : "plain");
            expect_f32(name, frequency[yarn], floats(name), dim / 2);
        }
        di_buffer table = op_room(&memory, 2 * count * dim * sizeof(float));
        di_rotary_args args = {.rows = &s.list,
                               .frequency = {frequency[0], frequency[1]},
                               .half_width = (uint32_t)dim / 2,
                               .table = table};
        di_cpu_rotary(h->backend, &args);
        check_rotation(tags[tag], "plain", di_cpu_at(table), count, dim);
        check_rotation(tags[tag], "yarn", (const float *)di_cpu_at(table) + count * dim, count, dim);
    }
}

/* ---------------------------------------------------------------- hyper-connections */

static void hyper_vector_of_the_specification(void **state) {
    (void)state;
    float pre[4], post[4], comb[16];
    K->hyper_mix(floats("hc.spec.mix"), floats("hc.spec.base"), floats("hc.spec.scale"), 4, config->hc_sinkhorn_iters,
                 config->hc_eps, pre, post, comb);
    expect_f32("hc.spec.pre", pre, floats("hc.spec.pre"), 4);
    expect_f32("hc.spec.post", post, floats("hc.spec.post"), 4);
    expect_f32("hc.spec.comb", comb, floats("hc.spec.comb"), 16);
}

static void hyper_connections(void **state) {
    (void)state;
    enum { ROWS = 5, C = 4, D = 128 };
    const v41_layer *w = &model->layers[3];
    di_hyper_enter_args enter = {.count = ROWS,
                                 .copies = C,
                                 .width = D,
                                 .iterations = config->hc_sinkhorn_iters,
                                 .norm_eps = config->rms_norm_eps,
                                 .hc_eps = config->hc_eps,
                                 .fn = w->hc_attn.fn,
                                 .base = w->hc_attn.base,
                                 .scale = w->hc_attn.scale,
                                 .norm = w->attn_norm,
                                 .stream = op_put_bf16(&memory, floats("hc.X"), ROWS * C * D),
                                 .pre_in = op_put(&memory, floats("hc.pre"), ROWS * C * 4),
                                 .x = op_room(&memory, ROWS * D * 2),
                                 .post = op_room(&memory, ROWS * C * 4),
                                 .comb = op_room(&memory, ROWS * C * C * 4),
                                 .pre_out = op_room(&memory, ROWS * C * 4)};
    di_cpu_hyper_enter(h->backend, &enter);
    expect_f32("hc.pre", di_cpu_at(enter.pre_out), floats("hc.pre"), ROWS * C);
    expect_f32("hc.post", di_cpu_at(enter.post), floats("hc.post"), ROWS * C);
    expect_f32("hc.comb", di_cpu_at(enter.comb), floats("hc.comb"), ROWS * C * C);
    di_collapse_args collapse = {.count = ROWS,
                                 .copies = C,
                                 .width = D,
                                 .norm_eps = config->rms_norm_eps,
                                 .norm = w->attn_norm,
                                 .stream = enter.stream,
                                 .pre = enter.pre_in,
                                 .x = op_room(&memory, ROWS * D * 2),
                                 .hidden = op_room(&memory, ROWS * D * 2)};
    di_cpu_collapse(h->backend, &collapse);
    expect_bf16("hc.collapse", di_cpu_at(collapse.hidden), floats("hc.collapse"), ROWS * D);
    assert_memory_equal(di_cpu_at(collapse.x), di_cpu_at(enter.x), ROWS * D * 2);
    di_hyper_leave_args leave = {.count = ROWS,
                                 .copies = C,
                                 .width = D,
                                 .y = op_put_bf16(&memory, floats("hc.y"), ROWS * D),
                                 .post = enter.post,
                                 .comb = enter.comb,
                                 .stream = enter.stream};
    di_cpu_hyper_leave(h->backend, &leave);
    expect_bf16("hc.expand", di_cpu_at(leave.stream), floats("hc.expand"), ROWS * C * D);
}

/* ---------------------------------------------------------------- linear layers */

/* y [rows][out] of a stored matrix. */
static const float *product(const di_weight *w, di_buffer x, size_t rows, bool quantise) {
    float *y = di_cpu_at(op_room(&memory, rows * w->out * sizeof *y));
    di_cpu_input in;
    di_cpu_begin(cpu);
    assert_true(quantise ? di_cpu_quantise(cpu, di_cpu_at(x), rows, w->in, true, &in)
                         : di_cpu_widen(cpu, di_cpu_at(x), rows, w->in, &in));
    di_cpu_linear l = di_cpu_whole(w, &in, y, w->out);
    di_cpu_products(cpu, &l, 1);
    assert_int_equal(cpu->failed, DI_OK);
    return y;
}

static void linear_layers(void **state) {
    (void)state;
    const struct {
        const char *name;
        const di_weight *w;
        bool quantise, rounded;
    } cases[] = {{"lin8", model->layers[3].wq_a, true, true},
                 {"lin4", model->layers[3].w1[5], true, true},
                 {"lin16", model->layers[2].index_wk, false, true},
                 {"lin32", model->layers[3].gate, false, false}};
    for (size_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s.in", cases[i].name);
        di_golden_array x = di_golden_get(golden, name);
        assert_int_equal(x.shape[1], cases[i].w->in);
        size_t rows = x.shape[0], n = rows * cases[i].w->out;
        const float *y = product(cases[i].w, op_put_bf16(&memory, x.data, x.count), rows, cases[i].quantise);
        snprintf(name, sizeof name, "%s.out", cases[i].name);
        assert_int_equal(di_golden_get(golden, name).count, n);
        for (size_t e = 0; e < n; e++) {
            float got = cases[i].rounded ? di_bf16_round(y[e]) : y[e];
            expect_f32(name, &got, floats(name) + e, 1);
        }
    }
}

/* ---------------------------------------------------------------- attention */

/* Golden keys are values of the window format, so storing them again changes nothing. */
static void check_attention(const char *tag) {
    enum { HEADS = 4, D = 64, ENTRY = D + D / 32, MAX_SLOTS = 160 };
    static uint8_t entries[MAX_SLOTS][ENTRY];
    const uint8_t *keys[MAX_SLOTS];
    char name[32];
    uint16_t q[HEADS * D], out[HEADS * D];
#define ARRAY(what) (snprintf(name, sizeof name, "attn.%s" what, tag), name)
    di_golden_array all = di_golden_get(golden, ARRAY("keys"));
    size_t slots = all.shape[1];
    assert_true(slots <= MAX_SLOTS && all.shape[2] == D);
    float *scratch = di_cpu_at(op_room(&memory, di_cpu_attention_scratch(HEADS, D, slots) * sizeof *scratch));
    for (size_t row = 0; row < all.shape[0]; row++) {
        const uint8_t *valid = (const uint8_t *)di_golden_get(golden, ARRAY("valid")).data + row * slots;
        for (size_t s = 0; s < slots; s++) {
            const float *key = (const float *)all.data + (row * slots + s) * D;
            float again[D];
            K->window_entry(key, D, entries[s]);
            decode_window(entries[s], D, again);
            expect_f32("key", again, key, D);
            keys[s] = valid[s] ? entries[s] : NULL;
        }
        K->f32_to_bf16(floats(ARRAY("q")) + row * HEADS * D, HEADS * D, q);
        di_cpu_attention a = {.q = q,
                              .sink = floats(ARRAY("sink")),
                              .heads = HEADS,
                              .head_dim = D,
                              .scale = 0.125f,
                              .window = keys,
                              .window_slots = slots,
                              .out = out,
                              .scratch = scratch};
        K->attention(&a);
        expect_bf16(ARRAY("out"), out, floats(ARRAY("out")) + row * HEADS * D, HEADS * D);
    }
#undef ARRAY
}

static void sink_attention(void **state) {
    (void)state;
    check_attention("");
    check_attention("long.");
}

/* ---------------------------------------------------------------- selections */

enum { SELECT_ROWS = 6, GROUPS = 61, BLOCK = 4, BLOCKS = 6, TOP = 8 };

static void expect_ids(const char *what, const int32_t *got, const int64_t *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("%s, element %zu: got %d, golden %lld", what, i, got[i], (long long)want[i]);
}

static void expect_blocks(const int32_t *got, const uint8_t *want, size_t blocks) {
    size_t at = 0;
    for (size_t b = 0; b < blocks; b++)
        if (want[b]) assert_int_equal(got[at++], b);
    for (; at < BLOCKS; at++) assert_int_equal(got[at], -1);
}

static void top_ids_of_given_scores(void **state) {
    (void)state;
    const float *scores = floats("select.score");
    const uint8_t *blocks = di_golden_get(golden, "select.blocks").data;
    int32_t ids[TOP], members[GROUPS];
    float inside[GROUPS];
    for (size_t row = 0; row < SELECT_ROWS; row++) {
        di_cpu_top_ids(&di_cpu_scalar, scores + row * GROUPS, NULL, GROUPS, TOP, ids);
        expect_ids("select.topk", ids, integers("select.topk") + row * TOP, TOP);
        size_t count = 0;
        for (size_t g = 0; g < GROUPS; g++) {
            if (!blocks[row * 16 + g / BLOCK]) continue;
            members[count] = (int32_t)g;
            inside[count++] = scores[row * GROUPS + g];
        }
        di_cpu_top_ids(&di_cpu_scalar, inside, members, count, TOP, ids);
        expect_ids("select.topk_in_blocks", ids, integers("select.topk_in_blocks") + row * TOP, TOP);
    }
}

/* Index keys and queries that score exactly as the golden scores: key g holds score (r, g) in channels 2r and 2r + 1
 * as two E2M1 values, and a 6 elsewhere that keeps the scale at one; row r's query reads these two channels. Head 0
 * counts what is positive, head 1 what is negative. */
enum { INDEX_HEADS = 4, INDEX_DIM = 64, RANK = 32 };

static void split_score(float score, float *a, float *b) {
    static const float grid[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float size = isinf(score) ? 0 : fabsf(score), sign = score < 0 ? -1.0f : 1.0f;
    int i = 7;
    while (grid[i] > size) i--;
    *a = sign * grid[i];
    *b = sign * (size - grid[i]);
}

static di_buffer score_page(size_t entry_bytes) {
    di_buffer page = op_room(&memory, GROUPS * entry_bytes);
    const float *scores = floats("select.score");
    for (size_t g = 0; g < GROUPS; g++) {
        float key[INDEX_DIM] = {0};
        for (size_t r = 0; r < SELECT_ROWS; r++) split_score(scores[r * GROUPS + g], &key[2 * r], &key[2 * r + 1]);
        key[2 * SELECT_ROWS] = 6;
        K->index_entry(key, INDEX_DIM, (uint8_t *)di_cpu_at(page) + g * entry_bytes);
    }
    return page;
}

static void selection_by_the_op(void **state) {
    (void)state;
    size_t entry_bytes = INDEX_DIM / 2 + INDEX_DIM / 32;
    di_buffer page = score_page(entry_bytes);
    di_row rows[SELECT_ROWS];
    di_sequence_view views[SELECT_ROWS];
    float wq_b[INDEX_HEADS * INDEX_DIM * RANK] = {0}, project[INDEX_HEADS * RANK] = {[0] = 16, [RANK] = -16};
    float qr[SELECT_ROWS * RANK] = {0}, x[SELECT_ROWS * RANK] = {0}, rotary[2 * SELECT_ROWS * 16] = {0};
    for (uint32_t r = 0; r < SELECT_ROWS; r++) {
        rows[r] = (di_row){.sequence = r, .position = (int32_t)integers("select.n")[r] - 1};
        views[r] = (di_sequence_view){.pages = &page, .page_count = 1};
        qr[r * RANK + r] = x[r * RANK] = 1;
        for (size_t i = 2 * r; i < 2 * r + 2; i++) {
            wq_b[i * RANK + r] = 1;
            wq_b[(INDEX_DIM + i) * RANK + r] = -1;
        }
    }
    di_rows list = {
        .rows = rows, .count = SELECT_ROWS, .sequences = views, .sequence_count = SELECT_ROWS, .page_tokens = 64};
    di_index_args args = {.rows = &list,
                          .width = RANK,
                          .q_rank = RANK,
                          .heads = INDEX_HEADS,
                          .dim = INDEX_DIM,
                          .rotary_dim = 16,
                          .ratio = 1,
                          .topk = TOP,
                          .wq_b = op_matrix(&memory, wq_b, INDEX_HEADS * INDEX_DIM, RANK),
                          .weights_proj = op_matrix(&memory, project, INDEX_HEADS, RANK),
                          .keys = {.entry_bytes = (uint32_t)entry_bytes, .ratio = 1},
                          .candidate_source = true,
                          .candidate_blocks = BLOCKS,
                          .candidate_block_size = BLOCK,
                          .rotary = op_put(&memory, rotary, sizeof rotary),
                          .x = op_put_bf16(&memory, x, SELECT_ROWS * RANK),
                          .qr = op_put_bf16(&memory, qr, SELECT_ROWS * RANK),
                          .lists = op_room(&memory, SELECT_ROWS * TOP * 4),
                          .candidates = op_room(&memory, SELECT_ROWS * BLOCKS * 4)};
    const int32_t *lists = di_cpu_at(args.lists);
    for (int pass = 0; pass < 3; pass++) { /* with scores asked for, without, as a user of the candidates */
        if (pass == 0) args.scores = op_room(&memory, SELECT_ROWS * GROUPS * 4);
        if (pass == 1) args.scores.block = NULL;
        args.scores_stride = GROUPS;
        args.candidate_source = pass < 2;
        args.candidate_user = pass == 2;
        di_cpu_index(h->backend, &args);
        const char *name = pass < 2 ? "select.topk" : "select.topk_in_blocks";
        expect_ids(name, lists, integers(name), SELECT_ROWS * TOP);
        const uint8_t *blocks = di_golden_get(golden, "select.blocks").data;
        for (size_t r = 0; r < SELECT_ROWS; r++)
            expect_blocks((const int32_t *)di_cpu_at(args.candidates) + r * BLOCKS, blocks + r * 16, 16);
        for (size_t i = 0; pass == 0 && i < SELECT_ROWS * GROUPS; i++)
            assert_true(((const float *)di_cpu_at(args.scores))[i] == floats("select.score")[i]);
    }
}

/* ---------------------------------------------------------------- router and experts */

static di_experts_args experts_of_layer_3(const di_rows *rows, const float *x) {
    const v41_layer *w = &model->layers[3];
    return (di_experts_args){.rows = rows,
                             .width = config->hidden_size,
                             .inner = config->moe_intermediate_size,
                             .experts = config->n_routed_experts,
                             .top = config->num_experts_per_tok,
                             .shared = 1,
                             .limit = config->swiglu_limit,
                             .scale = config->routed_scaling_factor,
                             .gate_temp = 1,
                             .gate = w->gate,
                             .bias = w->bias,
                             .bias_vl = w->bias_vl,
                             .w1 = (const di_weight *const *)w->w1,
                             .w2 = (const di_weight *const *)w->w2,
                             .w3 = (const di_weight *const *)w->w3,
                             .shared_w1 = w->shared_w1,
                             .shared_w2 = w->shared_w2,
                             .shared_w3 = w->shared_w3,
                             .x = op_put_bf16(&memory, x, (size_t)rows->count * config->hidden_size),
                             .y = op_room(&memory, (size_t)rows->count * config->hidden_size * 2)};
}

static void router(void **state) {
    (void)state;
    enum { ROWS = 8, EXPERTS = 16, CHOSEN = 3, D = 128 };
    one_sequence s;
    make_rows(&s, 0, ROWS);
    const uint8_t *image = di_golden_get(golden, "router.image").data;
    for (size_t t = 0; t < ROWS; t++) s.rows[t].flags = image[t] ? DI_ROW_IMAGE : 0;
    di_experts_args args = experts_of_layer_3(&s.list, floats("router.in"));
    args.gate = op_matrix(&memory, floats("router.gate"), EXPERTS, D);
    args.bias = op_vector(&memory, floats("router.bias"), EXPERTS);
    args.bias_vl = op_vector(&memory, floats("router.bias_vl"), EXPERTS);
    args.ids = op_room(&memory, ROWS * CHOSEN * 4);
    di_cpu_experts(h->backend, &args);
    expect_ids("router.ids", di_cpu_at(args.ids), integers("router.ids"), ROWS * CHOSEN);

    float score[ROWS * EXPERTS];
    memcpy(score, product(args.gate, args.x, ROWS, false), sizeof score);
    K->router_score(score, ROWS * EXPERTS);
    expect_f32("router.score", score, floats("router.score"), ROWS * EXPERTS);
    for (size_t t = 0; t < ROWS; t++) {
        float weights[CHOSEN];
        for (size_t i = 0; i < CHOSEN; i++)
            weights[i] = score[t * EXPERTS + (size_t)integers("router.ids")[t * CHOSEN + i]];
        float sum = K->sum(weights, CHOSEN) + 1e-20f;
        for (size_t i = 0; i < CHOSEN; i++) weights[i] = weights[i] / sum * config->routed_scaling_factor;
        expect_f32("router.weight", weights, floats("router.weight") + t * CHOSEN, CHOSEN);
    }
}

/* Expert 5 alone, with this w2; it is always chosen, with weight `scale`. */
static di_experts_args one_expert(const di_rows *rows, const float *x, const di_weight *const *w2) {
    static const float no_bias[1] = {0};
    const v41_layer *w = &model->layers[3];
    di_experts_args args = experts_of_layer_3(rows, x);
    args.experts = args.top = 1;
    args.gate = op_matrix(&memory, NULL, 1, args.width);
    args.bias = args.bias_vl = op_vector(&memory, no_bias, 1);
    args.w1 = (const di_weight *const *)&w->w1[5];
    args.w2 = w2;
    args.w3 = (const di_weight *const *)&w->w3[5];
    return args;
}

/* The other kind of expert is silenced by a zero w2. */
static void experts(void **state) {
    (void)state;
    enum { ROWS = 5, D = 128, F = 64 };
    const di_weight *silent = op_matrix(&memory, NULL, D, F);
    one_sequence s;
    make_rows(&s, 0, 1);
    for (size_t t = 0; t < ROWS; t++) {
        const di_weight *const *w2 = (const di_weight *const *)&model->layers[3].w2[5];
        di_experts_args args = one_expert(&s.list, floats("expert.in") + t * D, w2);
        args.shared_w2 = silent;
        args.scale = floats("expert.weight")[t];
        di_cpu_experts(h->backend, &args);
        expect_bf16("expert.routed", di_cpu_at(args.y), floats("expert.routed") + t * D, D);
    }
    make_rows(&s, 0, ROWS);
    di_experts_args args = one_expert(&s.list, floats("expert.in"), &silent);
    di_cpu_experts(h->backend, &args);
    expect_bf16("expert.shared", di_cpu_at(args.y), floats("expert.shared"), ROWS * D);
}

/* ---------------------------------------------------------------- compressor */

static void check_entries(const char *name, const void *page, uint64_t offset, size_t n, bool global) {
    di_golden_array want = di_golden_get(golden, name);
    size_t bytes = n / 2 + (global ? n / 16 : n / 32);
    float value[64];
    assert_int_equal(want.shape[1], n);
    for (size_t i = 0; i < want.shape[0]; i++) {
        decode_packed((const uint8_t *)page + offset + i * bytes, n, global, value);
        expect_f32(name, value, (const float *)want.data + i * n, n);
    }
}

static void check_compressor(uint32_t layer) {
    enum { FIRST = 9, ALL = 10, D = 64, WIDTH = 128 };
    const v41_layer *w = &model->layers[layer];
    const di_state_layout *layout = &model->base.layout;
    const di_state_part *global = &layout->parts[w->global_part], *keys = &layout->parts[w->keys_part];
    di_buffer page = op_room(&memory, layout->page_bytes);
    one_sequence s;
    make_rows(&s, 0, FIRST);
    s.view.pages = &page;
    s.view.page_count = 1;
    s.view.rolling = op_room(&memory, layout->rolling_bytes);
    di_compress_args args = {.rows = &s.list,
                             .width = WIDTH,
                             .head_dim = D,
                             .index_dim = config->index_head_dim,
                             .rotary_dim = config->qk_rope_head_dim,
                             .ratio = config->layers[layer].ratio,
                             .eps = config->rms_norm_eps,
                             .wkv = w->comp_wkv,
                             .wgate = w->comp_wgate,
                             .norm = w->comp_norm,
                             .wk = w->index_wk,
                             .k_norm = w->index_k_norm,
                             .frequency = model->frequency[1],
                             .global = {global->offset, global->entry_bytes, global->tokens_per_entry},
                             .keys = {keys->offset, keys->entry_bytes, keys->tokens_per_entry},
                             .open_offset = w->open_part < 0 ? 0 : layout->parts[w->open_part].offset,
                             .x = op_put_bf16(&memory, floats("comp.in"), ALL * WIDTH),
                             .open = op_room(&memory, ALL * 2 * D * 4)};
    char name[32];
    di_cpu_compress(h->backend, &args);
    snprintf(name, sizeof name, "comp.%u.kv_after_9", layer);
    check_entries(name, di_cpu_at(page), global->offset, D, true);
    if (args.ratio == 2) /* commit: the last token's group is still open */
        memcpy(di_cpu_at(di_buffer_at(s.view.rolling, args.open_offset)), (float *)di_cpu_at(args.open) + 8 * 2 * D,
               2 * D * 4);
    di_buffer page_before = page, rolling = s.view.rolling, open = args.open;
    make_rows(&s, FIRST, 1);
    s.view.pages = &page_before;
    s.view.page_count = 1;
    s.view.rolling = rolling;
    args.x = di_buffer_at(args.x, FIRST * WIDTH * 2);
    args.open = di_buffer_at(open, FIRST * 2 * D * 4);
    di_cpu_compress(h->backend, &args);
    snprintf(name, sizeof name, "comp.%u.kv", layer);
    check_entries(name, di_cpu_at(page), global->offset, D, true);
    snprintf(name, sizeof name, "comp.%u.ikey", layer);
    check_entries(name, di_cpu_at(page), keys->offset, config->index_head_dim, false);
    if (args.ratio == 2) expect_f32("comp.2.state", di_cpu_at(open), floats("comp.2.state"), ALL * 2 * D);
}

static void compressors(void **state) {
    (void)state;
    check_compressor(2);
    check_compressor(5);
}

/* ---------------------------------------------------------------- Engram */

/* A tokenizer with as many compressed ids as wanted: bytes, then words of four letters that nothing else folds to. */
static di_tokenizer *tokenizer_with_words(uint32_t words) {
    di_text vocabulary = {0}, file = {0};
    di_error error = {0};
    di_tokenizer *tokenizer = NULL;
    for (uint32_t i = 0; i < words; i++)
        di_text_printf(&vocabulary, ",\"%c%c%c%c\":%u", 'a' + i / 17576 % 26, 'a' + i / 676 % 26, 'a' + i / 26 % 26,
                       'a' + i % 26, 256 + i);
    di_text_putc(&vocabulary, 0);
    small_tokenizer(&file, vocabulary.data, "", "");
    if (di_tokenizer_parse("words.json", file.data, file.length, &tokenizer, &error)) fail_msg("%s", error.message);
    di_text_free(&vocabulary);
    di_text_free(&file);
    return tokenizer;
}

static void open_engram(v41_model *m, const char *folder, const di_tokenizer *tokenizer) {
    di_error error = {0};
    m->arena = di_arena_new(0);
    assert_non_null(m->arena);
    if (v41_engram_open(m, folder, tokenizer, &error)) fail_msg("%s", error.message);
}

static void compare_layer(const v41_engram *e, size_t i, const di_json *want) {
    size_t column = 0, at = 0;
    uint64_t value;
    for (const di_json *order = di_json_get(want, "primes")->first; order; order = order->next)
        for (const di_json *prime = order->first; prime; prime = prime->next) {
            assert_true(di_json_uint64(prime, &value));
            assert_int_equal(e->layers[i].primes[column++], value);
        }
    assert_int_equal(column, e->columns);
    for (const di_json *offset = di_json_get(want, "offsets")->first; offset; offset = offset->next) {
        assert_true(di_json_uint64(offset, &value));
        assert_int_equal(e->layers[i].offsets[at++], value);
    }
    assert_int_equal(at, e->columns);
    at = 0;
    for (const di_json *m = di_json_get(want, "multipliers")->first; m; m = m->next)
        assert_int_equal(e->layers[i].multipliers[at++], strtoull(m->text, NULL, 10));
    assert_int_equal(at, e->ngram);
}

static const di_json *parse(di_arena *arena, const char *path) {
    const di_json *root = NULL;
    di_error error = {0};
    if (di_json_parse_file(arena, path, 1 << 24, 0, &root, &error)) fail_msg("%s", error.message);
    return root;
}

/* The hash of the release, derived with a tokenizer that has its number of compressed ids. */
static void engram_of_the_release(void **state) {
    (void)state;
    v41_model m = {0};
    di_error error = {0};
    assert_int_equal(di_model_config_load(RELEASE, &m.base.config, &error), DI_OK);
    uint32_t compressed = 0, wanted = m.base.config.engram_compressed_vocab_size;
    assert_int_equal(wanted, 99092);
    int32_t map[256];
    di_tokenizer *bytes = tokenizer_with_words(1);
    assert_int_equal(di_tokenizer_compressed_map(bytes, 256, map, &compressed, &error), DI_OK);
    di_tokenizer_free(bytes);
    di_tokenizer *tokenizer = tokenizer_with_words(wanted - compressed);
    m.base.config.vocab_size = di_tokenizer_vocabulary(tokenizer);
    open_engram(&m, NULL, tokenizer);
    di_arena *arena = di_arena_new(0);
    const di_json *root = parse(arena, NANO "/golden/engram_release.json");
    const int64_t *t = integers("engram.release.t");
    for (size_t i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "%u", m.base.config.engram_layers[i]);
        compare_layer(&m.engram, i, di_json_get(root, name));
        snprintf(name, sizeof name, "engram.release.rows.%u", m.base.config.engram_layers[i]);
        for (size_t row = 0; row < 5; row++) {
            int32_t ids[4]; /* oldest first */
            int64_t rows[24];
            for (size_t k = 0; k < 4; k++) ids[k] = (int32_t)t[row * 4 + 3 - k];
            v41_engram_rows(&m.engram, i, ids + 3, 3, 1, rows);
            assert_memory_equal(rows, integers(name) + row * 24, sizeof rows);
        }
    }
    di_arena_free(arena);
    di_arena_free(m.arena);
    di_tokenizer_free(tokenizer);
}

/* What is derived from nano's tokenizer is what its engram.json holds. */
static void engram_is_derivable(void **state) {
    (void)state;
    v41_model derived = {.base.config = *config}, read = derived;
    open_engram(&derived, NULL, h->tokenizer);
    open_engram(&read, NANO, NULL);
    di_arena *arena = di_arena_new(0);
    const di_json *layer = di_json_get(parse(arena, NANO "/engram.json"), "layers")->first;
    for (size_t i = 0; i < 2; i++, layer = layer->next) {
        compare_layer(&derived.engram, i, layer);
        compare_layer(&read.engram, i, layer);
    }
    assert_int_equal(derived.engram.pad, read.engram.pad);
    assert_memory_equal(derived.engram.token_map, read.engram.token_map, config->vocab_size * sizeof(int32_t));
    di_arena_free(arena);
    di_arena_free(derived.arena);
    di_arena_free(read.arena);
}

static void engram_injection(void **state) {
    (void)state;
    enum { ROWS = 24, C = 4, D = 128, COLUMNS = 6 };
    const int32_t *ids = di_golden_get(golden, "engram.ids").data, *wanted = di_golden_get(golden, "engram.cids").data;
    one_sequence s;
    make_rows(&s, 0, ROWS);
    int32_t compressed[ROWS];
    for (size_t t = 0; t < ROWS; t++) {
        bool image = t >= 10 && t < 13;
        s.rows[t].flags = image ? DI_ROW_IMAGE : 0;
        compressed[t] = image ? -1 : model->engram.token_map[ids[t]];
    }
    assert_memory_equal(compressed, wanted, sizeof compressed);
    for (size_t i = 0; i < 2; i++) {
        uint32_t layer = config->engram_layers[i];
        const v41_layer *w = &model->layers[layer];
        int64_t rows[ROWS * COLUMNS];
        char name[32];
        v41_engram_rows(&model->engram, i, compressed, 0, ROWS, rows);
        snprintf(name, sizeof name, "engram.%u.rows", layer);
        assert_memory_equal(rows, integers(name), sizeof rows);
        di_engram_args args = {.rows = &s.list,
                               .table = w->engram_table,
                               .project = w->engram_wkv,
                               .query = w->engram_q,
                               .key = w->engram_k,
                               .table_rows = rows,
                               .columns = COLUMNS,
                               .head_dim = config->engram_head_dim,
                               .copies = C,
                               .width = D,
                               .eps = config->rms_norm_eps,
                               .stream = op_put_bf16(&memory, floats("engram.X"), ROWS * C * D),
                               .gate = op_room(&memory, ROWS * C * 4)};
        di_cpu_engram(h->backend, &args);
        snprintf(name, sizeof name, "engram.%u.gate", layer);
        expect_f32(name, di_cpu_at(args.gate), floats(name), ROWS * C);
        snprintf(name, sizeof name, "engram.%u.out", layer);
        expect_bf16(name, di_cpu_at(args.stream), floats(name), ROWS * C * D);
    }
}

/* ---------------------------------------------------------------- head */

static void head(void **state) {
    (void)state;
    enum { ROWS = 3, C = 4, D = 128 };
    static const uint32_t row_index[ROWS] = {0, 1, 2};
    size_t v = config->vocab_size;
    di_head_args args = {.count = ROWS,
                         .row_index = row_index,
                         .copies = C,
                         .width = D,
                         .vocabulary = (uint32_t)v,
                         .eps = config->rms_norm_eps,
                         .norm = model->norm,
                         .head = model->head,
                         .stream = op_put_bf16(&memory, floats("head.X"), ROWS * C * D),
                         .pre = op_put(&memory, floats("head.pre"), ROWS * C * 4),
                         .logits = op_room(&memory, ROWS * v * 4),
                         .hidden = op_room(&memory, ROWS * D * 2)};
    di_cpu_head(h->backend, &args);
    expect_bf16("head.hidden", di_cpu_at(args.hidden), floats("head.hidden"), ROWS * D);
    expect_f32("head.logits", di_cpu_at(args.logits), floats("head.logits"), ROWS * v);
}

int main(void) {
#define TEST(function) cmocka_unit_test_teardown(function, give_back)
    const struct CMUnitTest tests[] = {
        TEST(norms),
        TEST(rotary_tables),
        TEST(hyper_vector_of_the_specification),
        TEST(hyper_connections),
        TEST(linear_layers),
        TEST(sink_attention),
        TEST(top_ids_of_given_scores),
        TEST(selection_by_the_op),
        TEST(router),
        TEST(experts),
        TEST(compressors),
        TEST(engram_of_the_release),
        TEST(engram_is_derivable),
        TEST(engram_injection),
        TEST(head),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
