/* nccl.c - see nccl.h.
 *
 * The few entry points are declared here: they have had these forms since NCCL 2.7, so neither a
 * header nor the library is needed to build.  libnccl.so.2 is looked for by the dynamic loader;
 * $FOVEA_NCCL names another file, for example the one inside PyTorch's package.
 *
 * A rank that is lost leaves the others' kernels waiting on their GPUs for ever, and the host
 * inside a wait for the stream.  The communicator of the host notices the loss (heartbeats) and
 * calls lost(), which aborts NCCL's communicator: the kernels end, the wait returns, and
 * fv__nccl_check says why. */
#include "comm/nccl.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { NCCL_UINT8 = 1, NCCL_FLOAT = 7, NCCL_SUM = 0, NCCL_IN_PROGRESS = 7 };

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

typedef struct library {
    void *handle;
    const char *(*GetErrorString)(int result);
    int (*GetVersion)(int *version);
    int (*GetUniqueId)(nccl_id *id);
    int (*CommInitRank)(void **comm, int size, nccl_id id, int rank);
    int (*CommDestroy)(void *comm);
    int (*CommAbort)(void *comm);
    int (*CommGetAsyncError)(void *comm, int *result);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*Send)(const void *x, size_t n, int type, int to, void *comm, void *stream);
    int (*Recv)(void *y, size_t n, int type, int from, void *comm, void *stream);
    int (*Broadcast)(const void *x, void *y, size_t n, int type, int root, void *comm,
                     void *stream);
    int (*AllReduce)(const void *x, void *y, size_t n, int type, int op, void *comm, void *stream);
    int (*Reduce)(const void *x, void *y, size_t n, int type, int op, int root, void *comm,
                  void *stream);
} library;

struct fv__nccl {
    library l;
    fv_env env;
    fv_comm *c;
    void *comm;
    _Atomic bool aborted;
    char version[32];
};

/* ---- the library ---- */

static fv_status open_library(library *l, fv_err *e)
{
    const char *file = getenv("FOVEA_NCCL"), *missing = NULL;
    l->handle = dlopen(file && *file ? file : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!l->handle)
        return fv_fail(e, FV_EMISSING,
                       "ranks: NCCL cannot be opened (%.200s); $FOVEA_NCCL may name its file, and "
                       "FOVEA_GPU_COMM=host does without",
                       dlerror());
    const struct {
        const char *name;
        void *to;
    } names[] = {{"ncclGetErrorString", &l->GetErrorString},
                 {"ncclGetVersion", &l->GetVersion},
                 {"ncclGetUniqueId", &l->GetUniqueId},
                 {"ncclCommInitRank", &l->CommInitRank},
                 {"ncclCommDestroy", &l->CommDestroy},
                 {"ncclCommAbort", &l->CommAbort},
                 {"ncclCommGetAsyncError", &l->CommGetAsyncError},
                 {"ncclGroupStart", &l->GroupStart},
                 {"ncclGroupEnd", &l->GroupEnd},
                 {"ncclSend", &l->Send},
                 {"ncclRecv", &l->Recv},
                 {"ncclBroadcast", &l->Broadcast},
                 {"ncclAllReduce", &l->AllReduce},
                 {"ncclReduce", &l->Reduce}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *at = dlsym(l->handle, names[i].name);
        if (!at) missing = names[i].name;
        /* dlsym gives functions as void *; POSIX says the bits are the same */
        memcpy(names[i].to, &at, sizeof at);
    }
    if (!missing) return FV_OK;
    dlclose(l->handle);
    return fv_fail(e, FV_EMISSING, "ranks: libnccl has no %s; version 2.7 or later is needed",
                   missing);
}

static bool library_there(void)
{
    library l;
    if (open_library(&l, NULL)) return false;
    dlclose(l.handle);
    return true;
}

/* ---- whether ---- */

fv_status fv__nccl_wanted(bool *wanted, fv_comm *c, int gpus, fv_err *e)
{
    const char *say = getenv("FOVEA_GPU_COMM");
    if (!say || !*say) say = "auto";
    bool is_auto = !strcmp(say, "auto"), force = !strcmp(say, "nccl");
    *wanted = force;
    if (!is_auto && !force && strcmp(say, "host"))
        return fv_fail(e, FV_EARG, "FOVEA_GPU_COMM=%.40s: expected auto, nccl or host", say);
    if (!is_auto || fv_comm_size(c) == 1) return FV_OK;
    /* one rank without a GPU of its own, or without the library, and nobody uses it */
    float missing = gpus >= fv_comm_local_size(c) && library_there() ? 0 : 1;
    fv_status st = fv_comm_all_reduce(c, &missing, 1, e);
    *wanted = !st && missing == 0; /* whole numbers: the order of the sum does not matter */
    return st;
}

/* ---- lifetime ---- */

static fv_status refuse(const fv__nccl *n, int result, fv_err *e)
{
    return fv_fail(e, FV_EDEVICE, "rank %d: NCCL: %s", fv_comm_rank(n->c),
                   n->l.GetErrorString(result));
}

/* Called by the thread of the heartbeats. */
static void lost(void *self)
{
    fv__nccl *n = self;
    if (!atomic_exchange(&n->aborted, true)) n->l.CommAbort(n->comm);
}

