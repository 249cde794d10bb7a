/* needs: recipe tokenizer base */
/* The trained texts and the worked examples of the format, by length and SHA-256: every profile, both rules of
 * retention, tools, formats, prefixes, reminders, quick instructions, images, fill-in-the-middle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "recipe/recipe_internal.h"
#include "support/recipes.h"
#include "support/sha256.h"

#include <string.h>

static di_recipe recipes[3];

static int set_up(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) recipes[i] = di_recipe_over(NULL, (di_recipe_profile)i);
    return 0;
}

static void check(const char *what, const char *text, size_t length, size_t expected, const char *sha256) {
    char digest[17];
    di_sha256_hex(text, length, digest, 16);
    if (length != expected || strcmp(digest, sha256) != 0)
        fail_msg("%s: %zu bytes, %s, not %zu, %s: %.400s", what, length, digest, expected, sha256, text);
}

static void test_literals(void **state) {
    (void)state;
    static const struct {
        const char *name, *text;
        size_t length;
        const char *sha256;
    } rows[] = {
        {"A", di_effort_absolute, 476, "f7a24f3b3050d4a8"},
        {"B", di_effort_beyond, 528, "53fb31b8392ec5b4"},
        {"V4 head", di_tools_head_v4, 890, "c7c9042638154a23"},
        {"V4.1 head", di_tools_head_v41, 884, "2ae2ff83edf99018"},
        {"tail", di_tools_tail, 99, "690702850fe25651"},
        {"format", di_format_head, 80, "5200f58413f49f39"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(rows[i].name, rows[i].text, strlen(rows[i].text), rows[i].length, rows[i].sha256);
}

#define SYSTEM_HELLO                                                                                                   \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You are helpful.\"},{\"role\":\"user\",\"content\":\"Hello\"}]"
#define HI   "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define CHAT ",\"thinking\":false"
#define TURNS(reasoning)                                                                                               \
    "\"messages\":[{\"role\":\"user\",\"content\":\"A?\"},{\"role\":\"assistant\",\"content\":\"a1\"" reasoning        \
    "},{\"role\":\"user\",\"content\":\"B?\"}]"
#define R1 ",\"reasoning_content\":\"r1\""
/* The third call has no result in the example: the message at 5 is taken out again. */
#define CALLS                                                                                                            \
    "\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Q\"},{\"role\":"             \
    "\"assistant\","                                                                                                     \
    "\"content\":\"ok\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\\\"x<"   \
    "y "                                                                                                                 \
    "\\\\\\\"q\\\\\\\"\\\",\\\"n\\\":[1,2.0,1e-5],\\\"b\\\":true,\\\"o\\\":{\\\"k\\\":null,\\\"é\\\":\\\"中\\\"}}\"}}" \
    ",{"                                                                                                                 \
    "\"id\":\"c2\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}},{\"id\":\"c3\",\"function\":{\"name\":\"h\","     \
    "\"arguments\":\"oops\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"two\"},{\"role\":\"tool\","     \
    "\"tool_call_id\":\"c1\",\"content\":\"one\"},{\"role\":\"tool\",\"tool_call_id\":\"c3\",\"content\":\"\"},{"        \
    "\"role\":"                                                                                                          \
    "\"user\",\"content\":\"go on\"}]"
#define JSON_PLEASE                                                                                                    \
    "\"messages\":[{\"role\":\"user\",\"content\":\"json please\"}],\"response_format\":{\"type\":\"json_object\"}"
