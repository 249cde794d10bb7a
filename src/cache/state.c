/* state.c - pages and rolling block of one sequence, and the serialised form drawn in state.h. */
#include "cache/state.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct di_state {
    di_page_pool *pool;
    di_model *model;
    di_state_view view;
    di_block *rolling;
    di_buffer *buffers; /* [max_pages] page table of the view */
    di_page **pages;    /* [max_pages] */
    uint32_t page_count, max_pages;
};

/* 144 bytes, little-endian: | magic 8 | version u32 | parts u32 | committed u64 | decoder_low u64 | digest u64
 * | profile 64 | body bytes u64 | checksum u64 | zero 24 | */
enum { VERSION = 1, HEADER_BYTES = 144, PROFILE_AT = 40, BODY_BYTES_AT = 104, CHECKSUM_AT = 112 };
static const char MAGIC[8] = {'D', 'I', 'S', 'T', 'A', 'T', 'E', '1'};

static di_backend *backend_of(const di_state *state) {
    return di_model_backend(state->model);
}

/* ---------------------------------------------------------------- life */

di_status di_state_new(di_page_pool *pool, uint32_t max_tokens, di_state **state, di_error *error) {
    *state = NULL;
    di_model *model = di_page_pool_model(pool);
    const di_state_layout *layout = di_model_layout(model);
    di_state *s = calloc(1, sizeof *s);
    if (!s) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make a sequence");
    s->pool = pool;
    s->model = model;
    s->max_pages = max_tokens / layout->page_tokens + (max_tokens % layout->page_tokens != 0);
    s->buffers = calloc(s->max_pages ? s->max_pages : 1, sizeof *s->buffers);
    s->pages = calloc(s->max_pages ? s->max_pages : 1, sizeof *s->pages);
    di_status status = DI_OK;
    if (!s->buffers || !s->pages) status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make a sequence");
    di_backend *backend = backend_of(s);
    if (!status) status = backend->ops->allocate(backend, layout->rolling_bytes, &s->rolling, error);
    if (status) {
        di_state_free(s);
        return status;
    }
    s->view.rolling = (di_buffer){s->rolling, 0};
    s->view.pages = s->buffers;
    *state = s;
    return DI_OK;
}

void di_state_reset(di_state *state) {
    while (state->page_count) di_page_release(state->pool, state->pages[--state->page_count]);
    state->view.page_count = 0;
    state->view.committed = 0;
    state->view.decoder_low = 0;
}

void di_state_free(di_state *state) {
    if (!state) return;
    di_state_reset(state);
    di_backend *backend = backend_of(state);
    backend->ops->release(backend, state->rolling);
    free(state->buffers);
    free(state->pages);
    free(state);
}

static void append_page(di_state *state, di_page *page) {
    state->pages[state->page_count] = page;
    state->buffers[state->page_count] = page->buffer;
    state->view.page_count = ++state->page_count;
}

static uint32_t pages_for(const di_state *state, uint32_t tokens) {
    uint32_t page_tokens = di_model_layout(state->model)->page_tokens;
    return tokens / page_tokens + (tokens % page_tokens != 0);
}

uint32_t di_state_pages_missing(const di_state *state, uint32_t tokens) {
    uint32_t wanted = pages_for(state, tokens);
    return wanted > state->page_count ? wanted - state->page_count : 0;
}

double di_state_pages_owned(const di_state *state) {
    double owned = 0;
    for (uint32_t i = 0; i < state->page_count; i++) {
        const di_page *page = state->pages[i];
        owned += 1.0 / (page->references - page->cached);
    }
    return owned;
}

di_status di_state_reserve(di_state *state, uint32_t tokens, di_error *error) {
    uint32_t wanted = pages_for(state, tokens), page_tokens = di_model_layout(state->model)->page_tokens;
    if (wanted > state->max_pages)
        return di_fail(error, DI_ERR_CONTEXT_LENGTH, "context", "%u positions do not fit a sequence of at most %u",
                       tokens, state->max_pages * page_tokens);
    while (state->page_count < wanted) {
        di_page *page = di_page_take(state->pool);
        if (!page)
            return di_fail(error, DI_ERR_LIMIT, "kv-ram", "all %u pages of %u positions are in use (--kv-ram)",
                           di_page_pool_limit(state->pool), page_tokens);
        append_page(state, page);
    }
    return DI_OK;
}

