/* disk_record.c - see disk_record.h. */
#include "cache/disk_record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = {'D', 'I', 'R', 'E', 'C', 'O', 'R', 'D'};
/* No record is larger: a page or a rolling block of any model is far below. */
enum { VERSION = 1, CHECKSUM_AT = 120, MOST_IDS = 1 << 20 };
static const uint64_t MOST_PAYLOAD = (uint64_t)1 << 36;

static int system_open(const char *path, int flags, int mode) {
    return open(path, flags, mode);
}
static long system_read(int file, void *to, size_t bytes) {
    return read(file, to, bytes);
}
static long system_write(int file, const void *from, size_t bytes) {
    return write(file, from, bytes);
}

const di_disk_io di_disk_system_io = {
    .open = system_open,
    .read = system_read,
    .write = system_write,
    .sync = fdatasync,
    .close = close,
    .rename = rename,
    .unlink = unlink,
};

/* ---------------------------------------------------------------- names */

void di_disk_name(const di_disk_key *what, char name[DI_DISK_NAME]) {
    unsigned first = (unsigned)(what->key >> 56);
    if (what->kind == DI_DISK_BLOCK)
        snprintf(name, DI_DISK_NAME, "%02x/b-%016" PRIx64, first, what->key);
    else
        snprintf(name, DI_DISK_NAME, "%02x/s-%016" PRIx64 "-%08x-%016" PRIx64, first, what->key, what->position,
                 what->tail);
}

bool di_disk_parse_name(const char *name, di_disk_key *what) {
    *what = (di_disk_key){0};
    int end = 0;
    if (sscanf(name, "b-%16" SCNx64 "%n", &what->key, &end) == 1 && end == 18 && !name[end]) {
        what->kind = DI_DISK_BLOCK;
        return true;
    }
    end = 0;
    if (sscanf(name, "s-%16" SCNx64 "-%8" SCNx32 "-%16" SCNx64 "%n", &what->key, &what->position, &what->tail, &end) ==
            3 &&
        end == 44 && !name[end]) {
        what->kind = DI_DISK_SNAPSHOT;
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------- bytes */

static void put(char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (char)(value >> 8 * i);
}

static uint64_t get(const char *from, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | (uint8_t)from[i];
    return value;
}

static uint64_t checksum(const char *header, const void *ids, size_t id_bytes, const void *payload, size_t bytes) {
    uint64_t h = XXH64(header, CHECKSUM_AT, 0);
    h = XXH64(ids, id_bytes, h);
    return XXH64(payload, bytes, h);
}

static void encode(const di_disk_header *h, const int32_t *ids, const char *payload, char out[DI_DISK_HEADER]) {
    memset(out, 0, DI_DISK_HEADER);
    memcpy(out, MAGIC, sizeof MAGIC);
    put(out + 8, VERSION, 4);
    put(out + 12, h->what.kind, 4);
    put(out + 16, h->what.key, 8);
    put(out + 24, h->digest, 8);
    memcpy(out + 32, h->profile, sizeof h->profile);
    put(out + 96, h->what.position, 4);
    put(out + 100, (uint32_t)h->decoder_low, 4);
    put(out + 104, h->id_count, 4);
    put(out + 112, h->payload_bytes, 8);
    put(out + CHECKSUM_AT, checksum(out, ids, h->id_count * sizeof *ids, payload, h->payload_bytes), 8);
}

/* ---------------------------------------------------------------- files */

static bool write_all(const di_disk_io *io, int file, const char *from, size_t bytes) {
    while (bytes) {
        long n = io->write(file, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = EIO;
            return false;
        }
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool di_disk_write(const di_disk_io *io, const char *path, const di_disk_header *header, const int32_t *ids,
                   const char *payload) {
    char bytes[DI_DISK_HEADER], temporary[4200];
    encode(header, ids, payload, bytes);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int file = io->open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return false;
    bool ok = write_all(io, file, bytes, sizeof bytes) &&
              write_all(io, file, (const char *)ids, header->id_count * sizeof *ids) &&
              write_all(io, file, payload, header->payload_bytes) && io->sync(file) == 0;
    int error = errno;
    if (io->close(file) != 0 && ok) {
        ok = false;
        error = errno;
    }
    if (ok && io->rename(temporary, path) != 0) {
        ok = false;
        error = errno;
    }
    if (!ok) {
        io->unlink(temporary);
        errno = error;
    }
    return ok;
}

static bool read_all(const di_disk_io *io, int file, char *to, size_t bytes, const char **why) {
    while (bytes) {
        long n = io->read(file, to, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            *why = n == 0 ? "truncated" : "cannot be read";
            return false;
        }
        to += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool decode(const char *bytes, di_disk_header *h, const char **why) {
    *why = "not a cache record";
    if (memcmp(bytes, MAGIC, sizeof MAGIC) != 0) return false;
    *why = "another version";
    if (get(bytes + 8, 4) != VERSION) return false;
    *h = (di_disk_header){.what = {.kind = (uint32_t)get(bytes + 12, 4),
                                   .key = get(bytes + 16, 8),
                                   .position = (uint32_t)get(bytes + 96, 4)},
                          .digest = get(bytes + 24, 8),
                          .decoder_low = (int32_t)get(bytes + 100, 4),
                          .id_count = (uint32_t)get(bytes + 104, 4),
                          .payload_bytes = get(bytes + 112, 8)};
    memcpy(h->profile, bytes + 32, sizeof h->profile);
    *why = "sizes are not possible";
    return h->id_count <= MOST_IDS && h->payload_bytes <= MOST_PAYLOAD && !h->profile[63] &&
           (h->what.kind == DI_DISK_BLOCK || h->what.kind == DI_DISK_SNAPSHOT);
}

/* The size is believed only when the file has it: a damaged size must not become an allocation. */
static bool size_is(int file, uint64_t bytes) {
    struct stat info;
    return fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || (uint64_t)info.st_size == bytes;
}

static char *read_body(const di_disk_io *io, int file, di_disk_header *h, const char **why) {
    char head[DI_DISK_HEADER];
    if (!read_all(io, file, head, sizeof head, why) || !decode(head, h, why)) return NULL;
    size_t ids = h->id_count * sizeof(int32_t);
    *why = "truncated";
    if (!size_is(file, sizeof head + ids + h->payload_bytes)) return NULL;
    char *bytes = malloc(ids + h->payload_bytes + 1);
    *why = "out of memory";
    if (!bytes) return NULL;
    if (read_all(io, file, bytes, ids + h->payload_bytes, why)) {
        h->what.tail = di_disk_tail((const int32_t *)(void *)bytes, h->id_count);
        *why = "checksum";
        if (checksum(head, bytes, ids, bytes + ids, h->payload_bytes) == get(head + CHECKSUM_AT, 8)) return bytes;
    }
    free(bytes);
    return NULL;
}

bool di_disk_read(const di_disk_io *io, const char *path, di_disk_header *header, char **bytes, const int32_t **ids,
                  const char **payload, const char **why) {
    *bytes = NULL;
    *why = "cannot be opened";
    int file = io->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return false;
    *bytes = read_body(io, file, header, why);
    if (*bytes) {
        futimens(file, NULL); /* age for eviction; a folder that does not allow it keeps its ages */
        *ids = (const int32_t *)(void *)*bytes;
        *payload = *bytes + header->id_count * sizeof(int32_t);
    }
    io->close(file);
    return *bytes != NULL;
}
