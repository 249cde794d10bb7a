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

di_status di_option_value(const di_option *options, size_t option_count, const char *name, char **value,
                          di_error *error) {
    if (!value) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "value", "value is NULL");
    *value = NULL;
    if (!name) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "name", "name is NULL");
    const di_config_row *rows = di_config_rows();
    const char *known[DI_OPT_COUNT];
    for (size_t i = 0; i < DI_OPT_COUNT; i++) known[i] = rows[i].name;
    size_t id = 0;
    while (id < DI_OPT_COUNT && strcmp(known[id], name) != 0) id++;
    if (id == DI_OPT_COUNT) {
        const char *near = di_nearest_name(name, known, DI_OPT_COUNT);
        return di_fail(error, DI_ERR_CONFIG, "name", "there is no option \"%.60s\"%s%s%s", name,
                       near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    di_config *config = NULL;
    di_status status = di_read_options(options, option_count, &config, error);
    if (status != DI_OK) return status;
    *value = strdup(di_config_text(config, (di_config_id)id));
    di_config_free(config);
    return *value ? DI_OK : di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the value of an option");
}

bool di_logprobs(const float *logits, uint32_t vocabulary, const int32_t *token_ids, size_t count, float *logprobs,
                 int32_t *argmax) {
    int32_t best;
    if (!logits || !vocabulary || count > UINT32_MAX || (count && (!token_ids || !logprobs))) return false;
    for (size_t i = 0; i < count; i++)
        if (token_ids[i] < 0 || (uint32_t)token_ids[i] >= vocabulary) return false;
    return di_sample_logprobs(logits, vocabulary, token_ids, (uint32_t)count, logprobs, argmax ? argmax : &best);
}