bool di_state_resume(di_state *state, uint32_t position, int32_t decoder_low, di_buffer rolling, const di_page *tail) {
    const di_state_layout *layout = di_model_layout(state->model);
    di_backend *backend = backend_of(state);
    uint32_t complete = position / layout->page_tokens;
    di_page *copy = NULL;
    if (pages_for(state, position) > state->max_pages || (tail && !(copy = di_page_copy(state->pool, tail))))
        return false;
    di_state_reset(state);
    if (copy) {
        state->pages[complete] = copy;
        state->buffers[complete] = copy->buffer;
    }
    state->view.page_count = state->page_count = pages_for(state, position);
    state->view.committed = (int32_t)position;
    state->view.decoder_low = decoder_low;
    di_copy_args args = {.from = rolling, .to = state->view.rolling, .bytes = layout->rolling_bytes, .count = 1};
    backend->ops->copy(backend, &args);
    return true;
}

void di_state_share_page(di_state *state, uint32_t index, di_page *page) {
    di_page_share(page);
    state->pages[index] = page;
    state->buffers[index] = page->buffer;
}

di_page *di_state_page(di_state *state, uint32_t index) {
    return state->pages[index];
}

di_status di_state_fork(di_state *from, di_state *to, di_error *error) {
    uint32_t position = (uint32_t)from->view.committed, page_tokens = di_model_layout(from->model)->page_tokens;
    uint32_t complete = position / page_tokens;
    const di_page *tail = position % page_tokens ? from->pages[complete] : NULL;
    if (!di_state_resume(to, position, from->view.decoder_low, from->view.rolling, tail))
        return di_fail(error, DI_ERR_LIMIT, "kv-ram", "no page is free to copy a sequence (--kv-ram)");
    for (uint32_t i = 0; i < complete; i++) di_state_share_page(to, i, from->pages[i]);
    return DI_OK;
}

di_state_view *di_state_get_view(di_state *state) {
    return &state->view;
}
int32_t di_state_length(const di_state *state) {
    return state->view.committed;
}

/* ---------------------------------------------------------------- serialised form */

static uint64_t entries_of(const di_state_part *part, int32_t length) {
    return part->kind == DI_PART_PAGED ? (uint64_t)length / part->tokens_per_entry : part->slots;
}

/* Where serialised entry `i` of a part lives; false when it must be zero. */
static bool locate(const di_state *state, const di_state_part *part, uint64_t i, di_buffer *at) {
    const di_state_layout *layout = di_model_layout(state->model);
    int32_t length = state->view.committed, low = part->decoder ? state->view.decoder_low : 0;
    uint64_t slot = i;
    if (part->kind == DI_PART_PAGED) {
        uint64_t position = i * part->tokens_per_entry, page = position / layout->page_tokens;
        slot = position % layout->page_tokens / part->tokens_per_entry;
        *at = di_buffer_at(state->buffers[page], part->offset + slot * part->entry_bytes);
        return true;
    }
    if (part->kind == DI_PART_RING) {
        int64_t position = (int64_t)length - part->slots + (int64_t)i;
        if (position < low || position < 0) return false;
        slot = (uint64_t)position % part->slots;
    } else if (i >= (uint64_t)length % part->tokens_per_entry) {
        return false;
    }
    *at = di_buffer_at(state->view.rolling, part->offset + slot * part->entry_bytes);
    return true;
}

static void put_u32(char *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (char)(value >> 8 * i);
}

static void put_u64(char *to, uint64_t value) {
    for (int i = 0; i < 8; i++) to[i] = (char)(value >> 8 * i);
}

static uint64_t get_u64(const char *from) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | (uint8_t)from[i];
    return value;
}

/* Covers the header up to the checksum and the body. */
static uint64_t checksum(const char *header, const char *body, size_t body_bytes) {
    return XXH64(body, body_bytes, XXH64(header, CHECKSUM_AT, 0));
}

