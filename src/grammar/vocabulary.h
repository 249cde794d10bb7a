/* vocabulary.h - inside of a vocabulary; see grammar.h. */
#ifndef DI_GRAMMAR_VOCABULARY_H
#define DI_GRAMMAR_VOCABULARY_H

#include "grammar/grammar.h"

#define DI_NO_TOKEN UINT32_MAX
#define DI_LAST_ID  0x80000000u
enum { DI_SAFE_LEVELS = 16 };

/* Nodes in depth-first order; node 0 is the root and has no byte. */
typedef struct di_trie_node {
    uint32_t token; /* that ends here, DI_NO_TOKEN if none; index of the first in `ids` where the trie has them */
    uint32_t size;  /* nodes of the subtree, itself included */
} di_trie_node;

typedef struct di_trie {
    di_trie_node *nodes; /* [count] */
    uint8_t *bytes;      /* [count] byte that leads to the node */
    uint32_t count;
    uint32_t *ids;         /* of tokens, DI_LAST_ID marks the last one of a node; NULL in tries of whole tokens */
    uint32_t *kinds;       /* [count] of characters of string-safe tokens below the node; NULL but in `all` */
    uint32_t *safe_before; /* [count + 1] string-safe tokens at nodes before this one: indices of safe_order */
} di_trie;

/* Characters of JSON strings by kind, so that a walk sees from the kinds below a node that they change nothing. White
 * space of patterns has kinds of its own. */
enum { DI_KINDS = 31, DI_INSIDE_CHARACTER = 31 }; /* bit of nodes where a character has begun */
typedef struct di_kind_of_character {
    uint8_t kind, length;    /* bytes of a character */
    uint8_t low[4], high[4]; /* of each byte */
} di_kind_of_character;
extern const di_kind_of_character di_character_kinds[];
extern const size_t di_character_kind_count;

/* The inside of a JSON string without conditions: the same mask for every grammar. */
typedef struct di_body {
    uint64_t *bits;   /* [words] tokens that stay inside or end with the closing quote */
    uint32_t *quotes; /* [quote_count] nodes of `rest` that the closing quote leads to */
    uint32_t quote_count, quote_capacity;
    di_trie after; /* of what tokens have behind the closing quote */
} di_body;

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
    uint32_t *safe_order;  /* [safe_count] in the order of the trie */
    uint64_t *safe_levels; /* [DI_SAFE_LEVELS][words] string-safe tokens of at most 1.. characters */
    di_body bodies[2];     /* DI_ENCODING_JSON, DI_ENCODING_JSON_GENERAL */
    uint64_t *stop;        /* [words] */
    int32_t *stops;        /* [stop_count] */
    uint32_t stop_count;
};

#endif
