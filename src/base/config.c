/* config.c - the configuration table's values: defaults < file < environment < command line; see config.h. The only
 * file that reads the environment. */
#include "base/config.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static const di_config_row rows[DI_OPT_COUNT] = {
#define DI_CONFIG_ROW(id, row_name, row_type, row_value, row_minimum, row_maximum, row_choices, row_seed_name,         \
                      row_group, row_help)                                                                             \
    [DI_OPT_##id] = {.name = (row_name),                                                                               \
                     .type = (row_type),                                                                               \
                     .value = (row_value),                                                                             \
                     .minimum = (row_minimum),                                                                         \
                     .maximum = (row_maximum),                                                                         \
                     .choices = (row_choices),                                                                         \
                     .seed_name = (row_seed_name),                                                                     \
                     .group = (row_group),                                                                             \
                     .help = (row_help)},
#include "base/config_table.h"
#undef DI_CONFIG_ROW
};

static const char prefix[] = "DEEPINFER_";
enum { PREFIX_LENGTH = sizeof prefix - 1, FILE_LIMIT = 1 << 20, VARIABLE_LENGTH = 96, SHOWN_LENGTH = 80 };

/* A value in all its forms; which are meaningful depends on the row's type. */
typedef struct config_value {
    char *text;
    int64_t integer;
    uint64_t bits;
    double number;
    di_config_source source;
} config_value;

struct di_config {
    config_value values[DI_OPT_COUNT];
};

const di_config_row *di_config_rows(void) {
    return rows;
}

/* ------------------------------------------------------------------------------------------------------ values */

static bool parse_int64(const char *text, int64_t *value) {
    size_t digits = strspn(text + (*text == '-'), "0123456789");
    if (digits == 0 || text[(*text == '-') + digits]) return false;
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return errno == 0;
}

static bool parse_uint64(const char *text, uint64_t *value) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits]) return false;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    return errno == 0;
}

/* "64M": digits and at most one suffix. */
static bool parse_size(const char *text, int64_t *value) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 19) return false;
    unsigned shift = 0;
    if (text[digits]) {
        static const char suffixes[] = "kKmMgGtT";
        const char *found = strchr(suffixes, text[digits]);
        if (!found || text[digits + 1]) return false;
        shift = 10 * (unsigned)((found - suffixes) / 2 + 1);
    }
    errno = 0;
    unsigned long long number = strtoull(text, NULL, 10);
    if (errno || number > (unsigned long long)INT64_MAX >> shift) return false;
    *value = (int64_t)(number << shift);
    return true;
}

/* Plain decimal notation: strtod alone would also take "inf", "nan" and hexadecimal. */
static bool parse_float(const char *text, double *value) {
    if (*text == '\0' || text[strspn(text, "+-.0123456789eE")]) return false;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    char *end;
    *value = strtod_l(text, &end, plain);
    freelocale(plain);
    return *end == '\0' && end != text && isfinite(*value);
}