fv_status fv__nccl_open(fv__nccl **out, const fv_env *env, fv_comm *c, fv_err *e)
{
    nccl_id id = {{0}};
    int version = 0, rc = 0;
    fv__nccl *n = *out = fv__alloc(env, sizeof *n);
    fv_status st = n ? FV_OK : fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    if (n && env) n->env = *env;
    if (!st) st = open_library(&n->l, e);
    if (!st) n->c = c;
    if (!st && !fv_comm_rank(c) && (rc = n->l.GetUniqueId(&id))) st = refuse(n, rc, e);
    st = fv_comm_agree(c, st, e);
    if (!st) st = fv_comm_broadcast(c, &id, sizeof id, 0, e);
    if (!st && (rc = n->l.CommInitRank(&n->comm, fv_comm_size(c), id, fv_comm_rank(c))))
        st = refuse(n, rc, e);
    if (!st) n->l.GetVersion(&version);
    if (!st) {
        snprintf(n->version, sizeof n->version, "%d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
        fv__comm_on_lost(c, lost, n);
        return FV_OK;
    }
    if (n && n->l.handle && n->c == c && n->comm) n->l.CommAbort(n->comm);
    fv__free(env, n, sizeof *n);
    *out = NULL;
    return st;
}

void fv__nccl_close(fv__nccl *n)
{
    if (!n) return;
    fv_env env = n->env;
    fv__comm_on_lost(n->c, NULL, NULL);
    if (!atomic_load(&n->aborted)) n->l.CommDestroy(n->comm);
    fv__free(&env, n, sizeof *n); /* the library stays open: its threads may still end */
}

const char *fv__nccl_version(const fv__nccl *n) { return n->version; }

fv_status fv__nccl_check(fv__nccl *n, fv_err *e)
{
    int result = 0;
    if (atomic_load(&n->aborted)) /* the host's communicator knows who is lost */
        return fv_comm_barrier(n->c, e) ? FV_EDEVICE
                                        : fv_fail(e, FV_EDEVICE, "ranks: NCCL was given up");
    int rc = n->l.CommGetAsyncError(n->comm, &result);
    if (rc || (result && result != NCCL_IN_PROGRESS)) return refuse(n, rc ? rc : result, e);
    return FV_OK;
}

/* ---- collectives ---- */

/* Ends the group, whatever happened in it; the first failure counts. */
static fv_status end_group(fv__nccl *n, int rc, fv_err *e)
{
    int last = n->l.GroupEnd();
    if (!rc) rc = last;
    return rc ? refuse(n, rc, e) : FV_OK;
}

/* Sends and receives between two ranks match in the order of the calls, those to itself too. */
fv_status fv__nccl_exchange(fv__nccl *n, void *stream, const fv_comm_part *send, int n_send,
                            const fv_comm_part *recv, int n_recv, fv_err *e)
{
    const library *l = &n->l;
    if (atomic_load(&n->aborted)) return fv__nccl_check(n, e);
    int rc = l->GroupStart();
    if (rc) return refuse(n, rc, e);
    for (int i = 0; !rc && i < n_send; i++)
        if (send[i].bytes)
            rc = l->Send(send[i].data, send[i].bytes, NCCL_UINT8, send[i].rank, n->comm, stream);
    for (int i = 0; !rc && i < n_recv; i++)
        if (recv[i].bytes)
            rc = l->Recv(recv[i].data, recv[i].bytes, NCCL_UINT8, recv[i].rank, n->comm, stream);
    return end_group(n, rc, e);
}

/* Parts may differ in size, which ncclAllGather does not allow: a broadcast of each, as one. */
fv_status fv__nccl_all_gather(fv__nccl *n, void *stream, const fv_comm_part *part, fv_err *e)
{
    if (atomic_load(&n->aborted)) return fv__nccl_check(n, e);
    int rc = n->l.GroupStart();
    if (rc) return refuse(n, rc, e);
    for (int r = 0; !rc && r < fv_comm_size(n->c); r++)
        if (part[r].bytes)
            rc = n->l.Broadcast(part[r].data, part[r].data, part[r].bytes, NCCL_UINT8, r, n->comm,
                                stream);
    return end_group(n, rc, e);
}

fv_status fv__nccl_all_reduce(fv__nccl *n, void *stream, float *data, int64_t count, fv_err *e)
{
    if (atomic_load(&n->aborted)) return fv__nccl_check(n, e);
    int rc = n->l.AllReduce(data, data, (size_t)count, NCCL_FLOAT, NCCL_SUM, n->comm, stream);
    return rc ? refuse(n, rc, e) : FV_OK;
}

fv_status fv__nccl_reduce_scatter(fv__nccl *n, void *stream, float *data, const int64_t *from,
                                  const int64_t *count, fv_err *e)
{
    if (atomic_load(&n->aborted)) return fv__nccl_check(n, e);
    int rc = n->l.GroupStart();
    if (rc) return refuse(n, rc, e);
    for (int r = 0; !rc && r < fv_comm_size(n->c); r++)
        if (count[r])
            rc = n->l.Reduce(data + from[r], data + from[r], (size_t)count[r], NCCL_FLOAT, NCCL_SUM,
                             r, n->comm, stream);
    return end_group(n, rc, e);
}
