/* data.c - [data] and [tokenizer]: a tokenizer, and a feed for each file. */
#include <stdio.h>

#include "train/recipe/recipe.h"

void fv__recipe_path(char out[FV_PATH], const char *dir, const char *name)
{
    bool whole = !*dir || !*name || *name == '/';
    snprintf(out, FV_PATH, "%s%s%s", whole ? "" : dir, whole ? "" : "/", name);
}

/* ---- the tokenizer ---- */

static const char *given(const char *s) { return *s ? s : NULL; }

static fv_records records(const fv_recipe *r, const char *file, const char *beside, int64_t most)
{
    const fv_data_opt *d = &r->data;
    return (fv_records){.file = file,
                        .beside = given(beside),
                        .format = (fv_format)d->format,
                        .field = {given(d->source_field), given(d->target_field)},
                        .header = d->header,
                        .latin1 = d->latin1,
                        .malformed = (fv_policy)d->malformed,
                        .empty = (fv_policy)d->empty,
                        .too_long = (fv_policy)d->too_long,
                        .max_len = d->max_len,
                        .most = most};
}

typedef struct texts {
    fv_buf all; /* each ending in NUL */
    size_t at;
} texts;

static bool next_text(void *self, const char **text, size_t *len)
{
    texts *t = self;
    if (t->at >= t->all.len) return false;
    *text = t->all.data + t->at;
    *len = strlen(*text);
    t->at += *len + 1;
    return true;
}

