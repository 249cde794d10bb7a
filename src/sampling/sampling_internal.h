/* sampling_internal.h - the one table of numeric parameters: names, places and ranges, for the C struct and for JSON.
 */
#ifndef DI_SAMPLING_SAMPLING_INTERNAL_H
#define DI_SAMPLING_SAMPLING_INTERNAL_H

#include "sampling/sampling.h"

typedef enum di_sampling_type { DI_SAMPLING_FLOAT, DI_SAMPLING_INT32, DI_SAMPLING_INT64 } di_sampling_type;

typedef struct di_sampling_field {
    const char *name;
    size_t offset; /* in di_sampling */
    di_sampling_type type;
    bool above; /* the minimum itself is not allowed */
    double minimum, maximum;
    const char *range; /* for messages: "must be RANGE" */
} di_sampling_field;

enum { DI_SAMPLING_FIELDS = 13 };
extern const di_sampling_field di_sampling_fields[DI_SAMPLING_FIELDS];

bool di_sampling_in_range(const di_sampling_field *field, double value);

#endif
