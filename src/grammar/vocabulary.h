/* vocabulary.h - inside of a vocabulary; see grammar.h. */
#ifndef DI_GRAMMAR_VOCABULARY_H
#define DI_GRAMMAR_VOCABULARY_H

#include "grammar/grammar.h"

#define DI_NO_TOKEN UINT32_MAX
enum { DI_SAFE_LEVELS = 16 };

/* Nodes in depth-first order; node 0 is the root and has no byte. */
typedef struct di_trie_node {
    uint32_t token; /* that ends here, DI_NO_TOKEN if none */
    uint32_t size;  /* nodes of the subtree, itself included */
} di_trie_node;

typedef struct di_trie {
    di_trie_node *nodes; /* [count] */
    uint8_t *bytes;      /* [count] byte that leads to the node */
    uint32_t count;
} di_trie;

struct di_vocabulary {
    uint32_t rows;
    size_t words;
    uint8_t *bytes;
    uint32_t *offsets; /* [rows + 1] */
    uint32_t *same;    /* [rows] next token of the same bytes, DI_NO_TOKEN = none */
    uint32_t longest;  /* bytes of the longest token */
    di_trie all;
    di_trie rest;           /* tokens that are not string-safe */
    uint64_t *safe;         /* [words] string-safe tokens: whole characters that a JSON string holds as they are */
    uint32_t *safe_ids;     /* [safe_count] by number of characters, most first */
    uint32_t *safe_lengths; /* [safe_count] their characters */
    uint32_t safe_count;
    uint64_t *safe_levels; /* [DI_SAFE_LEVELS][words] string-safe tokens of at most 1.. characters */
    uint64_t *stop;        /* [words] */
    int32_t *stops;        /* [stop_count] */
    uint32_t stop_count;
};

#endif
