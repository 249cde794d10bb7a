/* draft.c - the DSpark draft head [10]: what it remembers of committed rows, and one block of drafts.
 *
 * A block runs the stages over `length` rows: row 0 carries the anchor, the others the noise token; row j stands at the
 * anchor's position + j. All rows see the same keys: the ring and the whole block. Rows of a block are never stored.
 */
#include "model/deepseek_v41/v41.h"

#include <stdlib.h>

typedef struct v41_draft {
    di_draft base; /* first */
    di_block *block;
    uint64_t bytes;
    v41_buffers b;
    di_buffer stream; /* bf16 [T][C][D] */
    di_buffer pre;    /* f32 [T][C] */
    di_buffer window; /* u8 [T][entry]: keys of the block itself */
    di_buffer hidden; /* bf16 [T][D] */
    di_buffer logits; /* f32 [T][V] */
    di_row *rows[2];  /* [T]: as they stand; all at the block's last position, for attention */
    di_sequence_view *sequences;
    di_draft_anchor *anchors;
    uint32_t *row_index; /* [T] 0, 1, 2 ... */
} v41_draft;

/* ---------------------------------------------------------------- keys of committed rows */

void v41_draft_keys(v41_step *s) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    const di_rows *rows = &s->base.half[1];
    bool wanted = false;
    for (uint32_t t = 0; t < rows->count && !wanted; t++) wanted = rows->rows[t].flags & DI_ROW_TAPS;
    if (!m->stages || !wanted) return;
    di_draft_keys_args args = {.rows = rows,
                               .width = c->hidden_size,
                               .taps_width = c->tap_count * c->hidden_size,
                               .head_dim = c->head_dim,
                               .rotary_dim = c->qk_rope_head_dim,
                               .stages = c->draft_stages,
                               .eps = c->rms_norm_eps,
                               .project = m->main_proj,
                               .main_norm = m->main_norm,
                               .wkv = (const di_weight *const *)m->draft_wkv,
                               .kv_norm = (const di_weight *const *)m->draft_kv_norm,
                               .rotary = s->b.rotary,
                               .taps = s->taps,
                               .entries = s->draft_keys};
    m->base.backend->ops->draft_keys(m->base.backend, &args);
}

/* ---------------------------------------------------------------- buffers */

enum { ALIGNMENT = 64 };

