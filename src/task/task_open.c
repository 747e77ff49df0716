/* open.c - a model and its tokenizer opened for a job, and what the directory says about their
 * use.
 *
 * A job (fv_job) is what a task needs computed: which head, whether labels, a mask token or a
 * processor. Everything is read from the directory as transformers lays it out; nothing is asked
 * that a file says. */
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/task.h"
#include "task.h"
#include "fovea/author/family.h"
#include "fovea/author/tok.h"

/* The head that a job needs, and what messages call it; embeddings take the bare encoder, whatever
 * stands on it. */
static const struct {
    fv_head_job head;
    const char *word;
} head_of_job[] = {[FV_JOB_EMBED] = {FV_HEAD_BASE, NULL},
                   [FV_JOB_CLASSIFY] = {FV_HEAD_CLASSIFY, "ForSequenceClassification or "
                                                          "ForImageClassification"},
                   [FV_JOB_FILL] = {FV_HEAD_MASKED_LM, "ForMaskedLM"},
                   [FV_JOB_TAG] = {FV_HEAD_TAG, "ForTokenClassification"},
                   [FV_JOB_ANSWER] = {FV_HEAD_ANSWER, "ForQuestionAnswering"},
                   [FV_JOB_DETECT] = {FV_HEAD_DETECT, "ForObjectDetection"},
                   [FV_JOB_SEGMENT] = {FV_HEAD_SEGMENT, "ForSemanticSegmentation"},
                   [FV_JOB_CONTRAST] = {FV_HEAD_CONTRASTIVE, "of images and texts (CLIPModel)"},
                   [FV_JOB_REGRESS] = {FV_HEAD_REGRESS, "PatchTSTForRegression"}};

void fv_task_close(fv_task *t)
{
    if (!t) return;
    fv_env env = t->env;
    fv_ctx_free(t->ctx);
    fv_encoding_free(t->enc);
    fv_tok_close(t->tok);
    fv_processor_close(t->processor);
    fv_model_free(t->model);
    fv_dir_close(t->dir);
    fv__arena_free(&t->host);
    fv__arena_free(&t->names);
    fv__free(&env, t, sizeof *t);
}

const fv_tok *fv_task_tok(const fv_task *t) { return t->tok; }
int64_t fv_task_max_len(const fv_task *t) { return t->longest; }
int fv_task_labels(const fv_task *t) { return t->labels; }
const char *fv_task_label(const fv_task *t, int i)
{
    return i >= 0 && i < t->labels ? t->label[i] : NULL;
}
const char *fv_task_mask(const fv_task *t) { return t->mask; }

/* ---- the model ---- */

/* An embedding needs the body alone: a checkpoint of a classifier is opened as its base, and the
 * head's weights are left on the disk. Other jobs need the head that computes them. */
static fv_status open_model(fv_task *t, const char *path, fv_model_opt opt, fv_err *e)
{
    const fv_json *j = fv_dir_config(t->dir);
    const char *head = fv_json_text(j, "architectures.0"), *type = fv_json_text(j, "model_type"),
               *wanted = head_of_job[t->job].word;
    const fv_family *f = type ? fv_family_find(type) : NULL;
    opt.serve = true;
    if (head && f && !wanted && !opt.head) opt.head = fv_family_base(f, head);
    fv_status st = fv_model_open(&t->model, t->dev, path, opt, e);
    if (st || !wanted || fv_model_job(t->model) == head_of_job[t->job].head) return st;
    return fv_fail(e, FV_EARG, "%s: a model %s is needed, and this is a %s", path, wanted,
                   fv_model_head(t->model));
}

/* 0 where the family has no such key: callers ask for what may be absent. */
int64_t fv__task_setting(const fv_task *t, const char *key)
{
    char text[32];
    const fv_field *fields = fv_model_family(t->model)->config;
    return fv_fields_get(fv_model_config(t->model), fields, key, text, sizeof text) > 0
               ? strtoll(text, NULL, 10)
               : 0;
}

static int64_t smaller(int64_t a, int64_t b) { return !a || (b > 0 && b < a) ? b : a; }

/* A number of a file of the directory; 0 where there is none, the file cannot be read, or it means
 * "no limit": some hold 1e30. */
static int64_t number_of(const fv_task *t, const char *file, const char *key)
{
    char path[FV_PATH];
    fv_json *j;
    double x = 0;
    if (!fv_dir_file(t->dir, file, path, sizeof path) || fv_json_open(&j, &t->env, path, NULL))
        return 0;
    fv_json_number(j, key, &x);
    fv_json_close(j);
    return x > 0 && x < 1e9 ? (int64_t)x : 0;
}

/* What the model sees, and how much of it its users chose; the tokenizer's own limit is the last
 * of these to count. */
static int64_t longest(const fv_task *t)
{
    const fv_family *f = fv_model_family(t->model);
    int64_t chosen = t->job == FV_JOB_EMBED
                         ? number_of(t, "sentence_bert_config.json", "max_seq_length")
                         : 0;
    if (!chosen) chosen = number_of(t, "tokenizer_config.json", "model_max_length");
    if (!chosen) chosen = fv_tok_max_len(t->tok);
    return smaller(chosen, f->longest ? f->longest(fv_model_self(t->model)) : 0);
}

/* token_type_ids are given only where the model has at least two kinds (RoBERTa's config has one).
 */
