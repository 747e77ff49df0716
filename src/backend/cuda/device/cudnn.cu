/* cudnn.cu - opens cuDNN, builds operation graphs and runs their plans.
 *
 * cuDNN's graph API is C with attributes set one by one; here every call after a failure does
 * nothing (g->bad is sticky), so that graphs can be described without checks and are judged once,
 * at the end. The library is loaded at run time: a machine without it has an implementation less.
 */
#include "cudnn.h"

#if HAVE_CUDNN
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <new>

#define MIN_VERSION 91000 /* from 9.10 on -inf may mask a score of attention */
#define FIRST_INNER 1000  /* first uid of virtual tensors */
#define ENGINES 16        /* engine configurations to try */

/* ---- the library ---- */

template <class F> static bool find(F *f, void *from, const char *name)
{
    return (*f = (F)dlsym(from, name)) != NULL;
}

static bool load(dnn_library *l)
{
    char name[32];
    snprintf(name, sizeof name, "libcudnn.so.%d", CUDNN_MAJOR);
    void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return so && find(&l->version, so, "cudnnGetVersion") && find(&l->open, so, "cudnnCreate") &&
           find(&l->close, so, "cudnnDestroy") && find(&l->set_stream, so, "cudnnSetStream") &&
           find(&l->create, so, "cudnnBackendCreateDescriptor") &&
           find(&l->destroy, so, "cudnnBackendDestroyDescriptor") &&
           find(&l->finalize, so, "cudnnBackendFinalize") &&
           find(&l->set, so, "cudnnBackendSetAttribute") &&
           find(&l->get, so, "cudnnBackendGetAttribute") &&
           find(&l->execute, so, "cudnnBackendExecute");
}

/* ---- descriptors ---- */

/* Creates a descriptor that the graph owns; NULL once the graph is bad. */
static dnn_desc make(dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    dnn_desc d = NULL;
    if (!g->bad) g->bad = g->parts == DNN_PARTS || g->l->create(type, &d) != CUDNN_STATUS_SUCCESS;
    if (!g->bad) g->part[g->parts++] = d;
    return g->bad ? NULL : d;
}

static void set(dnn_graph *g, dnn_desc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (!g->bad) g->bad = g->l->set(d, name, type, n, values) != CUDNN_STATUS_SUCCESS;
}

/* Sets a descriptor as an attribute of another, if there is one. */
static void join(dnn_graph *g, dnn_desc d, cudnnBackendAttributeName_t name, dnn_desc other)
{
    if (other) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

static void done(dnn_graph *g, dnn_desc d)
{
    if (!g->bad) g->bad = g->l->finalize(d) != CUDNN_STATUS_SUCCESS;
}

/* inner: virtual, never written to memory; value: passed by value from the host. */
static dnn_desc tensor(dnn_graph *g, int64_t uid, cudnnDataType_t type, const dnn_shape &s,
                       bool inner, bool value)
{
    dnn_desc d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = 16;
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s.dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s.step);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value);
    done(g, d);
    return d;
}

dnn_desc dnn_tensor(dnn_graph *g, int64_t uid, cudnnDataType_t type, dnn_shape s, bool value)
{
    return tensor(g, uid, type, s, false, value);
}

dnn_desc dnn_between(dnn_graph *g, cudnnDataType_t type, dnn_shape s)
{
    return tensor(g, FIRST_INNER + g->inner++, type, s, true, false);
}

/* ---- nodes ---- */

/* An operation descriptor, also listed as a node of the graph. */
static dnn_desc node(dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    dnn_desc d = make(g, type);
    if (!g->bad) g->bad = g->ops == (int)(sizeof g->op / sizeof *g->op);
    if (!g->bad) g->op[g->ops++] = d;
    return d;
}

