/* small_tokenizer.h - a tokenizer.json made in memory: ids 0..255 = the byte alphabet in byte order, then merges, then
 * added tokens. Tests change its parts to make broken files. */
#ifndef DI_TEST_SMALL_TOKENIZER_H
#define DI_TEST_SMALL_TOKENIZER_H

#include "base/text.h"

#define SMALL_PRETOKENIZER                                                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":["                                                                       \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Isolated\",\"invert\":false},"       \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+\"},"                \
    "\"behavior\":\"Isolated\",\"invert\":false},"                                                                     \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"  \
    "[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|"            \
    "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]}"

/* Code point of a byte in the byte alphabet, written down a second time on purpose. */
static inline uint32_t small_alphabet(unsigned byte) {
    uint32_t next = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte) return printable ? b : next;
        next += printable ? 0 : 1;
    }
    return 0;
}

/* "key":id, for the byte alphabet. */
static inline void small_vocabulary(di_text *out) {
    for (unsigned byte = 0; byte < 256; byte++) {
        char utf8[4];
        size_t length = di_utf8_encode(small_alphabet(byte), utf8);
        di_text_puts(out, byte ? ",\"" : "\"");
        if (byte == '"' || byte == '\\') di_text_putc(out, '\\');
        di_text_append(out, utf8, length);
        di_text_printf(out, "\":%u", byte);
    }
}

static inline void small_added_token(di_text *out, int id, const char *content, bool special) {
    di_text_printf(out,
                   "{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                   "\"normalized\":false,\"special\":%s}",
                   id, content, special ? "true" : "false");
}

/* The whole file. `vocabulary` follows the byte alphabet (",\"ab\":256"), `merges` and `added` are array items. */
static inline void small_tokenizer(di_text *out, const char *vocabulary, const char *merges, const char *added) {
    di_text_printf(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],", added);
    di_text_puts(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},\"pre_tokenizer\":" SMALL_PRETOKENIZER
                      ",\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},"
                      "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                      "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                      "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    small_vocabulary(out);
    di_text_printf(out, "%s},\"merges\":[%s]}}", vocabulary, merges);
}

#endif
