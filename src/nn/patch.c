/* patch.c - images as sequences of patches, and positions for grids of other sizes.
 *
 * A convolution whose stride is its kernel reads every pixel once: the patches are a permutation of
 * the image, and the convolution is one product of (B*N, C*p*p) with the weight as it is stored.
 * The general way through im2col would make the matrix transposed, one product an image, and would
 * transpose the result. */
#include "nn/part.h"

#include <math.h>

fv_tensor *fv_patchify(fv_ctx *c, fv_tensor *image, int64_t p)
{
    if (!image) return NULL;
    int64_t rows = p > 0 ? fv_dim(image, 2) / p : 0, cols = p > 0 ? fv_dim(image, 3) / p : 0;
    if (image->shape.n != 4 || rows < 1 || cols < 1)
        return fv_raise(c, FV_ESHAPE, "patches: image %s, patches of %lld pixels", fv_desc(image).s,
                        (long long)p);
    int64_t B = fv_dim(image, 0), C = fv_dim(image, 1);
    if (fv_dim(image, 2) != rows * p) image = fv_slice(c, image, 2, 0, rows * p);
    if (fv_dim(image, 3) != cols * p) image = fv_slice(c, image, 3, 0, cols * p);
    static const int by_patch[] = {0, 2, 4, 1, 3, 5};
    fv_tensor *x = fv_permute(c, fv_reshape(c, image, FV_SHAPE(B, C, rows, p, cols, p)), by_patch);
    return fv_reshape(c, x, FV_SHAPE(B, rows * cols, C * p * p));
}

fv_tensor *fv_unpatchify(fv_ctx *c, fv_tensor *x, int64_t channels, int64_t p, int64_t rows,
                         int64_t cols)
{
    static const int by_channel[] = {0, 3, 1, 4, 2, 5};
    int64_t B = fv_dim(x, 0);
    fv_tensor *y = fv_permute(c, fv_reshape(c, x, FV_SHAPE(B, rows, cols, channels, p, p)),
                              by_channel);
    return fv_reshape(c, y, FV_SHAPE(B, channels, rows * p, cols * p));
}

/* The patches fill the image and are not padded: nothing but the product differs from patchify. */
static bool tiles(const fv_conv *l)
{
    const fv_conv_opt *o = &l->opt;
    return l->dims == 2 && o->stride == fv_dim(l->w, 2) && o->stride == fv_dim(l->w, 3) &&
           !o->pad && o->dilation <= 1 && o->groups <= 1;
}

fv_tensor *fv_conv_patches(fv_ctx *c, const fv_conv *l, fv_tensor *image)
{
    if (!image || !l->w) return NULL;
    if (tiles(l) && image->shape.n == 4 && fv_dim(image, 1) == fv_dim(l->w, 1))
        return fv_linear(c, fv_patchify(c, image, l->opt.stride),
                         fv_reshape(c, l->w, FV_SHAPE(fv_dim(l->w, 0), -1)), l->b, FV_ACT_NONE);
    fv_tensor *y = fv_conv_fwd(c, l, image); /* (B,width,rows,columns) */
    if (!y || y->shape.n < 3) return NULL;
    return fv_transpose(c, fv_reshape(c, y, FV_SHAPE(y->shape.d[0], y->shape.d[1], -1)));
}

/* ---- bicubic ---- */

#define CUBIC (-0.75) /* the slope of the kernel at 1, which PyTorch and OpenCV share */

typedef struct axis {
    int64_t in, out, wide; /* wide: the matrix is f64, else f32 */
} axis;

/* The weight of a pixel at this distance from the sample. */
static double cubic(double d)
{
    d = fabs(d);
    if (d <= 1) return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1;
    return d < 2 ? ((d - 5) * d + 8) * d * CUBIC - 4 * CUBIC : 0;
}

/* Element i of the matrix (out,in) that resizes one axis; four pixels around the sample count, and
 * those beyond a border are the last one before it. */
static void fill_cubic(void *out, const void *user, int64_t from, int64_t n)
{
    const axis *a = user;
    for (int64_t i = from; i < from + n; i++) {
        int64_t o = i / a->in, j = i % a->in;
        double at = ((double)o + 0.5) * (double)a->in / (double)a->out - 0.5, sum = 0;
        for (int64_t tap = (int64_t)floor(at) - 1; tap <= (int64_t)floor(at) + 2; tap++) {
            int64_t pixel = tap < 0 ? 0 : tap;
            if (pixel > a->in - 1) pixel = a->in - 1;
            if (pixel == j) sum += cubic(at - (double)tap);
        }
        if (a->wide)
            ((double *)out)[i - from] = sum;
        else
            ((float *)out)[i - from] = (float)sum;
    }
}

/* x (in,D) -> (out,D) */
static fv_tensor *resize_axis(fv_ctx *c, fv_tensor *x, axis a)
{
    if (!x) return NULL;
    a.wide = x->dtype == FV_F64;
    fv_tensor *m = fv__table(c, a.wide ? FV_F64 : FV_F32, FV_SHAPE(a.out, a.in), fill_cubic, &a,
                             sizeof a);
    return fv_matmul(c, fv_cast(c, m, x->dtype), fv_reshape(c, x, FV_SHAPE(a.in, -1)), (fv_mm){0});
}

fv_tensor *fv_grid_resize(fv_ctx *c, fv_tensor *x, int64_t h, int64_t w, int64_t oh, int64_t ow)
{
    if (!x) return NULL;
    int64_t D = fv_cols(x);
    if (h < 1 || w < 1 || oh < 1 || ow < 1 || fv_rows(x) != h * w)
        return fv_raise(c, FV_ESHAPE, "grid: %s, a grid of %lld by %lld, to %lld by %lld",
                        fv_desc(x).s, (long long)h, (long long)w, (long long)oh, (long long)ow);
    static const int turn[] = {1, 0, 2};
    fv_tensor *y = fv_reshape(c, resize_axis(c, x, (axis){.in = h, .out = oh}), FV_SHAPE(oh, w, D));
    y = resize_axis(c, fv_permute(c, y, turn),
                    (axis){.in = w, .out = ow}); /* (w,oh,D) -> (ow,oh*D) */
    return fv_reshape(c, fv_permute(c, fv_reshape(c, y, FV_SHAPE(ow, oh, D)), turn),
                      FV_SHAPE(oh * ow, D));
}
