/* calibration.h - temperatures that make the head's confidences mean what they say, by position in a block.
 *
 * Sequential temperature scaling: position by position, earlier ones frozen, the temperature is taken that makes the
 * product of sigmoid(confidence / temperature) agree best with how often drafts survived (expected calibration error
 * over twenty equal bins). The samples are blocks verified whole, accepted by equality with the sampler's choice. The
 * result is a small file beside the checkpoint, bound to its weights. It changes how much is verified, never a result.
 */
#ifndef DI_SPEC_CALIBRATION_H
#define DI_SPEC_CALIBRATION_H

#include "base/json.h"
#include "base/text.h"

enum { DI_CALIBRATION_MOST = 64 };

typedef struct di_calibration {
    uint64_t digest; /* di_model_digest */
    uint32_t count;
    float temperatures[DI_CALIBRATION_MOST]; /* [count], all above 0 */
} di_calibration;

/* confidences [samples][length] as the head gave them; accepted [samples]: drafts of the block that survived. Position
 * j counts the samples with behind[i] > j (tokens that followed; NULL: all). Temperatures of positions without samples
 * are 1. length is at most DI_CALIBRATION_MOST. */
void di_calibrate(const float *confidences, const uint32_t *accepted, const uint32_t *behind, uint32_t samples,
                  uint32_t length, float *temperatures);

/* The file: {"draft_calibration": 1, "weights": "16 hex digits", "temperatures": [...]}. */
void di_calibration_write(const di_calibration *calibration, di_text *out);
/* DI_ERR_FORMAT by field for what is no such file; DI_ERR_UNSUPPORTED when it was made for another model. */
di_status di_calibration_read(const char *name, const char *text, size_t length, uint64_t digest,
                              di_calibration *calibration, di_error *error);

#endif
