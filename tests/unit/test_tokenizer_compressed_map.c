/* needs: tokenizer base */
/* The rules of the compressed-token map one by one, on a vocabulary made for them. */
#include "support/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct map_case {
    const char *text; /* of a token */
    const char *like; /* text of the earlier token with which it shares its id; NULL = a new id */
} map_case;

static const map_case cases[] = {
    /* lower case, one character at a time */
    {"STRASSE", NULL},
    {"strasse", "STRASSE"},
    {"straße", NULL},
    {"ΣΑΣ", NULL},
    {"σασ", "ΣΑΣ"},
    {"σας", NULL}, /* no final sigma by context */
    {"İstanbul", NULL},
    {"istanbul", "İstanbul"}, /* the dot is a mark */
    /* marks: Mn, Mc, Me */
    {"cafe", NULL},
    {"CAFÉ", "cafe"},
    {"cafe\xCC\x81", "cafe"},
    {"कि", NULL},
    {"क", "कि"},
    {"7\xE2\x83\x9D", "7"},
    {"\xCC\x81", NULL}, /* nothing is left: the text itself */
    {"\xCC\x80", NULL},
    {"\xE0\xA4\xBF", NULL},
    /* compatibility forms */
    {"ﬁ", NULL},
    {"fi", "ﬁ"},
    {"ＦＩ", "ﬁ"},
    {"①", "1"},
    {"한", NULL},
    {"\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "한"},
    /* white space */
    {"   ", " "},
    {"\t\r\n ", " "},
    {"\xC2\xA0", " "},     /* compatibility: a space */
    {"\xE3\x80\x80", " "}, /* likewise */
    {"cafe ", "cafe"},
    {" \n cafe\t", "cafe"},
    {"\xE1\x9A\x80"
     "cafe\xE2\x80\xA8",
     "cafe"}, /* Ogham space mark, line separator */
    {"a  b", NULL},
    {"a \t\n b", "a  b"},
    {"a\xC2\xA0"
     "B",
     "a  b"},
    {"\xE1\x9A\x80", NULL}, /* stripped to nothing: the text itself */
    {"\x1F"
     "cafe",
     NULL},                /* U+001F is no white space */
    {"\xEE\x80\x80", " "}, /* U+E000 stands for the lone space inside the rule */
    {"x\xEE\x80\x80", NULL},
    /* no text of its own: the spelling counts */
    {"\xE7\x81", NULL},
    {"\xEF\xBF\xBD", NULL}, /* a genuine replacement character is treated the same */
    {"a\xEF\xBF\xBD", NULL},
    {"A\xEF\xBF\xBD", NULL},
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

/* Id of the first token with this text; byte tokens come first. */
static int id_of(const char *text) {
    if (strlen(text) == 1) return (uint8_t)text[0];
    for (int i = 0; i < CASE_COUNT; i++)
        if (strcmp(cases[i].text, text) == 0) return 256 + i;
    fail_msg("no token %s", text);
    return -1;
}

static void make_vocabulary(di_text *out) {
    di_text_puts(out, "");
    for (int i = 0; i < CASE_COUNT; i++) {
        di_text_puts(out, ",\"");
        for (const char *at = cases[i].text; *at; at++) {
            char utf8[4];
            di_text_append(out, utf8, di_utf8_encode(small_alphabet((uint8_t)*at), utf8));
        }
        di_text_printf(out, "\":%d", 256 + i);
    }
}

static void every_rule_holds(void **state) {
    (void)state;
    di_text vocabulary = {0}, file = {0};
    make_vocabulary(&vocabulary);
    small_tokenizer(&file, vocabulary.data, "", "");
    di_tokenizer *tokenizer = NULL;
    di_error error = {0};
    if (di_tokenizer_parse("small.json", file.data, file.length, &tokenizer, &error)) fail_msg("%s", error.message);
    int32_t map[256 + CASE_COUNT];
    uint32_t compressed = 0;
    assert_int_equal(di_tokenizer_compressed_map(tokenizer, 256 + CASE_COUNT, map, &compressed, &error), DI_OK);
    int32_t next = 0;
    for (int id = 0; id < 256 + CASE_COUNT; id++) {
        assert_true(map[id] >= 0 && map[id] <= next); /* new ids come in order */
        next += map[id] == next;
    }
    assert_int_equal(compressed, next);
    for (int i = 0; i < CASE_COUNT; i++) {
        int wanted = cases[i].like ? id_of(cases[i].like) : -1, first = 0;
        while (map[first] != map[256 + i]) first++;
        if (wanted >= 0 ? map[wanted] != map[256 + i] : first != 256 + i)
            fail_msg("\"%s\" shares its id with token %d", cases[i].text, first);
    }
    /* Bytes: letters fold, white space folds, parts of characters stay apart. */
    assert_int_equal(map['a'], map['A']);
    assert_int_equal(map['\n'], map[' ']);
    assert_int_equal(map['\t'], map[' ']);
    assert_int_not_equal(map[0x1F], map[' ']);
    assert_int_not_equal(map[0x0B], map[' ']); /* stripped, but no space: the text itself */
    assert_int_not_equal(map[0xE7], map[0xC7]);
    di_tokenizer_free(tokenizer);
    di_text_free(&vocabulary);
    di_text_free(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
