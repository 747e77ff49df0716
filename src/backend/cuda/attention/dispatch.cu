/* dispatch.cu - which implementation an attention runs on: a table, searched from the top;
 * `fovea info` prints it.
 *
 * cuDNN builds a plan for each shape, which takes up to a second.  So it gets shapes that come
 * again and again: large, and multiples of 64.  The choice depends on shape and options alone,
 * never on timing, so that runs repeat.  cuDNN's fastest backward pass accumulates dq with
 * atomics and does not repeat bit by bit: it is used only if asked for.  FOVEA_CUDA_ATTENTION
 * names an implementation to be used wherever it can be, whatever the size; "tiled" does without
 * cuDNN. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dispatch.h"

namespace
{

#define CUDNN_LEN_MULTIPLE 64 /* lengths for cuDNN are multiples of this */
#define CUDNN_MIN_ROWS 4096   /* queries of all sequences together, for cuDNN */
#define CUDNN_MAX_WIDTH 128
#define SHORT_MAX_LEN 128 /* most queries and keys of fwd_short_sm90.cu */
#define MAX_SEQUENCES 65535
#define BWD_SMEM_MAX_LEN 512         /* most queries and keys of bwd_smem_sm90.cu */
#define CUDNN_MAX_SCORES (2ll << 30) /* of cuDNN's deterministic backward, per call: 4 GiB */

/* A row of the table: `supports` is a property of the kernels and must hold; `preferred` is a
 * measured opinion and may be overruled.  Rows are tried in order, and the last supports
 * everything, so the search cannot fail. */
struct attn_impl {
    const char *name, *when;
    bool (*supports)(const fv_attn_args *a, fv_dtype t);
    /* faster here than those below; back: backward */
    bool (*preferred)(const device *d, const fv_attn_args *a, bool back);
    /* false: not for these tensors after all, try the next */
    bool (*forward)(fv_stream *s, const fv_attn_args *a, fv_dtype t);
    bool (*backward)(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t);
};

/* TMA wants base addresses and strides that are multiples of 16 bytes: 8 elements of 16 bits. */
bool tma_aligned(const void *p, int64_t row, int64_t batch)
{
    return aligned(p) && row % 8 == 0 && batch % 8 == 0;
}

/* ---- Hopper ---- */

/* Heads up to 32 wide would leave half of a panel empty. */
bool hopper_supports(const fv_attn_args *a, fv_dtype t)
{
    int64_t most = a->Wk > a->Wv ? a->Wk : a->Wv;
    return (t == FV_BF16 || t == FV_F16) && a->Wk % 8 == 0 && a->Wv % 8 == 0 && most > 32 &&
           most <= 128 && a->Tk > 0 && tma_aligned(a->q, a->q_row, a->q_batch) &&
           tma_aligned(a->k, a->k_row, a->k_batch) && tma_aligned(a->v, a->v_row, a->v_batch) &&
           aligned(a->y);
}

/* Short sequences leave large tiles half empty, the more so where each pair costs more than
 * products. */
bool hopper_preferred(const device *, const fv_attn_args *a, bool)
{
    bool plain = !a->mask && !a->bias && !a->rel && a->dropout <= 0;
    int64_t least = plain ? 256 : 512;
    return a->Tq >= least && a->Tk >= least;
}

/* A head is one tile. */
bool short_supports(const fv_attn_args *a, fv_dtype t)
{
    bool plain = !a->mask && !a->bias && !a->rel && a->dropout <= 0 && !a->causal && a->window <= 0;
    return plain && hopper_supports(a, t) && a->Wk <= 64 && a->Wv <= 64 && a->Tq <= SHORT_MAX_LEN &&
           a->Tk <= SHORT_MAX_LEN;
}

/* Enough heads for most SMs, and at least a quarter of a tile in each direction. */
bool short_preferred(const device *d, const fv_attn_args *a, bool)
{
    return d->hopper && a->B * a->H * 2 >= d->sm_count && a->Tq >= SHORT_MAX_LEN / 4 &&
           a->Tk >= SHORT_MAX_LEN / 4;
}

/* A head is one block of bwd_short.cu. */
bool one_block_supports(const fv_attn_args *a, fv_dtype t)
{
    return t == FV_BF16 && !a->mask && !a->bias && !a->rel && a->G == a->H && a->Wk <= 64 &&
           a->Wv <= 64 && a->Tq <= SHORT_MAX_LEN && a->Tk <= SHORT_MAX_LEN;
}

/* Enough heads for most SMs: a block of the portable kernel has a part of one. */
bool one_block_preferred(const device *d, const fv_attn_args *a, bool back)
{
    return back && a->B * a->H * 2 >= d->sm_count;
}

