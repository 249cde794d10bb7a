/* server.h - the whole server: opened from the configuration, run by one thread, ended by signals.
 *
 *   open   reads keys and certificate, binds the address (a taken port is found before a model is loaded)
 *   listen takes connections from here on
 *   loading while set, only probes are answered; all else gets 503
 *   run    the event loop, in the calling thread, which becomes the I/O thread; returns when the server has drained
 *          (SIGTERM, SIGINT) or was told to stop at once (the second signal)
 *
 * SIGHUP reads keys, certificate and access log again and then calls on_reload. Handlers see http.h.
 */
#ifndef DI_SERVER_SERVER_H
#define DI_SERVER_SERVER_H

#include "server/http.h"

/* config is read during the call only; the log (may be NULL) must outlive the server. Without a key only a loopback
 * address is bound. */
di_status di_server_open(const di_config *config, di_log *log, di_server **server, di_error *error);
void di_server_close(di_server *server); /* NULL is allowed; after di_server_run has returned, or without it */

di_status di_server_listen(di_server *server, di_error *error);
const char *di_server_url(const di_server *server); /* "http://127.0.0.1:8000", with the port that was chosen */
void di_server_on_reload(di_server *server, void (*on_reload)(void *arg), void *arg);

/* DI_OK when drained, also if the deadline cut answers off; DI_ERR_CANCELLED after a second signal. When it returns,
 * every exchange has ended or is gone, every task of di_server_work was done, and signals do what they did before. */
di_status di_server_run(di_server *server, di_error *error);
/* What SIGTERM does; I/O thread. Calling it again does not hasten anything. */
void di_server_drain(di_server *server);
/* Ends di_server_run now, whatever is in progress; I/O thread. */
void di_server_stop(di_server *server);
/* What requests are for is not there yet; I/O thread, or before di_server_run. */
void di_server_set_loading(di_server *server, bool loading);

#endif
