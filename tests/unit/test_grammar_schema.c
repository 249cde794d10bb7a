/* needs: grammar tokenizer base */
/* Schemas, expressions and grammars against texts: what public reports got wrong, keyword by keyword, and what is
 * refused and where. Texts are read byte by byte. */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static di_vocabulary *vocabulary;

static int make_vocabulary(void **state) {
    (void)state;
    static char single[256];
    const char *bytes[257] = {0};
    uint32_t lengths[257] = {0};
    for (int i = 0; i < 256; i++) {
        single[i] = (char)i;
        bytes[i] = &single[i];
        lengths[i] = 1;
    }
    const int32_t stop = 256;
    return di_vocabulary_new(bytes, lengths, 257, &stop, 1, &vocabulary, NULL) != DI_OK;
}

static int free_vocabulary(void **state) {
    (void)state;
    di_vocabulary_free(vocabulary);
    return 0;
}

/* The whole text follows the source. */
static bool accepts(const di_grammar_source *source, const char *text, size_t length) {
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    di_error error = {0};
    di_grammar_state state = DI_GRAMMAR_REJECT;
    bool complete = false;
    if (di_grammar_compile(source, NULL, &grammar, NULL, &error) != DI_OK)
        fail_msg("%s: %s", source->text, error.message);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, &error), DI_OK);
    state = di_matcher_start(matcher);
    for (size_t i = 0; i < length && state != DI_GRAMMAR_REJECT; i++) {
        uint8_t byte = (uint8_t)text[i];
        assert_int_equal(di_matcher_advance_bytes(matcher, state, &byte, 1, &state, &error), DI_OK);
    }
    if (state != DI_GRAMMAR_REJECT) assert_int_equal(di_matcher_complete(matcher, state, &complete, &error), DI_OK);
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    return complete;
}

static void check(di_grammar_kind kind, const char *source, const char *text, bool wanted) {
    for (int order = 0; order < 2; order++) {
        di_grammar_source s = {
            .kind = kind, .text = source, .length = strlen(source), .order = order ? DI_ORDER_ANY : DI_ORDER_SCHEMA};
        if (accepts(&s, text, strlen(text)) != wanted)
            fail_msg("%s\n%s: %s", source, text, wanted ? "refused" : "accepted");
    }
}

static void yes(const char *schema, const char *text) {
    check(DI_GRAMMAR_JSON_SCHEMA, schema, text, true);
}

static void no(const char *schema, const char *text) {
    check(DI_GRAMMAR_JSON_SCHEMA, schema, text, false);
}

static void refused(di_grammar_kind kind, const char *source, di_grammar_reason reason, const char *pointer) {
    di_grammar_source s = {.kind = kind, .text = source, .length = strlen(source)};
    di_grammar *grammar = NULL;
    di_grammar_fault fault;
    di_error error = {0};
    if (di_grammar_compile(&s, NULL, &grammar, &fault, &error) == DI_OK) fail_msg("compiled: %.200s", source);
    assert_null(grammar);
    assert_int_equal(fault.reason, reason);
    assert_string_equal(fault.pointer, pointer);
    assert_true(fault.message[0] != '\0');
    assert_true(error.message[0] != '\0');
}

static void test_strings(void **state) {
    (void)state;
    char text[160];
    for (int n = 128; n <= 131; n++) { /* a bound beyond 128 */
        text[0] = '"';
        memset(text + 1, 'x', (size_t)n);
        strcpy(text + 1 + n, "\"");
        check(DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^\\\\n\\\\r]{1,129}$\"}", text, n <= 129);
        check(DI_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":129}", text, n >= 129);
    }
    yes("{\"pattern\":\"cat\"}", "\"concatenate\"");
    yes("{\"type\":\"object\",\"patternProperties\":{\"x\":{\"type\":\"integer\"}}}", "{\"x1\":1}");
    no("{\"type\":\"object\",\"patternProperties\":{\"x\":{\"type\":\"integer\"}}}", "{\"x1\":\"a\"}");
    no("{\"type\":\"string\"}", "\"a\tb\"");
    no("{\"type\":\"string\"}", "\"\xC0\x80\"");
    no("{\"type\":\"string\"}", "\"\xED\xA0\x80\"");
    no("{\"type\":\"string\"}", "\"\\ud800\"");
    yes("{\"type\":\"string\"}", "\"\\ud83d\\ude00\"");
    yes("{\"type\":\"string\",\"maxLength\":2}", "\"\\n\\n\"");
    yes("{\"type\":\"string\",\"maxLength\":2}", "\"\\ud83d\\udca9\\ud83d\\udca9\"");
    no("{\"type\":\"string\",\"maxLength\":2}", "\"\\n\\n\\n\"");
    no("{\"pattern\":\"^[a-z]+$\",\"maxLength\":3}", "\"abcdefghij\"");
    yes("{\"pattern\":\"^[a-z]+$\",\"maxLength\":3}", "1");
    no("{\"pattern\":\"^[a-z]+$\",\"minLength\":3}", "\"ab\"");
    yes("{\"pattern\":\"^[a-z]+$\",\"minLength\":3}", "\"abc\"");
    yes("{\"type\":\"string\",\"pattern\":\"^\\\\d+$\"}", "\"12\"");
    yes("{\"type\":\"string\",\"pattern\":\"^[\\\\w-]+$\"}", "\"a-b\"");
    yes("{\"type\":\"string\",\"pattern\":\"\\\\S\"}", "\" x\"");
    no("{\"type\":\"string\",\"pattern\":\"\\\\S\"}", "\"  \"");
    yes("{\"type\":\"string\",\"pattern\":\"^(?!ab).*c$\"}", "\"axc\"");
    no("{\"type\":\"string\",\"pattern\":\"^(?!ab).*c$\"}", "\"abc\"");
    yes("{\"pattern\":\"\\\\bcat\\\\b\"}", "\"a cat.\"");
    no("{\"pattern\":\"\\\\bcat\\\\b\"}", "\"concat\"");
    no("{\"format\":\"date\"}", "\"2021-02-29\"");
    yes("{\"format\":\"date\"}", "\"2024-02-29\"");
    no("{\"format\":\"time\"}", "\"22:59:60Z\"");
    yes("{\"format\":\"time\"}", "\"23:59:60Z\"");
    yes("{\"format\":\"ipv6\"}", "\"::ffff:1.2.3.4\"");
    no("{\"format\":\"ipv6\"}", "\"1::2::3\"");
    yes("{\"format\":\"no such format\"}", "\"anything\"");
}

