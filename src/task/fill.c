/* fill.c - the likeliest words for each mask.
 *
 * Masks are found by id after encoding, so the text holds the tokenizer's own spelling of the
 * mask token; each text needs one at least. Results live in the task's scratch until its next
 * call. */
#include <math.h>

#include "task_pipeline.h"

/* top of each mask points into one block of k words a mask. */
typedef struct filling {
    int32_t mask;
    int64_t k;
    fv_mask_found *found;
    const int64_t *first; /* of each text: which of found is its first mask */
} filling;

/* Insertion into a sorted list: k is small against the vocabulary, so O(V) in practice.
 * The k largest, largest first; of equals the one with the smaller id. */
static void keep_best(fv_word *top, int64_t k, const float *x, int64_t n)
{
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        if (have == k && !(x[i] > top[k - 1].score)) continue;
        int64_t at = have < k ? have++ : k - 1;
        for (; at > 0 && x[i] > top[at - 1].score; at--) top[at] = top[at - 1];
        top[at] = (fv_word){(int32_t)i, x[i]};
    }
}

/* Probabilities over the whole vocabulary, of which the best are kept: the softmax of k logits
 * alone would not be one. */
static fv_status fill_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    const filling *f = user;
    fv_mask_found *m = f->found + f->first[i];
    (void)e;
    for (int64_t j = 0; j < s->n; j++) {
        if (s->ids[j] != f->mask) continue;
        const float *x = out[0] + j * width;
        double total = 0, top;
        keep_best(m->top, f->k, x, width);
        top = m->top[0].score;
        for (int64_t v = 0; v < width; v++) total += exp((double)x[v] - top);
        for (int64_t v = 0; v < f->k; v++)
            m->top[v].score = (float)(exp((double)m->top[v].score - top) / total);
        m++;
    }
    return FV_OK;
}

static bool contains(const fv_text *x, const char *part)
{
    return memmem(x->s, x->n, part, strlen(part)) != NULL;
}

/* Masks are counted first, so that all results fit one block. */
static fv_status find_masks(fv_task *t, filling *f, const fv_text *texts, const fv_seq *seqs,
                            int64_t n, int64_t *count, fv_err *e)
{
    /* `longest` is for the copy that fv_task_filled hands out. */
    int64_t *first = fv__task_claim(t, (size_t)n * sizeof *first, e), longest = 0;
    if (!first) return FV_ENOMEM;
    *count = 0;
    for (int64_t i = 0; i < n; i++) {
        longest = seqs[i].n > longest ? seqs[i].n : longest;
        first[i] = *count;
        for (int64_t j = 0; j < seqs[i].n; j++) *count += seqs[i].ids[j] == f->mask;
        if (*count == first[i]) {
            /* Told apart, since a text that was truncated still shows its mask to the user. */
            bool cut = t->longest && seqs[i].n >= t->longest && texts[i].n >= strlen(t->mask) &&
                       contains(&texts[i], t->mask);
            return fv_fail(e, FV_EARG,
                           cut ? "the %s was cut off: the model sees %lld tokens"
                               : "there is no %s in it",
                           t->mask, (long long)t->longest);
        }
    }
    f->first = first;
    f->found = fv__task_claim(t, (size_t)*count * sizeof *f->found, e);
    fv_word *words = fv__task_claim(t, (size_t)(*count * f->k) * sizeof *words, e);
    t->copy = fv__task_claim(t, (size_t)longest * sizeof *t->copy, e);
    if (!f->found || !words || !t->copy) return FV_ENOMEM;
    for (int64_t i = 0, at = 0; i < n; i++)
        for (int64_t j = 0; j < seqs[i].n; j++)
            if (seqs[i].ids[j] == f->mask) {
                f->found[at] = (fv_mask_found){.text = i, .token = j, .top = words + at * f->k};
                at++;
            }
    return FV_OK;
}

/* A text may have several masks: each is filled by itself, with the others left masked, as
 * transformers' pipeline does. *found lives until the next call. */
fv_status fv_task_fill(fv_task *t, const fv_text *texts, int64_t n, int64_t k,
                       fv_mask_found **found, int64_t *n_found, fv_err *e)
{
    filling f = {.mask = fv_tok_id(t->tok, t->mask), .k = k};
    int64_t V = fv__task_setting(t, "vocab_size");
    if (k < 1 || k > V)
        return fv_fail(e, FV_EARG, "%lld words of a vocabulary of %lld", (long long)k,
                       (long long)V);
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &t->filled, texts, n, e);
    if (!st) st = find_masks(t, &f, texts, t->filled, n, n_found, e);
    *found = f.found;
    fv_wanted w = {.names = {"logits"}, .per_token = V, .fn = fill_row, .user = &f};
    return st ? st : fv__task_run(t, t->filled, n, &w, e);
}