void dnn_pointwise(dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, dnn_desc y,
                   dnn_desc x, dnn_desc b, dnn_desc t, int64_t axis)
{
    dnn_desc mode_desc = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, mode_desc, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, mode_desc, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
    if (axis >= 0) set(g, mode_desc, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    done(g, mode_desc);
    dnn_desc op = node(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    join(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode_desc);
    join(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    join(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    join(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    join(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    done(g, op);
}

void dnn_reduce(dnn_graph *g, cudnnReduceTensorOp_t mode, dnn_desc y, dnn_desc x)
{
    dnn_desc mode_desc = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    set(g, mode_desc, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(g, mode_desc, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
    done(g, mode_desc);
    dnn_desc op = node(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    join(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode_desc);
    join(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    join(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    done(g, op);
}

void dnn_matmul(dnn_graph *g, dnn_desc c, dnn_desc a, dnn_desc b)
{
    dnn_desc mode_desc = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    set(g, mode_desc, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
    done(g, mode_desc);
    dnn_desc op = node(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    join(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    join(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    join(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    join(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, mode_desc);
    done(g, op);
}

void dnn_reshape(dnn_graph *g, dnn_desc y, dnn_desc x)
{
    dnn_desc op = node(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    join(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    join(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    done(g, op);
}

/* ---- plans ---- */

/* Engine configurations for the graph, in the heuristic's order. */
static int64_t engines(dnn_graph *g, dnn_desc whole, dnn_desc *config)
{
    dnn_desc ask = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    join(g, ask, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, ask, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    done(g, ask);
    for (int i = 0; i < ENGINES; i++) config[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->bad) return 0;
    cudnnStatus_t rc = g->l->get(ask, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 ENGINES, &n, (void *)config);
    return rc == CUDNN_STATUS_SUCCESS ? n < ENGINES ? n : ENGINES : 0;
}

/* Finalising may fail although the heuristic proposed the engine: try the next, the graph is fine.
 */
static dnn_desc plan_of(dnn_graph *g, cudnnHandle_t handle, dnn_desc config)
{
    dnn_desc plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (g->bad) return NULL;
    if (g->l->set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle))
        return NULL;
    if (g->l->set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                  &config))
        return NULL;
    return g->l->finalize(plan) ? NULL : plan;
}

static void drop(dnn_plan *p)
{
    for (int i = p->graph.parts - 1; i >= 0; i--) p->graph.l->destroy(p->graph.part[i]);
    p->graph.parts = 0;
    p->plan = NULL;
}

/* Finds an engine and builds the plan; where none supports the graph it is destroyed. */
void dnn_finish(dnn_state *f, dnn_plan *p)
{
    dnn_graph *g = &p->graph;
    dnn_desc whole = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), config[ENGINES];
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &f->handle);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->ops, g->op);
    done(g, whole);
    int64_t n = engines(g, whole, config), count;
    for (int64_t i = 0; i < n && !p->plan; i++) p->plan = plan_of(g, f->handle, config[i]);
    if (p->plan && g->l->get(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                             &count, &p->work))
        p->plan = NULL;
    p->can = p->plan != NULL;
    if (!p->can) drop(p);
}

dnn_plan *dnn_find_plan(dnn_state *f, const void *key, size_t size, const void *origin, bool *made)
{
    for (dnn_plan *p = f->plans; p; p = p->next)
        if (p->origin == origin && p->key_size == size && !memcmp(p->key, key, size)) return p;
    dnn_plan *p = new (std::nothrow) dnn_plan{};
    if (!p) return NULL;
    memcpy(p->key, key, size);
    p->key_size = size;
    p->origin = origin;
    p->graph.l = &f->l;
    p->next = f->plans;
    f->plans = p;
    *made = true;
    return p;
}

/* The variant pack is made for each call: a plan may run in several threads. */
static bool execute(const dnn_plan *p, cudnnHandle_t handle, int n, const int64_t *uid,
                    void *const *data, void *work)
{
    const dnn_library *l = p->graph.l;
    dnn_desc pack = NULL;
    if (l->create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack)) return false;
    bool ok = !l->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid) &&
              !l->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data) &&
              !l->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work) &&
              !l->finalize(pack) && !l->execute(handle, p->plan, pack);
    l->destroy(pack);
    return ok;
}

bool dnn_run(fv_stream *s, dnn_state *f, dnn_plan *p, const char *name, int n, const int64_t *uid,
             void *const *data, void *work)
{
    cudaSetDevice(device_of(s)->number);
    p->can = !f->l.set_stream(f->handle, stream_of(s)) && execute(p, f->handle, n, uid, data, work);
    fv_cuda_check_launch(s, name);
    return p->can;
}

/* ---- opening ---- */

int fv_cuda_cudnn_version(void)
{
    dnn_library l;
    int version = load(&l) ? (int)l.version() : 0;
    return version >= MIN_VERSION ? version : 0;
}

dnn_state *dnn_of(fv_stream *s)
{
    device *d = device_of(s);
    std::lock_guard<std::mutex> hold(d->open_mutex);
    if (d->cudnn_tried) return d->cudnn;
    d->cudnn_tried = true;
    dnn_state *f = new (std::nothrow) dnn_state{};
    if (!f) return NULL;
    cudaSetDevice(d->number);
    if (load(&f->l) && f->l.version() >= MIN_VERSION && !f->l.open(&f->handle))
        d->cudnn = f;
    else
        fv_cuda_cudnn_free(f);
    return d->cudnn;
}

void fv_cuda_cudnn_free(dnn_state *f)
{
    if (!f) return;
    while (f->plans) {
        dnn_plan *p = f->plans;
        f->plans = p->next;
        drop(p);
        delete p;
    }
    if (f->handle) f->l.close(f->handle);
    delete f;
}

#else /* built without cuDNN's headers */
int fv_cuda_cudnn_version(void) { return 0; }
void fv_cuda_cudnn_free(dnn_state *) {}
#endif
