/* stop.c - Knuth-Morris-Pratt over all stop strings at once, behind a look for ends. */
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

static di_status check_text(const char *what, const char *const *texts, size_t i, di_error *error) {
    if (!texts || !texts[i] || !texts[i][0])
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, what, "%s[%zu] is empty; it has at least one character", what,
                       i);
    size_t length = strlen(texts[i]);
    if (length > UINT32_MAX || di_utf8_validate(texts[i], length) != length)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, what, "%s[%zu] is not valid UTF-8", what, i);
    return DI_OK;
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
        if (check_text("stop", strings, i, error) != DI_OK) return DI_ERR_INVALID_ARGUMENT;
        set->lengths[i] = (uint32_t)strlen(strings[i]);
        set->strings[i] = di_arena_copy(arena, strings[i], set->lengths[i]);
        if (set->strings[i]) set->links[i] = build_links(arena, set->strings[i], set->lengths[i]);
        if (!set->strings[i] || !set->links[i]) return di_fail(error, DI_ERR_MEMORY, "stop", "out of memory");
    }
    set->count = (uint32_t)count;
    return DI_OK;
}

di_status di_stop_set_add_ends(di_stop_set *set, di_arena *arena, const char *const *ends, size_t count,
                               di_error *error) {
    if (!count || !set->count) return DI_OK;
    set->ends = di_arena_array(arena, count, sizeof *set->ends);
    set->end_lengths = di_arena_array(arena, count, sizeof *set->end_lengths);
    set->ends_at_line = di_arena_array(arena, count, sizeof *set->ends_at_line);
    if (!set->ends || !set->end_lengths || !set->ends_at_line)
        return di_fail(error, DI_ERR_MEMORY, "stop_disarm", "out of memory");
    for (size_t i = 0; i < count; i++) {
        if (check_text("stop_disarm", ends, i, error) != DI_OK) return DI_ERR_INVALID_ARGUMENT;
        set->ends_at_line[i] = ends[i][0] == '\n';
        const char *text = ends[i] + set->ends_at_line[i];
        if (!text[0] || text[0] == '\n')
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "stop_disarm",
                           "stop_disarm[%zu] must be a text with at most one line break before it", i);
        set->end_lengths[i] = (uint32_t)strlen(text);
        set->ends[i] = di_arena_copy(arena, text, set->end_lengths[i]);
        if (!set->ends[i]) return di_fail(error, DI_ERR_MEMORY, "stop_disarm", "out of memory");
        set->end_byte[(uint8_t)text[0]] = true;
    }
    set->end_count = (uint32_t)count;
    return DI_OK;
}

bool di_stop_matcher_init(di_stop_matcher *matcher, di_arena *arena, const di_stop_set *set, bool armed) {
    memset(matcher, 0, sizeof *matcher);
    matcher->set = set;
    matcher->armed = armed;
    matcher->line_start = true;
    if (!set->count) return true;
    size_t bytes = set->count * sizeof *matcher->matched;
    matcher->matched = di_arena_zalloc(arena, bytes);
    return matcher->matched != NULL;
}

void di_stop_matcher_free(di_stop_matcher *matcher) {
    di_text_free(&matcher->held);
    di_text_free(&matcher->pending);
}

void di_stop_arm(di_stop_matcher *matcher) {
    if (matcher->armed || matcher->ended) return;
    matcher->armed = matcher->line_start = true;
    di_text_clear(&matcher->pending);
}

/* One byte further in one string. */
static uint32_t advance(const char *string, const uint32_t *links, uint32_t matched, char byte) {
    while (matched && string[matched] != byte) matched = links[matched - 1];
    return string[matched] == byte ? matched + 1 : 0;
}

