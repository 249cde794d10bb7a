/* plan.c - how much memory there is and what a context costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

bool di_plan_drafts(const di_config *config) {
    return !di_config_is(config, DI_OPT_SPEC, "off") && di_config_int(config, DI_OPT_MAX_ROWS) != 1;
}

uint32_t di_plan_logits_rows(uint32_t max_rows, uint32_t max_seqs) {
    uint32_t rows = max_seqs > 32 ? max_seqs : 32;
    return rows < max_rows ? rows : max_rows;
}

uint32_t di_plan_context(uint32_t model_maximum, uint64_t rolling_bytes, uint64_t page_bytes, uint32_t page_tokens,
                         uint64_t available) {
    if (!available || !page_bytes || !page_tokens) return model_maximum;
    /* A quarter stays free for the page cache that holds the mapped weights and for the rest of the machine. */
    uint64_t usable = available / 4 * 3;
    uint64_t pages = usable > rolling_bytes ? (usable - rolling_bytes) / page_bytes : 0;
    if (pages > model_maximum / page_tokens) return model_maximum;
    uint64_t positions = pages * page_tokens;
    return positions ? (uint32_t)positions : 1;
}

/* First number of a file, or the number after `key` on one of its lines; false if there is none ("max"). */
static bool read_number(const char *path, const char *key, uint64_t *value) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        const char *text = line;
        if (key) {
            if (strncmp(line, key, strlen(key)) != 0) continue;
            text += strlen(key);
        }
        char *end;
        unsigned long long number = strtoull(text, &end, 10);
        found = end != text;
        *value = number;
        if (!key) break;
    }
    fclose(file);
    return found;
}

uint64_t di_available_memory(void) {
    uint64_t available = 0, limit, used;
    if (read_number("/proc/meminfo", "MemAvailable:", &available)) available *= 1024;
    static const char *const groups[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (!read_number(groups[i][0], NULL, &limit) || !read_number(groups[i][1], NULL, &used)) continue;
        uint64_t left = limit > used ? limit - used : 1;
        if (!available || left < available) available = left;
    }
    return available;
}
