/* forward.c - the layer graph of DeepSeek-V4.1, over rows [5-9].
 *
 * Written once for every device: prefill chunk, decode and verification differ only in their row lists. Layers [0, cut)
 * run on the encoder list, layers [cut, L) on the decoder list; without compact prefill both are the same list.
 */
#include "model/deepseek_v41/v41.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- tracing (tests) */

static void trace(v41_step *s, uint32_t layer, const char *what, di_buffer data, di_dtype dtype, uint32_t rows,
                  uint64_t width) {
    di_model *model = s->base.model;
    if (!model->trace) return;
    char name[48];
    snprintf(name, sizeof name, "%u.%s", layer, what);
    model->trace(model->trace_arg, name, data, dtype, rows, (uint32_t)width);
}

/* Room for results that only tests look at; a NULL block when there is no trace. */
static di_buffer traced(v41_step *s, uint64_t bytes) {
    di_model *model = s->base.model;
    di_buffer none = {NULL, 0};
    if (!model->trace) return none;
    if (bytes > s->trace_bytes) {
        model->backend->ops->release(model->backend, s->trace_block);
        s->trace_bytes = 0;
        if (model->backend->ops->allocate(model->backend, bytes, &s->trace_block, NULL)) return none;
        s->trace_bytes = bytes;
    }
    return (di_buffer){s->trace_block, 0};
}

/* ---------------------------------------------------------------- Engram */

/* Compressed ids of all encoder rows, and their table rows in the layer's tables. */
static void compress_ids(v41_step *s) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_rows *rows = &s->base.half[0];
    for (uint32_t t = 0; t < rows->count; t++)
        s->compressed[t] = rows->rows[t].flags & DI_ROW_IMAGE ? -1 : m->engram.token_map[rows->rows[t].token];
}

static void hash_rows(v41_step *s, size_t engram) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_rows *rows = &s->base.half[0];
    int32_t slots = (int32_t)m->engram.ngram - 1;
    int32_t window[2 * DI_MAX_NGRAM]; /* the sequence's last ids before the step, then its first new ones */
    for (uint32_t i = 0; i < rows->sequence_count; i++) {
        const di_sequence_view *view = &rows->sequences[i];
        uint32_t count = view->row_count[0], first = view->first_row[0];
        int32_t back = view->committed < slots ? view->committed : slots;
        for (int32_t j = 0; j < back; j++) {
            int32_t position = view->committed - back + j;
            di_buffer from =
                di_buffer_at(view->rolling, v41_part_offset(m, m->ngram_part) + (uint64_t)(position % slots) * 4);
            m->base.backend->ops->read(m->base.backend, &window[j], from, 4);
        }
        /* Rows near the start look back beyond the step: hash them from the joined window. */
        uint32_t near = count < (uint32_t)slots ? count : (uint32_t)slots;
        memcpy(window + back, s->compressed + first, near * sizeof *window);
        int64_t *out = s->table_rows + (size_t)first * m->engram.columns;
        v41_engram_rows(&m->engram, engram, window + back, (size_t)back, near, out);
        if (count > near)
            v41_engram_rows(&m->engram, engram, s->compressed + first + near, near, count - near,
                            out + (size_t)near * m->engram.columns);
    }
}

static void inject(v41_step *s, uint32_t l) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    const v41_layer *w = &m->layers[l];
    uint32_t rows = s->base.half[0].count;
    hash_rows(s, (size_t)c->layers[l].engram);
    di_engram_args args = {.rows = &s->base.half[0],
                           .table = w->engram_table,
                           .project = w->engram_wkv,
                           .query = w->engram_q,
                           .key = w->engram_k,
                           .table_rows = s->table_rows,
                           .columns = m->engram.columns,
                           .head_dim = c->engram_head_dim,
                           .copies = c->hc_mult,
                           .width = c->hidden_size,
                           .eps = c->rms_norm_eps,
                           .stream = s->stream[0],
                           .gate = traced(s, (uint64_t)rows * c->hc_mult * 4)};
    m->base.backend->ops->engram(m->base.backend, &args);
    if (args.gate.block) trace(s, l, "engram_gate", args.gate, DI_DTYPE_F32, rows, c->hc_mult);
}

