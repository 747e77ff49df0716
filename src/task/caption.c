/* caption.c - what is in images, in words, by models with an encoder that sees and a decoder that
 * writes.
 *
 * Images of one size go through the model together; what is written for one does not depend on the
 * others.  How to generate stands in generation_config.json; options override it. */
#include "fovea/author/family.h"
#include "fovea/author/gen.h"
#include "task_pipeline.h"

enum { TOGETHER = 16, NEW_TOKENS = 48 };

typedef struct caption_options {
    bool scores;
} caption_options;

static const fv_field options[] = {FV_BOOL(caption_options, scores, false,
                                           "the score of each text behind it, after a tab"),
                                   {0}};

/* ---- generating ---- */

typedef struct stack {
    float *x; /* (n,C,H,W) */
    size_t bytes;
    int64_t n;
    int channels, height, width;
} stack;

/* Called by the generator once it has a context: the batch of images is the encoder's input. */
static void put_source(void *user, fv_ctx *c, fv_items *in)
{
    const stack *s = user;
    fv_items_put(in, "pixel_values",
                 fv_floats(c, s->x, FV_SHAPE(s->n, s->channels, s->height, s->width)));
}

/* A tokenizer need not know the end as a special token, so it is taken off by its id. */
static int64_t without_end(const fv_gen_opt *o, const fv_hyp *h)
{
    if (!h->n) return 0;
    for (int i = 0; i < o->n_ends; i++)
        if (o->ends[i] == h->ids[h->n - 1]) return h->n - 1;
    return h->ids[h->n - 1] == o->eos ? h->n - 1 : h->n;
}

/* Writes for what is stacked, and hands each text on; the stack is empty afterwards. */
static fv_status flush(const fv__captions *c, stack *s, int64_t first, fv_err *e)
{
    fv_generated g = {0};
    fv_gen_opt how = c->writer->gen;
    how.num_return_sequences = 1;
    if (!s->n) return FV_OK;
    fv_status st = fv_generate_from(&g, c->writer->device, c->writer->model, put_source, s, s->n,
                                    &how, e);
    for (int64_t i = 0; !st && i < s->n; i++) {
        fv_buf text = {.env = c->env}, none = {.env = c->env};
        int64_t n = without_end(&how, &g.hyp[i]);
        st = fv__writer_decode(c->writer, &text, &none, g.hyp[i].ids, n, e);
        const char *s0 = text.data ? text.data : "";
        size_t len = text.len;
        while (len && *s0 == ' ') s0++, len--;
        while (len && s0[len - 1] == ' ') len--;
        if (!st) st = c->each(c->user, first + i, s0, len, &g.hyp[i], e);
        fv__buf_free(&text);
    }
    fv_generated_free(&g);
    s->n = 0;
    return st;
}

/* Room for images of another size than the last ones, or for the first. */
static fv_status resize(const fv__captions *c, stack *s, const fv_image *fit, fv_err *e)
{
    s->channels = fit->channels, s->height = fit->height, s->width = fit->width;
    size_t bytes = (size_t)TOGETHER * (size_t)fit->channels * (size_t)fit->height *
                   (size_t)fit->width * sizeof(float);
    void *x = s->x;
    if (!fv__grow(c->env, &x, &s->bytes, bytes))
        return fv_fail(e, FV_ENOMEM, "out of memory for %d images", TOGETHER);
    s->x = x;
    return FV_OK;
}

/* Images of one size go through the model together; another size, which a processor may give for
 * another shape of image, flushes what has been collected. */
fv_status fv__captions_write(const fv__captions *c, int64_t n, fv_err *e)
{
    fv_image raw = {0}, fit = {0};
    stack s = {0};
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++) {
        st = c->get(c->user, i, &raw, e);
        if (!st) st = fv_processor_image_fit(c->processor, &fit, &raw, e);
        bool same = s.x && s.height == fit.height && s.width == fit.width;
        if (!st && (!same || s.n == TOGETHER)) st = flush(c, &s, i - s.n, e);
        if (!st && !same) st = resize(c, &s, &fit, e);
        size_t each = (size_t)s.channels * (size_t)s.height * (size_t)s.width;
        if (!st) fv_processor_image_floats(c->processor, &fit, s.x + (size_t)s.n++ * each, 0, 0);
    }
    if (!st) st = flush(c, &s, n - s.n, e);
    fv__free(c->env, s.x, s.bytes);
    fv_image_free(&raw);
    fv_image_free(&fit);
    return st;
}

