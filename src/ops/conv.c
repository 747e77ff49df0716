/* conv.c - convolutions in one and two dimensions and their transposes, as matrix products.
 *
 * Both directions of both kinds are made of three steps.  One side, the image, is unfolded: column
 * (p,q) of its matrix holds the pixels under the kernel at output position (p,q).  The other side,
 * the map, has one value for each such position.
 *   shrink:  map    = w  . unfold(image)        conv forward,   transpose dx
 *   spread:  image  = fold(w' . map)            conv dx,        transpose forward
 *   weigh:   dw    += map . unfold(image)'      both
 * The unfolded matrix is made for a few images at a time and made again in backward: kept, it would
 * be larger than the image by the area of the kernel.  One dimension is two with a height of 1.
 *
 * A GPU gets more images at a time, and weigh multiplies all of them at once and sums the products
 * then: one after the other, each keeps a small part of it busy.
 *
 * Depthwise convolutions of stride 1 have kernels of their own: as products they would be one row
 * for each channel. */
#include "core/core.h"
#include "fovea/author/op.h"
#include "ops/stat.h"

/* of unfolded images at a time, on the CPU and on a GPU */
#define COLUMN_ELEMENTS ((int64_t)1 << 22)
#define COLUMN_ELEMENTS_GPU ((int64_t)1 << 26)
#define PRODUCT_ELEMENTS ((int64_t)1 << 24) /* of gradients of single images on a GPU at a time */

/*    conv:       image = x (B,in,h,w)       map = y (B,out,oh,ow)
 *    transpose:  image = y (B,out,..)       map = x (B,in,h,w)
 *
 * so g always describes a convolution, and a transposed one runs it backwards. */
typedef struct {
    fv_conv_geom g; /* batch, channels, h, w of the image; oh, ow of the map */
    int64_t maps;   /* channels of the map */
    int64_t groups;
    bool transposed, depthwise;
    /* scratch for `chunk` unfolded images; NULL where the image is its own unfolding */
    void *columns;
    int64_t chunk;
} conv;

typedef struct {
    fv_node node;
    conv v;
} conv_node;

static int64_t image_len(const conv *v) { return v->g.channels * v->g.h * v->g.w; }
static int64_t out_positions(const conv *v) { return v->g.oh * v->g.ow; }
static int64_t map_len(const conv *v) { return v->maps * out_positions(v); }
static int64_t column_len(const conv *v)
{
    return v->g.channels * v->g.kh * v->g.kw * out_positions(v);
}
static int64_t group_maps(const conv *v) { return v->maps / v->groups; }
static int64_t group_taps(const conv *v) { return v->g.channels / v->groups * v->g.kh * v->g.kw; }
static int64_t weight_len(const conv *v) { return v->maps * group_taps(v); }

static void *at(const void *p, fv_dtype t, int64_t n)
{
    return (char *)p + n * (int64_t)fv_dtype_size(t);
}
static fv_sink sink_at(fv_sink s, int64_t n)
{
    return (fv_sink){at(s.data, s.dtype, n), s.dtype, s.add};
}

/* ---- the three steps ---- */

/* Elements from one image of an operand to the next, and from one group to the next. */
typedef struct {
    int64_t image, group;
} step;

/* One product for each image and group: the longer of the two loops is left to the kernel.
 * Depthwise convolutions have as many groups as channels: one product each would be all
 * overhead. */
static void products(fv_ctx *c, const conv *v, fv_gemm g, int64_t images, step a, step b, step y)
{
    const fv_kernels *k = fv_kernels_of(c, g.bt);
    bool by_group = v->groups > images;
    const void *a0 = g.a, *b0 = g.b;
    void *c0 = g.c;
    g.batch = by_group ? v->groups : images;
    g.stride_a = by_group ? a.group : a.image;
    g.stride_b = by_group ? b.group : b.image;
    g.stride_c = by_group ? y.group : y.image;
    for (int64_t i = 0; i < (by_group ? images : v->groups); i++) {
        g.a = at(a0, g.bt, i * (by_group ? a.image : a.group));
        g.b = at(b0, g.bt, i * (by_group ? b.image : b.group));
        g.c = at(c0, g.ct, i * (by_group ? y.image : y.group));
        k->gemm(fv_ctx_stream(c), &g);
    }
}

