/* gemm_panels.c - the second factor in panels: packed during a product, or once beforehand for a
 * weight.
 *
 * A packed weight holds its panels back to back, each all along k:
 *
 *    [panel 0: k = 0 .. K][panel 1: k = 0 .. K] ...       panel j = columns j*nr .. (j+1)*nr
 *
 * so that any thread finds any panel by a multiplication, and a row of a decode step reads one
 * panel as one stream.  The bytes depend on the instruction level (nr, layout of k); packed
 * weights are therefore never stored to files. */
#include "gemm.h"
#include "parallel.h"

#define SMALL (1 << 18) /* values that one thread packs before a second has woken up */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Block formats (FV_Q8, FV_Q4) have no element size: their rows are addressed in bytes, ld
 * included. */
static void pack_one(const gemm_kind *kind, char *out, const gemm_b *b, int64_t j, int64_t k,
                     int64_t kc)
{
    int64_t at = b->tb ? j * b->ld + k : k * b->ld + j;
    gemm_src src = {(const char *)b->p + at * (int64_t)fv_dtype_size(b->dtype), b->dtype, b->ld,
                    b->tb, (int)least(kind->nr, b->n - j)};
    if (!fv_dtype_size(b->dtype)) /* rows of blocks */
        src.p = (const char *)b->p + (size_t)(j * b->ld) + fv_dtype_row(b->dtype, k);
    kind->pack_b(out, &src, kc);
}

/* Where a row in memory holds all columns it is read once for all of these panels, from cache. */
void NAME(gemm_pack_run)(const gemm_kind *kind, char *out, size_t next, const gemm_b *b, int64_t j0,
                         int64_t j1, int64_t k, int64_t kc)
{
    int64_t piece = b->tb || kind->b_head ? kc : GEMM_UNIT;
    for (int64_t u = 0; u < kc; u += piece)
        for (int64_t j = j0; j < j1; j++)
            pack_one(kind, out + (size_t)(j - j0) * next + gemm_units(u) * kind->b_unit, b,
                     j * kind->nr, k + u, least(piece, kc - u));
}

/* Panels that are packed together. */
static int64_t side_of(const gemm_b *b) { return b->tb ? 1 : GEMM_GROUP; }

int64_t NAME(gemm_pack_pieces)(const gemm_kind *kind, const gemm_b *b)
{
    int64_t panels = (b->n + kind->nr - 1) / kind->nr, side = side_of(b);
    return (panels + side - 1) / side * (int64_t)gemm_runs(kind, b->k);
}

void NAME(gemm_pack_panels)(const gemm_kind *kind, char *out, const gemm_b *b, int64_t from,
                            int64_t to)
{
    int64_t runs = (int64_t)gemm_runs(kind, b->k), panels = (b->n + kind->nr - 1) / kind->nr,
            side = side_of(b);
    size_t next = gemm_b_bytes(kind, b->k);
    for (int64_t u = from; u < to; u++) {
        int64_t j = u / runs * side, k = u % runs * kind->run;
        char *at = out + (size_t)j * next + gemm_b_bytes(kind, k);
        NAME(gemm_pack_run)
        (kind, at, next, b, j, least(j + side, panels), k, least(kind->run, b->k - k));
    }
}

/* bf16 weights without bf16 instructions keep their two bytes in memory and are widened in the
 * tile: decoding is bound by bytes, not by conversions. */
const gemm_kind *NAME(gemm_packed)(fv_dtype dt)
{
    switch (dt) {
    case FV_BF16: return NAME(gemm_bf16)() ? NAME(gemm_bf16)() : NAME(gemm_f32)(FV_BF16);
    case FV_F32:
    case FV_F16: return NAME(gemm_f32)(dt);
    case FV_Q8:
    case FV_Q4:
    case FV_I8: return NAME(gemm_int8)(dt);
    default: return NULL;
    }
}

static size_t pack_bytes(int64_t n, int64_t k, fv_dtype dt)
{
    const gemm_kind *kind = NAME(gemm_packed)(dt);
    return kind && n > 0 && k > 0 ? (size_t)((n + kind->nr - 1) / kind->nr) * gemm_b_bytes(kind, k)
                                  : 0;
}

typedef struct {
    const gemm_kind *kind;
    char *out;
    gemm_b b;
} pack_args;

static void pack_part(void *arg, int64_t from, int64_t to, int slot)
{
    const pack_args *l = arg;
    (void)slot;
    NAME(gemm_pack_panels)(l->kind, l->out, &l->b, from, to);
}

static void pack(fv_stream *s, void *out, fv_dtype dt, const void *w, fv_dtype st, int64_t n,
                 int64_t k, int64_t ld, bool tb)
{
    pack_args l = {NAME(gemm_packed)(dt), out, {w, st, ld, tb, n, k}};
    if (!l.kind) return;
    fv__cpu_parallel(s, n * k > SMALL ? s->threads : 1, NAME(gemm_pack_pieces)(l.kind, &l.b), 0,
                     pack_part, &l);
}

void NAME(gemm_panels)(fv_kernels *k)
{
    k->pack_bytes = pack_bytes;
    k->pack = pack;
}
