/* program_apart.h - a product of many columns for many rows as an op of a program: each warp makes tiles of its own, all of k.
 *
 * Warps that share k (program_product.h) meet twice for every few tiles.  Where there are tiles for all of them a warp takes two
 * at a time, which it multiplies with the same x, and hands on what it has in registers. */
#ifndef FV_CUDA_PROGRAM_APART_H
#define FV_CUDA_PROGRAM_APART_H

#include "program_product.h"

#define OWN_TILES 2

/* Rows lane / 4 and 8 more of each ROWS_BLOCK, columns lane % 4 * 2 and the one behind it of each tile.  Rows that there are none
 * of are taken from elsewhere; what comes of them goes nowhere. */
template <int SPAN> struct own_rows {
    int at[SPAN][2];     /* rows of the cache */
    unsigned x[SPAN][2]; /* in shared memory */
    __device__ own_rows(const goal &g, const team &t, const bf16 *from, int k)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2 * SPAN; i++) {
            int r = i / 2 * ROWS_BLOCK + i % 2 * 8 + lane / 4, in = min(r, t.rows - 1);
            at[i / 2][i % 2] = g.pos ? g.pos[t.row + in] : 0;
            x[i / 2][i % 2] = ::at(from + in * x_stride(k)) + (unsigned)(lane % 4 * 16);
        }
    }
};

template <int SPAN>
__device__ inline void multiply_own(float (&c)[SPAN][OWN_TILES][4], const own_rows<SPAN> &rows, const unsigned (&w)[OWN_TILES],
                                    int steps)
{
    float odd[SPAN][OWN_TILES][4] = {};
#pragma unroll 4
    for (int s = 0; s < steps; s++) {
        uint4 v[OWN_TILES];
#pragma unroll
        for (int j = 0; j < OWN_TILES; j++) v[j] = read16(w[j] + s * (2 * STEP));
#pragma unroll
        for (int h = 0; h < SPAN; h++) {
            uint4 a = read16(rows.x[h][0] + s * (2 * STEP)), b = read16(rows.x[h][1] + s * (2 * STEP));
#pragma unroll
            for (int j = 0; j < OWN_TILES; j++) {
                mma(c[h][j], a.x, b.x, a.y, b.y, v[j].x, v[j].y);
                mma(odd[h][j], a.z, b.z, a.w, b.w, v[j].z, v[j].w);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < SPAN * OWN_TILES * 4; i++) (&c[0][0][0])[i] += (&odd[0][0][0])[i];
}

template <int SPAN>
__device__ inline void make_apart(const program_op &o, const team &t, ring &r, bf16 *x, const unsigned char *slots, unsigned turn,
                                  int op)
{
    const few_product &f = o.product;
    int lane = threadIdx.x % 32, first = t.tile(f), tiles = (f.tiles - first + t.wide - 1) / t.wide;
    if (first >= f.tiles) return;
    goal g(f, o.to, turn, op);
    own_rows<SPAN> rows(g, t, x, f.k);
    fetch_x<true>(f, x, t, r, slots, turn);
    one_sync();
    for (int m = 0; m < tiles; m += OWN_TILES) {
        bool both = m + 1 < tiles, mine = m / OWN_TILES % MULTIPLIERS == (int)threadIdx.x / 32;
        float c[SPAN][OWN_TILES][4] = {};
        float2 bias[OWN_TILES] = {};
        unsigned w[OWN_TILES] = {}, empty[OWN_TILES] = {};
#pragma unroll
        for (int j = 0; j < OWN_TILES; j++) {
            if (j && !both) continue;
            w[j] = r.slot() + (unsigned)(lane / 4 * ROW_BYTES + lane % 4 * 16);
            empty[j] = r.empty();
            wait(r.full(), r.turn & 1); /* every warp sees every slot come and go, so that none is mistaken for the next in it */
            unsigned at_bias = r.slot() + BIAS_AT + (unsigned)(lane % 4 * 8);
            if (mine && f.bias_comes)
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(bias[j].x), "=f"(bias[j].y) : "r"(at_bias) : "memory");
            r.next();
        }
        if (mine) multiply_own<SPAN>(c, rows, {w[0], both ? w[1] : w[0]}, f.k / STEP);
        __syncwarp();
        if (lane == 0) arrive(empty[0]);
        if (lane == 0 && both) arrive(empty[1]);
        if (!mine) continue;
#pragma unroll 1 /* what happens to a result is long, and the cache of instructions small */
        for (int i = 0; i < SPAN * OWN_TILES * 2; i++) {
            int j = i / 2 % OWN_TILES, row = i / (OWN_TILES * 2) * ROWS_BLOCK + i % 2 * 8 + lane / 4;
            int n = (first + (m + j) * t.wide) * TILE + lane % 4 * 2;
            if (m + j >= tiles || n >= g.n || row >= t.rows) continue;
            two_results b = {};
            if (g.bias || g.add) b.ask(g, t.row + row, n);
            if (f.bias_comes) b.bias = j ? bias[1] : bias[0];
            float2 v = make_float2(0, 0);
#pragma unroll
            for (int q = 0; q < SPAN * OWN_TILES * 2; q++)
                if (i == q) {
                    const float *of = &c[q / (OWN_TILES * 2)][q / 2 % OWN_TILES][q % 2 * 2];
                    v = make_float2(of[0], of[1]), b.at = rows.at[q / (OWN_TILES * 2)][q % 2];
                }
            b.deliver(g, t.row + row, n, v, f.bad);
        }
    }
}

#endif
