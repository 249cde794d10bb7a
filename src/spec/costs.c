/* costs.c - see costs.h. */
#include "spec/costs.h"

#include <stdbool.h>

/* Eight bins between one power of two and the next. */
static uint32_t bin_of(uint32_t size) {
    if (size <= DI_COST_EXACT) return size ? size - 1 : 0;
    uint32_t top = 31 - (uint32_t)__builtin_clz(size), eighth = (size >> (top - 3)) & 7;
    uint32_t bin = DI_COST_EXACT + (top - 5) * 8 + eighth;
    return bin < DI_COST_BINS ? bin : DI_COST_BINS - 1;
}

static double low_third(const double *values, uint32_t count) {
    double sorted[DI_COST_SAMPLES] = {0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        while (at && sorted[at - 1] > values[i]) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = values[i];
    }
    return sorted[(count - 1) / 3];
}

void di_costs_add(di_costs *costs, uint32_t size, double seconds) {
    if (!size || !(seconds > 0)) return;
    uint32_t bin = bin_of(size);
    if (bin >= costs->end) costs->end = bin + 1;
    uint32_t at = (uint32_t)(costs->bins[bin].count++ % DI_COST_SAMPLES);
    uint32_t held = costs->bins[bin].count < DI_COST_SAMPLES ? (uint32_t)costs->bins[bin].count : DI_COST_SAMPLES;
    costs->bins[bin].seconds[at] = seconds;
    costs->bins[bin].sizes[at] = size;
    costs->bins[bin].typical = low_third(costs->bins[bin].seconds, held);
    costs->bins[bin].size = 0;
    for (uint32_t i = 0; i < held; i++) costs->bins[bin].size += costs->bins[bin].sizes[i] / held;
}

uint64_t di_costs_known(const di_costs *costs, uint32_t size) {
    return costs->bins[bin_of(size)].count;
}

double di_costs_measured(const di_costs *costs, uint32_t size) {
    return costs->bins[bin_of(size)].typical;
}

typedef struct point {
    double size, seconds;
    bool sure; /* measured often enough */
} point;

/* What is hoped of a size that was not measured: a quarter of what rows on their own would add. */
static double hoped(point smaller, double size) {
    return smaller.seconds * (1 + (size / smaller.size - 1) / 4);
}

/* Measured points in ascending size, made monotonic from the right; what is not sure is not believed to be worse than
 * hoped. */
static uint32_t points_of(const di_costs *costs, point points[DI_COST_BINS]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < costs->end; i++)
        if (costs->bins[i].count)
            points[count++] =
                (point){costs->bins[i].size, costs->bins[i].typical, costs->bins[i].count >= DI_COST_SURE};
    for (uint32_t i = count; i-- > 1;)
        if (points[i - 1].seconds > points[i].seconds) points[i - 1].seconds = points[i].seconds;
    for (uint32_t i = 1; i < count; i++) {
        double most = hoped(points[i - 1], points[i].size);
        if (!points[i].sure && points[i].seconds > most) points[i].seconds = most;
    }
    return count;
}

static double between(point a, point b, double size) {
    return b.size > a.size ? a.seconds + (b.seconds - a.seconds) * (size - a.size) / (b.size - a.size) : a.seconds;
}

double di_costs_get(const di_costs *costs, uint32_t size) {
    point points[DI_COST_BINS];
    uint32_t count = points_of(costs, points), i = 0;
    if (!count) return 0;
    while (i < count && points[i].size < size) i++;
    if (i == 0) return points[0].seconds;
    if (i < count) return between(points[i - 1], points[i], size);
    point last = points[count - 1];
    if (count == 1) return hoped(last, size); /* nothing is known of a slope */
    return between(points[count - 2], last, size);
}
