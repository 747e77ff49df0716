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
};

/* Finds an engine and builds the plan.  False: none supports the graph, which is destroyed. */
bool dnn_finish(dnn_plan *p, cudnnHandle_t handle);
void dnn_drop(dnn_plan *p);
bool dnn_run(const dnn_plan *p, cudnnHandle_t handle, int n, const int64_t *uid, void *const *data,
             void *work);

bool dnn_load(dnn_library *l);

#endif
#endif
