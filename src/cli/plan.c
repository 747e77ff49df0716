/* plan.c - fovea plan: how fast a recipe would train on N machines, and what each of them needs,
 * from a few updates that are measured on this one (fovea/author/scaling.h). */
#include <stdio.h>

#include "cli.h"
#include "fovea/author/scaling.h"
#include "fovea/recipe.h"

typedef struct values {
    const char *device;
    cli_list set;
    int64_t threads, tokens, ranks;
    double bandwidth, latency, efficiency, overhead, memory, speed;
    bool json;
} values;

static const values defaults = {.device = "cpu", .bandwidth = 10, .latency = 50, .speed = 1};

static const cli_option options[] = {
    CLI_LIST(values, set, 0, "set", "SECTION.KEY=VALUE", "change a key of the recipe"),
    CLI_REAL(values, bandwidth, 0, "bandwidth", "GBIT", 1e-3, 1e5, "of each link, Gbit/s"),
    CLI_REAL(values, latency, 0, "latency", "US", 0, 1e7, "from rank to rank, microseconds"),
    CLI_REAL(values, efficiency, 0, "efficiency", "X", 0, 1,
             "of the bandwidth, what arrives; 0: as tools/plan_fit.py found with TCP"),
    CLI_REAL(values, overhead, 0, "overhead", "US", 0, 1e6,
             "microseconds of software in an exchange; 0: likewise, with MPI"),
    CLI_REAL(values, speed, 0, "speed", "X", 1e-3, 1e6,
             "ranks compute so many times as fast as this machine"),
    CLI_REAL(values, memory, 0, "memory", "GIB", 0, 1e6, "of each rank, in GiB; 0: any"),
    CLI_INT(values, tokens, 0, "batch-tokens", "N", 0, 1LL << 40, "of an update; 0: the recipe's"),
    CLI_INT(values, ranks, 0, "ranks", "N", 0, 1 << 20, "so many; 0: 1, 2, 4, ... 4096"),
    CLI_INT(values, threads, 't', "threads", "N", 0, 1024, "threads of a rank; 0: all cores"),
    CLI_TEXT(values, device, 'd', "device", "NAME", "cpu, cuda or cuda:N"),
    CLI_FLAG(values, json, 0, "json", "print one JSON object a line"),
    {0},
};

static const cli_example examples[] = {
    {"fovea plan recipe.ini --bandwidth 10 --latency 50", "on machines with 10 Gbit/s links"},
    {0},
};

static fv_status measure(void *user, const fv_train_job *job, fv_err *e)
{
    return fv_scaling_measure(user, job, e);
}

static void print(const fv_scaling_layout *l, bool json)
{
    cli_json j = {0};
    if (!json) {
        printf("%6d %7lld %9s %10.2f %9.4f %9.4f %9.4f %9.4f %12.0f\n", l->ranks,
               (long long)l->shards, l->recompute ? "yes" : "no", l->bytes / (1 << 20), l->compute,
               l->reduce + l->gather, l->exposed, l->seconds, l->tokens);
        return;
    }
    cli_json_put(&j, "{s:i, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f}", "ranks",
                 l->ranks, "shards", l->shards, "recompute", l->recompute, "bytes", l->bytes,
                 "compute", l->compute, "reduce", l->reduce, "gather", l->gather, "exposed",
                 l->exposed, "seconds", l->seconds, "tokens_per_s", l->tokens, "buckets",
                 l->buckets, "sent", l->sent);
    cli_json_end();
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    fv_err e = {0};
    fv_recipe *r = NULL;
    fv_device *d = NULL;
    fv_scaling s = {0};
    fv_train_state state;
    fv_scaling_layout l;
    fv_scaling_net net = {v->bandwidth * 1.25e8, v->latency * 1e-6, .tokens = (double)v->tokens};
    net.speed = v->speed;
    net.efficiency = v->efficiency;
    net.overhead = v->overhead * 1e-6;
    if ((n = cli_open_device(c, &d, v->device, v->threads)) != CLI_OK) return n;
    fv_status st = fv_recipe_open(&r, NULL, operand[0], &e);
    if (!st) st = cli_set_keys(r, &v->set, &e);
    fv_recipe_job job = {.device = d, .look = measure, .user = &s};
    if (!st) st = fv_recipe_train(r, &job, &state, &e);
    fv_device_close(d);
    fv_recipe_close(r);
    if (st) return cli_error(c, &e);
    for (int64_t k = v->ranks ? v->ranks : 1; k <= (v->ranks ? v->ranks : 4096); k *= 2) {
        if (!fv_scaling_best(&l, &s, net, (int)k, v->memory * (1 << 30))) continue;
        if (!n++ && !v->json)
            printf(" ranks  shards recompute   MiB/rank   compute      comm   exposed    update"
                   "     tokens/s\n");
        print(&l, v->json);
    }
    return n ? CLI_OK : cli_fail(c, "no layout fits: an update has %.0f rows", s.rows);
}

const cli_command plan_command = {
    .name = "plan",
    .summary = "predict how fast a recipe trains on many machines",
    .about =
        "A few updates are measured here, and what N ranks on a network would come to is printed.",
    CLI_OWN(values),
    .defaults = &defaults,
    .operands = "RECIPE",
    .min_operands = 1,
    .max_operands = 1,
};
