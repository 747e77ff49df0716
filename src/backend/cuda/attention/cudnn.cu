/* cudnn.cu - attention by cuDNN's graph API, forward and backward.
 *
 * Forward; lse is one number here, the natural log-sum-exp:
 *
 *     s = scale q k',  -inf above the diagonal if causal;  m = max s;  e = exp(s - m);  z = sum e;
 *     lse = m + log z;  y = (e / z) v
 *
 * Backward:
 *
 *     c = sum dy y;  p = exp(s - lse);  dv = p' dy;  ds = scale p (dy v' - c);
 *     dk = ds' q;  dq = ds k
 *
 * cuDNN matches graphs against patterns of its fused kernels, so nodes are as its documentation
 * shows them, down to a multiplication by 1. */
#include <cmath>
#include <cstring>

#include "dispatch.h"
#include "backend/cuda/device/cudnn.h"

#if HAVE_CUDNN

#define LOG2E 1.4426950408889634f
#define LOG2E_REST 1.9259629e-8f /* log2 e - LOG2E */
#define LN2 0.6931471805599453f

namespace
{
/* Unique ids of the graph's tensors in memory. */
enum { Q = 1, K, V, Y, LSE, DY, DQ, DK, DV, ROWS_OF_Y, SUM_OF_DQ, SCALE, HIDDEN, ONE, LAST };

/* Everything a plan depends on.  Compared as bytes, so it is cleared first.
 * Strides are part of it, since cuDNN compiles them into a plan; addresses are not. */
struct plan_key {
    int64_t B, Tq, Tk, H, G, W;
    int64_t q_row, k_row, v_row, y_row, q_batch, k_batch, v_batch;
    int dtype, causal, backward, deterministic; /* deterministic: no atomics */
};

/* ---- graphs ---- */

struct shapes {
    dnn_shape q, k, v, y, scores, row;
    cudnnDataType_t t;
};

dnn_shape transposed(dnn_shape s)
{
    return {{s.dim[0], s.dim[1], s.dim[3], s.dim[2]}, {s.step[0], s.step[1], s.step[3], s.step[2]}};
}

/* cuDNN wants (B,H,T,W) with strides; ours is (B,T,H,W) in memory, which is the same by strides. */
shapes shapes_of(const plan_key *k)
{
    shapes s;
    s.q = {{k->B, k->H, k->Tq, k->W}, {k->q_batch, k->W, k->q_row, 1}};
    s.k = {{k->B, k->G, k->Tk, k->W}, {k->k_batch, k->W, k->k_row, 1}};
    s.v = {{k->B, k->G, k->Tk, k->W}, {k->v_batch, k->W, k->v_row, 1}};
    s.y = {{k->B, k->H, k->Tq, k->W}, {k->Tq * k->y_row, k->W, k->y_row, 1}};
    s.scores = dnn_dense(k->B, k->H, k->Tq, k->Tk);
    s.row = dnn_dense(k->B, k->H, k->Tq, 1);
    s.t = k->dtype == FV_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    return s;
}

dnn_desc scalar(dnn_graph *g, int64_t uid)
{
    return dnn_tensor(g, uid, CUDNN_DATA_FLOAT, dnn_dense(1, 1, 1, 1), true);
}

/* A new tensor y = mode(x, b). */
dnn_desc apply(dnn_graph *g, cudnnPointwiseMode_t mode, dnn_shape s, dnn_desc x, dnn_desc b = NULL)
{
    dnn_desc y = dnn_between(g, CUDNN_DATA_FLOAT, s);
    dnn_pointwise(g, mode, CUDNN_DATA_FLOAT, y, x, b);
    return y;
}

dnn_desc scores(dnn_graph *g, const shapes &s, dnn_desc q, dnn_desc k, dnn_desc scale)
{
    dnn_desc product = dnn_between(g, CUDNN_DATA_FLOAT, s.scores);
    dnn_matmul(g, product, q, k);
    return apply(g, CUDNN_POINTWISE_MUL, s.scores, product, scale);
}

/* row >= column ? x : -inf */
dnn_desc causal_mask(dnn_graph *g, const shapes &s, dnn_desc x)
{
    dnn_desc row = dnn_between(g, CUDNN_DATA_INT32, s.scores),
             column = dnn_between(g, CUDNN_DATA_INT32, s.scores);
    dnn_desc seen = dnn_between(g, CUDNN_DATA_BOOLEAN, s.scores),
             y = dnn_between(g, CUDNN_DATA_FLOAT, s.scores);
    dnn_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, row, x, NULL, NULL, 2);
    dnn_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, column, x, NULL, NULL, 3);
    dnn_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, seen, row, column);
    dnn_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, y, x, scalar(g, HIDDEN),
                  seen);
    return y;
}

/* Only q, k, v, y and lse exist in memory; every tensor between them is virtual and lives in the
 * fused kernel's registers. */
