/* linear.c - products of activations with stored matrices, cut into tiles; quantisation of their inputs. */
#include "backend/cpu/cpu_internal.h"

/* ROW_BLOCK: rows of the input that one tile multiplies: few enough for the input to stay in the second-level cache.
 * TILE_WEIGHTS: elements of the matrix at most. TILE_PRODUCTS: multiply-adds worth a claim, about a microsecond.
 * A matrix of at most SMALL elements is cut by rows, SMALL_ROWS a tile, as the ops before and after are: reading it
 * again costs less than fetching rows that another core has written. */
enum {
    ROW_BLOCK = 32,
    TILE_WEIGHTS = 1 << 16,
    TILE_PRODUCTS = 1 << 15,
    TILES_WANTED = 8,
    SMALL = 1 << 18,
    SMALL_ROWS = 4,
};

di_cpu_linear di_cpu_whole(const di_weight *w, const di_cpu_input *x, float *y, size_t y_stride) {
    return (di_cpu_linear){.w = w,
                           .x = x->values,
                           .x_stride = x->stride,
                           .blocks = x->blocks,
                           .rows = x->rows,
                           .n0 = 0,
                           .n1 = w->out,
                           .y = y,
                           .y_stride = y_stride};
}

/* How one product is cut: into columns of outputs and blocks of rows. */
typedef struct cut {
    size_t first; /* number of the first tile */
    size_t outputs, columns, blocks;
    bool small;
} cut;

static size_t multiply_adds(const di_cpu_linear *l) {
    return (l->n1 - l->n0) * l->w->in * l->rows;
}

/* Tiles have so many outputs that a run of `cost` multiply-adds has some tiles for every thread, that a tile is worth
 * its claim, and that it has about TILE_WEIGHTS elements at most; a multiple of what the products ask for. */
static cut cut_product(const di_cpu_linear *l, size_t cost) {
    size_t in = l->w->in ? l->w->in : 1, all = l->n1 - l->n0;
    cut c = {.small = in * all <= SMALL, .blocks = (l->rows + ROW_BLOCK - 1) / ROW_BLOCK};
    if (c.small && l->rows >= 2 * SMALL_ROWS) c.blocks = l->rows / SMALL_ROWS;
    size_t rows = c.blocks ? (l->rows + c.blocks - 1) / c.blocks : 1;
    size_t step = l->w->dtype == DI_DTYPE_F8_E4M3 ? 32 : l->w->dtype == DI_DTYPE_I8 ? 16 : 8;
    size_t products = cost / TILES_WANTED > TILE_PRODUCTS ? cost / TILES_WANTED : TILE_PRODUCTS;
    size_t n = products / (in * rows), most = TILE_WEIGHTS / in;
    n = (n < most ? n : most) / step * step;
    c.outputs = n < step ? step : n > 1024 ? 1024 : n;
    c.columns = (all + c.outputs - 1) / c.outputs;
    return c;
}

typedef struct product_run {
    di_cpu *cpu;
    const di_cpu_linear *set;
    const cut *cuts; /* [count] */
    size_t count;
    size_t columns; /* of all products, if they are small and have the same blocks: their tiles go block by block */
} product_run;

static void one_tile(di_cpu *cpu, const di_cpu_linear *l, const cut *c, size_t column, size_t block, int worker) {
    const di_cpu_kernels *k = cpu->k;
    const di_weight *w = l->w;
    size_t n0 = l->n0 + column * c->outputs, n1 = n0 + c->outputs < l->n1 ? n0 + c->outputs : l->n1;
    size_t m0 = l->rows * block / c->blocks, rows = l->rows * (block + 1) / c->blocks - m0;
    const float *x = l->x + m0 * l->x_stride;
    float *y = l->y + m0 * l->y_stride - l->n0; /* element n at y[n] */
    switch (w->dtype) {
    case DI_DTYPE_F8_E4M3: {
        di_cpu_f8 f8 = {.codes = w->codes, .scales = w->scales, .out = w->out, .in = w->in};
        k->product_f8(&f8, x, l->x_stride, rows, n0, n1, y, l->y_stride, (float *)cpu->worker_memory[worker]);
        break;
    }
    case DI_DTYPE_I8: {
        di_cpu_f4 f4 = {.tiles = w->owned, .scales = w->owned_scales, .out = w->out, .in = w->in};
        k->product_f4(&f4, l->blocks + m0 * (w->in / 32), x, rows, n0, n1, y, l->y_stride);
        break;
    }
    default: /* BF16 where it lies, else fp32 */
        if (w->codes)
            k->product_bf16(w->codes, w->in, x, l->x_stride, rows, n0, n1, y, l->y_stride);
        else
            k->product_f32(w->values, w->in, x, l->x_stride, rows, n0, n1, y, l->y_stride);
        break;
    }
}