/* dq in shared memory: where its blocks leave few SMs idle. */
bool bwd_smem_supports(const device *d, const fv_attn_args *a)
{
    bool fits = a->Wk <= 64 && a->Wv <= 64 && a->Tq <= BWD_SMEM_MAX_LEN &&
                a->Tk <= BWD_SMEM_MAX_LEN;
    return fits && (d->attn_requested >= 0 || fv_cuda_attention_bwd_smem_fills(d, a));
}

/* ---- cuDNN ---- */

/* Causal: cuDNN's diagonal begins at the first key, ours ends at the last; with Tq = Tk they are
 * the same. */
bool cudnn_supports(const fv_attn_args *a, fv_dtype t)
{
    bool bare = !a->lens && !a->key_mask && !a->mask && !a->bias && !a->rel && a->window <= 0 &&
                a->dropout <= 0;
    return bare && (t == FV_BF16 || t == FV_F16) && a->Wk == a->Wv && a->Wk % 8 == 0 &&
           a->Wk <= CUDNN_MAX_WIDTH && a->Tk > 0 && (!a->causal || a->Tq == a->Tk) &&
           tma_aligned(a->q, a->q_row, a->q_batch) && tma_aligned(a->k, a->k_row, a->k_batch) &&
           tma_aligned(a->v, a->v_row, a->v_batch) && aligned(a->y);
}

/* Where ours is faster than cuDNN on Hopper (docs/benchmarks.md).  Backward it is compared with
 * the deterministic one, which stores all scores. */
bool hopper_beats_cudnn(const device *d, const fv_attn_args *a, bool back)
{
    /* backward: fewest keys for heads up to 128 and up to 64 wide, full and causal */
    const int64_t fewest_keys[2][2] = {{2048, 2048}, {512, 1024}};
    bool narrow = a->Wk <= 64;
    if (!hopper_supports(a, FV_BF16) || !hopper_preferred(d, a, back)) return false;
    if (back)
        return a->Tk >= fewest_keys[narrow][a->causal] ||
               (bwd_smem_supports(d, a) &&
                a->Tk >= (a->causal ? BWD_SMEM_MAX_LEN : BWD_SMEM_MAX_LEN / 2));
    return a->Tk >= (narrow ? 256 : 512);
}

bool cudnn_preferred(const device *d, const fv_attn_args *a, bool back)
{
    bool round = a->Tq % CUDNN_LEN_MULTIPLE == 0 && a->Tk % CUDNN_LEN_MULTIPLE == 0 &&
                 a->B * a->Tq >= CUDNN_MIN_ROWS;
    bool ours = !back && short_supports(a, FV_BF16) && short_preferred(d, a, back);
    return round && !ours && !(d->hopper && hopper_beats_cudnn(d, a, back));
}

/* Slice i of `parts` equal ones: of the sequences, or of the heads where there is one sequence.
 * Slices by whole sequences or whole KV heads: their gradients do not overlap, so no sums are
 * split. */
void slice(fv_attn_args *a, fv_attn_grads *g, int64_t parts, int64_t i)
{
    bool by_heads = a->B == 1;
    int64_t heads = by_heads ? a->H / parts : 0, groups = by_heads ? a->G / parts : 0,
            b = by_heads ? 0 : a->B / parts;
    int64_t at_q = i * (b * a->q_batch + heads * a->Wk),
            at_k = i * (b * a->k_batch + groups * a->Wk);
    int64_t at_v = i * (b * a->v_batch + groups * a->Wv),
            at_y = i * (b * a->Tq * a->H * a->Wv + heads * a->Wv);
    auto move = [](auto &p, int64_t n) { p = (uint16_t *)p + n; };
    move(a->q, at_q), move(a->k, at_k), move(a->v, at_v), move(a->y, at_y);
    move(g->dy, at_y), move(g->dq.data, at_q), move(g->dk.data, at_k), move(g->dv.data, at_v);
    a->lse = (float *)a->lse + 2 * i * (b * a->H + heads) * a->Tq;
    if (by_heads)
        a->H = heads, a->G = groups;
    else
        a->B = b;
}

/* cuDNN writes all three gradients, in dtype t; it adds to none. */
bool cudnn_gradient(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t,
                    bool deterministic, int64_t parts)
{
    const fv_sink to[] = {g->dq, g->dk, g->dv};
    for (int i = 0; i < 3; i++)
        if (!to[i].data || to[i].add || to[i].dtype != t || !aligned(to[i].data)) return false;
    bool ok = aligned(g->dy);
    for (int64_t i = 0; ok && i < parts; i++) {
        fv_attn_args part = *a;
        fv_attn_grads of = *g;
        if (parts > 1) slice(&part, &of, parts, i);
        ok = fv_cuda_cudnn_bwd(s, &part, &of, a->H * a->Wv, t, deterministic);
    }
    return ok;
}

