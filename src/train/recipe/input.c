/* input.c - [data] and [tokenizer]: the processor, the ids of special tokens, and a feed for each
 * file. */
#include <stdarg.h>
#include <stdio.h>

#include "train/recipe/keys.h"
#include "fovea/author/processor.h"

/* A path that is absolute stands for itself. */
void fv__recipe_path(char out[FV_PATH], const char *dir, const char *name)
{
    bool whole = !*dir || !*name || *name == '/';
    snprintf(out, FV_PATH, "%s%s%s", whole ? "" : dir, whole ? "" : "/", name);
}

/* A line for whoever watches the run; a library prints nothing itself. */
void fv__message(const fv__messages *m, const char *fmt, ...)
{
    char text[FV_PATH + 600];
    va_list ap;
    if (!m->line) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m->line(m->user, text);
}

/* An empty text is a key that was not given. */
static const char *given(const char *s) { return *s ? s : NULL; }

/* The file and the part of it that is trained or evaluated on: with hold_out, the last records are
 * for evaluation and no others.  Paths are filled and must outlive the result. */
static fv_records records(const fv_recipe *r, bool valid, char path[FV_PATH], char beside[FV_PATH])
{
    const fv_data_opt *d = &r->data;
    bool held = d->hold_out > 0 && !*d->valid, second = valid && !held;
    fv__recipe_path(path, d->dir, second ? d->valid : d->train);
    fv__recipe_path(beside, d->dir, second ? d->valid_target : d->train_target);
    fv_records from = {.file = path,
                       .beside = given(beside),
                       .format = (fv_format)d->format,
                       .field = {given(d->source_field), given(d->target_field)},
                       .header = d->header,
                       .latin1 = d->latin1,
                       .malformed = (fv_policy)d->malformed,
                       .empty = (fv_policy)d->empty,
                       .too_long = (fv_policy)d->too_long,
                       .max_len = d->max_len,
                       .most = valid ? d->max_valid : d->max_train};
    if (held) {
        from.part[0] = valid ? 1 - (double)d->hold_out : 0;
        from.part[1] = valid ? 1 : 1 - (double)d->hold_out;
    }
    return from;
}

/* ---- the processor ---- */

/* All texts of the training records, as the trainer of tokenizers reads them: one after the other,
 * and again from the start. */
typedef struct texts {
    fv_buf all; /* each ending in NUL */
    size_t at;
} texts;

/* A text that holds a NUL byte would end there: it is left out, as it is from the vocabulary. */
static void add_text(void *user, const char *s, size_t n)
{
    texts *t = user;
    if (!n || memchr(s, 0, n)) return;
    fv__buf_add(&t->all, s, n);
    fv__buf_add(&t->all, "", 1);
}

static bool next_text(void *self, const char **text, size_t *len)
{
    texts *t = self;
    if (t->at >= t->all.len) return false;
    *text = t->all.data + t->at;
    *len = strlen(*text);
    t->at += *len + 1;
    return true;
}

/* transformers opens each qwen2 with its class Qwen2Tokenizer, whatever tokenizer_config.json
 * names: that takes vocabulary and merges from tokenizer.json, and all else from its own rules. */
static bool is_qwen2(const fv_recipe *r)
{
    const char *type = fv__late_get(&r->model, "model_type");
    return type && !strcmp(type, "qwen2");
}

/* Special tokens are the objective's. */
static fv_tok_train_opts tokenizer_options(const fv_recipe *r)
{
    const fv_tokenizer_opt *o = &r->tokenizer;
    const fv_objective *objective = fv__recipe_objective(r);
    fv_tok_train_opts how = {.kind = (fv_tok_kind)o->kind,
                             .split = is_qwen2(r) ? FV_TOK_SPLIT_QWEN2 : FV_TOK_SPLIT_GPT2,
                             .vocab = (int32_t)o->vocab,
                             .min_count = o->min_count,
                             .lowercase = o->lowercase,
                             .nfkc = o->nfkc};
    if (o->kind == FV_TOK_WORDPIECE) return how; /* has BERT's special tokens */
    bool bytes = o->kind == FV_TOK_BYTE_BPE && objective->specials_bytes;
    how.specials = bytes ? objective->specials_bytes : objective->specials;
    how.before = objective->before;
    how.after = objective->after;
    return how;
}

