/* embed.c - a vector for each text: its tokens' states pooled, through dense layers where the
 * directory has such, scaled to length 1.
 *
 * Follows sentence-transformers: Pooling, then Dense modules, then Normalize, each as the
 * directory's modules.json lists them (embed_modules.c reads them); without modules a mean over
 * the tokens, scaled. Padding never takes part: a sequence is as long as its tokens.
 *
 * Pooling and dense layers run on the CPU in double: a few hundred thousand multiplications a
 * text, against billions in the model. */
#include <math.h>

#include "fovea/array.h"
#include "task_pipeline.h"

/* One for each call; step lives in the task's scratch until the next call. */
typedef struct pooling {
    const fv_task *t;
    fv_pool pool;
    bool normal;
    int64_t width;        /* of a vector */
    float *out, *step[2]; /* step: capacity for the widest vector on its way */
} pooling;

/* Of the model's states. */
static int64_t state_width(const fv_task *t)
{
    /* The first key that is there gives the width; families name it differently. */
    static const char *const keys[] = {"projection_dim", /* of images and texts in one space */
                                       "vision_config.hidden_size",
                                       "hidden_size",
                                       "dim",
                                       "d_model",
                                       "n_embd",
                                       NULL};
    int64_t width = 0;
    for (int i = t->job == FV_JOB_CONTRAST ? 0 : 2; keys[i] && !width; i++)
        width = fv__task_setting(t, keys[i]);
    return width;
}

/* Behind the dense layers that sentence-transformers may add; each must fit the one before. */
int64_t fv_task_width(const fv_task *t)
{
    int64_t width = state_width(t);
    for (const fv_dense *d = t->dense; d; d = d->next) width = d->out;
    return width;
}

static void scale_to_one(float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)y[i] * (double)y[i];
    /* torch.nn.functional.normalize's epsilon: a vector of zeros stays one. */
    double by = 1 / fmax(sqrt(sum), 1e-12);
    for (int64_t i = 0; i < n; i++) y[i] = (float)((double)y[i] * by);
}

/* One column of the states of n tokens, `width` apart. */
static double pool_column(fv_pool pool, const float *x, int64_t n, int64_t width)
{
    double sum = 0, weighted = 0, most = -INFINITY;
    /* Mean of tokens 1 to n weighted by their position (SGPT), or mean_sqrt_len's sum / sqrt(n). */
    for (int64_t t = 0; t < n; t++) {
        double at = x[t * width];
        sum += at;
        weighted += at * (double)(t + 1);
        most = at > most ? at : most;
    }
    if (!n) return 0;
    switch (pool) {
    case FV_POOL_CLS: return x[0];
    case FV_POOL_LAST: return x[(n - 1) * width];
    case FV_POOL_MAX: return most;
    case FV_POOL_WEIGHTED: return weighted / ((double)n * (double)(n + 1) / 2);
    case FV_POOL_ROOT: return sum / sqrt((double)n);
    default: return sum / (double)n;
    }
}

/* y = act(w x + b) */
static void dense_fwd(const fv_dense *d, const float *x, float *y)
{
    for (int64_t i = 0; i < d->out; i++) {
        double sum = d->b ? d->b[i] : 0;
        for (int64_t j = 0; j < d->in; j++) sum += (double)d->w[i * d->in + j] * (double)x[j];
        y[i] = (float)(d->tanh ? tanh(sum) : sum);
    }
}

/* Tokens (n,width) become one vector: pooled, through the dense layers, and of length 1 unless the
 * directory or the caller says otherwise. Two buffers take turns. */
static fv_status pool_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    const pooling *p = user;
    float *x = p->step[0], *next = p->step[1], *y = p->out + i * p->width;
    (void)e;
    for (int64_t j = 0; j < width; j++) x[j] = (float)pool_column(p->pool, out[0] + j, s->n, width);
    for (const fv_dense *d = p->t->dense; d; d = d->next) {
        dense_fwd(d, x, next);
        float *swap = x;
        x = next;
        next = swap;
    }
    memcpy(y, x, (size_t)p->width * sizeof *y);
    if (p->normal) scale_to_one(y, p->width);
    return FV_OK;
}