/* ---------------------------------------------------------------- one layer */

typedef struct site { /* where a layer works */
    v41_site block;
    v41_step *s;
    const di_model_config *c;
    uint32_t l, half;
} site;

static site site_of(v41_step *s, uint32_t l, uint32_t half) {
    const v41_model *m = (const v41_model *)s->base.model;
    return (site){.block = {.m = m,
                            .w = &m->layers[l],
                            .b = &s->b,
                            .ops = m->base.backend->ops,
                            .backend = m->base.backend,
                            .rows = &s->base.half[half],
                            .stream = s->stream[half]},
                  .s = s,
                  .c = &m->base.config,
                  .l = l,
                  .half = half};
}

static di_paged_part paged(const site *at, int part) {
    const di_state_part *p = &at->block.m->base.layout.parts[part];
    return (di_paged_part){.offset = p->offset, .entry_bytes = p->entry_bytes, .ratio = p->tokens_per_entry};
}

static void publish(const site *at) {
    const di_model_config *c = at->c;
    const v41_layer *w = at->block.w;
    di_compress_args args = {.rows = at->block.rows,
                             .width = c->hidden_size,
                             .head_dim = c->head_dim,
                             .index_dim = c->index_head_dim,
                             .rotary_dim = c->qk_rope_head_dim,
                             .ratio = c->layers[at->l].ratio,
                             .eps = c->rms_norm_eps,
                             .wkv = w->comp_wkv,
                             .wgate = w->comp_wgate,
                             .norm = w->comp_norm,
                             .wk = w->index_wk,
                             .k_norm = w->index_k_norm,
                             .frequency = at->block.m->frequency[1],
                             .global = paged(at, w->global_part),
                             .keys = paged(at, w->keys_part),
                             .open_offset = w->open_part < 0 ? 0 : v41_part_offset(at->block.m, w->open_part),
                             .x = at->s->b.x,
                             .open = at->s->open[at->l]};
    at->block.ops->compress(at->block.backend, &args);
}

static void make_lists(const site *at) {
    const di_model_config *c = at->c;
    v41_step *s = at->s;
    int32_t source = c->layers[at->l].kv_source;
    uint32_t ratio = c->layers[at->l].ratio, groups = 0;
    for (uint32_t t = 0; t < at->block.rows->count; t++) {
        uint32_t n = ((uint32_t)at->block.rows->rows[t].position + 1) / ratio;
        if (n > groups) groups = n;
    }
    di_index_args args = {.rows = at->block.rows,
                          .width = c->hidden_size,
                          .q_rank = c->q_lora_rank,
                          .heads = c->index_n_heads,
                          .dim = c->index_head_dim,
                          .rotary_dim = c->qk_rope_head_dim,
                          .ratio = ratio,
                          .topk = c->index_topk,
                          .wq_b = at->block.w->index_wq_b,
                          .weights_proj = at->block.w->index_weights,
                          .keys = paged(at, at->block.m->layers[source].keys_part),
                          .candidate_source = (int32_t)at->l == c->candidate_source_layer,
                          .candidate_user =
                              c->candidate_source_layer >= 0 && (int32_t)at->l > c->candidate_source_layer,
                          .candidate_blocks = c->candidate_topk_blocks,
                          .candidate_block_size = c->candidate_block_size,
                          .rotary = s->b.rotary,
                          .x = s->b.x,
                          .qr = s->b.qr,
                          .lists = s->lists,
                          .candidates = s->candidates,
                          .scores = traced(s, (uint64_t)at->block.rows->count * (groups ? groups : 1) * 4),
                          .scores_stride = groups};
    at->block.ops->index(at->block.backend, &args);
    uint32_t rows = at->block.rows->count;
    if (args.scores.block) trace(s, at->l, "index_score", args.scores, DI_DTYPE_F32, rows, groups);
    if (args.candidate_source) trace(s, at->l, "candidates", s->candidates, DI_DTYPE_I32, rows, args.candidate_blocks);
    trace(s, at->l, "topk", s->lists, DI_DTYPE_I32, rows, c->index_topk);
}

