/* caption.c - the objective of models that see and write: a text for each image.
 *
 * Records are those of a table whose first field names an image and whose second is its text.  The
 * decoder's input is the text shifted right behind decoder_start_token_id (teacher forcing), the
 * labels are the text itself with the end token. */
#include "base/base.h"
#include "data/feed_parts.h"
#include "data/pixels.h"
#include "data/ragged.h"
#include "fovea/author/objective.h"

typedef struct options {
    fv__new_steps steps;
    fv__augment augment;
    int64_t cache;
    char images[512], where[200], valid_where[200];
} options;

static const fv_field keys[] = {
    FV__PIXELS_KEYS(options),
    FV__IMAGES_KEYS(options),
    FV_TEXT(options, valid_where, "", "those that are evaluated on; empty: as where"),
    {0},
};

typedef struct captions {
    fv__pixels pixels; /* first: fv__pixels_count */
    const fv_env *env;
    fv_feed_opt task;
    fv__ragged text;
    int64_t max_len; /* tokens of a text, the end token included; longer ones are cut */
} captions;

static fv_images_opt source(const options *o, const fv_records *from, bool evaluation)
{
    const char *where = evaluation && *o->valid_where ? o->valid_where : o->where;
    return fv__images_source(from, o->images, where);
}

/* ---- texts ---- */

static fv_status texts(const fv_env *env, const void *own, const fv_records *from, fv_text_fn *each,
                       void *user, fv_err *e)
{
    fv_images_opt where = source(own, from, false);
    return fv__images_texts(env, &where, each, user, e);
}

/* The tokens of one text with the end token behind them, whether or not the tokenizer puts it
 * there. */
static fv_status add_text(void *user, fv_encoding *enc, const char *s, int64_t image, fv_err *e)
{
    captions *p = user;
    (void)image;
    fv_status st = fv_tok_encode(enc, s, strlen(s), (fv_tok_opts){.specials = true}, e);
    if (st) return st;
    int64_t n = enc->n;
    if (n && enc->ids[n - 1] == p->task.eos) n--;
    n = n < p->max_len ? n : p->max_len - 1;
    int32_t *ids = fv__alloc(p->env, (size_t)(n + 1) * sizeof *ids);
    if (!ids) return fv_fail(e, FV_ENOMEM, "out of memory for the texts");
    if (n) memcpy(ids, enc->ids, (size_t)n * sizeof *ids);
    ids[n] = p->task.eos;
    bool ok = fv__ragged_add(&p->text, ids, n + 1);
    fv__free(p->env, ids, (size_t)(n + 1) * sizeof *ids);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory for the texts");
}

/* ---- the feed ---- */

/* pixel_values (n,C,H,W), decoder_input_ids and labels (n,T). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const captions *p = self;
    fv_status st = fv__pixels_put(&p->pixels, out, rows, n, how, e);
    if (st) return st;
    int64_t T = fv__ragged_longest(&p->text, rows, n);
    int32_t *input = fv_batch_put(out, "decoder_input_ids", FV_I32, FV_SHAPE(n, T)),
            *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, T));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *ids = fv__ragged_row(&p->text, rows[i], &len);
        for (int64_t j = 0; j < T; j++) {
            input[i * T + j] = j == 0 ? p->task.start : j <= len ? ids[j - 1] : p->task.pad;
            label[i * T + j] = j < len ? ids[j] : -100;
        }
        out->labels += (double)len;
    }
    return FV_OK;
}

/* The image costs the same for all; texts of one length share a batch. */
static void size(const void *self, int64_t i, int64_t *from, int64_t *to)
{
    *from = 1;
    fv__ragged_row(&((const captions *)self)->text, i, to);
}

static void close_feed(void *self)
{
    captions *p = self;
    const fv_env *env = p->env;
    fv__pixels_close(&p->pixels);
    fv__ragged_free(&p->text);
    fv__free(env, p, sizeof *p);
}

static const fv_feed feed = {.count = fv__pixels_count,
                             .size = size,
                             .make = make,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    *out = (fv_feed){0};
    if (!t->tok || t->eos < 0)
        return fv_fail(e, FV_EARG,
                       "%s: the model needs a tokenizer with an end token beside its image "
                       "processor",
                       from->file);
    captions *p = fv__alloc(t->env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *p = (captions){.env = t->env,
                    .task = *t,
                    .text = {.env = t->env},
                    .max_len = from->max_len ? from->max_len : 512};
    fv_images_opt where = source(o, from, t->evaluation);
    fv_status st = fv__pixels_open_source(&p->pixels, t, &where, &o->augment, o->cache, report, e);
    if (!st) st = fv__pixels_texts(&p->pixels, t->tok, add_text, p, e);
    report->tokens[0] = p->text.n ? p->text.at[p->text.n] : 0;
    return fv__feed_give(out, &feed, p, st);
}

static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    fv_images_opt where = source(own, from, false);
    return fv__pixels_processor_of(out, env, &((const options *)own)->steps, &where, tok, e);
}

static const char *const loss_inputs[] = {"decoder_input_ids", "labels", NULL};
static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
static const char *const specials_bytes[] = {"<pad>", "</s>", NULL}; /* no byte is unknown */

const fv_objective fv__objective_caption = {
    .name = "caption",
    .help = "a text for each image",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "image",
    .specials = specials,
    .specials_bytes = specials_bytes,
    .after = "</s>",
    .texts = texts,
    .make_processor = make_processor,
    .head = FV_HEAD_SEQ2SEQ,
    .loss_inputs = loss_inputs,
    .generates = true,
    .open = open_feed,
};