static void test_numbers(void **state) {
    (void)state;
    yes("{\"minimum\":-4,\"maximum\":4}", "-0.5");
    no("{\"exclusiveMinimum\":0}", "0");
    no("{\"exclusiveMinimum\":0}", "-0.0");
    yes("{\"exclusiveMinimum\":0}", "0.001");
    no("{\"minimum\":1,\"maximum\":5}", "5.7");
    yes("{\"minimum\":1,\"maximum\":5}", "5.0");
    yes("{\"type\":\"integer\",\"minimum\":-5}", "-3");
    no("{\"type\":\"integer\",\"minimum\":-5}", "-6");
    no("{\"type\":\"number\"}", "1.e2");
    no("{\"type\":\"number\"}", "01");
    no("{\"type\":\"number\"}", ".5");
    yes("{\"type\":\"number\"}", "-1.5E+10");
    no("{\"multipleOf\":7}", "100");
    yes("{\"multipleOf\":7}", "-98");
    yes("{\"multipleOf\":0.01}", "4.35");
    no("{\"multipleOf\":0.01}", "4.351");
    yes("{\"type\":\"integer\"}", "1.0");
    no("{\"type\":\"integer\"}", "1.5");
    no("{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"type\":\"integer\"}", "1.0");
    no("{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"minimum\":1,\"exclusiveMinimum\":true}", "1");
    yes("{\"const\":[[0]]}", "[[0.0]]");
    yes("{\"not\":{\"type\":\"integer\"}}", "1.5");
    no("{\"not\":{\"type\":\"integer\"}}", "2.0");
}

static void test_objects(void **state) {
    (void)state;
    no("{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{\"a\":\"no\"}");
    yes("{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{\"b\":\"no\"}");
    no("{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{\"\\u0061\":\"no\"}");
    yes("{\"type\":\"object\",\"properties\":{}}", "{}");
    no("{\"allOf\":[{\"type\":\"integer\"},{\"minimum\":3}]}", "1");
    no("{\"allOf\":[{\"type\":\"integer\"},{\"minimum\":3}]}", "\"x\"");
    no("{\"$ref\":\"#/$defs/i\",\"minimum\":3,\"$defs\":{\"i\":{\"type\":\"integer\"}}}", "1");
    no("{\"type\":\"string\",\"enum\":[\"a\",1]}", "1");
    const char *both = "{\"properties\":{\"score\":{\"type\":\"integer\",\"multipleOf\":5}},\"patternProperties\":"
                       "{\"^score$\":{\"type\":\"integer\",\"minimum\":10}}}";
    yes(both, "{\"score\":10}");
    no(both, "{\"score\":5}");
    no(both, "{\"score\":11}");
    yes("{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"b\":1}");
    no("{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"a\":1}");
    yes("{\"minProperties\":1,\"properties\":{\"a\":true}}", "{\"a\":1}");
    no("{\"minProperties\":1,\"properties\":{\"a\":true}}", "{}");
    no("{\"maxProperties\":1}", "{\"a\":1,\"b\":2}");
    no("{\"propertyNames\":{\"maxLength\":2}}", "{\"abc\":1}");
    yes("{\"propertyNames\":{\"maxLength\":2}}", "{\"ab\":1}");
    no("{\"not\":{\"required\":[\"a\"]}}", "{\"a\":1}");
    yes("{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}", "{\"b\":1}");
    no("{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}", "{\"a\":1,\"b\":1}");
    no("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}},\"required\":[\"a\"]}", "{\"a: [1]}");
    const char *either = "{\"if\":{\"properties\":{\"t\":{\"const\":1}},\"required\":[\"t\"]},\"then\":{\"required\":"
                         "[\"u\"]},\"else\":{\"required\":[\"w\"]}}";
    no(either, "{\"t\":1}");
    yes(either, "{\"t\":1,\"u\":0}");
    yes(either, "{\"w\":0}");
    yes("{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"properties\":{\"next\":{\"$ref\":\"#/$defs/n\"}},"
        "\"additionalProperties\":false}}}",
        "{\"next\":{\"next\":{}}}");
}

