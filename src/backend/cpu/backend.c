/* backend.c - the CPU backend object: memory, copies, choice of the kernel table. */
#include "backend/cpu/cpu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- device memory */

static di_status cpu_allocate(di_backend *backend, uint64_t bytes, di_block **block, di_error *error) {
    (void)backend;
    *block = NULL;
    di_block *made = malloc(sizeof *made);
    if (made) {
        made->base = bytes <= SIZE_MAX ? di_aligned_alloc((size_t)(bytes ? bytes : 1), 1) : NULL;
        made->bytes = bytes;
    }
    if (!made || !made->base) {
        free(made);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot allocate %llu bytes",
                       (unsigned long long)bytes);
    }
    *block = made;
    return DI_OK;
}

static void cpu_release(di_backend *backend, di_block *block) {
    (void)backend;
    if (!block) return;
    di_aligned_free(block->base);
    free(block);
}

static void cpu_write(di_backend *backend, di_buffer to, const void *from, uint64_t bytes) {
    (void)backend;
    memcpy(di_cpu_at(to), from, bytes);
}

static void cpu_read(di_backend *backend, void *to, di_buffer from, uint64_t bytes) {
    (void)backend;
    memcpy(to, di_cpu_at(from), bytes);
}

static void cpu_copy(di_backend *backend, const di_copy_args *a) {
    (void)backend;
    uint8_t *to = di_cpu_at(a->to);
    const uint8_t *from = di_cpu_at(a->from);
    for (uint32_t i = 0; i < a->count; i++) memcpy(to + i * a->to_stride, from + i * a->from_stride, a->bytes);
}

static void cpu_fill(di_backend *backend, di_buffer to, uint8_t value, uint64_t bytes) {
    (void)backend;
    memset(di_cpu_at(to), value, bytes);
}

static void cpu_synchronise(di_backend *backend) {
    (void)backend;
}

/* ---------------------------------------------------------------- workspace of an op */

static void free_chunks(di_cpu *cpu) {
    while (cpu->workspace) {
        di_cpu_chunk *next = cpu->workspace->next;
        di_aligned_free(cpu->workspace->base);
        free(cpu->workspace);
        cpu->workspace = next;
    }
}

static bool add_chunk(di_cpu *cpu, size_t bytes) {
    di_cpu_chunk *chunk = malloc(sizeof *chunk);
    uint8_t *base = chunk ? di_aligned_alloc(bytes, 1) : NULL;
    if (!base) {
        free(chunk);
        cpu->failed = DI_ERR_MEMORY;
        return false;
    }
    *chunk = (di_cpu_chunk){.base = base, .bytes = bytes, .next = cpu->workspace};
    cpu->workspace = chunk;
    cpu->workspace_used = 0;
    return true;
}

void di_cpu_begin(di_cpu *cpu) {
    /* Pieces handed out never move, so growth adds a chunk; the next op finds one chunk of the whole size. */
    if (cpu->workspace && cpu->workspace->next) {
        free_chunks(cpu);
        add_chunk(cpu, cpu->workspace_wanted);
    }
    cpu->workspace_used = 0;
    cpu->workspace_wanted = 0;
}

void *di_cpu_take(di_cpu *cpu, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        cpu->failed = DI_ERR_MEMORY;
        return NULL;
    }
    bytes = di_round_up(bytes ? bytes : 1, 64);
    cpu->workspace_wanted += bytes;
    if (!cpu->workspace || cpu->workspace->bytes - cpu->workspace_used < bytes) {
        size_t least = (size_t)1 << 20;
        if (!add_chunk(cpu, bytes > least ? bytes : least)) return NULL;
    }
    void *piece = cpu->workspace->base + cpu->workspace_used;
    cpu->workspace_used += bytes;
    return piece;
}

bool di_cpu_worker(di_cpu *cpu, size_t bytes) {
    bytes = di_round_up(bytes, 64);
    if (bytes <= cpu->worker_bytes) return true;
    for (int i = 0; i < cpu->workers; i++) {
        di_aligned_free(cpu->worker_memory[i]);
        cpu->worker_memory[i] = NULL;
    }
    cpu->worker_bytes = 0;
    for (int i = 0; i < cpu->workers; i++) {
        cpu->worker_memory[i] = di_aligned_alloc(bytes, 1);
        if (!cpu->worker_memory[i]) {
            cpu->failed = DI_ERR_MEMORY;
            return false;
        }
    }
    cpu->worker_bytes = bytes;
    return true;
}

void di_cpu_run(di_cpu *cpu, size_t tiles, di_pool_tile work, void *arg, size_t cost) {
    enum { INLINE_COST = 1 << 17 };
    if (cost < INLINE_COST) {
        for (size_t t = 0; t < tiles; t++) work(arg, t, 0);
    } else {
        di_pool_run(cpu->pool, tiles, work, arg);
    }
}