static bool parse_bool(const char *text, bool *value) {
    static const char *const yes[] = {"on", "true", "yes", "1"}, *const no[] = {"off", "false", "no", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *value = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* Is text one of "a|b|1..8"? *integer receives the number of a range choice, else 0. */
static bool parse_choice(const char *choices, const char *text, int64_t *integer) {
    size_t length = strlen(text);
    for (const char *choice = choices; *choice;) {
        size_t size = strcspn(choice, "|");
        long long low, high;
        int used = 0;
        if (sscanf(choice, "%lld..%lld%n", &low, &high, &used) == 2 && (size_t)used == size) {
            if (parse_int64(text, integer) && *integer >= low && *integer <= high) return true;
        } else if (size == length && memcmp(choice, text, size) == 0) {
            *integer = 0;
            return true;
        }
        choice += size + (choice[size] == '|');
    }
    return false;
}

static bool parse_value(const di_config_row *row, const char *text, config_value *out) {
    bool truth;
    switch (row->type) {
    case DI_CONFIG_TYPE_BOOL:
        if (!parse_bool(text, &truth)) return false;
        out->integer = truth;
        return true;
    case DI_CONFIG_TYPE_INT:
    case DI_CONFIG_TYPE_SIZE:
        if (!(row->type == DI_CONFIG_TYPE_INT ? parse_int64 : parse_size)(text, &out->integer)) return false;
        out->number = (double)out->integer;
        return out->number >= row->minimum && out->number <= row->maximum;
    case DI_CONFIG_TYPE_FLOAT:
        return parse_float(text, &out->number) && out->number >= row->minimum && out->number <= row->maximum;
    case DI_CONFIG_TYPE_CHOICE:
        return parse_choice(row->choices, text, &out->integer);
    case DI_CONFIG_TYPE_UINT64:
        return parse_uint64(text, &out->bits);
    case DI_CONFIG_TYPE_STRING:
        return (double)strlen(text) >= row->minimum;
    }
    return false;
}

void di_config_write_values(di_text *out, const di_config_row *row) {
    switch (row->type) {
    case DI_CONFIG_TYPE_BOOL:
        di_text_puts(out, "on or off (also true, false, yes, no, 1, 0)");
        return;
    case DI_CONFIG_TYPE_INT:
        di_text_printf(out, "an integer from %lld to %lld", (long long)row->minimum, (long long)row->maximum);
        return;
    case DI_CONFIG_TYPE_SIZE:
        di_text_printf(out, "a number of bytes from %lld to %lld (suffixes k, M, G, T)", (long long)row->minimum,
                       (long long)row->maximum);
        return;
    case DI_CONFIG_TYPE_FLOAT:
        di_text_printf(out, "a number from %.10g to %.10g", row->minimum, row->maximum);
        return;
    case DI_CONFIG_TYPE_UINT64:
        di_text_puts(out, "an integer from 0 to 18446744073709551615");
        return;
    case DI_CONFIG_TYPE_STRING:
        di_text_puts(out, "text");
        return;
    case DI_CONFIG_TYPE_CHOICE:
        break;
    }
    for (const char *choice = row->choices; *choice;) {
        size_t size = strcspn(choice, "|");
        bool first = choice == row->choices, last = choice[size] == '\0';
        di_text_puts(out, first ? "" : last ? " or " : ", ");
        di_text_append(out, choice, size);
        choice += size + !last;
    }
}

/* ----------------------------------------------------------------------------------------------- configuration */

di_config *di_config_new(void) {
    di_config *config = calloc(1, sizeof *config);
    if (!config) return NULL;
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        config_value *value = &config->values[i];
        if (rows[i].value[0]) parse_value(&rows[i], rows[i].value, value);
        value->text = strdup(rows[i].value);
        if (!value->text) {
            di_config_free(config);
            return NULL;
        }
    }
    return config;
}

void di_config_free(di_config *config) {
    if (!config) return;
    for (size_t i = 0; i < DI_OPT_COUNT; i++) free(config->values[i].text);
    free(config);
}

static bool find_row(const char *name, di_config_id *id) {
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *id = (di_config_id)i;
            return true;
        }
    }
    return false;
}

static di_status fail_unknown(const char *name, di_error *error) {
    const char *names[DI_OPT_COUNT];
    for (size_t i = 0; i < DI_OPT_COUNT; i++) names[i] = rows[i].name;
    const char *near = di_nearest_name(name, names, DI_OPT_COUNT);
    if (!near) return di_fail(error, DI_ERR_CONFIG, name, "there is no option \"%.*s\"", SHOWN_LENGTH, name);
    return di_fail(error, DI_ERR_CONFIG, name, "there is no option \"%.*s\"; did you mean \"%s\"?", SHOWN_LENGTH, name,
                   near);
}

