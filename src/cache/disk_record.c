/* disk_record.c - see disk_record.h. */
#include "cache/disk_record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = {'D', 'I', 'R', 'E', 'C', 'O', 'R', 'D'};
enum { VERSION = 1, PROFILE_AT = 32, FINGERPRINT_AT = 120, CHECKSUM_AT = 152, MOST_IDS = 1 << 24 };

static int system_open(const char *path, int flags, int mode) {
    return open(path, flags, mode);
}
static long system_read(int file, void *to, size_t bytes) {
    return read(file, to, bytes);
}
static long system_write(int file, const void *from, size_t bytes) {
    return write(file, from, bytes);
}
static int system_touch(const char *path, int64_t used_ns) {
    const struct timespec at = {.tv_sec = used_ns / 1000000000, .tv_nsec = used_ns % 1000000000};
    return utimensat(AT_FDCWD, path, (const struct timespec[2]){at, at}, AT_SYMLINK_NOFOLLOW);
}

const di_disk_io di_disk_system_io = {
    .open = system_open,
    .read = system_read,
    .write = system_write,
    .sync = fdatasync,
    .close = close,
    .rename = rename,
    .unlink = unlink,
    .touch = system_touch,
};

/* ---------------------------------------------------------------- names */

bool di_disk_same(const di_disk_key *a, const di_disk_key *b) {
    return a->kind == b->kind && a->key == b->key && a->position == b->position && a->tail == b->tail;
}

void di_disk_subfolder(uint64_t digest, const char *profile, uint64_t layout, char name[DI_DISK_SUBFOLDER]) {
    snprintf(name, DI_DISK_SUBFOLDER, "%016" PRIx64 "-%016" PRIx64, digest, XXH64(profile, strlen(profile), layout));
}

void di_disk_name(const di_disk_key *what, char name[DI_DISK_NAME]) {
    unsigned first = (unsigned)(what->key >> 56);
    if (what->kind == DI_DISK_BLOCK)
        snprintf(name, DI_DISK_NAME, "%02x/b-%016" PRIx64, first, what->key);
    else
        snprintf(name, DI_DISK_NAME, "%02x/s-%016" PRIx64 "-%08x-%016" PRIx64, first, what->key, what->position,
                 what->tail);
}

/* Exactly `digits` lower-case hexadecimal digits, as they are written. */
static const char *parse_hex(const char *at, int digits, uint64_t *value) {
    *value = 0;
    for (int i = 0; at && i < digits; i++, at++) {
        if (*at >= '0' && *at <= '9')
            *value = *value << 4 | (uint64_t)(*at - '0');
        else if (*at >= 'a' && *at <= 'f')
            *value = *value << 4 | (uint64_t)(*at - 'a' + 10);
        else
            return NULL;
    }
    return at;
}

static const char *parse_dash(const char *at) {
    return at && *at == '-' ? at + 1 : NULL;
}

bool di_disk_parse_name(const char *name, di_disk_key *what) {
    uint64_t position = 0;
    *what = (di_disk_key){.kind = name[0] == 'b' ? DI_DISK_BLOCK : DI_DISK_SNAPSHOT};
    if (name[0] != 'b' && name[0] != 's') return false;
    const char *at = parse_hex(parse_dash(name + 1), 16, &what->key);
    if (what->kind == DI_DISK_SNAPSHOT) {
        at = parse_hex(parse_dash(at), 8, &position);
        at = parse_hex(parse_dash(at), 16, &what->tail);
        what->position = (uint32_t)position;
    }
    return at && !*at;
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
    memcpy(out + PROFILE_AT, h->profile, sizeof h->profile);
    put(out + 96, h->what.position, 4);
    put(out + 100, (uint32_t)h->decoder_low, 4);
    put(out + 104, h->id_count, 4);
    put(out + 112, h->payload_bytes, 8);
    memcpy(out + FINGERPRINT_AT, h->fingerprint, sizeof h->fingerprint);
    put(out + 136, h->layout, 8);
    put(out + CHECKSUM_AT, checksum(out, ids, h->id_count * sizeof *ids, payload, h->payload_bytes), 8);
}

/* ---------------------------------------------------------------- writing */

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

/* Whatever stands in its place (the rest of a write, a link, a pipe that would wait for a reader) is not written to. */
static int open_new(const di_disk_io *io, const char *path) {
    static const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int file = io->open(path, flags, 0600);
    return file < 0 && errno == EEXIST && io->unlink(path) == 0 ? io->open(path, flags, 0600) : file;
}