static void write_header(const di_state *state, const char *body, size_t body_bytes, char header[HEADER_BYTES]) {
    memset(header, 0, HEADER_BYTES);
    memcpy(header, MAGIC, sizeof MAGIC);
    put_u32(header + 8, VERSION);
    put_u32(header + 12, di_model_layout(state->model)->part_count);
    put_u64(header + 16, (uint64_t)state->view.committed);
    put_u64(header + 24, (uint64_t)state->view.decoder_low);
    put_u64(header + 32, di_model_digest(state->model));
    strncpy(header + PROFILE_AT, di_model_profile(state->model), 63);
    put_u64(header + BODY_BYTES_AT, body_bytes);
    put_u64(header + CHECKSUM_AT, checksum(header, body, body_bytes));
}

/* Entries from `i` on that stand together, at most `left`. */
static uint64_t run_of(const di_state *state, const di_state_part *part, uint64_t i, uint64_t left) {
    if (part->kind != DI_PART_PAGED) return 1;
    uint64_t a_page = di_model_layout(state->model)->page_tokens / part->tokens_per_entry, run = a_page - i % a_page;
    return run < left ? run : left;
}

/* `bytes` more bytes of text, zero at first, for the device to write into. NULL when memory runs out. */
static char *room(di_text *out, uint64_t bytes) {
    static const char zero[8192];
    size_t at = out->length;
    for (uint64_t left = bytes; left;) {
        size_t piece = left < sizeof zero ? (size_t)left : sizeof zero;
        di_text_append(out, zero, piece);
        left -= piece;
    }
    return out->failed ? NULL : out->data + at;
}

static void write_part(const di_state *state, const di_state_part *part, di_text *out) {
    di_backend *backend = backend_of(state);
    uint64_t entries = entries_of(part, state->view.committed), bytes = entries * part->entry_bytes, run;
    char size[8];
    put_u64(size, bytes);
    di_text_append(out, size, sizeof size);
    char *to = room(out, bytes);
    for (uint64_t i = 0; to && i < entries; i += run) {
        di_buffer from;
        run = run_of(state, part, i, entries - i);
        if (locate(state, part, i, &from))
            backend->ops->read(backend, to + i * part->entry_bytes, from, run * part->entry_bytes);
    }
}

uint64_t di_state_serialised_bytes(const di_model *model, uint32_t position) {
    const di_state_layout *layout = di_model_layout(model);
    uint64_t bytes = HEADER_BYTES;
    for (uint32_t i = 0; i < layout->part_count; i++)
        bytes += 8 + entries_of(&layout->parts[i], (int32_t)position) * layout->parts[i].entry_bytes;
    return bytes;
}

di_status di_state_serialise(const di_state *state, di_text *out, di_error *error) {
    const di_state_layout *layout = di_model_layout(state->model);
    char header[HEADER_BYTES] = {0};
    size_t start = out->length;
    di_text_append(out, header, sizeof header);
    for (uint32_t i = 0; i < layout->part_count; i++) write_part(state, &layout->parts[i], out);
    if (out->failed) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot serialise a sequence");
    size_t body = start + HEADER_BYTES;
    write_header(state, out->data + body, out->length - body, header);
    memcpy(out->data + start, header, sizeof header);
    return DI_OK;
}

static di_status refuse(di_error *error, const char *field, const char *why) {
    return di_fail(error, DI_ERR_FORMAT, field, "state object: %s: %s", field, why);
}

static uint32_t required_parts(const di_state_layout *layout) {
    uint32_t count = 0;
    while (count < layout->part_count && layout->parts[count].required) count++;
    return count;
}

