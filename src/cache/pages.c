/* pages.c - see pages.h. Page records live in fixed chunks so that their addresses never change. */
#include "cache/pages.h"

#include <assert.h>
#include <stdlib.h>

enum { CHUNK_PAGES = 64 };

typedef struct page_chunk {
    di_block *block;
    struct page_chunk *next;
    di_page pages[CHUNK_PAGES];
} page_chunk;

struct di_page_pool {
    di_model *model;
    page_chunk *chunks;
    di_page *free;
    uint32_t max_pages, made, used, spare;
};

di_status di_page_pool_new(di_model *model, uint32_t max_pages, di_page_pool **pool, di_error *error) {
    *pool = calloc(1, sizeof **pool);
    if (!*pool) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make the page pool");
    (*pool)->model = model;
    (*pool)->max_pages = max_pages;
    return DI_OK;
}

void di_page_pool_free(di_page_pool *pool) {
    if (!pool) return;
    assert(pool->used == 0);
    di_backend *backend = di_model_backend(pool->model);
    while (pool->chunks) {
        page_chunk *next = pool->chunks->next;
        backend->ops->release(backend, pool->chunks->block);
        free(pool->chunks);
        pool->chunks = next;
    }
    free(pool);
}

/* One device allocation for up to CHUNK_PAGES pages. */
static void grow(di_page_pool *pool) {
    uint32_t count = pool->max_pages - pool->made;
    if (count > CHUNK_PAGES) count = CHUNK_PAGES;
    page_chunk *chunk = count ? calloc(1, sizeof *chunk) : NULL;
    if (!chunk) return;
    di_backend *backend = di_model_backend(pool->model);
    uint64_t bytes = di_model_layout(pool->model)->page_bytes;
    if (backend->ops->allocate(backend, count * bytes, &chunk->block, NULL)) {
        free(chunk);
        return;
    }
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->made += count;
    for (uint32_t i = count; i > 0; i--) {
        chunk->pages[i - 1] =
            (di_page){.pool = pool, .buffer = {chunk->block, (i - 1) * bytes}, .next_free = pool->free};
        pool->free = &chunk->pages[i - 1];
    }
}

di_page *di_page_take(di_page_pool *pool) {
    if (!pool->free) grow(pool);
    di_page *page = pool->free;
    if (!page) return NULL;
    pool->free = page->next_free;
    page->next_free = NULL;
    page->references = 1;
    pool->used++;
#ifdef DI_POISON
    di_backend *backend = di_model_backend(pool->model);
    backend->ops->fill(backend, page->buffer, 0xA5, di_model_layout(pool->model)->page_bytes);
#endif
    return page;
}

/* Keeps count of the pages that only the prefix cache holds. */
static bool is_spare(const di_page *page) {
    return page->cached && page->references == 1;
}

void di_page_share(di_page *page) {
    page->pool->spare -= is_spare(page);
    page->references++;
}

void di_page_set_cached(di_page *page, bool cached) {
    page->pool->spare -= is_spare(page);
    page->cached = cached;
    page->pool->spare += is_spare(page);
}

void di_page_release(di_page_pool *pool, di_page *page) {
    if (!page) return;
    assert(page->references > 0);
    if (--page->references) {
        pool->spare += is_spare(page);
        return;
    }
    assert(!page->cached);
    page->next_free = pool->free;
    pool->free = page;
    pool->used--;
}

di_page *di_page_copy(di_page_pool *pool, const di_page *page) {
    di_page *copy = di_page_take(pool);
    if (!copy) return NULL;
    di_backend *backend = di_model_backend(pool->model);
    di_copy_args args = {
        .from = page->buffer, .to = copy->buffer, .bytes = di_model_layout(pool->model)->page_bytes, .count = 1};
    backend->ops->copy(backend, &args);
    return copy;
}

uint32_t di_page_pool_used(const di_page_pool *pool) {
    return pool->used;
}
uint32_t di_page_pool_limit(const di_page_pool *pool) {
    return pool->max_pages;
}
uint32_t di_page_pool_spare(const di_page_pool *pool) {
    return pool->spare;
}
di_model *di_page_pool_model(const di_page_pool *pool) {
    return pool->model;
}
