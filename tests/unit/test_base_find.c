/* needs: base */
/* Whether a file is there: yes, no, or something in its place that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/find.h"
#include "support/folder.h"

static di_folder folder;
static char path[DI_FOLDER_PATH];

static void expect(const char *name, di_status status, bool wanted, const char *needle) {
    di_error error = {0};
    bool found = !wanted;
    di_folder_path(&folder, name, path);
    di_status got = di_find_file(path, &found, &error);
    if (got != status || found != wanted) fail_msg("%s: status %d, found %d: %s", name, got, found, error.message);
    if (needle && (!strstr(error.message, needle) || !strstr(error.message, path)))
        fail_msg("\"%s\" and the path are not in: %s", needle, error.message);
}

static void link_to(const char *name, const char *target) {
    di_folder_path(&folder, name, path);
    assert_int_equal(symlink(target, path), 0);
}

static void found_absent_or_refused(void **state) {
    (void)state;
    folder = di_folder_new(NULL);
    di_folder_write(&folder, "file", "x", 1);
    link_to("link", "file");
    link_to("nowhere", "not there");
    link_to("below", "file/not there");
    link_to("circle", "circle");
    di_folder_path(&folder, "pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    di_folder_path(&folder, "folder", path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect("file", DI_OK, true, NULL);
    expect("link", DI_OK, true, NULL);
    expect("another", DI_OK, false, NULL);
    expect("another/file", DI_OK, false, NULL);
    expect("file/below", DI_OK, false, NULL);
    expect("nowhere", DI_ERR_NOT_FOUND, false, "a link to something that is not there");
    expect("below", DI_ERR_NOT_FOUND, false, "a link to something that is not there");
    expect("circle", DI_ERR_IO, false, "cannot examine");
    expect("pipe", DI_ERR_IO, false, "is not a plain file");
    expect("folder", DI_ERR_IO, false, "a folder");
    di_folder_delete(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(found_absent_or_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