static void attention(const site *at, bool published) {
    const di_model_config *c = at->c;
    const v41_model *m = at->block.m;
    v41_step *s = at->s;
    const di_layer_config *layer = &c->layers[at->l];
    uint32_t table = layer->mode != DI_ATTENTION_SWA;
    v41_project(&at->block, table, s->window[at->l]);
    if (layer->mode == DI_ATTENTION_FULL && !published) publish(at);
    if (layer->mode == DI_ATTENTION_FULL || layer->mode == DI_ATTENTION_REINDEX) make_lists(at);
    di_attend_args attend =
        v41_attend_args(&at->block, table, v41_part_offset(m, at->block.w->window_part), s->window[at->l]);
    attend.topk = layer->ratio ? c->index_topk : 0;
    attend.lists = s->lists;
    if (layer->ratio) attend.global = paged(at, m->layers[layer->kv_source].global_part);
    at->block.ops->attend(at->block.backend, &attend);
    trace(s, at->l, "window", s->window[at->l], DI_DTYPE_U8, at->block.rows->count, c->head_dim + c->head_dim / 32);
}

static void experts(const site *at) {
    const di_model_config *c = at->c;
    uint32_t rows = at->block.rows->count, top = c->num_experts_per_tok;
    di_buffer ids = traced(at->s, (uint64_t)rows * top * 4);
    v41_experts(&at->block, c->n_routed_experts, top, ids);
    if (ids.block) trace(at->s, at->l, "experts", ids, DI_DTYPE_I32, rows, top);
}

static void run_layer(v41_step *s, uint32_t l, uint32_t half, bool published) {
    site at = site_of(s, l, half);
    const di_model_config *c = at.c;
    uint32_t rows = at.block.rows->count, copies = c->hc_mult, d = c->hidden_size;
    if (c->layers[l].engram >= 0) inject(s, l);
    if (c->layers[l].tap >= 0) {
        uint64_t column = (uint64_t)c->layers[l].tap * d * 2;
        di_tap_args tap = {rows, copies, d, c->tap_count * d, s->stream[half], di_buffer_at(s->taps, column)};
        at.block.ops->tap(at.block.backend, &tap);
        trace(s, l, "tap", s->taps, DI_DTYPE_BF16, rows, (uint64_t)c->tap_count * d);
    }
    v41_enter(&at.block, &at.block.w->hc_attn, at.block.w->attn_norm, s->pre[half], s->b.pre_middle);
    trace(s, l, "attn_in", s->b.x, DI_DTYPE_BF16, rows, d);
    attention(&at, published);
    trace(s, l, "attn_out", s->b.y, DI_DTYPE_BF16, rows, d);
    v41_leave(&at.block);
    v41_enter(&at.block, &at.block.w->hc_ffn, at.block.w->ffn_norm, s->b.pre_middle, s->pre[half]);
    trace(s, l, "ffn_in", s->b.x, DI_DTYPE_BF16, rows, d);
    experts(&at);
    trace(s, l, "ffn_out", s->b.y, DI_DTYPE_BF16, rows, d);
    v41_leave(&at.block);
    trace(s, l, "stream", s->stream[half], DI_DTYPE_BF16, rows, (uint64_t)copies * d);
    trace(s, l, "pre", s->pre[half], DI_DTYPE_F32, rows, copies);
}

/* ---------------------------------------------------------------- the whole */

static void make_rotary(v41_step *s, uint32_t half) {
    const v41_model *m = (const v41_model *)s->base.model;
    di_rotary_args args = {.rows = &s->base.half[half],
                           .frequency = {m->frequency[0], m->frequency[1]},
                           .half_width = m->base.config.qk_rope_head_dim / 2,
                           .table = s->b.rotary};
    m->base.backend->ops->rotary(m->base.backend, &args);
}

