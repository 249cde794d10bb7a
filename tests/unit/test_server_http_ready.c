/* test_server_http_ready.c - health over HTTP while a step hangs, and what becomes of it afterwards.
 * labels: timing */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "server/operations.h"
#include "support/gate.h"
#include "support/http_client.h"
#include "support/requests.h"

#define NANO DI_TEST_DATA "/nano"
#define END  "Host: a\r\nConnection: close\r\n\r\n"

static int status_of(int port, const char *request, const char *holds) {
    di_text text = di_test_ask(port, request);
    int http_status = di_test_status(&text);
    if (!text.data || !strstr(text.data, holds)) fail_msg("no %s in the answer to %s", holds, request);
    di_text_free(&text);
    return http_status;
}

static void a_step_that_hangs_ends_readiness_and_nothing_else(void **state) {
    (void)state;
    enum { STALL_MS = 500 };
    static const char live[] = "GET /health/live HTTP/1.1\r\n" END, ready[] = "GET /health/ready HTTP/1.1\r\n" END;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_test_server test;
    di_operations *operations = NULL;
    di_error error = {0};
    di_gate_on(engine, false);
    di_test_server_open(&test, (const char *const[]){"ready-stall-ms", "500", NULL});
    assert_int_equal(di_operations_open(test.server, test.config, &operations, &error), DI_OK);
    assert_int_equal(di_operations_start(operations, engine, test.config, &error), DI_OK);
    di_test_server_begin(&test);
    assert_int_equal(status_of(test.port, ready, "\"status\":\"ready\""), 200);

    di_gate_open(false);
    int64_t start = di_now_ns();
    di_job job = di_greedy_job(di_walk(1, 40), 40, 20);
    job.id = "stuck-1";
    di_request *request = di_submit_job(engine, &job, NULL, NULL);
    assert_true(di_gate_wait(20000, NULL));
    while (status_of(test.port, ready, "\"running\":1") == 200 && di_now_ns() - start < 20000000000) usleep(5000);
    assert_true(di_now_ns() - start >= (STALL_MS - 50) * 1000000LL); /* a step may take a while */
    assert_int_equal(status_of(test.port, ready, "no step has ended for "), 503);
    assert_int_equal(status_of(test.port, ready, "1 requests running, 0 waiting"), 503);
    assert_int_equal(status_of(test.port, "GET /health HTTP/1.1\r\n" END, "\r\nRetry-After: "), 503);
    assert_int_equal(status_of(test.port, "POST /ping HTTP/1.1\r\n" END, ""), 503);
    assert_int_equal(status_of(test.port, live, "live"), 200);
    assert_int_equal(
        status_of(test.port, "GET /v1/requests HTTP/1.1\r\n" END, "{\"id\":\"stuck-1\",\"state\":\"prefill\""), 200);
    assert_int_equal(status_of(test.port, "GET /metrics HTTP/1.1\r\n" END, "vllm:num_requests_running"), 200);

    di_gate_open(true);
    start = di_now_ns();
    while (status_of(test.port, ready, "status") != 200 && di_now_ns() - start < 20000000000) usleep(1000);
    assert_int_equal(status_of(test.port, ready, "\"status\":\"ready\""), 200);
    di_outcome outcome = {0};
    di_drain(request, &outcome);
    assert_int_equal(outcome.status, DI_OK);
    usleep(2 * STALL_MS * 1000);
    assert_int_equal(status_of(test.port, ready, "\"stuck_ms\":0"), 200); /* an idle server is ready */
    di_test_server_stop(&test);
    di_operations_close(operations);
    di_gate_close(engine);
}

static void the_budget_of_a_step_decides_by_itself(void **state) {
    (void)state;
    static const struct {
        int64_t stuck_ms, budget_ms, stall_ms;
        bool draining, ready;
    } rows[] = {
        {0, 50, 0, false, true},        {1900, 50, 0, false, true},      {2100, 50, 0, false, false},
        {19000, 10000, 0, false, true}, {21000, 10000, 0, false, false}, {250, 10000, 200, false, false},
        {150, 10000, 200, false, true}, {0, 50, 0, true, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_engine_progress progress = {.stuck_ms = rows[i].stuck_ms, .step_budget_ms = rows[i].budget_ms};
        di_text reason = {0};
        assert_int_equal(di_operations_ready(&progress, rows[i].draining, rows[i].stall_ms, &reason), rows[i].ready);
        assert_int_equal(reason.length > 0, !rows[i].ready);
        di_text_free(&reason);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_hangs_ends_readiness_and_nothing_else),
        cmocka_unit_test(the_budget_of_a_step_decides_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
