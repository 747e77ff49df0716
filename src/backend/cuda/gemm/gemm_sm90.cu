/* gemm_sm90.cu - C = A W' + bias, or p = A W' + bias and C = GELU(p), for many rows of bf16 on
 * Hopper; p is stored where the backward needs it.
 *
 * cuBLASLt has no epilogue for the exact GELU (its GELU is the tanh approximation), and a separate
 * pass costs a tenth of a BERT layer, in training more: it reads C and writes p and C again.
 * Without GELU, where K is short the epilogue weighs more, and cuBLASLt does not overlap it with
 * the main loop. */
#include "gemm_sm90.h"
#include "backend/cuda/rows/scalar.h"

namespace
{

/* Without GELU: measured to be faster than cuBLASLt up to here. */
#define MAX_K 1024
#define MAX_N 4096

/* PRE: p is stored, too. */
template <bool GELU, bool PRE> struct linear_epilogue {
    static constexpr bool IN_OUT = false;
    struct smem {
        gemm_smem gemm;
    };
    bf16 *c, *p;      /* p: of C's shape; with PRE alone */
    const bf16 *bias; /* or NULL */
    int m, n, ldc;

    __device__ void begin(smem *) {}
    __device__ void produce(const gemm_tiles &) const {}
    __device__ void epilogue(gemm_acc &s, int row, int column) const
    {
        row += first_row(), column += first_column();
        int64_t at = (int64_t)row * ldc + column;
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            float b[8];
            if (column + 32 * j >= n) break;
            load_smem(b, bias + column + 32 * j);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float v[8];
                bool inside = row + row_at(e) < m;
                int64_t to = at + (int64_t)row_at(e) * ldc + 32 * j;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (GELU && !PRE)
                        v[i] = gelu_scaled(
                            fmaf(acc_at(s, j, e, i), 1 / GELU_REACH, b[i] * (1 / GELU_REACH)));
                    else
                        v[i] = acc_at(s, j, e, i) + b[i];
                if (PRE && inside) store_all(p + to, v);
#pragma unroll
                for (int i = 0; PRE && i < 8; i++) v[i] = gelu_approx(v[i]);
                if (inside) store_all(c + to, v);
            }
        }
    }
};

/* Enough tiles, and not a long K without GELU, where cuBLASLt is faster. */
bool preferred(const fv_stream *s, const fv_gemm *g)
{
    bool ours = g->act == FV_GELU || (g->act == FV_ACT_NONE && g->k <= MAX_K && g->n <= MAX_N);
    return ours && g->n <= MAX_BIAS && enough_tiles(s, g);
}

} // namespace

bool fv_cuda_gemm_hopper(fv_stream *s, const fv_gemm *g)
{
    CUtensorMap a, w;
    if (!device_of(s)->hopper || !g->tb || (g->pre && g->act != FV_GELU) || g->plus ||
        !aligned(g->pre) || !fits_tiles(g) || !preferred(s, g) || !describe(&a, &w, g))
        return false;
    if (g->pre) {
        linear_epilogue<true, true> end = {};
        end.p = (bf16 *)g->pre;
        launch_tiles(s, g, a, w, end);
    } else if (g->act == FV_GELU) {
        launch_tiles(s, g, a, w, linear_epilogue<true, false>{});
    } else {
        launch_tiles(s, g, a, w, linear_epilogue<false, false>{});
    }
    return true;
}
