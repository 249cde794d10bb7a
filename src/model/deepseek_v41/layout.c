/* layout.c - what a sequence of this family remembers [3]. */
#include "model/deepseek_v41/v41.h"

#include <stdio.h>

enum { PAGE_TOKENS = 64, ALIGNMENT = 64 };

typedef struct layout_builder {
    di_state_part *parts;
    uint32_t count;
    uint64_t page, rolling;
} layout_builder;

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int add_part(layout_builder *b, di_state_part part) {
    uint64_t *end = part.kind == DI_PART_PAGED ? &b->page : &b->rolling;
    uint64_t entries = part.kind == DI_PART_PAGED ? PAGE_TOKENS / part.tokens_per_entry : part.slots;
    part.offset = *end;
    *end += aligned(entries * part.entry_bytes);
    b->parts[b->count] = part;
    return (int)b->count++;
}

static void add_source_parts(layout_builder *b, const di_model_config *c, v41_layer *layer, uint32_t l) {
    uint32_t ratio = c->layers[l].ratio, d = c->head_dim, i = c->index_head_dim;
    di_state_part global = {
        .kind = DI_PART_PAGED, .required = true, .entry_bytes = d / 2 + d / 16, .tokens_per_entry = ratio};
    di_state_part keys = {
        .kind = DI_PART_PAGED, .required = true, .entry_bytes = i / 2 + i / 32, .tokens_per_entry = ratio};
    di_state_part open = {.kind = DI_PART_OPEN,
                          .required = true,
                          .entry_bytes = 2 * d * (uint32_t)sizeof(float),
                          .tokens_per_entry = ratio,
                          .slots = ratio - 1};
    snprintf(global.name, sizeof global.name, "global.%u", l);
    snprintf(keys.name, sizeof keys.name, "keys.%u", l);
    snprintf(open.name, sizeof open.name, "open.%u", l);
    layer->global_part = add_part(b, global);
    layer->keys_part = add_part(b, keys);
    if (ratio > 1) layer->open_part = add_part(b, open);
}

di_status v41_make_layout(v41_model *m, di_error *error) {
    const di_model_config *c = &m->base.config;
    layout_builder b = {
        .parts = di_arena_array(m->arena, 4 * (size_t)c->num_hidden_layers + 2 + c->draft_stages, sizeof *b.parts)};
    if (!b.parts) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot lay out the state");
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) {
        v41_layer *layer = &m->layers[l];
        layer->global_part = layer->keys_part = layer->open_part = -1;
        di_state_part window = {.kind = DI_PART_RING,
                                .required = true,
                                .decoder = l >= c->cut,
                                .entry_bytes = c->head_dim + c->head_dim / 32,
                                .slots = c->sliding_window};
        snprintf(window.name, sizeof window.name, "window.%u", l);
        layer->window_part = add_part(&b, window);
        if (c->layers[l].mode == DI_ATTENTION_FULL) add_source_parts(&b, c, layer, l);
    }
    m->ngram_part = m->kept_part = -1;
    if (c->engram_layer_count) {
        di_state_part ngram = {.name = "ngram",
                               .kind = DI_PART_RING,
                               .required = true,
                               .entry_bytes = sizeof(int32_t),
                               .slots = c->engram_max_ngram - 1};
        m->ngram_part = add_part(&b, ngram);
    }
    if (m->base.keep) {
        uint32_t bytes = c->hc_mult * c->hidden_size * 2 + c->hc_mult * (uint32_t)sizeof(float);
        di_state_part kept = {
            .name = "kept", .kind = DI_PART_RING, .required = true, .entry_bytes = bytes, .slots = m->base.keep};
        m->kept_part = add_part(&b, kept);
    }
    /* Optional parts come last. Their entries say themselves whether they are there: a missing one has zero bytes. */
    for (uint32_t s = 0; m->stages && s < c->draft_stages; s++) {
        di_state_part keys = {.kind = DI_PART_RING,
                              .decoder = true,
                              .entry_bytes = c->head_dim + c->head_dim / 32,
                              .slots = c->sliding_window};
        snprintf(keys.name, sizeof keys.name, "draft.%u", s);
        m->stages[s].window_part = add_part(&b, keys);
    }
    m->base.layout = (di_state_layout){.parts = b.parts,
                                       .part_count = b.count,
                                       .page_tokens = PAGE_TOKENS,
                                       .page_bytes = b.page ? b.page : ALIGNMENT,
                                       .rolling_bytes = b.rolling};
    return DI_OK;
}
