/* needs: checkpoint tensor base */
/* A config.json: refused with a message, or accepted, and then everything derived from it holds together. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

typedef struct walk {
    const di_model_config *config;
    size_t count;
} walk;

static bool visit(void *arg, const di_expected_tensor *tensor) {
    walk *w = arg;
    if (tensor->rank == 0 || tensor->rank > 2 || strlen(tensor->name) + 1 >= sizeof tensor->name) abort();
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0) abort();
    return ++w->count < 3000;
}

static void check_layers(const di_model_config *c) {
    if (c->num_hidden_layers == 0 || c->cut > c->num_hidden_layers) abort();
    for (uint32_t i = 0; i < c->num_hidden_layers; i++) {
        const di_layer_config *layer = &c->layers[i];
        if ((layer->mode == DI_ATTENTION_SWA) != (layer->ratio == 0)) abort();
        if (layer->ratio == 0) continue;
        if (layer->kv_source < 0 || layer->kv_source > (int32_t)i || layer->index_source < layer->kv_source) abort();
        if (c->layers[layer->kv_source].mode != DI_ATTENTION_FULL) abort();
        if (c->layers[layer->kv_source].ratio != layer->ratio) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_model_config config;
    di_error error = {0};
    di_status status = di_model_config_parse("fuzz.json", (const char *)data, size, &config, &error);
    if (status != DI_OK) {
        if (error.message[0] == 0 || status == DI_ERR_INTERNAL) abort();
        return 0;
    }
    check_layers(&config);
    walk w = {.config = &config};
    di_expected_tensors(&config, visit, &w);
    if (w.count == 0) abort();
    return 0;
}
