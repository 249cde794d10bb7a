/* config_help.c - help lines and docs/configuration.md from the configuration table; see config.h. */
#include "base/config.h"

#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 34, SCREEN_COLUMNS = 80 };

/* What stands for the value in a help line: "N", "off|compact", ... */
static const char *placeholder(const di_config_row *row) {
    switch (row->type) {
    case DI_CONFIG_TYPE_BOOL:
        return "";
    case DI_CONFIG_TYPE_INT:
    case DI_CONFIG_TYPE_UINT64:
        return "N";
    case DI_CONFIG_TYPE_SIZE:
        return "SIZE";
    case DI_CONFIG_TYPE_FLOAT:
        return "X";
    case DI_CONFIG_TYPE_CHOICE:
        return row->choices;
    case DI_CONFIG_TYPE_STRING:
        return "TEXT";
    }
    return "";
}

/* Is `name` one of the space-separated words of `list`? */
static bool in_list(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *word = list; *word;) {
        size_t size = strcspn(word, " ");
        if (size == length && memcmp(word, name, size) == 0) return true;
        word += size;
        word += strspn(word, " ");
    }
    return false;
}

/* Words of a help text from HELP_COLUMN to the screen's right edge; `width` columns of the first line are taken. */
static void write_wrapped(di_text *out, int width, const char *text) {
    for (const char *word = text; *word;) {
        int length = (int)strcspn(word, " ");
        if (width > HELP_COLUMN && width + 1 + length > SCREEN_COLUMNS) {
            di_text_putc(out, '\n');
            width = 0;
        }
        int space = width < HELP_COLUMN ? HELP_COLUMN - width : 1;
        di_text_printf(out, "%*s%.*s", space, "", length, word);
        width += space + length;
        word += length;
        word += strspn(word, " ");
    }
    di_text_putc(out, '\n');
}

void di_config_write_help(di_text *out, const char *groups) {
    const di_config_row *rows = di_config_rows();
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        const di_config_row *row = &rows[i];
        if (!in_list(groups, row->group)) continue;
        char left[160];
        const char *value = placeholder(row);
        int width = snprintf(left, sizeof left, "  --%s%s%s", row->name, *value ? " " : "", value);
        di_text_puts(out, left);
        /* A long left side gets a line of its own. */
        if (width >= HELP_COLUMN) {
            di_text_putc(out, '\n');
            width = 0;
        }
        char help[512];
        bool shown = row->type != DI_CONFIG_TYPE_BOOL && row->value[0];
        snprintf(help, sizeof help, shown ? "%s [%s]" : "%s", row->help, row->value);
        write_wrapped(out, width, help);
    }
}

static void write_group(di_text *out, const char *group) {
    const di_config_row *rows = di_config_rows();
    di_text_printf(out, "\n## %s\n\n| Option | Values | Default | Meaning |\n|---|---|---|---|\n", group);
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        const di_config_row *row = &rows[i];
        if (strcmp(row->group, group) != 0) continue;
        di_text_printf(out, "| `--%s` | ", row->name);
        di_config_write_values(out, row);
        if (row->value[0]) {
            di_text_printf(out, " | `%s` | %s |\n", row->value, row->help);
        } else {
            di_text_printf(out, " | | %s |\n", row->help);
        }
    }
}

static const char introduction[] =
    "# Configuration\n"
    "\n"
    "Made by `deepinfer help configuration-markdown` from the configuration table in `src/base/config_table.h`; do "
    "not\n"
    "edit.\n"
    "\n"
    "A value comes from, weakest first: the default, the file given with `--config`, the environment, the command "
    "line.\n"
    "Every value is checked, also one that a stronger source replaces. An unknown name is an error that names the\n"
    "nearest known one.\n"
    "\n"
    "- Command line: `--max-rows 64` or `--max-rows=64`; an on/off option alone means on: `--quiet`.\n"
    "- Environment: `DEEPINFER_` and the name in upper case with underscores: `DEEPINFER_MAX_ROWS=64`. An unknown\n"
    "  variable that begins with `DEEPINFER_` is an error.\n"
    "- File: one `max-rows = 64` a line; lines that begin with `#` are comments; each option once.\n"
    "- Sizes take the suffixes k, M, G and T (powers of 1024).\n"
    "\n"
    "## Variables of DeepSeek's DeepInfer\n"
    "\n"
    "| Variable | Here |\n"
    "|---|---|\n"
    "| `DEEPINFER_BATCH_INVARIANT` | `1` is always so; `0` is accepted with a note: there is nothing to switch off |\n"
    "| `DEEPINFER_ENABLE_MTP_VARLEN` | `1`: `--spec auto`; `0`: a fixed number of drafts, 5 if the next one says "
    "nothing |\n"
    "| `DEEPINFER_USE_NEXTN_DECODE` | `0`: `--spec off`; N: `--spec N`, 8 at most, or `auto` if the one above "
    "is `1` |\n";

void di_config_write_markdown(di_text *out) {
    const di_config_row *rows = di_config_rows();
    di_text_puts(out, introduction);
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        if (rows[i].seed_name[0]) di_text_printf(out, "| `%s` | `--%s` |\n", rows[i].seed_name, rows[i].name);
    }
    /* Groups in the order of their first row. */
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        bool first = true;
        for (size_t j = 0; j < i && first; j++) first = strcmp(rows[j].group, rows[i].group) != 0;
        if (first) write_group(out, rows[i].group);
    }
}
