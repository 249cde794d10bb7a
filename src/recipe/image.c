/* How many positions an image takes. */
#include "recipe/recipe.h"

#include <math.h>

/* Patches of 14 pixels, three by three to a position; small images are scaled up, large ones down. */
enum { PATCH = 14, RATIO = 3, CELL = PATCH * RATIO, SMALLEST = 544 * 544, MOST = 1024 };

static uint64_t positions(uint64_t width, uint64_t height) {
    uint64_t across = (width / PATCH + RATIO - 1) / RATIO, down = (height / PATCH + RATIO - 1) / RATIO;
    return down * (across + 1) + 2;
}

uint32_t di_recipe_image_positions(uint32_t width, uint32_t height) {
    if (!width || !height) return 0;
    double w = width, h = height;
    if (w * h < SMALLEST) {
        double scale = sqrt(SMALLEST / (w * h));
        w = floor(w * scale);
        h = floor(h * scale);
        if (w < 1) w = 1;
        if (h < 1) h = 1;
    }
    uint64_t across = (uint64_t)ceil(w / PATCH) * PATCH, down = (uint64_t)ceil(h / PATCH) * PATCH;
    if (positions(across, down) <= MOST) return (uint32_t)positions(across, down);
    double shape = h / w, widest = sqrt((MOST - 2) / shape + 0.25) - 0.5, highest = widest * shape;
    if (widest < 1) {
        down = (MOST - 2) / 2 * CELL;
        across = CELL;
    } else if (highest < 1) {
        down = CELL;
        across = (uint64_t)(MOST - 3) * CELL;
    } else {
        double scale = fmin(floor(widest) * CELL / w, floor(highest) * CELL / h);
        down = (uint64_t)floor(h * scale / PATCH) * PATCH;
        across = (uint64_t)floor(w * scale / PATCH) * PATCH;
    }
    uint64_t count = positions(across, down);
    return (uint32_t)(count < MOST ? count : MOST);
}