#define MIDDLE                                                                                                         \
    "\"messages\":[{\"role\":\"system\",\"content\":\"S1\"},{\"role\":\"user\",\"content\":\"u\"},{\"role\":"          \
    "\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"},{\"role\":\"system\",\"content\":\"S2\"}]"
#define REMINDED                                                                                                       \
    "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"},{\"role\":"        \
    "\"latest_"                                                                                                        \
    "reminder\",\"content\":\"Be brief.\"}]"
#define TASK(name) "\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"task\":\"" name "\"}]"
#define FINISHED                                                                                                       \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"},{\"role\":\"user\",\"content\":" \
    "\"Hello\"},{\"role\":\"assistant\",\"content\":\"Hi there! How can I help "                                       \
    "you?\",\"reasoning_content\":\"greeting\"},"                                                                      \
    "{\"role\":\"user\",\"content\":\"What is the capital of France?\"},{\"role\":\"assistant\",\"content\":\"The "    \
    "capital "                                                                                                         \
    "of France is Paris.\",\"reasoning_content\":\"The user asks about the capital of France. It is Paris.\"}]"
#define WEATHER                                                                                                        \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather by city\","   \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"location\":{\"type\":\"string\"}},\"required\":["           \
    "\"location\"]}}}]"
#define LOOP                                                                                                           \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You are helpful.\"},{\"role\":\"user\",\"content\":\"Weather "   \
    "in "                                                                                                              \
    "Paris?\"},{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"Need tool.\",\"tool_calls\":[{\"id\":" \
    "\"c\",\"function\":{\"name\":\"get_weather\",\"arguments\":\"{\\\"location\\\": \\\"Paris\\\"}\"}}]},{\"role\":"  \
    "\"tool\",\"tool_call_id\":\"c\",\"content\":\"20C\"}]"

enum { V41 = DI_RECIPE_V41, V4 = DI_RECIPE_V4_0731, PREVIEW = DI_RECIPE_V4_PREVIEW };
enum { KEEP = 1, REFERENCE = 2, NO_HEADER = 4, WITHOUT_5 = 8 };

typedef struct example {
    const char *name, *request;
    int profile, flags;
    size_t length;
    const char *sha256;
} example;

static const example examples[] = {
    {"1 V4", "{" SYSTEM_HELLO CHAT "}", V4, 0, 87, "92d1190346732d1f"},
    {"1 V4.1", "{" SYSTEM_HELLO CHAT "}", V41, 0, 101, "b2c06dc0d20caa40"},
    {"2 preview", "{" SYSTEM_HELLO "}", PREVIEW, 0, 86, "33ebb7589306b7c6"},
    {"2 0731", "{" SYSTEM_HELLO "}", V4, 0, 562, "0c6c30055dd7d76c"},
    {"2 V4.1", "{" SYSTEM_HELLO "}", V41, 0, 191, "07150d4004c6334d"},
    {"3 low", "{" HI ",\"reasoning_effort\":\"low\"}", V41, 0, 172, "a1985ac9f8739ae1"},
    {"3 max", "{" HI ",\"reasoning_effort\":\"max\"}", V41, 0, 173, "ac1cc915521edbb9"},
    {"3 0731 max", "{" HI ",\"reasoning_effort\":\"max\"}", V4, 0, 595, "c373b4e8c82cedaf"},
    {"4 dropped", "{" TURNS(R1) "}", V41, 0, 240, "6cb53a7a38ee5dca"},
    {"4 reference", "{" TURNS(R1) "}", V41, REFERENCE, 240, "6cb53a7a38ee5dca"},
    {"4 kept", "{" TURNS(R1) "}", V41, KEEP, 249, "a6b1ae059cc11e0f"},
    {"4 chat", "{" TURNS(R1) CHAT "}", V41, KEEP, 136, "669f1a76fd58bf25"},
    {"5 dropped", "{" TURNS("") "}", V41, 0, 240, "6cb53a7a38ee5dca"},
    {"5 kept", "{" TURNS("") "}", V41, KEEP, 247, "1d551f87dc5bc1fb"},
    {"6 V4.1", "{" CALLS CHAT "}", V41, WITHOUT_5, 818, "8589000e1380a15d"},
    {"7 V4.1", "{" JSON_PLEASE CHAT "}", V41, 0, 196, "e094ac3fc8ebde1e"},
    {"7 V4", "{" JSON_PLEASE CHAT "}", V4, 0, 181, "d1c5508df64669f8"},
    {"8",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Write\"},{\"role\":\"assistant\",\"content\":\"```python\\n\","
     "\"prefix\":true}]" CHAT "}",
     V41, 0, 81, "7d8099b5f73a2f23"},
    {"8 continue_final_message",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Write\"},{\"role\":\"assistant\",\"content\":\"```python\\n\"}],"
     "\"continue_final_message\":true,\"add_generation_prompt\":false" CHAT "}",
     V4, 0, 81, "7d8099b5f73a2f23"},
    {"9",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Write\"},{\"role\":\"assistant\",\"content\":\"Sure\","
     "\"reasoning_"
     "content\":\"ok\",\"prefix\":true}]}",
     V41, 0, 189, "54eeab01938199c0"},
    {"10", "{" MIDDLE "}", V41, 0, 242, "298d6b5e8ce142d6"},
    {"10 kept", "{" MIDDLE "}", V41, KEEP, 250, "577391ed2004762d"},
    {"11",
     "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"latest_reminder\",\"content\":\"2026-10-20,"
     "Tuesday\"},{\"role\":\"user\",\"content\":\"u\"}]}",
     V41, 0, 213, "63f0d0ab92562fc3"},
    {"12", "{" REMINDED "}", V41, 0, 256, "c889b22ae479955a"},
    {"12 kept", "{" REMINDED "}", V41, KEEP, 263, "8a1706a2f3931f4e"},
    {"12 no header", "{" REMINDED ",\"add_generation_prompt\":false}", V41, KEEP, 239, "9f80dfbf5e38f5e6"},
    {"13", "{" TASK("action") "}", PREVIEW, 0, 80, "127889bf0632e881"},
    {"13 chat", "{" TASK("action") CHAT "}", PREVIEW, 0, 81, "c06ebe5cf4d0614a"},
    {"14", "{" TASK("query") "}", PREVIEW, 0, 55, "19a529e2478b4d3b"},
    {"14 chat", "{" TASK("query") CHAT "}", PREVIEW, 0, 55, "19a529e2478b4d3b"},
    {"15",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"task\":"
     "\"title\"}]" CHAT "}",
     PREVIEW, 0, 108, "b6984e2da98828f6"},
    {"16", "{" FINISHED "}", PREVIEW, REFERENCE | NO_HEADER, 342, "ca66b01a1ac3a204"},
    {"18",
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"What is "
     "this?\"},{\"type\":\"image_url\","
     "\"image_url\":{\"url\":\"u\"}}]}]" CHAT "}",
     V41, 0, 103, "5ef26b59ddfa6234"},
    {"19", "{" LOOP WEATHER "}", V41, 0, 1645, "0ac83f18b21c2e2b"},
    {"19 preview", "{" LOOP WEATHER "}", PREVIEW, 0, 1550, "07d668bb9d682751"},
    {"20",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Weather?\"}]" WEATHER ",\"tool_choice\":\"required\"" CHAT "}",
     V41, 0, 1259, "9403b59a08871644"},
    {"21",
     "{\"messages\":[{\"role\":\"system\",\"content\":\"You are "
     "helpful.\"},{\"role\":\"user\",\"content\":\"Weather?\"}]" WEATHER CHAT "}",
     V4, 0, 1246, "c1a5f4f63ea03059"},
};

static void render(di_arena *arena, const example *e, di_prompt *prompt) {
    const di_json *request;
    di_conversation conversation;
    di_recipe_options options;
    di_error error = {0};
    di_recipe_options_default(&options);
    options.images = true;
    if (e->flags & KEEP) options.history = DI_HISTORY_KEEP;
    if (e->flags & REFERENCE) options.history = DI_HISTORY_REFERENCE;
    if (di_json_parse(arena, e->request, strlen(e->request), 0, &request, &error) != DI_OK ||
        di_recipe_parse_request(arena, DI_FLAVOUR_CHAT, request, &conversation, &options, &error) != DI_OK)
        fail_msg("%s: %s", e->name, error.message);
    if (e->flags & NO_HEADER) options.no_header = true;
    di_message *messages = di_arena_array(arena, conversation.count, sizeof *messages);
    size_t count = 0;
    for (size_t i = 0; i < conversation.count; i++)
        if (i != 5 || !(e->flags & WITHOUT_5)) messages[count++] = conversation.messages[i];
    conversation.messages = messages;
    conversation.count = count;
    if (di_recipe_render(&recipes[e->profile], &conversation, &options, arena, prompt, &error) != DI_OK)
        fail_msg("%s: %s", e->name, error.message);
}

static void test_examples(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        di_arena *arena = di_arena_new(0);
        di_prompt prompt;
        render(arena, &examples[i], &prompt);
        check(examples[i].name, prompt.text, prompt.length, examples[i].length, examples[i].sha256);
        di_arena_free(arena);
    }
}