/* Where each buffer begins; with `draft` NULL only the total is wanted. */
static uint64_t place(const di_model_config *c, uint64_t rows, v41_draft *draft) {
    uint64_t end = 0, copies = c->hc_mult, d = c->hidden_size, head = c->head_dim;
#define PLACE(buffer, size)                                                                                            \
    do {                                                                                                               \
        if (draft) draft->buffer = (di_buffer){draft->block, end};                                                     \
        end += (rows * (size) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;                                                \
    } while (0)
    PLACE(stream, copies * d * 2);
    PLACE(pre, copies * 4);
    PLACE(b.pre_middle, copies * 4);
    PLACE(b.post, copies * 4);
    PLACE(b.comb, copies * copies * 4);
    PLACE(b.x, d * 2);
    PLACE(b.y, d * 2);
    PLACE(b.qr, c->q_lora_rank * 2);
    PLACE(b.q, c->num_attention_heads * head * 2);
    PLACE(b.rotary, 2 * c->qk_rope_head_dim * 4);
    PLACE(window, head + head / 32);
    PLACE(hidden, d * 2);
    PLACE(logits, c->vocab_size * 4);
#undef PLACE
    return end;
}

uint64_t v41_draft_bytes(const di_model_config *c, uint32_t max_blocks) {
    return place(c, (uint64_t)max_blocks * c->draft_block_size, NULL);
}

void v41_draft_free(di_draft *base) {
    v41_draft *draft = (v41_draft *)base;
    if (!draft) return;
    const di_ops *ops = base->model->backend->ops;
    ops->release(base->model->backend, draft->block);
    free(draft->rows[0]);
    free(draft->rows[1]);
    free(draft->sequences);
    free(draft->anchors);
    free(draft->row_index);
    free(draft);
}

di_status v41_draft_new(di_model *model, uint32_t max_blocks, di_draft **out, di_error *error) {
    const di_model_config *c = &model->config;
    size_t rows = (size_t)max_blocks * c->draft_block_size;
    v41_draft *draft = calloc(1, sizeof *draft);
    if (!draft) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot draft %u blocks", max_blocks);
    draft->base.model = model;
    for (int list = 0; list < 2; list++) draft->rows[list] = calloc(rows, sizeof(di_row));
    draft->sequences = calloc(max_blocks, sizeof *draft->sequences);
    draft->anchors = calloc(max_blocks, sizeof *draft->anchors);
    draft->row_index = calloc(rows, sizeof *draft->row_index);
    draft->bytes = place(c, rows, NULL);
    di_status status = DI_OK;
    if (!draft->rows[0] || !draft->rows[1] || !draft->sequences || !draft->anchors || !draft->row_index)
        status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot draft %u blocks", max_blocks);
    if (!status) status = model->backend->ops->allocate(model->backend, draft->bytes, &draft->block, error);
    if (status) {
        v41_draft_free(&draft->base);
        return status;
    }
    place(c, rows, draft);
    draft->base.memory = (di_buffer){draft->block, 0};
    draft->base.memory_bytes = draft->bytes;
    for (size_t i = 0; i < rows; i++) draft->row_index[i] = (uint32_t)i;
    *out = &draft->base;
    return DI_OK;
}

/* ---------------------------------------------------------------- one block for every anchor */

static void add_block(v41_draft *draft, uint32_t index, const di_draft_entry *entry, uint32_t length) {
    const di_state_view *state = entry->state;
    uint32_t first = index * length;
    int32_t noise = draft->base.model->config.draft_noise_token_id;
    for (uint32_t j = 0; j < length; j++) {
        di_row row = {
            .sequence = index, .position = state->committed + (int32_t)j, .token = j == 0 ? entry->anchor : noise};
        draft->rows[0][first + j] = row;
        row.position = state->committed + (int32_t)length - 1;
        draft->rows[1][first + j] = row;
    }
    draft->sequences[index] = (di_sequence_view){.rolling = state->rolling,
                                                 .committed = state->committed,
                                                 .first_row = {first, first},
                                                 .row_count = {length, length},
                                                 .first_position = {state->committed, state->committed},
                                                 .window_low = {0, state->decoder_low}};
    draft->anchors[index] = (di_draft_anchor){
        .token = entry->anchor, .position = state->committed, .temperature = entry->temperature, .key = entry->key};
}

static void run_stage(v41_draft *draft, uint32_t stage, uint32_t length, const di_rows *rows,
                      const di_rows *at_the_end) {
    const v41_model *m = (const v41_model *)draft->base.model;
    const di_model_config *c = &m->base.config;
    const v41_layer *w = &m->stages[stage];
    v41_site at = {.m = m,
                   .w = w,
                   .b = &draft->b,
                   .ops = m->base.backend->ops,
                   .backend = m->base.backend,
                   .rows = rows,
                   .stream = draft->stream};
    v41_enter(&at, &w->hc_attn, w->attn_norm, draft->pre, draft->b.pre_middle);
    v41_project(&at, 0, draft->window);
    di_attend_args attend = v41_attend_args(&at, 0, v41_part_offset(m, w->window_part), draft->window);
    attend.rows = at_the_end;
    attend.ring_slots = c->sliding_window;
    attend.window = c->sliding_window + length;
    attend.optional = true;
    at.ops->attend(at.backend, &attend);
    v41_leave(&at);
    v41_enter(&at, &w->hc_ffn, w->ffn_norm, draft->b.pre_middle, draft->pre);
    v41_experts(&at, c->draft_n_routed_experts, c->draft_num_experts_per_tok, (di_buffer){NULL, 0});
    v41_leave(&at);
}

static void trace(const v41_draft *draft, const char *name, di_buffer data, di_dtype dtype, uint32_t rows,
                  uint32_t width) {
    const di_model *model = draft->base.model;
    if (model->trace) model->trace(model->trace_arg, name, data, dtype, rows, width);
}

static void run_heads(v41_draft *draft, uint32_t count, uint32_t length, int32_t *tokens, float *confidences) {
    const v41_model *m = (const v41_model *)draft->base.model;
    const di_model_config *c = &m->base.config;
    const di_ops *ops = m->base.backend->ops;
    di_head_args head = {.count = count * length,
                         .row_index = draft->row_index,
                         .copies = c->hc_mult,
                         .width = c->hidden_size,
                         .vocabulary = c->vocab_size,
                         .eps = c->rms_norm_eps,
                         .norm = m->draft_norm,
                         .head = m->head,
                         .stream = draft->stream,
                         .pre = draft->pre,
                         .logits = draft->logits,
                         .hidden = draft->hidden};
    ops->head(m->base.backend, &head);
    trace(draft, "draft.hidden", draft->hidden, DI_DTYPE_BF16, head.count, c->hidden_size);
    trace(draft, "draft.base", draft->logits, DI_DTYPE_F32, head.count, c->vocab_size);
    di_markov_args markov = {.blocks = count,
                             .length = length,
                             .width = c->hidden_size,
                             .rank = c->draft_markov_rank,
                             .vocabulary = c->vocab_size,
                             .anchors = draft->anchors,
                             .embed = m->markov_embed,
                             .head = m->markov_head,
                             .confidence = m->confidence,
                             .hidden = draft->hidden,
                             .logits = draft->logits,
                             .tokens = tokens,
                             .confidences = confidences};
    ops->markov(m->base.backend, &markov);
    trace(draft, "draft.logits", draft->logits, DI_DTYPE_F32, head.count, c->vocab_size);
}

void v41_draft_run(di_draft *base, const di_draft_entry *entries, uint32_t count, uint32_t length, int32_t *tokens,
                   float *confidences) {
    v41_draft *draft = (v41_draft *)base;
    const v41_model *m = (const v41_model *)base->model;
    const di_model_config *c = &m->base.config;
    const di_ops *ops = m->base.backend->ops;
    for (uint32_t i = 0; i < count; i++) add_block(draft, i, &entries[i], length);
    di_rows lists[2];
    for (uint32_t list = 0; list < 2; list++)
        lists[list] = (di_rows){.rows = draft->rows[list],
                                .count = count * length,
                                .sequences = draft->sequences,
                                .sequence_count = count,
                                .half = DI_HALF_DECODER,
                                .page_tokens = m->base.layout.page_tokens};
    di_embed_args embed = {.rows = &lists[0],
                           .table = m->embed,
                           .copies = c->hc_mult,
                           .width = c->hidden_size,
                           .stream = draft->stream,
                           .pre = draft->pre};
    ops->embed(m->base.backend, &embed);
    di_rotary_args rotary = {.rows = &lists[0],
                             .frequency = {m->frequency[0], m->frequency[1]},
                             .half_width = c->qk_rope_head_dim / 2,
                             .table = draft->b.rotary};
    ops->rotary(m->base.backend, &rotary);
    for (uint32_t s = 0; s < c->draft_stages; s++) run_stage(draft, s, length, &lists[0], &lists[1]);
    run_heads(draft, count, length, tokens, confidences);
}
