/* attend.c - fovea attend: attention by hand on small matrices.
 *
 * Scores come from a plain matrix product.  The output is that of the tiled operator, which never
 * stores a weight; the weights shown are recomputed from the log-sum-exp that it keeps, so the
 * lesson is about the operator that models use. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/array.h"
#include "fovea/see.h"
#include "cli.h"

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
static int take_input(const cli *c, const attend_values *o, input *in, fv_see_steps *a)
{
    if (!o->q && !o->k && !o->v) {
        *a = (fv_see_steps){
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
    *a = (fv_see_steps){.Tq = q[0],
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
static int split_heads(const cli *c, const attend_values *o, fv_see_steps *a)
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
static int read_mask(const cli *c, const char *source, fv_array *m, fv_see_steps *a)
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

/* One thread: the matrices are small, and starting more would take longer than the work. */
static int work(const cli *c, const char *where, fv_see_steps *a)
{
    fv_device *device;
    fv_err e;
    int code = cli_open_device(c, &device, where, 1);
    if (code == CLI_OK && fv_see_attention(device, a, &e)) code = cli_error(c, &e);
    fv_device_close(device);
    return code;
}

/* Allocates what the lesson shows, H maps of each kind, and fills it. */
static int solve(const cli *c, const attend_values *o, fv_see_steps *a, fv_array *mask)
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
    return code ? code : work(c, o->device, a);
}

/* ---- showing ---- */

enum { ROWS = 12, COLS = 12 }; /* more are cut: what does not fit a screen is not read */

/* Cells of equal width; those whose mask is 0 are shown as "hidden". */
static void print_table(const char *row, const char *column, const float *x, const uint8_t *mask,
                        int64_t rows, int64_t cols, int digits)
{
    int64_t shown_rows = rows < ROWS ? rows : ROWS, shown = cols < COLS ? cols : COLS;
    int width = (int)strlen(column) + 3, label = (int)strlen(row) + 4;
    for (int64_t i = 0; i < shown_rows * shown; i++) {
        int w = snprintf(NULL, 0, "%.*f", digits, (double)x[i / shown * cols + i % shown]);
        if (w > width) width = w;
    }

    printf("   %*s", label, "");
    for (int64_t j = 0; j < shown; j++) {
        char head[32];
        snprintf(head, sizeof head, "%s %lld", column, (long long)(j + 1));
        printf(" %*s", width, head);
    }
    for (int64_t i = 0; i < shown_rows; i++) {
        printf("\n   %s %-*lld", row, label - (int)strlen(row) - 1, (long long)(i + 1));
        for (int64_t j = 0; j < shown; j++) {
            if (mask && !mask[i * cols + j])
                printf(" %*s", width, "hidden");
            else
                printf(" %*.*f", width, digits, (double)x[i * cols + j]);
        }
        if (shown < cols) printf("  ...");
    }
    putchar('\n');
    if (shown < cols) printf("   (%lld columns more)\n", (long long)(cols - shown));
    if (shown_rows < rows) printf("   (%lld rows more)\n", (long long)(rows - shown_rows));
}

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

/* The first row in words: where it looks most, or that it sees nothing. */
static void print_first_row(const float *w, int64_t n, int digits)
{
    int64_t most = 0;
    float sum = 0;
    for (int64_t j = 0; j < n; j++) {
        if (w[j] > w[most]) most = j;
        sum += w[j];
    }
    if (sum == 0)
        puts("   Row 1 sees no key at all: its weights and its output are zero.");
    else
        printf("   Row 1 looks most at key %lld (%.*f).\n", (long long)(most + 1), digits,
               (double)w[most]);
}

