/* test_nn_patch.c - patches of an image, and grids of vectors resized: value and gradient. */
#include <math.h>
#include <stddef.h>

#include "fovea/author/nn.h"
#include "helper/optable.h"

static fv_tensor *patches(fv_ctx *c, fv_tensor *const *x) { return fv_patchify(c, x[0], 3); }

/* (2,2,7,6) -> (2,4,18): one row of pixels is left over */
static void want_patches(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    for (int i = 0; i < 2 * 4 * 18; i++) {
        int b = i / 72, n = i / 18 % 4, ch = i / 9 % 2, row = n / 2 * 3 + i / 3 % 3,
            col = n % 2 * 3 + i % 3;
        y[i] = in[0][((b * 2 + ch) * 7 + row) * 6 + col];
    }
}

static fv_tensor *and_back(fv_ctx *c, fv_tensor *const *x)
{
    return fv_unpatchify(c, fv_patchify(c, x[0], 2), 3, 2, 2, 3);
}
static double itself(double x) { return x; }

static fv_tensor *larger(fv_ctx *c, fv_tensor *const *x)
{
    return fv_grid_resize(c, x[0], 3, 4, 5, 9);
}
static fv_tensor *smaller(fv_ctx *c, fv_tensor *const *x)
{
    return fv_grid_resize(c, x[0], 6, 5, 2, 3);
}
static fv_tensor *as_it_is(fv_ctx *c, fv_tensor *const *x)
{
    return fv_grid_resize(c, x[0], 3, 4, 3, 4);
}

/* Keys' kernel with slope -3/4, sample by sample */
static double kernel(double d)
{
    d = fabs(d);
    if (d >= 2) return 0;
    return d <= 1 ? 1.25 * d * d * d - 2.25 * d * d + 1
                  : -0.75 * (d * d * d - 5 * d * d + 8 * d - 4);
}

static void resized(double *y, const double *x, int h, int w, int oh, int ow, int D)
{
    for (int i = 0; i < oh * ow * D; i++) {
        double r = (i / D / ow + 0.5) * h / oh - 0.5, s = (i / D % ow + 0.5) * w / ow - 0.5;
        y[i] = 0;
        for (int dr = -1; dr <= 2; dr++)
            for (int ds = -1; ds <= 2; ds++) {
                int row = (int)floor(r) + dr, col = (int)floor(s) + ds;
                double by = kernel(r - row) * kernel(s - col);
                row = row < 0 ? 0 : row >= h ? h - 1 : row;
                col = col < 0 ? 0 : col >= w ? w - 1 : col;
                y[i] += by * x[(row * w + col) * D + i % D];
            }
    }
}

static void want_larger(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    resized(y, in[0], 3, 4, 5, 9, 2);
}
static void want_smaller(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    resized(y, in[0], 6, 5, 2, 3, 3);
}

static const op_case cases[] = {
    {.name = "patches",
     .build = patches,
     .in = {{FV_SHAPE(2, 2, 7, 6)}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 2, 7, 2)},
     .want = want_patches},
    {.name = "patches and back", .build = and_back, .in = {{FV_SHAPE(2, 3, 4, 6)}}, .each = itself},
    {.name = "a larger grid",
     .build = larger,
     .in = {{FV_SHAPE(12, 2)}},
     .bad = {FV_SHAPE(11, 2)},
     .want = want_larger},
    {.name = "a smaller grid",
     .build = smaller,
     .in = {{FV_SHAPE(1, 30, 3)}},
     .want = want_smaller},
    {.name = "the same grid", .build = as_it_is, .in = {{FV_SHAPE(12, 3)}}, .each = itself},
};

int main(void) { return op_table_run("patch", cases, sizeof cases / sizeof *cases); }
