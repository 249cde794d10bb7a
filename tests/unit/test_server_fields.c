/* needs: server recipe engine grammar cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* The field table itself, and the check of bodies against it: every row of every endpoint with every kind of wrong
 * value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "server/api_endpoints.h"
#include "server/fields.h"

static di_config *config;

static int setup(void **state) {
    (void)state;
    config = di_config_new();
    return config ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    di_config_free(config);
    return 0;
}

/* Fields that a body of the endpoint must have, without the one at `path`. */
static void put_required(di_text *body, unsigned endpoint, const char *path) {
    size_t count;
    const di_field *rows = di_fields(&count);
    for (size_t i = 0; i < count; i++) {
        if (!(rows[i].endpoints & endpoint) || rows[i].use != DI_FIELD_REQUIRED || !strcmp(rows[i].path, path))
            continue;
        bool list = rows[i].types & DI_FIELD_ARRAY;
        di_text_printf(body, ",\"%s\":%s", rows[i].path, list ? "[{}]" : "7");
    }
}

/* {"a": {"b": VALUE}} for the path a.b, with what is required beside it. twice: the member stands there two times. */
static void make_body(di_text *body, unsigned endpoint, const char *path, const char *value, bool twice) {
    const char *dot = strchr(path, '.');
    di_text_clear(body);
    if (dot) {
        di_text_printf(body, "{\"%.*s\":{\"%s\":%s", (int)(dot - path), path, dot + 1, value);
        if (twice) di_text_printf(body, ",\"%s\":%s", dot + 1, value);
        di_text_puts(body, "}");
    } else {
        di_text_printf(body, "{\"%s\":%s", path, value);
        if (twice) di_text_printf(body, ",\"%s\":%s", path, value);
    }
    put_required(body, endpoint, path);
    di_text_puts(body, "}");
}

static di_status check_text(di_endpoint endpoint, const char *body, size_t length, bool strict, di_text *unknown,
                            di_error *error) {
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL, *known = NULL;
    di_error_clear(error);
    assert_non_null(arena);
    assert_int_equal(di_json_parse(arena, body, length, 0, &root, error), DI_OK);
    di_status status = di_fields_check(endpoint, arena, root, config, strict, unknown, &known, error);
    assert_true((status == DI_OK) == (known != NULL));
    di_arena_free(arena);
    return status;
}

/* What is left of a body for who reads it. */
static void left_is(di_endpoint endpoint, const char *body, const char *left) {
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL, *known = NULL;
    di_error error = {0};
    di_text unknown = {0}, text = {0};
    di_json_writer writer;
    assert_non_null(arena);
    assert_int_equal(di_json_parse(arena, body, strlen(body), 0, &root, &error), DI_OK);
    if (di_fields_check(endpoint, arena, root, config, false, &unknown, &known, &error) != DI_OK)
        fail_msg("%s %s: %s", di_endpoint_path(endpoint), body, error.message);
    di_json_begin(&writer, &text);
    di_json_value(&writer, known);
    assert_string_equal(text.data, left);
    di_text_free(&text);
    di_text_free(&unknown);
    di_arena_free(arena);
}

static di_status check_field(int endpoint, const di_field *row, const char *value, bool twice, di_error *error) {
    di_text body = {0}, unknown = {0};
    make_body(&body, 1U << endpoint, row->path, value, twice);
    assert_false(body.failed);
    di_status status = check_text((di_endpoint)endpoint, body.data, body.length, false, &unknown, error);
    if (unknown.length) fail_msg("%s is not known: %s", row->path, unknown.data);
    di_text_free(&body);
    di_text_free(&unknown);
    return status;
}

static void refused(int endpoint, const di_field *row, const char *value, bool twice, di_status wanted) {
    di_error error;
    di_status status = check_field(endpoint, row, value, twice, &error);
    if (status != wanted || strcmp(error.param, row->path) != 0)
        fail_msg("%s %s = %s: %s, param \"%s\": %s", di_endpoint_path((di_endpoint)endpoint), row->path, value,
                 di_status_name(status), error.param, error.message);
}

