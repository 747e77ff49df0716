/* position.c - positions that are added to the input: learned, or sinusoids in a table.
 *
 * The sinusoids are a table on the device rather than computed where they are needed: rows then
 * come by position ids like any embedding's, also one token at a time, and the table is made once,
 * in double, as the published models made theirs. */
#include "nn/part.h"

#include <math.h>

#include "core/core.h"

void fv_pos_init(fv_params *p, fv_pos *l, int64_t rows, int64_t width, fv_pos_kind kind,
                 int64_t offset, float std, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_init init = fv__weight(std);
    if (kind != FV_POS_LEARNED) init = (fv_init){.kind = FV_INIT_ZERO, .buffer = true};
    *l = (fv_pos){.kind = kind, .offset = offset};
    l->table = fv_param(p, init, FV_SHAPE(rows, width), "%s.weight", at.s);
}

/* Column j of all rows: which frequency, and sine or cosine.  An odd width has one sine more than
 * cosines. */
static void sinusoid(float *table, fv_pos_kind kind, int64_t first, int64_t rows, int64_t j,
                     int64_t width)
{
    int64_t half = (width + 1) / 2;
    bool pairs = kind == FV_POS_PAIRS, cosine = pairs ? j % 2 : j >= half;
    int64_t i = pairs ? j / 2 : cosine ? j - half : j;
    double wave = pow(10000, (double)(2 * i) / (double)width);
    for (int64_t row = 0; row < rows; row++) {
        double angle = (double)(row + first) / wave;
        table[row * width + j] = (float)(cosine ? cos(angle) : sin(angle));
    }
}

fv_status fv_pos_fill(fv_params *p, const fv_pos *l, fv_err *e)
{
    if (l->kind == FV_POS_LEARNED || (l->table && fv_params_borrowed(l->table))) return FV_OK;
    if (!l->table) return fv_fail(e, FV_ESTATE, "positions: not declared");
    int64_t rows = l->table->shape.d[0], width = l->table->shape.d[1];
    size_t bytes = (size_t)(rows * width) * sizeof(float);
    float *host = fv__alloc(NULL, bytes);
    if (!host) return fv_fail(e, FV_ENOMEM, "positions %s: out of memory", l->table->name);
    for (int64_t j = 0; j < width; j++) sinusoid(host, l->kind, -l->offset, rows, j, width);
    fv_status st = fv_params_set(p, l->table, host, rows * width, e);
    fv__free(NULL, host, bytes);
    return st;
}

fv_tensor *fv_pos_fwd(fv_ctx *c, const fv_pos *l, fv_tensor *x, fv_tensor *rows)
{
    if (!x) return NULL;
    if (rows) return fv_add(c, x, fv_gather(c, l->table, rows, -1));
    int64_t T = x->shape.n > 1 ? x->shape.d[x->shape.n - 2] : 1;
    return fv_add(c, x, fv_slice(c, l->table, 0, l->offset, l->offset + T));
}

static fv_tensor *counted(fv_ctx *c, fv_shape shape, const fv_tensor *ids, int32_t first,
                          int32_t skip)
{
    const fv_kernels *k = fv_kernels_of(c, c->dtype);
    fv_tensor *y = fv_need(c, k && k->positions, "positions", c->dtype) ? fv_new(c, FV_I32, shape)
                                                                        : NULL;
    int64_t cols = shape.d[shape.n - 1];
    if (y && fv_len(y))
        k->positions(fv_ctx_stream(c), y->data, ids ? ids->data : NULL, fv_len(y) / cols, cols,
                     first, skip);
    return y;
}

fv_tensor *fv_positions(fv_ctx *c, int64_t B, int64_t T, int32_t from)
{
    return counted(c, FV_SHAPE(B, T), NULL, from, 0);
}

fv_tensor *fv_positions_unpadded(fv_ctx *c, fv_tensor *ids, int32_t pad)
{
    if (!ids || fv__failed(c)) return NULL;
    if (ids->dtype != FV_I32 || !ids->shape.n)
        return fv_raise(c, FV_EDTYPE, "positions: ids %s are not i32", fv_desc(ids).s);
    return counted(c, ids->shape, ids, pad + 1, pad);
}