static void read_limits(fv_task *t)
{
    const fv_json *j = fv_dir_config(t->dir);
    const fv_family *f = fv_model_family(t->model);
    double pad = fv_tok_pad(t->tok) >= 0 ? fv_tok_pad(t->tok) : 0, kinds = 2;
    fv_json_number(j, "pad_token_id", &pad);
    fv_json_number(j, "type_vocab_size", &kinds);
    t->pad = (int32_t)pad;
    t->types = fv_family_takes(f, "token_type_ids") && kinds > 1;
    t->longest = longest(t);
    t->word_bytes = fv_family_takes(f, "char_ids") ? fv__task_setting(t, "max_word_bytes") : 0;
}

/* Where labels are scored behind labels. */
static fv_status read_transitions(fv_task *t, fv_err *e)
{
    fv_params *p = fv_model_params(t->model);
    const fv_tensor *x = fv_params_find(p, "crf.transitions");
    int64_t n = (int64_t)(t->labels + 2) * t->labels;
    if (!x || fv_len(x) != n) return FV_OK;
    t->transitions = fv__arena_alloc(&t->names, (size_t)n * sizeof *t->transitions);
    if (!t->transitions) return fv_fail(e, FV_ENOMEM, "out of memory for %d labels", t->labels);
    return fv_params_get(p, x, t->transitions, n, e);
}

/* Labels without a name have transformers'. */
static fv_status read_labels(fv_task *t, fv_err *e)
{
    char key[32];
    int64_t n = fv__task_setting(t, "num_labels");
    if (!n) n = fv__task_setting(t, "num_targets"); /* as PatchTST calls it */
    t->label = fv__arena_alloc(&t->names, (size_t)n * sizeof *t->label);
    if (!t->label) return fv_fail(e, FV_ENOMEM, "out of memory for %lld labels", (long long)n);
    for (t->labels = 0; t->labels < n; t->labels++) {
        snprintf(key, sizeof key, "id2label.%d", t->labels);
        const char *name = fv_json_text(fv_dir_config(t->dir), key);
        char *made = name ? NULL : fv__arena_alloc(&t->names, sizeof key);
        if (!name && !made)
            return fv_fail(e, FV_ENOMEM, "out of memory for %lld labels", (long long)n);
        if (made) snprintf(made, sizeof key, "LABEL_%d", t->labels);
        t->label[t->labels] = name ? name : made;
    }
    return FV_OK;
}

/* ---- the mask ---- */

/* tokenizer_config.json names it, as a text or as an added token with its content; older
 * directories have neither, so the usual two are tried. */
static fv_status read_mask(fv_task *t, const char *path, fv_err *e)
{
    static const char *const usual[] = {"[MASK]", "<mask>", NULL};
    char file[FV_PATH];
    fv_json *j = NULL;
    if (fv_dir_file(t->dir, "tokenizer_config.json", file, sizeof file) &&
        !fv_json_open(&j, &t->env, file, NULL)) {
        const char *name = fv_json_text(j, "mask_token");
        if (!name) name = fv_json_text(j, "mask_token.content");
        if (name) snprintf(t->mask, sizeof t->mask, "%s", name);
        fv_json_close(j);
    }
    for (int i = 0; !t->mask[0] && usual[i]; i++)
        if (fv_tok_id(t->tok, usual[i]) >= 0) snprintf(t->mask, sizeof t->mask, "%s", usual[i]);
    if (fv_tok_id(t->tok, t->mask) >= 0) return FV_OK;
    return fv_fail(e, FV_EARG, "%s: its tokenizer has no mask token", path);
}

/* ---- opening ---- */

/* The model first: it says which processor is needed, and whether that includes a tokenizer. */
static fv_status open_all(fv_task *t, const char *path, fv_model_opt opt, fv_err *e)
{
    fv_status st = fv_dir_open(&t->dir, &t->env, path, e);
    if (!st) st = open_model(t, path, opt, e);
    if (!st) st = fv__task_open_processor(t, e);
    bool reads = !st && (!t->processor || fv_processor_tok(t->processor));
    if (reads) st = fv_tok_open(&t->tok, &t->env, path, e);
    if (!st && reads) st = fv_encoding_new(&t->enc, t->tok, e);
    if (st) return st;
    if (reads) read_limits(t);
    bool labels = t->job == FV_JOB_CLASSIFY || t->job == FV_JOB_TAG || t->job == FV_JOB_DETECT ||
                  t->job == FV_JOB_SEGMENT;
    if (labels) st = read_labels(t, e);
    if (!st && t->job == FV_JOB_TAG) st = read_transitions(t, e);
    if (!st && t->job == FV_JOB_FILL) st = read_mask(t, path, e);
    if (!st && t->job == FV_JOB_EMBED) st = fv__task_read_modules(t, e);
    fv_dtype dtype = fv_model_dtype(t->model);
    return st ? st : fv_ctx_new(&t->ctx, t->dev, (fv_ctx_opt){.dtype = dtype}, e);
}

fv_status fv_task_open(fv_task **out, fv_device *d, const char *dir, fv_job job, fv_model_opt opt,
                       fv_err *e)
{
    fv_task *t = *out = fv__alloc(fv_device_env(d), sizeof *t);
    if (!t) return fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    t->env = *fv_device_env(d);
    t->host.env = t->names.env = &t->env;
    t->job = job;
    t->dev = d;
    fv_status st = open_all(t, dir, opt, e);
    if (!st) return FV_OK;
    fv_task_close(t);
    *out = NULL;
    return st;
}
