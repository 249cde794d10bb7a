/* stop.c - Knuth-Morris-Pratt over all stop strings at once. */
#include "engine/stop.h"

#include <string.h>

static const uint32_t *build_links(di_arena *arena, const char *string, uint32_t length) {
    uint32_t *links = di_arena_array(arena, length, sizeof *links);
    if (!links) return NULL;
    links[0] = 0;
    for (uint32_t i = 1, border = 0; i < length; i++) {
        while (border && string[i] != string[border]) border = links[border - 1];
        if (string[i] == string[border]) border++;
        links[i] = border;
    }
    return links;
}

di_status di_stop_set_build(di_stop_set *set, di_arena *arena, const char *const *strings, size_t count,
                            di_error *error) {
    memset(set, 0, sizeof *set);
    if (!count) return DI_OK;
    set->strings = di_arena_array(arena, count, sizeof *set->strings);
    set->lengths = di_arena_array(arena, count, sizeof *set->lengths);
    set->links = di_arena_array(arena, count, sizeof *set->links);
    if (!set->strings || !set->lengths || !set->links) return di_fail(error, DI_ERR_MEMORY, "stop", "out of memory");
    for (size_t i = 0; i < count; i++) {
        if (!strings || !strings[i] || !strings[i][0])
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "stop",
                           "stop[%zu] is empty; a stop string has at least one "
                           "character",
                           i);
        size_t length = strlen(strings[i]);
        if (length > UINT32_MAX || di_utf8_validate(strings[i], length) != length)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "stop", "stop[%zu] is not valid UTF-8", i);
        set->lengths[i] = (uint32_t)length;
        set->strings[i] = di_arena_copy(arena, strings[i], length);
        if (set->strings[i]) set->links[i] = build_links(arena, set->strings[i], set->lengths[i]);
        if (!set->strings[i] || !set->links[i]) return di_fail(error, DI_ERR_MEMORY, "stop", "out of memory");
    }
    set->count = (uint32_t)count;
    return DI_OK;
}

bool di_stop_matcher_init(di_stop_matcher *matcher, di_arena *arena, const di_stop_set *set) {
    memset(matcher, 0, sizeof *matcher);
    matcher->set = set;
    if (!set->count) return true;
    size_t bytes = set->count * sizeof *matcher->matched;
    matcher->matched = di_arena_zalloc(arena, bytes);
    return matcher->matched != NULL;
}

void di_stop_matcher_free(di_stop_matcher *matcher) {
    di_text_free(&matcher->held);
}

/* One byte further in one string. */
static uint32_t advance(const char *string, const uint32_t *links, uint32_t matched, char byte) {
    while (matched && string[matched] != byte) matched = links[matched - 1];
    return string[matched] == byte ? matched + 1 : 0;
}

int32_t di_stop_push(di_stop_matcher *matcher, const char *text, size_t length, di_text *out) {
    const di_stop_set *set = matcher->set;
    if (!set->count) {
        di_text_append(out, text, length);
        return -1;
    }
    uint32_t longest = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t hit = -1;
        longest = 0;
        for (uint32_t s = 0; s < set->count; s++) {
            uint32_t matched = advance(set->strings[s], set->links[s], matcher->matched[s], text[i]);
            matcher->matched[s] = matched;
            if (matched > longest) longest = matched;
            if (matched == set->lengths[s] && (hit < 0 || matched > set->lengths[hit])) hit = (int32_t)s;
        }
        if (hit < 0) continue;
        di_text_append(&matcher->held, text, i + 1);
        di_text_append(out, matcher->held.data, matcher->held.length - set->lengths[hit]);
        if (matcher->held.failed) out->failed = true;
        di_text_clear(&matcher->held);
        return hit;
    }
    if (!length) return -1;
    di_text_append(&matcher->held, text, length);
    if (matcher->held.failed) {
        out->failed = true;
        return -1;
    }
    size_t certain = matcher->held.length - longest;
    di_text_append(out, matcher->held.data, certain);
    memmove(matcher->held.data, matcher->held.data + certain, longest);
    matcher->held.length = longest;
    matcher->held.data[longest] = 0;
    return -1;
}

void di_stop_flush(di_stop_matcher *matcher, di_text *out) {
    if (matcher->held.length) di_text_append(out, matcher->held.data, matcher->held.length);
    di_text_clear(&matcher->held);
    for (uint32_t s = 0; s < matcher->set->count; s++) matcher->matched[s] = 0;
}