/* Text in which there is no end. */
static int32_t match_text(di_stop_matcher *matcher, const char *text, size_t length, di_text *out) {
    const di_stop_set *set = matcher->set;
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

typedef enum verdict { NO_END, MAY_BE_END, IS_END } verdict;

/* Whoever reads the answer gives up as late (src/recipe/parser_internal.h). */
enum { MOST_HELD = 512 };

static verdict compare_end(const char *text, size_t length, const char *end) {
    size_t at = 0;
    for (; *end; end++) {
        if (*end == '\n') {
            while (at < length && (text[at] == '\n' || text[at] == ' ')) at++;
        } else {
            if (at == length) return length < MOST_HELD ? MAY_BE_END : NO_END;
            if (text[at++] != *end) return NO_END;
        }
    }
    return IS_END;
}

static verdict end_at(const di_stop_set *set, const char *text, size_t length, bool line_start) {
    verdict result = NO_END;
    if (!set->end_byte[(uint8_t)text[0]]) return NO_END;
    for (uint32_t i = 0; i < set->end_count && result != IS_END; i++) {
        verdict what = set->ends_at_line[i] && !line_start ? NO_END : compare_end(text, length, set->ends[i]);
        if (what > result) result = what;
    }
    return result;
}

/* Bytes of `pending` that belong to no end, from the line breaks before it; *found: the rest begins with one. */
static size_t before_end(di_stop_matcher *matcher, bool *found) {
    const char *text = matcher->pending.data;
    size_t at = 0, length = matcher->pending.length;
    while (at < length) {
        size_t behind = at ? at : matcher->breaks;
        while (behind < length && text[behind] == '\n') behind++;
        if (!at) matcher->breaks = behind;
        if (behind == length) return at;
        bool line_start = behind > at || (at == 0 && matcher->line_start);
        verdict what = end_at(matcher->set, text + behind, length - behind, line_start);
        *found = what == IS_END;
        if (what != NO_END) return at;
        at = behind + 1;
    }
    return at;
}

static void clear_pending(di_stop_matcher *matcher) {
    di_text_clear(&matcher->pending);
    matcher->breaks = 0;
}

static void drop_pending(di_stop_matcher *matcher, size_t count) {
    di_text *pending = &matcher->pending;
    if (!count) return;
    memmove(pending->data, pending->data + count, pending->length - count);
    pending->length -= count;
    pending->data[pending->length] = 0;
    matcher->line_start = false;
    matcher->breaks = 0;
}

int32_t di_stop_push(di_stop_matcher *matcher, const char *text, size_t length, di_text *out) {
    if (!matcher->armed || matcher->ended || !matcher->set->count) di_text_append(out, text, length);
    if (matcher->ended || !matcher->set->count || !length) return -1;
    if (!matcher->set->end_count) return matcher->armed ? match_text(matcher, text, length, out) : -1;
    di_text_append(&matcher->pending, text, length);
    if (matcher->pending.failed) {
        out->failed = true;
        return -1;
    }
    size_t count = before_end(matcher, &matcher->ended);
    int32_t match = matcher->armed ? match_text(matcher, matcher->pending.data, count, out) : -1;
    drop_pending(matcher, count);
    if (!matcher->ended || match >= 0) return match;
    if (matcher->armed) di_stop_flush(matcher, out);
    clear_pending(matcher);
    return -1;
}

int32_t di_stop_finish(di_stop_matcher *matcher, di_text *out) {
    di_text *pending = &matcher->pending;
    int32_t match = matcher->armed && pending->length ? match_text(matcher, pending->data, pending->length, out) : -1;
    clear_pending(matcher);
    return match;
}

void di_stop_flush(di_stop_matcher *matcher, di_text *out) {
    if (matcher->held.length) di_text_append(out, matcher->held.data, matcher->held.length);
    di_text_clear(&matcher->held);
    if (matcher->armed && matcher->pending.length) di_text_append(out, matcher->pending.data, matcher->pending.length);
    clear_pending(matcher);
    for (uint32_t s = 0; s < matcher->set->count; s++) matcher->matched[s] = 0;
}
