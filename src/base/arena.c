/* arena.c - see arena.h. A list of blocks of which one is being filled; reset joins them into one. */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef DI_POISON
#define POISON(memory, size) memset(memory, 0xA5, size)
#else
#define POISON(memory, size) ((void)(memory), (void)(size))
#endif

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
/* Gap after each allocation, so that the sanitizer sees a write past its end. */
#define RED_ZONE              16
#define HIDE(memory, size)    ASAN_POISON_MEMORY_REGION(memory, size)
#define UNCOVER(memory, size) ASAN_UNPOISON_MEMORY_REGION(memory, size)
#else
#define RED_ZONE              0
#define HIDE(memory, size)    ((void)0)
#define UNCOVER(memory, size) ((void)0)
#endif

enum { BLOCK_ALIGNMENT = 64, DEFAULT_ALIGNMENT = 16, DEFAULT_BLOCK = 64 * 1024 };
/* Aligned memory from this size on is mapped: freed, it goes back to the system at once and leaves no hole in the heap,
 * and what is never written takes none. The sanitizer watches the heap only. */
#ifdef ARENA_ASAN
static const size_t map_from = SIZE_MAX;
#else
static const size_t map_from = 256 * 1024;
#endif

typedef struct block {
    struct block *next;
    size_t capacity, used;
    _Alignas(BLOCK_ALIGNMENT) unsigned char data[];
} block;
_Static_assert(sizeof(block) % BLOCK_ALIGNMENT == 0, "block data starts aligned");

struct di_arena {
    block *first, *current;
    size_t block_size, bytes;
};

di_arena *di_arena_new(size_t block_size) {
    di_arena *arena = calloc(1, sizeof *arena);
    if (arena) arena->block_size = block_size ? block_size : DEFAULT_BLOCK;
    return arena;
}

static void free_blocks(di_arena *arena) {
    for (block *b = arena->first; b;) {
        block *next = b->next;
        UNCOVER(b->data, b->capacity);
        POISON(b->data, b->capacity);
        free(b);
        b = next;
    }
    arena->first = arena->current = NULL;
    arena->bytes = 0;
}

void di_arena_free(di_arena *arena) {
    if (!arena) return;
    free_blocks(arena);
    free(arena);
}

static block *block_new(di_arena *arena, size_t size) {
    size_t capacity = size > arena->block_size ? size : arena->block_size;
    if (capacity > SIZE_MAX / 2) return NULL;
    size_t bytes = sizeof(block) + capacity;
    bytes = (bytes + BLOCK_ALIGNMENT - 1) & ~(size_t)(BLOCK_ALIGNMENT - 1);
    block *b = aligned_alloc(BLOCK_ALIGNMENT, bytes);
    if (!b) return NULL;
    *b = (block){.capacity = bytes - sizeof(block)};
    arena->bytes += bytes;
    HIDE(b->data, b->capacity);
    return b;
}

void di_arena_reset(di_arena *arena) {
    if (arena->first && arena->first->next) {
        /* One block of the same size: the same work then fits without asking the system again. */
        size_t capacity = 0;
        for (block *b = arena->first; b; b = b->next) capacity += b->capacity;
        free_blocks(arena);
        arena->first = block_new(arena, capacity);
    } else if (arena->first) {
        UNCOVER(arena->first->data, arena->first->capacity);
        POISON(arena->first->data, arena->first->capacity);
        HIDE(arena->first->data, arena->first->capacity);
        arena->first->used = 0;
    }
    arena->current = arena->first;
}

/* Space in the block, or NULL. The data begins at a multiple of 64, so offsets alone give the alignment. */
static void *block_take(block *b, size_t size, size_t alignment) {
    size_t start = (b->used + alignment - 1) & ~(alignment - 1);
    if (start > b->capacity || b->capacity - start < size) return NULL;
    size_t end = start + size;
    size_t rest = b->capacity - end;
    b->used = end + (rest > RED_ZONE ? RED_ZONE : rest);
    UNCOVER(b->data + start, size);
    POISON(b->data + start, size);
    return b->data + start;
}

void *di_arena_alloc_aligned(di_arena *arena, size_t size, size_t alignment) {
    if (alignment == 0 || alignment > BLOCK_ALIGNMENT || (alignment & (alignment - 1))) return NULL;
    if (size == 0) size = 1; /* distinct addresses */
    void *memory = arena->current ? block_take(arena->current, size, alignment) : NULL;
    if (memory) return memory;
    block *b = block_new(arena, size);
    if (!b) return NULL;
    b->next = arena->first;
    arena->first = b;
    /* A large block is full at once and does not end the use of the current one. */
    if (!arena->current || size < arena->block_size) arena->current = b;
    return block_take(b, size, alignment);
}

void *di_arena_alloc(di_arena *arena, size_t size) {
    return di_arena_alloc_aligned(arena, size, DEFAULT_ALIGNMENT);
}

void *di_arena_zalloc(di_arena *arena, size_t size) {
    void *memory = di_arena_alloc(arena, size);
    if (memory) memset(memory, 0, size);
    return memory;
}

void *di_arena_array(di_arena *arena, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    return di_arena_alloc(arena, bytes);
}

char *di_arena_copy(di_arena *arena, const char *text, size_t length) {
    if (length == SIZE_MAX) return NULL;
    char *copy = di_arena_alloc_aligned(arena, length + 1, 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

size_t di_arena_bytes(const di_arena *arena) {
    return arena->bytes;
}

/* In the 64 bytes before aligned memory. */
typedef struct aligned_head {
    size_t mapped; /* bytes of the mapping; 0 = from the heap */
    unsigned char fill[BLOCK_ALIGNMENT - sizeof(size_t)];
} aligned_head;

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

void *di_aligned_alloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
    bytes = round_up(bytes + (bytes == 0), BLOCK_ALIGNMENT) + sizeof(aligned_head);
    aligned_head *head;
    if (bytes >= map_from) {
        bytes = round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
        head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (head == MAP_FAILED) return NULL;
        head->mapped = bytes;
    } else {
        head = aligned_alloc(BLOCK_ALIGNMENT, bytes);
        if (!head) return NULL;
        memset(head, 0, bytes);
    }
    return head + 1;
}

void di_aligned_free(void *memory) {
    if (!memory) return;
    aligned_head *head = (aligned_head *)memory - 1;
    if (head->mapped)
        munmap(head, head->mapped);
    else
        free(head);
}