static di_status set_row(di_config *config, di_config_id id, const char *text, di_config_source source,
                         di_error *error) {
    const di_config_row *row = &rows[id];
    if (id == DI_OPT_ACCELERATOR && strcmp(text, "ascend") == 0) {
        return di_fail(error, DI_ERR_UNSUPPORTED, row->name,
                       "option accelerator is \"ascend\": deepinfer has no backend for Ascend devices; use cpu");
    }
    config_value parsed = {.source = source};
    if (!parse_value(row, text, &parsed)) {
        if (row->type == DI_CONFIG_TYPE_STRING)
            return di_fail(error, DI_ERR_CONFIG, row->name, "option %s is empty; leave it out, or give it a value",
                           row->name);
        di_text values = {0};
        di_config_write_values(&values, row);
        di_fail(error, DI_ERR_CONFIG, row->name, "option %s is \"%.*s\"; it must be %s", row->name, SHOWN_LENGTH, text,
                values.data ? values.data : "another value");
        di_text_free(&values);
        return DI_ERR_CONFIG;
    }
    config_value *value = &config->values[id];
    if (source < value->source) return DI_OK;
    const char *kept = row->type != DI_CONFIG_TYPE_BOOL ? text : parsed.integer ? "on" : "off";
    parsed.text = strdup(kept);
    if (!parsed.text) return di_fail(error, DI_ERR_MEMORY, row->name, "out of memory for option %s", row->name);
    free(value->text);
    *value = parsed;
    return DI_OK;
}

di_status di_config_set(di_config *config, const char *name, const char *value, di_config_source source,
                        di_error *error) {
    di_config_id id;
    if (!find_row(name, &id)) return fail_unknown(name, error);
    return set_row(config, id, value, source, error);
}

/* -------------------------------------------------------------------------------------------------------- file */

/* Cuts white space off both ends, in place. */
static char *trim(char *text) {
    static const char space[] = " \t\r\v\f";
    text += strspn(text, space);
    size_t length = strlen(text);
    while (length && strchr(space, text[length - 1])) length--;
    text[length] = '\0';
    return text;
}

/* One line; `seen` holds the line number at which each option was set before. */
static di_status load_line(di_config *config, char *line, size_t number, size_t seen[DI_OPT_COUNT], di_error *error) {
    line = trim(line);
    if (*line == '\0' || *line == '#') return DI_OK;
    char *equals = strchr(line, '=');
    if (!equals) {
        return di_fail(error, DI_ERR_CONFIG, NULL, "\"%.*s\" is not of the form name = value", SHOWN_LENGTH, line);
    }
    *equals = '\0';
    const char *name = trim(line), *value = trim(equals + 1);
    di_config_id id;
    if (!find_row(name, &id)) return fail_unknown(name, error);
    if (id == DI_OPT_CONFIG) {
        return di_fail(error, DI_ERR_CONFIG, name, "option config cannot be set in a configuration file");
    }
    if (seen[id]) {
        return di_fail(error, DI_ERR_CONFIG, name, "option %s is already set on line %zu", name, seen[id]);
    }
    seen[id] = number;
    return set_row(config, id, value, DI_CONFIG_FILE, error);
}

di_status di_config_load_file(di_config *config, const char *path, bool again, di_error *error) {
    char *data;
    size_t length;
    di_status status = again ? (di_status)di_read_file(path, FILE_LIMIT, &data, &length, error)
                             : (di_status)di_read_source(path, FILE_LIMIT, &data, &length, error);
    if (status != DI_OK) return status;
    size_t bad = di_utf8_validate(data, length), zero = strlen(data);
    if (bad < length || zero < length) {
        free(data);
        return di_fail(error, DI_ERR_FORMAT, path, "%s is no text file: byte %zu is %s", path, bad < zero ? bad : zero,
                       bad < zero ? "invalid UTF-8" : "zero");
    }
    size_t seen[DI_OPT_COUNT] = {0}, number = 0;
    char *next = data;
    while (next && status == DI_OK) {
        char *line = next;
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        di_error inner = {0};
        status = load_line(config, line, ++number, seen, &inner);
        if (status != DI_OK) di_fail(error, status, inner.param, "%s, line %zu: %s", path, number, inner.message);
    }
    free(data);
    return status;
}

