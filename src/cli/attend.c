/* attend.c - fovea attend: attention by hand on small matrices.
 *
 * Scores come from a plain matrix product.  The output is that of the tiled operator, which never
 * stores a weight; the weights shown are recomputed from the log-sum-exp that it keeps, so the
 * lesson is about the operator that models use. */
#include "attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/array.h"

enum { MAX_WEIGHTS = 1 << 24 };

typedef struct attend_values {
    const char *q, *k, *v, *mask, *device;
    int64_t heads, digits;
    bool causal, json, demo;
} attend_values;

static const attend_values defaults = {.heads = 1, .digits = 4};

static const cli_option options[] = {
    CLI_FILE(attend_values, q, 0, "q", "FILE", "queries, one a row"),
    CLI_FILE(attend_values, k, 0, "k", "FILE", "keys, one a row, as wide as the queries"),
    CLI_FILE(attend_values, v, 0, "v", "FILE", "values, one for each key"),
    CLI_INT(attend_values, heads, 'n', "heads", "N", 1, 4096,
            "heads: the columns are split into so many equal parts"),
    CLI_FLAG(attend_values, causal, 'c', "causal",
             "a row sees only the keys up to its own position"),
    CLI_FILE(attend_values, mask, 0, "mask", "FILE",
             "one row for each query (or one for all), one column for each key: 1 where the key "
             "takes part and 0 where it does "
             "not; or numbers that are added to the scores, -inf hiding a key"),
    CLI_DEVICE(attend_values, device),
    CLI_INT(attend_values, digits, 0, "digits", "N", 0, 9, "digits behind the point"),
    CLI_FLAG(attend_values, json, 0, "json", "print one JSON object, with all digits"),
    CLI_FLAG(attend_values, demo, 0, "demo", "the worked example, as without files"),
    {0},
};

static const cli_example examples[] = {
    {"fovea attend", "the worked example: four tokens of width three"},
    {"fovea attend --causal", "the same, but no token sees the ones after it"},
    {"fovea attend --q q.csv --k k.csv --v v.csv --heads 2", "matrices of your own, in two heads"},
    {"fovea attend --q x.safetensors:q --k x.safetensors:k --v v.npy --json",
     "other kinds of files, and a result for scripts"},
    {0},
};

/* ---- input ---- */

typedef struct input {
    fv_array q, k, v, mask;
} input;

static const float demo_qk[] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f,
                                0.7f, 0.8f, 0.9f, 1.0f, 1.1f, 1.2f};
static const float demo_v[] = {1.0f, 1.1f, 1.2f, 1.3f, 1.4f, 1.5f,
                               1.6f, 1.7f, 1.8f, 1.9f, 2.0f, 2.1f};

static int read_matrix(const cli *c, fv_array *a, const char *source, fv_array_opt opt)
{
    fv_err e;
    if (fv_array_open(a, NULL, source, opt, &e)) return cli_error(c, &e);
    if (a->shape.n != 2)
        return cli_fail(c, "%s: an array with %d axes where a matrix is wanted", source,
                        a->shape.n);
    if (!a->shape.d[0] || !a->shape.d[1]) return cli_fail(c, "%s: the matrix is empty", source);
    return CLI_OK;
}

/* Sizes and pointers of a, from the files or from the example. */
static int take_input(const cli *c, const attend_values *o, input *in, attention *a)
{
    if (!o->q && !o->k && !o->v) {
        *a = (attention){
            .Tq = 4, .Tk = 4, .Wk = 3, .Wv = 3, .q = demo_qk, .k = demo_qk, .v = demo_v};
        return CLI_OK;
    }
    fv_array_opt finite = {0};
    int code = read_matrix(c, &in->q, o->q, finite);
    if (!code) code = read_matrix(c, &in->k, o->k, finite);
    if (!code) code = read_matrix(c, &in->v, o->v, finite);
    if (code) return code;

    const int64_t *q = in->q.shape.d, *k = in->k.shape.d, *v = in->v.shape.d;
    if (q[1] != k[1])
        return cli_fail(c, "%s is %lld wide and %s %lld: queries and keys must be equally wide",
                        o->q, (long long)q[1], o->k, (long long)k[1]);
    if (k[0] != v[0])
        return cli_fail(c, "%s has %lld rows and %s %lld: there must be one value for each key",
                        o->k, (long long)k[0], o->v, (long long)v[0]);
    *a = (attention){.Tq = q[0],
                     .Tk = k[0],
                     .Wk = q[1],
                     .Wv = v[1],
                     .q = in->q.data,
                     .k = in->k.data,
                     .v = in->v.data};
    return CLI_OK;
}

