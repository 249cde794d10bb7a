/* kernels.c - speed of the E2M1 and E4M3 products at the shapes of DeepSeek-V4.1-Flash, as a fraction of the read
 * bandwidth of the same run. Weights come from main memory: every product uses the next matrix of a pool larger than
 * all caches. Instruction sets alternate; figures are medians over rounds.
 *
 * bench_kernels [--rounds N] [--time MS] [--threads N]... [--rows M]...
 */
#include "measure.h"
#include "tensor/codec.h"

enum { MAX_ROWS = 64, MAX_IN = 8192, MAX_OUT = 32768, TILE_WEIGHTS = 1 << 16, MAX_THREAD_COUNTS = 4 };
enum { POOL_BYTES = 384 << 20 };

typedef struct shape {
    const char *name, *weights;
    bool fp4;
    size_t in, out;
} shape;

static const shape shapes[] = {
    {"expert up", "fp4", true, 5120, 2304},
    {"expert down", "fp4", true, 2304, 5120},
    {"shared up", "fp8", false, 5120, 2304},
    {"shared down", "fp8", false, 2304, 5120},
    {"wq_a", "fp8", false, 5120, 1280},
    {"wq_b", "fp8", false, 1280, 32768},
    {"wo_a (one group)", "fp8", false, 4096, 1024},
    {"wo_b", "fp8", false, 8192, 5120},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, MAX_ROW_COUNTS = 8 };

static const di_cpu_kernels *const tables[] = {&di_cpu_avx2, &di_cpu_avx512};
enum { TABLES = sizeof tables / sizeof *tables };

typedef struct bench {
    const uint8_t *weights; /* POOL_BYTES */
    const uint8_t *scales;
    size_t next;     /* offset of the next matrix in the pool */
    uint16_t *input; /* [MAX_ROWS][MAX_IN] */
    float *values;
    di_f4_block *blocks;
    float *y;           /* [MAX_ROWS][MAX_OUT] */
    float *scratch[64]; /* per worker [MAX_ROWS][MAX_IN] */
    int time_ms, rounds;
    size_t row_counts[MAX_ROW_COUNTS];
    size_t row_count_count;
} bench;

/* One product, cut into tiles of output rows as the engine does. */
typedef struct product {
    bench *b;
    const di_cpu_kernels *k;
    const shape *s;
    size_t rows, tile;
    di_cpu_f8 f8;
    di_cpu_f4 f4;
} product;

static void product_tile(void *arg, size_t tile, int worker) {
    const product *p = arg;
    size_t n0 = tile * p->tile, n1 = n0 + p->tile < p->s->out ? n0 + p->tile : p->s->out;
    if (p->s->fp4)
        p->k->product_f4(&p->f4, p->b->blocks, p->b->values, p->rows, n0, n1, p->b->y, p->s->out);
    else
        p->k->product_f8(&p->f8, p->b->values, p->s->in, p->rows, n0, n1, p->b->y, p->s->out, p->b->scratch[worker]);
}

static size_t code_bytes(const shape *s) {
    return s->fp4 ? di_cpu_f4_tile_bytes(s->out, s->in) : s->out * s->in;
}

static size_t scale_bytes(const shape *s) {
    return s->fp4 ? di_cpu_f4_scale_bytes(s->out, s->in) : (s->out + 31) / 32 * (s->in / 32);
}

/* GB of weights and scales per second, over at least time_ms. */
static double measure(bench *b, di_pool *pool, const di_cpu_kernels *k, const shape *s, size_t rows) {
    product p = {.b = b, .k = k, .s = s, .rows = rows};
    p.tile = TILE_WEIGHTS / s->in / 32 * 32;
    if (p.tile < 32) p.tile = 32;
    k->quantise_input(b->input, rows * s->in, b->values, b->blocks);
    size_t codes = code_bytes(s), products = 0;
    int64_t start = di_now_ns(), now = start;
    while (now - start < (int64_t)b->time_ms * 1000000) {
        if (b->next + codes > POOL_BYTES) b->next = 0;
        p.f8 = (di_cpu_f8){b->weights + b->next, b->scales, s->out, s->in};
        p.f4 = (di_cpu_f4){b->weights + b->next, b->scales, s->out, s->in};
        b->next += (codes + 4095) / 4096 * 4096;
        di_pool_run(pool, (s->out + p.tile - 1) / p.tile, product_tile, &p);
        products++;
        now = di_now_ns();
    }
    return (double)(products * (codes + scale_bytes(s))) / (double)(now - start);
}