static void product_tile(void *arg, size_t tile, int worker) {
    const product_run *run = arg;
    size_t block = run->columns ? tile / run->columns : 0, low = 0, high = run->count; /* product that holds the tile */
    if (run->columns) tile %= run->columns;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (run->cuts[middle].first <= tile)
            low = middle;
        else
            high = middle;
    }
    const cut *c = &run->cuts[low];
    size_t column = tile - c->first;
    if (!run->columns) { /* the blocks of a column one after the other: its weights are still near */
        block = column % c->blocks;
        column /= c->blocks;
    }
    one_tile(run->cpu, &run->set[low], c, column, block, worker);
}

void di_cpu_products(di_cpu *cpu, const di_cpu_linear *set, size_t count) {
    if (cpu->failed || !count) return;
    cut *cuts = di_cpu_take(cpu, count, sizeof *cuts);
    if (!cuts) return;
    size_t cost = 0, widest = 0, tiles = 0;
    for (size_t i = 0; i < count; i++) {
        cost += multiply_adds(&set[i]);
        if (set[i].w->in > widest) widest = set[i].w->in;
    }
    if (!di_cpu_worker(cpu, widest * ROW_BLOCK * sizeof(float))) return;
    bool by_rows = true;
    for (size_t i = 0; i < count; i++) {
        cuts[i] = cut_product(&set[i], cost);
        by_rows = by_rows && cuts[i].small && cuts[i].blocks == cuts[0].blocks;
    }
    for (size_t i = 0; i < count; i++) {
        cuts[i].first = tiles;
        tiles += by_rows ? cuts[i].columns : cuts[i].columns * cuts[i].blocks;
    }
    product_run run = {.cpu = cpu, .set = set, .cuts = cuts, .count = count, .columns = by_rows ? tiles : 0};
    di_cpu_run(cpu, by_rows ? tiles * cuts[0].blocks : tiles, product_tile, &run, cost);
}

typedef struct convert_run {
    di_cpu *cpu;
    const uint16_t *x;
    const di_cpu_input *input;
    bool quantise;
} convert_run;

void di_cpu_quantise_row(di_cpu *cpu, const uint16_t *x, const di_cpu_input *input, size_t row) {
    cpu->k->quantise_input(x, input->width, input->values + row * input->stride,
                           input->blocks ? input->blocks + row * (input->width / 32) : NULL);
}

static void convert_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const convert_run *run = arg;
    const di_cpu_input *in = run->input;
    const uint16_t *x = run->x + tile * in->width;
    if (run->quantise)
        di_cpu_quantise_row(run->cpu, x, in, tile);
    else
        run->cpu->k->bf16_to_f32(x, in->width, in->values + tile * in->stride);
}

bool di_cpu_take_input(di_cpu *cpu, size_t rows, size_t width, bool blocks, di_cpu_input *input) {
    *input = (di_cpu_input){.rows = rows, .width = width, .stride = width};
    input->values = di_cpu_take(cpu, rows * width, sizeof(float));
    if (blocks) input->blocks = di_cpu_take(cpu, rows * (width / 32), sizeof(di_f4_block));
    return !cpu->failed;
}

static bool convert(di_cpu *cpu, const uint16_t *x, size_t rows, size_t width, bool quantise, bool blocks,
                    di_cpu_input *input) {
    if (!di_cpu_take_input(cpu, rows, width, blocks, input)) return false;
    convert_run run = {.cpu = cpu, .x = x, .input = input, .quantise = quantise};
    di_cpu_run(cpu, rows, convert_tile, &run, rows * width * 4);
    return true;
}

bool di_cpu_quantise(di_cpu *cpu, const uint16_t *x, size_t rows, size_t width, bool blocks, di_cpu_input *input) {
    return convert(cpu, x, rows, width, true, blocks, input);
}

bool di_cpu_widen(di_cpu *cpu, const uint16_t *x, size_t rows, size_t width, di_cpu_input *input) {
    return convert(cpu, x, rows, width, false, false, input);
}
