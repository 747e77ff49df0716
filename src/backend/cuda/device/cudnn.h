/* cudnn.h - cuDNN's graphs of operations: tensors and nodes in, a plan that runs out.
 *
 * cuDNN fuses a graph when it recognises its pattern.  A graph is described by descriptors that are
 * made, given attributes and finalised; here each step is one call, the first refusal sticks to the
 * graph, and whoever asked then uses a kernel of ours.  The library is opened when it is first
 * wanted: where it is missing, everything else works. */
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

/* Four axes of a tensor, and elements from one to the next along each. */
struct dnn_shape {
    int64_t dim[4], step[4];
};

/* Rows of the last axis one behind the other. */
static inline dnn_shape dnn_dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

#define DNN_PARTS 160 /* descriptors of a graph, at most */

struct dnn_graph {
    const dnn_library *l;
    bool bad;
    dnn_desc part[DNN_PARTS]; /* all that was made */
    int parts;
    dnn_desc op[64];
    int ops;
    int64_t inner; /* tensors that never reach memory, so far */
};

/* A tensor that is given when the plan runs, by the number `uid` (from 1 on); value: one number in
 * host memory. */
dnn_desc dnn_tensor(dnn_graph *g, int64_t uid, cudnnDataType_t type, dnn_shape s,
                    bool value = false);
/* A tensor between two nodes. */
dnn_desc dnn_between(dnn_graph *g, cudnnDataType_t type, dnn_shape s);

/* y = mode(x, b); BINARY_SELECT: t ? x : b; GEN_INDEX: the place along `axis`. */
void dnn_pointwise(dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, dnn_desc y,
                   dnn_desc x, dnn_desc b = NULL, dnn_desc t = NULL, int64_t axis = -1);
void dnn_reduce(dnn_graph *g, cudnnReduceTensorOp_t op, dnn_desc y, dnn_desc x);
void dnn_matmul(dnn_graph *g, dnn_desc c, dnn_desc a, dnn_desc b);
void dnn_reshape(dnn_graph *g, dnn_desc y, dnn_desc x);

/* A graph with the engine that runs it; it owns all of the graph's descriptors. */
struct dnn_plan {
    dnn_graph graph;
    dnn_desc plan;
    int64_t work; /* bytes */
};

/* Looks for an engine.  False: there is none, and the graph is dropped. */
bool dnn_finish(dnn_plan *p, cudnnHandle_t handle);
void dnn_drop(dnn_plan *p);
bool dnn_run(const dnn_plan *p, cudnnHandle_t handle, int n, const int64_t *uid, void *const *data,
             void *work);

bool dnn_load(dnn_library *l);

#endif
#endif