static const void *unfold(fv_ctx *c, const conv *v, fv_dtype t, const void *image, int64_t from,
                          int64_t n)
{
    const void *first = at(image, t, from * image_len(v));
    if (!v->columns) return first;
    fv_conv_geom g = v->g;
    g.batch = n;
    fv_kernels_of(c, t)->im2col(fv_ctx_stream(c), v->columns, first, &g);
    return v->columns;
}

static int64_t chunk_at(const conv *v, int64_t from)
{
    return v->g.batch - from < v->chunk ? v->g.batch - from : v->chunk;
}

/* map (maps, positions) = w (maps, taps) . columns (taps, positions), for each image and group */
static void shrink(fv_ctx *c, const conv *v, fv_dtype t, fv_sink map, const void *w,
                   const void *image)
{
    int64_t m = group_maps(v), n = out_positions(v), k = group_taps(v);
    for (int64_t from = 0; map.data && from < v->g.batch; from += v->chunk) {
        int64_t images = chunk_at(v, from);
        fv_gemm g = {.m = m,
                     .n = n,
                     .k = k,
                     .a = w,
                     .lda = k,
                     .ldb = n,
                     .ldc = n,
                     .bt = t,
                     .ct = map.dtype,
                     .add = map.add};
        g.b = unfold(c, v, t, image, from, images);
        g.c = at(map.data, map.dtype, from * map_len(v));
        products(c, v, g, images, (step){0, m * k}, (step){column_len(v), k * n},
                 (step){map_len(v), m * n});
    }
}

/* columns (taps, positions) = w' (taps, maps) . map (maps, positions), then folded into the
 * image */
static void spread(fv_ctx *c, const conv *v, fv_dtype t, fv_sink image, const void *w,
                   const void *map)
{
    int64_t m = group_taps(v), n = out_positions(v), k = group_maps(v);
    for (int64_t from = 0; image.data && from < v->g.batch; from += v->chunk) {
        int64_t images = chunk_at(v, from);
        fv_sink part = sink_at(image, from * image_len(v)),
                to = v->columns ? (fv_sink){v->columns, t, false} : part;
        fv_gemm g = {
            .m = m, .n = n, .k = k, .a = w, .lda = m, .ta = true, .ldb = n, .ldc = n, .bt = t};
        g.ct = to.dtype;
        g.add = to.add;
        g.b = at(map, t, from * map_len(v));
        g.c = to.data;
        products(c, v, g, images, (step){0, m * k}, (step){map_len(v), k * n},
                 (step){column_len(v), m * n});
        if (!v->columns) continue;
        fv_conv_geom geom = v->g;
        geom.batch = images;
        fv_kernels_of(c, t)->col2im(fv_ctx_stream(c), part, v->columns, &geom);
    }
}

/* dw (maps, taps) of image i of those in `columns`, the from-th of all: map . columns' */
static fv_gemm weight_product(const conv *v, fv_dtype t, const void *map, const void *columns,
                              int64_t from, int64_t i)
{
    int64_t m = group_maps(v), n = group_taps(v), k = out_positions(v);
    fv_gemm g = {.m = m, .n = n, .k = k, .lda = k, .ldb = k, .tb = true, .ldc = n, .bt = t};
    g.ct = fv__stat_dtype(t);
    g.a = at(map, t, (from + i) * map_len(v));
    g.b = at(columns, t, i * column_len(v));
    return g;
}

/* Images are added one after the other, in f32 even where the gradient is stored in 16 bits. */
static void weigh_in_turn(fv_ctx *c, const conv *v, fv_dtype t, fv_sink *sum, const void *map,
                          const void *columns, int64_t from)
{
    int64_t mn = group_maps(v) * group_taps(v), k = out_positions(v);
    for (int64_t i = 0; i < chunk_at(v, from); i++) {
        fv_gemm g = weight_product(v, t, map, columns, from, i);
        g.c = sum->data;
        g.add = sum->add;
        products(c, v, g, 1, (step){0, group_maps(v) * k}, (step){0, group_taps(v) * k},
                 (step){0, mn});
        sum->add = true;
    }
}

