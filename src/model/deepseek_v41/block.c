/* block.c - the parts of a block that layers and draft stages share: a sublayer's entry and exit, projections, experts.
 */
#include "model/deepseek_v41/v41.h"

void v41_enter(const v41_site *at, const v41_hyper *hyper, const di_weight *norm, di_buffer pre_in, di_buffer pre_out) {
    const di_model_config *c = &at->m->base.config;
    di_hyper_enter_args args = {.count = at->rows->count,
                                .copies = c->hc_mult,
                                .width = c->hidden_size,
                                .iterations = c->hc_sinkhorn_iters,
                                .norm_eps = c->rms_norm_eps,
                                .hc_eps = c->hc_eps,
                                .fn = hyper->fn,
                                .base = hyper->base,
                                .scale = hyper->scale,
                                .norm = norm,
                                .stream = at->stream,
                                .pre_in = pre_in,
                                .x = at->b->x,
                                .post = at->b->post,
                                .comb = at->b->comb,
                                .pre_out = pre_out};
    at->ops->hyper_enter(at->backend, &args);
}

void v41_leave(const v41_site *at) {
    di_hyper_leave_args args = {.count = at->rows->count,
                                .copies = at->m->base.config.hc_mult,
                                .width = at->m->base.config.hidden_size,
                                .y = at->b->y,
                                .post = at->b->post,
                                .comb = at->b->comb,
                                .stream = at->stream};
    at->ops->hyper_leave(at->backend, &args);
}

void v41_project(const v41_site *at, uint32_t rotary_table, di_buffer window) {
    const di_model_config *c = &at->m->base.config;
    const v41_layer *w = at->w;
    di_project_args args = {.rows = at->rows,
                            .width = c->hidden_size,
                            .q_rank = c->q_lora_rank,
                            .heads = c->num_attention_heads,
                            .head_dim = c->head_dim,
                            .rotary_dim = c->qk_rope_head_dim,
                            .rotary_table = rotary_table,
                            .eps = c->rms_norm_eps,
                            .wq_a = w->wq_a,
                            .q_norm = w->q_norm,
                            .wq_b = w->wq_b,
                            .wkv = w->wkv,
                            .kv_norm = w->kv_norm,
                            .rotary = at->b->rotary,
                            .x = at->b->x,
                            .qr = at->b->qr,
                            .q = at->b->q,
                            .window = window};
    at->ops->project(at->backend, &args);
}

di_attend_args v41_attend_args(const v41_site *at, uint32_t rotary_table, uint64_t ring_offset, di_buffer window) {
    const di_model_config *c = &at->m->base.config;
    return (di_attend_args){.rows = at->rows,
                            .width = c->hidden_size,
                            .heads = c->num_attention_heads,
                            .head_dim = c->head_dim,
                            .rotary_dim = c->qk_rope_head_dim,
                            .rotary_table = rotary_table,
                            .window = c->sliding_window,
                            .groups = c->o_groups,
                            .o_rank = c->o_lora_rank,
                            .sink = at->w->sink,
                            .wo_a = at->w->wo_a,
                            .wo_b = at->w->wo_b,
                            .ring_offset = ring_offset,
                            .rotary = at->b->rotary,
                            .q = at->b->q,
                            .window_rows = window,
                            .y = at->b->y};
}

void v41_experts(const v41_site *at, uint32_t experts, uint32_t top, di_buffer ids) {
    const di_model_config *c = &at->m->base.config;
    const v41_layer *w = at->w;
    di_experts_args args = {.rows = at->rows,
                            .width = c->hidden_size,
                            .inner = c->moe_intermediate_size,
                            .experts = experts,
                            .top = top,
                            .shared = c->n_shared_experts,
                            .limit = c->swiglu_limit,
                            .scale = c->routed_scaling_factor,
                            .gate_temp = c->gate_temp,
                            .gate = w->gate,
                            .bias = w->bias,
                            .bias_vl = w->bias_vl,
                            .w1 = (const di_weight *const *)w->w1,
                            .w2 = (const di_weight *const *)w->w2,
                            .w3 = (const di_weight *const *)w->w3,
                            .shared_w1 = w->shared_w1,
                            .shared_w2 = w->shared_w2,
                            .shared_w3 = w->shared_w3,
                            .x = at->b->x,
                            .y = at->b->y,
                            .ids = ids};
    at->ops->experts(at->backend, &args);
}