typedef void (*row_function)(int endpoint, const di_field *row);

static void for_every_row(row_function each) {
    size_t count;
    const di_field *rows = di_fields(&count);
    for (size_t i = 0; i < count; i++)
        for (int e = 0; e < DI_ENDPOINT_COUNT; e++)
            if (rows[i].endpoints & 1U << e) each(e, &rows[i]);
}

static void row_is_sound(int endpoint, const di_field *row) {
    size_t count, same = 0, parents = 0;
    const di_field *rows = di_fields(&count);
    const char *dot = strchr(row->path, '.');
    for (size_t i = 0; i < count; i++) {
        if (!(rows[i].endpoints & 1U << endpoint)) continue;
        same += !strcmp(rows[i].path, row->path);
        parents += dot && strlen(rows[i].path) == (size_t)(dot - row->path) &&
                   !strncmp(rows[i].path, row->path, strlen(rows[i].path)) && rows[i].types & DI_FIELD_OBJECT;
    }
    if (same != 1 || (dot && parents != 1)) fail_msg("%s: %zu rows, %zu parents", row->path, same, parents);
    if (row->use == DI_FIELD_NEUTRAL) assert_true(*row->values && *row->note);
    if (row->use == DI_FIELD_REFUSED) assert_true(*row->note);
    if (row->types & (DI_FIELD_INTEGER | DI_FIELD_NUMBER) && row->use == DI_FIELD_USED)
        assert_true(*row->range || row->limit >= 0 || row->types & DI_FIELD_STRING);
}

static void every_row_is_sound(void **state) {
    (void)state;
    for_every_row(row_is_sound);
}

