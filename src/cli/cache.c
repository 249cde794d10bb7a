/* cache.c - what is in a folder of the disk cache: lists, verifies, trims it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/disk.h"
#include "cli/cli.h"

/* The records of one model, numeric profile and state layout. */
typedef struct group {
    char name[40]; /* "DIGEST-PROFILE", the folder */
    char profile[64];
    uint64_t blocks, snapshots, bytes;
    int64_t first_ns, last_ns;
} group;

typedef struct survey {
    di_cli *cli;
    bool json, check;
    group *groups;
    size_t group_count, group_capacity;
    uint64_t records, bytes, damaged, temporary, unknown;
    di_text out;
    di_error error; /* the first thing that failed */
} survey;

static void put_time(char out[32], int64_t ns) {
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm parts;
    if (!gmtime_r(&seconds, &parts) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts)) memcpy(out, "?", 2);
}

static void write_out(survey *s) {
    if (s->out.failed)
        di_fail(&s->error, DI_ERR_MEMORY, NULL, "out of memory for a line of output");
    else if (s->out.length)
        di_cli_write(s->out.data, s->out.length, &s->error);
    di_text_clear(&s->out);
}

/* ---------------------------------------------------------------- one file */

static group *group_of(survey *s, const char *path) {
    size_t length = strcspn(path, "/");
    for (size_t i = s->group_count; i-- > 0;)
        if (strncmp(s->groups[i].name, path, length) == 0 && !s->groups[i].name[length]) return &s->groups[i];
    if (s->group_count == s->group_capacity) {
        size_t capacity = s->group_capacity ? 2 * s->group_capacity : 8;
        group *grown = realloc(s->groups, capacity * sizeof *grown);
        if (!grown) return NULL;
        s->groups = grown;
        s->group_capacity = capacity;
    }
    group *g = &s->groups[s->group_count++];
    *g = (group){.first_ns = INT64_MAX};
    snprintf(g->name, sizeof g->name, "%.*s", (int)length, path);
    return g;
}

static bool is_record(const di_disk_record *r) {
    return strcmp(r->kind, "block") == 0 || strcmp(r->kind, "snapshot") == 0;
}

static void count_record(survey *s, const di_disk_record *r) {
    group *g = group_of(s, r->path);
    if (!g) {
        di_fail(&s->error, DI_ERR_MEMORY, NULL, "out of memory for the list of records");
        return;
    }
    s->records++;
    s->bytes += r->bytes;
    s->damaged += r->fault != NULL;
    g->bytes += r->bytes;
    if (r->kind[0] == 'b')
        g->blocks++;
    else
        g->snapshots++;
    if (r->used_ns < g->first_ns) g->first_ns = r->used_ns;
    if (r->used_ns > g->last_ns) g->last_ns = r->used_ns;
    if (r->profile[0]) memcpy(g->profile, r->profile, sizeof g->profile);
}

static void write_record(survey *s, const di_disk_record *r) {
    di_json_writer w;
    char text[32];
    di_json_begin(&w, &s->out);
    di_json_object_begin(&w);
    di_json_key(&w, "path");
    di_json_string(&w, r->path);
    di_json_key(&w, "kind");
    di_json_string(&w, r->kind);
    di_json_key(&w, "bytes");
    di_json_unsigned(&w, r->bytes);
    di_json_key(&w, "used");
    put_time(text, r->used_ns);
    di_json_string(&w, text);
    if (is_record(r)) {
        di_json_key(&w, "digest");
        snprintf(text, sizeof text, "%016" PRIx64, r->digest);
        di_json_string(&w, text);
    }
    if (r->kind[0] == 's') {
        di_json_key(&w, "position");
        di_json_unsigned(&w, r->position);
    }
    if (s->check && is_record(r)) {
        if (r->profile[0]) {
            di_json_key(&w, "profile");
            di_json_string(&w, r->profile);
        }
        di_json_key(&w, "sound");
        di_json_bool(&w, !r->fault);
        if (r->fault) {
            di_json_key(&w, "fault");
            di_json_string(&w, r->fault);
        }
    }
    di_json_object_end(&w);
    di_text_putc(&s->out, '\n');
}

static bool look_at(void *arg, const di_disk_record *r) {
    survey *s = arg;
    if (is_record(r))
        count_record(s, r);
    else if (r->kind[0] == 't')
        s->temporary++;
    else
        s->unknown++;
    if (s->json)
        write_record(s, r);
    else if (r->fault)
        di_text_printf(&s->out, "damaged  %s: %s\n", r->path, r->fault);
    if (s->error.status == DI_OK) write_out(s);
    return s->error.status == DI_OK;
}

/* ---------------------------------------------------------------- the whole */