/* ------------------------------------------------------------------------------------------------- environment */

/* DEEPINFER_MAX_ROWS of "max-rows". */
static void variable_name(const di_config_row *row, char out[VARIABLE_LENGTH]) {
    size_t length = (size_t)snprintf(out, VARIABLE_LENGTH, "%s%s", prefix, row->name);
    for (size_t i = PREFIX_LENGTH; i < length; i++) {
        if (out[i] == '-') out[i] = '_';
        if (out[i] >= 'a' && out[i] <= 'z') out[i] = (char)(out[i] - 'a' + 'A');
    }
}

/* Variables of the seed system that no option stands for. */
static const char batch_invariant[] = "DEEPINFER_BATCH_INVARIANT";
static const char *const speculation[] = {"DEEPINFER_ENABLE_MTP_VARLEN", "DEEPINFER_USE_NEXTN_DECODE"};

static bool find_variable(const char *name, di_config_id *id) {
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        char own[VARIABLE_LENGTH];
        variable_name(&rows[i], own);
        if (strcmp(name, own) == 0 || (rows[i].seed_name[0] && strcmp(name, rows[i].seed_name) == 0)) {
            *id = (di_config_id)i;
            return true;
        }
    }
    return false;
}

/* True if `name` is one of the variables without an option; *status tells what came of its value. */
static bool apply_seed_variable(const char *name, const char *value, int64_t drafts[2], di_text *note,
                                di_status *status, di_error *error) {
    *status = DI_OK;
    if (strcmp(name, batch_invariant) == 0) {
        if (strcmp(value, "0") == 0 && note) {
            di_text_printf(note, "%s=0: there is nothing to switch off; results never depend on the batch\n", name);
        } else if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0) {
            *status =
                di_fail(error, DI_ERR_CONFIG, name, "%s is \"%.*s\"; it must be 0 or 1", name, SHOWN_LENGTH, value);
        }
        return true;
    }
    for (size_t i = 0; i < sizeof speculation / sizeof speculation[0]; i++) {
        if (strcmp(name, speculation[i]) != 0) continue;
        int64_t most = i == 0 ? 1 : 64;
        if (!parse_int64(value, &drafts[i]) || drafts[i] < 0 || drafts[i] > most)
            *status = di_fail(error, DI_ERR_CONFIG, name, "%s is \"%.*s\"; it must be %s", name, SHOWN_LENGTH, value,
                              i == 0 ? "0 or 1" : "0 (off) or a number of drafts up to 64");
        return true;
    }
    return false;
}

/* The two variables together, as an option: no drafts, a fixed number (5 if none is given), or as many as pay. */
static di_status apply_drafts(di_config *config, const int64_t drafts[2], const char *own, di_error *error) {
    if (drafts[0] < 0 && drafts[1] < 0) return DI_OK;
    char text[8] = "auto";
    if (drafts[1] == 0)
        snprintf(text, sizeof text, "off");
    else if (drafts[0] != 1)
        snprintf(text, sizeof text, "%d", drafts[1] < 0 ? 5 : drafts[1] > 8 ? 8 : (int)drafts[1]);
    if (own && strcmp(own, text) != 0)
        return di_fail(error, DI_ERR_CONFIG, speculation[drafts[1] < 0 ? 0 : 1],
                       "%s and %s stand for --spec %s, but DEEPINFER_SPEC is %.*s", speculation[0], speculation[1],
                       text, SHOWN_LENGTH, own);
    return set_row(config, DI_OPT_SPEC, text, DI_CONFIG_ENVIRONMENT, error);
}

