/* unigram.c - learning a unigram language model over pieces (Kudo 2018): start from all frequent
 * substrings, then by turns estimate their probabilities by expectation-maximisation and drop those
 * that the likelihood misses least.
 *
 *     seeds (20 a piece) -> [ 2 EM steps -> prune to 3/4 ] ... -> 1.1 * vocab -> best by score
 *
 * The loop, the constants and the digamma of the M-step are SentencePiece's trainer; the seeds
 * are not found by a suffix array (see count_level), so vocabularies agree in nature and not
 * piece by piece. All of it is deterministic: words come sorted, ties are broken by index or by
 * text.
 *
 * An EM step costs the sum over distinct words of length * longest piece; one thread. Memory is
 * that of the seeds, the trie over them and three arrays of the longest word. */
#include <math.h>
#include <stdlib.h>

#include "train.h"

#define MAX_CHARS 16 /* of a piece */
#define SEEDS_PER 20 /* seeds for each piece wanted */
#define SHRINK 0.75  /* pieces kept by one pruning */
#define EM_STEPS 2
#define MIN_EXPECTED 0.5

typedef struct piece {
    fv__str text;
    double score; /* log probability */
    bool keep;    /* a single character: never dropped */
} piece;

/* Owned by fv__train_unigram, which frees all of it. Texts of pieces are views into `seeds` and
 * the alphabet: both live until the end. */
typedef struct state {
    fv__trainer *r;
    const fv_env *env;
    fv__set seeds;
    piece *v;
    int32_t n;
    size_t v_size;
    fv__trie trie;
    fv__pool pool;              /* of the trie */
    double *forward, *backward; /* by byte of the longest word */
    int32_t *back;              /* the piece that ends at a byte on the best path */
    size_t longest;
    double *expected;
    size_t expected_size;
} state;

/* ---- seeds ---- */

/* The byte behind `chars` characters from `at`, or the end of the string. */
static size_t char_end(fv__str s, size_t at, int chars)
{
    while (chars-- && at < s.n) {
        uint32_t cp;
        at += (size_t)fv__char_at(&cp, s.s + at);
    }
    return at;
}

/* Substrings of `chars` characters whose shorter start was frequent: no other can be.
 * Level by level as Apriori does: a substring is frequent only if its start is.  SentencePiece
 * builds a suffix array instead, which needs memory for the whole text. */
static bool count_level(state *s, int chars, fv__set *level)
{
    const fv__set *words = &s->r->words;
    for (int32_t i = 0; i < words->n; i++) {
        fv__str text = fv__set_str(words, i);
        for (size_t a = 0; a < text.n; a = char_end(text, a, 1)) {
            size_t shorter = char_end(text, a, chars - 1), b = char_end(text, shorter, 1);
            if (b == shorter) break; /* the word ends first */
            /* A frequent string has a frequent start, so only the start has to be looked up. Of
             * two characters the start is a letter, and letters are not in the set. */
            if (chars > 2 && fv__set_find(&s->seeds, text.s + a, shorter - a) < 0) continue;
            int32_t k = fv__set_add(level, text.s + a, b - a);
            if (k < 0) return false;
            level->v[k].count += words->v[i].count;
        }
    }
    return true;
}

/* Pieces of one length more are counted only where those of one less were frequent: memory stays
 * that of a level. */
static bool find_seeds(state *s)
{
    for (int chars = 2; chars <= MAX_CHARS; chars++) {
        fv__set level = {.env = s->env};
        bool ok = count_level(s, chars, &level), any = false;
        for (int32_t i = 0; i < level.n && ok; i++) {
            if (level.v[i].count < s->r->min_count) continue;
            int32_t k = fv__set_add(&s->seeds, fv__set_str(&level, i).s, level.v[i].len);
            /* A level without a frequent string ends the search: nothing longer can be frequent. */
            ok = any = k >= 0;
            if (ok) s->seeds.v[k].count = level.v[i].count;
        }
        fv__set_free(&level);
        if (!ok) return false;
        if (!any) break;
        fv__progress(s->r, "seeds", (double)chars / MAX_CHARS);
    }
    /* Worth of a seed: the text it covers. */
    for (int32_t i = 0; i < s->seeds.n; i++) s->seeds.v[i].count *= s->seeds.v[i].len;
    return fv__set_sort(&s->seeds, true);
}

