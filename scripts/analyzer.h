/* analyzer.h - read first by clang-tidy (scripts/lint): the analyzer does not look into other files, so it has to be told
 * that di_fail returns the status it is given; otherwise it follows paths on which a failure is taken for success. */
#include "base/status.h"

#define di_fail(error, code, ...)       ((void)(di_fail)(error, code, __VA_ARGS__), (code))
#define di_fail_errno(error, code, ...) ((void)(di_fail_errno)(error, code, __VA_ARGS__), (code))
