/* The format's control tokens, profiles and efforts. */
#include "recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

typedef struct control_row {
    const char *text;
    int32_t id; /* in the published vocabulary */
} control_row;

enum { PUBLISHED_VOCABULARY = 129280, ENCODER_LIMIT = 4 << 20 };

static const control_row controls[DI_CONTROL_COUNT] = {
    [DI_CONTROL_BOS] = {"<｜begin▁of▁sentence｜>", 0},
    [DI_CONTROL_EOS] = {"<｜end▁of▁sentence｜>", 1},
    [DI_CONTROL_SYSTEM] = {"<｜System｜>", 128799},
    [DI_CONTROL_USER] = {"<｜User｜>", 128803},
    [DI_CONTROL_ASSISTANT] = {"<｜Assistant｜>", 128804},
    [DI_CONTROL_THINK] = {"<think>", 128821},
    [DI_CONTROL_THINK_END] = {"</think>", 128822},
    [DI_CONTROL_DSML] = {"｜DSML｜", 128825},
    [DI_CONTROL_LATEST_REMINDER] = {"<｜latest_reminder｜>", 128828},
    [DI_CONTROL_IMAGE] = {"<｜deepseek_image｜>", 129264},
    [DI_CONTROL_FIM_BEGIN] = {"<｜fim▁begin｜>", 128801},
    [DI_CONTROL_FIM_HOLE] = {"<｜fim▁hole｜>", 128800},
    [DI_CONTROL_FIM_END] = {"<｜fim▁end｜>", 128802},
    [DI_CONTROL_ACTION] = {"<｜action｜>", 128829},
    [DI_CONTROL_QUERY] = {"<｜query｜>", 128830},
    [DI_CONTROL_AUTHORITY] = {"<｜authority｜>", 128831},
    [DI_CONTROL_DOMAIN] = {"<｜domain｜>", 128832},
    [DI_CONTROL_READ_URL] = {"<｜read_url｜>", 128845},
    [DI_CONTROL_TITLE] = {"<｜title｜>", 128836},
    [DI_CONTROL_EXTRACTED_URL] = {"<｜extracted_url｜>", 128844},
    [DI_CONTROL_REF] = {"<｜ref｜>", 129278},
    [DI_CONTROL_REF_END] = {"<｜/ref｜>", 129277},
    [DI_CONTROL_BOX] = {"<｜box｜>", 129276},
    [DI_CONTROL_BOX_END] = {"<｜/box｜>", 129275},
    [DI_CONTROL_POINT] = {"<｜point｜>", 129274},
    [DI_CONTROL_POINT_END] = {"<｜/point｜>", 129273},
    [DI_CONTROL_POLYGON] = {"<｜polygon｜>", 129272},
    [DI_CONTROL_POLYGON_END] = {"<｜/polygon｜>", 129271},
};

const char *di_control_text(di_control control) {
    return controls[control].text;
}

static const char *const profiles[] = {"v4.1", "v4-0731", "v4-preview"};

const char *di_recipe_profile_name(di_recipe_profile profile) {
    return profiles[profile];
}

/* True if the encoder that lies in the checkpoint knows the text of the July revision. */
static bool encoder_knows(const char *folder, const char *file, const char *words) {
    di_text path = {0};
    char *text = NULL;
    size_t length = 0;
    di_text_printf(&path, "%s/encoding/%s", folder, file);
    bool found = !path.failed && di_read_file(path.data, ENCODER_LIMIT, &text, &length, NULL) == DI_OK &&
                 strstr(text, words) != NULL;
    free(text);
    di_text_free(&path);
    return found;
}

di_recipe_profile di_recipe_detect(const char *folder, const di_tokenizer *tokenizer) {
    static const char *const files[] = {"encoding_dsv4.py", "encoding.py"};
    if (di_tokenizer_added_id(tokenizer, controls[DI_CONTROL_SYSTEM].text) >= 0) return DI_RECIPE_V41;
    for (size_t i = 0; folder && i < sizeof files / sizeof *files; i++)
        if (encoder_knows(folder, files[i], "Beyond maximum")) return DI_RECIPE_V4_0731;
    return DI_RECIPE_V4_PREVIEW;
}

di_status di_recipe_open(const di_tokenizer *tokenizer, di_recipe_profile profile, di_log *log, di_recipe *recipe,
                         di_error *error) {
    di_text missing = {0};
    bool published = di_tokenizer_vocabulary(tokenizer) == PUBLISHED_VOCABULARY;
    recipe->profile = profile;
    for (int i = 0; i < DI_CONTROL_COUNT; i++) {
        const control_row *row = &controls[i];
        recipe->ids[i] = di_tokenizer_added_id(tokenizer, row->text);
        bool required = i < DI_CONTROL_REQUIRED || (i == DI_CONTROL_SYSTEM && profile == DI_RECIPE_V41);
        if (required && recipe->ids[i] < 0) {
            if (missing.length) di_text_puts(&missing, ", ");
            di_text_puts(&missing, row->text);
        } else if (published && recipe->ids[i] != row->id && (recipe->ids[i] >= 0 || profile == DI_RECIPE_V41)) {
            di_log_write(log, DI_LOG_WARN, "recipe", "token %s has id %d in this tokenizer, not %d as published",
                         row->text, recipe->ids[i], row->id);
        }
    }
    di_status status = DI_OK;
    if (missing.failed)
        status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory while reading the chat format");
    else if (missing.length)
        status = di_fail(error, DI_ERR_UNSUPPORTED, "tokenizer.json",
                         "chat needs control tokens that the model's tokenizer lacks: %s", missing.data);
    di_text_free(&missing);
    return status;
}

void di_recipe_options_default(di_recipe_options *options) {
    *options = (di_recipe_options){.thinking = true, .effort = DI_EFFORT_HIGH};
}

di_status di_recipe_history_parse(const char *name, di_recipe_history *history, di_error *error) {
    static const char *const names[] = {"recipe", "reference", "keep"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0) {
            *history = (di_recipe_history)i;
            return DI_OK;
        }
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, "reasoning-history",
                   "reasoning-history \"%.40s\" is not known; it is recipe, reference or keep", name);
}

di_status di_recipe_effort_parse(const char *text, di_recipe_options *options, di_error *error) {
    static const char *const names[] = {"minimal", "low", "medium", "high", "xhigh", "max", "ultra"};
    if (strcmp(text, "none") == 0) {
        options->thinking = false;
        return DI_OK;
    }
    for (int i = 0; i < DI_EFFORT_NUMBER; i++)
        if (strcmp(text, names[i]) == 0) {
            options->effort = (di_effort)i;
            return DI_OK;
        }
    int value = 0;
    size_t digits = 0;
    for (; text[digits] >= '0' && text[digits] <= '9' && digits < 4; digits++)
        value = value * 10 + (text[digits] - '0');
    if (digits && !text[digits] && text[0] != '0' && value <= 100) {
        options->effort = DI_EFFORT_NUMBER;
        options->effort_number = value;
        return DI_OK;
    }
    return di_fail(
        error, DI_ERR_INVALID_ARGUMENT, "reasoning_effort",
        "reasoning effort \"%.40s\" is not known; it is none, minimal, low, medium, high, xhigh, max, ultra or "
        "1 .. 100",
        text);
}