static void write_groups(survey *s) {
    char size[32], first[32], last[32];
    if (s->group_count)
        di_text_printf(&s->out, "%-33s  %8s  %9s  %10s  %-20s  %s\n", "weights and profile", "blocks", "snapshots",
                       "size", "oldest use", "latest use");
    for (size_t i = 0; i < s->group_count; i++) {
        const group *g = &s->groups[i];
        put_time(first, g->first_ns);
        put_time(last, g->last_ns);
        di_text_printf(&s->out, "%-33s  %8" PRIu64 "  %9" PRIu64 "  %10s  %-20s  %s%s%s\n", g->name, g->blocks,
                       g->snapshots, di_cli_size_text(g->bytes, size), first, last, g->profile[0] ? "  " : "",
                       g->profile);
    }
}

static void write_end(survey *s) {
    char size[32];
    if (!s->json) {
        write_groups(s);
        di_text_printf(&s->out, "%" PRIu64 " records, %s", s->records, di_cli_size_text(s->bytes, size));
        if (s->check) di_text_printf(&s->out, "; %" PRIu64 " damaged", s->damaged);
        if (s->temporary) di_text_printf(&s->out, "; %" PRIu64 " rests of interrupted writes", s->temporary);
        if (s->unknown) di_text_printf(&s->out, "; %" PRIu64 " other files", s->unknown);
        di_text_putc(&s->out, '\n');
        return;
    }
    di_json_writer w;
    di_json_begin(&w, &s->out);
    di_json_object_begin(&w);
    di_json_key(&w, "records");
    di_json_unsigned(&w, s->records);
    di_json_key(&w, "bytes");
    di_json_unsigned(&w, s->bytes);
    if (s->check) {
        di_json_key(&w, "damaged");
        di_json_unsigned(&w, s->damaged);
    }
    di_json_key(&w, "temporary");
    di_json_unsigned(&w, s->temporary);
    di_json_key(&w, "unknown");
    di_json_unsigned(&w, s->unknown);
    di_json_object_end(&w);
    di_text_putc(&s->out, '\n');
}

static int look(survey *s, const char *folder) {
    di_disk_walk(folder, s->check, look_at, s, &s->error);
    if (s->error.status == DI_OK) {
        write_end(s);
        write_out(s);
    }
    int code = s->error.status != DI_OK ? di_cli_report(&s->error) : s->damaged ? DI_EXIT_FAILED : DI_EXIT_OK;
    di_text_free(&s->out);
    free(s->groups);
    return code;
}

static int trim(const di_cli *cli, const char *folder) {
    uint64_t removed, freed, left;
    di_error error = {0};
    uint64_t bytes = (uint64_t)di_config_int(cli->config, DI_OPT_CACHE_DISK);
    if (di_disk_trim(folder, bytes, &removed, &freed, &left, &error) != DI_OK) return di_cli_report(&error);
    di_text out = {0};
    char a[32], b[32];
    if (di_config_bool(cli->config, DI_OPT_JSON))
        di_text_printf(&out, "{\"removed\":%" PRIu64 ",\"freed_bytes\":%" PRIu64 ",\"bytes\":%" PRIu64 "}\n", removed,
                       freed, left);
    else
        di_text_printf(&out, "%" PRIu64 " files removed, %s; %s left\n", removed, di_cli_size_text(freed, a),
                       di_cli_size_text(left, b));
    di_status status =
        out.failed ? di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory") : di_cli_write(out.data, out.length, &error);
    di_text_free(&out);
    return status == DI_OK ? DI_EXIT_OK : di_cli_report(&error);
}

static int run(di_cli *cli) {
    di_error error = {0};
    const char *folder = cli->model ? cli->model : di_config_text(cli->config, DI_OPT_CACHE_DIR);
    if (!cli->word) {
        di_fail(&error, DI_ERR_USAGE, "command",
                "what shall be done? deepinfer cache list DIR, verify DIR or trim DIR");
        return di_cli_report(&error);
    }
    if (!folder[0]) {
        di_fail(&error, DI_ERR_USAGE, "cache-dir", "which folder? deepinfer cache %s DIR", cli->word);
        return di_cli_report(&error);
    }
    if (strcmp(cli->word, "trim") == 0) return trim(cli, folder);
    survey s = {
        .cli = cli, .json = di_config_bool(cli->config, DI_OPT_JSON), .check = strcmp(cli->word, "verify") == 0};
    return look(&s, folder);
}

static const char *const words[] = {"list", "verify", "trim", NULL};

const di_command di_command_cache = {
    .name = "cache",
    .summary = "lists, verifies or trims a folder of the disk cache",
    .usage = "list|verify|trim [DIR] [options]",
    .text = "list: what the folder (DIR or --cache-dir) holds, by weights and profile;\n"
            "verify: reads every record and names the damaged ones, exit code 1 if there are;\n"
            "trim: removes what was not used for longest until --cache-disk SIZE is met.\n"
            "Only trim changes anything; it wants the folder for itself.",
    .example = "  deepinfer cache list ~/cache\n"
               "  deepinfer cache trim ~/cache --cache-disk 2G\n",
    .words = words,
    .groups = "json",
    .run = run,
};