void describe_forward(dnn_graph *g, const plan_key *key)
{
    shapes s = shapes_of(key);
    dnn_desc x = scores(g, s, dnn_tensor(g, Q, s.t, s.q), dnn_tensor(g, K, s.t, transposed(s.k)),
                        scalar(g, SCALE));
    if (key->causal) x = causal_mask(g, s, x);
    dnn_desc most = dnn_between(g, CUDNN_DATA_FLOAT, s.row),
             sum = dnn_between(g, CUDNN_DATA_FLOAT, s.row);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, most, x);
    dnn_desc e = apply(g, CUDNN_POINTWISE_EXP, s.scores,
                       apply(g, CUDNN_POINTWISE_SUB, s.scores, x, most));
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, e);
    dnn_desc log_sum = apply(g, CUDNN_POINTWISE_LOG, s.row, sum);
    dnn_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT,
                  dnn_tensor(g, LSE, CUDNN_DATA_FLOAT, s.row), most, log_sum);
    dnn_desc weights = dnn_between(g, s.t, s.scores);
    dnn_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, weights, e, sum);
    dnn_matmul(g, dnn_tensor(g, Y, s.t, s.y), weights, dnn_tensor(g, V, s.t, s.v));
}

/* Gradients of k and v are summed over the query heads that share them. */
void matmul_columns(dnn_graph *g, const plan_key *k, const shapes &s, int64_t uid, dnn_shape of,
                    dnn_desc scores_, dnn_desc rows)
{
    dnn_desc columns = dnn_between(g, s.t, transposed(s.scores));
    dnn_reshape(g, columns, scores_);
    dnn_desc to = dnn_tensor(g, uid, s.t, of);
    if (k->G == k->H) {
        dnn_matmul(g, to, columns, rows);
        return;
    }
    dnn_desc each = dnn_between(g, s.t, dnn_dense(k->B, k->H, k->Tk, k->W));
    dnn_matmul(g, each, columns, rows);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, to, each);
}

void describe_backward(dnn_graph *g, const plan_key *key)
{
    shapes s = shapes_of(key);
    dnn_desc q = dnn_tensor(g, Q, s.t, s.q), k = dnn_tensor(g, K, s.t, transposed(s.k)),
             v = dnn_tensor(g, V, s.t, transposed(s.v));
    dnn_desc y = dnn_tensor(g, Y, s.t, s.y), dy = dnn_tensor(g, DY, s.t, s.y),
             scale = scalar(g, SCALE);
    dnn_desc both = apply(g, CUDNN_POINTWISE_MUL, s.y, dy, y),
             sum = dnn_between(g, CUDNN_DATA_FLOAT, s.row);
    dnn_desc of_row = dnn_tensor(g, ROWS_OF_Y, CUDNN_DATA_FLOAT, s.row);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, both);
    dnn_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, of_row, sum, scalar(g, ONE));

    dnn_desc x = scores(g, s, q, k, scale);
    x = apply(g, CUDNN_POINTWISE_SUB, s.scores, x, dnn_tensor(g, LSE, CUDNN_DATA_FLOAT, s.row));
    if (key->causal) x = causal_mask(g, s, x);
    dnn_desc weights = apply(g, CUDNN_POINTWISE_EXP, s.scores, x);
    matmul_columns(g, key, s, DV, s.v, weights, dy);

    dnn_desc d = dnn_between(g, CUDNN_DATA_FLOAT, s.scores);
    dnn_matmul(g, d, dy, v);
    d = apply(g, CUDNN_POINTWISE_SUB, s.scores, d, of_row);
    d = apply(g, CUDNN_POINTWISE_MUL, s.scores, d, weights);
    d = apply(g, CUDNN_POINTWISE_MUL, s.scores, d, scale);
    matmul_columns(g, key, s, DK, s.k, d, q);

    dnn_desc rows_of_k = dnn_between(g, s.t, s.k), dq = dnn_tensor(g, DQ, s.t, s.q);
    dnn_reshape(g, rows_of_k, k);
    if (key->deterministic) {
        dnn_matmul(g, dq, d, rows_of_k);
        return;
    }
    /* faster, and without scratch for all of ds: dq is accumulated in f32, by atomics */
    dnn_desc sums = dnn_tensor(g, SUM_OF_DQ, CUDNN_DATA_FLOAT,
                               dnn_dense(key->B, key->H, key->Tq, key->W));
    dnn_matmul(g, sums, d, rows_of_k);
    dnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, dq, sums);
}

/* ---- running ---- */

plan_key key_of(const fv_attn_args *a, int64_t y_row, fv_dtype t, bool backward)
{
    plan_key k;
    memset(&k, 0, sizeof k);
    k.B = a->B, k.Tq = a->Tq, k.Tk = a->Tk, k.H = a->H, k.G = a->G, k.W = a->Wk;
    k.q_row = a->q_row, k.k_row = a->k_row, k.v_row = a->v_row, k.y_row = y_row;
    k.q_batch = a->q_batch, k.k_batch = a->k_batch, k.v_batch = a->v_batch;
    k.dtype = t, k.causal = a->causal, k.backward = backward;
    return k;
}

/* ---- the log-sum-exp ----
 *
 * One natural logarithm in cuDNN, maximum and sum in base 2 here.  One float has the sum only to
 * |score| 2^-24, so weights and gradients after cuDNN are as good as that. */

