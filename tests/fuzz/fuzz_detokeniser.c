/* needs: tokenizer base */
/* Pairs of bytes as ids of nano's tokenizer: pushed one by one they give valid text at every step, and in the end what
 * decoding them at once gives. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_tokenizer *tokenizer;
    if (!tokenizer && di_tokenizer_load(DI_TEST_DATA "/nano", &tokenizer, NULL)) abort();
    size_t count = size / 2;
    int32_t *ids = malloc(count * sizeof *ids + 1);
    di_text whole = {0}, pushed = {0};
    di_detokenizer detokenizer;
    di_detokenizer_init(&detokenizer, tokenizer);
    bool known = true;
    for (size_t i = 0; i < count; i++) {
        ids[i] = (data[2 * i] | data[2 * i + 1] << 8) % 720 - 8;
        size_t before = pushed.length;
        bool refused = di_detokenizer_push(&detokenizer, ids[i], &pushed, NULL) != DI_OK;
        if (refused != (ids[i] < 0 || (uint32_t)ids[i] >= di_tokenizer_vocabulary(tokenizer))) abort();
        known = known && !refused;
        size_t added = pushed.length - before;
        if (added && di_utf8_validate(pushed.data + before, added) != added) abort();
        if (detokenizer.pending_count > 3) abort();
    }
    di_detokenizer_flush(&detokenizer, &pushed);
    if ((di_tokenizer_decode(tokenizer, ids, count, false, &whole, NULL) == DI_OK) != known) abort();
    if (known && (whole.length != pushed.length || (whole.length && memcmp(whole.data, pushed.data, whole.length))))
        abort();
    di_text_free(&whole);
    di_text_free(&pushed);
    free(ids);
    return 0;
}
