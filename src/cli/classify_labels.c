/* classify_labels.c - labels that a model was not trained on.
 *
 * A model for inference (whose labels include one that begins with "entail") is asked whether "This
 * example is LABEL."  follows from the text, as transformers' zero-shot pipeline asks.  A language
 * model is asked how likely LABEL is behind a prompt, which may begin with solved examples; one
 * that fills masks, how likely each token of LABEL is where it stands. */
#include "classify.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "write.h"

int read_labels(const cli *c, const char *list, label_list *out)
{
    *out = (label_list){.text = strdup(list), .at = calloc(strlen(list) + 2, sizeof *out->at)};
    if (!out->text || !out->at) return cli_fail(c, "out of memory");
    for (char *s = out->text, *rest; s; s = rest) {
        rest = strchr(s, ',');
        if (rest) *rest++ = 0;
        while (isspace((unsigned char)*s)) s++;
        for (size_t n = strlen(s); n && isspace((unsigned char)s[n - 1]);) s[--n] = 0;
        if (!*s) return cli_usage(c, "--labels has an empty label: \"%s\"", list);
        out->at[out->n++] = s;
    }
    return CLI_OK;
}

void free_labels(label_list *l)
{
    free(l->text);
    free(l->at);
}

static void softmax(float *out, const double *x, int n)
{
    double top = x[0], total = 0;
    for (int i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++) total += exp(x[i] - top);
    for (int i = 0; i < n; i++) out[i] = (float)(exp(x[i] - top) / total);
}

/* ---- text that grows ---- */

typedef struct buffer {
    char *s;
    size_t n, cap;
    bool failed;
} buffer;

static void put(buffer *b, const char *s, size_t n)
{
    if (b->cap - b->n <= n) {
        size_t cap = (b->cap + n) * 2 + 64;
        char *more = realloc(b->s, cap);
        b->failed |= !more;
        if (!more) return;
        b->s = more;
        b->cap = cap;
    }
    memcpy(b->s + b->n, s, n);
    b->s[b->n += n] = 0;
}

/* The template with s in the place of {}, and \n for a line's end. */
static void put_template(buffer *b, const char *how, const char *s, size_t n)
{
    for (; *how; how++) {
        if (how[0] == '{' && how[1] == '}')
            put(b, s, n), how++;
        else if (how[0] == '\\' && how[1] == 'n')
            put(b, "\n", 1), how++;
        else
            put(b, how, 1);
    }
}

/* ---- by entailment ---- */

static int entailment(const fv_task *t)
{
    for (int i = 0; i < fv_task_labels(t); i++)
        if (!strncasecmp(fv_task_label(t, i), "entail", 6)) return i;
    return -1;
}

/* logits: (labels, L) of one text. */
static void score_hypotheses(float *out, const float *logits, int labels, int L, int entail,
                             bool many)
{
    int contra = entail == 0 ? L - 1 : 0;
    double x[2];
    if (many || labels == 1) {
        for (int i = 0; i < labels; i++) {
            float both[2];
            x[0] = (double)logits[i * L + contra], x[1] = (double)logits[i * L + entail];
            softmax(both, x, 2);
            out[i] = both[1];
        }
        return;
    }
    double top = -INFINITY, total = 0;
    for (int i = 0; i < labels; i++)
        top = (double)logits[i * L + entail] > top ? (double)logits[i * L + entail] : top;
    for (int i = 0; i < labels; i++) total += exp((double)logits[i * L + entail] - top);
    for (int i = 0; i < labels; i++)
        out[i] = (float)(exp((double)logits[i * L + entail] - top) / total);
}

static int by_entailment(const cli *c, const classify_values *v, const cli_texts *texts,
                         const label_list *labels, float *scores)
{
    cli_task t;
    fv_err e;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_CLASSIFY),
        L = code ? 0 : fv_task_labels(t.task);
    int entail = code ? -1 : entailment(t.task);
    if (!code && entail < 0)
        code = cli_fail(c, "%s: none of its labels is entailment, so it cannot judge others",
                        v->model.dir);
    buffer *said = calloc((size_t)labels->n, sizeof *said);
    fv_text *pairs = calloc((size_t)(texts->n * labels->n), sizeof *pairs);
    float *logits = calloc((size_t)(texts->n * labels->n) * (size_t)(L + 1), sizeof *logits);
    bool failed = !said || !pairs || !logits;
    for (int i = 0; !failed && i < labels->n; i++) {
        put_template(&said[i], v->hypothesis, labels->at[i], strlen(labels->at[i]));
        failed = said[i].failed;
    }
    if (!code && failed) code = cli_fail(c, "out of memory");
    for (int64_t i = 0; !code && i < texts->n * labels->n; i++) {
        pairs[i] = texts->at[i / labels->n];
        pairs[i].pair = said[i % labels->n].s;
        pairs[i].pair_n = said[i % labels->n].n;
    }
    if (!code && fv_task_logits(t.task, pairs, texts->n * labels->n, logits, &e))
        code = cli_error(c, &e);
    for (int64_t i = 0; !code && i < texts->n; i++)
        score_hypotheses(scores + i * labels->n, logits + i * labels->n * L, labels->n, L, entail,
                         v->many);
    for (int i = 0; said && i < labels->n; i++) free(said[i].s);
    free(said);
    free(pairs);
    free(logits);
    cli_close_task(&t);
    return code;
}

