/* session.c - see session.h. */
#include "cli/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/disk_folder.h"

enum { MOST_NAME = 100, MOST_BYTES = 1 << 28 };

struct di_session {
    di_text messages, temporary, state, lock; /* paths */
    int lock_file;
};

static const char *const roles[] = {
    [DI_ROLE_SYSTEM] = "system", [DI_ROLE_USER] = "user", [DI_ROLE_ASSISTANT] = "assistant"};
enum { ROLES = sizeof roles / sizeof *roles };

/* ---------------------------------------------------------------- folder and name */

static di_status check_name(const char *name, di_error *error) {
    size_t length = strlen(name);
    bool good = length > 0 && length <= MOST_NAME && name[0] != '.';
    for (size_t i = 0; good && i < length; i++)
        good = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", name[i]) != NULL;
    if (good) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "session",
                   "--session: a name has 1 to %d of the characters A-Z a-z 0-9 - _ . and does not begin with a dot",
                   MOST_NAME);
}

static di_status find_folder(const di_config *config, di_text *folder, di_error *error) {
    const char *given = di_config_text(config, DI_OPT_SESSION_DIR);
    if (given[0]) {
        di_text_puts(folder, given);
    } else if (di_config_state_home(folder)) {
        di_text_puts(folder, "/deepinfer/sessions");
    } else {
        return di_fail(error, DI_ERR_USAGE, "session-dir",
                       "neither XDG_STATE_HOME nor HOME is set; say --session-dir DIR");
    }
    return folder->failed ? di_fail(error, DI_ERR_MEMORY, NULL, "out of memory") : DI_OK;
}

static di_status make_folder(char *path, di_error *error) {
    for (char *slash = path + 1;; slash++) {
        slash = strchr(slash, '/');
        if (slash) *slash = 0;
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST || (slash && access(path, F_OK) == 0);
        int reason = errno;
        if (slash) *slash = '/';
        if (!made)
            return di_fail_errno(error, DI_ERR_IO, "session-dir", reason, "cannot make the folder of sessions %s",
                                 path);
        if (!slash) return DI_OK;
    }
}

static di_status take(di_session *s, const char *name, di_error *error) {
    s->lock_file = di_disk_lock(s->lock.data, true);
    if (s->lock_file >= 0) return DI_OK;
    if (errno == EWOULDBLOCK)
        return di_fail(error, DI_ERR_LIMIT, "session", "the session %s is open in another process", name);
    return di_fail_errno(error, DI_ERR_IO, "session", errno, "cannot lock the session with %s", s->lock.data);
}

di_status di_session_open(const di_config *config, const char *name, di_session **session, di_error *error) {
    *session = NULL;
    di_text folder = {0};
    di_status status = check_name(name, error);
    if (status == DI_OK) status = find_folder(config, &folder, error);
    if (status == DI_OK) status = make_folder(folder.data, error);
    di_session *s = status == DI_OK ? calloc(1, sizeof *s) : NULL;
    if (s) {
        s->lock_file = -1;
        di_text_printf(&s->messages, "%s/%s.json", folder.data, name);
        di_text_printf(&s->temporary, "%s/%s.json.tmp", folder.data, name);
        di_text_printf(&s->state, "%s/%s.state", folder.data, name);
        di_text_printf(&s->lock, "%s/%s.lock", folder.data, name);
    }
    di_text_free(&folder);
    if (status == DI_OK && (!s || s->messages.failed || s->temporary.failed || s->state.failed || s->lock.failed))
        status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the session");
    if (status == DI_OK) status = take(s, name, error);
    if (status != DI_OK) {
        di_session_close(s);
        return status;
    }
    *session = s;
    return DI_OK;
}

void di_session_close(di_session *s) {
    if (!s) return;
    if (s->lock_file >= 0) close(s->lock_file);
    di_text_free(&s->messages);
    di_text_free(&s->temporary);
    di_text_free(&s->state);
    di_text_free(&s->lock);
    free(s);
}

const char *di_session_state_path(const di_session *session) {
    return session->state.data;
}

/* ---------------------------------------------------------------- reading */

