/* cudnn.h - a thin layer over cuDNN's backend (graph) API: tensors and nodes in, an execution plan
 * out.
 *
 * cuDNN fuses an operation graph when it recognises its pattern.  A graph consists of descriptors
 * that are created, given attributes and finalised; here each step is one call, and the first error
 * sticks to the graph (bad), so callers check once and fall back to our own kernels.  The library
 * is opened with dlopen at its first use; without it everything else works. */
#ifndef FV_CUDA_CUDNN_H
#define FV_CUDA_CUDNN_H

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define HAVE_CUDNN 1
#else
#define HAVE_CUDNN 0
#endif

#include "cuda.h"

#if HAVE_CUDNN

struct dnn_library {
    decltype(&cudnnGetVersion) version;
    decltype(&cudnnCreate) open;
    decltype(&cudnnDestroy) close;
    decltype(&cudnnSetStream) set_stream;
    decltype(&cudnnBackendCreateDescriptor) create;
    decltype(&cudnnBackendDestroyDescriptor) destroy;
    decltype(&cudnnBackendFinalize) finalize;
    decltype(&cudnnBackendSetAttribute) set;
    decltype(&cudnnBackendGetAttribute) get;
    decltype(&cudnnBackendExecute) execute;
};

typedef cudnnBackendDescriptor_t dnn_desc;

/* Sizes and strides (in elements) of a 4-D tensor. */
struct dnn_shape {
    int64_t dim[4], step[4];
};

/* Contiguous. */
static inline dnn_shape dnn_dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

#define DNN_PARTS 160 /* descriptors per graph */

struct dnn_graph {
    const dnn_library *l;
    bool bad;
    dnn_desc part[DNN_PARTS]; /* every descriptor, for destruction */
    int parts;
    dnn_desc op[64];
    int ops;
    int64_t inner; /* number of virtual tensors */
};

/* A tensor bound at execution by `uid` (from 1 on); value: a scalar in host memory. */
dnn_desc dnn_tensor(dnn_graph *g, int64_t uid, cudnnDataType_t type, dnn_shape s,
                    bool value = false);
/* A virtual tensor, between two nodes. */
dnn_desc dnn_between(dnn_graph *g, cudnnDataType_t type, dnn_shape s);

/* y = mode(x, b); BINARY_SELECT: t ? x : b; GEN_INDEX: the index along `axis`. */
void dnn_pointwise(dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, dnn_desc y,
                   dnn_desc x, dnn_desc b = NULL, dnn_desc t = NULL, int64_t axis = -1);
void dnn_reduce(dnn_graph *g, cudnnReduceTensorOp_t op, dnn_desc y, dnn_desc x);
void dnn_matmul(dnn_graph *g, dnn_desc c, dnn_desc a, dnn_desc b);
void dnn_reshape(dnn_graph *g, dnn_desc y, dnn_desc x);
/* An execution plan; it owns all descriptors of its graph. */
struct dnn_plan {
    dnn_graph graph;
    dnn_desc plan;
    int64_t work; /* workspace, bytes */
    bool can;     /* false: no engine supports the graph, or the plan failed to run */
    /* what it was made from: `key` as bytes, described by the function at `origin` */
    unsigned char key[256];
    size_t key_size;
    const void *origin;
    dnn_plan *next;
};

/* cuDNN on one device.  Plans are cached as long as the device is open: one takes up to a second to
 * build, and captured graphs refer to its kernels. */
struct dnn_state {
    std::mutex lock; /* held from dnn_plan_for to dnn_run */
    dnn_library l;
    cudnnHandle_t handle;
    dnn_plan *plans;
};

/* Opened at the first call; NULL: no cuDNN. */
dnn_state *dnn_of(fv_stream *s);

dnn_plan *dnn_find_plan(dnn_state *f, const void *key, size_t size, const void *origin, bool *made);
void dnn_finish(dnn_state *f, dnn_plan *p);

/* The plan of the graph that `describe` makes of a key, which is compared as bytes: clear it before
 * it is filled.  NULL: cuDNN has no engine for it, which is asked once, or out of memory. */
template <class K>
dnn_plan *dnn_plan_for(dnn_state *f, const K *key, void (*describe)(dnn_graph *, const K *))
{
    static_assert(sizeof *key <= sizeof dnn_plan::key, "the key does not fit a dnn_plan");
    bool made = false;
    dnn_plan *p = dnn_find_plan(f, key, sizeof *key, (const void *)describe, &made);
    if (made) {
        describe(&p->graph, key);
        dnn_finish(f, p);
    }
    return p && p->can ? p : NULL;
}

/* Binds uids to addresses and runs.  A plan that fails is not used again. */
bool dnn_run(fv_stream *s, dnn_state *f, dnn_plan *p, const char *name, int n, const int64_t *uid,
             void *const *data, void *work);

#endif
#endif