/* natural * log2 e is split into a rounded part, top, and its rounding error: 2^rest has what top
 * lost, so the change of base costs nothing beyond cuDNN's own rounding. */
struct lse_of_cudnn {
    float2 *lse;
    const float *natural;
    __device__ void operator()(int64_t i) const
    {
        float top = natural[i] * LOG2E,
              rest = fmaf(natural[i], LOG2E, -top) + natural[i] * LOG2E_REST;
        lse[i] = natural[i] == -INFINITY ? make_float2(0, 0) : make_float2(top, exp2f(rest));
    }
};

struct lse_for_cudnn {
    float *natural;
    const float2 *lse;
    __device__ void operator()(int64_t i) const
    {
        natural[i] = lse[i].y == 0 ? -INFINITY : fmaf(lse[i].x, LN2, logf(lse[i].y));
    }
};

/* Ids and addresses of a plan's tensors (a variant pack), and scalars passed by address.
 * Scalars are passed by host address at run time, so one plan serves every scale. */
struct variant_pack {
    int64_t uid[LAST];
    void *data[LAST];
    int n;
    float scale, hidden, one;
};

void pack_tensor(variant_pack *g, int64_t uid, const void *data)
{
    g->uid[g->n] = uid;
    g->data[g->n++] = (void *)data;
}

void pack_inputs(variant_pack *g, const fv_attn_args *a, const float *lse)
{
    g->n = 0;
    g->scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->Wk);
    g->hidden = -INFINITY;
    g->one = 1;
    pack_tensor(g, Q, a->q);
    pack_tensor(g, K, a->k);
    pack_tensor(g, V, a->v);
    pack_tensor(g, Y, a->y);
    pack_tensor(g, LSE, lse);
    pack_tensor(g, SCALE, &g->scale);
    if (a->causal) pack_tensor(g, HIDDEN, &g->hidden);
}

size_t padded(int64_t bytes) { return (size_t)(bytes + 255) / 256 * 256; }

} // namespace

bool fv_cuda_cudnn_fwd(fv_stream *s, const fv_attn_args *a, fv_dtype t)
{
    dnn_state *f = dnn_of(s);
    if (!f) return false;
    std::lock_guard<std::mutex> hold(f->lock);
    plan_key key = key_of(a, a->H * a->Wv, t, false);
    dnn_plan *p = dnn_plan_for(f, &key, describe_forward);
    if (!p) return false;
    int64_t rows = a->B * a->H * a->Tq;
    size_t of_lse = padded(rows * (int64_t)sizeof(float));
    char *scratch = alloc_scratch<char>(s, (int64_t)of_lse + p->work);
    if (!scratch) return true;
    variant_pack g;
    pack_inputs(&g, a, (float *)scratch);
    if (!dnn_run(s, f, p, "attention", g.n, g.uid, g.data, scratch + of_lse)) return false;
    each(s, "attention", rows, lse_of_cudnn{(float2 *)a->lse, (const float *)scratch});
    return true;
}

bool fv_cuda_cudnn_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, int64_t y_row,
                       fv_dtype t, bool deterministic)
{
    dnn_state *f = dnn_of(s);
    if (!f) return false;
    std::lock_guard<std::mutex> hold(f->lock);
    plan_key key = key_of(a, y_row, t, true);
    key.deterministic = deterministic;
    dnn_plan *p = dnn_plan_for(f, &key, describe_backward);
    if (!p) return false;
    int64_t rows = a->B * a->H * a->Tq;
    size_t of_rows = padded(rows * (int64_t)sizeof(float));
    size_t of_dq = deterministic ? 0 : padded(rows * a->Wk * (int64_t)sizeof(float));
    char *scratch = alloc_scratch<char>(s, (int64_t)(2 * of_rows + of_dq) + p->work);
    if (!scratch) return true;
    variant_pack in;
    float *lse = (float *)(scratch + of_rows + of_dq);
    each(s, "attention_bwd", rows, lse_for_cudnn{lse, (const float2 *)a->lse});
    pack_inputs(&in, a, lse);
    pack_tensor(&in, DY, g->dy);
    pack_tensor(&in, DQ, g->dq.data);
    pack_tensor(&in, DK, g->dk.data);
    pack_tensor(&in, DV, g->dv.data);
    pack_tensor(&in, ONE, &in.one);
    pack_tensor(&in, ROWS_OF_Y, scratch);
    if (!deterministic) pack_tensor(&in, SUM_OF_DQ, scratch + of_rows);
    return dnn_run(s, f, p, "attention_bwd", in.n, in.uid, in.data, scratch + 2 * of_rows + of_dq);
}

#else /* built without cuDNN's headers */
bool fv_cuda_cudnn_fwd(fv_stream *, const fv_attn_args *, fv_dtype) { return false; }
bool fv_cuda_cudnn_bwd(fv_stream *, const fv_attn_args *, const fv_attn_grads *, int64_t, fv_dtype,
                       bool)
{
    return false;
}
#endif