static const char *const *specials_of(const fv_recipe *r)
{
    static const char *const pairs[] = {"<pad>", "</s>", "<unk>", NULL}, *const pairs_bytes[] = {
                                                                             "<pad>", "</s>", NULL};
    static const char *const frame[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>", NULL};
    static const char *const holes[] = {"<pad>",         "</s>",          "<unk>",
                                        "<extra_id_0>",  "<extra_id_1>",  "<extra_id_2>",
                                        "<extra_id_3>",  "<extra_id_4>",  "<extra_id_5>",
                                        "<extra_id_6>",  "<extra_id_7>",  "<extra_id_8>",
                                        "<extra_id_9>",  "<extra_id_10>", "<extra_id_11>",
                                        "<extra_id_12>", "<extra_id_13>", "<extra_id_14>",
                                        "<extra_id_15>", "<extra_id_16>", "<extra_id_17>",
                                        "<extra_id_18>", "<extra_id_19>", "<extra_id_20>",
                                        "<extra_id_21>", "<extra_id_22>", "<extra_id_23>",
                                        "<extra_id_24>", "<extra_id_25>", "<extra_id_26>",
                                        "<extra_id_27>", "<extra_id_28>", "<extra_id_29>",
                                        "<extra_id_30>", "<extra_id_31>", NULL};
    if (r->tokenizer.kind == FV_TOK_WORDPIECE) return NULL; /* BERT's own */
    switch ((fv_objective)r->data.objective) {
    case FV_SEQ2SEQ: return r->tokenizer.kind == FV_TOK_BYTE_BPE ? pairs_bytes : pairs;
    case FV_CAUSAL: return NULL;
    case FV_SPANS: return holes;
    default: return frame;
    }
}

static fv_status train_tokenizer(fv__recipe_run *k)
{
    const fv_recipe *r = k->r;
    const fv_tokenizer_opt *o = &r->tokenizer;
    bool wordpiece = o->kind == FV_TOK_WORDPIECE,
         ends = r->data.objective == FV_SEQ2SEQ || r->data.objective == FV_SPANS;
    bool framed = !wordpiece && !ends && r->data.objective != FV_CAUSAL;
    fv_tok_train_opts how = {.kind = (fv_tok_kind)o->kind,
                             .vocab = (int32_t)o->vocab,
                             .min_count = o->min_count,
                             .specials = specials_of(r),
                             .before = framed ? "<s>" : NULL,
                             .after = !wordpiece && (ends || framed) ? "</s>" : NULL,
                             .lowercase = o->lowercase,
                             .nfkc = o->nfkc};
    char path[FV_PATH], other[FV_PATH];
    texts t = {.all = {.env = k->env}};
    fv__recipe_path(path, r->data.dir, r->data.train);
    fv__recipe_path(other, r->data.dir, r->data.train_target);
    fv_records from = records(r, path, other, 0);
    fv_status st = fv__recipe_prefix_error(r, "[data] train", fv__recipe_texts(k, &from, &t.all),
                                           k->e);
    if (!st) st = fv_tok_train(&k->tok, k->env, (fv_tok_source){next_text, &t}, &how, k->e);
    fv__buf_free(&t.all);
    if (!st) fv__recipe_log(k, "tokenizer: %d tokens, trained on the data", fv_tok_size(k->tok));
    return st;
}

static int32_t any_id(const fv_tok *t, const char *const *names)
{
    for (int32_t id; *names; names++)
        if ((id = fv_tok_id(t, *names)) >= 0) return id;
    return -1;
}

fv_status fv__recipe_tokenizer(fv__recipe_run *k)
{
    static const char *const ends[] = {"</s>", "<|endoftext|>", "[SEP]", NULL}, *const pads[] = {
                                                                                    "<pad>",
                                                                                    "[PAD]", NULL};
    const char *from = fv__recipe_model(k->r, "from");
    char path[FV_PATH] = "";
    fv_status st;
    if (k->job->dir) fv__recipe_path(path, k->job->dir, "tokenizer.json");
    bool made = *path && fv__file_exists(k->env, path);
    if (made)
        st = fv_tok_open(&k->tok, k->env, path, k->e);
    else if (*k->r->tokenizer.from)
        st = fv__recipe_prefix_error(k->r, "[tokenizer] from",
                                     fv_tok_open(&k->tok, k->env, k->r->tokenizer.from, k->e),
                                     k->e);
    else if (from)
        st = fv__recipe_prefix_error(k->r, "[model] from", fv_tok_open(&k->tok, k->env, from, k->e),
                                     k->e);
    else
        st = train_tokenizer(k);
    if (!st && *path && !made) st = fv_tok_save(k->tok, path, k->e);
    if (st) return st;
    k->eos = any_id(k->tok, ends);
    k->pad = fv_tok_pad(k->tok) >= 0 ? fv_tok_pad(k->tok) : any_id(k->tok, pads);
    if (k->pad < 0) k->pad = k->eos >= 0 ? k->eos : 0;
    k->start = k->pad;
    return FV_OK;
}

/* ---- feeds ---- */

static void report(const fv__recipe_run *k, const char *path, const fv_data_report *r)
{
    int64_t left = r->records - r->kept;
    fv__recipe_log(k, "%s: %lld of %lld records, %lld%s%.0lld tokens", path, (long long)r->kept,
                   (long long)r->records, (long long)r->tokens[0], r->tokens[1] ? " + " : "",
                   (long long)r->tokens[1]);
    if (left || r->cut)
        fv__recipe_log(k, "  left out: %lld empty, %lld malformed, %lld too long; cut: %lld",
                       (long long)r->empty, (long long)r->malformed, (long long)r->too_long,
                       (long long)r->cut);
    for (int i = 0; i < 3 && *r->first[i]; i++) fv__recipe_log(k, "  %s", r->first[i]);
}

/* The end token where the tokenizer does not put it itself. */
static fv_status missing_end(const fv__recipe_run *k, int32_t *eos)
{
    fv_encoding *enc;
    fv_status st = fv_encoding_new(&enc, k->tok, k->e);
    if (!st) st = fv_tok_encode(enc, "a", 1, (fv_tok_opts){.specials = true}, k->e);
    *eos = !st && enc->n && enc->ids[enc->n - 1] == k->eos ? -1 : k->eos;
    fv_encoding_free(enc);
    return st;
}

static fv_status open_pairs(fv__recipe_run *k, fv_feed *out, fv_records from, bool valid,
                            fv_data_report *r)
{
    fv_pairs *p = NULL;
    fv_pairs_opt how = {.from = from, .keep_texts = valid};
    fv_status st = missing_end(k, &how.eos);
    if (!st) st = fv_pairs_open(&p, k->env, k->tok, how, r, k->e);
    if (!st && (st = fv_feed_pairs(out, p, k->pad, k->start, true, k->e))) fv_pairs_close(p);
    if (!st && valid) k->valid_pairs = p;
    return st;
}

static fv_feed_opt task(fv__recipe_run *k, bool valid)
{
    static const char *const firsts[] = {"[CLS]", "<s>", NULL}, *const seps[] = {"[SEP]", "</s>",
                                                                                 NULL};
    static const char *const masks[] = {"[MASK]", "<mask>", NULL};
    const fv_data_opt *d = &k->r->data;
    fv_feed_opt t = {.env = k->env,
                     .tok = k->tok,
                     .pad = k->pad,
                     .start = k->start,
                     .eos = k->eos,
                     .cls = any_id(k->tok, firsts),
                     .sep = any_id(k->tok, seps),
                     .mask = any_id(k->tok, masks),
                     .context = d->context,
                     .share = d->mask,
                     .span = d->span,
                     .drop = d->drop,
                     .labels = &k->labels,
                     .label_until = given(d->label_until)};
    if (d->hold_out > 0 && !*d->valid) {
        t.part[0] = valid ? 1 - (double)d->hold_out : 0;
        t.part[1] = valid ? 1 : 1 - (double)d->hold_out;
    }
    k->labels.closed = valid;
    return t;
}

static fv_feed_fn *const feeds[] = {
    [FV_CAUSAL] = fv_feed_causal,
    [FV_MASKED] = fv_feed_masked,
    [FV_MASKED_NEXT] = fv_feed_masked_next,
    [FV_SPANS] = fv_feed_spans,
    [FV_DENOISE] = fv_feed_denoise,
    [FV_CLASSIFY] = fv_feed_classify,
    [FV_TAG] = fv_feed_tag,
    [FV_ANSWER] = fv_feed_answer,
};

static fv_status open_feed(fv__recipe_run *k, fv_feed *out, const char *file, const char *beside,
                           bool valid)
{
    const fv_data_opt *d = &k->r->data;
    char path[FV_PATH], other[FV_PATH];
    fv_data_report r = {0};
    fv__recipe_path(path, d->dir, file);
    fv__recipe_path(other, d->dir, beside);
    fv_records from = records(k->r, path, other, valid ? d->max_valid : d->max_train);
    fv_feed_opt t = task(k, valid);
    fv_status st = d->objective == FV_SEQ2SEQ ? open_pairs(k, out, from, valid, &r)
                                              : feeds[d->objective](out, &t, &from, &r, k->e);
    if (!st) report(k, path, &r);
    return fv__recipe_prefix_error(k->r, file == d->valid ? "[data] valid" : "[data] train", st,
                                   k->e);
}

fv_status fv__recipe_data(fv__recipe_run *k)
{
    const fv_data_opt *d = &k->r->data;
    bool held = d->hold_out > 0 && !*d->valid;
    fv_status st = fv__recipe_labels(k);
    if (!st) st = open_feed(k, &k->train, d->train, d->train_target, false);
    if (!st && (*d->valid || held))
        st = open_feed(k, &k->valid, held ? d->train : d->valid, d->valid_target, true);
    return st;
}