/* On the texts of the training records alone: held-out records are not among them. */
static fv_status train_tokenizer(fv_processor **out, const fv__input *in, const fv_recipe *r,
                                 const fv__messages *m, fv_err *e)
{
    const fv_env *env = in->env;
    char path[FV_PATH], beside[FV_PATH];
    fv_tok_train_opts how = tokenizer_options(r);
    if (is_qwen2(r) && (how.kind != FV_TOK_BYTE_BPE || how.lowercase || how.nfkc))
        return fv_fail(e, FV_EARG,
                       "%s: [tokenizer]: a qwen2 needs kind = byte_bpe without lowercase and nfkc: "
                       "transformers reads its vocabulary as such whatever tokenizer.json says",
                       r->path);
    texts t = {.all = {.env = env}};
    fv_tok *tok = NULL;
    fv_records from = records(r, false, path, beside);
    from.most = 0;
    fv_status st = fv__recipe_objective(r)->texts(env, in->own, &from, add_text, &t, e);
    if (!st && t.all.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    st = fv__recipe_prefix_error(r, "[data] train", st, e);
    if (!st) st = fv_tok_train(&tok, env, (fv_tok_source){next_text, &t}, &how, e);
    fv__buf_free(&t.all);
    if (st) return st;
    fv__message(m, "tokenizer: %d tokens, trained on the data", fv_tok_size(tok));
    return fv_processor_from_tok(out, env, tok, r->data.max_len, e);
}

/* The tokenizer that [tokenizer] names, or a new one. */
static fv_status new_tokenizer(fv_processor **out, const fv__input *in, const fv_recipe *r,
                               const fv__messages *m, fv_err *e)
{
    if (!*r->tokenizer.from) return train_tokenizer(out, in, r, m, e);
    fv_status st = fv_processor_open(out, in->env, "tokenizer", r->tokenizer.from, e);
    return fv__recipe_prefix_error(r, "[tokenizer] from", st, e);
}

/* Of another kind than a tokenizer, with one inside it where the objective also reads texts. */
static fv_status make_processor(fv__input *in, const fv_recipe *r, const fv__messages *m, fv_err *e)
{
    char path[FV_PATH], beside[FV_PATH];
    fv_processor *tok = NULL;
    const fv_objective *o = fv__recipe_objective(r);
    fv_records from = records(r, false, path, beside);
    fv_status st = o->texts ? new_tokenizer(&tok, in, r, m, e) : FV_OK;
    if (st) return st;
    st = o->make_processor(&in->processor, in->env, in->own, &from, tok, e);
    return fv__recipe_prefix_error(r, "[data] train", st, e);
}

/* A resumed run opens the one it made; else the recipe's, that of the model it goes on from, or a
 * new one. */
static fv_status open_processor(fv__input *in, const fv_recipe *r, const char *resumed,
                                const fv__messages *m, fv_err *e)
{
    const char *kind = fv__recipe_objective(r)->processor, *from = fv__late_get(&r->model, "from");
    char path[FV_PATH] = "";
    bool text = !strcmp(kind, "tokenizer");
    if (resumed) fv__recipe_path(path, resumed, "tokenizer.json");
    if (resumed && (!text || fv__file_exists(in->env, path)))
        return fv_processor_open(&in->processor, in->env, kind, resumed, e);
    in->made = true;
    if (text && *r->tokenizer.from) return new_tokenizer(&in->processor, in, r, m, e);
    if (!from && fv__recipe_objective(r)->make_processor) return make_processor(in, r, m, e);
    if (from || !text)
        return fv__recipe_prefix_error(r, "[model] from",
                                       fv_processor_open(&in->processor, in->env, kind,
                                                         from ? from : ".", e),
                                       e);
    return train_tokenizer(&in->processor, in, r, m, e);
}

/* ---- special tokens ---- */

/* An id that the recipe's [model] gives, or the source's config.json (a number, or the first of a
 * list); fallback where neither names a token of the vocabulary. */
static int32_t configured(const fv__input *in, const fv_recipe *r, const fv_dir *source,
                          const char *key, int32_t fallback)
{
    const char *value = fv__late_get(&r->model, key);
    const fv_tok *tok = fv_processor_tok(in->processor);
    char first[64];
    double id = -1;
    snprintf(first, sizeof first, "%s.0", key);
    if (value)
        sscanf(value, "%lf", &id);
    else if (source && !fv_json_number(fv_dir_config(source), key, &id))
        fv_json_number(fv_dir_config(source), first, &id);
    return tok && id >= 0 && id < fv_tok_size(tok) ? (int32_t)id : fallback;
}

/* What the directory says is what training uses: BART's decoder starts with </s>, not with pad. */
static void find_specials(fv__input *in, const fv_recipe *r, const fv_dir *source)
{
    fv_special_ids s = fv_processor_ids(in->processor);
    in->eos = configured(in, r, source, "eos_token_id", s.eos);
    in->pad = configured(in, r, source, "pad_token_id", s.pad);
    if (in->pad < 0) in->pad = in->eos >= 0 ? in->eos : 0;
    in->start = configured(in, r, source, "decoder_start_token_id", in->pad);
    in->cls = s.cls;
    in->sep = s.sep;
    in->mask = s.mask;
}

/* The labels of the model that is gone on from keep their numbers where its head stays. */
static fv_status source_labels(fv__input *in, const fv_recipe *r, const fv_dir *source, fv_err *e)
{
    const char *head = fv__late_get(&r->model, "architecture"), *name;
    if (!source || !fv__recipe_objective(r)->names_labels) return FV_OK;
    const fv_json *j = fv_dir_config(source);
    const char *was = fv_json_text(j, "architectures.0");
    if (head && (!was || strcmp(was, head))) return FV_OK;
    fv_status st = FV_OK;
    for (int32_t i = 0, id; !st; i++) {
        char key[32], nameless[32];
        snprintf(key, sizeof key, "id2label.%d", i);
        snprintf(nameless, sizeof nameless, "LABEL_%d", i);
        if (!(name = fv_json_text(j, key)) || !strcmp(name, nameless)) break;
        st = fv_labels_add(&in->labels, &id, name, strlen(name), e);
    }
    return st;
}

/* ---- feeds ---- */

/* How many records and tokens a file gave, and the first few that were left out. */
static void report(const fv__messages *m, const char *path, const fv_data_report *r)
{
    int64_t left = r->records - r->kept;
    fv__message(m, "%s: %lld of %lld records, %lld%s%.0lld tokens", path, (long long)r->kept,
                (long long)r->records, (long long)r->tokens[0], r->tokens[1] ? " + " : "",
                (long long)r->tokens[1]);
    if (left || r->cut)
        fv__message(m, "  left out: %lld empty, %lld malformed, %lld too long; cut: %lld",
                    (long long)r->empty, (long long)r->malformed, (long long)r->too_long,
                    (long long)r->cut);
    for (int i = 0; i < 3 && *r->first[i]; i++) fv__message(m, "  %s", r->first[i]);
}

/* Labels are numbered as the training data name them; validation data may name no others. */
static fv_status open_feed(fv__input *in, const fv_recipe *r, bool valid, const fv__messages *m,
                           fv_err *e)
{
    char path[FV_PATH], beside[FV_PATH];
    fv_data_report read = {0};
    fv_records from = records(r, valid, path, beside);
    fv_feed_opt t = {.env = in->env,
                     .tok = fv_processor_tok(in->processor),
                     .pad = in->pad,
                     .start = in->start,
                     .eos = in->eos,
                     .cls = in->cls,
                     .sep = in->sep,
                     .mask = in->mask,
                     .processor = in->processor,
                     .evaluation = valid,
                     .options = in->own,
                     .labels = &in->labels};
    in->labels.closed = valid;
    fv_status st = fv__recipe_objective(r)->open(valid ? &in->valid : &in->train, &t, &from, &read,
                                                 e);
    if (!st) report(m, path, &read);
    bool named = valid && *r->data.valid;
    return fv__recipe_prefix_error(r, named ? "[data] valid" : "[data] train", st, e);
}

/* In this order, as each needs the one before: the objective's options, the processor, special ids,
 * labels, the feeds. */
fv_status fv__input_open(fv__input *out, const fv_recipe *r, const fv_env *env,
                         const fv_dir *source, const char *resumed, const fv__messages *m,
                         fv_err *e)
{
    bool valid = *r->data.valid || r->data.hold_out > 0;
    *out = (fv__input){.env = env, .labels = {.env = env}};
    fv_status st = fv__recipe_own(r, &out->own, e);
    out->own_bytes = out->own ? fv__recipe_objective(r)->options_size : 0;
    if (!st) st = open_processor(out, r, resumed, m, e);
    if (st) return st;
    find_specials(out, r, source);
    st = source_labels(out, r, source, e);
    if (!st) st = open_feed(out, r, false, m, e);
    if (!st && valid) st = open_feed(out, r, true, m, e);
    return st;
}

void fv__input_close(fv__input *in)
{
    fv_feed_close(&in->train);
    fv_feed_close(&in->valid);
    fv_labels_free(&in->labels);
    fv_processor_close(in->processor);
    fv__free(in->env, in->own, in->own_bytes);
}
