/* bindings.c - what bindings of other languages need to be as strict and as exact as the program. */
#include <string.h>

#include "backend/sample.h"
#include "engine/engine_internal.h"

const char *di_option_name(size_t index) {
    const di_config_row *rows = di_config_rows();
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        bool counts = strcmp(rows[i].group, "common") == 0 || strcmp(rows[i].group, "limits") == 0;
        if (counts && index-- == 0) return rows[i].name;
    }
    return NULL;
}

bool di_logprobs(const float *logits, uint32_t vocabulary, const int32_t *token_ids, size_t count, float *logprobs,
                 int32_t *argmax) {
    int32_t best;
    if (!logits || !vocabulary || count > UINT32_MAX || (count && (!token_ids || !logprobs))) return false;
    for (size_t i = 0; i < count; i++)
        if (token_ids[i] < 0 || (uint32_t)token_ids[i] >= vocabulary) return false;
    return di_sample_logprobs(logits, vocabulary, token_ids, (uint32_t)count, logprobs, argmax ? argmax : &best);
}