/* The three steps of one head, each with the sentence that explains it. */
static void print_head(const fv_see_steps *a, int64_t h, int digits)
{
    int64_t at = h * a->Tq * a->Tk;
    if (a->H > 1)
        printf("\nHead %lld: columns %lld to %lld of Q and K\n", (long long)(h + 1),
               (long long)(h * a->Wk + 1), (long long)((h + 1) * a->Wk));

    printf("\n1. Scores, Q K': how well each query fits each key, the product of their rows.\n\n");
    print_table("row", "key", a->scores + at, NULL, a->Tq, a->Tk, digits);

    printf("\n2. Scaled by 1 / sqrt(%lld) = %.*f, so that scores do not grow with the width",
           (long long)a->Wk, digits, (double)a->scale);
    if (a->biased) printf("; the mask is added");
    if (a->causal) printf(";\n   keys after a row's own position are hidden");
    if (a->masked) printf("; keys that the mask leaves out are hidden");
    printf(".\n\n");
    print_table("row", "key", a->scaled + at, a->mask + at, a->Tq, a->Tk, digits);

    printf("\n3. Weights, softmax of each row: exp(score) divided by the sum of the row's, so that "
           "they add up to 1.\n\n");
    print_table("row", "key", a->weights + at, NULL, a->Tq, a->Tk, digits);
    print_first_row(a->weights + at, a->Tk, digits);
}

/* The first number of the output, term by term. */
static void print_first_output(const fv_see_steps *a, int digits)
{
    if (a->Tk > 6) return;
    printf("   Row 1, column 1:");
    for (int64_t j = 0; j < a->Tk; j++)
        printf("%s %.*f x %.*f", j ? " +" : "", digits, (double)a->weights[j], digits,
               (double)a->v[j * a->H * a->Wv]);
    printf(" = %.*f\n", digits, (double)a->output[0]);
}

/* The lesson: each step with its numbers, `digits` behind the point. */
static void print_text(const fv_see_steps *a, int digits)
{
    printf("Attention of %lld quer%s on %lld key%s, in %lld head%s: softmax(Q K' / sqrt(d)) V\n",
           (long long)a->Tq, a->Tq == 1 ? "y" : "ies", (long long)a->Tk, plural(a->Tk),
           (long long)a->H, plural(a->H));
    for (int64_t h = 0; h < a->H; h++) print_head(a, h, digits);
    printf("\n4. Output, weights times V: each row is the values, mixed by its weights%s.\n\n",
           a->H > 1 ? "; the heads stand side by side" : "");
    print_table("row", "col", a->output, NULL, a->Tq, a->H * a->Wv, digits);
    print_first_output(a, digits);
}

/* (H,Tq,Tk), null where the mask is 0. */
static void put_heads(cli_json *j, const char *key, const fv_see_steps *a, const float *x,
                      const uint8_t *mask)
{
    cli_json_put(j, "s:[", key);
    for (int64_t h = 0; h < a->H; h++) {
        int64_t at = h * a->Tq * a->Tk;
        cli_json_matrix(j, x + at, mask ? mask + at : NULL, a->Tq, a->Tk);
    }
    cli_json_put(j, "]");
}

static void print_json(const fv_see_steps *a)
{
    cli_json j = {0};
    cli_json_put(&j, "{s:I, s:I, s:I, s:b, s:f", "queries", a->Tq, "keys", a->Tk, "heads", a->H,
                 "causal", a->causal, "scale", (double)a->scale);
    put_heads(&j, "scores", a, a->scores, NULL);
    put_heads(&j, "scaled", a, a->scaled, a->mask);
    put_heads(&j, "weights", a, a->weights, NULL);
    cli_json_put(&j, "s:", "output");
    cli_json_matrix(&j, a->output, NULL, a->Tq, a->H * a->Wv);
    cli_json_put(&j, "}");
    cli_json_end();
}

/* ---- the command ---- */

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
    fv_see_steps a = {0};
    int code = take_input(c, o, &in, &a);
    if (!code) code = split_heads(c, o, &a);
    if (!code) code = solve(c, o, &a, &in.mask);
    if (!code && o->json)
        print_json(&a);
    else if (!code)
        print_text(&a, (int)o->digits);

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
    CLI_OWN(attend_values),
    .defaults = &defaults,
};