static void test_order(void **state) {
    (void)state;
    const char *schema = "{\"properties\":{\"limit\":{\"type\":\"integer\"},\"page\":{\"type\":\"integer\"}}}";
    di_grammar_source s = {.kind = DI_GRAMMAR_JSON_SCHEMA, .text = schema, .length = strlen(schema)};
    const char *text = "{\"page\":1,\"limit\":2}";
    assert_false(accepts(&s, text, strlen(text)));
    s.order = DI_ORDER_ANY;
    assert_true(accepts(&s, text, strlen(text)));
}

static void test_arrays(void **state) {
    (void)state;
    yes("{\"prefixItems\":[{\"type\":\"string\"}]}", "[]");
    no("{\"prefixItems\":[{\"type\":\"string\"}]}", "[1]");
    no("{\"uniqueItems\":true,\"items\":{\"enum\":[7,8]}}", "[7,7]");
    yes("{\"uniqueItems\":true,\"items\":{\"enum\":[7,8]}}", "[8,7]");
    static const char integers[] =
        "{\"uniqueItems\":true,\"items\":{\"type\":[\"integer\",\"null\"],\"minimum\":-1,\"exclusiveMaximum\":3}}";
    yes(integers, "[2,0,null,-1,1]");
    no(integers, "[2,0,2]");
    no(integers, "[3]");
    no(integers, "[null,null]");
    static const char parts[] =
        "{\"uniqueItems\":true,\"minItems\":2,\"items\":{\"anyOf\":[{\"enum\":[{\"a\":[1,2]},{\"a\":[2,1]},[1]]},"
        "{\"$ref\":\"#/$defs/"
        "b\"}]},\"$defs\":{\"b\":{\"allOf\":[{\"type\":\"boolean\"},{\"not\":{\"const\":false}}]}}}";
    yes(parts, "[{\"a\":[1,2]},{\"a\":[2,1]}]");
    yes(parts, "[true,[1]]");
    no(parts, "[true,true]");
    no(parts, "[false,true]");
    no(parts, "[{\"a\":[1,2]},{\"a\":[1,2]}]");
    no("{\"uniqueItems\":true,\"items\":{\"enum\":[{\"a\":1,\"b\":2},{\"b\":2.0,\"a\":1},3]}}",
       "[{\"a\":1,\"b\":2},{\"a\":1,\"b\":2}]");
    yes("{\"contains\":{\"type\":\"null\"},\"maxContains\":1}", "[1,null,2]");
    no("{\"contains\":{\"type\":\"null\"},\"maxContains\":1}", "[null,null]");
    no("{\"contains\":{\"type\":\"null\"}}", "[1]");
    const char *nested =
        "{\"type\":\"array\",\"minItems\":5,\"maxItems\":10,\"items\":{\"type\":\"array\",\"minItems\":5,"
        "\"maxItems\":10,\"items\":{\"type\":\"string\"}}}";
    const char *inner = "[\"a\",\"b\",\"c\",\"d\",\"e\"]";
    char text[256];
    snprintf(text, sizeof text, "[%s,%s,%s,%s,%s]", inner, inner, inner, inner, inner);
    yes(nested, text);
    snprintf(text, sizeof text, "[%s,%s,%s,%s]", inner, inner, inner, inner);
    no(nested, text);
    yes("{\"type\":\"array\",\"maxItems\":50,\"items\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\","
        "\"maxLength\":2000}}}}",
        "[{\"s\":\"x\"},{}]");
}

static void test_space(void **state) {
    (void)state;
    yes("{\"type\":\"array\"}", "[ 1, 2\n      ]");
    no("{\"type\":\"array\"}", "[  1]");
    no("{\"type\":\"array\"}", "[\n\n1]");
    no("{\"type\":\"array\"}", " [1]");
    no("{\"type\":\"array\"}", "[1] ");
    di_grammar_source s = {.kind = DI_GRAMMAR_JSON_OBJECT, .whitespace = DI_WHITESPACE_COMPACT};
    assert_true(accepts(&s, "{\"a\":[{\"b\":\"c\"}]}", 17));
    assert_false(accepts(&s, "{ }", 3));
    assert_false(accepts(&s, "[]", 2));
}

