/* corpus.c - distinct sentences of the grammar, divided into those to learn from and those held
 * out.
 *
 * Sentences are drawn by number until there are enough of both kinds.  A table of hashes keeps
 * them distinct: sentences are compared by hash alone, since a collision only leaves one sentence
 * out.  The table has four slots for each sentence and is probed linearly; it is never grown. */
#include "base/base.h"
#include "fovea/author/grammar.h"

/* FNV-1a, never 0: 0 is an empty slot. */
static uint64_t hash(const char *s)
{
    uint64_t h = 1469598103934665603u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h | 1;
}

/* Whether the sentence is new; it is in the table afterwards. */
static bool is_new(uint64_t *seen, size_t slots, const char *sentence)
{
    uint64_t h = hash(sentence);
    size_t at = h % slots;
    while (seen[at] && seen[at] != h) at = (at + 1) % slots;
    if (seen[at]) return false;
    seen[at] = h;
    return true;
}

/* A kind of which there are enough is drawn on and dropped, so that what one kind holds does not
 * depend on how many of the other are wanted. */
static void draw(fv_grammar_corpus *k, uint64_t *seen, size_t slots, uint64_t seed, int64_t n_train,
                 int64_t n_test)
{
    for (uint64_t i = 0; k->n_train < n_train || k->n_test < n_test; i++) {
        fv_grammar_pair p;
        fv_grammar_sentence(&p, seed, i);
        bool wanted = p.held_out ? k->n_test < n_test : k->n_train < n_train;
        if (wanted && is_new(seen, slots, p.en))
            k->pair[p.held_out ? n_train + k->n_test++ : k->n_train++] = p;
    }
}

static size_t bytes_of_texts(const fv_grammar_corpus *k)
{
    return (size_t)(k->n_train + k->n_test) * sizeof *k->en;
}

/* The counts stand for the sizes of the arrays until all are there, so that a failure on the way
 * frees what it should. */
fv_status fv_grammar_corpus_new(fv_grammar_corpus *out, const fv_env *env, uint64_t seed,
                                int64_t n_train, int64_t n_test, fv_err *e)
{
    size_t n = (size_t)(n_train + n_test), slots = 1;
    while (slots < 4 * n) slots *= 2;
    uint64_t *seen = fv__alloc(env, slots * sizeof *seen);
    *out = (fv_grammar_corpus){.n_train = n_train, .n_test = n_test};
    if (env) out->env = *env;
    out->pair = fv__alloc(env, n * sizeof *out->pair);
    out->en = fv__alloc(env, bytes_of_texts(out));
    out->fr = fv__alloc(env, bytes_of_texts(out));
    bool ok = seen && out->pair && out->en && out->fr;
    if (ok) {
        out->n_train = out->n_test = 0;
        draw(out, seen, slots, seed, n_train, n_test);
    }
    for (size_t i = 0; ok && i < n; i++) out->en[i] = out->pair[i].en, out->fr[i] = out->pair[i].fr;
    fv__free(env, seen, slots * sizeof *seen);
    if (ok) return FV_OK;
    fv_grammar_corpus_free(out);
    return fv_fail(e, FV_ENOMEM, "out of memory");
}

/* en and fr point into pair: only the arrays are freed. */
void fv_grammar_corpus_free(fv_grammar_corpus *k)
{
    fv_env env = k->env;
    fv__free(&env, k->pair, (size_t)(k->n_train + k->n_test) * sizeof *k->pair);
    fv__free(&env, k->en, bytes_of_texts(k));
    fv__free(&env, k->fr, bytes_of_texts(k));
    *k = (fv_grammar_corpus){0};
}
