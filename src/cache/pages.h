/* pages.h - the pool of state pages. One page holds `page_tokens` positions of every growing part (model/model.h).
 *
 * Pages are counted references: a page with one owner may be written, a shared one never is (copy first). Memory is
 * taken from the device when a page is first needed and given back when the pool is freed. Engine thread only.
 */
#ifndef DI_CACHE_PAGES_H
#define DI_CACHE_PAGES_H

#include "model/model.h"

typedef struct di_page_pool di_page_pool;

typedef struct di_page {
    di_page_pool *pool;
    di_buffer buffer; /* page_bytes of the layout */
    uint32_t references;
    bool cached; /* one of the references is the prefix cache's */
    struct di_page *next_free;
} di_page;

di_status di_page_pool_new(di_model *model, uint32_t max_pages, di_page_pool **pool, di_error *error);
/* Every page must have been given back (asserted in test builds). */
void di_page_pool_free(di_page_pool *pool);

/* A page with one reference, or NULL when the pool is exhausted. In test builds its content is poisoned. */
di_page *di_page_take(di_page_pool *pool);
void di_page_share(di_page *page);
void di_page_release(di_page_pool *pool, di_page *page); /* NULL is allowed */
/* A private copy, or NULL when the pool is exhausted. */
di_page *di_page_copy(di_page_pool *pool, const di_page *page);
/* Tells the pool that the prefix cache took a reference, or is about to release it. */
void di_page_set_cached(di_page *page, bool cached);

uint32_t di_page_pool_used(const di_page_pool *pool);  /* pages with references */
uint32_t di_page_pool_limit(const di_page_pool *pool); /* max_pages */
uint32_t di_page_pool_spare(const di_page_pool *pool); /* pages that only the prefix cache holds */
di_model *di_page_pool_model(const di_page_pool *pool);

#endif
