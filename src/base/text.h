/* text.h - growable byte strings and UTF-8.
 *
 * di_text: owner frees with di_text_free. Appending never fails visibly; when memory runs out `failed` stays set and
 * the content must not be used (check once, at the end). `data` is always zero-terminated once something was appended.
 */
#ifndef DI_BASE_TEXT_H
#define DI_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct di_text {
    char *data;
    size_t length, capacity;
    bool failed;
} di_text;

void di_text_free(di_text *text);  /* also resets to {0} */
void di_text_clear(di_text *text); /* keeps the memory */
void di_text_append(di_text *text, const char *bytes, size_t length);
void di_text_puts(di_text *text, const char *zero_terminated);
void di_text_putc(di_text *text, char c);
void di_text_printf(di_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One UTF-8 character at text[0..length): bytes used (1..4) and *codepoint; 0 if text[0] starts no valid character.
 * Overlong forms, surrogates and values above U+10FFFF are invalid. */
size_t di_utf8_decode(const char *text, size_t length, uint32_t *codepoint);
size_t di_utf8_encode(uint32_t codepoint, char out[4]); /* bytes written; 0 if not a scalar value */
/* Offset of the first invalid byte, or `length` if all is valid. */
size_t di_utf8_validate(const char *text, size_t length);
/* Length of the maximal prefix of an ill-formed sequence at text[0] that one U+FFFD replaces (Unicode 3.9, "maximal
 * subpart"), at least 1. *incomplete is set when more bytes could still make it valid. */
size_t di_utf8_bad_prefix(const char *text, size_t length, bool *incomplete);

/* Whole file into malloc'ed zero-terminated memory; refuses files above `limit` bytes. di_read_file takes plain files
 * only, so it waits for nobody. di_read_source, for what a user names at the start, also takes pipes and devices, as
 * `<(command)` of a shell gives, and waits for whoever writes them. */
struct di_error;
int di_read_file(const char *path, size_t limit, char **data, size_t *length, struct di_error *error); /* di_status */
int di_read_source(const char *path, size_t limit, char **data, size_t *length, struct di_error *error);

/* Edit distance for "did you mean": nearest of `names` to `word`, NULL if none is near (distance <= 1 + length/3). */
const char *di_nearest_name(const char *word, const char *const *names, size_t count);

#endif