static void test_refusals(void **state) {
    (void)state;
    di_grammar_kind schema = DI_GRAMMAR_JSON_SCHEMA, regex = DI_GRAMMAR_REGEX, gbnf = DI_GRAMMAR_GBNF;
    refused(schema, "{\"properties\":{\"a/b\":{\"uniqueItems\":true}}}", DI_REASON_UNSUPPORTED,
            "/properties/a~1b/uniqueItems");
    refused(schema, "{\"anyOf\":[{},{\"pattern\":\"(a)\\\\1\"}]}", DI_REASON_UNSUPPORTED, "/anyOf/1/pattern");
    refused(schema, "{\"pattern\":\"^?[0-9]$\"}", DI_REASON_SYNTAX, "/pattern");
    refused(schema, "{\"type\":\"strin\"}", DI_REASON_SYNTAX, "/type");
    refused(schema, "{\"$ref\":\"http://example.com/x\"}", DI_REASON_UNSUPPORTED, "/$ref");
    refused(schema, "{\"$ref\":\"#\"}", DI_REASON_UNSUPPORTED, "");
    refused(schema, "false", DI_REASON_UNSATISFIABLE, "");
    refused(schema, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", DI_REASON_UNSATISFIABLE, "");
    refused(schema, "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"],\"type\":\"object\"}",
            DI_REASON_UNSATISFIABLE, "");
    refused(schema, "{", DI_REASON_SYNTAX, "");
    refused(regex, "foo**", DI_REASON_SYNTAX, "1:5");
    refused(regex, "a[", DI_REASON_SYNTAX, "1:2");
    refused(regex, "(a)\\1", DI_REASON_UNSUPPORTED, "1:4");
    refused(gbnf, "root ::= \"a\"{5,0}", DI_REASON_SYNTAX, "1:13");
    refused(gbnf, "root ::= foo", DI_REASON_SYNTAX, "1:10");
    refused(gbnf, "root ::= root \"a\"", DI_REASON_UNSATISFIABLE, "1:1");
    di_grammar_source s = {.kind = schema, .profile = DI_PROFILE_OPENAI, .text = "{\"type\":\"object\"}", .length = 17};
    di_grammar *grammar;
    di_grammar_fault fault;
    assert_int_not_equal(di_grammar_compile(&s, NULL, &grammar, &fault, NULL), DI_OK);
    assert_non_null(strstr(fault.message, "additionalProperties"));
}

/* A text may begin like this. */
static bool begins(const char *schema, const char *text) {
    di_grammar_source s = {.kind = DI_GRAMMAR_JSON_SCHEMA, .text = schema, .length = strlen(schema)};
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    di_grammar_state state;
    uint64_t mask[5];
    assert_int_equal(di_grammar_compile(&s, NULL, &grammar, NULL, NULL), DI_OK);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    state = di_matcher_start(matcher);
    bool possible = true;
    for (const char *c = text; *c && possible; c++) {
        uint8_t byte = (uint8_t)*c;
        assert_int_equal(di_matcher_mask(matcher, state, mask, NULL), DI_OK);
        possible = mask[byte / 64] >> byte % 64 & 1;
        assert_int_equal(di_matcher_advance_bytes(matcher, state, &byte, 1, &state, NULL), DI_OK);
        assert_int_equal(possible, state != DI_GRAMMAR_REJECT);
    }
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    return possible;
}