static di_status check_header(const di_state *state, const char *bytes, size_t length, di_error *error) {
    if (length < HEADER_BYTES || memcmp(bytes, MAGIC, sizeof MAGIC) != 0)
        return refuse(error, "magic", "these bytes are not a state object");
    if (bytes[8] != VERSION || bytes[9] || bytes[10] || bytes[11])
        return refuse(error, "version", "made by another version of deepinfer");
    char expected[HEADER_BYTES];
    write_header(state, "", 0, expected);
    if (memcmp(bytes + PROFILE_AT, expected + PROFILE_AT, 64) != 0)
        return refuse(error, "profile", "made with another numeric profile");
    if (memcmp(bytes + 32, expected + 32, 8) != 0)
        return refuse(error, "digest", "made with other weights or another config");
    if (get_u64(bytes + 8) >> 32 < required_parts(di_model_layout(state->model)))
        return refuse(error, "parts", "made for another state layout");
    if (get_u64(bytes + BODY_BYTES_AT) != length - HEADER_BYTES)
        return refuse(error, "length", "the object is cut off or has bytes behind it");
    if (get_u64(bytes + CHECKSUM_AT) != checksum(bytes, bytes + HEADER_BYTES, length - HEADER_BYTES))
        return refuse(error, "checksum", "the bytes were changed");
    uint64_t committed = get_u64(bytes + 16), low = get_u64(bytes + 24);
    if (committed > INT32_MAX || low > committed) return refuse(error, "committed", "not a possible length");
    return DI_OK;
}

/* The part that begins at bytes[*at]; false if it has another size. */
static bool read_part(di_state *state, const di_state_part *part, const char *bytes, size_t length, size_t *at) {
    di_backend *backend = backend_of(state);
    uint64_t entries = entries_of(part, state->view.committed), size = entries * part->entry_bytes, run;
    if (length - *at < 8 || get_u64(bytes + *at) != size || length - *at - 8 < size) return false;
    *at += 8;
    for (uint64_t i = 0; i < entries; i += run) {
        di_buffer to;
        run = run_of(state, part, i, entries - i);
        if (locate(state, part, i, &to))
            backend->ops->write(backend, to, bytes + *at + i * part->entry_bytes, run * part->entry_bytes);
    }
    *at += size;
    return true;
}

/* What stands behind the required parts: as many parts as this layout has, which are read, or another number, none
 * included, which are passed over; this layout's own are then missing. */
static bool read_optional(di_state *state, const char *bytes, size_t length, size_t at) {
    const di_state_layout *layout = di_model_layout(state->model);
    di_backend *backend = backend_of(state);
    uint32_t required = required_parts(layout), found = 0;
    for (size_t next = at; next < length; found++) {
        if (length - next < 8 || length - next - 8 < get_u64(bytes + next)) return false;
        next += 8 + get_u64(bytes + next);
    }
    for (uint32_t p = required; p < layout->part_count; p++) {
        const di_state_part *part = &layout->parts[p];
        backend->ops->fill(backend, di_buffer_at(state->view.rolling, part->offset), 0,
                           (uint64_t)part->slots * part->entry_bytes);
        if (found == layout->part_count - required && !read_part(state, part, bytes, length, &at)) return false;
    }
    return true;
}

static di_status read_parts(di_state *state, const char *bytes, size_t length, di_error *error) {
    const di_state_layout *layout = di_model_layout(state->model);
    uint32_t required = required_parts(layout);
    size_t at = HEADER_BYTES;
    for (uint32_t p = 0; p < required; p++)
        if (!read_part(state, &layout->parts[p], bytes, length, &at))
            return refuse(error, layout->parts[p].name, "wrong size");
    return read_optional(state, bytes, length, at) ? DI_OK : refuse(error, "length", "bytes behind the last part");
}

di_status di_state_restore(di_state *state, const char *bytes, size_t length, di_error *error) {
    di_status status = check_header(state, bytes, length, error);
    if (status) return status;
    uint64_t committed = get_u64(bytes + 16);
    di_state_reset(state); /* shared pages are never written */
    status = di_state_reserve(state, (uint32_t)committed, error);
    if (status) return status;
    state->view.committed = (int32_t)committed;
    state->view.decoder_low = (int32_t)get_u64(bytes + 24);
    status = read_parts(state, bytes, length, error);
    if (status) di_state_reset(state);
    return status;
}

/* ---------------------------------------------------------------- in pieces */

