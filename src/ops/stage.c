/* stage.c - see stage.h.  Memory of a device is staged through the host's, as that of sums over
 * ranks is (split.c); bytes are moved as they are, so a model in stages has the bits of one. */
#include "ops/stage.h"

#include "core/core.h"
#include "fovea/author/comm.h"
#include "fovea/author/ops.h"

/* Sends or receives through host memory; all ranks take part, most with nothing. */
static fv_status pass(fv_comm *ranks, void *data, size_t bytes, int from, int to, fv_err *e)
{
    int me = fv_comm_rank(ranks);
    if (to < 0) return fv_comm_broadcast(ranks, data, bytes, from, e);
    fv_comm_part there = {to, data, bytes}, here = {from, data, bytes};
    return fv_comm_exchange(ranks, &there, me == from, &here, me == to, e);
}

fv_tensor *fv__stage_pass(fv_ctx *c, fv_tensor *x, struct fv_comm *ranks, int from, int to)
{
    int me = fv_comm_rank(ranks);
    bool gets = me != from && (to < 0 || me == to), host = fv__device_is_host(c->dev);
    fv_err e = {0};
    if (!x || fv__failed(c)) return NULL;
    if (c->record) return fv_raise(c, FV_EMISSING, "a model in stages is not trained");
    fv_tensor *y = gets ? fv_new(c, x->dtype, x->shape) : x;
    size_t bytes = y ? fv__tensor_bytes(y->dtype, fv_len(y)) : 0;
    void *data = y && host ? y->data : y ? fv__alloc_raw(&c->dev->env, bytes) : NULL;
    if (!data) return fv_raise(c, FV_ENOMEM, "a stage: out of memory for %zu bytes", bytes);
    if (!host && me == from) c->dev->backend->download(&c->stream, data, y->data, bytes);
    if (pass(ranks, data, bytes, from, to, &e)) fv_raise(c, e.code, "%s", e.text);
    if (!host && gets) c->dev->backend->upload(&c->stream, y->data, data, bytes);
    if (!host) fv__free(&c->dev->env, data, bytes);
    return fv__failed(c) ? NULL : y;
}