static void run_threads(bench *b, di_pool *pool) {
    int threads = di_pool_threads(pool);
    fprintf(stderr, "\n%d thread%s\n%-18s %5s %6s %4s | %-8s %8s %6s %9s\n", threads, threads == 1 ? "" : "s",
            "weights", "in", "out", "M", "isa", "GB/s", "of rd", "GMAC/s");
    for (size_t i = 0; i < SHAPES; i++) {
        const shape *s = &shapes[i];
        for (size_t r = 0; r < b->row_count_count; r++) {
            double rate[TABLES][MAX_ROUNDS], read[MAX_ROUNDS];
            for (int round = 0; round < b->rounds; round++) {
                read[round] = read_bandwidth(pool, b->weights, POOL_BYTES / 2);
                for (size_t t = 0; t < TABLES; t++) {
                    if (di_cpu_supports(tables[t])) rate[t][round] = measure(b, pool, tables[t], s, b->row_counts[r]);
                }
            }
            double bandwidth = median(read, b->rounds);
            for (size_t t = 0; t < TABLES; t++) {
                if (!di_cpu_supports(tables[t])) continue;
                double gb = median(rate[t], b->rounds);
                double macs =
                    gb / (double)(code_bytes(s) + scale_bytes(s)) * (double)(s->in * s->out * b->row_counts[r]);
                printf("{\"bench\": \"kernels\", \"product\": \"%s\", \"weights\": \"%s\", \"in\": %zu, \"out\": %zu, "
                       "\"rows\": %zu, \"threads\": %d, \"isa\": \"%s\", \"gb_per_s\": %.2f, \"read_gb_per_s\": %.2f, "
                       "\"fraction\": %.3f, \"gmac_per_s\": %.2f}\n",
                       s->name, s->weights, s->in, s->out, b->row_counts[r], threads, tables[t]->name, gb, bandwidth,
                       gb / bandwidth, macs);
                fprintf(stderr, "%-18s %5zu %6zu %4zu | %-8s %8.2f %5.0f%% %9.1f\n", s->name, s->in, s->out,
                        b->row_counts[r], tables[t]->name, gb, 100 * gb / bandwidth, macs);
            }
        }
    }
}

static bool prepare(bench *b, int workers) {
    b->weights = random_bytes(POOL_BYTES);
    uint8_t *scales = malloc((size_t)1 << 20);
    b->scales = scales;
    b->input = di_aligned_alloc((size_t)MAX_ROWS * MAX_IN, sizeof *b->input);
    b->values = di_aligned_alloc((size_t)MAX_ROWS * MAX_IN, sizeof *b->values);
    b->blocks = di_aligned_alloc((size_t)MAX_ROWS * MAX_IN / 32, sizeof *b->blocks);
    b->y = di_aligned_alloc((size_t)MAX_ROWS * MAX_OUT, sizeof *b->y);
    bool good = b->weights && scales && b->input && b->values && b->blocks && b->y;
    for (int w = 0; w < workers; w++) {
        b->scratch[w] = di_aligned_alloc((size_t)MAX_ROWS * MAX_IN, sizeof(float));
        good &= b->scratch[w] != NULL;
    }
    if (!good) return false;
    for (size_t i = 0; i < (size_t)1 << 20; i++) scales[i] = (uint8_t)(118 + i % 5);
    for (size_t i = 0; i < (size_t)MAX_ROWS * MAX_IN; i++)
        b->input[i] = di_bf16_encode((float)((int)(i * 2654435761u >> 16 & 0xffff) - 32768) * 0x1p-14f);
    return true;
}

static int usage(void) {
    fprintf(stderr, "usage: bench_kernels [--rounds 1..%d] [--time MS] [--threads N]... [--rows M]...\n", MAX_ROUNDS);
    return 2;
}

int main(int argc, char **argv) {
    bench b = {.time_ms = 60, .rounds = 3};
    int threads[MAX_THREAD_COUNTS], count = 0, most = 1;
    for (int i = 1; i < argc; i += 2) {
        int value = i + 1 < argc ? atoi(argv[i + 1]) : 0;
        if (value < 1) return usage();
        if (!strcmp(argv[i], "--rounds") && value <= MAX_ROUNDS)
            b.rounds = value;
        else if (!strcmp(argv[i], "--time"))
            b.time_ms = value;
        else if (!strcmp(argv[i], "--threads") && count < MAX_THREAD_COUNTS && value <= 64)
            threads[count++] = value;
        else if (!strcmp(argv[i], "--rows") && b.row_count_count < MAX_ROW_COUNTS && value <= MAX_ROWS)
            b.row_counts[b.row_count_count++] = (size_t)value;
        else
            return usage();
    }
    static const size_t usual_rows[] = {1, 2, 4, 8, 64};
    if (!b.row_count_count) {
        b.row_count_count = sizeof usual_rows / sizeof *usual_rows;
        memcpy(b.row_counts, usual_rows, sizeof usual_rows);
    }
    if (!count) {
        threads[count++] = 1;
        if (di_usable_cores() > 1) threads[count++] = 2;
    }
    for (int i = 0; i < count; i++) most = threads[i] > most ? threads[i] : most;
    print_environment("kernels");
    if (!prepare(&b, most)) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        return 1;
    }
    for (size_t t = 0; t < TABLES; t++) {
        if (!di_cpu_supports(tables[t]))
            fprintf(stderr, "%s: skipped, not supported by this machine\n", tables[t]->name);
    }
    for (int i = 0; i < count; i++) {
        di_pool *pool;
        di_error error;
        if (di_pool_new(threads[i], &pool, &error)) {
            fprintf(stderr, "bench_kernels: %s\n", error.message);
            return 1;
        }
        run_threads(&b, pool);
        di_pool_free(pool);
    }
    return 0;
}
