/* needs: grammar tokenizer base */
/* Tool calls as a grammar: what follows it, what does not, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/grammar.h"

/* In the texts below # stands for the token of the mark. */
enum { MARK = 256, STOP = 257, ROWS = 258 };

static const char tools[] =
    "[{\"name\":\"book\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"place\":{\"type\":\"string\",\"description\":\"where\"},\"city\":{\"type\":\"string\",\"enum\":[\"Rome\","
    "\"Oslo\"]},"
    "\"people\":{\"$ref\":\"#/$defs/count\"},\"code\":{\"type\":\"string\",\"pattern\":\"^[A-Z]+$\",\"maxLength\":3}},"
    "\"required\":[\"place\",\"people\"],\"$defs\":{\"count\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}}}},"
    "{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"any\":{},\"list\":{\"type\":\"array\","
    "\"items\":{\"type\":\"boolean\"}}}}},{\"name\":\"ping\"}]";

static di_vocabulary *vocabulary_new(void) {
    static const int32_t stop[] = {STOP};
    const char *bytes[ROWS] = {0};
    uint32_t lengths[ROWS] = {0};
    static char single[256];
    for (int i = 0; i < 256; i++) {
        single[i] = (char)i;
        bytes[i] = &single[i];
        lengths[i] = 1;
    }
    bytes[MARK] = bytes[STOP] = "";
    di_vocabulary *vocabulary = NULL;
    assert_int_equal(di_vocabulary_new(bytes, lengths, ROWS, stop, 1, &vocabulary, NULL), DI_OK);
    return vocabulary;
}

static di_status compile(const char *opening, bool one, const char *list, di_grammar **grammar,
                         di_grammar_fault *fault) {
    char text[4096];
    snprintf(text, sizeof text,
             "{\"mark\":%d,\"gap\":\" \",\"block\":\"calls\",\"opening\":\"%s\",\"one\":%s,\"tools\":%s}", MARK,
             opening, one ? "true" : "false", list);
    di_grammar_source source = {.kind = DI_GRAMMAR_CALLS, .text = text, .length = strlen(text)};
    return di_grammar_compile(&source, NULL, grammar, fault, NULL);
}

/* 1: complete, 0: a beginning, -1: refused, as token by token with every token in its mask. */
static int walk(di_matcher *matcher, const char *text) {
    uint64_t mask[(ROWS + 63) / 64];
    di_grammar_state state = di_matcher_start(matcher);
    for (const char *c = text; *c; c++) {
        uint32_t token = *c == '#' ? MARK : (uint8_t)*c;
        assert_int_equal(di_matcher_mask(matcher, state, mask, NULL), DI_OK);
        di_grammar_state next = DI_GRAMMAR_REJECT;
        assert_int_equal(di_matcher_advance(matcher, state, token, &next, NULL), DI_OK);
        assert_int_equal(next != DI_GRAMMAR_REJECT, mask[token / 64] >> (token % 64) & 1);
        if (next == DI_GRAMMAR_REJECT) return -1;
        state = next;
    }
    bool complete = false;
    assert_int_equal(di_matcher_complete(matcher, state, &complete, NULL), DI_OK);
    return complete;
}

#define CALL(name, inside) "<# invoke name=\"" name "\">\n" inside "</# invoke>\n"
#define TEXT(key, value)   "<# parameter name=\"" key "\" string=\"true\">" value "</# parameter>\n"
#define JSON(key, value)   "<# parameter name=\"" key "\" string=\"false\">" value "</# parameter>\n"
#define END                "</# calls>"

static void follows_the_tools(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int result;
    } cases[] = {
        {CALL("book", TEXT("place", "a \"<b>\" & c") JSON("people", "4")) END, 1},
        {CALL("book", TEXT("place", "") TEXT("city", "Rome") JSON("people", "9") TEXT("code", "ABC")) END, 1},
        {CALL("book", TEXT("place", "x")) END, -1},                                          /* people is missing */
        {CALL("book", JSON("people", "4") TEXT("place", "x")) END, -1},                      /* order */
        {CALL("book", TEXT("place", "x") TEXT("city", "Bonn") JSON("people", "4")) END, -1}, /* enum */
        {CALL("book", TEXT("place", "x") JSON("people", "10")) END, -1},                     /* maximum */
        {CALL("book", TEXT("place", "x") JSON("people", "4") TEXT("code", "ABCD")) END, -1}, /* maxLength */
        {CALL("book", TEXT("place", "x") JSON("people", "4") TEXT("code", "ab")) END, -1},   /* pattern */
        {CALL("book", TEXT("place", "x") JSON("people", "\"4\"")) END, -1},                  /* type */
        {CALL("book", TEXT("place", "x") JSON("people", "4") TEXT("mood", "good")) END, -1}, /* undeclared */
        {CALL("book", JSON("place", "\"x\"") JSON("people", "4")) END, -1},                  /* a string is text */
        {CALL("look", "\n") END, 1},
        {CALL("look", "") END, -1},
        {CALL("look", JSON("list", "[true, false]")) END, 1},
        {CALL("look", JSON("any", "{\"a\": [1, null]}") JSON("list", "[]")) END, 1},
        {CALL("ping", "\n") CALL("ping", "\n") END, 1},
        {CALL("ping", "\n"), 0},
        {END, -1},
        {CALL("gone", "\n") END, -1},
        {CALL("ping", "\n") END " ", -1},
    };
    di_vocabulary *vocabulary = vocabulary_new();
    di_grammar *grammar = NULL;
    di_grammar_fault fault = {0};
    if (compile("", false, tools, &grammar, &fault) != DI_OK) fail_msg("%s: %s", fault.pointer, fault.message);
    di_matcher *matcher = NULL;
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int result = walk(matcher, cases[i].text);
        if (result != cases[i].result) fail_msg("%d for %s", result, cases[i].text);
    }
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    di_vocabulary_free(vocabulary);
}