/* In as few equal slices as keep the scores within CUDNN_MAX_SCORES.
 * The deterministic engine keeps one number of 2 bytes for every pair in global memory: hence
 * the limit. */
bool cudnn_backward(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t)
{
    int64_t scores = a->B * a->H * a->Tq * a->Tk, most = a->B > 1 ? a->B : a->G, parts = 1;
    while (parts < most && (most % parts || scores / parts > CUDNN_MAX_SCORES)) parts++;
    return scores / parts <= CUDNN_MAX_SCORES && cudnn_gradient(s, a, g, t, true, parts);
}

bool cudnn_atomic_backward(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t)
{
    return cudnn_gradient(s, a, g, t, false, 1);
}

bool never_preferred(const device *, const fv_attn_args *, bool) { return false; }

/* ---- launching ours ---- */

bool supports_all(const fv_attn_args *, fv_dtype) { return true; }
bool always_preferred(const device *, const fv_attn_args *, bool) { return true; }

bool decode_supports(const fv_attn_args *a, fv_dtype) { return a->Tq == 1; }

/* f(T()) with the element type of t; by_16_bit: for kernels that have no f32. */
template <class F> bool by_16_bit(fv_dtype t, F f) { return t == FV_BF16 ? f(bf16()) : f(f16()); }
template <class F> bool by_dtype(fv_dtype t, F f)
{
    return t == FV_F32 ? f(float()) : by_16_bit(t, f);
}

/* Plain f32 has the tiled kernel's bits, be it from that kernel itself: heads wider than 128. */
bool decode_forward(fv_stream *s, const fv_attn_args *a, fv_dtype t)
{
    if (t == FV_F32 && !a->mask && !a->bias && !a->rel) return fv_cuda_attention_decode_f32(s, a);
    return by_dtype(t, [&](auto e) { return fv_cuda_attention_decode<decltype(e)>(s, a); });
}

bool no_gradient(fv_stream *, const fv_attn_args *, const fv_attn_grads *, fv_dtype)
{
    return false;
}

bool hopper_forward(fv_stream *s, const fv_attn_args *a, fv_dtype t)
{
    return device_of(s)->hopper &&
           by_16_bit(t, [&](auto e) { return fv_cuda_attention_hopper<decltype(e)>(s, a); });
}

bool no_forward(fv_stream *, const fv_attn_args *, fv_dtype) { return false; }

bool one_block_backward(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype)
{
    return fv_cuda_attention_short_bwd<bf16>(s, a, g);
}

bool short_forward(fv_stream *s, const fv_attn_args *a, fv_dtype t)
{
    return device_of(s)->hopper &&
           by_16_bit(t, [&](auto e) { return fv_cuda_attention_short<decltype(e)>(s, a); });
}

/* The sequence is the z index of the portable kernels' grids. */
bool refuse_batch(fv_stream *s, const fv_attn_args *a)
{
    if (a->B <= MAX_SEQUENCES) return false;
    device_of(s)->host.fail(s, FV_EMISSING,
                            "attention: %lld sequences at once, cuda takes up to %d",
                            (long long)a->B, MAX_SEQUENCES);
    return true;
}

bool tiled_forward(fv_stream *s, const fv_attn_args *a, fv_dtype t)
{
    return refuse_batch(s, a) ||
           by_dtype(t, [&](auto e) { return fv_cuda_attention_tiled<decltype(e)>(s, a), true; });
}

bool tiled_backward_with(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t,
                         bool hopper)
{
    return refuse_batch(s, a) || by_dtype(t, [&](auto e) {
               return fv_cuda_attention_tiled_bwd<decltype(e)>(s, a, g, hopper), true;
           });
}

bool tiled_backward(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t)
{
    return tiled_backward_with(s, a, g, t, false);
}

/* dbias and drel come from a second pass of their own, which recomputes ds. */
bool hopper_backward(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, fv_dtype t)
{
    if (!device_of(s)->hopper) return false;
    if (bwd_smem_supports(device_of(s), a) &&
        by_16_bit(t, [&](auto e) { return fv_cuda_attention_bwd_smem<decltype(e)>(s, a, g); }))
        return true;
    bool done = by_16_bit(t, [&](auto e) {
        return fv_cuda_attention_hopper_bwd<decltype(e)>(s, a, g);
    });
    if (!done || (!g->dbias.data && !g->drel.data)) return done;
    fv_attn_grads added = *g;
    added.dq = added.dk = added.dv = fv_sink{};
    return tiled_backward_with(s, a, &added, t, true);
}