/* The products of many images side by side, then their sum: the same numbers in another order. */
static void weigh_at_once(fv_ctx *c, const conv *v, fv_dtype t, fv_sink *sum, const void *map,
                          const void *columns, int64_t from)
{
    fv_dtype st = fv__stat_dtype(t);
    const fv_kernels *ks = fv_kernels_of(c, st);
    int64_t len = weight_len(v), k = out_positions(v), all = chunk_at(v, from),
            most = PRODUCT_ELEMENTS / len;
    if (most < 1) most = 1;
    if (most > all) most = all;
    void *parts = fv_scratch(c, st, most * len);
    if (!parts || !fv_need(c, ks->colsum, "colsum", st)) return;
    for (int64_t i = 0; i < all; i += most) {
        int64_t images = all - i < most ? all - i : most;
        fv_gemm g = weight_product(v, t, map, columns, from, i);
        g.c = parts;
        products(c, v, g, images, (step){map_len(v), group_maps(v) * k},
                 (step){column_len(v), group_taps(v) * k},
                 (step){len, group_maps(v) * group_taps(v)});
        ks->colsum(fv_ctx_stream(c), *sum, parts, images, len);
        sum->add = true;
    }
}

static void weigh(fv_ctx *c, const conv *v, fv_dtype t, fv_sink dw, const void *map,
                  const void *image)
{
    if (!dw.data) return;
    bool in_turn = fv__device_is_host(c->dev);
    fv_dtype st = fv__stat_dtype(t);
    fv_sink sum = dw.dtype == st ? dw : (fv_sink){fv_scratch(c, st, weight_len(v)), st, false};
    if (!sum.data) return;
    for (int64_t from = 0; from < v->g.batch; from += v->chunk) {
        const void *columns = unfold(c, v, t, image, from, chunk_at(v, from));
        (in_turn ? weigh_in_turn : weigh_at_once)(c, v, t, &sum, map, columns, from);
    }
    if (dw.dtype != st) fv_kernels_of(c, st)->cast(fv_ctx_stream(c), dw, sum.data, weight_len(v));
}

/* The walk over y (B,O,positions) in which the bias has one value a channel. */
static fv_walk bias_walk(const fv_tensor *y)
{
    int64_t channels = y->shape.d[1], inner = fv_len(y) / (y->shape.d[0] * channels);
    return (fv_walk){.n = 3,
                     .shape = {y->shape.d[0], channels, inner},
                     .y = {channels * inner, inner, 1},
                     .a = {channels * inner, inner, 1},
                     .b = {0, 1, 0}};
}

/* dx is a depthwise convolution of dy with the taps in reverse, padded by what the kernel reaches
 * beyond its own padding. */
static void depthwise_bwd(fv_ctx *c, const conv *v, fv_tensor *x, fv_tensor *w, const void *dy)
{
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    fv_conv_geom g = v->g;
    g.h = v->g.oh, g.w = v->g.ow, g.oh = v->g.h, g.ow = v->g.w;
    g.ph = (g.kh - 1) * g.dh - g.ph, g.pw = (g.kw - 1) * g.dw - g.pw;
    k->depthwise(fv_ctx_stream(c), fv_grad(c, x), dy, w->data, &g, true);
    k->depthwise_dw(fv_ctx_stream(c), fv_grad(c, w), dy, x->data, &v->g);
}

