/* log.h - one line per event on stderr (or a callback).
 *
 * Lines are written whole, from any thread. Never put prompt text or keys into a message at level info or above.
 * Form: "2026-11-29T12:00:00.123Z warn  module: text".
 */
#ifndef DI_BASE_LOG_H
#define DI_BASE_LOG_H

typedef enum di_log_level { DI_LOG_ERROR, DI_LOG_WARN, DI_LOG_INFO, DI_LOG_DEBUG } di_log_level;

typedef struct di_log di_log;
typedef void (*di_log_sink)(void *arg, di_log_level level, const char *line);

/* sink NULL = stderr. NULL when out of memory; every function accepts a NULL log and does nothing. */
di_log *di_log_new(di_log_level level, di_log_sink sink, void *arg);
void di_log_free(di_log *log);
void di_log_set_level(di_log *log, di_log_level level);
void di_log_write(di_log *log, di_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
const char *di_log_level_name(di_log_level level);

#endif