static void wrong_types(int endpoint, const di_field *row) {
    static const struct {
        unsigned types;
        const char *value;
    } values[] = {{DI_FIELD_BOOL, "true"},
                  {DI_FIELD_NUMBER | DI_FIELD_INTEGER, "1"},
                  {DI_FIELD_STRING, "\"x\""},
                  {DI_FIELD_ARRAY, "[]"},
                  {DI_FIELD_OBJECT, "{}"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (!(row->types & values[i].types)) refused(endpoint, row, values[i].value, false, DI_ERR_INVALID_ARGUMENT);
    if (row->types & DI_FIELD_INTEGER && !(row->types & DI_FIELD_NUMBER) && row->use != DI_FIELD_REFUSED &&
        row->use != DI_FIELD_NEUTRAL)
        refused(endpoint, row, "1.5", false, DI_ERR_INVALID_ARGUMENT);
}

static void wrong_types_are_refused(void **state) {
    (void)state;
    for_every_row(wrong_types);
}

static void wrong_ranges(int endpoint, const di_field *row) {
    char value[64];
    if (row->use == DI_FIELD_REFUSED || row->use == DI_FIELD_NEUTRAL) return;
    if (row->types & (DI_FIELD_INTEGER | DI_FIELD_NUMBER)) {
        if (!*row->range && row->limit < 0) return;
        snprintf(value, sizeof value, "%.0f", row->minimum - 1);
        refused(endpoint, row, value, false, DI_ERR_INVALID_ARGUMENT);
        snprintf(value, sizeof value, "%.0f", row->maximum * 2 + 1);
        refused(endpoint, row, value, false, DI_ERR_INVALID_ARGUMENT);
        refused(endpoint, row, "1e400", false, DI_ERR_INVALID_ARGUMENT);
        refused(endpoint, row, "-1e400", false, DI_ERR_INVALID_ARGUMENT);
        refused(endpoint, row, "123456789012345678901234567890", false, DI_ERR_INVALID_ARGUMENT);
        if (*row->range == '(') refused(endpoint, row, "0", false, DI_ERR_INVALID_ARGUMENT);
    } else if (row->types & DI_FIELD_STRING && *row->values) {
        refused(endpoint, row, "\"no such word\"", false, DI_ERR_INVALID_ARGUMENT);
        refused(endpoint, row, "\"\"", false, DI_ERR_INVALID_ARGUMENT);
    } else if (row->types == DI_FIELD_STRING && row->maximum > 0) {
        di_text text = {0};
        di_text_putc(&text, '"');
        for (int i = 0; i <= (int)row->maximum; i++) di_text_putc(&text, 'a');
        di_text_putc(&text, '"');
        refused(endpoint, row, text.data, false, DI_ERR_INVALID_ARGUMENT);
        di_text_free(&text);
        refused(endpoint, row, "\"a\\u0000b\"", false, DI_ERR_INVALID_ARGUMENT);
    }
}

static void values_out_of_range_are_refused(void **state) {
    (void)state;
    for_every_row(wrong_ranges);
}

static void twice(int endpoint, const di_field *row) {
    refused(endpoint, row, "null", true, DI_ERR_INVALID_ARGUMENT);
}

static void a_member_given_twice_is_refused(void **state) {
    (void)state;
    for_every_row(twice);
}

static void absent_or_null(int endpoint, const di_field *row) {
    di_error error;
    di_text body = {0}, unknown = {0};
    if (row->use == DI_FIELD_REQUIRED) {
        refused(endpoint, row, "null", false, DI_ERR_INVALID_ARGUMENT);
        di_text_puts(&body, "{\"model\":null");
        put_required(&body, 1U << endpoint, row->path);
        di_text_puts(&body, "}");
        assert_int_equal(check_text((di_endpoint)endpoint, body.data, body.length, true, &unknown, &error),
                         DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, row->path);
    } else if (check_field(endpoint, row, "null", false, &error) != DI_OK) {
        fail_msg("%s: null is refused: %s", row->path, error.message);
    }
    di_text_free(&body);
    di_text_free(&unknown);
}

static void null_counts_as_absent(void **state) {
    (void)state;
    for_every_row(absent_or_null);
}

static void refused_row(int endpoint, const di_field *row) {
    const char *value = row->types & DI_FIELD_STRING    ? "\"x\""
                        : row->types & DI_FIELD_ARRAY   ? "[1]"
                        : row->types & DI_FIELD_OBJECT  ? "{\"a\":1}"
                        : row->types & DI_FIELD_INTEGER ? "3"
                                                        : "true";
    if (row->use == DI_FIELD_REFUSED) refused(endpoint, row, value, false, DI_ERR_UNSUPPORTED);
    if (row->use != DI_FIELD_NEUTRAL) return;
    di_error error;
    if (check_field(endpoint, row, row->values, false, &error) != DI_OK)
        fail_msg("%s: the neutral value %s is refused: %s", row->path, row->values, error.message);
    bool is_true = strcmp(row->values, "true") == 0;
    refused(endpoint, row, is_true ? "false" : value, false, DI_ERR_UNSUPPORTED);
}

static void what_is_not_available_is_refused_by_name(void **state) {
    (void)state;
    for_every_row(refused_row);
}

static void limits_are_those_of_the_configuration(void **state) {
    (void)state;
    di_error error;
    di_text unknown = {0};
    const char many[] = "{\"messages\":[1],\"n\":3}";
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, many, strlen(many), false, &unknown, &error), DI_OK);
    assert_int_equal(di_config_set(config, "limit-choices", "2", DI_CONFIG_FLAG, &error), DI_OK);
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, many, strlen(many), false, &unknown, &error),
                     DI_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "[1, 2] (--limit-choices)"));
    const char stops[] = "{\"messages\":[1],\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}";
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, stops, strlen(stops), false, &unknown, &error),
                     DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.message, "Stop string array too long: 17; at most 16 are allowed (--limit-stop-strings)");
    const char empty[] = "{\"messages\":[]}";
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, empty, strlen(empty), false, &unknown, &error),
                     DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.message, "Empty input messages");
}