/* Sizes from here on are those of one head. The limit is on weights, because all of them are
 * printed or written. */
static int split_heads(const cli *c, const attend_values *o, attention *a)
{
    a->H = o->heads;
    if (a->Wk % a->H || a->Wv % a->H)
        return cli_fail(c, "%lld heads do not divide a width of %lld", (long long)a->H,
                        (long long)(a->Wk % a->H ? a->Wk : a->Wv));
    a->Wk /= a->H;
    a->Wv /= a->H;
    a->scale = 1 / sqrtf((float)a->Wk);
    a->causal = o->causal;
    if (a->Tq < 1 || a->Tk < 1 || a->Wv < 1)
        return cli_fail(c, "a matrix without rows or columns cannot be attended to");
    if (a->Tq > MAX_WEIGHTS / a->Tk || a->Tq * a->Tk > MAX_WEIGHTS / a->H)
        return cli_fail(
            c,
            "%lld queries on %lld keys in %lld heads are too many to look at: more than %d weights",
            (long long)a->Tq, (long long)a->Tk, (long long)a->H, MAX_WEIGHTS);
    return CLI_OK;
}

/* A file of 0 and 1 is a mask; one with other numbers is added to the scores, where -inf hides a
 * key. */
static int read_mask(const cli *c, const char *source, fv_array *m, attention *a)
{
    int code = read_matrix(c, m, source, (fv_array_opt){.nonfinite = true});
    if (code) return code;
    int64_t rows = m->shape.d[0], n = rows * m->shape.d[1];
    if ((rows != 1 && rows != a->Tq) || m->shape.d[1] != a->Tk)
        return cli_fail(c, "%s is %lld by %lld, but there are %lld queries and %lld keys", source,
                        (long long)rows, (long long)m->shape.d[1], (long long)a->Tq,
                        (long long)a->Tk);
    bool added = false;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(m->data[i]) || m->data[i] == INFINITY)
            return cli_fail(c, "%s: row %lld, column %lld is not a number that can mask", source,
                            (long long)(i / a->Tk + 1), (long long)(i % a->Tk + 1));
        added |= m->data[i] != 0 && m->data[i] != 1;
    }
    for (int64_t i = 0; i < a->H * a->Tq * a->Tk; i++) {
        float x = m->data[rows == 1 ? i % a->Tk : i % (a->Tq * a->Tk)];
        bool seen = added ? x != -INFINITY : x != 0;
        a->mask[i] = seen;
        a->bias[i] = added && x != -INFINITY ? x : 0;
    }
    a->masked = true;
    a->biased = added;
    return CLI_OK;
}

/* ---- computing ---- */

/* The tap: the operator passes by, and is asked for its weights. */
static void take_weights(void *user, fv_ctx *c, const char *site, const char *name,
                         const void *what)
{
    (void)name;
    attention *a = user;
    if (strcmp(site, "attention") != 0) return;
    for (int64_t h = 0; h < a->H; h++)
        if (fv_attn_view_weights(c, what, 0, h, 0, a->Tq, a->weights + h * a->Tq * a->Tk)) return;
}

/* Scores by a plain product for showing; output and weights by the operator itself, with its tap.
 */
