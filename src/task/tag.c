/* tag.c - entities: runs of words, or of tokens, with one label.
 *
 * A label is the likeliest one.  I-X goes on with what was labelled X; B-X begins anew.  Labels
 * without B- and I- go on.  Taggers learn the label of a word's first token and nothing about the
 * others, so a word goes by its first (transformers' aggregation "first"); where every token was
 * taught, each may be asked ("simple").  A word is what the tokenizer's own splitting makes: that
 * of WordPiece is transformers' too, which for other tokenizers goes by blanks and says it is
 * guessing. */
#include "task.h"

typedef struct tagging {
    const fv_task *t;
    fv_join join;
    fv_entity **runs; /* of each text, room for one a token */
    int64_t *n;
} tagging;

typedef struct open_run {
    const char *label;
    int64_t from, to, n;
    double score; /* sum over n */
} open_run;

static const char *without_prefix(const char *label)
{
    bool prefixed = (label[0] == 'B' || label[0] == 'I') && label[1] == '-';
    return prefixed ? label + 2 : label;
}

static void finish(const tagging *g, int64_t i, open_run *r)
{
    if (r->n && strcmp(r->label, "O"))
        g->runs[i][g->n[i]++] = (fv_entity){.text = i,
                                            .from = r->from,
                                            .to = r->to,
                                            .label = r->label,
                                            .score = (float)(r->score / (double)r->n)};
    *r = (open_run){0};
}

/* Token j belongs to the word of the token before it. */
static bool inside_word(const fv_seq *s, int64_t j)
{
    return j > 0 && s->words[j] >= 0 && s->words[j] == s->words[j - 1];
}

static fv_status tag_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                         int64_t width, fv_err *e)
{
    const tagging *g = user;
    open_run run = {0};
    for (int64_t j = 0; j < s->n; j++) {
        const float *x = out[0] + j * width;
        int64_t best = 0;
        float p[1024];
        if (s->special[j]) continue;
        if (g->join == FV_JOIN_FIRST && inside_word(s, j)) {
            run.to = s->spans[j].to;
            continue;
        }
        if (width > 1024)
            return fv_fail(e, FV_EARG, "%lld labels, at most 1024 are handled", (long long)width);
        memcpy(p, x, (size_t)width * sizeof *p);
        fv__softmax_row(p, width);
        for (int64_t k = 1; k < width; k++) best = p[k] > p[best] ? k : best;
        const char *label = fv_task_label(g->t, (int)best), *bare = without_prefix(label);
        bool begins = label != bare && label[0] == 'B';
        if (run.n && (begins || strcmp(bare, run.label))) finish(g, i, &run);
        if (!run.n) run = (open_run){.label = bare, .from = s->spans[j].from};
        run.to = s->spans[j].to;
        run.score += (double)p[best];
        run.n++;
    }
    finish(g, i, &run);
    return FV_OK;
}

fv_status fv_task_tag(fv_task *t, const fv_text *texts, int64_t n, fv_join join, fv_entity **found,
                      int64_t *n_found, fv_err *e)
{
    fv_seq *seqs;
    int64_t total = 0;
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &seqs, texts, n, e);
    if (st) return st;
    for (int64_t i = 0; i < n; i++) total += seqs[i].n;
    tagging g = {.t = t, .join = join, .n = fv__task_claim(t, (size_t)n * sizeof *g.n, e)};
    g.runs = fv__task_claim(t, (size_t)n * sizeof *g.runs, e);
    fv_entity *all = fv__task_claim(t, (size_t)total * sizeof *all, e);
    if (!g.n || !g.runs || !all) return FV_ENOMEM;
    for (int64_t i = 0, at = 0; i < n; at += seqs[i++].n) g.runs[i] = all + at;
    fv_wanted w = {.names = {"logits"}, .per_token = t->labels, .fn = tag_row, .user = &g};
    st = fv__task_run(t, seqs, n, &w, e);
    *found = all;
    *n_found = 0;
    for (int64_t i = 0; !st && i < n; i++) { /* together, in the order of the texts */
        fv_chars chars;
        st = fv__task_chars(t, &chars, texts[i].s, texts[i].n, e);
        for (int64_t k = 0; !st && k < g.n[i]; k++) {
            fv_entity *x = &all[(*n_found)++];
            *x = g.runs[i][k];
            x->s = fv__chars_slice(&chars, x->from, x->to, &x->n);
        }
    }
    return st;
}
