/* linear.c - products of activations with stored matrices, cut into tiles; quantisation of their inputs. */
#include "backend/cpu/cpu_internal.h"

/* Rows of the input that one tile multiplies: few enough for the input to stay in the second-level cache. */
enum { ROW_BLOCK = 32, TILE_WEIGHTS = 1 << 16 };

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

/* Output rows of one tile: a multiple of 32 with about TILE_WEIGHTS elements. */
static size_t tile_outputs(const di_weight *w) {
    size_t n = TILE_WEIGHTS / (w->in ? w->in : 1) / 32 * 32;
    return n < 32 ? 32 : n > 1024 ? 1024 : n;
}

static size_t tiles_of(const di_cpu_linear *l) {
    size_t n = tile_outputs(l->w), outputs = l->n1 - l->n0;
    return (outputs + n - 1) / n * ((l->rows + ROW_BLOCK - 1) / ROW_BLOCK);
}

typedef struct product_run {
    di_cpu *cpu;
    const di_cpu_linear *set;
    const size_t *first; /* [count + 1] first tile of each product */
    size_t count;
} product_run;

static void one_tile(di_cpu *cpu, const di_cpu_linear *l, size_t tile, int worker) {
    const di_cpu_kernels *k = cpu->k;
    const di_weight *w = l->w;
    size_t row_blocks = (l->rows + ROW_BLOCK - 1) / ROW_BLOCK, outputs = tile_outputs(w);
    size_t n0 = l->n0 + tile / row_blocks * outputs, n1 = n0 + outputs < l->n1 ? n0 + outputs : l->n1;
    size_t m0 = tile % row_blocks * ROW_BLOCK, rows = l->rows - m0 < ROW_BLOCK ? l->rows - m0 : ROW_BLOCK;
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
    size_t low = 0, high = run->count; /* product that holds the tile */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (run->first[middle] <= tile)
            low = middle;
        else
            high = middle;
    }
    one_tile(run->cpu, &run->set[low], tile - run->first[low], worker);
}

void di_cpu_products(di_cpu *cpu, const di_cpu_linear *set, size_t count) {
    if (cpu->failed || !count) return;
    size_t *first = di_cpu_take(cpu, count + 1, sizeof *first);
    if (!first) return;
    size_t cost = 0, widest = 0;
    first[0] = 0;
    for (size_t i = 0; i < count; i++) {
        first[i + 1] = first[i] + tiles_of(&set[i]);
        cost += (set[i].n1 - set[i].n0) * set[i].w->in * (set[i].rows ? set[i].rows : 0);
        if (set[i].w->in > widest) widest = set[i].w->in;
    }
    if (!di_cpu_worker(cpu, widest * ROW_BLOCK * sizeof(float))) return;
    product_run run = {.cpu = cpu, .set = set, .first = first, .count = count};
    di_cpu_run(cpu, first[count], product_tile, &run, cost);
}

typedef struct convert_run {
    di_cpu *cpu;
    const uint16_t *x;
    const di_cpu_input *input;
    bool quantise;
} convert_run;

static void convert_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const convert_run *run = arg;
    const di_cpu_input *in = run->input;
    const uint16_t *x = run->x + tile * in->width;
    float *values = in->values + tile * in->stride;
    if (!run->quantise)
        run->cpu->k->bf16_to_f32(x, in->width, values);
    else
        run->cpu->k->quantise_input(x, in->width, values, in->blocks ? in->blocks + tile * (in->width / 32) : NULL);
}

static bool convert(di_cpu *cpu, const uint16_t *x, size_t rows, size_t width, bool quantise, bool blocks,
                    di_cpu_input *input) {
    *input = (di_cpu_input){.rows = rows, .width = width, .stride = width};
    input->values = di_cpu_take(cpu, rows * width, sizeof(float));
    if (blocks) input->blocks = di_cpu_take(cpu, rows * (width / 32), sizeof(di_f4_block));
    if (cpu->failed) return false;
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
