/* bleu.c - corpus BLEU, exponential smoothing, and mteval-v13a's tokens: the
 * numbers of sacrebleu 2.6.
 *
 *     BLEU = BP exp(sum_n log p_n / 4)     p_n = matched n-grams / n-grams of the output, n = 1..4
 *     BP = min(1, exp(1 - reference length / output length))
 *
 * Counts are summed over the corpus before they are divided.  Of several references an n-gram may
 * be matched as often as in the one that has most of it, and the length is that of the reference
 * which comes nearest, the shorter of two.  An order without a match counts as
 * 1/2, the next such order as 1/4, and so on (smooth:exp). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "fovea/author/metric.h"
#include "metric/words.h"

/* ---- tokens ---- */

static bool is_digit(uint32_t c) { return c >= '0' && c <= '9'; }
static bool is_stop(uint32_t c) { return c == '.' || c == ','; }

/* ASCII punctuation that is always a token of its own; . , - and apostrophes are not among it. */
static bool is_apart(uint32_t c)
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
           (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

/* One rule of the tokeniser: where it holds at x[i], it writes how these one or two characters come
 * out and says how many they were; 0 otherwise.  Rules run over the whole text one after the other,
 * each from left to right. */
typedef size_t rule(fv_symbols *out, const uint32_t *x, size_t left);

static void spaced(fv_symbols *out, uint32_t c)
{
    fv__symbols_add(out, ' ');
    fv__symbols_add(out, c);
    fv__symbols_add(out, ' ');
}

/* A rule looks at what is left of the text, appends what it becomes and returns how many symbols it
 * took; 0: it does not apply. */
static size_t punctuation(fv_symbols *out, const uint32_t *x, size_t left)
{
    (void)left;
    if (!is_apart(x[0])) return 0;
    spaced(out, x[0]);
    return 1;
}

/* "3.5" stays one token; "end." becomes two. */
static size_t stop_after_no_digit(fv_symbols *out, const uint32_t *x, size_t left)
{
    if (left < 2 || is_digit(x[0]) || !is_stop(x[1])) return 0;
    fv__symbols_add(out, x[0]);
    spaced(out, x[1]);
    return 2;
}

static size_t stop_before_no_digit(fv_symbols *out, const uint32_t *x, size_t left)
{
    if (left < 2 || !is_stop(x[0]) || is_digit(x[1])) return 0;
    spaced(out, x[0]);
    fv__symbols_add(out, x[1]);
    return 2;
}

/* "1990-1995" becomes three tokens. */
static size_t dash_after_digit(fv_symbols *out, const uint32_t *x, size_t left)
{
    if (left < 2 || !is_digit(x[0]) || x[1] != '-') return 0;
    fv__symbols_add(out, x[0]);
    spaced(out, x[1]);
    return 2;
}

static void exchange(fv_symbols *a, fv_symbols *b)
{
    fv_symbols t = *a;
    *a = *b;
    *b = t;
}

static void run_rule(rule *r, fv_symbols *text, fv_symbols *tmp)
{
    tmp->n = 0;
    for (size_t i = 0; i < text->n && !tmp->failed;) {
        size_t used = r(tmp, text->at + i, text->n - i);
        if (!used) fv__symbols_add(tmp, text->at[i]);
        i += used ? used : 1;
    }
    exchange(text, tmp);
}

static void replace(fv_symbols *text, fv_symbols *tmp, const char *from, uint32_t to)
{
    size_t len = strlen(from);
    tmp->n = 0;
    for (size_t i = 0; i < text->n;) {
        size_t k = 0;
        while (k < len && i + k < text->n && text->at[i + k] == (unsigned char)from[k]) k++;
        if (k < len)
            fv__symbols_add(tmp, text->at[i++]);
        else if (i += len, to)
            fv__symbols_add(tmp, to);
    }
    exchange(text, tmp);
}

/* mteval-v13a: entities are decoded, then the four rules run in this order. */
static void tokens_13a(fv_symbols *text, fv_symbols *tmp)
{
    replace(text, tmp, "<skipped>", 0);
    replace(text, tmp, "-\n", 0);
    replace(text, tmp, "\n", ' ');
    replace(text, tmp, "&quot;", '"');
    replace(text, tmp, "&amp;", '&');
    replace(text, tmp, "&lt;", '<');
    replace(text, tmp, "&gt;", '>');
    tmp->n = 0; /* the rules look at the neighbours of a stop, so the text is framed in blanks */
    fv__symbols_add(tmp, ' ');
    for (size_t i = 0; i < text->n; i++) fv__symbols_add(tmp, text->at[i]);
    fv__symbols_add(tmp, ' ');
    exchange(text, tmp);
    run_rule(punctuation, text, tmp);
    run_rule(stop_after_no_digit, text, tmp);
    run_rule(stop_before_no_digit, text, tmp);
    run_rule(dash_after_digit, text, tmp);
}

/* The tokens of a text as numbers that are the same for the same word. */
static void read_words(fv_words *w, fv_symbols *out, const char *text, size_t len,
                       fv_symbols scratch[2], fv_bleu_opt opt)
{
    fv_symbols *x = &scratch[0];
    fv__symbols_text(x, text, len);
    for (size_t i = 0; opt.lowercase && i < x->n; i++)
        x->at[i] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)x->at[i]);
    while (x->n && fv__is_blank(x->at[x->n - 1])) x->n--;
    if (opt.tokens == FV_BLEU_13A) tokens_13a(x, &scratch[1]);
    fv__words_split(w, out, x);
}