/* ---- the table ---- */

const attn_impl impls[] = {
    {"cudnn",
     "bf16 or f16, heads up to 128 wide, full or causal, lengths multiples of 64, 4096 rows; on "
     "sm_90 where hopper is not faster",
     cudnn_supports, cudnn_preferred, fv_cuda_cudnn_fwd, cudnn_backward},
    {"one-block",
     "bf16, heads up to 64 wide, up to 128 rows and keys, no mask or bias by pairs, gradients",
     one_block_supports, one_block_preferred, no_forward, one_block_backward},
    {"cudnn-atomic",
     "only if asked for: as cudnn, gradients by atomics, so that runs differ in the last bits",
     cudnn_supports, never_preferred, fv_cuda_cudnn_fwd, cudnn_atomic_backward},
    {"decode", "one query per sequence, forward: decoding", decode_supports, always_preferred,
     decode_forward, no_gradient},
    {"short",
     "bf16 or f16 on sm_90, heads 40 to 64 wide in multiples of 8, 32 to 128 rows and keys, "
     "not causal, forward",
     short_supports, short_preferred, short_forward, no_gradient},
    {"hopper",
     "bf16 or f16 on sm_90, heads 40 to 128 wide in multiples of 8, 256 rows and keys; 512 "
     "with mask, bias, dropout",
     hopper_supports, hopper_preferred, hopper_forward, hopper_backward},
    {"tiled", "all else: few rows, wide heads, other widths, f32", supports_all, always_preferred,
     tiled_forward, tiled_backward},
};
#define N_IMPLS ((int)(sizeof impls / sizeof *impls))

/* Implementation i may run this attention: it supports it, and is preferred or was asked for.
 * attn_first_impl: an implementation that was asked for by name hides the rows above it. */
bool is_candidate(const device *d, int i, const fv_attn_args *a, fv_dtype t, bool back)
{
    return i >= d->attn_first_impl && impls[i].supports(a, t) &&
           (d->attn_requested == i || impls[i].preferred(d, a, back));
}

template <class T> void attention(fv_stream *s, const fv_attn_args *a)
{
    if (!a->B || !a->Tq || s->err.code) return;
    for (int i = 0; i < N_IMPLS; i++)
        if (is_candidate(device_of(s), i, a, kind<T>::dtype, false) &&
            impls[i].forward(s, a, kind<T>::dtype))
            return;
}

template <class T> void attention_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g)
{
    if (s->err.code) return;
    if (!a->B || !a->Tk) { /* without keys gradients are 0, and must be written */
        tiled_backward(s, a, g, kind<T>::dtype);
        return;
    }
    for (int i = 0; i < N_IMPLS; i++)
        if (is_candidate(device_of(s), i, a, kind<T>::dtype, true) &&
            impls[i].backward(s, a, g, kind<T>::dtype))
            return;
}

} // namespace

template <class T> void fv_cuda_attention_dispatch(fv_kernels *k)
{
    k->attention = attention<T>;
    k->attention_bwd = attention_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_attention_dispatch)

fv_status fv_cuda_attention_select(device *d, fv_err *e)
{
    const char *requested = getenv("FOVEA_CUDA_ATTENTION");
    d->attn_requested = -1;
    if (!requested || !*requested) return FV_OK;
    for (int i = 0; i < N_IMPLS; i++)
        if (!strcmp(requested, impls[i].name)) d->attn_requested = d->attn_first_impl = i;
    if (d->attn_requested < 0)
        return d->host.refuse(e, FV_EARG,
                              "FOVEA_CUDA_ATTENTION: expected cudnn, one-block, cudnn-atomic, "
                              "decode, short, hopper or "
                              "tiled, found \"%.40s\"",
                              requested);
    if (impls[d->attn_requested].supports == cudnn_supports && !fv_cuda_cudnn_version())
        return d->host.refuse(
            e, FV_EDEVICE,
            "FOVEA_CUDA_ATTENTION: cuDNN cannot be loaded, or the backend was built without it");
    return FV_OK;
}

int fv_cuda_attention_describe(char (*lines)[160], int most)
{
    int version = fv_cuda_cudnn_version();
    char name[32] = "cudnn (not found)";
    if (version)
        snprintf(name, sizeof name, "cudnn %d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
    for (int i = 0; i < N_IMPLS && i < most; i++)
        snprintf(lines[i], sizeof lines[i], "attention by %s: %s", i ? impls[i].name : name,
                 impls[i].when);
    return N_IMPLS;
}