static di_status fail_unknown_variable(const char *name, di_error *error) {
    char own[DI_OPT_COUNT][VARIABLE_LENGTH];
    const char *names[2 * DI_OPT_COUNT + 3];
    size_t count = 0;
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        variable_name(&rows[i], own[i]);
        names[count++] = own[i];
        if (rows[i].seed_name[0]) names[count++] = rows[i].seed_name;
    }
    names[count++] = batch_invariant;
    names[count++] = speculation[0];
    names[count++] = speculation[1];
    /* The common prefix would make every name near. */
    for (size_t i = 0; i < count; i++) names[i] += PREFIX_LENGTH;
    const char *near = di_nearest_name(name + PREFIX_LENGTH, names, count);
    return di_fail(error, DI_ERR_CONFIG, name, "unknown environment variable %.*s%s%s%s", SHOWN_LENGTH, name,
                   near ? "; did you mean " : "", near ? prefix : "", near ? near : "");
}

/* One "NAME=value" of the environment; `seen` holds the variable that set each option before. */
static di_status load_variable(di_config *config, const char *entry, const char *seen[DI_OPT_COUNT], int64_t drafts[2],
                               di_text *note, di_error *error) {
    size_t length = strcspn(entry, "=");
    char name[VARIABLE_LENGTH];
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), entry);
    const char *value = entry[length] ? entry + length + 1 : "";
    di_status status;
    if (apply_seed_variable(name, value, drafts, note, &status, error)) return status;
    di_config_id id;
    if (length >= sizeof name || !find_variable(name, &id)) return fail_unknown_variable(name, error);
    const char *before = seen[id] ? seen[id] + strcspn(seen[id], "=") + 1 : value;
    if (strcmp(before, value) != 0) {
        return di_fail(error, DI_ERR_CONFIG, name, "%s and %.*s set option %s to different values", name,
                       (int)strcspn(seen[id], "="), seen[id], rows[id].name);
    }
    seen[id] = entry;
    di_error inner = {0};
    status = set_row(config, id, value, DI_CONFIG_ENVIRONMENT, &inner);
    if (status != DI_OK) di_fail(error, status, inner.param, "%s: %s", name, inner.message);
    return status;
}

di_status di_config_load_environment(di_config *config, di_text *note, di_error *error) {
    const char *seen[DI_OPT_COUNT] = {0};
    int64_t drafts[2] = {-1, -1}; /* values of `speculation`, -1 = not there */
    for (char **entry = environ; entry && *entry; entry++) {
        if (strncmp(*entry, prefix, PREFIX_LENGTH) != 0) continue;
        di_status status = load_variable(config, *entry, seen, drafts, note, error);
        if (status != DI_OK) return status;
    }
    const char *own = seen[DI_OPT_SPEC];
    return apply_drafts(config, drafts, own ? own + strcspn(own, "=") + 1 : NULL, error);
}

/* ----------------------------------------------------------------------------------------------------- reading */

bool di_config_bool(const di_config *config, di_config_id id) {
    return config->values[id].integer != 0;
}

int64_t di_config_int(const di_config *config, di_config_id id) {
    return config->values[id].integer;
}

bool di_config_uint64(const di_config *config, di_config_id id, uint64_t *value) {
    if (config->values[id].text[0] == '\0') return false;
    *value = config->values[id].bits;
    return true;
}

double di_config_float(const di_config *config, di_config_id id) {
    return config->values[id].number;
}

const char *di_config_text(const di_config *config, di_config_id id) {
    return config->values[id].text;
}

bool di_config_is(const di_config *config, di_config_id id, const char *text) {
    return strcmp(config->values[id].text, text) == 0;
}

bool di_config_is_set(const di_config *config, di_config_id id) {
    return config->values[id].source != DI_CONFIG_DEFAULT;
}

di_config_source di_config_source_of(const di_config *config, di_config_id id) {
    return config->values[id].source;
}

bool di_config_state_home(di_text *path) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && state[0] == '/') {
        di_text_puts(path, state);
    } else if (home && home[0] == '/') {
        di_text_printf(path, "%s/.local/state", home);
    } else {
        return false;
    }
    return true;
}