static fv_status compute(fv_ctx *c, attention *a)
{
    fv_tensor *q = fv_floats(c, a->q, FV_SHAPE(1, a->Tq, a->H * a->Wk));
    fv_tensor *k = fv_floats(c, a->k, FV_SHAPE(1, a->Tk, a->H * a->Wk));
    fv_tensor *v = fv_floats(c, a->v, FV_SHAPE(1, a->Tk, a->H * a->Wv));
    for (int64_t h = 0; h < a->H; h++) {
        fv_tensor *qh = fv_slice(c, q, -1, h * a->Wk, (h + 1) * a->Wk),
                  *kh = fv_slice(c, k, -1, h * a->Wk, (h + 1) * a->Wk);
        fv_read(c, fv_matmul(c, qh, kh, (fv_mm){.tb = true}), a->scores + h * a->Tq * a->Tk,
                a->Tq * a->Tk);
    }
    fv_attn opt = {.n_head = a->H, .causal = a->causal, .name = "attend"};
    if (a->masked) {
        fv_shape s = FV_SHAPE(1, a->H, a->Tq, a->Tk);
        opt.mask = fv_bytes(c, a->mask, s);
        if (a->biased) opt.bias = fv_floats(c, a->bias, s);
    }
    fv_ctx_set_tap(c, take_weights, a);
    fv_tensor *y = fv_attention(c, q, k, v, opt);
    fv_read(c, y, a->output, a->Tq * a->H * a->Wv);
    return fv_ctx_status(c);
}

/* The step between scores and weights, for showing: causality as the operator has it, the last row
 * at the last key. */
static void scale_and_hide(attention *a)
{
    for (int64_t i = 0; i < a->H * a->Tq * a->Tk; i++) {
        int64_t key = i % a->Tk, position = i / a->Tk % a->Tq + a->Tk - a->Tq;
        a->scaled[i] = a->scale * a->scores[i] + a->bias[i];
        if (a->causal && key > position) a->mask[i] = 0;
    }
}

/* One thread: the matrices are small, and starting more would take longer than the work. */
static int work(const cli *c, const char *where, attention *a)
{
    fv_device *device;
    fv_ctx *ctx = NULL;
    fv_err e;
    fv_status st = fv_device_open(&device, where, (fv_device_opt){.threads = 1}, &e);
    if (!st) st = fv_ctx_new(&ctx, device, (fv_ctx_opt){0}, &e);
    if (!st && (st = compute(ctx, a))) e = *fv_ctx_err(ctx);
    fv_ctx_free(ctx);
    fv_device_close(device);
    return st ? cli_error(c, &e) : CLI_OK;
}

/* Allocates what the lesson shows, H maps of each kind, and fills it. */
static int solve(const cli *c, const attend_values *o, attention *a, fv_array *mask)
{
    size_t n = (size_t)(a->H * a->Tq * a->Tk);
    a->mask = malloc(n);
    a->bias = calloc(n, sizeof(float));
    a->scores = calloc(n, sizeof(float));
    a->scaled = calloc(n, sizeof(float));
    a->weights = calloc(n, sizeof(float));
    a->output = calloc((size_t)(a->Tq * a->H * a->Wv), sizeof(float));
    if (!a->mask || !a->bias || !a->scores || !a->scaled || !a->weights || !a->output)
        return cli_fail(c, "out of memory");
    memset(a->mask, 1, n);

    int code = o->mask ? read_mask(c, o->mask, mask, a) : CLI_OK;
    if (!code) code = work(c, o->device, a);
    if (!code) scale_and_hide(a);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    const attend_values *o = values;
    int given = !!o->q + !!o->k + !!o->v;
    if (given && given < 3)
        return cli_usage(
            c, "--q, --k and --v belong together; without any of them the example is shown");
    if (given && o->demo) return cli_usage(c, "--demo takes no files");

    input in = {0};
    attention a = {0};
    int code = take_input(c, o, &in, &a);
    if (!code) code = split_heads(c, o, &a);
    if (!code) code = solve(c, o, &a, &in.mask);
    if (!code && o->json)
        attend_json(&a);
    else if (!code)
        attend_print(&a, (int)o->digits);

    free(a.mask), free(a.bias), free(a.scores), free(a.scaled), free(a.weights), free(a.output);
    fv_array_close(&in.q), fv_array_close(&in.k), fv_array_close(&in.v), fv_array_close(&in.mask);
    return code;
}

const cli_command attend_command = {
    .name = "attend",
    .summary = "work attention out by hand on small matrices",
    .about = "Works out softmax(Q K' / sqrt(d)) V step by step and shows every number: the scores, "
             "the scaled and masked scores, the "
             "weights and the output, for each head.  Without files it shows a worked example.\n\n"
             "A FILE is a .csv (one row a line), a NumPy .npy, or one tensor of a safetensors "
             "file, written file.safetensors:name.",
    .options = options,
    .size = sizeof(attend_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