/* The text's ids with one mask filled; the other masks stay. Valid until the next call. */
const int32_t *fv_task_filled(fv_task *t, const fv_mask_found *m, int32_t id, int64_t *n)
{
    const fv_seq *s = &t->filled[m->text];
    memcpy(t->copy, s->ids, (size_t)s->n * sizeof *t->copy);
    t->copy[m->token] = id;
    *n = s->n;
    return t->copy;
}

/* ---- the task ---- */

typedef struct fill_options {
    int64_t top;
    bool truncate;
} fill_options;

static const fv_field options[] = {FV_INT(fill_options, top, 1, 5, 1 << 20,
                                          "words for each mask, likeliest first"),
                                   FV_BOOL(fill_options, truncate, false,
                                           "cut texts that are longer than the model sees"),
                                   {0}};

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__open_encoder(p, FV_JOB_FILL, e);
    int64_t V = st ? 0 : fv__task_setting(p->task, "vocab_size");
    const fill_options *o = p->options;
    if (!st && o->top > V)
        st = fv_fail(e, FV_EARG, "%lld words of a vocabulary of %lld", (long long)o->top,
                     (long long)V);
    return st;
}

/* One proposal: score, token, token_str and sequence, as transformers names them.  `only`: the text
 * has one mask, and the sequence is shown without special tokens. */
static fv_status put_word(fv_pipeline *p, const fv_mask_found *m, const fv_word *w, bool only,
                          fv_err *e)
{
    const fv_tok *tok = p->task->tok;
    fv_buf *b = &p->out;
    char *word = NULL, *line = NULL;
    size_t word_n = 0, line_n = 0;
    int64_t n;
    const int32_t *ids = fv_task_filled(p->task, m, w->id, &n);
    fv_status st = fv_tok_decode(tok, &word, &word_n, &w->id, 1, false, e);
    if (!st) st = fv_tok_decode(tok, &line, &line_n, ids, n, only, e);
    if (!st && p->opt.json) {
        fv__json_begin(b, '{');
        fv__json_number_at(b, "score", (double)w->score);
        fv__json_int_at(b, "token", w->id);
        fv__json_text_at(b, "token_str", word, word_n);
        fv__json_text_at(b, "sequence", line, line_n);
        fv__json_end(b, '}');
    } else if (!st) {
        fv__buf_fmt(b, "%.6f\t%s\t%s\n", (double)w->score, word, line);
    }
    if (word) fv_tok_free_text(tok, word, word_n);
    if (line) fv_tok_free_text(tok, line, line_n);
    return st;
}

/* The masks [from, to) of one text. */
static fv_status put_text(fv_pipeline *p, const fv_text *text, const fv_mask_found *found,
                          int64_t from, int64_t to, fv_err *e)
{
    const fill_options *o = p->options;
    fv_buf *b = &p->out;
    fv_status st = FV_OK;
    if (p->opt.json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "text", text->s, text->n);
        fv__json_key(b, "masks");
        fv__json_begin(b, '[');
    } else if (p->first + p->done > 1) {
        fv__buf_str(b, "\n"); /* between texts */
    }
    for (int64_t i = from; i < to && !st; i++) {
        if (p->opt.json) fv__json_begin(b, '[');
        for (int64_t k = 0; k < o->top && !st; k++)
            st = put_word(p, &found[i], &found[i].top[k], to - from == 1, e);
        if (p->opt.json) fv__json_end(b, ']');
    }
    if (p->opt.json) fv__buf_str(b, "]}\n");
    return st ? st : fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    const fill_options *o = p->options;
    fv_mask_found *found;
    int64_t n_found;
    p->task->strict = !o->truncate;
    fv_status st = fv_task_fill(p->task, in, n, o->top, &found, &n_found, e);
    for (int64_t i = 0, at = 0, past; i < n && !st; i++, at = past) {
        for (past = at; past < n_found && found[past].text == i;) past++;
        st = put_text(p, &in[i], found, at, past, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"echo 'Paris is the [MASK] of France.' | fovea fill -m bert-base-uncased",
     "five words with their probabilities"},
    {"echo 'Paris is the <mask> of France.' | fovea fill -m roberta-base -k 1 --json",
     "each model has its own mask"},
    {0}};

const fv_task_kind fv__fill_task = {
    .name = "fill",
    .summary = "predict the masked words of texts",
    .about = "Reads lines with masks in them, written as the model's tokenizer writes them "
             "([MASK], <mask>), and prints for each mask the likeliest words: probability, word, "
             "and the sentence with it.  An empty line stands between the words of two texts.",
    .examples = examples,
    .options = options,
    .size = sizeof(fill_options),
    .batch = 64,
    .open = open_task,
    .run = run};
