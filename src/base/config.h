/* config.h - the one configuration table.
 *
 * Every option, flag, limit and DEEPINFER_* variable is one row of config_table.h. Values are taken from
 * defaults < file (--config, "name = value" lines, # comments) < environment < command line. --help and
 * docs/configuration.md are generated from the table. getenv appears in config.c only.
 *
 * A row's name is the flag without dashes ("max-rows"); the variable is DEEPINFER_ + upper case + underscores
 * (DEEPINFER_MAX_ROWS), in the file it is the flag's name. Rows may have a further variable name of the seed system.
 */
#ifndef DI_BASE_CONFIG_H
#define DI_BASE_CONFIG_H

#include "base/status.h"
#include "base/text.h"

typedef enum di_config_type {
    DI_CONFIG_TYPE_BOOL,   /* on/off, true/false, yes/no, 1/0 */
    DI_CONFIG_TYPE_INT,    /* min .. max */
    DI_CONFIG_TYPE_SIZE,   /* bytes; suffixes k, M, G, T (1024) */
    DI_CONFIG_TYPE_FLOAT,  /* min .. max */
    DI_CONFIG_TYPE_CHOICE, /* one of "a|b|c"; a choice "N..M" admits that range of integers */
    DI_CONFIG_TYPE_STRING,
    DI_CONFIG_TYPE_UINT64 /* 0 .. 2^64-1, or unset */
} di_config_type;

typedef enum di_config_source {
    DI_CONFIG_DEFAULT,
    DI_CONFIG_FILE,
    DI_CONFIG_ENVIRONMENT,
    DI_CONFIG_FLAG
} di_config_source;

/* Ids of the rows: DI_OPT_THREADS and so on, from config_table.h. */
typedef enum di_config_id {
#define DI_CONFIG_ROW(id, ...) DI_OPT_##id,
#include "base/config_table.h"
#undef DI_CONFIG_ROW
    DI_OPT_COUNT
} di_config_id;

typedef struct di_config_row {
    const char *name; /* "threads" */
    di_config_type type;
    const char *value;       /* default as text; "" = unset / decided at run time */
    double minimum, maximum; /* STRING: fewest bytes, 0 */
    const char *choices;     /* "scalar|avx2|avx512|auto" */
    const char *seed_name;   /* further environment variable, or "" */
    const char *group;       /* "common", "sampling", "chat", "generate", "serve", "limits", ... */
    const char *help;        /* one line */
} di_config_row;

typedef struct di_config di_config;

const di_config_row *di_config_rows(void); /* [DI_OPT_COUNT] */
/* What a row admits: "an integer from 0 to 1024", "auto, off or 1..8". */
void di_config_write_values(di_text *out, const di_config_row *row);

di_config *di_config_new(void); /* defaults; NULL when out of memory */
void di_config_free(di_config *config);
/* By name; unknown names are refused and the nearest known one is named. A value is checked whatever its source, and
 * takes effect unless a stronger source has set the option. "" is a value of some STRING options only; there it counts
 * as set. */
di_status di_config_set(di_config *config, const char *name, const char *value, di_config_source source,
                        di_error *error);
/* Lines "name = value"; a line whose first character is # is a comment. An option may appear once. again: it was read
 * before, by a program that must not stand still now: only a plain file is read. */
di_status di_config_load_file(di_config *config, const char *path, bool again, di_error *error);
/* Reads DEEPINFER_*; an unknown DEEPINFER_ variable is an error that names it. Seed names are translated
 * (docs/configuration.md lists them); *note (may be NULL) receives notes for the user, a line each. */
di_status di_config_load_environment(di_config *config, di_text *note, di_error *error);

bool di_config_bool(const di_config *config, di_config_id id);
int64_t di_config_int(const di_config *config, di_config_id id); /* INT, SIZE, integer choices; 0 for a word */
bool di_config_uint64(const di_config *config, di_config_id id, uint64_t *value); /* UINT64; false if unset */
double di_config_float(const di_config *config, di_config_id id);
const char *di_config_text(const di_config *config, di_config_id id); /* any row; BOOL as on or off, else as given */
bool di_config_is(const di_config *config, di_config_id id, const char *text);
bool di_config_is_set(const di_config *config, di_config_id id); /* by file, environment or flag */
di_config_source di_config_source_of(const di_config *config, di_config_id id);

/* Appends where this user's programs keep their state: $XDG_STATE_HOME if it is an absolute path, else
 * $HOME/.local/state. False when the environment has neither. */
bool di_config_state_home(di_text *path);

/* Markdown for docs/configuration.md. */
void di_config_write_markdown(di_text *out);
/* Help lines of the given groups (space-separated), aligned. */
void di_config_write_help(di_text *out, const char *groups);

#endif
