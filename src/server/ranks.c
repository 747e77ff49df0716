/* ranks.c - see ranks.h.
 *
 * `mpirun -np N fovea serve --tensor-parallel`: every rank opens its part of the model and a
 * scheduler of it.  Rank 0 listens; what it is asked reaches the others with each step
 * (gen/scheduler_ranks.c), so they need neither HTTP nor a tokenizer's answers.  Whatever else a
 * server can do opens a model of its own or runs it alone (embeddings, attention of a text): that
 * would need all ranks, and is refused. */
#include "ranks.h"

#include <signal.h>

static fv_comm *ranks_of(const sv_opt *o) { return o->ranks ? o->ranks : o->stages; }

bool sv_shared(const sv_opt *o) { return ranks_of(o); }

bool sv_follows(const sv_opt *o) { return fv_comm_rank(ranks_of(o)) > 0; }

fv_writer_opt sv_writer_opt(const sv_opt *o)
{
    return (fv_writer_opt){.weights = o->weights,
                           .widen = o->widen,
                           .new_tokens = 16,
                           .ranks = o->ranks,
                           .stages = o->stages};
}

fv_status sv_refuse_shared(fv_err *e)
{
    return fv_fail(e, FV_EMISSING,
                   "this model is divided among ranks, which generate text and nothing else");
}

fv_status sv_check_ranks(const sv_opt *o, fv_err *e)
{
    if (!sv_shared(o)) return FV_OK;
    if (o->ranks && o->stages)
        return fv_fail(e, FV_EUSAGE, "ranks share the weights or the layers of a model, not both");
    if (o->n_models != 1 || o->n_adapters || o->runs)
        return fv_fail(e, FV_EUSAGE,
                       "ranks serve one model: a second model, --adapter and --runs are not "
                       "possible with it");
    return FV_OK;
}

fv_status sv_open_device(fv_device **out, const sv_opt *o, fv_err *e)
{
    fv_status st = fv_device_open(out, o->device, (fv_device_opt){.threads = o->threads}, e);
    return fv_comm_agree(ranks_of(o), st, e);
}

/* Signals that a launcher sends to all ranks are rank 0's: it lets what runs come to its end. */
fv_status sv_follow(const sv_opt *o, fv_err *e)
{
    fv_device *d = NULL;
    fv_writer w = {0};
    fv_scheduler *s = NULL;
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    int64_t left = 0;
    fv_status st = sv_open_device(&d, o, e);
    if (!st) st = fv_writer_open(&w, d, o->models[0].dir, sv_writer_opt(o), e);
    if (!st) st = fv_scheduler_new(&s, d, w.model, o->scheduler, e);
    while (!st && left >= 0) st = fv_scheduler_step(s, &left, e);
    fv_scheduler_free(s);
    fv_writer_close(&w);
    fv_device_close(d);
    return st;
}
