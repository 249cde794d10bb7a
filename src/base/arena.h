/* arena.h - memory that is freed all at once.
 *
 * Owner: whoever made it; not thread-safe. Allocations are aligned to 64 bytes at most (16 by default), never moved,
 * freed only by di_arena_reset (keeps the memory for the next use) or di_arena_free. Memory is not cleared; test builds
 * (DI_POISON) fill it with 0xA5 on allocation and on reset.
 */
#ifndef DI_BASE_ARENA_H
#define DI_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

typedef struct di_arena di_arena;

/* block_size: bytes asked from the system at a time (0 = 64 KiB). NULL when out of memory. */
di_arena *di_arena_new(size_t block_size);
void di_arena_free(di_arena *arena); /* NULL is allowed */
void di_arena_reset(di_arena *arena);
void *di_arena_alloc(di_arena *arena, size_t size); /* 16-byte aligned; NULL when out of memory */
void *di_arena_alloc_aligned(di_arena *arena, size_t size, size_t alignment);
void *di_arena_zalloc(di_arena *arena, size_t size);
/* count * size with overflow check */
void *di_arena_array(di_arena *arena, size_t count, size_t size);
char *di_arena_copy(di_arena *arena, const char *text, size_t length); /* zero-terminated copy */
size_t di_arena_bytes(const di_arena *arena);                          /* held from the system */

/* Aligned heap memory outside arenas: 64-byte aligned, cleared; NULL when out of memory or size overflows. */
void *di_aligned_alloc(size_t count, size_t size);
void di_aligned_free(void *memory);

#endif
