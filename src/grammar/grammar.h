/* grammar.h - constrained text: JSON Schema, regular expressions and grammars as token masks.
 *
 * A vocabulary holds the bytes of every token as a trie; made once per tokenizer, immutable, any thread.
 * A grammar is a compiled source; immutable, any thread, shared by any number of matchers (reference counted).
 * A matcher computes lazily and remembers what it computed; one thread at a time. Sequences that share a grammar share
 * a matcher as well as they like: a state is a 32-bit id in it that stays valid until the matcher is freed or
 * compacted. Keeping an id is a rollback point, copying it is a fork, nothing else needs to be undone.
 *
 * What is accepted is exact: a source that cannot be enforced exactly is refused with where and why. The documented
 * narrowings (docs/grammar.md) only ever leave out spellings. Every live state can be completed.
 * Memory and work are bounded by di_grammar_limits; what exceeds them is DI_ERR_LIMIT, never a weaker constraint.
 */
#ifndef DI_GRAMMAR_GRAMMAR_H
#define DI_GRAMMAR_GRAMMAR_H

#include "base/config.h"
#include "base/json.h"
#include "base/status.h"
#include "tokenizer/tokenizer.h"

/* ---- vocabulary */

typedef struct di_vocabulary di_vocabulary;

/* bytes[id], lengths[id]: [count]; length 0 = an id that no text produces (special tokens, holes). stop_ids: allowed
 * exactly where the text may end. Borrows nothing. */
di_status di_vocabulary_new(const char *const *bytes, const uint32_t *lengths, uint32_t count, const int32_t *stop_ids,
                            size_t stop_count, di_vocabulary **vocabulary, di_error *error);
/* Every id of the tokenizer that is no added token. `rows` >= its vocabulary: width of a row of logits (0 = equal). */
di_status di_vocabulary_of_tokenizer(const di_tokenizer *tokenizer, uint32_t rows, const int32_t *stop_ids,
                                     size_t stop_count, di_vocabulary **vocabulary, di_error *error);
void di_vocabulary_free(di_vocabulary *vocabulary);
uint32_t di_vocabulary_rows(const di_vocabulary *vocabulary); /* bits of a mask */
size_t di_vocabulary_words(const di_vocabulary *vocabulary);  /* uint64_t words of a mask */
/* Bytes of a token; NULL and 0 for an id without text. */
const uint8_t *di_vocabulary_bytes(const di_vocabulary *vocabulary, uint32_t id, uint32_t *length);

/* ---- grammar */

typedef enum di_grammar_kind {
    DI_GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    DI_GRAMMAR_JSON_SCHEMA,
    DI_GRAMMAR_REGEX, /* whole text */
    DI_GRAMMAR_GBNF,
    DI_GRAMMAR_LARK,
    DI_GRAMMAR_W3C,
    DI_GRAMMAR_ISO,
    DI_GRAMMAR_CALLS /* tool calls in DeepSeek's markup; source: calls.h */
} di_grammar_kind;

typedef enum di_grammar_order { DI_ORDER_SCHEMA, DI_ORDER_ANY } di_grammar_order;
typedef enum di_grammar_profile { DI_PROFILE_FULL, DI_PROFILE_OPENAI } di_grammar_profile;
typedef enum di_grammar_whitespace { DI_WHITESPACE_FLEXIBLE, DI_WHITESPACE_COMPACT } di_grammar_whitespace;

typedef struct di_grammar_limits {
    size_t text_bytes;    /* of the source */
    uint32_t expressions; /* nodes of lexemes, compiled ones and derivatives together */
    uint32_t symbols;     /* nodes of the grammar */
    uint64_t work;        /* steps of one compilation */
    uint64_t mask_work;   /* steps of one mask or one advance */
    size_t memory;        /* bytes of one matcher */
} di_grammar_limits;
void di_grammar_limits_default(di_grammar_limits *limits);
/* The same with what --limit-grammar-* and --limit-mask-work say. */
void di_grammar_limits_configured(const di_config *config, di_grammar_limits *limits);

