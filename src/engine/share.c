/* share.c - in which order requests go on: level, fair shares, response ratio.
 *
 * Shares are of two levels: the machine is shared by owners (API keys), and what an owner gets by its tenants. So the
 * names that a client gives its users divide its own share and add nothing to it. Requests without an owner are
 * nobody's, and nobody counts as one owner.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

#define IS_OWNER UINT32_MAX /* in place of the place of an owner */

/* Service is compared in portions of so many rows, so that two tenants do not take turns row by row. */
enum { PORTION = 512 };

/* ---------------------------------------------------------------- who has requests */

/* Place of a tenant or owner: its own, a fresh one, or that of the least served one that has no requests. The list
 * grows only while all in it have requests, so the requests that there are bound it, not the names that ever came. */
static bool find_place(di_engine *engine, uint64_t name, bool is_owner, uint32_t *place) {
    uint32_t unused = UINT32_MAX;
    for (uint32_t i = 0; i < engine->tenant_count; i++) {
        const di_tenant *tenant = &engine->tenants[i];
        *place = i;
        if (tenant->name == name && (tenant->owner == IS_OWNER) == is_owner) return true;
        if (!tenant->requests && (unused == UINT32_MAX || tenant->served < engine->tenants[unused].served)) unused = i;
    }
    if (engine->tenant_count < engine->tenant_capacity) {
        unused = engine->tenant_count++;
    } else if (unused == UINT32_MAX) {
        uint32_t capacity = 2 * engine->tenant_capacity + 16;
        di_tenant *grown = realloc(engine->tenants, capacity * sizeof *grown);
        if (!grown) return false;
        engine->tenants = grown;
        engine->tenant_capacity = capacity;
        unused = engine->tenant_count++;
    }
    engine->tenants[unused] = (di_tenant){.name = name};
    *place = unused;
    return true;
}

static double *least_of(di_engine *engine, uint32_t owner) {
    return owner == IS_OWNER ? &engine->least_served : &engine->tenants[owner].least_served;
}

/* Rows that the least served one with requests has had: of all owners, and of each owner's tenants. */
static void find_least_served(di_engine *engine) {
    for (uint32_t i = 0; i < engine->tenant_count; i++)
        if (engine->tenants[i].requests) *least_of(engine, engine->tenants[i].owner) = INFINITY;
    for (uint32_t i = 0; i < engine->tenant_count; i++) {
        if (!engine->tenants[i].requests) continue;
        double *least = least_of(engine, engine->tenants[i].owner);
        *least = fmin(*least, engine->tenants[i].served);
    }
}

/* One that comes back does not bring credit for the time it was away. */
static bool join(di_engine *engine, uint64_t name, uint32_t owner, uint32_t *place) {
    if (!find_place(engine, name, owner == IS_OWNER, place)) return false;
    find_least_served(engine);
    di_tenant *tenant = &engine->tenants[*place];
    tenant->owner = owner;
    double least = *least_of(engine, owner);
    if (!tenant->requests++) tenant->served = fmax(tenant->served, least);
    return true;
}

/* When the last one of its like leaves, nobody is behind anybody any more: all start over, or a name that comes later
 * would go before those that were ever served. */
static void leave(di_engine *engine, uint32_t place) {
    uint32_t owner = engine->tenants[place].owner;
    if (--engine->tenants[place].requests) return;
    for (uint32_t i = 0; i < engine->tenant_count; i++)
        if (engine->tenants[i].owner == owner && engine->tenants[i].requests) return;
    for (uint32_t i = 0; i < engine->tenant_count; i++)
        if (engine->tenants[i].owner == owner) engine->tenants[i].served = 0;
    *least_of(engine, owner) = 0;
}

bool di_join_shares(di_engine *engine, di_request *request) {
    uint32_t owner;
    if (!join(engine, di_namespace(request->owner, NULL), IS_OWNER, &owner)) return false;
    if (join(engine, request->tenant, owner, &request->tenant_place)) return true;
    leave(engine, owner);
    request->tenant_place = UINT32_MAX;
    return false;
}

void di_leave_shares(di_engine *engine, di_request *request) {
    if (request->tenant_place == UINT32_MAX) return;
    uint32_t owner = engine->tenants[request->tenant_place].owner;
    leave(engine, request->tenant_place);
    leave(engine, owner);
    request->tenant_place = UINT32_MAX;
}

void di_count_served(di_engine *engine, const di_request *request, uint32_t rows) {
    di_tenant *tenant = &engine->tenants[request->tenant_place];
    tenant->served += rows;
    engine->tenants[tenant->owner].served += rows;
}

/* ---------------------------------------------------------------- order */

double di_level_of(const di_engine *engine, const di_request *request, int64_t now) {
    int64_t waited = request->waited_ns + (request->waiting_ns ? now - request->waiting_ns : 0);
    return request->priority + floor(di_ms(waited) / (double)engine->ageing_ms);
}

static uint32_t rows_left(const di_request *request) {
    uint32_t left = 0;
    if (!request->sequences) return request->prompt_count;
    for (int32_t i = 0; i < request->sampling.n; i++) {
        const di_sequence *s = &request->sequences[i];
        uint32_t done = s->state ? (uint32_t)di_state_length(s->state) : 0;
        if (!s->done && s->goal > done) left += s->goal - done;
    }
    return left;
}

static double share_of(di_engine *engine, uint32_t place) {
    const di_tenant *tenant = &engine->tenants[place];
    return floor((tenant->served - *least_of(engine, tenant->owner)) / PORTION);
}

static di_order order_of(di_engine *engine, const di_request *request, int64_t now) {
    double age = (double)(now - request->submitted_ns) / 1e9;
    di_step_load load = {.prompt_rows = rows_left(request), .prompt_context = request->prompt_count / 2.0};
    double cost = di_step_model_predict(&engine->step_model, &load) + 1e-4;
    return (di_order){
        .level = di_level_of(engine, request, now),
        .owner = share_of(engine, engine->tenants[request->tenant_place].owner),
        .tenant = share_of(engine, request->tenant_place),
        .ratio = fmin((age + cost) / cost, 999),
    };
}

void di_order_all(di_engine *engine, di_request_list *list) {
    int64_t now = di_now_ns();
    find_least_served(engine);
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->state != DI_REQUEST_FINISHED) list->items[i]->order = order_of(engine, list->items[i], now);
}

void di_order_one(di_engine *engine, di_request *request, int64_t now) {
    find_least_served(engine);
    request->order = order_of(engine, request, now);
}

static int compare(double a, double b) {
    return (a > b) - (a < b);
}

int di_compare_order(const di_request *a, const di_request *b) {
    const di_order *x = &a->order, *y = &b->order;
    int result = compare(y->level, x->level);
    if (!result) result = compare(x->owner, y->owner);
    if (!result) result = compare(x->tenant, y->tenant);
    return result ? result : compare(y->ratio, x->ratio);
}