static void unknown_fields_are_named(void **state) {
    (void)state;
    di_error error;
    di_text unknown = {0};
    const char body[] = "{\"messages\":[1],\"temprature\":0,\"nothing\":null,\"stream_options\":{\"x\":1},\"thinking\":"
                        "{\"type\":\"enabled\"}}";
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, body, strlen(body), false, &unknown, &error), DI_OK);
    assert_string_equal(unknown.data, "temprature, stream_options.x");
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, body, strlen(body), true, &unknown, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "temprature");
    assert_non_null(strstr(error.message, "did you mean \"temperature\"?"));
    di_text_free(&unknown);
    di_text many = {0};
    di_text_puts(&many, "{\"messages\":[1]");
    for (int i = 0; i < 300; i++) di_text_printf(&many, ",\"f%d\":1", i);
    di_text_puts(&many, "}");
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, many.data, many.length, false, &unknown, &error),
                     DI_ERR_INVALID_ARGUMENT);
    di_text_free(&many);
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, "[]", 2, false, &unknown, &error), DI_ERR_INVALID_ARGUMENT);
    di_text_free(&unknown);
}

/* Whether the endpoint has the row, and whether rows look into the object that it lies in (true without one). */
static void find_places(int endpoint, const char *path, bool *here, bool *looked_into) {
    const char *dot = strchr(path, '.');
    size_t count, length = dot ? (size_t)(dot - path) + 1 : 0;
    const di_field *rows = di_fields(&count);
    *here = false;
    *looked_into = !dot;
    for (size_t i = 0; i < count; i++) {
        if (!(rows[i].endpoints & 1U << endpoint)) continue;
        *here |= strcmp(rows[i].path, path) == 0;
        *looked_into |= strncmp(rows[i].path, path, length) == 0;
    }
}

/* A field of another endpoint is ignored in truth: whatever it holds, nobody reads it. */
static void foreign_row(int endpoint, const di_field *row) {
    static const char *const values[] = {"-4294967296", "1e400", "\"x\\u0000\"", "[[]]", "{\"a\":[1]}", "true", "null"};
    const char *dot = strchr(row->path, '.');
    for (int e = 0; e < DI_ENDPOINT_COUNT; e++) {
        bool here, looked_into;
        find_places(e, row->path, &here, &looked_into);
        if (here || !looked_into || e == endpoint) continue;
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            di_text body = {0}, left = {0};
            make_body(&body, 1U << e, row->path, values[i], false);
            if (dot) di_text_printf(&left, ",\"%.*s\":{}", (int)(dot - row->path), row->path);
            put_required(&left, 1U << e, row->path);
            di_text_puts(&left, left.length ? "}" : "{}");
            if (left.data[0] == ',') left.data[0] = '{';
            left_is((di_endpoint)e, body.data, left.data);
            di_text_free(&body);
            di_text_free(&left);
        }
    }
}

static void fields_of_other_endpoints_are_not_left(void **state) {
    (void)state;
    for_every_row(foreign_row);
}

static void unknown_and_null_are_not_left(void **state) {
    (void)state;
    left_is(DI_ENDPOINT_CHAT,
            "{\"x\":1,\"messages\":[{\"x\":null}],\"n\":null,\"stream_options\":{\"x\":1},\"seed\":3}",
            "{\"messages\":[{\"x\":null}],\"stream_options\":{},\"seed\":3}");
    left_is(
        DI_ENDPOINT_CHAT,
        "{\"messages\":[1],\"chat_template_kwargs\":{\"a\":null,\"thinking\":true,\"b\":2},\"metadata\":{\"a\":null}}",
        "{\"messages\":[1],\"chat_template_kwargs\":{\"thinking\":true},\"metadata\":{\"a\":null}}");
}

