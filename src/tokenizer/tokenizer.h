/* tokenizer.h - byte-level BPE of the DeepSeek family, from a Hugging Face tokenizer.json.
 *
 * Encoding: split out added tokens if asked, three isolated pre-tokeniser passes (PCRE2, the expressions of the file),
 * byte alphabet, BPE by merge rank. Linear passes; the merge is O(n log n) in the length of a piece. Client text is
 * encoded with added tokens off, so text that spells a special token stays plain text. Owner: whoever loaded it;
 * immutable, any thread (match data is per call).
 */
#ifndef DI_TOKENIZER_TOKENIZER_H
#define DI_TOKENIZER_TOKENIZER_H

#include "base/status.h"
#include "base/text.h"

typedef struct di_tokenizer di_tokenizer;

typedef struct di_ids { /* growing list; `failed` as in di_text */
    int32_t *data;
    size_t count, capacity;
    bool failed;
} di_ids;
void di_ids_append(di_ids *ids, int32_t id);
void di_ids_free(di_ids *ids);

/* FOLDER/tokenizer.json, or the file itself. Refuses other models, pre-tokenisers, normalisers or decoders than those
 * it implements, naming the field. */
di_status di_tokenizer_load(const char *path, di_tokenizer **tokenizer, di_error *error);
di_status di_tokenizer_parse(const char *name, const char *text, size_t length, di_tokenizer **tokenizer,
                             di_error *error);
void di_tokenizer_free(di_tokenizer *tokenizer);

uint32_t di_tokenizer_vocabulary(const di_tokenizer *tokenizer); /* highest id + 1 */
uint64_t di_tokenizer_digest(const di_tokenizer *tokenizer);     /* of the bytes of its file */

/* Appends the ids of UTF-8 `text`. Invalid UTF-8 is an error with the byte offset. */
di_status di_tokenizer_encode(const di_tokenizer *tokenizer, const char *text, size_t length, bool added_tokens,
                              di_ids *ids, di_error *error);

/* Id of an added token by its text, -1 if there is none. */
int32_t di_tokenizer_added_id(const di_tokenizer *tokenizer, const char *text);
bool di_tokenizer_is_added(const di_tokenizer *tokenizer, int32_t id);
bool di_tokenizer_is_special(const di_tokenizer *tokenizer, int32_t id);
/* Bytes of one id (added tokens verbatim); NULL for an id that does not exist. */
const char *di_tokenizer_bytes(const di_tokenizer *tokenizer, int32_t id, size_t *length);
/* Asks for the memory in which di_tokenizer_bytes will look the id up: for who has many ids at once. */
void di_tokenizer_expect(const di_tokenizer *tokenizer, int32_t id);
/* The token string as spelled in the file (byte alphabet), zero-terminated; NULL for an id that does not exist. */
const char *di_tokenizer_spelling(const di_tokenizer *tokenizer, int32_t id);

/* Whole text; invalid UTF-8 becomes one U+FFFD per maximal bad prefix. */
di_status di_tokenizer_decode(const di_tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
                              di_text *text, di_error *error);

/* Incremental: emits only complete, valid characters and flushes at the end (U+FFFD for what cannot be completed).
 * The concatenation of all output equals di_tokenizer_decode of all ids. Plain data: copy it to fork. */
typedef struct di_detokenizer {
    const di_tokenizer *tokenizer;
    uint8_t pending[4];
    uint8_t pending_count;
} di_detokenizer;
void di_detokenizer_init(di_detokenizer *detokenizer, const di_tokenizer *tokenizer);
di_status di_detokenizer_push(di_detokenizer *detokenizer, int32_t id, di_text *text, di_error *error);
void di_detokenizer_flush(di_detokenizer *detokenizer, di_text *text);

/* The Engram compressed-token map (spec 5.1): new id of every token id, [vocabulary]. *compressed = number of ids.
 * Unicode tables: utf8proc. */
di_status di_tokenizer_compressed_map(const di_tokenizer *tokenizer, uint32_t vocabulary, int32_t *map,
                                      uint32_t *compressed, di_error *error);

#endif
