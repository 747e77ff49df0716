/* optable.h - a table of op cases, each put through the same examination.
 *
 * A row says how to make one op from float inputs of given shapes:
 *
 *     static fv_tensor *gated(fv_ctx *c, fv_tensor *const *x)
 *     {
 *         return fv_mul(c, x[0], fv_sigmoid(c, x[1]));
 *     }
 *
 *     static const op_case cases[] = {
 *         {.name = "gated", .build = gated, .flags = OP_BY_ROW,
 *          .in = {{FV_SHAPE(2, 3, 5)}, {FV_SHAPE(5), .low = -4, .high = 4}},
 *          .bad = {{0}, FV_SHAPE(4)}},
 *     };
 *     int main(void) { return op_table_run("gates", cases, sizeof cases / sizeof *cases); }
 *
 * Integers, masks and whatever else the op takes are made inside build, from constants.  For each
 * row, on the device
 * $FOVEA_TEST_DEVICE (cpu unless set, at the level of $FOVEA_CPU; f64 always on the CPU):
 *
 *   value       f64 against `want` or `each`, plain host code, where given; f32, bf16, f16 against
 *               f64
 *   gradient    f64 against fourth-order differences of the value; f32, bf16, f16 against f64; of
 *               inputs used twice; of inputs that are parameters, added up over two steps (f32 for
 *               the 16-bit dtypes)
 *   promises    the same bits for 1 to 4 threads, and with OP_BY_ROW for a row alone; no allocation
 *               and the same addresses from the second step on; memory running out, at each
 *               allocation and at any point in an arena, is FV_ENOMEM and leaks nothing
 *   refusals    `bad` shapes, which the message must name; NULL for each input that is not
 *               optional; with OP_NO_GRAD an input that wants a gradient
 *
 * Numbers are drawn so that bf16 and f16 hold them exactly: all dtypes start from the same inputs.
 * Differences are taken at 48 places of each input or fewer, so a row may be large enough to be
 * split among threads. */
#ifndef HELPER_OPTABLE_H
#define HELPER_OPTABLE_H

#include "fovea/fovea.h"

#define OP_MAX_IN 6

typedef struct op_input {
    fv_shape shape;  /* at least one axis: inputs end at the first that has none */
    float low, high; /* uniform between them; both 0 means -1 and 1 */
    bool fixed;      /* no gradient is asked for */
    bool optional;   /* NULL means something else than failure */
} op_input;

enum {
    OP_NO_GRAD = 1 << 0,  /* the op has none */
    OP_TRAIN = 1 << 1,    /* in training mode */
    OP_BY_ROW = 1 << 2,   /* axis 0 of y is axis 0 of the first input, and its places do not mix */
    OP_DISTINCT = 1 << 3, /* no two numbers of all inputs are close: for maxima, which have kinks */
    OP_NOT_F64 = 1 << 4,  /* this dtype is refused or means nothing */
    OP_NOT_BF16 = 1 << 5,
    OP_NOT_F16 = 1 << 6,
    OP_NOT_PARAM = 1 << 7 /* inputs cannot be parameters */
};

typedef struct op_case op_case;
struct op_case {
    const char *name;
    fv_tensor *(*build)(fv_ctx *c, fv_tensor *const *in);
    op_input in[OP_MAX_IN];
    unsigned flags;
    fv_shape bad[OP_MAX_IN]; /* shapes that must be refused; no axes: as in `in` */
    void (*want)(const op_case *k, double *y, const double *const *in); /* the value, or NULL */
    double (*each)(double x); /* likewise where y[i] = each(x[i]) */
    double loose;             /* tolerances are multiplied by it; 0 means 1 */
};

/* One cmocka test per row; returns how many failed. */
int op_table_run(const char *group, const op_case *cases, size_t n);

#endif
