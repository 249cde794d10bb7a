/* golden.c - see golden.h. */
#include "support/golden.h"
