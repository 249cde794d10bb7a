/* clock.h - monotonic time. Only time differences mean anything. */
#ifndef DI_BASE_CLOCK_H
#define DI_BASE_CLOCK_H

#include <stdint.h>

int64_t di_now_ns(void);
static inline double di_ms(int64_t ns) {
    return (double)ns / 1e6;
}

#endif
