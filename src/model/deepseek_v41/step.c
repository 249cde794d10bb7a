/* step.c - device buffers of a step, and commit: making its first rows real. */
#include "model/deepseek_v41/v41.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- buffers */

enum { ALIGNMENT = 64 };

typedef struct step_sizes {
    uint64_t rows[2]; /* by half */
    uint64_t longest, logits;
    bool compact, draft;
} step_sizes;

static step_sizes sizes_of(const di_model_config *c, const di_model_options *o, uint32_t max_rows,
                           uint32_t max_logits) {
    uint32_t keep = !o->compact ? 0 : o->keep ? o->keep : c->sliding_window + 12;
    return (step_sizes){.rows = {max_rows, (uint64_t)max_rows + keep},
                        .longest = (uint64_t)max_rows + keep,
                        .logits = max_logits,
                        .compact = o->compact,
                        .draft = o->draft};
}

/* Where each buffer begins; with `step` NULL only the total is wanted. */
static uint64_t place(const di_model_config *c, const step_sizes *n, v41_step *step) {
    uint64_t end = 0, t = n->longest, copies = c->hc_mult, d = c->hidden_size, heads = c->num_attention_heads;
#define PLACE(buffer, bytes)                                                                                           \
    do {                                                                                                               \
        if (step) step->buffer = (di_buffer){step->block, end};                                                        \
        end += ((uint64_t)(bytes) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;                                            \
    } while (0)
    PLACE(stream[0], n->rows[0] * copies * d * 2);
    PLACE(pre[0], n->rows[0] * copies * 4);
    if (n->compact) {
        PLACE(stream[1], t * copies * d * 2);
        PLACE(pre[1], t * copies * 4);
    } else if (step) {
        step->stream[1] = step->stream[0];
        step->pre[1] = step->pre[0];
    }
    PLACE(b.pre_middle, t * copies * 4);
    PLACE(b.post, t * copies * 4);
    PLACE(b.comb, t * copies * copies * 4);
    PLACE(b.x, t * d * 2);
    PLACE(b.y, t * d * 2);
    PLACE(b.qr, t * c->q_lora_rank * 2);
    PLACE(b.q, t * heads * c->head_dim * 2);
    PLACE(b.rotary, 2 * t * c->qk_rope_head_dim * 4);
    PLACE(lists, t * c->index_topk * 4);
    PLACE(candidates, t * c->candidate_topk_blocks * 4);
    PLACE(taps, t * c->tap_count * d * 2);
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) {
        PLACE(window[l], n->rows[l >= c->cut] * (c->head_dim + c->head_dim / 32));
        if (c->layers[l].mode == DI_ATTENTION_FULL && c->layers[l].ratio > 1)
            PLACE(open[l], n->rows[0] * 2 * c->head_dim * 4);
    }
    for (uint32_t stage = 0; n->draft && stage < c->draft_stages; stage++)
        PLACE(draft_keys[stage], n->rows[1] * (c->head_dim + c->head_dim / 32));
    PLACE(base.logits, n->logits * c->vocab_size * 4);
#undef PLACE
    return end;
}

uint64_t v41_step_bytes(const di_model_config *config, const di_model_options *options, uint32_t max_rows,
                        uint32_t max_logits) {
    step_sizes n = sizes_of(config, options, max_rows, max_logits);
    return place(config, &n, NULL);
}

di_status v41_step_new(di_model *model, di_step **step, uint32_t max_rows, uint32_t max_logits, di_error *error) {
    v41_model *m = (v41_model *)model;
    const di_model_config *c = &model->config;
    *step = NULL;
    v41_step *s = calloc(1, sizeof *s);
    if (!s) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make a step of %u rows", max_rows);
    s->base.model = model;
    s->window = calloc(c->num_hidden_layers, sizeof *s->window);
    s->open = calloc(c->num_hidden_layers, sizeof *s->open);
    s->draft_keys = calloc(c->draft_stages ? c->draft_stages : 1, sizeof *s->draft_keys);
    s->compressed = calloc((size_t)max_rows + DI_MAX_NGRAM, sizeof *s->compressed);
    s->table_rows = calloc((size_t)max_rows * (m->engram.columns ? m->engram.columns : 1), sizeof *s->table_rows);
    step_sizes n = sizes_of(c, &model->options, max_rows, max_logits);
    s->bytes = place(c, &n, NULL);
    di_status status = DI_OK;
    if (!s->window || !s->open || !s->draft_keys || !s->compressed || !s->table_rows)
        status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make a step of %u rows", max_rows);
    if (!status) status = model->backend->ops->allocate(model->backend, s->bytes, &s->block, error);
    if (status) {
        v41_step_free(&s->base);
        return status;
    }
    place(c, &n, s);
    s->base.memory = (di_buffer){s->block, 0};
    s->base.memory_bytes = s->bytes;
    *step = &s->base;
    return DI_OK;
}

void v41_step_free(di_step *step) {
    v41_step *s = (v41_step *)step;
    if (!s) return;
    const di_ops *ops = step->model->backend->ops;
    ops->release(step->model->backend, s->block);
    ops->release(step->model->backend, s->trace_block);
    free(s->window);
    free(s->open);
    free(s->draft_keys);
    free(s->compressed);
    free(s->table_rows);
    free(s);
}

/* ---------------------------------------------------------------- commit */

