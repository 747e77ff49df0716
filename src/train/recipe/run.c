/* run.c - following a recipe: tokenizer, data, model, training, and what a model's directory needs
 * beside it. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "fovea/metric.h"
#include "train/recipe/recipe.h"

void fv__recipe_log(const fv__recipe_run *k, const char *fmt, ...)
{
    char text[FV_PATH + 600];
    va_list ap;
    if (!k->job->on_message) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    k->job->on_message(k->job->user, text);
}

/* ---- BLEU ---- */

typedef struct outputs {
    char **text;
    size_t *len;
    const char **reference;
    int64_t n;
} outputs;

enum { AT_ONCE = 32 };

static fv_gen_opt search(const fv__recipe_run *k)
{
    fv_gen_opt o = k->r->generate;
    o.start = k->start;
    o.pad = k->pad;
    o.eos = k->eos;
    o.forced_eos = -1;
    o.banned = &k->pad;
    o.n_banned = 1;
    o.num_return_sequences = 1;
    return o;
}

static fv_status translate(fv__recipe_run *k, outputs *out, fv_err *e)
{
    fv_gen_opt o = search(k);
    fv_status st = FV_OK;
    for (int64_t at = 0; !st && at < out->n; at += AT_ONCE) {
        const int32_t *ids[AT_ONCE];
        int64_t len[AT_ONCE], n = out->n - at < AT_ONCE ? out->n - at : AT_ONCE;
        fv_generated g;
        for (int64_t i = 0; i < n; i++) ids[i] = fv_pairs_source(k->valid_pairs, at + i, &len[i]);
        st = fv_generate(&g, k->job->device, k->model, ids, len, n, &o, e);
        for (int64_t i = 0; !st && i < n; i++)
            st = fv_tok_decode(k->tok, &out->text[at + i], &out->len[at + i], g.hyp[i].ids,
                               g.hyp[i].n, true, e);
        if (g.hyp) fv_generated_free(&g);
    }
    return st;
}

fv_status fv__recipe_bleu(void *kitchen, double *value, fv_err *e)
{
    fv__recipe_run *k = kitchen;
    int64_t n = fv_pairs_count(k->valid_pairs), wanted = k->r->train.bleu;
    outputs out = {.n = n < wanted ? n : wanted};
    size_t bytes = (size_t)out.n * (sizeof *out.text + sizeof *out.len + sizeof *out.reference);
    fv_bleu bleu = {0};
    out.text = fv__alloc(k->env, bytes);
    if (!out.text) return fv_fail(e, FV_ENOMEM, "bleu: out of memory");
    out.len = (size_t *)(out.text + out.n);
    out.reference = (const char **)(out.len + out.n);
    for (int64_t i = 0; i < out.n; i++) out.reference[i] = fv_pairs_text(k->valid_pairs, i);
    fv_status st = translate(k, &out, e);
    if (!st)
        st = fv_bleu_score(&bleu, k->env, (const char *const *)out.text, out.reference, out.n,
                           (fv_bleu_opt){.tokens = FV_BLEU_NONE}, e);
    *value = bleu.score;
    for (int64_t i = 0; i < out.n; i++)
        if (out.text[i]) fv_tok_free_text(k->tok, out.text[i], out.len[i]);
    fv__free(k->env, out.text, bytes);
    return st;
}

/* ---- beside the model ---- */

static void token(fv_buf *b, const fv_tok *t, const char *key, int32_t id)
{
    if (id >= 0 && fv_tok_token(t, id))
        fv__buf_fmt(b, ",\n  \"%s\": \"%s\"", key, fv_tok_token(t, id));
}

static void tokenizer_config(const fv__recipe_run *k, fv_buf *b)
{
    fv__buf_str(b, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"");
    token(b, k->tok, "pad_token", k->pad);
    token(b, k->tok, "eos_token", k->eos);
    token(b, k->tok, "unk_token", fv_tok_unknown(k->tok));
    token(b, k->tok, "mask_token",
          fv_tok_id(k->tok, "[MASK]") >= 0 ? fv_tok_id(k->tok, "[MASK]")
                                           : fv_tok_id(k->tok, "<mask>"));
    token(b, k->tok, "cls_token", fv_tok_id(k->tok, "[CLS]"));
    token(b, k->tok, "sep_token", fv_tok_id(k->tok, "[SEP]"));
    fv__buf_fmt(b,
                ",\n  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %lld\n}\n",
                (long long)k->r->data.max_len);
}

static void generation_config(const fv__recipe_run *k, fv_buf *b)
{
    const fv_gen_opt *o = &k->r->generate;
    char early[16];
    fv_fields_get(o, fv_gen_fields, "early_stopping", early, sizeof early);
    fv__buf_fmt(b,
                "{\n  \"num_beams\": %lld,\n  \"max_length\": %lld,\n  \"length_penalty\": %.6g,\n "
                " \"early_stopping\": %s%s%s,\n"
                "  \"pad_token_id\": %d,\n  \"eos_token_id\": %d",
                (long long)o->num_beams, (long long)o->max_length, (double)o->length_penalty,
                !strcmp(early, "never") ? "\"" : "", early, !strcmp(early, "never") ? "\"" : "",
                k->pad, k->eos);
    if (k->r->data.objective == FV_SEQ2SEQ)
        fv__buf_fmt(b, ",\n  \"decoder_start_token_id\": %d,\n  \"bad_words_ids\": [[%d]]",
                    k->start, k->pad);
    fv__buf_str(b, "\n}\n");
}