/* The texts with the directory's prompt before each; pairs stay as they are behind it. */
static fv_status with_prompt(fv_task *t, const fv_text **texts, int64_t n, fv_err *e)
{
    size_t len = t->prompt ? strlen(t->prompt) : 0;
    if (!len) return FV_OK;
    fv_text *own = fv__task_claim(t, (size_t)n * sizeof *own, e);
    for (int64_t i = 0; own && i < n; i++) {
        char *s = fv__task_claim(t, len + (*texts)[i].n + 1, e);
        if (!s) return FV_ENOMEM;
        memcpy(s, t->prompt, len);
        memcpy(s + len, (*texts)[i].s, (*texts)[i].n);
        own[i] = (*texts)[i];
        own[i].s = s;
        own[i].n += len;
    }
    *texts = own;
    return own ? FV_OK : FV_ENOMEM;
}

/* Of images and texts in one space the model gives the vector itself. */
static fv_status keep_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    const pooling *p = user;
    float *y = p->out + i * width;
    (void)s, (void)e;
    memcpy(y, out[0], (size_t)width * sizeof *y);
    if (p->normal) scale_to_one(y, width);
    return FV_OK;
}

/* Runs of images and of texts, each through its half of the model. */
static fv_status embed_both(fv_task *t, const fv_text *texts, int64_t n, pooling *p, fv_err *e)
{
    fv_status st = FV_OK;
    /* Neighbours of one kind go together, and the order of the input is kept. */
    for (int64_t i = 0, k; !st && i < n; i += k) {
        bool image = fv__names_image(&texts[i]);
        for (k = 1; i + k < n && fv__names_image(&texts[i + k]) == image;) k++;
        fv_seq *seqs;
        fv_wanted w = {.names = {image ? "image_embeds" : "text_embeds"},
                       .per_token = 1,
                       .fn = keep_row,
                       .user = p};
        if (image) {
            st = fv__task_run_images(t, texts + i, k, &w, e);
        } else {
            st = fv__task_encode_all(t, &seqs, texts + i, k, e);
            if (!st) st = fv__task_run(t, seqs, k, &w, e);
        }
        /* keep_row counts from 0 in each run. */
        p->out += k * p->width;
    }
    return st;
}

fv_status fv_task_embed(fv_task *t, const fv_text *texts, int64_t n, fv_embed_opt opt, float *out,
                        fv_err *e)
{
    int64_t widest = state_width(t);
    pooling p = {.t = t,
                 /* The caller's choice, the directory's, the class token for images, else the
                  * mean. */
                 .pool = opt.pool           ? opt.pool
                         : t->pool          ? t->pool
                         : fv__task_sees(t) ? FV_POOL_CLS
                                            : FV_POOL_MEAN,
                 .normal = !opt.raw && !t->not_normal,
                 .width = fv_task_width(t),
                 .out = out};
    fv_seq *seqs;
    fv_wanted w = {.names = {"last_hidden_state"},
                   .per_token = state_width(t),
                   .fn = pool_row,
                   .user = &p};
    for (const fv_dense *d = t->dense; d; d = d->next) widest = d->out > widest ? d->out : widest;
    fv__task_begin(t);
    if (t->job == FV_JOB_CONTRAST) return embed_both(t, texts, n, &p, e);
    for (int i = 0; i < 2; i++)
        if (!(p.step[i] = fv__task_claim(t, (size_t)widest * sizeof(float), e))) return FV_ENOMEM;
    if (fv__task_sees(t)) return fv__task_run_images(t, texts, n, &w, e);
    fv_status st = with_prompt(t, &texts, n, e);
    if (!st) st = fv__task_encode_all(t, &seqs, texts, n, e);
    return st ? st : fv__task_run(t, seqs, n, &w, e);
}

/* ---- the task ---- */

typedef struct embed_options {
    int pool;
    bool raw, truncate;
    char output[FV_PATH];
} embed_options;

static const char *const pools[] = {"given",        "mean",          "cls", "max", "lasttoken",
                                    "weightedmean", "mean_sqrt_len", NULL}; /* fv_pool */

static const fv_field options[] = {
    FV_CHOICE(embed_options, pool, 0, pools,
              "how a text's tokens become one vector; given: as 1_Pooling/config.json says, else "
              "their mean"),
    FV_BOOL(embed_options, raw, false, "do not scale vectors to length 1"),
    FV_BOOL(embed_options, truncate, false, "cut texts that are longer than the model sees"),
    FV_TEXT(embed_options, output, "", "FILE: write the vectors there instead, as .npy or .csv"),
    {0}};

/* All vectors, where they go to a file at the end.
 * The array's header needs the number of rows, which is known at the end only. */