/* {"k0": VALUE, ...} */
static void put_members(di_text *text, size_t count, const char *value) {
    di_text_puts(text, "{");
    for (size_t i = 0; i < count; i++) di_text_printf(text, "%s\"%zu\":%s", i ? "," : "", i, value);
    di_text_puts(text, "}");
}

static di_status check_with(const char *field, const char *before, size_t count, const char *after, di_error *error) {
    di_text body = {0}, unknown = {0};
    di_text_printf(&body, "{\"messages\":[1],\"%s\":%s", field, before);
    put_members(&body, count, "{}");
    di_text_printf(&body, "%s}", after);
    di_status status = check_text(DI_ENDPOINT_CHAT, body.data, body.length, false, &unknown, error);
    assert_int_equal(unknown.length, 0);
    di_text_free(&body);
    return status;
}

/* An object may have as many members as its own limit says; of a schema nothing is checked, not even what is twice. */
static void large_objects_have_limits_of_their_own(void **state) {
    (void)state;
    di_error error;
    assert_int_equal(check_with("logit_bias", "", 1024, "", &error), DI_OK);
    assert_int_equal(check_with("logit_bias", "", 1025, "", &error), DI_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "--limit-logit-bias"));
    static const char twice[] = "{\"messages\":[1],\"logit_bias\":{\"5\":1,\"7\":1,\"5\":2}}";
    di_text unknown = {0};
    assert_int_equal(check_text(DI_ENDPOINT_CHAT, twice, strlen(twice), false, &unknown, &error),
                     DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "logit_bias.5");
    static const struct {
        const char *field, *before, *after;
    } schemas[] = {{"guided_json", "{\"a\":1,\"a\":2,\"properties\":", "}"},
                   {"structured_outputs", "{\"json\":{\"a\":1,\"a\":2,\"properties\":", "}}"},
                   {"response_format", "{\"json_schema\":{\"schema\":{\"a\":1,\"a\":2,\"properties\":", "}}}"},
                   {"tools", "[{\"function\":{\"parameters\":{\"a\":1,\"a\":2,\"properties\":", "}}}]"}};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        if (check_with(schemas[i].field, schemas[i].before, 2000, schemas[i].after, &error) != DI_OK)
            fail_msg("%s: %s", schemas[i].field, error.message);
    assert_int_equal(check_with("tools", "[", 257, "]", &error), DI_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "tools[0] has 257 members; at most 256"));
}

/* docs/api.md holds the generated lists. */
static void the_document_is_up_to_date(void **state) {
    (void)state;
    di_text lists = {0};
    char *document = NULL;
    size_t length;
    di_error error;
    di_api_write_markdown(&lists);
    assert_false(lists.failed);
    assert_int_equal(di_read_file(DI_SOURCE_DIR "/docs/api.md", 1 << 20, &document, &length, &error), DI_OK);
    const char *begin = strstr(document, "## Routes\n");
    assert_non_null(begin);
    if (strcmp(begin, lists.data) != 0) {
        FILE *file = fopen("api-lists.md", "w");
        if (file) fwrite(lists.data, 1, lists.length, file);
        if (file) fclose(file);
        fail_msg("docs/api.md is old: put api-lists.md behind its head, or run make docs");
    }
    di_free(document);
    di_text_free(&lists);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_sound),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(a_member_given_twice_is_refused),
        cmocka_unit_test(null_counts_as_absent),
        cmocka_unit_test(what_is_not_available_is_refused_by_name),
        cmocka_unit_test(limits_are_those_of_the_configuration),
        cmocka_unit_test(unknown_fields_are_named),
        cmocka_unit_test(fields_of_other_endpoints_are_not_left),
        cmocka_unit_test(unknown_and_null_are_not_left),
        cmocka_unit_test(large_objects_have_limits_of_their_own),
        cmocka_unit_test(the_document_is_up_to_date),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
