/* hold.c - preloaded into the program by end-to-end tests: the first opening of a file whose path ends in HOLD_END
 * stands still until the test lets it go on.
 *
 * HOLD_PIPE is a named pipe. The test can open it for writing once the program stands there, and closes it to let the
 * program go on.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int open_function(const char *path, int flags, ...);

static atomic_flag held = ATOMIC_FLAG_INIT;

static int hold_and_open(const char *name, const char *path, int flags, mode_t mode) {
    open_function *next = (open_function *)dlsym(RTLD_NEXT, name);
    const char *end = getenv("HOLD_END"), *pipe = getenv("HOLD_PIPE");
    size_t length = strlen(path);
    if (end && pipe && length >= strlen(end) && strcmp(path + length - strlen(end), end) == 0 &&
        !atomic_flag_test_and_set(&held)) {
        char byte;
        int file = next(pipe, O_RDONLY | O_CLOEXEC);
        while (read(file, &byte, 1) > 0) continue;
        close(file);
    }
    return next(path, flags, mode);
}

#define HOLD(name)                                                                                                     \
    __attribute__((visibility("default"))) int name(const char *path, int flags, ...) {                                \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                                   \
        va_end(arguments);                                                                                             \
        return hold_and_open(#name, path, flags, mode);                                                                \
    }

HOLD(open)
HOLD(open64)