/* Global entries and index keys of the first decoder layer come from all rows; they need no more than its normed input.
 */
static void publish_at_cut(v41_step *s) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    site at = site_of(s, c->cut, 0);
    di_collapse_args collapse = {.count = at.block.rows->count,
                                 .copies = c->hc_mult,
                                 .width = c->hidden_size,
                                 .norm_eps = c->rms_norm_eps,
                                 .norm = at.block.w->attn_norm,
                                 .stream = s->stream[0],
                                 .pre = s->pre[0],
                                 .x = s->b.x};
    at.block.ops->collapse(at.block.backend, &collapse);
    publish(&at);
}

/* Decoder rows start from the stream at the cut: of this step's rows, or of rows kept in the rolling block. */
static void gather_decoder_rows(v41_step *s) {
    const v41_model *m = (const v41_model *)s->base.model;
    const di_model_config *c = &m->base.config;
    uint64_t stream = (uint64_t)c->hc_mult * c->hidden_size * 2, pre = c->hc_mult * sizeof(float);
    for (uint32_t t = 0; t < s->base.half[1].count; t++) {
        const di_row *row = &s->base.half[1].rows[t];
        const di_sequence_view *view = &s->base.sequences[row->sequence];
        di_buffer from_stream, from_pre;
        if (row->position >= view->committed) {
            uint64_t from = view->first_row[0] + (uint64_t)(row->position - view->committed);
            from_stream = di_buffer_at(s->stream[0], from * stream);
            from_pre = di_buffer_at(s->pre[0], from * pre);
        } else {
            uint64_t slot = (uint64_t)row->position % m->base.keep;
            from_stream = di_buffer_at(view->rolling, v41_part_offset(m, m->kept_part) + slot * (stream + pre));
            from_pre = di_buffer_at(from_stream, stream);
        }
        di_copy_args one = {
            .from = from_stream, .to = di_buffer_at(s->stream[1], t * stream), .bytes = stream, .count = 1};
        di_copy_args two = {.from = from_pre, .to = di_buffer_at(s->pre[1], t * pre), .bytes = pre, .count = 1};
        m->base.backend->ops->copy(m->base.backend, &one);
        m->base.backend->ops->copy(m->base.backend, &two);
    }
}

void v41_forward(di_step *step) {
    v41_step *s = (v41_step *)step;
    const v41_model *m = (const v41_model *)step->model;
    const di_model_config *c = &m->base.config;
    const di_ops *ops = m->base.backend->ops;
    bool compact = m->base.options.compact;
    di_embed_args embed = {.rows = &step->half[0],
                           .table = m->embed,
                           .copies = c->hc_mult,
                           .width = c->hidden_size,
                           .stream = s->stream[0],
                           .pre = s->pre[0]};
    ops->embed(m->base.backend, &embed);
    if (c->engram_layer_count) compress_ids(s);
    make_rotary(s, 0);
    for (uint32_t l = 0; l < c->cut; l++) run_layer(s, l, 0, false);
    if (compact && c->cut < c->num_hidden_layers) {
        publish_at_cut(s);
        gather_decoder_rows(s);
        make_rotary(s, 1);
    }
    if (step->half[1].count)
        for (uint32_t l = c->cut; l < c->num_hidden_layers; l++) run_layer(s, l, 1, compact);
    v41_draft_keys(s);
    if (!step->logits_count) return;
    di_head_args head = {.count = step->logits_count,
                         .row_index = step->logits_rows,
                         .copies = c->hc_mult,
                         .width = c->hidden_size,
                         .vocabulary = c->vocab_size,
                         .eps = c->rms_norm_eps,
                         .norm = m->norm,
                         .head = m->head,
                         .stream = s->stream[1],
                         .pre = s->pre[1],
                         .logits = step->logits};
    ops->head(m->base.backend, &head);
}
