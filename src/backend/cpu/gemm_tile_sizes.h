/* gemm_tile_sizes.h - a function for every size of a tile, for the products that keep their sums in
 * registers (gemm_f32.c, gemm_int8.c).
 *
 * Included behind `multiply(t, rows, panels, bt)`, which is inlined here with constant sizes, so
 * that all of its loops are unrolled and no sum is in memory.  The pairs are those that gemm_walk
 * gives: as many rows as fit MR sums with 1, 2 or 4 panels.  A size that is missing here would
 * leave its tile unwritten. */
ALWAYS_INLINE void multiply_sized(const gemm_tile *t, const fv_dtype bt)
{
    switch (t->rows * 8 + t->panels) {
    case 1 * 8 + 1: multiply(t, 1, 1, bt); break;
    case 1 * 8 + 2: multiply(t, 1, 2, bt); break;
    case 1 * 8 + 4: multiply(t, 1, 4, bt); break;
    case 2 * 8 + 1: multiply(t, 2, 1, bt); break;
    case 2 * 8 + 2: multiply(t, 2, 2, bt); break;
    case 3 * 8 + 1: multiply(t, 3, 1, bt); break;
    case 4 * 8 + 1: multiply(t, 4, 1, bt); break;
#if MR > 4
    case 3 * 8 + 2: multiply(t, 3, 2, bt); break;
    case 5 * 8 + 1: multiply(t, 5, 1, bt); break;
    case 6 * 8 + 1: multiply(t, 6, 1, bt); break;
#endif
#if MR > 6
    case 2 * 8 + 4: multiply(t, 2, 4, bt); break;
    case 4 * 8 + 2: multiply(t, 4, 2, bt); break;
    case 7 * 8 + 1: multiply(t, 7, 1, bt); break;
    case 8 * 8 + 1: multiply(t, 8, 1, bt); break;
#endif
#if MR > 8
    case 3 * 8 + 4: multiply(t, 3, 4, bt); break;
    case 5 * 8 + 2: multiply(t, 5, 2, bt); break;
    case 6 * 8 + 2: multiply(t, 6, 2, bt); break;
    case 9 * 8 + 1: multiply(t, 9, 1, bt); break;
    case 10 * 8 + 1: multiply(t, 10, 1, bt); break;
    case 11 * 8 + 1: multiply(t, 11, 1, bt); break;
    case 12 * 8 + 1: multiply(t, 12, 1, bt); break;
#endif
#if MR > 12
    case 7 * 8 + 2: multiply(t, 7, 2, bt); break;
    case 13 * 8 + 1: multiply(t, 13, 1, bt); break;
    case 14 * 8 + 1: multiply(t, 14, 1, bt); break;
#endif
    default: break;
    }
}