/* Characters always stay, so every text over the alphabet can be written. */
static bool start_pieces(state *s, const fv__set *alphabet)
{
    int64_t most = (int64_t)s->r->vocab * SEEDS_PER;
    int32_t n = s->seeds.n < most ? s->seeds.n : (int32_t)most;
    /* One more, so that an empty list has an address. */
    s->v_size = ((size_t)n + (size_t)alphabet->n + 1) * sizeof *s->v;
    s->v = fv__alloc(s->env, s->v_size);
    if (!s->v) return false;
    double sum = 0;
    for (int32_t i = 0; i < alphabet->n; i++)
        s->v[s->n++] = (piece){fv__set_str(alphabet, i), (double)alphabet->v[i].count, true};
    for (int32_t i = 0; i < n; i++)
        s->v[s->n++] = (piece){fv__set_str(&s->seeds, i), (double)s->seeds.v[i].count, false};
    for (int32_t i = 0; i < s->n; i++) sum += s->v[i].score;
    for (int32_t i = 0; i < s->n; i++) s->v[i].score = log(s->v[i].score / sum);
    return true;
}

/* Rebuilt after every change of the list, since a trie's values are indices into it. */
static bool build_trie(state *s)
{
    size_t bytes = ((size_t)s->n + 1) * sizeof(fv__str);
    fv__str *keys = fv__alloc(s->env, bytes);
    if (!keys) return false;
    for (int32_t i = 0; i < s->n; i++) keys[i] = s->v[i].text;
    fv__pool_free(&s->pool);
    bool ok = fv__trie_build(&s->trie, &s->pool, keys, NULL, s->n);
    fv__free(s->env, keys, bytes);
    return ok;
}

/* ---- one word ---- */

/* log(exp(a) + exp(b)) without overflow; probabilities of long words underflow a double. */
static double log_add(double a, double b)
{
    if (a == -INFINITY) return b;
    if (b == -INFINITY) return a;
    double hi = a > b ? a : b, lo = a > b ? b : a;
    return hi + log1p(exp(lo - hi));
}

/* Calls for every piece that starts at byte a of text: its end and index. */
typedef struct walker {
    const state *s;
    fv__str text;
    size_t at;
    uint32_t node;
    int32_t piece;
} walker;

static bool next_piece(walker *w)
{
    while (w->at < w->text.n) {
        w->node = fv__trie_step(&w->s->trie, w->node, (unsigned char)w->text.s[w->at]);
        if (w->node == FV__TRIE_NONE) return false;
        w->at++;
        w->piece = w->s->trie.nodes[w->node].value;
        if (w->piece >= 0) return true;
    }
    return false;
}

static walker pieces_at(const state *s, fv__str text, size_t at)
{
    return (walker){s, text, at, 0, -1};
}

static bool starts_char(fv__str s, size_t at) { return (s.s[at] & 0xC0) != 0x80; }

/* Adds each piece's expected number in this word, times count; a word with a character that was not
 * kept teaches nothing.
 * Forward-backward in log space: the expected count of a piece at [a, b) is exp(f[a] + score +
 * b[b] - f[n]), its share of all segmentations of the word. */
static double expect(state *s, fv__str text, double count)
{
    double *f = s->forward, *b = s->backward;
    for (size_t i = 0; i <= text.n; i++) f[i] = b[i] = -INFINITY;
    f[0] = b[text.n] = 0;
    /* f[a] is -INFINITY inside a character and where no piece ends: nothing starts there. */
    for (size_t a = 0; a < text.n; a++)
        for (walker w = pieces_at(s, text, a); f[a] > -INFINITY && next_piece(&w);)
            f[w.at] = log_add(f[w.at], f[a] + s->v[w.piece].score);
    if (f[text.n] == -INFINITY) return 0;
    for (size_t a = text.n; a-- > 0;)
        if (starts_char(text, a))
            for (walker w = pieces_at(s, text, a); next_piece(&w);)
                b[a] = log_add(b[a], b[w.at] + s->v[w.piece].score);
    for (size_t a = 0; a < text.n; a++)
        for (walker w = pieces_at(s, text, a); f[a] > -INFINITY && next_piece(&w);)
            s->expected[w.piece] += count * exp(f[a] + s->v[w.piece].score + b[w.at] - f[text.n]);
    return count * f[text.n];
}

/* The best segmentation without piece `without`; false if there is none.  back[i] is the piece that
 * ends at i.
 * Viterbi, as unigram.c encodes; `without` asks how a piece would be spelled if it were gone. */
static bool best_path(state *s, fv__str text, int32_t without)
{
    double *f = s->forward;
    for (size_t i = 0; i <= text.n; i++) f[i] = -INFINITY, s->back[i] = -1;
    f[0] = 0;
    for (size_t a = 0; a < text.n; a++) {
        for (walker w = pieces_at(s, text, a); f[a] > -INFINITY && next_piece(&w);) {
            double x = f[a] + s->v[w.piece].score;
            if (w.piece == without || x <= f[w.at]) continue;
            f[w.at] = x;
            s->back[w.at] = w.piece;
        }
    }
    return f[text.n] > -INFINITY;
}