typedef struct kept {
    fv_buf vectors;
} kept;

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(kept), e);
    if (st) return st;
    ((kept *)p->self)->vectors.env = &p->env;
    bool both = fv__head_job(p->opt.model, NULL, 0) == FV_HEAD_CONTRASTIVE;
    return fv__open_encoder(p, both ? FV_JOB_CONTRAST : FV_JOB_EMBED, e);
}

static void close_task(fv_pipeline *p)
{
    if (p->self) fv__buf_free(&((kept *)p->self)->vectors);
}

/* An image and a text of one space are told apart by key. */
static void put_vector(fv_pipeline *p, const fv_text *text, const float *x, int64_t width)
{
    fv_buf *b = &p->out;
    if (!p->opt.json) {
        /* Nine digits: a float32 reads back exactly. */
        for (int64_t j = 0; j < width; j++) fv__buf_fmt(b, "%s%.9g", j ? " " : "", (double)x[j]);
        fv__buf_str(b, "\n");
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, fv__task_sees(p->task) && fv__names_image(text) ? "image" : "text", text->s,
                     text->n);
    fv__json_key(b, "embedding");
    fv__json_begin(b, '[');
    for (int64_t j = 0; j < width; j++) fv__json_put_number(b, (double)x[j]);
    fv__buf_str(b, "]}\n");
}

/* With --output vectors are kept until the end, because a .npy file says its number of rows in
 * front. */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    const embed_options *o = p->options;
    int64_t width = fv_task_width(p->task);
    size_t bytes = (size_t)(n * width) * sizeof(float);
    float *x = fv__alloc(&p->env, bytes);
    fv_status st = x ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    p->task->strict = !o->truncate;
    if (!st)
        st = fv_task_embed(p->task, in, n, (fv_embed_opt){.pool = (fv_pool)o->pool, .raw = o->raw},
                           x, e);
    for (int64_t i = 0; i < n && !st; i++) {
        if (o->output[0])
            fv__task_extra(p, x + i * width, (size_t)width * sizeof *x);
        else
            put_vector(p, &in[i], x + i * width, width);
        st = fv__task_emit(p, e);
    }
    fv__free(&p->env, x, bytes);
    return st;
}

static fv_status add(fv_pipeline *p, const void *extra, size_t n, fv_err *e)
{
    kept *k = p->self;
    fv__buf_add(&k->vectors, extra, n);
    return k->vectors.failed ? fv_fail(e, FV_ENOMEM, "out of memory for the vectors") : FV_OK;
}

static fv_status save(fv_pipeline *p, fv_err *e)
{
    const embed_options *o = p->options;
    kept *k = p->self;
    int64_t width = fv_task_width(p->task);
    if (!o->output[0]) return FV_OK;
    fv_array a = {.shape = FV_SHAPE((int64_t)(k->vectors.len / sizeof(float)) / width, width),
                  .data = (float *)(void *)k->vectors.data};
    return fv_array_save(&a, &p->env, o->output, e);
}

static const fv_task_example examples[] = {
    {"fovea embed -m all-MiniLM-L6-v2 sentences.txt -o vectors.npy",
     "a row for each line of the file"},
    {"echo 'a dog runs' | fovea embed -m all-MiniLM-L6-v2 --json", "one vector as JSON"},
    {"fovea embed -m bert-base-uncased --pool cls sentences.txt",
     "the first token's state, from any encoder"},
    {"fovea embed -m clip-vit-base-patch32 photos/ -o images.npy",
     "images, in the space of texts where the model has one"},
    {0}};

const fv_task_kind fv__embed_task = {
    .name = "embed",
    .summary = "compute a vector for each text or image",
    .about =
        "Reads lines and prints a vector for each, as sentence-transformers computes it: the "
        "states of a text's tokens are averaged (or the first is taken, as the directory "
        "says) and scaled to length 1, so that the dot product of two vectors is their "
        "cosine.  A text longer than the model sees is refused, or cut with --truncate.  A model "
        "of images reads paths of PNG and JPEG files (the class token's state, or --pool mean); "
        "one of images and texts (CLIP, SigLIP) reads both and puts them into one space.",
    .examples = examples,
    .options = options,
    .size = sizeof(embed_options),
    .images = true,
    .aligned = true,
    .batch = 256,
    .open = open_task,
    .run = run,
    .add = add,
    .finish = save,
    .close = close_task,
    .eval = &fv__eval_retrieve};