/* Bounds that cross leave nothing of their type, and other types as they are. */
static void test_crossing_bounds(void **state) {
    (void)state;
    static const struct {
        const char *type, *bounds, *begin;
    } cases[] = {
        {"array", "\"contains\":{\"type\":\"integer\"},\"maxContains\":0", "["},
        {"array", "\"contains\":{\"type\":\"integer\"},\"minContains\":3,\"maxContains\":2", "["},
        {"array", "\"contains\":{\"pattern\":\"s\"},\"maxContains\":0,\"prefixItems\":[{},false]", "["},
        {"array", "\"contains\":{\"type\":\"integer\"},\"minContains\":3,\"maxItems\":2", "["},
        {"array", "\"contains\":false", "["},
        {"array", "\"allOf\":[{\"contains\":{\"type\":\"null\"},\"maxContains\":0},{\"contains\":{}}]", "["},
        {"array", "\"minItems\":3,\"maxItems\":2", "["},
        {"array", "\"uniqueItems\":true,\"items\":{\"enum\":[1,2]},\"minItems\":3", "["},
        {"object", "\"minProperties\":3,\"maxProperties\":2", "{"},
        {"object", "\"required\":[\"a\",\"b\"],\"maxProperties\":1", "{"},
        {"object", "\"minProperties\":2,\"maxProperties\":1,\"properties\":{\"a\":{},\"b\":{}}", "{"},
        {"string", "\"minLength\":3,\"maxLength\":2", "\""},
        {"number", "\"minimum\":5,\"maximum\":3", "5"},
        {"number", "\"exclusiveMinimum\":3,\"exclusiveMaximum\":3", "3"},
        {"number", "\"exclusiveMinimum\":3,\"maximum\":3", "3"},
        {"integer", "\"minimum\":1.2,\"maximum\":1.8", "1"},
        {"integer", "\"exclusiveMinimum\":1,\"exclusiveMaximum\":2", "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char schema[256];
        snprintf(schema, sizeof schema, "{\"type\":\"%s\",%s}", cases[i].type, cases[i].bounds);
        refused(DI_GRAMMAR_JSON_SCHEMA, schema, DI_REASON_UNSATISFIABLE, "");
        snprintf(schema, sizeof schema, "{\"type\":[\"%s\",\"null\"],%s}", cases[i].type, cases[i].bounds);
        yes(schema, "null");
        assert_true(begins(schema, "null"));
        assert_false(begins(schema, cases[i].begin));
    }
    no("{\"contains\":{\"type\":\"integer\"},\"maxContains\":0,\"minContains\":0}", "[1]");
    yes("{\"contains\":{\"type\":\"integer\"},\"maxContains\":0,\"minContains\":0}", "[\"a\"]");
    yes("{\"not\":{\"contains\":{\"type\":\"integer\"},\"maxContains\":0}}", "[1]");
}

/* Names of schemas are no keywords, whatever they are called: identifiers and places below them count. */
static void test_names(void **state) {
    (void)state;
    static const char *const names[] = {"default", "example", "examples", "enum", "const", "properties", "$defs", "x"};
    static const char *const holders[] = {
        "$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"};
    char schema[512], pointer[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t j = 0; j < sizeof holders / sizeof *holders; j++) {
            snprintf(schema, sizeof schema,
                     "{\"%s\":{\"%s\":{\"$anchor\":\"n\",\"type\":\"integer\"}},\"$ref\":\"#n\"}", holders[j],
                     names[i]);
            yes(schema, "1");
            no(schema, "\"a\"");
            snprintf(schema, sizeof schema,
                     "{\"%s\":{\"%s\":{\"properties\":{\"y\":{\"type\":\"strin\"}}}},\"$ref\":\"#/%s/%s\"}", holders[j],
                     names[i], holders[j], names[i]);
            snprintf(pointer, sizeof pointer, "/%s/%s/properties/y/type", holders[j], names[i]);
            refused(DI_GRAMMAR_JSON_SCHEMA, schema, DI_REASON_SYNTAX, pointer);
        }
        snprintf(schema, sizeof schema,
                 "{\"$id\":\"http://a/\",\"$defs\":{\"t\":{\"type\":\"string\"}},\"items\":{\"$id\":\"http://b/"
                 "\",\"$defs\":{"
                 "\"t\":{\"type\":\"integer\"},\"%s\":{\"items\":{\"$ref\":\"#/$defs/t\"}}},\"$ref\":\"#/$defs/%s\"}}",
                 names[i], names[i]);
        yes(schema, "[[1]]");
        no(schema, "[[\"a\"]]");
        snprintf(schema, sizeof schema,
                 "{\"$defs\":{\"%s\":{\"properties\":{\"y\":{\"anyOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{"
                 "\"b\":{}}}],\"unevaluatedProperties\":false}}}},\"$ref\":\"#/$defs/%s\"}",
                 names[i], names[i]);
        yes(schema, "{\"y\":{\"a\":1,\"b\":2}}");
        no(schema, "{\"y\":{\"a\":1,\"c\":2}}");
    }
    /* Identifiers in values and behind unknown keywords are none. */
    static const char *const values[] = {"const", "default", "enum", "title", "x"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        static const char *const references[] = {"http://a/b", "#n"};
        for (size_t j = 0; j < 2; j++) {
            snprintf(schema, sizeof schema,
                     "{\"$defs\":{\"u\":{\"%s\":[{\"$id\":\"http://a/b\"},{\"$anchor\":\"n\"}]}},\"$ref\":\"%s\"}",
                     values[i], references[j]);
            refused(DI_GRAMMAR_JSON_SCHEMA, schema, DI_REASON_UNSUPPORTED, "/$ref");
        }
    }
    const char *elsewhere =
        "{\"$ref\":\"#/components/schemas/enum\",\"components\":{\"schemas\":{\"enum\":{\"items\":{\"$ref\":"
        "\"#/components/schemas/x\"}},\"x\":{\"type\":\"integer\"}}}}";
    yes(elsewhere, "[1]");
    no(elsewhere, "[\"a\"]");
    refused(DI_GRAMMAR_JSON_SCHEMA,
            "{\"$ref\":\"#/components/x\",\"components\":{\"x\":{\"$id\":\"http://a/b\",\"items\":{\"$ref\":\"#/$defs/"
            "y\"}}},"
            "\"$defs\":{\"y\":{}}}",
            DI_REASON_UNSUPPORTED, "/components/x/items/$ref");
}

/* Items by index as RFC 6901 has it. */
static void test_pointers(void **state) {
    (void)state;
    static const char *const wrong[] = {"one", "-1", "00", "01", "+0", "0x0", "2", "18446744073709551616",
                                        "-",   "",   "0 "};
    char schema[256];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(schema, sizeof schema,
                 "{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"integer\"},{}]}},\"$ref\":\"#/$defs/t/anyOf/%s\"}",
                 wrong[i]);
        refused(DI_GRAMMAR_JSON_SCHEMA, schema, DI_REASON_UNSUPPORTED, "/$ref");
    }
    yes("{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"integer\"}]}},\"items\":{\"$ref\":\"#/$defs/t/anyOf/0\"}}", "[1]");
    no("{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"integer\"}]}},\"items\":{\"$ref\":\"#/$defs/t/anyOf/0\"}}",
       "[\"a\"]");
    yes("{\"$defs\":{\"a/b~\":{\"type\":\"integer\"}},\"$ref\":\"#/$defs/a~1b~0\"}", "1");
    refused(DI_GRAMMAR_JSON_SCHEMA, "{\"$defs\":{\"a~\":{}},\"$ref\":\"#/$defs/a~\"}", DI_REASON_UNSUPPORTED, "/$ref");
    refused(DI_GRAMMAR_JSON_SCHEMA, "{\"$defs\":{\"a~\":{}},\"$ref\":\"#/$defs/a~2\"}", DI_REASON_UNSUPPORTED, "/$ref");
}