/* ---- the score ---- */

/* From counts to the score. */
static void finish(fv_bleu *b)
{
    b->brevity = b->length >= b->reference_length ? 1
                 : b->length ? exp(1 - (double)b->reference_length / (double)b->length)
                             : 0;
    if (!(b->match[0] | b->match[1] | b->match[2] | b->match[3])) return;
    double halved = 1, sum = 0;
    for (int i = 0; i < 4; i++) {
        if (!b->total[i]) return; /* no text is long enough: the product is 0 */
        if (!b->match[i]) halved *= 2;
        b->precision[i] = 100.0 * (b->match[i] ? (double)b->match[i] : 1 / halved) /
                          (double)b->total[i];
        sum += log(b->precision[i]);
    }
    b->score = b->brevity * exp(sum / 4);
}

/* What the texts of a corpus share; all of it is reused from text to text. */
typedef struct scoring {
    fv_bleu_opt opt;
    fv_words w;
    fv_symbols text[2], hyp, ref, scratch[2], matched[4];
} scoring;

/* Adds one text against all its references. */
static void add(fv_bleu *out, scoring *s, const char *text, const char *references)
{
    const char *reference;
    size_t len;
    int64_t nearest = -1, n;
    fv__words_forget(&s->w);
    read_words(&s->w, &s->hyp, text, strlen(text), s->text, s->opt);
    n = (int64_t)s->hyp.n;
    for (int k = 0; k < 4; k++) {
        s->matched[k].n = 0;
        out->total[k] += fv__ngram_count(&s->hyp, (size_t)k + 1);
    }
    for (int i = 0; (reference = fv__reference(references, i, &len)); i++) {
        read_words(&s->w, &s->ref, reference, len, s->text, s->opt);
        int64_t m = (int64_t)s->ref.n, d = llabs(m - n), best = llabs(nearest - n);
        if (nearest < 0 || d < best || (d == best && m < nearest)) nearest = m;
        for (int k = 0; k < 4; k++)
            out->match[k] += fv__ngram_new_matches(&s->hyp, &s->ref, (size_t)k + 1, s->scratch,
                                                   &s->matched[k]);
    }
    out->length += n;
    out->reference_length += nearest;
}

fv_status fv_bleu_score(fv_bleu *out, const fv_env *env, const char *const *texts,
                        const char *const *references, int64_t n, fv_bleu_opt opt, fv_err *e)
{
    scoring s = {.opt = opt};
    fv_symbols *all[] = {&s.w.seen,     &s.w.from,     &s.text[0],    &s.text[1],
                         &s.hyp,        &s.ref,        &s.scratch[0], &s.scratch[1],
                         &s.matched[0], &s.matched[1], &s.matched[2], &s.matched[3]};
    const size_t n_all = sizeof all / sizeof *all;
    *out = (fv_bleu){0};
    for (size_t i = 0; i < n_all; i++) all[i]->env = env;
    for (int64_t i = 0; i < n; i++) add(out, &s, texts[i], references[i]);
    if (!fv__symbols_done(all, n_all)) return fv_fail(e, FV_ENOMEM, "bleu: out of memory");
    finish(out);
    int each = fv__references_of_each(references, n);
    char refs[16] = "var";
    if (each) snprintf(refs, sizeof refs, "%d", each);
    snprintf(out->signature, sizeof out->signature,
             "nrefs:%s|case:%s|eff:no|tok:%s|smooth:exp|version:2.6.0", refs,
             opt.lowercase ? "lc" : "mixed", opt.tokens == FV_BLEU_13A ? "13a" : "none");
    return FV_OK;
}