fv_status fv__recipe_extra(void *kitchen, const char *dir, fv_err *e)
{
    const fv__recipe_run *k = kitchen;
    char path[FV_PATH];
    fv_buf b = {.env = k->env};
    tokenizer_config(k, &b);
    fv__recipe_path(path, dir, "tokenizer_config.json");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(k->env, path, b.data, b.len, e);
    bool generates = fv_model_family(k->model)->step && k->eos >= 0 &&
                     (k->r->data.objective == FV_SEQ2SEQ || k->r->data.objective == FV_CAUSAL);
    b.len = 0;
    generation_config(k, &b);
    fv__recipe_path(path, dir, "generation_config.json");
    if (!st && generates)
        st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                      : fv__file_write(k->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}

/* ---- the run's directory ---- */

static void count_name(void *user, const char *name)
{
    (void)name;
    ++*(int *)user;
}

static fv_status enter(fv__recipe_run *k)
{
    const fv_io *io = fv__io(k->env);
    const char *dir = k->job->dir;
    int names = 0;
    if (io->list && io->list(io->self, dir, count_name, &names) == 0 && names && !k->job->resume)
        return fv_fail(k->e, FV_ESTATE,
                       "%s: is not empty; give --resume to go on with the run in it, or name "
                       "another directory",
                       dir);
    return fv__dir_make(k->env, dir, k->e);
}

static fv_status keep_recipe(fv__recipe_run *k)
{
    char path[FV_PATH];
    const char *text = fv_recipe_text(k->r, k->e);
    fv__recipe_path(path, k->job->dir, "recipe.ini");
    return text ? fv__file_write(k->env, path, text, strlen(text), k->e) : FV_ENOMEM;
}

/* What must be the same to resume: all keys but those that say how long, how often and where, and
 * how much at a time: a run that did not fit its device goes on with smaller batches. */
static fv_status fixed_part(fv__recipe_run *k, fv_buf *b)
{
    static const char *const free_keys[] = {"updates",      "log_every",  "eval_every",
                                            "save_every",   "keep",       "patience",
                                            "prefetch",     "bleu",       "result",
                                            "average",      "best_by",    "dir",
                                            "batch_tokens", "batch_rows", "accumulate",
                                            "recompute",    NULL};
    const char *text = fv_recipe_text(k->r, k->e);
    for (const char *end; text && *text; text = end + 1) {
        bool is_free = false;
        end = strchr(text, '\n');
        for (int i = 0; free_keys[i] && !is_free; i++) {
            size_t n = strlen(free_keys[i]);
            is_free = !strncmp(text, free_keys[i], n) && text[n] == ' ';
        }
        if (!is_free) fv__buf_add(b, text, (size_t)(end + 1 - text));
    }
    return text && !b->failed ? FV_OK : fv_fail(k->e, FV_ENOMEM, "recipe: out of memory");
}

static fv_status train(fv__recipe_run *k, fv_train_state *out)
{
    const fv_recipe_job *job = k->job;
    fv_buf config = {.env = k->env};
    fv_status st = fixed_part(k, &config);
    fv_train_job t = {.model = k->model,
                      .device = job->device,
                      .train = &k->train,
                      .valid = k->valid.self ? &k->valid : NULL,
                      .tok = k->tok,
                      .opt = k->r->train,
                      .dir = job->dir,
                      .config = config.data,
                      .resume = job->resume,
                      .stop = job->stop,
                      .progress = job->progress,
                      .on_message = job->on_message,
                      .user = job->user,
                      .score_name = "bleu",
                      .score = k->r->train.bleu ? fv__recipe_bleu : NULL,
                      .score_user = k,
                      .extra = fv__recipe_extra,
                      .extra_user = k};
    if (!st) st = fv_train(&t, out, k->e);
    fv__buf_free(&config);
    return st;
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

/* What the run will need, by trying its largest batch. */
static fv_status dry_run(fv__recipe_run *k)
{
    fv_train_job t = {.model = k->model,
                      .device = k->job->device,
                      .train = &k->train,
                      .opt = k->r->train};
    fv_train_memory m;
    fv_status st = fv_train_dry_run(&t, &m, k->e);
    if (st) return st;
    fv__recipe_log(
        k,
        "memory: %.1f MiB = parameters %.1f, gradients %.1f, optimiser %.1f, largest batch "
        "(%lld x %lld) %.1f",
        mib(m.parameters + m.gradients + m.optimiser + m.batch), mib(m.parameters),
        mib(m.gradients), mib(m.optimiser), (long long)m.rows, (long long)m.columns, mib(m.batch));
    return FV_OK;
}

fv_status fv_recipe_train(fv_recipe *r, const fv_recipe_job *job, fv_train_state *out, fv_err *e)
{
    fv__recipe_run k = {.r = r, .job = job, .env = fv_device_env(job->device), .e = e};
    *out = (fv_train_state){.valid = NAN, .metric = NAN, .best = NAN};
    fv_status st = fv_recipe_check(r, e);
    if (!st && job->dir) st = enter(&k);
    if (!st && job->dir && !job->resume) st = keep_recipe(&k);
    if (!st) st = fv__recipe_tokenizer(&k);
    if (!st) st = fv__recipe_data(&k);
    if (!st) st = fv__recipe_new_model(&k);
    if (!st) st = job->dir ? train(&k, out) : dry_run(&k);
    /* only now: it may be one that does not fit the run */
    if (!st && job->dir && job->resume) st = keep_recipe(&k);
    fv_model_free(k.model);
    fv_feed_close(&k.train);
    fv_feed_close(&k.valid);
    fv_tok_close(k.tok);
    return st;
}