/* ---- by likelihood ---- */

typedef struct asking {
    const cli *c;
    writer w;
    const classify_values *v;
    const label_list *labels;
    buffer shots; /* solved examples */
    ids prompt, *label;
    const int32_t **at;
    int64_t *len;
    double *log_p;
} asking;

static int encode(asking *a, ids *out, const buffer *text)
{
    out->n = 0;
    if (text->failed) return cli_fail(a->c, "out of memory");
    return writer_encode(&a->w, out, text->s ? text->s : "", text->n);
}

/* A prompt and each label behind it.  Tokens may join at the seam, so what all of them share is the
 * prompt, and what follows in each is its label. */
static int encode_behind(asking *a, buffer *text)
{
    size_t before = text->n;
    int code = encode(a, &a->prompt, text);
    int64_t shared = a->prompt.n;
    for (int i = 0; !code && i < a->labels->n; i++) {
        ids *x = &a->label[i];
        text->n = before;
        put(text, " ", 1);
        put(text, a->labels->at[i], strlen(a->labels->at[i]));
        code = encode(a, x, text);
        int64_t same = 0;
        while (!code && same < shared && same < x->n - 1 && x->at[same] == a->prompt.at[same])
            same++;
        shared = same;
    }
    for (int i = 0; !code && i < a->labels->n; i++)
        a->at[i] = a->label[i].at + shared, a->len[i] = a->label[i].n - shared;
    a->prompt.n = shared;
    return !code && shared < 1 ? cli_fail(a->c, "the prompt is empty") : code;
}

/* An encoder reads the prompt, the decoder writes a label. */
static int encode_apart(asking *a, const buffer *text)
{
    fv_err e;
    int code = encode(a, &a->prompt, text);
    for (int i = 0; !code && i < a->labels->n; i++) {
        fv_tok_opts o = {.specials = true, .as_target = true};
        a->label[i].n = 0;
        if (fv_tok_encode(a->w.enc, a->labels->at[i], strlen(a->labels->at[i]), o, &e))
            return cli_error(a->c, &e);
        if (!ids_add(&a->label[i], a->w.enc->ids, a->w.enc->n))
            return cli_fail(a->c, "out of memory");
        a->at[i] = a->label[i].at, a->len[i] = a->label[i].n;
    }
    return code;
}

static int ask(asking *a, const fv_text *text, float *scores)
{
    fv_err e;
    buffer prompt = {0};
    put(&prompt, a->shots.s ? a->shots.s : "", a->shots.n);
    put_template(&prompt, a->v->prompt, text->s, text->n);
    int code = a->w.encoder ? encode_apart(a, &prompt) : encode_behind(a, &prompt);
    free(prompt.s);
    if (!code &&
        fv_score_continuations(a->log_p, a->w.device, a->w.model, a->prompt.at, a->prompt.n, a->at,
                               a->len, a->labels->n, a->w.gen.start, &e))
        code = cli_error(a->c, &e);
    if (!code) softmax(scores, a->log_p, a->labels->n);
    return code;
}

/* text, a tab, its label: each as the prompt puts it, solved. */
static int read_shots(asking *a)
{
    cli_texts solved = {0};
    int code = cli_read_texts(a->c, a->v->examples, CLI_PAIRS, &solved);
    for (int64_t i = 0; !code && i < solved.n; i++) {
        const fv_text *x = &solved.at[i];
        if (!x->pair) {
            code = cli_fail(a->c, "%s: line %lld has no tab between text and label", a->v->examples,
                            (long long)i + 1);
            break;
        }
        put_template(&a->shots, a->v->prompt, x->s, x->n);
        put(&a->shots, " ", 1);
        put(&a->shots, x->pair, x->pair_n);
        put(&a->shots, "\n\n", 2);
    }
    cli_free_texts(&solved);
    return code;
}