/* Values evaluate nothing, but their keys keep their order. */
static void test_unevaluated(void **state) {
    (void)state;
    static const char *const none[] = {
        "{\"const\":[1],\"unevaluatedItems\":false}",
        "{\"const\":{\"a\":1},\"unevaluatedProperties\":false}",
        "{\"enum\":[{\"a\":\"x\"}],\"unevaluatedProperties\":{\"type\":\"integer\"}}",
        "{\"allOf\":[{\"enum\":[{\"a\":\"x\"},[1,2]]}],\"unevaluatedProperties\":false,\"unevaluatedItems\":false}",
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        refused(DI_GRAMMAR_JSON_SCHEMA, none[i], DI_REASON_UNSATISFIABLE, "");
    const char *some =
        "{\"enum\":[{\"a\":1,\"b\":2},{\"a\":1},[1],[1,2],{},[],3],\"properties\":{\"a\":{}},\"prefixItems\":["
        "{}],\"unevaluatedProperties\":false,\"unevaluatedItems\":false}";
    static const char *const right[] = {"{\"a\":1}", "[1]", "{}", "[]", "3"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) yes(some, right[i]);
    no(some, "{\"a\":1,\"b\":2}");
    no(some, "[1,2]");
    yes("{\"const\":{\"a\":1},\"properties\":{\"a\":{}},\"unevaluatedProperties\":false}", "{\"a\":1}");
    yes("{\"required\":[\"b\"],\"const\":{\"a\":1,\"b\":2}}", "{\"a\":1,\"b\":2}");
}

/* Undeclared keys count once for a minimum: where that decides, the schema is refused, and no part of it is dropped. */
static void test_minimum_keys(void **state) {
    (void)state;
    static const char *const short_of_keys[] = {
        "{\"minProperties\":2}",
        "{\"minProperties\":2,\"type\":\"object\",\"properties\":{\"b\":false}}",
        "{\"minProperties\":3,\"type\":[\"object\",\"null\"],\"properties\":{\"a\":false,\"b\":false}}",
        "{\"minProperties\":2,\"dependentSchemas\":{\"b\":false}}",
        "{\"minProperties\":2,\"dependentRequired\":{\"a\":[\"b\"]}}",
        ("{\"minProperties\":2,\"properties\":{\"b\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{\"type\":\"object\","
         "\"required\":[\"a\"],\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"}}}}}"),
    };
    for (size_t i = 0; i < sizeof short_of_keys / sizeof *short_of_keys; i++)
        refused(DI_GRAMMAR_JSON_SCHEMA, short_of_keys[i], DI_REASON_UNSUPPORTED, "/minProperties");
    refused(DI_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"allOf\":[{\"minProperties\":1},{\"minProperties\":2}]}}",
            DI_REASON_UNSUPPORTED, "/items/allOf/1/minProperties");
    refused(DI_GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"minProperties\":2,\"properties\":{\"a\":{}},\"additionalProperties\":false}",
            DI_REASON_UNSATISFIABLE, "");
    yes("{\"minProperties\":2,\"properties\":{\"a\":{},\"b\":false}}", "{\"a\":1,\"c\":2}");
    no("{\"minProperties\":2,\"properties\":{\"a\":{},\"b\":false}}", "{\"a\":1}");
    yes("{\"minProperties\":1,\"properties\":{\"b\":false}}", "{\"c\":1}");
}

/* A demand for a key outside of some is met by any other key, also by one that only another demand names. */
static void test_further_keys(void **state) {
    (void)state;
    static const char two[] =
        "{\"type\":\"object\",\"allOf\":[{\"not\":{\"properties\":{\"a\":{}},\"additionalProperties\":false}},"
        "{\"not\":{\"properties\":{\"b\":{}},\"additionalProperties\":false}}]}";
    yes(two, "{\"b\":1,\"a\":1}");
    yes(two, "{\"c\":1}");
    no(two, "{\"a\":1}");
    no(two, "{}");
    di_text many = {0};
    di_text_puts(&many, "{\"type\":\"object\",\"required\":[\"z\"],\"allOf\":[");
    for (int i = 0; i < 8; i++)
        di_text_printf(&many, "%s{\"not\":{\"properties\":{\"%c\":{}},\"additionalProperties\":false}}", i ? "," : "",
                       'a' + i);
    di_text_puts(&many, "]}");
    yes(many.data, "{\"z\":1}");
    di_text_free(&many);
    /* more demands than four, each of which a declared key meets */
    const char *declared =
        "{\"type\":\"object\",\"properties\":{\"p\":{}},\"additionalProperties\":false,\"allOf\":[{\"not\":{"
        "\"maxProperties\":0}},{\"not\":{\"propertyNames\":{\"const\":\"a\"}}},{\"not\":{\"propertyNames\":{"
        "\"const\":\"b\"}}},{\"not\":{\"propertyNames\":{\"const\":\"c\"}}},{\"not\":{\"propertyNames\":{"
        "\"const\":\"d\"}}},{\"not\":{\"propertyNames\":{\"const\":\"e\"}}},{\"not\":{\"propertyNames\":{"
        "\"const\":\"f\"}}}]}";
    yes(declared, "{\"p\":1}");
    no(declared, "{}");
}

