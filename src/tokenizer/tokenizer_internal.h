/* tokenizer_internal.h - what the files of src/tokenizer share.
 *
 * load.c builds a di_tokenizer; after that nothing in it changes. pretokenise.c cuts text into pieces, bpe.c turns a
 * piece into ids, added_tokens.c finds added tokens. Everything a call needs beyond that is made per call.
 */
#ifndef DI_TOKENIZER_INTERNAL_H
#define DI_TOKENIZER_INTERNAL_H

#include "base/arena.h"
#include "tokenizer/tokenizer.h"

#define DI_TOKENIZER_MAX_ENTRIES     (1u << 20) /* of vocabulary and added tokens together */
#define DI_TOKENIZER_MAX_ADDED_BYTES 256u       /* bounds the work per byte of text in the added-token search */
#define DI_TOKENIZER_MAX_FILE_BYTES  ((size_t)64 << 20)
#define DI_TOKENIZER_PASS_COUNT      3
#define DI_TOKENIZER_NO_RANK         UINT32_MAX

enum { DI_TOKEN_PRESENT = 1, DI_TOKEN_ADDED = 2, DI_TOKEN_SPECIAL = 4 };

typedef struct di_token {
    uint32_t spelling; /* offset into `spellings`, zero-terminated */
    uint32_t bytes;    /* offset into `bytes` */
    uint32_t length;   /* of the bytes */
    uint8_t flags;     /* DI_TOKEN_* */
} di_token;

typedef struct di_pair { /* one merge, in an open-addressed table; free slots have rank DI_TOKENIZER_NO_RANK */
    int32_t left, right;
    uint32_t rank;
} di_pair;

typedef struct di_pretokeniser di_pretokeniser;

struct di_tokenizer {
    di_arena *arena; /* holds every array below */
    uint64_t digest;
    uint32_t vocabulary;
    di_token *tokens; /* [vocabulary] */
    char *spellings;
    char *bytes;
    int32_t byte_ids[256];
    uint32_t *byte_pair_ranks; /* [256][256] rank of the merge of two single bytes */
    di_pair *pairs;            /* [pair_mask + 1] */
    uint32_t pair_mask;
    int32_t *merged; /* [merge count] id that the merge of a rank makes */
    int32_t *added;  /* [added_count] ids of added tokens, sorted by their bytes */
    uint32_t added_count;
    uint32_t added_first[257]; /* added tokens that start with byte b: added[added_first[b] .. added_first[b + 1]) */
    di_pretokeniser *pretokeniser;
};

/* The byte alphabet: printable code point of a byte, and back (-1 for a code point outside of it). */
uint32_t di_byte_alphabet(uint8_t byte);
int di_byte_of_alphabet(uint32_t codepoint);

/* White_Space of Unicode, as pairs of first and last code point, ended by {0, 0}. */
extern const uint32_t di_white_space[][2];
bool di_is_white_space(uint32_t codepoint);

/* --- pretokenise.c */
const char *di_pretokeniser_expression(int pass); /* as tokenizer.json must spell it; pass 0..2 */
di_status di_pretokeniser_new(bool use_jit, di_pretokeniser **pretokeniser, di_error *error);
void di_pretokeniser_free(di_pretokeniser *pretokeniser);
typedef di_status (*di_piece_function)(void *arg, const char *piece, size_t length, di_error *error);
/* Calls on_piece for each piece of valid UTF-8 text, in order; the pieces concatenate to the text. */
di_status di_pretokenise(const di_pretokeniser *pretokeniser, const char *text, size_t length,
                         di_piece_function on_piece, void *arg, di_error *error);

/* --- bpe.c */
uint32_t di_pair_rank(const di_tokenizer *tokenizer, int32_t left, int32_t right);
/* False if the pair is there already; then *rank is that of the first one. The table must have a free slot. */
bool di_pair_insert(di_tokenizer *tokenizer, int32_t left, int32_t right, uint32_t *rank);

typedef struct di_bpe_part {
    int32_t id;
    int32_t previous, next; /* index of the neighbours, -1 = none */
    uint32_t rank;          /* of the merge with the next part */
} di_bpe_part;

typedef struct di_bpe { /* scratch of one call; start from {0} */
    di_bpe_part *parts; /* [capacity] */
    uint64_t *heap;     /* [2 * capacity] rank << 32 | index of the left part */
    size_t capacity;
} di_bpe;
di_status di_bpe_encode(const di_tokenizer *tokenizer, di_bpe *bpe, const char *piece, size_t length, di_ids *ids,
                        di_error *error);
void di_bpe_free(di_bpe *bpe);

/* --- added_tokens.c */
di_status di_added_tokens_index(di_tokenizer *tokenizer, di_error *error); /* fills `added` and `added_first` */
/* Longest added token at text[0], -1 if there is none. */
int32_t di_added_token_at(const di_tokenizer *tokenizer, const char *text, size_t length, size_t *token_length);

#endif