fv_status fv__captions_open(fv_processor **out, const fv_writer *w, const fv_env *env, fv_err *e)
{
    *out = NULL;
    if (!fv_family_takes(fv_model_family(w->model), "pixel_values"))
        return fv_fail(e, FV_EARG, "%s: %s sees no images", fv_dir_path(w->dir),
                       fv_model_head(w->model));
    return fv_processor_open(out, env, "image", fv_dir_path(w->dir), e);
}

/* ---- the task ---- */

typedef struct captioner {
    fv_processor *processor;
    fv_pipeline *p;
    const fv_text *in;
} captioner;

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(captioner), e);
    if (!st) st = fv__open_writer(p, "image-to-text", NEW_TOKENS, e);
    return st ? st : fv__captions_open(&((captioner *)p->self)->processor, &p->writer, &p->env, e);
}

static void close_task(fv_pipeline *p)
{
    captioner *t = p->self;
    if (t) fv_processor_close(t->processor);
}

static fv_status get(void *user, int64_t i, fv_image *raw, fv_err *e)
{
    const captioner *t = user;
    const fv_text *x = &t->in[i];
    char path[FV_PATH];
    if (!x->n || x->n >= sizeof path || memchr(x->s, 0, x->n))
        return fv_fail(e, FV_EARG, "no path of an image");
    memcpy(path, x->s, x->n);
    path[x->n] = 0;
    return fv_image_open(raw, &t->p->env, path, e);
}

static fv_status each(void *user, int64_t i, const char *text, size_t n, const fv_hyp *h, fv_err *e)
{
    captioner *t = user;
    fv_pipeline *p = t->p;
    p->tokens += h->n;
    if (!p->opt.json) {
        fv__put_flat(&p->out, text, n);
        if (((const caption_options *)p->options)->scores)
            fv__buf_fmt(&p->out, "\t%.4f", (double)h->score);
        fv__buf_str(&p->out, "\n");
        return fv__task_emit(p, e);
    }
    fv__json_begin(&p->out, '{');
    fv__json_text_at(&p->out, "image", t->in[i].s, t->in[i].n);
    fv__json_text_at(&p->out, "caption", text, n);
    fv__json_number_at(&p->out, "score", h->score);
    fv__json_key(&p->out, "ids");
    fv__json_begin(&p->out, '[');
    for (int64_t k = 0; k < h->n; k++) fv__json_put_int(&p->out, h->ids[k]);
    fv__json_end(&p->out, ']');
    fv__json_end(&p->out, '}');
    fv__buf_str(&p->out, "\n");
    return fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    captioner *t = p->self;
    t->p = p;
    t->in = in;
    fv__captions c = {.env = &p->env,
                      .writer = &p->writer,
                      .processor = t->processor,
                      .get = get,
                      .each = each,
                      .user = t};
    return fv__captions_write(&c, n, e);
}

static const fv_task_example examples[] = {
    {"fovea caption -m vit-gpt2-image-captioning photo.jpg", "a line of text"},
    {"fovea caption -m vit-gpt2-image-captioning --num-beams 4 --json photos/",
     "all of a folder, for scripts"},
    {0}};

const fv_task_kind fv__caption_task = {
    .name = "caption",
    .summary = "describe images in words",
    .about = "Reads images, named on the command line or a path on each line of standard input, "
             "and writes a line of text for each.  How to generate stands in the model's "
             "generation_config.json; options override it.",
    .examples = examples,
    .options = options,
    .size = sizeof(caption_options),
    .generates = true,
    .images = true,
    .batch = TOGETHER,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_caption};