/* Copies rows for positions [from, to) of a step buffer into a ring, at most the last `slots` of them. */
static void to_ring(di_backend *backend, di_buffer ring, uint32_t slots, di_buffer rows, int32_t first_position,
                    uint64_t bytes, uint64_t row_stride, uint64_t slot_stride, int32_t from, int32_t to) {
    if (to - from > (int32_t)slots) from = to - (int32_t)slots;
    while (from < to) { /* runs end where the ring wraps */
        uint32_t slot = (uint32_t)from % slots, run = slots - slot;
        if ((int32_t)run > to - from) run = (uint32_t)(to - from);
        di_copy_args copy = {.from = di_buffer_at(rows, (uint64_t)(from - first_position) * row_stride),
                             .to = di_buffer_at(ring, slot * slot_stride),
                             .bytes = bytes,
                             .from_stride = row_stride,
                             .to_stride = slot_stride,
                             .count = run};
        backend->ops->copy(backend, &copy);
        from += (int32_t)run;
    }
}

/* Draft keys of positions [from, to): the rows' own, or none (all bytes zero) when they were not wanted. */
static void commit_draft_keys(v41_step *s, uint32_t index, int32_t end) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    if (!m->stages) return;
    const di_sequence_view *view = &s->base.sequences[index];
    di_backend *backend = m->base.backend;
    uint64_t bytes = c->head_dim + c->head_dim / 32;
    int32_t slots = (int32_t)c->sliding_window, first = view->first_position[1];
    int32_t to = first + (int32_t)view->row_count[1] < end ? first + (int32_t)view->row_count[1] : end;
    for (uint32_t stage = 0; stage < c->draft_stages; stage++) {
        di_buffer ring = di_buffer_at(view->rolling, v41_part_offset(m, m->stages[stage].window_part));
        if (s->base.entries[index].taps) {
            di_buffer rows = di_buffer_at(s->draft_keys[stage], view->first_row[1] * bytes);
            to_ring(backend, ring, (uint32_t)slots, rows, first, bytes, bytes, bytes, first, to);
            continue;
        }
        for (int32_t p = to - first > slots ? to - slots : first; p < to; p++)
            backend->ops->fill(backend, di_buffer_at(ring, (uint64_t)(p % slots) * bytes), 0, bytes);
    }
}

static void commit_windows(v41_step *s, const di_sequence_view *view, int32_t end) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    uint64_t bytes = c->head_dim + c->head_dim / 32;
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) {
        int half = l >= c->cut;
        int32_t first = view->first_position[half], to = first + (int32_t)view->row_count[half];
        di_buffer rows = di_buffer_at(s->window[l], view->first_row[half] * bytes);
        di_buffer ring = di_buffer_at(view->rolling, v41_part_offset(m, m->layers[l].window_part));
        to_ring(m->base.backend, ring, c->sliding_window, rows, first, bytes, bytes, bytes, first, to < end ? to : end);
    }
}

/* The fp32 rows of the tokens whose group is still open. */
static void commit_open_rows(v41_step *s, const di_sequence_view *view, int32_t end) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    uint64_t bytes = 2 * c->head_dim * sizeof(float);
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) {
        if (m->layers[l].open_part < 0) continue;
        int32_t ratio = (int32_t)c->layers[l].ratio, from = end / ratio * ratio;
        if (from < view->committed) from = view->committed;
        for (int32_t p = from; p < end; p++) {
            di_copy_args copy = {
                .from = di_buffer_at(s->open[l], (view->first_row[0] + (uint64_t)(p - view->committed)) * bytes),
                .to = di_buffer_at(view->rolling,
                                   v41_part_offset(m, m->layers[l].open_part) + (uint64_t)(p % ratio) * bytes),
                .bytes = bytes,
                .count = 1};
            m->base.backend->ops->copy(m->base.backend, &copy);
        }
    }
}

static void commit_ids(v41_step *s, const di_sequence_view *view, int32_t end) {
    const v41_model *m = (const v41_model *)s->base.model;
    if (m->ngram_part < 0) return;
    int32_t slots = (int32_t)m->base.config.engram_max_ngram - 1, from = end - slots;
    if (from < view->committed) from = view->committed;
    for (int32_t p = from; p < end; p++) {
        const int32_t *id = &s->compressed[view->first_row[0] + (uint32_t)(p - view->committed)];
        di_buffer to =
            di_buffer_at(view->rolling, v41_part_offset(m, m->ngram_part) + (uint64_t)(p % slots) * sizeof *id);
        m->base.backend->ops->write(m->base.backend, to, id, sizeof *id);
    }
}

static void commit_kept(v41_step *s, const di_sequence_view *view, int32_t end) {
    const v41_model *m = (const v41_model *)s->base.model;
    if (m->kept_part < 0) return;
    const di_model_config *c = &m->base.config;
    uint64_t stream = (uint64_t)c->hc_mult * c->hidden_size * 2, pre = c->hc_mult * sizeof(float);
    di_buffer ring = di_buffer_at(view->rolling, v41_part_offset(m, m->kept_part));
    int32_t from = view->committed;
    to_ring(m->base.backend, ring, m->base.keep, di_buffer_at(s->stream[0], view->first_row[0] * stream), from, stream,
            stream, stream + pre, from, end);
    to_ring(m->base.backend, di_buffer_at(ring, stream), m->base.keep,
            di_buffer_at(s->pre[0], view->first_row[0] * pre), from, pre, pre, stream + pre, from, end);
}

void v41_commit(di_step *step, uint32_t index, uint32_t count) {
    v41_step *s = (v41_step *)step;
    const di_sequence_view *view = &step->sequences[index];
    int32_t end = view->committed + (int32_t)count;
    commit_windows(s, view, end);
    commit_draft_keys(s, index, end);
    commit_open_rows(s, view, end);
    commit_ids(s, view, end);
    commit_kept(s, view, end);
}