static void backward(fv_ctx *c, fv_node *n)
{
    const conv *v = &((conv_node *)n)->v;
    fv_tensor *x = n->in[0], *w = n->in[1], *bias = n->in[2];
    const void *dy = n->y->grad;
    if (v->depthwise) {
        depthwise_bwd(c, v, x, w, dy);
    } else {
        (v->transposed ? shrink : spread)(c, v, x->dtype, fv_grad(c, x), w->data, dy);
        weigh(c, v, x->dtype, fv_grad(c, w), v->transposed ? x->data : dy,
              v->transposed ? dy : x->data);
    }

    fv_sink dbias = fv_grad(c, bias);
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!dbias.data || !fv_need(c, k->binary_bwd, "binary_bwd", x->dtype)) return;
    fv_walk walk = bias_walk(n->y);
    k->binary_bwd(fv_ctx_stream(c), FV_B_ADD, (fv_sink){0}, dbias, dy, n->y->data, bias->data,
                  &walk);
}

/* ---- geometry ---- */

static bool options(fv_ctx *c, const char *op, fv_conv_opt *o, bool transposed)
{
    if (!o->stride) o->stride = 1;
    if (!o->dilation) o->dilation = 1;
    if (!o->groups) o->groups = 1;
    bool ok = o->stride > 0 && o->dilation > 0 && o->groups > 0 && o->pad >= 0 && o->out_pad >= 0;
    /* more would be zeros that no tap reaches; a plain convolution has none to give */
    if (o->out_pad) ok = ok && transposed && (o->out_pad < o->stride || o->out_pad < o->dilation);
    if (!ok)
        fv_raise(c, FV_EARG,
                 "%s: stride %lld, padding %lld, dilation %lld, groups %lld, output padding %lld",
                 op, (long long)o->stride, (long long)o->pad, (long long)o->dilation,
                 (long long)o->groups, (long long)o->out_pad);
    return ok;
}

/* The length of y along an axis on which x has n pixels and the kernel k taps; 0 or less where
 * there is none.
 * conv: floor((n + 2 pad - span) / stride) + 1;  transposed: the input length that would give n,
 * with out_pad choosing among the `stride` lengths that do. */
static int64_t out_len(const fv_conv_opt *o, int64_t n, int64_t k, bool transposed)
{
    int64_t span = o->dilation * (k - 1) + 1; /* pixels from the first tap to the last */
    if (transposed) return (n - 1) * o->stride - 2 * o->pad + span + o->out_pad;
    return n + 2 * o->pad < span ? 0 : (n + 2 * o->pad - span) / o->stride + 1;
}

/* x (B,in,h,w) and w of a convolution with options o, in one dimension with h = kh = 1; false where
 * they do not fit. */
static bool describe(conv *v, const fv_tensor *x, const fv_tensor *w, const fv_conv_opt *o,
                     int dims, bool transposed)
{
    if (x->shape.n != dims + 2 || w->shape.n != dims + 2 || !fv_len(x) || !fv_len(w)) return false;
    bool two = dims == 2;
    int64_t in = x->shape.d[1], out = transposed ? w->shape.d[1] * o->groups : w->shape.d[0];
    if (in % o->groups || out % o->groups ||
        (transposed ? w->shape.d[0] : w->shape.d[1] * o->groups) != in)
        return false;

    int64_t kh = two ? w->shape.d[2] : 1, kw = w->shape.d[dims + 1], h = two ? x->shape.d[2] : 1,
            width = x->shape.d[dims + 1];
    int64_t oh = two ? out_len(o, h, kh, transposed) : 1, ow = out_len(o, width, kw, transposed);
    *v = (conv){.maps = transposed ? in : out, .groups = o->groups, .transposed = transposed};
    v->g = (fv_conv_geom){.batch = x->shape.d[0],
                          .channels = transposed ? out : in,
                          .h = transposed ? oh : h,
                          .w = transposed ? ow : width,
                          .kh = kh,
                          .kw = kw,
                          .sh = two ? o->stride : 1,
                          .sw = o->stride,
                          .ph = two ? o->pad : 0,
                          .pw = o->pad,
                          .dh = o->dilation,
                          .dw = o->dilation,
                          .oh = transposed ? h : oh,
                          .ow = transposed ? width : ow};
    return oh > 0 && ow > 0;
}

/* A kernel of one pixel that visits every pixel leaves the image as it is. */
static bool own_unfolding(const fv_conv_geom *g)
{
    return g->kh == 1 && g->kw == 1 && g->sh == 1 && g->sw == 1 && !g->ph && !g->pw &&
           g->h == g->oh && g->w == g->ow;
}