bool di_disk_write(const di_disk_io *io, const char *path, const di_disk_header *header, const int32_t *ids,
                   const char *payload, int64_t used_ns, bool sync) {
    char bytes[DI_DISK_HEADER], temporary[PATH_MAX];
    encode(header, ids, payload, bytes);
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    int file = open_new(io, temporary);
    if (file < 0) return false;
    bool ok = write_all(io, file, bytes, sizeof bytes) &&
              write_all(io, file, (const char *)ids, header->id_count * sizeof *ids) &&
              write_all(io, file, payload, header->payload_bytes) && (!sync || io->sync(file) == 0);
    int error = errno;
    if (io->close(file) != 0 && ok) { /* where some file systems tell that the bytes did not arrive */
        ok = false;
        error = errno;
    }
    if (ok && used_ns) io->touch(temporary, used_ns); /* a file system without times only evicts in another order */
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

/* ---------------------------------------------------------------- reading */

/* Reasons that lie in this process or its rights, not in the file. */
static bool is_passing(int error) {
    return error == ENOMEM || error == EMFILE || error == ENFILE || error == EACCES || error == EPERM;
}

static di_disk_fault read_all(const di_disk_io *io, int file, char *to, size_t bytes, const char **why) {
    while (bytes) {
        long n = io->read(file, to, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            *why = n == 0 ? "it is cut off" : "it cannot be read";
            return n < 0 && is_passing(errno) ? DI_DISK_UNREADABLE : DI_DISK_DAMAGED;
        }
        to += n;
        bytes -= (size_t)n;
    }
    return DI_DISK_SOUND;
}

static bool decode(const char *bytes, di_disk_header *h, const char **why) {
    *why = "it is not a record of the cache";
    if (memcmp(bytes, MAGIC, sizeof MAGIC) != 0) return false;
    *why = "it was made by another version of deepinfer";
    if (get(bytes + 8, 4) != VERSION) return false;
    *h = (di_disk_header){.what = {.kind = (uint32_t)get(bytes + 12, 4),
                                   .key = get(bytes + 16, 8),
                                   .position = (uint32_t)get(bytes + 96, 4)},
                          .digest = get(bytes + 24, 8),
                          .layout = get(bytes + 136, 8),
                          .decoder_low = (int32_t)get(bytes + 100, 4),
                          .id_count = (uint32_t)get(bytes + 104, 4),
                          .payload_bytes = get(bytes + 112, 8)};
    memcpy(h->profile, bytes + PROFILE_AT, sizeof h->profile);
    memcpy(h->fingerprint, bytes + FINGERPRINT_AT, sizeof h->fingerprint);
    *why = "its header is damaged";
    return h->id_count <= MOST_IDS && !h->profile[sizeof h->profile - 1] && h->what.kind >= DI_DISK_BLOCK &&
           h->what.kind <= DI_DISK_STATE;
}

/* Sizes are believed only when the file has them: a damaged size must not become an allocation. */
static di_disk_fault read_body(const di_disk_io *io, int file, uint64_t limit, di_disk_header *h, char **out,
                               const char **why) {
    char head[DI_DISK_HEADER];
    struct stat info;
    *why = "it is not a plain file";
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return DI_DISK_DAMAGED;
    di_disk_fault fault = read_all(io, file, head, sizeof head, why);
    if (fault != DI_DISK_SOUND) return fault;
    if (!decode(head, h, why)) return DI_DISK_DAMAGED;
    uint64_t ids = h->id_count * sizeof(int32_t), bytes = (uint64_t)info.st_size - sizeof head;
    *why = "it is cut off or has bytes behind its end";
    if ((uint64_t)info.st_size < sizeof head || bytes < ids || bytes - ids != h->payload_bytes) return DI_DISK_DAMAGED;
    *why = "it is larger than a record can be";
    if (bytes > limit) return DI_DISK_DAMAGED;
    *why = "out of memory";
    char *body = malloc(bytes + 1);
    if (!body) return DI_DISK_UNREADABLE;
    fault = read_all(io, file, body, bytes, why);
    if (fault == DI_DISK_SOUND) {
        *why = "its checksum is wrong";
        if (checksum(head, body, ids, body + ids, h->payload_bytes) != get(head + CHECKSUM_AT, 8))
            fault = DI_DISK_DAMAGED;
        h->what.tail = h->what.kind == DI_DISK_SNAPSHOT ? di_disk_tail((int32_t *)(void *)body, h->id_count) : 0;
    }
    if (fault == DI_DISK_SOUND)
        *out = body;
    else
        free(body);
    return fault;
}

di_disk_fault di_disk_read(const di_disk_io *io, const char *path, uint64_t limit, di_disk_header *header, char **bytes,
                           const int32_t **ids, const char **payload, const char **why) {
    *bytes = NULL;
    *why = "it cannot be opened";
    /* A pipe that took a record's name must not block, and a link must not lead elsewhere. */
    int file = io->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (file < 0) return errno == ENOENT ? DI_DISK_MISSING : is_passing(errno) ? DI_DISK_UNREADABLE : DI_DISK_DAMAGED;
    di_disk_fault fault = read_body(io, file, limit, header, bytes, why);
    io->close(file);
    if (fault != DI_DISK_SOUND) return fault;
    *ids = (const int32_t *)(const void *)*bytes;
    *payload = *bytes + header->id_count * sizeof **ids;
    return DI_DISK_SOUND;
}
