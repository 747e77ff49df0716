/* graph.c - a step that repeats, kept by the device and run again without the host.
 *
 *    times a key came    1         2                    3 and on
 *    what happens        runs      captured, replayed   replayed
 *                        (warms up: memory, plans)
 *
 * The first run must not be captured: it allocates and loads kernels, which a CUDA capture
 * forbids. A key is a hash of what decides the kernels and addresses of a step; a wrong one would
 * replay another step, so the context's serial and the address of its scratch are mixed in here. */
#include "core.h"

void fv__graph_drop(fv_graph *g)
{
    if (g->kept) g->dev->backend->free_graph(g->dev, g->kept);
    *g = (fv_graph){0};
}

static void run(fv_ctx *c, uint64_t step, fv_step_fn *fn, void *user)
{
    fv_ctx_reset(c, step);
    fn(c, user);
}

static void replay(fv_ctx *c, const fv_graph *g)
{
    c->dev->backend->replay(&c->stream, g->kept);
    fv__failed(c);
}

/* Keeps the step, whose memory, plans and kernels are there since it ran before.
 * While capturing, fn launches nothing: kernels are recorded.  Hence the replay right after it,
 * and the plain run where the capture was refused half-way. */
static void keep(fv_ctx *c, fv_graph *g, uint64_t step, fv_step_fn *fn, void *user)
{
    const fv_backend *b = c->dev->backend;
    fv_ctx_reset(c, step);
    if (!b->capture(&c->stream)) {
        fn(c, user);
        return;
    }
    fn(c, user);
    g->kept = b->captured(&c->stream);
    if (g->kept && !fv__failed(c)) {
        replay(c, g);
        return;
    }
    if (g->kept) b->free_graph(c->dev, g->kept);
    g->kept = NULL;
    if (!c->err.code) run(c, step, fn, user); /* nothing of it has run yet */
}

void fv__graph_run(fv_ctx *c, fv_graph *g, uint64_t key, uint64_t step, fv_step_fn *fn, void *user)
{
    const fv_backend *b = c->dev->backend;
    /* which may grow */
    key = (key * 0x9E3779B97F4A7C15u + c->serial) * 0x9E3779B97F4A7C15u +
          (uintptr_t)c->stream.scratch;
    if (b->capture && (g->key != key || g->dev != c->dev)) {
        fv__graph_drop(g);
        *g = (fv_graph){.dev = c->dev, .key = key};
    }
    if (g->kept) {
        c->err = c->stream.err = (fv_err){0};
        fv__ctx_set_step(c, step);
        replay(c, g);
    } else if (b->capture && ++g->seen == 2) {
        keep(c, g, step, fn, user);
    } else {
        run(c, step, fn, user);
    }
}