/* ---- expectation and maximisation ---- */

/* psi(x), by recurrence up to where the series is exact enough. */
static double digamma(double x)
{
    double sum = 0;
    while (x < 7) {
        sum -= 1 / x;
        x += 1;
    }
    double y = 1 / (x * x);
    return sum + log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y / 252));
}

/* digamma instead of log: the Bayesian M-step of SentencePiece, which pushes rare pieces further
 * down. */
static bool em_step(state *s)
{
    const fv__set *words = &s->r->words;
    memset(s->expected, 0, s->expected_size);
    for (int32_t i = 0; i < words->n; i++)
        expect(s, fv__set_str(words, i), (double)words->v[i].count);
    int32_t n = 0;
    double sum = 0;
    for (int32_t i = 0; i < s->n; i++) {
        /* Expected less than half a time in the whole corpus: gone at once, without waiting for
         * pruning. */
        if (!s->v[i].keep && s->expected[i] < MIN_EXPECTED) continue;
        double e = s->expected[i] < MIN_EXPECTED ? MIN_EXPECTED : s->expected[i];
        s->v[n] = s->v[i];
        s->v[n++].score = e;
        sum += e;
    }
    s->n = n;
    for (int32_t i = 0; i < n; i++) s->v[i].score = digamma(s->v[i].score) - digamma(sum);
    return build_trie(s);
}

/* ---- pruning ---- */

/* What a piece is worth: larger means that the likelihood suffers more without it. */
typedef struct ranked {
    double loss;
    int32_t index;
} ranked;

static int by_loss(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    return a->loss != b->loss ? (a->loss > b->loss ? -1 : 1)
                              : (a->index > b->index) - (a->index < b->index);
}

/* Kept pieces go back into their old order: pruning shortens the list and does not shuffle it. */
static int by_index(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    return (a->index > b->index) - (a->index < b->index);
}

/* How often each piece is on the best path of the words. */
static double count_best(state *s)
{
    const fv__set *words = &s->r->words;
    double sum = 0;
    memset(s->expected, 0, s->expected_size);
    for (int32_t i = 0; i < words->n; i++) {
        fv__str text = fv__set_str(words, i);
        if (!best_path(s, text, -1)) continue;
        for (size_t at = text.n; at; at -= s->v[s->back[at]].text.n) {
            s->expected[s->back[at]] += (double)words->v[i].count;
            sum += (double)words->v[i].count;
        }
    }
    return sum;
}

/* What the likelihood loses when its text is written with other pieces. */
static double loss_without(state *s, int32_t i, double sum)
{
    double freq = s->expected[i], parts = 0, alternative = 0;
    fv__str text = s->v[i].text;
    if (!best_path(s, text, i)) return INFINITY;
    for (size_t at = text.n; at; at -= s->v[s->back[at]].text.n) {
        parts++;
        alternative += log(s->expected[s->back[at]] + freq);
    }
    /* With the piece gone its count goes to the parts of its next best spelling, and the total
     * grows by parts - 1 for each occurrence. */
    double with = log(freq) - log(sum),
           without = alternative - parts * log(sum + freq * (parts - 1));
    return freq / sum * (with - without);
}

/* Three quarters at a time, with EM in between: dropping all at once would judge pieces by
 * counts that others' removal changes. */
static bool prune(state *s, int32_t want)
{
    size_t bytes = (size_t)s->n * sizeof(ranked);
    ranked *order = fv__alloc(s->env, bytes);
    if (!order) return false;
    double sum = count_best(s);
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        double loss = s->v[i].keep         ? INFINITY
                      : s->expected[i] > 0 ? loss_without(s, i, sum)
                                           : -INFINITY;
        if (loss > -INFINITY) order[n++] = (ranked){loss, i};
    }
    /* Never below what is wanted: the last pruning stops at the goal. */
    int32_t keep = (int32_t)(s->n * SHRINK) > want ? (int32_t)(s->n * SHRINK) : want;
    qsort(order, (size_t)n, sizeof *order, by_loss);
    if (n > keep) n = keep;
    qsort(order, (size_t)n, sizeof *order, by_index);
    for (int32_t i = 0; i < n; i++) s->v[i] = s->v[order[i].index];
    s->n = n;
    fv__free(s->env, order, bytes);
    return build_trie(s);
}

/* ---- the model ---- */

