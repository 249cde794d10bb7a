/* http_metrics.h - Prometheus text beyond the engine's registry: the transport, the process, and vLLM's names for what
 * the engine counts, so that its dashboards find something. I/O thread. */
#ifndef DI_SERVER_HTTP_METRICS_H
#define DI_SERVER_HTTP_METRICS_H

#include "deepinfer.h"
#include "engine/metrics.h"
#include "server/http.h"

void di_http_metrics_write(const di_server *server, di_text *out);
/* What runs here, as labels of a metric that is 1. */
void di_build_metric_write(const di_model_info *info, const char *model, di_text *out);
/* With the labels model_name and engine. Histograms keep the engine's buckets. */
void di_vllm_metrics_write(const di_metrics *metrics, const char *model, di_text *out);

#endif