typedef struct di_grammar_source {
    di_grammar_kind kind;
    const char *text; /* schema as JSON text, expression or grammar; UTF-8 */
    size_t length;
    const char *start; /* grammars: name of the start rule; NULL = the dialect's default */
    di_grammar_order order;
    di_grammar_profile profile;
    di_grammar_whitespace whitespace;
} di_grammar_source;

typedef enum di_grammar_reason {
    DI_REASON_NONE,
    DI_REASON_SYNTAX,        /* the source does not follow its format */
    DI_REASON_UNSUPPORTED,   /* understood, but cannot be enforced exactly */
    DI_REASON_UNSATISFIABLE, /* no text follows it */
    DI_REASON_TOO_COMPLEX    /* beyond a limit */
} di_grammar_reason;

/* Why a source was refused and where: a JSON pointer into the schema, or "line:column" of other sources. */
typedef struct di_grammar_fault {
    di_grammar_reason reason;
    char pointer[256];
    char message[320];
} di_grammar_fault;
const char *di_grammar_reason_name(di_grammar_reason reason); /* "unsupported" */

typedef struct di_grammar di_grammar;

/* `limits` NULL = defaults, `fault` may be NULL. DI_ERR_MEMORY leaves fault->reason at NONE. */
di_status di_grammar_compile(const di_grammar_source *source, const di_grammar_limits *limits, di_grammar **grammar,
                             di_grammar_fault *fault, di_error *error);
di_grammar *di_grammar_share(di_grammar *grammar);   /* one more reference */
void di_grammar_free(di_grammar *grammar);           /* one less; NULL is allowed */
size_t di_grammar_memory(const di_grammar *grammar); /* bytes, without those of its matchers */
/* 128-bit hash of kind, options and canonical text as 32 hexadecimal digits: equal keys, equal grammars. */
void di_grammar_key(const di_grammar_source *source, char key[33]);

/* ---- matcher */

typedef struct di_matcher di_matcher;
typedef uint32_t di_grammar_state;
#define DI_GRAMMAR_REJECT 0 /* the state after a token that is not allowed */

/* Takes a reference to the grammar; borrows the vocabulary. */
di_status di_matcher_new(di_grammar *grammar, const di_vocabulary *vocabulary, di_matcher **matcher, di_error *error);
void di_matcher_free(di_matcher *matcher);
size_t di_matcher_memory(const di_matcher *matcher); /* bytes */
/* Forgets all but these states ([count], which get new ids; every other id is void) and what was computed for them.
 * States that take too much of the limit of memory are given up, the heaviest first: they become DI_GRAMMAR_REJECT,
 * which is allowed and stays. After an error everything is as it was. The work does not depend on the length of any
 * text, only on its depth. */
di_status di_matcher_compact(di_matcher *matcher, di_grammar_state *states, size_t count, di_error *error);
di_grammar_state di_matcher_start(const di_matcher *matcher);

/* *next = DI_GRAMMAR_REJECT if the token is not allowed. A stop id leads to the ended state, in which stop ids only are
 * allowed. */
di_status di_matcher_advance(di_matcher *matcher, di_grammar_state state, uint32_t token, di_grammar_state *next,
                             di_error *error);
di_status di_matcher_advance_bytes(di_matcher *matcher, di_grammar_state state, const uint8_t *bytes, size_t length,
                                   di_grammar_state *next, di_error *error);
/* mask: [di_vocabulary_words], bit id is set if the token is allowed. */
di_status di_matcher_mask(di_matcher *matcher, di_grammar_state state, uint64_t *mask, di_error *error);
/* The text may end here. */
di_status di_matcher_complete(di_matcher *matcher, di_grammar_state state, bool *complete, di_error *error);

#endif
