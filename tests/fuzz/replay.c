/* replay.c - runs a fuzz target once on every file of the given folders, without libFuzzer.
 *
 * Each input lies in a heap block of exactly its size, so that a read past the end is seen by AddressSanitizer.
 * Fails when a folder holds no file: an empty corpus would pass for ever.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        perror(path);
        if (file != NULL) fclose(file);
        return 1;
    }
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size > 0 ? size : 1);
    int failed = data == NULL || fread(data, 1, size, file) != size;
    if (failed) {
        perror(path);
    } else {
        LLVMFuzzerTestOneInput(data, size);
    }
    free(data);
    fclose(file);
    return failed;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Number of files run, -1 after a failure. */
static int run_folder(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, by_name);
    if (count < 0) {
        perror(folder);
        return -1;
    }
    int run = 0, failed = 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        if (entries[i]->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            failed |= run_file(path);
            run++;
        }
        free(entries[i]);
    }
    free(entries);
    return failed ? -1 : run;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        int run = run_folder(argv[i]);
        if (run <= 0) {
            fprintf(stderr, "%s: %s\n", argv[i], run == 0 ? "no inputs" : "failed");
            return 1;
        }
        printf("%s: %d inputs\n", argv[i], run);
    }
    return 0;
}