static bool is_depthwise(const conv *v)
{
    return v->groups == v->g.channels && v->groups == v->maps && !v->transposed && v->g.sh == 1 &&
           v->g.sw == 1;
}

/* A chunk of 16 MiB of f32, or 256 MiB on a GPU, bounds the scratch whatever the batch is. */
static bool take_columns(fv_ctx *c, conv *v, fv_dtype t)
{
    bool itself = own_unfolding(&v->g), host = fv__device_is_host(c->dev);
    int64_t most = host ? COLUMN_ELEMENTS : COLUMN_ELEMENTS_GPU;
    v->chunk = itself ? v->g.batch : most / column_len(v);
    if (v->chunk < 1) v->chunk = 1;
    if (v->chunk > v->g.batch) v->chunk = v->g.batch;
    if (!itself) v->columns = fv_scratch(c, t, v->chunk * column_len(v));
    return itself || v->columns;
}

static fv_tensor *convolve(fv_ctx *c, const char *op, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                           fv_conv_opt opt, int dims, bool transposed)
{
    conv v = {0};
    if (!fv_same_dtype(c, op, x, w) || (bias && !fv_same_dtype(c, op, x, bias))) return NULL;
    if (!options(c, op, &opt, transposed)) return NULL;
    bool fits = describe(&v, x, w, &opt, dims, transposed);
    int64_t out = transposed ? v.g.channels : v.maps, oh = transposed ? v.g.h : v.g.oh,
            ow = transposed ? v.g.w : v.g.ow;
    if (!fits || (bias && fv_len(bias) != out))
        return fv_raise(c, FV_ESHAPE, "%s: x %s, w %s, bias %s, groups %lld", op, fv_desc(x).s,
                        fv_desc(w).s, bias ? fv_desc(bias).s : "none", (long long)opt.groups);
    fv_dtype t = x->dtype;
    const fv_kernels *k = fv_kernels_of(c, t);
    if (!k || !fv_need(c, k->gemm && k->im2col && k->col2im && k->binary && k->cast, op, t))
        return NULL;

    fv_shape one = FV_SHAPE(v.g.batch, out, ow), two = FV_SHAPE(v.g.batch, out, oh, ow);
    fv_tensor *y = fv_new(c, t, dims == 1 ? one : two);
    fv_sink to_y = {y ? y->data : NULL, t, false};
    v.depthwise = is_depthwise(&v) && k->depthwise && k->depthwise_dw;
    if (!y || (!v.depthwise && !take_columns(c, &v, t))) return NULL;
    if (v.depthwise)
        k->depthwise(fv_ctx_stream(c), to_y, x->data, w->data, &v.g, false);
    else
        (transposed ? spread : shrink)(c, &v, t, to_y, w->data, x->data);
    if (bias) {
        fv_walk walk = bias_walk(y);
        k->binary(fv_ctx_stream(c), FV_B_ADD, y->data, y->data, bias->data, &walk);
    }

    conv_node *s = fv_record(c, sizeof *s, backward, y, x, w, bias);
    if (s) {
        s->v = v;
        s->node.temp = v.columns;
        s->node.temp_bytes = v.columns ? (size_t)(v.chunk * column_len(&v)) * fv_dtype_size(t) : 0;
    }
    return y;
}

fv_tensor *fv_conv1d(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_conv_opt opt)
{
    return convolve(c, "conv1d", x, w, bias, opt, 1, false);
}

fv_tensor *fv_conv2d(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias, fv_conv_opt opt)
{
    return convolve(c, "conv2d", x, w, bias, opt, 2, false);
}

fv_tensor *fv_conv1d_transpose(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                               fv_conv_opt opt)
{
    return convolve(c, "conv1d_transpose", x, w, bias, opt, 1, true);
}

fv_tensor *fv_conv2d_transpose(fv_ctx *c, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                               fv_conv_opt opt)
{
    return convolve(c, "conv2d_transpose", x, w, bias, opt, 2, true);
}