/* Equal scores by text: the order of ids is part of the result. */
static int by_score(const void *pa, const void *pb)
{
    const piece *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    size_t n = a->text.n < b->text.n ? a->text.n : b->text.n;
    int d = memcmp(a->text.s, b->text.s, n);
    return d ? d : (a->text.n > b->text.n) - (a->text.n < b->text.n);
}

/* Characters are always kept, the rest by score. */
static void choose(state *s, int32_t budget)
{
    int32_t kept = 0, n = 0;
    for (int32_t i = 0; i < s->n; i++) kept += s->v[i].keep;
    qsort(s->v, (size_t)s->n, sizeof *s->v, by_score);
    for (int32_t i = 0, free_left = budget > kept ? budget - kept : 0; i < s->n; i++) {
        bool take = s->v[i].keep || free_left > 0;
        if (take && !s->v[i].keep) free_left--;
        if (take) s->v[n++] = s->v[i];
    }
    s->n = n;
}

static bool to_model(state *s)
{
    fv__trainer *r = s->r;
    fv__model *m = &r->t->model;
    choose(s, r->vocab - r->specials.n);
    int32_t n = r->specials.n + s->n;
    size_t text = r->specials.used;
    for (int32_t i = 0; i < s->n; i++) text += s->v[i].text.n;
    m->scores = fv__pool_array(&r->t->pool, (size_t)n, sizeof *m->scores);
    if (!m->scores || !fv__vocab_init(&m->vocab, &r->t->pool, n, n, text)) return false;
    /* Specials first, as SentencePiece numbers them, with score 0 from the zeroed pool. */
    int32_t id = 0;
    for (int32_t i = 0; i < r->specials.n; i++)
        fv__vocab_put(&m->vocab, fv__set_str(&r->specials, i).s, r->specials.v[i].len, id++);
    for (int32_t i = 0; i < s->n; i++) {
        /* spelled like a special */
        if (fv__vocab_put(&m->vocab, s->v[i].text.s, s->v[i].text.n, id) != FV__ADDED) continue;
        /* Six decimals: few enough digits that every JSON reader gets the same number. */
        m->scores[id++] = round(s->v[i].score * 1e6) / 1e6;
    }
    return true;
}

/* Down to 1.1 times the size asked for, as SentencePiece does; the last tenth goes by score. */
static bool train(state *s, fv__set *alphabet)
{
    const fv__set *words = &s->r->words;
    for (int32_t i = 0; i < words->n; i++)
        if (words->v[i].len > s->longest) s->longest = words->v[i].len;
    size_t bytes = s->longest + 1;
    s->forward = fv__alloc(s->env, bytes * sizeof *s->forward);
    s->backward = fv__alloc(s->env, bytes * sizeof *s->backward);
    s->back = fv__alloc(s->env, bytes * sizeof *s->back);
    if (!s->forward || !s->backward || !s->back || !find_seeds(s) ||
        !fv__alphabet(s->r, alphabet) || !start_pieces(s, alphabet))
        return false;
    s->expected_size = ((size_t)s->n + 1) * sizeof *s->expected;
    s->expected = fv__alloc(s->env, s->expected_size);
    if (!s->expected || !build_trie(s)) return false;
    int32_t goal = (int32_t)(s->r->vocab * 1.1), start = s->n;
    /* The alphabet is never pruned, so a goal below its size would not be reached. */
    if (goal < alphabet->n) goal = alphabet->n;
    for (;;) {
        for (int i = 0; i < EM_STEPS; i++)
            if (!em_step(s)) return false;
        fv__progress(s->r, "pruning", start > goal ? (double)(start - s->n) / (start - goal) : 1);
        if (s->n <= goal) break;
        if (!prune(s, goal)) return false;
    }
    return to_model(s);
}

fv_status fv__train_unigram(fv__trainer *r)
{
    state s = {.r = r, .env = r->t->env, .seeds = {.env = r->t->env}, .pool = {.env = r->t->env}};
    fv__set alphabet = {.env = s.env};
    bool ok = train(&s, &alphabet);
    size_t bytes = s.longest + 1;
    fv__free(s.env, s.forward, bytes * sizeof *s.forward);
    fv__free(s.env, s.backward, bytes * sizeof *s.backward);
    fv__free(s.env, s.back, bytes * sizeof *s.back);
    fv__free(s.env, s.expected, s.expected_size);
    fv__free(s.env, s.v, s.v_size);
    fv__pool_free(&s.pool);
    fv__set_free(&alphabet);
    fv__set_free(&s.seeds);
    return ok ? FV_OK : fv__train_no_memory(r);
}