/* V4 as served merges what stands in the middle into the front. */
static void test_v4_system(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_prompt prompt;
    render(arena, &(example){"10 V4", "{" MIDDLE ",\"reasoning_effort\":\"low\"}", V4, 0, 0, ""}, &prompt);
    assert_string_equal(prompt.text,
                        "<｜begin▁of▁sentence｜>S1\n\nS2<｜User｜>u<｜Assistant｜></think>a<｜end▁of▁sentence｜>"
                        "<｜Assistant｜><think>");
    di_arena_free(arena);
}

/* Tool loops: the reference rule keeps their reasoning also without declared tools. */
static void test_reference_history(void **state) {
    (void)state;
    static const struct {
        const char *request, *tail;
    } rows[] = {
        {"{" LOOP "}", "<｜Assistant｜><think>Need tool.</think>\n\n"},
        {"{" FINISHED "}",
         "<｜Assistant｜></think>Hi there! How can I help you?<｜end▁of▁sentence｜><｜User｜>What is the "
         "capital of France?<｜Assistant｜><think>The user asks"},
    };
    for (size_t i = 0; i < 2; i++) {
        di_arena *arena = di_arena_new(0);
        di_prompt prompt;
        render(arena, &(example){"", rows[i].request, V41, REFERENCE, 0, ""}, &prompt);
        assert_non_null(strstr(prompt.text, rows[i].tail));
        di_arena_free(arena);
    }
}

