/* needs: server recipe engine grammar cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* The check of a request body against the field table: first byte the endpoint, the rest the body. A refusal names
 * what was wrong; what was accepted can be read without looking at types again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    di_arena *arena = di_arena_new(0);
    di_config *config = di_config_new();
    const di_json *body = NULL, *known = NULL;
    di_error error = {0};
    if (arena && config && di_json_parse(arena, (const char *)data + 1, size - 1, 64, &body, &error) == DI_OK) {
        di_endpoint endpoint = (di_endpoint)(data[0] % DI_ENDPOINT_COUNT);
        di_text unknown = {0};
        di_status status = di_fields_check(endpoint, arena, body, config, data[0] & 0x80, &unknown, &known, &error);
        if (status != DI_OK && (status != error.status || !error.message[0])) __builtin_trap();
        if ((status == DI_OK) != (known != NULL)) __builtin_trap();
        const di_json *temperature = di_field_get(known, "temperature");
        double value;
        if (temperature && (!di_json_double(temperature, &value) || value > 2)) __builtin_trap();
        di_text_free(&unknown);
    }
    di_config_free(config);
    di_arena_free(arena);
    return 0;
}