static void one_call_behind_its_opening(void **state) {
    (void)state;
    di_vocabulary *vocabulary = vocabulary_new();
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    assert_int_equal(compile("\\n\\n<\xEF\xBD\x9C"
                             "DSML\xEF\xBD\x9C calls>\\n",
                             true, tools, &grammar, NULL),
                     DI_OK);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    assert_int_equal(walk(matcher, "\n\n<# calls>\n" CALL("ping", "\n") END), 1);
    assert_int_equal(walk(matcher, "\n\n<# calls>\n" CALL("ping", "\n") CALL("ping", "\n") END), -1);
    assert_int_equal(walk(matcher, CALL("ping", "\n") END), -1);
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    di_vocabulary_free(vocabulary);
}

/* References count in the schema of all arguments, which "#" is. */
static void refers_to_all_arguments(void **state) {
    (void)state;
    static const char list[] = "[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"$id\":\"http://a/"
                               "b\",\"type\":\"object\",\"properties\":{\"n\":{"
                               "\"type\":\"integer\"},\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}},"
                               "\"more\":{\"type\":\"array\",\"items\":{"
                               "\"$ref\":\"#/properties/n\"}},\"far\":{\"$ref\":\"/b#/$defs/"
                               "d\"}},\"additionalProperties\":false,\"$defs\":{\"d\":{"
                               "\"type\":\"boolean\"}}}}]";
    static const struct {
        const char *text;
        int result;
    } cases[] = {
        {CALL("a", JSON("kids", "[{\"n\":1,\"kids\":[{}]}]")) END, 1},
        {CALL("a", JSON("kids", "[[]]")) END, -1},
        {CALL("a", JSON("kids", "[{\"n\":true}]")) END, -1},
        {CALL("a", JSON("n", "1") JSON("more", "[1,2]") JSON("far", "true")) END, 1},
        {CALL("a", JSON("more", "[true]")) END, -1},
        {CALL("a", JSON("far", "1")) END, -1},
    };
    di_vocabulary *vocabulary = vocabulary_new();
    di_grammar *grammar = NULL;
    di_grammar_fault fault = {0};
    if (compile("", false, list, &grammar, &fault) != DI_OK) fail_msg("%s: %s", fault.pointer, fault.message);
    di_matcher *matcher = NULL;
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int result = walk(matcher, cases[i].text);
        if (result != cases[i].result) fail_msg("%d for %s", result, cases[i].text);
    }
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    di_vocabulary_free(vocabulary);
}

/* A tool that is not strict keeps its envelope and its JSON whatever its schema says. */
static void not_strict_and_not_enforceable(void **state) {
    (void)state;
    di_vocabulary *vocabulary = vocabulary_new();
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    static const char list[] = "[{\"name\":\"a\",\"parameters\":{\"oneOf\":[]}}]";
    assert_int_equal(compile("", false, list, &grammar, NULL), DI_OK);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    assert_int_equal(walk(matcher, CALL("a", TEXT("x", "y") JSON("z", "[1]")) END), 1);
    assert_int_equal(walk(matcher, CALL("a", "\n") END), 1);
    assert_int_equal(walk(matcher, CALL("a", JSON("z", "[1")) END), -1);
    assert_int_equal(walk(matcher, CALL("b", "\n") END), -1);
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    di_vocabulary_free(vocabulary);
}

static void refuses_with_a_place(void **state) {
    (void)state;
    static const struct {
        const char *tools, *pointer, *says;
    } cases[] = {
        {"[]", "/tools", "at least one"},
        {"[{\"name\":\"a\\\"b\"}]", "/tools/0", "name"},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"oneOf\":[]}}]", "/tools/0/parameters", "oneOf"},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"type\":\"array\"}}]", "/tools/0/parameters", "object"},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"required\":[\"b\"]}}]", "/tools/0/parameters", "declare"},
        {"[{\"name\":\"a\",\"parameters\":{\"properties\":{\"b\":{\"type\":\"strin\"}}}}]",
         "/tools/0/parameters/properties/b", "/type: \"strin\""},
        {"[{\"name\":\"a\",\"strict\":true,\"parameters\":{\"properties\":{\"a/b\":{\"items\":{\"$ref\":\"#/allOf/"
         "0\"}}}}}]",
         "/tools/0/parameters/properties/a/b", "/items/$ref: \"#/allOf/0\" leads nowhere"},
        {"[{\"name\":\"a\",\"parameters\":{\"properties\":{\"b\":{\"$ref\":\"#/$defs/"
         "c\"}},\"$defs\":{\"c\":{\"type\":1}}}}]",
         "/tools/0/parameters/properties/b", "/$defs/c/type: "},
        {"[{\"name\":\"a\",\"parameters\":{\"properties\":{\"b\":false},\"required\":[\"b\"]}}]",
         "/tools/0/parameters/properties/b", "follows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_grammar *grammar = NULL;
        di_grammar_fault fault = {0};
        if (compile("", false, cases[i].tools, &grammar, &fault) == DI_OK) fail_msg("%s is taken", cases[i].tools);
        assert_string_equal(fault.pointer, cases[i].pointer);
        if (!strstr(fault.message, cases[i].says)) fail_msg("%s: %s", cases[i].tools, fault.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_tools),       cmocka_unit_test(one_call_behind_its_opening),
        cmocka_unit_test(refers_to_all_arguments), cmocka_unit_test(not_strict_and_not_enforceable),
        cmocka_unit_test(refuses_with_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