static int by_likelihood(const cli *c, const classify_values *v, const cli_texts *texts,
                         const label_list *labels, float *scores)
{
    asking a = {.c = c, .v = v, .labels = labels};
    size_t n = (size_t)labels->n;
    int code = writer_open(&a.w, c, &v->model, NULL, NULL, 1);
    a.label = calloc(n, sizeof *a.label);
    a.at = calloc(n, sizeof *a.at);
    a.len = calloc(n, sizeof *a.len);
    a.log_p = calloc(n, sizeof *a.log_p);
    if (!code && (!a.label || !a.at || !a.len || !a.log_p)) code = cli_fail(c, "out of memory");
    if (!code && v->examples) code = read_shots(&a);
    for (int64_t i = 0; !code && i < texts->n; i++)
        code = ask(&a, &texts->at[i], scores + i * labels->n);
    for (size_t i = 0; a.label && i < n; i++) ids_free(&a.label[i]);
    ids_free(&a.prompt);
    free(a.label), free(a.at), free(a.len), free(a.log_p), free(a.shots.s);
    writer_close(&a.w);
    return code;
}

/* ---- by filling in ---- */

static int64_t characters(const buffer *b)
{
    int64_t n = 0;
    for (size_t i = 0; i < b->n; i++) n += ((unsigned char)b->s[i] & 0xC0) != 0x80;
    return n;
}

static int fill_in(asking *a, fv_task *t, const fv_text *text, float *scores)
{
    int n = a->labels->n, code = CLI_OK;
    buffer prompt = {0}, *said = calloc((size_t)n, sizeof *said);
    fv_text *whole = calloc((size_t)n, sizeof *whole);
    int64_t *from = calloc((size_t)n, sizeof *from);
    fv_err e;
    put(&prompt, a->shots.s ? a->shots.s : "", a->shots.n);
    put_template(&prompt, a->v->prompt, text->s, text->n);
    bool failed = prompt.failed || !said || !whole || !from;
    for (int i = 0; !failed && i < n; i++) {
        put(&said[i], prompt.s ? prompt.s : "", prompt.n);
        put(&said[i], " ", 1);
        put(&said[i], a->labels->at[i], strlen(a->labels->at[i]));
        whole[i] = (fv_text){.s = said[i].s, .n = said[i].n};
        from[i] = characters(&prompt) + 1; /* the blank */
        failed = said[i].failed;
    }
    if (failed) code = cli_fail(a->c, "out of memory");
    if (!code && fv_task_score(t, whole, n, from, a->log_p, a->len, &e)) code = cli_error(a->c, &e);
    for (int i = 0; !code && i < n; i++)
        if (!a->len[i])
            code = cli_fail(a->c,
                            "the prompt leaves no room for a label: the model sees %lld tokens",
                            (long long)fv_task_max_len(t));
    if (!code) softmax(scores, a->log_p, n);
    for (int i = 0; said && i < n; i++) free(said[i].s);
    free(said), free(whole), free(from), free(prompt.s);
    return code;
}

static int by_filling(const cli *c, const classify_values *v, const cli_texts *texts,
                      const label_list *labels, float *scores)
{
    asking a = {.c = c, .v = v, .labels = labels};
    cli_task t;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_FILL);
    a.len = calloc((size_t)labels->n, sizeof *a.len);
    a.log_p = calloc((size_t)labels->n, sizeof *a.log_p);
    if (!code && (!a.len || !a.log_p)) code = cli_fail(c, "out of memory");
    if (!code && v->examples) code = read_shots(&a);
    for (int64_t i = 0; !code && i < texts->n; i++)
        code = fill_in(&a, t.task, &texts->at[i], scores + i * labels->n);
    free(a.len), free(a.log_p), free(a.shots.s);
    cli_close_task(&t);
    return code;
}

int score_labels(const cli *c, const classify_values *v, const cli_texts *texts,
                 const label_list *labels, float *scores)
{
    fv_dir *dir;
    fv_err e;
    if (!v->model.dir) return cli_usage(c, "a model is needed: -m DIR");
    if (fv_dir_open(&dir, NULL, v->model.dir, &e)) return cli_error(c, &e);
    const char *head = fv_json_text(fv_dir_config(dir), "architectures.0");
    bool judges = head && strstr(head, "ForSequenceClassification"),
         fills = head && strstr(head, "ForMaskedLM");
    fv_dir_close(dir);
    return (judges  ? by_entailment
            : fills ? by_filling
                    : by_likelihood)(c, v, texts, labels, scores);
}