/* ---------------------------------------------------------------- the object */

static const di_ops cpu_ops = {
    .device = "cpu",
    .allocate = cpu_allocate,
    .release = cpu_release,
    .write = cpu_write,
    .read = cpu_read,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .synchronise = cpu_synchronise,
    .load_weight = di_cpu_load_weight,
    .free_weight = di_cpu_free_weight,
    .embed = di_cpu_embed,
    .rotary = di_cpu_rotary,
    .engram = di_cpu_engram,
    .hyper_enter = di_cpu_hyper_enter,
    .hyper_leave = di_cpu_hyper_leave,
    .collapse = di_cpu_collapse,
    .project = di_cpu_project,
    .compress = di_cpu_compress,
    .index = di_cpu_index,
    .attend = di_cpu_attend,
    .experts = di_cpu_experts,
    .tap = di_cpu_tap,
    .head = di_cpu_head,
    .draft_keys = di_cpu_draft_keys,
    .markov = di_cpu_markov,
    .sample = di_cpu_sample,
};

static di_status cpu_failure(di_backend *backend, di_error *error) {
    di_cpu *cpu = (di_cpu *)backend;
    di_status failed = cpu->failed;
    cpu->failed = DI_OK;
    if (failed == DI_OK) return DI_OK;
    return di_fail(error, failed, NULL, "out of memory while computing a step: lower --max-rows or --context");
}

static void cpu_free(di_backend *backend) {
    di_cpu *cpu = (di_cpu *)backend;
    if (!cpu) return;
    free_chunks(cpu);
    for (int i = 0; cpu->worker_memory && i < cpu->workers; i++) di_aligned_free(cpu->worker_memory[i]);
    free(cpu->worker_memory);
    free(cpu);
}

di_status di_cpu_backend_with_kernels(const di_cpu_kernels *kernels, di_pool *pool, di_backend **backend,
                                      di_error *error) {
    *backend = NULL;
    di_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make the CPU backend");
    cpu->backend = (di_backend){
        .ops = &cpu_ops, .profile = "exact", .isa = kernels->name, .failure = cpu_failure, .free = cpu_free};
    cpu->k = kernels;
    cpu->pool = pool;
    cpu->workers = di_pool_threads(pool);
    cpu->worker_memory = calloc((size_t)cpu->workers, sizeof *cpu->worker_memory);
    if (!cpu->worker_memory || !di_cpu_worker(cpu, 4096)) {
        cpu_free(&cpu->backend);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make the CPU backend");
    }
    *backend = &cpu->backend;
    return DI_OK;
}

static const di_cpu_kernels *const tables[] = {
#if defined(__x86_64__)
    &di_cpu_avx512,
    &di_cpu_avx2,
#endif
    &di_cpu_scalar,
};
enum { TABLE_COUNT = sizeof tables / sizeof tables[0] };

bool di_cpu_can(const char *isa) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (strcmp(isa, tables[i]->name) == 0) return di_cpu_supports(tables[i]);
    return false;
}

uint64_t di_cpu_compare(const char *isa, uint64_t seed, uint32_t vectors, const char **what) {
    const di_cpu_kernels *kernels = &di_cpu_scalar;
    for (int i = 0; i < TABLE_COUNT; i++)
        if (strcmp(isa, tables[i]->name) == 0) kernels = tables[i];
    return di_cpu_compare_kernels(kernels, seed, vectors, what);
}

di_status di_cpu_backend_new(const char *isa, di_pool *pool, char note[256], di_backend **backend, di_error *error) {
    *backend = NULL;
    if (note) note[0] = 0;
    bool automatic = strcmp(isa, "auto") == 0;
    for (int i = 0; i < TABLE_COUNT; i++) {
        const di_cpu_kernels *kernels = tables[i];
        if (!automatic && strcmp(isa, kernels->name) != 0) continue;
        if (!di_cpu_supports(kernels)) {
            if (automatic) continue;
            return di_fail(error, DI_ERR_UNSUPPORTED, "cpu-isa",
                           "--cpu-isa %s: this processor does not have it; use auto or scalar", isa);
        }
        const char *what = NULL;
        if (kernels != &di_cpu_scalar && !di_cpu_self_test(kernels, &what)) {
            if (!automatic)
                return di_fail(error, DI_ERR_INTERNAL, "cpu-isa",
                               "--cpu-isa %s: '%s' differs from the scalar reference on this machine", isa, what);
            if (note)
                snprintf(note, 256, "the %s form of '%s' differs from the scalar reference on this machine; not used",
                         kernels->name, what);
            continue;
        }
        return di_cpu_backend_with_kernels(kernels, pool, backend, error);
    }
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, "cpu-isa", "--cpu-isa %s: must be one of auto, scalar, avx2, avx512",
                   isa);
}