uint64_t di_state_layout_id(const di_model *model) {
    const di_state_layout *layout = di_model_layout(model);
    uint64_t id = layout->page_tokens;
    for (uint32_t i = 0; i < layout->part_count && layout->parts[i].required; i++) {
        const di_state_part *p = &layout->parts[i];
        const uint32_t numbers[] = {p->kind, p->decoder, p->entry_bytes, p->tokens_per_entry, p->slots};
        id = XXH64(p->name, strlen(p->name), id);
        id = XXH64(numbers, sizeof numbers, id);
    }
    return id;
}

/* Entries of a paged part in page `index` up to position H, and their bytes. */
static uint64_t page_entries(const di_state *state, const di_state_part *part, uint32_t index) {
    uint64_t page_tokens = di_model_layout(state->model)->page_tokens, from = index * page_tokens;
    uint64_t here = (uint64_t)state->view.committed - from;
    return (here < page_tokens ? here : page_tokens) / part->tokens_per_entry;
}

static uint64_t block_bytes(const di_state *state, uint32_t index) {
    const di_state_layout *layout = di_model_layout(state->model);
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < layout->part_count; p++)
        if (layout->parts[p].kind == DI_PART_PAGED)
            bytes += page_entries(state, &layout->parts[p], index) * layout->parts[p].entry_bytes;
    return bytes;
}

void di_state_write_block(const di_state *state, uint32_t index, di_text *out) {
    const di_state_layout *layout = di_model_layout(state->model);
    di_backend *backend = backend_of(state);
    for (uint32_t p = 0; p < layout->part_count; p++) {
        const di_state_part *part = &layout->parts[p];
        if (part->kind != DI_PART_PAGED) continue;
        uint64_t bytes = page_entries(state, part, index) * part->entry_bytes;
        char *to = room(out, bytes);
        if (to && bytes) backend->ops->read(backend, to, di_buffer_at(state->buffers[index], part->offset), bytes);
    }
}

void di_state_write_rest(const di_state *state, int32_t decoder_low, di_text *out) {
    const di_state_layout *layout = di_model_layout(state->model);
    di_state view = *state; /* the same memory seen with another limit of the decoder rings */
    view.view.decoder_low = decoder_low;
    uint32_t required = required_parts(layout);
    for (uint32_t p = 0; p < required; p++)
        if (layout->parts[p].kind != DI_PART_PAGED) write_part(&view, &layout->parts[p], out);
    if ((uint32_t)state->view.committed % layout->page_tokens)
        di_state_write_block(state, (uint32_t)state->view.committed / layout->page_tokens, out);
    for (uint32_t p = required; p < layout->part_count; p++) write_part(&view, &layout->parts[p], out);
}

di_status di_state_begin(di_state *state, uint32_t position, int32_t decoder_low, di_error *error) {
    di_state_reset(state);
    di_status status = di_state_reserve(state, position, error);
    if (status) return status;
    state->view.committed = (int32_t)position;
    state->view.decoder_low = decoder_low;
    return DI_OK;
}

bool di_state_read_block(di_state *state, uint32_t index, const char *bytes, size_t length) {
    const di_state_layout *layout = di_model_layout(state->model);
    di_backend *backend = backend_of(state);
    size_t at = 0;
    for (uint32_t p = 0; p < layout->part_count; p++) {
        const di_state_part *part = &layout->parts[p];
        if (part->kind != DI_PART_PAGED) continue;
        uint64_t size = page_entries(state, part, index) * part->entry_bytes;
        if (length - at < size) return false;
        if (size) backend->ops->write(backend, di_buffer_at(state->buffers[index], part->offset), bytes + at, size);
        at += size;
    }
    return at == length;
}

bool di_state_read_rest(di_state *state, const char *bytes, size_t length) {
    const di_state_layout *layout = di_model_layout(state->model);
    uint32_t required = required_parts(layout), page = (uint32_t)state->view.committed / layout->page_tokens;
    size_t at = 0;
    for (uint32_t p = 0; p < required; p++)
        if (layout->parts[p].kind != DI_PART_PAGED && !read_part(state, &layout->parts[p], bytes, length, &at))
            return false;
    if ((uint32_t)state->view.committed % layout->page_tokens) {
        uint64_t size = block_bytes(state, page);
        if (length - at < size || !di_state_read_block(state, page, bytes + at, size)) return false;
        at += size;
    }
    return read_optional(state, bytes, length, at);
}
