/* text.c - growable byte strings, UTF-8, whole files, nearest names; see text.h. */
#include "base/text.h"

#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------------------- growable strings */

void di_text_free(di_text *text) {
    free(text->data);
    *text = (di_text){0};
}

void di_text_clear(di_text *text) {
    text->length = 0;
    text->failed = false;
    if (text->data) text->data[0] = '\0';
}

/* Makes room for `more` bytes and the terminating zero. */
static bool text_reserve(di_text *text, size_t more) {
    if (text->failed) return false;
    if (more < text->capacity - text->length) return true; /* capacity 0 is never more than 0 */
    size_t need;
    if (__builtin_add_overflow(text->length, more, &need) || need >= SIZE_MAX / 2) {
        text->failed = true;
        return false;
    }
    size_t capacity = text->capacity + text->capacity / 2;
    if (capacity <= need) capacity = need + 1;
    if (capacity < 64) capacity = 64;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void di_text_append(di_text *text, const char *bytes, size_t length) {
    if (!text_reserve(text, length)) return;
    if (length) memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void di_text_puts(di_text *text, const char *zero_terminated) {
    di_text_append(text, zero_terminated, strlen(zero_terminated));
}

void di_text_putc(di_text *text, char c) {
    di_text_append(text, &c, 1);
}

void di_text_printf(di_text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t room = text->failed ? 0 : text->capacity - text->length;
    int length = vsnprintf(room ? text->data + text->length : NULL, room, format, arguments);
    if (length < 0) {
        text->failed = true;
    } else if ((size_t)length < room) {
        text->length += (size_t)length;
    } else if (text_reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

/* ------------------------------------------------------------------------------------------------------- UTF-8 */

/* Unicode 3.9, table 3-7: how many bytes a first byte announces, and which second bytes it allows. */
static size_t utf8_lead(unsigned char lead, unsigned char *second_low, unsigned char *second_high) {
    *second_low = 0x80;
    *second_high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0; /* continuation bytes and overlong forms */
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *second_low = 0xA0;
        if (lead == 0xED) *second_high = 0x9F;
        return 3;
    }
    if (lead < 0xF5) {
        if (lead == 0xF0) *second_low = 0x90;
        if (lead == 0xF4) *second_high = 0x8F;
        return 4;
    }
    return 0;
}

/* Length of the longest prefix of text that begins a valid character (0 if the first byte cannot); *need receives the
 * character's full length. */
static size_t utf8_prefix(const unsigned char *text, size_t length, size_t *need) {
    unsigned char low, high;
    *need = utf8_lead(text[0], &low, &high);
    if (*need < 2) return *need;
    size_t have = 1;
    while (have < *need && have < length && text[have] >= low && text[have] <= high) {
        low = 0x80;
        high = 0xBF;
        have++;
    }
    return have;
}

size_t di_utf8_decode(const char *text, size_t length, uint32_t *codepoint) {
    if (length == 0) return 0;
    const unsigned char *t = (const unsigned char *)text;
    size_t need, have = utf8_prefix(t, length, &need);
    if (have == 0 || have < need) return 0;
    static const unsigned char lead_mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t value = t[0] & lead_mask[need];
    for (size_t i = 1; i < need; i++) value = value << 6 | (t[i] & 0x3F);
    *codepoint = value;
    return need;
}

size_t di_utf8_encode(uint32_t codepoint, char out[4]) {
    if (codepoint < 0x80) {
        out[0] = (char)codepoint;
        return 1;
    }
    if (codepoint < 0x800) {
        out[0] = (char)(0xC0 | codepoint >> 6);
        out[1] = (char)(0x80 | (codepoint & 0x3F));
        return 2;
    }
    if (codepoint < 0x10000) {
        if (codepoint >= 0xD800 && codepoint < 0xE000) return 0;
        out[0] = (char)(0xE0 | codepoint >> 12);
        out[1] = (char)(0x80 | (codepoint >> 6 & 0x3F));
        out[2] = (char)(0x80 | (codepoint & 0x3F));
        return 3;
    }
    if (codepoint > 0x10FFFF) return 0;
    out[0] = (char)(0xF0 | codepoint >> 18);
    out[1] = (char)(0x80 | (codepoint >> 12 & 0x3F));
    out[2] = (char)(0x80 | (codepoint >> 6 & 0x3F));
    out[3] = (char)(0x80 | (codepoint & 0x3F));
    return 4;
}

size_t di_utf8_validate(const char *text, size_t length) {
    size_t i = 0;
    while (i < length) {
        uint64_t word;
        while (length - i >= sizeof word) {
            memcpy(&word, text + i, sizeof word);
            if (word & UINT64_C(0x8080808080808080)) break;
            i += sizeof word;
        }
        if (i == length) break;
        size_t need, have = utf8_prefix((const unsigned char *)text + i, length - i, &need);
        if (have == 0 || have < need) return i;
        i += need;
    }
    return length;
}

size_t di_utf8_bad_prefix(const char *text, size_t length, bool *incomplete) {
    if (incomplete) *incomplete = false;
    if (length == 0) return 1;
    size_t need, have = utf8_prefix((const unsigned char *)text, length, &need);
    if (have == 0) return 1;
    if (incomplete) *incomplete = have < need && have == length;
    return have;
}

/* ------------------------------------------------------------------------------------------------- whole files */

static di_status too_large(di_error *error, const char *path, size_t limit) {
    return di_fail(error, DI_ERR_LIMIT, path, "%s is larger than the %zu bytes allowed for such a file", path, limit);
}

/* Reads to the end of the file, whatever its size says (pipes and /proc have none). */
static di_status read_all(int file, const char *path, size_t limit, size_t expected, di_text *out, di_error *error) {
    if (!text_reserve(out, expected))
        return di_fail(error, DI_ERR_MEMORY, path, "out of memory while reading %s", path);
    for (;;) {
        if (!text_reserve(out, 1)) return di_fail(error, DI_ERR_MEMORY, path, "out of memory while reading %s", path);
        ssize_t got = read(file, out->data + out->length, out->capacity - out->length - 1);
        if (got < 0) {
            if (errno == EINTR) continue;
            return di_fail_errno(error, DI_ERR_IO, path, errno, "cannot read %s", path);
        }
        if (got == 0) break;
        out->length += (size_t)got;
        if (out->length > limit) return too_large(error, path, limit);
    }
    out->data[out->length] = '\0';
    return DI_OK;
}

static di_status read_whole(const char *path, bool plain, size_t limit, char **data, size_t *length, di_error *error) {
    *data = NULL;
    *length = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | (plain ? O_NONBLOCK : 0)); /* to open a pipe is to wait already */
    if (file < 0) {
        di_status status = errno == ENOENT || errno == ENOTDIR ? DI_ERR_NOT_FOUND : DI_ERR_IO;
        return di_fail_errno(error, status, path, errno, "cannot open %s", path);
    }
    struct stat about;
    di_text content = {0};
    di_status status = DI_OK;
    if (fstat(file, &about) != 0) {
        status = di_fail_errno(error, DI_ERR_IO, path, errno, "cannot examine %s", path);
    } else if (S_ISDIR(about.st_mode)) {
        status = di_fail(error, DI_ERR_IO, path, "%s is a folder, not a file", path);
    } else if (plain && !S_ISREG(about.st_mode)) {
        status = di_fail(error, DI_ERR_IO, path, "%s is not a plain file; a pipe or device cannot be read here", path);
    } else if (S_ISREG(about.st_mode) && (uint64_t)about.st_size > limit) {
        status = too_large(error, path, limit);
    } else {
        size_t expected = S_ISREG(about.st_mode) ? (size_t)about.st_size + 1 : 4096;
        status = read_all(file, path, limit, expected, &content, error);
    }
    close(file);
    if (status != DI_OK) {
        di_text_free(&content);
        return status;
    }
    *data = content.data;
    *length = content.length;
    return DI_OK;
}

int di_read_file(const char *path, size_t limit, char **data, size_t *length, struct di_error *error) {
    return read_whole(path, true, limit, data, length, error);
}

int di_read_source(const char *path, size_t limit, char **data, size_t *length, struct di_error *error) {
    return read_whole(path, false, limit, data, length, error);
}

/* ----------------------------------------------------------------------------------------------- nearest names */

enum { NAME_MAX_LENGTH = 64 };

/* Edit distance with swapped neighbours counted as one edit; the strings have at most NAME_MAX_LENGTH bytes. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][NAME_MAX_LENGTH + 1];
    size_t *before = rows[0], *previous = rows[1], *current = rows[2];
    for (size_t j = 0; j <= b_length; j++) previous[j] = before[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        current[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = previous[j - 1] + (a[i - 1] != b[j - 1]);
            if (previous[j] + 1 < best) best = previous[j] + 1;
            if (current[j - 1] + 1 < best) best = current[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            current[j] = best;
        }
        size_t *oldest = before;
        before = previous;
        previous = current;
        current = oldest;
    }
    return previous[b_length];
}

const char *di_nearest_name(const char *word, const char *const *names, size_t count) {
    size_t word_length = strnlen(word, NAME_MAX_LENGTH + 1);
    if (word_length > NAME_MAX_LENGTH) return NULL;
    size_t best_distance = word_length / 3 + 2;
    const char *best = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t length = strnlen(names[i], NAME_MAX_LENGTH + 1);
        if (length > NAME_MAX_LENGTH) continue;
        size_t distance = edit_distance(word, word_length, names[i], length);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}
