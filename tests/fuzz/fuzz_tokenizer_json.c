/* needs: tokenizer base */
/* Any bytes as tokenizer.json: refused with a named field, or a tokenizer whose ids decode to the text. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "ab abc ABC 12345\n\n  <s>\xE6\xB5\xB7\xE3\x81\xAE!!";
    di_tokenizer *tokenizer = NULL;
    di_error error = {0};
    if (di_tokenizer_parse("fuzz.json", (const char *)data, size, &tokenizer, &error)) {
        if (tokenizer || !error.param[0] || !error.message[0]) abort();
        return 0;
    }
    for (int added = 0; added < 2; added++) {
        di_ids ids = {0};
        di_text back = {0};
        if (di_tokenizer_encode(tokenizer, text, sizeof text - 1, added, &ids, &error)) abort();
        if (di_tokenizer_decode(tokenizer, ids.data, ids.count, false, &back, &error)) abort();
        if (strcmp(back.data, text) != 0) abort();
        for (size_t i = 0; i < ids.count; i++)
            if (!added && di_tokenizer_is_added(tokenizer, ids.data[i])) abort();
        di_ids_free(&ids);
        di_text_free(&back);
    }
    uint32_t vocabulary = di_tokenizer_vocabulary(tokenizer), compressed = 0;
    int32_t *map = malloc(vocabulary * sizeof *map);
    if (di_tokenizer_compressed_map(tokenizer, vocabulary, map, &compressed, &error)) abort();
    for (uint32_t id = 0; id < vocabulary; id++)
        if (map[id] < 0 || (uint32_t)map[id] >= compressed) abort();
    free(map);
    di_tokenizer_free(tokenizer);
    return 0;
}