/* Repeated text in front of and behind a middle: what is deeply nested is refused, not followed. */
static char *nested(const char *open, const char *middle, const char *close, int times) {
    di_text out = {0};
    for (int i = 0; i < times; i++) di_text_puts(&out, open);
    di_text_puts(&out, middle);
    for (int i = 0; i < times; i++) di_text_puts(&out, close);
    return out.data;
}

static void test_bombs(void **state) {
    (void)state;
    char *deep = nested("(", "\"a\"", ")", 60000), *grammar = nested("root ::= ", deep, "", 1);
    refused(DI_GRAMMAR_GBNF, grammar, DI_REASON_TOO_COMPLEX, "1:211");
    refused(DI_GRAMMAR_REGEX, deep, DI_REASON_TOO_COMPLEX, "1:251");
    free(deep);
    free(grammar);
    deep = nested("{\"not\":", "{}", "}", 250);
    di_grammar_source s = {.kind = DI_GRAMMAR_JSON_SCHEMA, .text = deep, .length = strlen(deep)};
    di_grammar *made;
    di_grammar_fault fault;
    assert_int_equal(di_grammar_compile(&s, NULL, &made, &fault, NULL), DI_ERR_LIMIT);
    assert_int_equal(strncmp(fault.pointer, "/not/not/not", 12), 0);
    free(deep);
    yes("{\"type\":\"string\",\"maxLength\":100000}", "\"a\"");
    yes("{\"type\":\"array\",\"minItems\":0,\"maxItems\":1000000000,\"items\":{\"type\":\"null\"}}", "[null]");
    check(DI_GRAMMAR_REGEX, "(?:a?){200}a{200}", "aaa", false);
    check(DI_GRAMMAR_REGEX, "(a|aa)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true);
    refused(DI_GRAMMAR_REGEX, "(?:a{0,100}){0,100}b", DI_REASON_TOO_COMPLEX, "1:13");
    check(DI_GRAMMAR_REGEX, "(?:a{0,60}){0,60}b", "aab", true);
    char *one_of = nested("{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"properties\":{\"a\":", "{}",
                          "}},{\"type\":\"array\"}]}", 10);
    yes(one_of, "null");
    free(one_of);
}

/* Few steps of a compiler are many of one that follows every way through references, or compares every name with every
 * other: what such schemas ask for is counted. */
static void test_unique_bombs(void **state) {
    (void)state;
    di_text ways = {0}, names = {0};
    di_text_puts(&ways, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"$ref\":\"#/$defs/a0\"},\"$defs\":{");
    for (int i = 0; i < 7; i++) {
        di_text_printf(&ways, "\"a%d\":{\"allOf\":[", i);
        for (int j = 0; j < 100; j++) di_text_printf(&ways, "%s{\"$ref\":\"#/$defs/a%d\"}", j ? "," : "", i + 1);
        di_text_puts(&ways, "]},");
    }
    di_text_puts(&ways, "\"a7\":{\"type\":\"string\"}}}");
    refused(DI_GRAMMAR_JSON_SCHEMA, ways.data, DI_REASON_TOO_COMPLEX, "");
    di_text_puts(&names, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[");
    for (int i = 0; i < 2; i++) {
        di_text_puts(&names, i ? ",{" : "{");
        for (int j = 0; j < 8000; j++) di_text_printf(&names, "%s\"%d\":0", j ? "," : "", i ? 7999 - j : j);
        di_text_puts(&names, "}");
    }
    di_text_puts(&names, "]}}");
    refused(DI_GRAMMAR_JSON_SCHEMA, names.data, DI_REASON_TOO_COMPLEX, "");
    di_text_free(&ways);
    di_text_free(&names);
}

static void test_grammars(void **state) {
    (void)state;
    check(DI_GRAMMAR_GBNF, "root ::= (\"a\"*)* \"b\"", "aab", true);
    check(DI_GRAMMAR_GBNF, "root ::= \"April\" | \"August\"", "August", true);
    const char *sums = "root ::= root \"+\" t | t # left recursive\nt ::= [0-9]+ | \"(\" root \")\"\n";
    check(DI_GRAMMAR_GBNF, sums, "1+(2+30)", true);
    check(DI_GRAMMAR_GBNF, sums, "1+(2+30", false);
    const char *lark = "start: item (\",\" item)*\nitem: NAME | NUMBER -> number\nNAME: /[a-z]+/i\n"
                       "%import common.NUMBER\n%import common.WS\n%ignore WS\n";
    check(DI_GRAMMAR_LARK, lark, " ab, 1.5e3,\nC ", true);
    check(DI_GRAMMAR_LARK, lark, "ab,,c", false);
    check(DI_GRAMMAR_W3C, "[1] doc ::= (#x41 | b)+ /* c */ [2] b ::= [a-z] - ('x' | \"y\")", "AbA", true);
    check(DI_GRAMMAR_W3C, "[1] doc ::= (#x41 | b)+ /* c */ [2] b ::= [a-z] - ('x' | \"y\")", "Ax", false);
    check(DI_GRAMMAR_ISO, "list = '(', { digit }, [ '.' ], ')'; digit = 2 * ('0' | '1'); (* c *)", "(0110.)", true);
    check(DI_GRAMMAR_ISO, "list = '(', { digit }, [ '.' ], ')'; digit = 2 * ('0' | '1'); (* c *)", "(011)", false);
    check(DI_GRAMMAR_ISO, "(* a (* b *) (**) *) a = 'x' (* (* b *) (* *) *); (* end *)", "x", true);
    check(DI_GRAMMAR_W3C, "a ::= 'x' /* a /* b */ | 'y'", "y", true);
    refused(DI_GRAMMAR_ISO, "a = 'x'; (* a (* b *)", DI_REASON_SYNTAX, "1:10");
    refused(DI_GRAMMAR_ISO, "a = 'x'; (*)", DI_REASON_SYNTAX, "1:10");
    refused(DI_GRAMMAR_W3C, "a ::= 'x' /*/", DI_REASON_SYNTAX, "1:11");
    check(DI_GRAMMAR_REGEX, "\\d{4}-\\p{Lu}[[:alpha:]]", "2024-\xC3\x84z", true);
    check(DI_GRAMMAR_REGEX,
          "(?i)stra\xC3\x9F"
          "e|x",
          "STRA\xC3\x9F"
          "E",
          true);
}

/* Token by token and as bytes, the end, and the same state for the same future. */
static void test_states(void **unused) {
    (void)unused;
    const char *schema = "{\"type\":\"object\",\"properties\":{\"key\":{\"type\":\"boolean\"}},\"required\":[\"key\"],"
                         "\"additionalProperties\":false}";
    di_grammar_source s = {
        .kind = DI_GRAMMAR_JSON_SCHEMA, .text = schema, .length = strlen(schema), .whitespace = DI_WHITESPACE_COMPACT};
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    assert_int_equal(di_grammar_compile(&s, NULL, &grammar, NULL, NULL), DI_OK);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    di_grammar_free(grammar); /* the matcher keeps it */
    static const uint8_t key[] = "{\"key\":";
    di_grammar_state start = di_matcher_start(matcher), state = start, again, ended;
    uint64_t mask[5];
    for (int i = 0; i < 7; i++) {
        assert_int_equal(di_matcher_advance(matcher, state, key[i], &state, NULL), DI_OK);
        assert_int_not_equal(state, DI_GRAMMAR_REJECT);
    }
    assert_int_equal(di_matcher_mask(matcher, state, mask, NULL), DI_OK);
    assert_true(mask['t' / 64] >> 't' % 64 & 1);
    assert_false(mask['x' / 64] >> 'x' % 64 & 1);
    assert_int_equal(di_matcher_advance(matcher, state, 'x', &ended, NULL), DI_OK);
    assert_int_equal(ended, DI_GRAMMAR_REJECT);
    assert_int_equal(di_matcher_advance_bytes(matcher, start, key, 7, &again, NULL), DI_OK);
    assert_int_equal(again, state);
    assert_int_equal(di_matcher_advance_bytes(matcher, again, (const uint8_t *)"true}", 5, &again, NULL), DI_OK);
    assert_int_equal(di_matcher_mask(matcher, again, mask, NULL), DI_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(mask[i], 0);
    assert_int_equal(mask[4], 1); /* the stop id only */
    assert_int_equal(di_matcher_advance(matcher, again, 256, &ended, NULL), DI_OK);
    assert_int_not_equal(ended, DI_GRAMMAR_REJECT);
    assert_int_equal(di_matcher_mask(matcher, ended, mask, NULL), DI_OK);
    assert_int_equal(mask[4], 1);
    assert_int_equal(di_matcher_advance(matcher, start, 256, &ended, NULL), DI_OK);
    assert_int_equal(ended, DI_GRAMMAR_REJECT);
    assert_int_not_equal(di_matcher_mask(matcher, DI_GRAMMAR_REJECT, mask, NULL), DI_OK);
    di_matcher_free(matcher);
}

static void test_keys(void **unused) {
    (void)unused;
    char a[33], b[33], c[33];
    di_grammar_source s = {.kind = DI_GRAMMAR_JSON_SCHEMA, .text = "{\"type\": \"null\"}", .length = 16};
    di_grammar_key(&s, a);
    s.text = "{\"type\":\"null\"}", s.length = 15;
    di_grammar_key(&s, b);
    s.order = DI_ORDER_ANY;
    di_grammar_key(&s, c);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),         cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_objects),         cmocka_unit_test(test_order),
        cmocka_unit_test(test_arrays),          cmocka_unit_test(test_space),
        cmocka_unit_test(test_crossing_bounds), cmocka_unit_test(test_names),
        cmocka_unit_test(test_pointers),        cmocka_unit_test(test_unevaluated),
        cmocka_unit_test(test_minimum_keys),    cmocka_unit_test(test_further_keys),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_unique_bombs),    cmocka_unit_test(test_grammars),
        cmocka_unit_test(test_states),          cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, make_vocabulary, free_vocabulary);
}
