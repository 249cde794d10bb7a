/* matrix_disk_rows.c - rows of the matrix about state that outlives its engine: the disk tier, restarts, kills in the
 * middle of a save, damaged files. Everything happens in a folder of its own, which is removed. */
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/matrix_internal.h"

static const char no_disk_hit[] = "nothing was read from disk, so nothing was tested";

/* ---------------------------------------------------------------- the folder */

/* A new folder, or the case is skipped. */
static bool make_folder(matrix *m, char path[512]) {
    const char *parent = m->options->folder ? m->options->folder : "/tmp";
    int length = snprintf(path, 512, "%s/deepinfer-verify-XXXXXX", parent);
    if (length > 0 && length < 512 && mkdtemp(path)) return true;
    matrix_skip(m, "no folder could be made for state on disk; --cache-dir names another place");
    return false;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)info;
    (void)type;
    (void)at;
    remove(path);
    return 0;
}

static void remove_folder(const char *path) {
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Changes a byte in the middle of a file; a file that cannot be written ends the walk. */
static int damage_entry(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)at;
    if (type != FTW_F || info->st_size == 0) return 0;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return -1;
    char byte;
    ssize_t done = pread(file, &byte, 1, info->st_size / 2);
    byte = (char)(byte ^ 0x10);
    if (done == 1) done = pwrite(file, &byte, 1, info->st_size / 2);
    close(file);
    return done == 1 ? 0 : -1;
}

/* ---------------------------------------------------------------- runs */

static di_engine *open_over(matrix *m, const char *folder, const char *memory) {
    return matrix_open(m, MATRIX_NO_TIES, false,
                       MATRIX_OVERRIDES("cache-dir", folder, "cache-ram", memory, "snapshot-interval", "24"));
}

/* The set on a fresh engine over the folder. *read = prompt tokens that came from disk. */
static bool run_over(matrix *m, const char *folder, const matrix_set *set, uint64_t *read) {
    di_engine *engine = open_over(m, folder, "256M");
    bool ok = engine && matrix_run_set(m, engine, set, false);
    if (engine) *read = matrix_counter(engine, DI_COUNT_CACHED_TOKENS_DISK);
    di_close(engine); /* finishes what is being written */
    return ok;
}

bool matrix_run_disk_tier(matrix *m, const matrix_set *set) {
    char folder[512];
    if (!make_folder(m, folder)) return true;
    di_engine *engine = open_over(m, folder, "0");
    bool ok = engine && matrix_run_set(m, engine, set, false);
    if (ok) ok = matrix_run_set(m, engine, set, false);
    if (ok) matrix_expect(m, matrix_counter(engine, DI_COUNT_CACHED_TOKENS_DISK) > 0, no_disk_hit);
    di_close(engine);
    remove_folder(folder);
    return ok;
}

static bool restart(matrix *m, const matrix_set *set) {
    char folder[512];
    uint64_t read = 0;
    if (!make_folder(m, folder)) return true;
    bool ok = run_over(m, folder, set, &read);
    if (ok) ok = run_over(m, folder, set, &read);
    if (ok) matrix_expect(m, read > 0, no_disk_hit);
    remove_folder(folder);
    return ok;
}

static bool restart_over_damage(matrix *m, const matrix_set *set) {
    char folder[512];
    uint64_t read = 0;
    if (!make_folder(m, folder)) return true;
    bool ok = run_over(m, folder, set, &read);
    if (ok) matrix_expect(m, nftw(folder, damage_entry, 16, FTW_PHYS) == 0, "the stored files cannot be changed");
    ok = ok && run_over(m, folder, set, &read);
    if (ok && read) matrix_differs(m, 1, "%llu prompt tokens were taken from damaged files", (unsigned long long)read);
    remove_folder(folder);
    return ok;
}

/* A child process that computes and stores until it is killed. */
static pid_t start_child(matrix *m, const char *folder, const matrix_set *set) {
    pid_t child = fork(); /* no engine is open, so there is no other thread */
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t read;
    m->plant_in = 0;
    run_over(m, folder, set, &read);
    for (;;) pause();
}

static bool kill_and_restart(matrix *m, const matrix_set *set) {
    enum { KILLS = 4 };
    char folder[512];
    uint64_t read = 0;
    if (!make_folder(m, folder)) return true;
    bool ok = true;
    for (uint32_t i = 0; ok && i < KILLS; i++) {
        pid_t child = start_child(m, folder, set);
        if (child < 0) {
            matrix_skip(m, "no process could be started");
            break;
        }
        usleep(1000 * (20 + 60 * i + matrix_below(m, 60)));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        ok = run_over(m, folder, set, &read);
    }
    if (ok) matrix_expect(m, read > 0, no_disk_hit);
    remove_folder(folder);
    return ok;
}

bool matrix_restarts(matrix *m, uint64_t round) {
    const matrix_set *set = matrix_branches(m, round);
    bool ok = set != NULL;
    if (ok && matrix_begin(m, "T6", "another engine over the same folder")) ok = restart(m, set);
    if (ok && matrix_begin(m, "T6", "killed while it saves, then again")) ok = kill_and_restart(m, set);
    if (ok && matrix_begin(m, "T6", "every stored file is damaged")) ok = restart_over_damage(m, set);
    return ok;
}