static di_status damaged(const di_session *s, const char *why, di_error *error) {
    return di_fail(error, DI_ERR_FORMAT, "session", "the session file %s is damaged: %s; move it away to begin anew",
                   s->messages.data, why);
}

static di_status add_messages(const di_session *s, const di_json *root, di_session_add add, void *arg,
                              di_error *error) {
    const di_json *messages = di_json_get(root, "messages");
    int64_t version;
    if (!di_json_get(root, "deepinfer_session") || !di_json_int64(di_json_get(root, "deepinfer_session"), &version))
        return damaged(s, "it has no \"deepinfer_session\"", error);
    if (version != 1) return damaged(s, "it is of another version of deepinfer", error);
    if (!messages || messages->type != DI_JSON_ARRAY) return damaged(s, "it has no \"messages\"", error);
    for (const di_json *item = messages->first; item; item = item->next) {
        const di_json *role = di_json_get(item, "role"), *content = di_json_get(item, "content");
        int number = 0;
        while (number < ROLES && (!role || !di_json_string_is(role, roles[number]))) number++;
        if (number == ROLES || !content || content->type != DI_JSON_STRING)
            return damaged(s, "a message lacks its role or content", error);
        di_status status = add(arg, (di_role)number, content->text, content->length, error);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

di_status di_session_read(const di_session *s, di_session_add add, void *arg, di_error *error) {
    if (access(s->messages.data, F_OK) != 0 && errno == ENOENT) return DI_OK;
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL;
    di_error inner = {0};
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the session");
    di_status status = di_json_parse_file(arena, s->messages.data, MOST_BYTES, 0, &root, &inner);
    if (status == DI_OK)
        status = add_messages(s, root, add, arg, error);
    else if (status == DI_ERR_FORMAT)
        status = damaged(s, inner.message, error);
    else if (error)
        *error = inner;
    di_arena_free(arena);
    return status;
}

/* ---------------------------------------------------------------- writing */

static void put_content(di_json_writer *w, const di_message *message) {
    di_text whole = {0};
    for (size_t i = 0; i < message->content_count; i++) {
        if (i) di_text_puts(&whole, "\n\n");
        di_text_append(&whole, message->content[i].text, message->content[i].length);
    }
    w->out->failed |= whole.failed;
    di_json_string_n(w, whole.data ? whole.data : "", whole.length);
    di_text_free(&whole);
}

static void put_messages(di_text *out, const di_message *messages, size_t count) {
    di_json_writer w;
    di_json_begin(&w, out);
    di_json_object_begin(&w);
    di_json_key(&w, "deepinfer_session");
    di_json_integer(&w, 1);
    di_json_key(&w, "messages");
    di_json_array_begin(&w);
    for (size_t i = 0; i < count; i++) {
        di_json_object_begin(&w);
        di_json_key(&w, "role");
        di_json_string(&w, roles[messages[i].role]);
        di_json_key(&w, "content");
        put_content(&w, &messages[i]);
        di_json_object_end(&w);
    }
    di_json_array_end(&w);
    di_json_object_end(&w);
    di_text_putc(out, '\n');
}

/* The whole text durably into a new file. A pipe of its name must not block. */
static bool write_file(const char *path, const di_text *text) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file < 0) return false;
    size_t done = 0;
    bool ok = true;
    while (ok && done < text->length) {
        ssize_t n = write(file, text->data + done, text->length - done);
        ok = n > 0 || (n < 0 && errno == EINTR);
        if (n > 0) done += (size_t)n;
    }
    ok = ok && fsync(file) == 0;
    int reason = errno;
    if (close(file) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    errno = reason;
    return ok;
}

di_status di_session_write(const di_session *s, const di_message *messages, size_t count, di_error *error) {
    di_text out = {0};
    put_messages(&out, messages, count);
    di_status status = DI_OK;
    if (out.failed) {
        status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the session");
    } else if (!write_file(s->temporary.data, &out) || rename(s->temporary.data, s->messages.data) != 0) {
        status = di_fail_errno(error, DI_ERR_IO, "session", errno, "cannot write the session to %s", s->messages.data);
        unlink(s->temporary.data);
    }
    di_text_free(&out);
    return status;
}