static void test_completion(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_prompt prompt;
    assert_int_equal(
        di_recipe_render_completion(&recipes[V41], "def f(", 6, "    return x\n", 13, arena, &prompt, NULL), DI_OK);
    check("17", prompt.text, prompt.length, 102, "a74d64201e5dc42a");
    assert_int_equal(prompt.count, 6);
    assert_int_equal(di_recipe_render_completion(&recipes[V41], "<think>", 7, NULL, 0, arena, &prompt, NULL), DI_OK);
    assert_string_equal(prompt.text, "<｜begin▁of▁sentence｜><think>");
    assert_int_equal(prompt.count, 2);
    assert_int_equal(prompt.control_ids[1], -1);
    di_recipe bare = recipes[V41];
    di_error error = {0};
    bare.ids[DI_CONTROL_FIM_HOLE] = -1;
    assert_int_equal(di_recipe_render_completion(&bare, "a", 1, "b", 1, arena, &prompt, &error), DI_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "<｜fim▁hole｜>"));
    di_arena_free(arena);
}

/* A URL follows its question directly; later answers follow the task's token. */
static void test_tasks(void **state) {
    (void)state;
    static const struct {
        const char *request, *prompt;
    } rows[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"},{\"type\":\"extracted_"
         "url\","
         "\"url\":\"http://u\"}],\"task\":\"read_url\"}]}",
         "<｜begin▁of▁sentence｜><｜User｜>q<｜extracted_url｜>http://u<｜read_url｜>"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"task\":\"domain\"},{\"role\":\"assistant\",\"content\":"
         "\"x\"},{"
         "\"role\":\"user\",\"content\":\"r\",\"task\":\"authority\"}]}",
         "<｜begin▁of▁sentence｜><｜User｜>q<｜domain｜>x<｜end▁of▁sentence｜><｜User｜>r<｜authority｜>"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"task\":\"action\"},{\"role\":\"assistant\",\"content\":"
         "\"Search\"},{\"role\":\"user\",\"content\":\"r\"}]}",
         "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think><｜action｜>Search<｜end▁of▁sentence｜><｜User｜>r<"
         "｜Assistant｜"
         "><think>"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_arena *arena = di_arena_new(0);
        di_prompt prompt;
        render(arena, &(example){"", rows[i].request, PREVIEW, 0, 0, ""}, &prompt);
        assert_string_equal(prompt.text, rows[i].prompt);
        di_arena_free(arena);
    }
}

static void test_efforts(void **state) {
    (void)state;
    static const struct {
        const char *effort;
        int profile;
        const char *begins; /* NULL: refused */
    } rows[] = {
        {"\"minimal\"", V4, ""},
        {"\"low\"", V4, ""},
        {"\"medium\"", V4, "Reasoning Effort: Absolute"},
        {"\"xhigh\"", V4, "Reasoning Effort: Absolute"},
        {"\"ultra\"", V4, "Reasoning Effort: Beyond"},
        {"50", V4, NULL},
        {"\"low\"", PREVIEW, NULL},
        {"\"medium\"", PREVIEW, NULL},
        {"\"high\"", PREVIEW, ""},
        {"\"ultra\"", PREVIEW, NULL},
        {"1", PREVIEW, NULL},
        {"\"max\"", PREVIEW, "Reasoning Effort: Absolute"},
        {"\"xhigh\"", PREVIEW, "Reasoning Effort: Absolute"},
        {"100", V41, "<｜System｜>Reasoning Effort: 100 (range"},
        {"\"minimal\"", V41, "<｜System｜>Reasoning Effort: 50 ("},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_arena *arena = di_arena_new(0);
        di_text text = {0}, begins = {0};
        const di_json *request;
        di_conversation conversation;
        di_recipe_options options;
        di_prompt prompt;
        di_error error = {0};
        di_text_printf(&text, "{" HI ",\"reasoning_effort\":%s}", rows[i].effort);
        di_recipe_options_default(&options);
        assert_int_equal(di_json_parse(arena, text.data, text.length, 0, &request, NULL), DI_OK);
        assert_int_equal(di_recipe_parse_request(arena, DI_FLAVOUR_CHAT, request, &conversation, &options, NULL),
                         DI_OK);
        di_status status = di_recipe_render(&recipes[rows[i].profile], &conversation, &options, arena, &prompt, &error);
        if (rows[i].begins) {
            di_text_printf(&begins, "<｜begin▁of▁sentence｜>%s%s", rows[i].begins, *rows[i].begins ? "" : "<｜User｜>");
            assert_int_equal(status, DI_OK);
            if (strncmp(prompt.text, begins.data, begins.length) != 0) fail_msg("row %zu: %.80s", i, prompt.text);
        } else {
            assert_int_equal(status, DI_ERR_INVALID_ARGUMENT);
            assert_string_equal(error.param, "reasoning_effort");
        }
        di_text_free(&text);
        di_text_free(&begins);
        di_arena_free(arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literals),          cmocka_unit_test(test_examples),   cmocka_unit_test(test_v4_system),
        cmocka_unit_test(test_reference_history), cmocka_unit_test(test_completion), cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_efforts),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
