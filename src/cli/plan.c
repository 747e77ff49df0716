/* plan.c - fovea plan: how fast a recipe would train on N machines, and what each of them needs.
 *
 * It measures a few updates on this machine (fovea/author/scaling.h) and prints the best layout for
 * 1, 2, 4, ... ranks of the network that was described. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "fovea/author/scaling.h"
#include "fovea/recipe.h"
#include "json.h"

typedef struct values {
    const char *device;
    cli_list set;
    int64_t threads, most, tokens, only;
    double bandwidth, latency, memory, speed;
    bool json;
} values;

static const values defaults = {
    .device = "cpu", .most = 4096, .bandwidth = 10, .latency = 50, .speed = 1};

static const cli_option options[] = {
    CLI_LIST(values, set, 0, "set", "SECTION.KEY=VALUE",
             "change a key of the recipe; may be given again and again"),
    CLI_REAL(values, bandwidth, 'b', "bandwidth", "GBIT", 1e-3, 1e5,
             "of each rank's link, gigabits a second"),
    CLI_REAL(values, latency, 'l', "latency", "US", 0, 1e7, "from rank to rank, in microseconds"),
    CLI_REAL(values, memory, 'm', "memory", "GIB", 0, 1e6,
             "of each rank, in GiB; layouts that need more are left out; 0: any"),
    CLI_REAL(values, speed, 0, "speed", "FACTOR", 1e-3, 1e6,
             "how many times as fast as this device the planned ones compute"),
    CLI_INT(values, tokens, 0, "batch-tokens", "N", 0, 1LL << 40,
            "tokens of an update to plan for; 0: those of the recipe"),
    CLI_INT(values, most, 0, "ranks", "N", 1, 1 << 20, "plan for 1, 2, 4, ... up to so many ranks"),
    CLI_INT(values, only, 'n', "only", "N", 0, 1 << 20, "plan for this number of ranks alone"),
    CLI_INT(values, threads, 't', "threads", "N", 0, 1024,
            "threads of a rank; 0: all cores this process may use"),
    CLI_TEXT(values, device, 'd', "device", "NAME", "cpu, cuda or cuda:N"),
    CLI_FLAG(values, json, 0, "json", "print one JSON object a line"),
    {0},
};

static const cli_example examples[] = {
    {"fovea plan recipe.ini --bandwidth 10 --latency 50", "on machines with 10 Gbit/s links"},
    {"fovea plan recipe.ini -d cuda --bandwidth 400 --latency 5 --memory 80 --batch-tokens 4194304",
     "on GPUs like this one with 80 GiB each, with larger batches"},
    {0},
};

static fv_status measure(void *user, const fv_train_job *job, fv_err *e)
{
    return fv_scaling_measure(user, job, e);
}

static void print(const fv_scaling *s, const fv_scaling_layout *l, double one, bool json)
{
    double rate = s->tokens / l->seconds, gain = one / l->seconds;
    cli_json j = {0};
    if (!json) {
        printf("%6d %7lld %9s %10.2f %9.4f %9.4f %9.4f %9.4f %12.0f %8.2f %5.0f %%\n", l->ranks,
               (long long)l->shards, l->recompute ? "yes" : "no", l->bytes / (1 << 20), l->compute,
               l->reduce + l->gather, l->exposed, l->seconds, rate, gain, 100 * gain / l->ranks);
        return;
    }
    cli_json_put(&j, "{s:i, s:I, s:b, s:f", "ranks", l->ranks, "shards", l->shards, "recompute",
                 l->recompute, "bytes", l->bytes);
    cli_json_put(&j, "s:f, s:f, s:f, s:f, s:f}", "compute", l->compute, "communication",
                 l->reduce + l->gather, "exposed", l->exposed, "seconds", l->seconds,
                 "tokens_per_s", rate);
    cli_json_end();
}

/* Compute times are those of a device that is so many times as fast; other batches are longer. */
static void adjust(fv_scaling *s, const values *v)
{
    s->leaf /= v->speed;
    s->token /= v->speed;
    s->block /= v->speed;
    s->optimiser /= v->speed;
    if (!v->tokens) return;
    s->rows *= (double)v->tokens / s->tokens;
    s->tokens = (double)v->tokens;
}

static int show(const cli *c, const values *v, const fv_scaling *s)
{
    fv_scaling_net net = {.bandwidth = v->bandwidth * 1e9 / 8, .latency = v->latency * 1e-6};
    fv_scaling_layout l;
    double memory = v->memory * (1 << 30);
    double one = fv_scaling_predict(s, net, 1, 1, false).seconds;
    int shown = 0;
    if (!v->json)
        printf("%lld numbers, %.0f tokens an update; seconds\n"
               " ranks  shards recompute  MiB/rank   compute      comm   exposed    update     "
               "tokens/s  speedup  each\n",
               (long long)s->numbers, s->tokens);
    for (int64_t n = v->only ? v->only : 1; n <= (v->only ? v->only : v->most); n *= 2) {
        if (!fv_scaling_best(&l, s, net, (int)n, memory)) continue;
        print(s, &l, one, v->json);
        shown++;
    }
    if (shown) return CLI_OK;
    return cli_fail(c, "no layout fits: an update has %.0f rows, and a rank %.1f GiB", s->rows,
                    v->memory);
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    fv_err e = {0};
    fv_recipe *r = NULL;
    fv_device *d = NULL;
    fv_scaling s = {0};
    fv_train_state state;
    (void)n;
    fv_status st = fv_recipe_open(&r, NULL, operand[0], &e);
    if (!st) st = cli_set_keys(r, &v->set, &e);
    if (!st)
        st = fv_device_open(&d, v->device, (fv_device_opt){.threads = cli_threads(v->threads)}, &e);
    fv_recipe_job job = {.device = d, .look = measure, .user = &s};
    if (!st) st = fv_recipe_train(r, &job, &state, &e);
    fv_device_close(d);
    fv_recipe_close(r);
    if (st) return cli_error(c, &e);
    adjust(&s, v);
    return show(c, v, &s);
}

const cli_command plan_command = {
    .name = "plan",
    .summary = "how fast a recipe would train on many machines",
    .about =
        "Measures a few updates of the recipe on this machine and prints, for 1, 2, 4, ... "
        "ranks on the network described, the best train.shards and train.recompute, the memory "
        "of a rank, and the seconds of an update: computing, communication, what of that "
        "computing does not hide, and all.  docs/scale.md says how the model was fitted and "
        "how far it was off.",
    .options = options,
    .size = sizeof(values),
    .defaults = &defaults,
    .operands = "RECIPE",
    .min_operands = 1,
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
