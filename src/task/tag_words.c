/* tag_words.c - labels of words that stand apart already: each is encoded alone, and its first
 * token carries its label.
 *
 * fv_task_tag finds entities in running text and splits it by the tokenizer; evaluation must not,
 * because references have words already. Each word is encoded by itself and its first piece
 * decides, as the models were trained. */
#include "data/word_bytes.h"
#include "task.h"

typedef struct pieces {
    const char *word;
    int32_t *ids;
    int64_t n;
} pieces;

/* What the tokenizer puts around a text. */
typedef struct frame {
    int32_t before[8], after[8];
    int64_t n_before, n_after;
} frame;

typedef struct tagging {
    fv_task *t;
    frame frame;
    pieces *word; /* of all sentences */
    fv_seq *seqs;
    int64_t n;
    int64_t *first; /* the number of each sequence's first word */
    int32_t *labels;
} tagging;

/* Which special tokens stand around a text is seen by encoding one: tokenizers have no question for
 * it. */
static fv_status find_frame(fv_task *t, frame *f, fv_err *e)
{
    fv_status st = fv_tok_encode(t->enc, "a", 1, (fv_tok_opts){.specials = true}, e);
    const fv_encoding *x = t->enc;
    *f = (frame){0};
    for (int64_t i = 0; !st && i < x->n && x->special[i] && f->n_before < 8; i++)
        f->before[f->n_before++] = x->ids[i];
    int64_t from = st ? 0 : x->n;
    while (from > f->n_before && x->special[from - 1]) from--;
    for (int64_t i = from; !st && i < x->n && f->n_after < 8; i++)
        f->after[f->n_after++] = x->ids[i];
    return st;
}

/* Word by word, as transformers does with is_split_into_words: a piece never spans two words. */
static fv_status encode_word(fv_task *t, pieces *out, const char *word, fv_err *e)
{
    fv_status st = fv_tok_encode(t->enc, word, strlen(word), (fv_tok_opts){0}, e);
    if (st) return st;
    out->word = word;
    out->n = t->enc->n;
    out->ids = fv__task_claim(t, (size_t)out->n * sizeof *out->ids, e);
    if (!out->ids) return FV_ENOMEM;
    if (out->n) memcpy(out->ids, t->enc->ids, (size_t)out->n * sizeof *out->ids);
    return FV_OK;
}

/* One sequence of n words, and of as many of their tokens as there is room for. */
static fv_status add_part(tagging *g, int64_t first, int64_t n, int64_t tokens, int64_t budget,
                          fv_err *e)
{
    const frame *f = &g->frame;
    if (tokens > budget) tokens = budget;
    fv_seq *s = &g->seqs[g->n];
    *s = (fv_seq){.n = f->n_before + tokens + f->n_after};
    if (!s->n) return FV_OK; /* words of no tokens in no frame */
    s->ids = fv__task_claim(g->t, (size_t)s->n * sizeof *s->ids, e);
    s->types = fv__task_claim(g->t, (size_t)s->n * sizeof *s->types, e);
    s->words = fv__task_claim(g->t, (size_t)s->n * sizeof *s->words, e);
    int64_t at = 0, most = g->t->word_bytes;
    s->letters = fv__task_claim(g->t, (size_t)(s->n * most) * sizeof *s->letters, e);
    if (!s->ids || !s->types || !s->words || !s->letters) return FV_ENOMEM;
    for (int64_t i = 0; i < f->n_before; i++) s->words[at] = -1, s->ids[at++] = f->before[i];
    for (int64_t w = 0; w < n; w++)
        for (int64_t i = 0; i < g->word[first + w].n && at < f->n_before + tokens; i++) {
            const char *word = g->word[first + w].word;
            s->words[at] = i ? -1 : (int32_t)w;
            fv__word_bytes(s->letters + at * most, most, word, strlen(word));
            s->ids[at++] = g->word[first + w].ids[i];
        }
    for (int64_t i = 0; i < f->n_after; i++) s->words[at] = -1, s->ids[at++] = f->after[i];
    g->first[g->n++] = first;
    return FV_OK;
}

/* The words [first, first + n) in as few parts as there is room for. */
static fv_status add_parts(tagging *g, int64_t first, int64_t n, fv_err *e)
{
    int64_t budget = g->t->longest ? g->t->longest - g->frame.n_before - g->frame.n_after
                                   : INT64_MAX / 2;
    if (budget < 1)
        return fv_fail(e, FV_EARG, "a model that sees %lld tokens has no room for a word",
                       (long long)g->t->longest);
    fv_status st = FV_OK;
    for (int64_t from = first, at = first, tokens = 0; !st && from < first + n; at++) {
        bool full = at < first + n && at > from && tokens + g->word[at].n > budget;
        if (full || at == first + n) {
            st = add_part(g, from, at - from, tokens, budget, e);
            from = at;
            tokens = 0;
        }
        if (at < first + n) tokens += g->word[at].n;
    }
    return st;
}

/* A word's label is that of its first piece; words[j] is -1 for the others. */
static fv_status label_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    const tagging *g = user;
    int64_t n = 0, *at = fv__task_claim(g->t, (size_t)s->n * sizeof *at, e);
    int32_t *best = fv__task_claim(g->t, (size_t)s->n * sizeof *best, e);
    if (!at || !best) return FV_ENOMEM;
    for (int64_t j = 0; j < s->n; j++)
        if (s->words[j] >= 0) at[n++] = j;
    fv_status st = fv__task_decode(g->t, best, out[0], at, n, width, e);
    for (int64_t k = 0; !st && k < n; k++) g->labels[g->first[i] + s->words[at[k]]] = best[k];
    return st;
}

/* A sentence that is too long is cut between words into parts; a word that no window holds keeps
 * the label -1. */
fv_status fv__task_tag_words(fv_task *t, const fv__sentence *s, int64_t n, int32_t *labels,
                             fv_err *e)
{
    int64_t words = 0, at = 0;
    for (int64_t i = 0; i < n; i++) words += s[i].n;
    fv__task_begin(t);
    tagging g = {.t = t,
                 .labels = labels,
                 .word = fv__task_claim(t, (size_t)words * sizeof *g.word, e)};
    g.seqs = fv__task_claim(t, (size_t)words * sizeof *g.seqs, e); /* a part has a word at least */
    g.first = fv__task_claim(t, (size_t)words * sizeof *g.first, e);
    if (!g.word || !g.seqs || !g.first) return FV_ENOMEM;
    fv_status st = find_frame(t, &g.frame, e);
    for (int64_t i = 0; !st && i < n; at += s[i++].n) {
        for (int64_t k = 0; !st && k < s[i].n; k++)
            st = encode_word(t, &g.word[at + k], s[i].word[k], e);
        if (!st) st = add_parts(&g, at, s[i].n, e);
    }
    for (int64_t i = 0; i < words; i++) labels[i] = -1;
    fv_wanted w = {.names = {"logits"}, .per_token = t->labels, .fn = label_row, .user = &g};
    return st ? st : fv__task_run(t, g.seqs, g.n, &w, e);
}
