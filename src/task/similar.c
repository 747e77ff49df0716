/* similar.c - the task of comparing: the cosine of the embeddings of two texts.
 *
 * A record is a pair with a tab between its texts.  Both sides of a batch are embedded in one call,
 * so texts of like length go through the model together whichever side they are on.
 *
 *     plain   0.873412
 *     --json  {"text", "pair", "similarity"} */
#include <math.h>

#include "task_pipeline.h"

typedef struct similar_options {
    bool truncate;
} similar_options;

static const fv_field options[] = {FV_BOOL(similar_options, truncate, false,
                                           "cut texts that are longer than the model sees"),
                                   {0}};

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    return fv__open_encoder(p, FV_JOB_EMBED, e);
}

/* Vectors need not have length 1: a directory may say that they are not scaled. */
static double cosine(const float *x, const float *y, int64_t n)
{
    double xy = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < n; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

static void put(fv_pipeline *p, const fv_text *x, double similarity)
{
    fv_buf *b = &p->out;
    if (!p->opt.json) {
        fv__buf_fmt(b, "%.6f\n", similarity);
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "text", x->s, x->n);
    fv__json_text_at(b, "pair", x->pair, x->pair_n);
    fv__json_number_at(b, "similarity", similarity);
    fv__buf_str(b, "}\n");
}

/* Both sides of all pairs are embedded in one call, which sorts texts by length and fills batches.
 */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    int64_t width = fv_task_width(p->task);
    size_t bytes = (size_t)(2 * n * width) * sizeof(float),
           text_bytes = (size_t)(2 * n) * sizeof(fv_text);
    float *x = fv__alloc(&p->env, bytes);
    fv_text *both = fv__alloc(&p->env, text_bytes);
    fv_status st = x && both ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    p->task->strict = !((const similar_options *)p->options)->truncate;
    for (int64_t i = 0; i < n && !st; i++) {
        if (!in[i].pair)
            st = fv_fail(e, FV_EARG, "two texts with a tab between them were expected");
        both[i] = (fv_text){.s = in[i].s, .n = in[i].n};
        both[n + i] = (fv_text){.s = in[i].pair, .n = in[i].pair_n};
    }
    if (!st) st = fv_task_embed(p->task, both, 2 * n, (fv_embed_opt){0}, x, e);
    for (int64_t i = 0; i < n && !st; i++) {
        put(p, &in[i], cosine(x + i * width, x + (n + i) * width, width));
        st = fv__task_emit(p, e);
    }
    fv__free(&p->env, x, bytes);
    fv__free(&p->env, both, text_bytes);
    return st;
}

static const fv_task_example examples[] = {
    {"fovea similar -m all-MiniLM-L6-v2 pairs.tsv", "a number between -1 and 1 for each line"},
    {"printf 'a dog runs\\ta cat sleeps\\n' | fovea similar -m all-MiniLM-L6-v2 --json", "as JSON"},
    {0}};

const fv_task_kind fv__similar_task = {
    .name = "similar",
    .summary = "measure how similar the two texts of each line are",
    .about = "Reads lines of two texts with a tab between them and prints the cosine of their "
             "embeddings, computed as \"fovea embed\" does.",
    .examples = examples,
    .options = options,
    .size = sizeof(similar_options),
    .pairs = true,
    .aligned = true,
    .batch = 128,
    .open = open_task,
    .run = run};
