/* unigram.c - the most probable segmentation, by Viterbi.
 *
 * best[i] is the best way to cover the first i bytes; from each character start that is reached,
 * the trie gives all tokens that go on from there.  A character no token covers alone costs
 * unk_score.
 *
 *    best[i] = max over tokens t that end at i of  best[i - |t|] + log p(t)        (Kudo, 2018)
 *
 *    bytes     0   1   2   3   4
 *              |-un-|-re-|            a cell keeps score, id and start of its best last token;
 *              |----unr--|-e-|        following start from the end gives the segmentation
 *
 * O(n * longest token).  Scores are doubles, rounded to float where SentencePiece computes in
 * float: ties between segmentations must fall as they do in the reference. */
#include <float.h>
#include <math.h>

#include "work.h"

#define UNKNOWN_PENALTY 10.0
/* floats this large blur; where all paths meet the sum starts again, as SentencePiece has it */
#define RESTART 100000.0

/* SentencePiece: control, unknown and byte pieces are never found in text; user-defined ones always
 * win. */
static bool takes_part(const uint8_t *types, int32_t id)
{
    return !types || types[id] == FV__SPM_NORMAL || types[id] == FV__SPM_USER;
}

/* The unknown character costs 10 less than the rarest token, as SentencePiece has it. */
static void score_bounds(const fv__model *m, const uint8_t *types, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (int32_t id = 0; id < m->vocab.size; id++) {
        if (types && types[id] != FV__SPM_NORMAL) continue;
        if (m->scores[id] < *least) *least = m->scores[id];
        if (m->scores[id] > *most) *most = m->scores[id];
    }
    if (*least > *most) *least = *most = 0;
}

bool fv__unigram_finish(fv__model *m, fv__pool *p, const uint8_t *types)
{
    size_t n = (size_t)m->vocab.n, bytes = (n + 1) * sizeof(fv__str);
    fv__str *keys = fv__alloc(p->env, bytes);
    int32_t *ids = fv__alloc(p->env, (n + 1) * sizeof *ids), k = 0;
    double least, most;
    bool ok = keys && ids;
    score_bounds(m, types, &least, &most);
    /* SentencePiece looks for the greatest score from FLT_MIN up, and logarithms of probabilities
     * are below it: in practice a user-defined symbol costs 0.1, whatever its length */
    float best = fmaxf((float)most, FLT_MIN);
    for (int32_t id = 0; ok && id < m->vocab.size; id++) {
        fv__str s = fv__vocab_str(&m->vocab, id);
        if (!s.n || !takes_part(types, id)) continue;
        if (types && types[id] == FV__SPM_USER) m->scores[id] = (float)((float)s.n * best) - 0.1;
        keys[k] = s;
        ids[k++] = id;
    }
    ok = ok && fv__trie_build(&m->trie, p, keys, ids, k);
    fv__free(p->env, keys, bytes);
    fv__free(p->env, ids, (n + 1) * sizeof *ids);
    fv__byte_ids(m);
    m->unk_score = least - UNKNOWN_PENALTY;
    if (m->single) m->unk_score = (float)m->unk_score;
    return ok;
}

static void offer(const fv__model *m, fv__path *to, double so_far, double score, int32_t id,
                  uint32_t start)
{
    double sum = so_far + score;
    /* a sum of two floats in double, rounded, is their float sum */
    if (m->single) sum = (float)sum;
    if (to->start == UINT32_MAX || sum > to->score) *to = (fv__path){sum, id, start, 0};
}

/* reach is the furthest byte any path has covered; where i == reach all paths pass through i,
 * and a common offset may be taken off their scores. */
static bool forward(const fv__model *m, fv__work *w, fv__path *best, const char *s, uint32_t n)
{
    best[0] = (fv__path){0, -1, 0, 0};
    for (uint32_t i = 1; i <= n; i++) best[i].start = UINT32_MAX;
    for (uint32_t i = 0, len, reach = 0; i < n; i += len) {
        uint32_t cp, node = 0, k;
        bool alone = false;
        if (m->single && i == reach && best[i].score < -RESTART) best[i].score = 0;
        len = (uint32_t)fv__char_at(&cp, s + i);
        for (k = i; k < n; k++) {
            node = fv__trie_step(&m->trie, node, (unsigned char)s[k]);
            if (node == FV__TRIE_NONE) break;
            int32_t id = m->trie.nodes[node].value;
            if (id < 0) continue;
            offer(m, best + k + 1, best[i].score, m->scores[id], id, i);
            if (k + 1 - i == len) alone = true;
            if (k + 1 > reach) reach = k + 1;
        }
        if (i + len > reach) reach = i + len;
        if (!alone) offer(m, best + i + len, best[i].score, m->unk_score, -1, i);
        w->steps += k - i;
        if (w->steps > w->most_steps) break;
    }
    return fv__within_limits(w);
}

/* Bytes of an unknown stretch, if all have a token. */
static bool fall_back(const fv__model *m, fv__work *w, const char *s, uint32_t at, uint32_t a,
                      uint32_t b, bool *done)
{
    *done = m->byte_fallback;
    for (uint32_t i = a; i < b && *done; i++) *done = m->byte_ids[(unsigned char)s[i]] >= 0;
    for (uint32_t i = a; i < b && *done; i++)
        if (!fv__emit(w, m->byte_ids[(unsigned char)s[i]], at + a, at + b)) return false;
    return true;
}

static bool emit_unknown(const fv__model *m, fv__work *w, const char *s, uint32_t at, uint32_t a,
                         uint32_t b)
{
    bool done;
    /* Joined, unknown characters may spell a token that the search could not reach; the reference
     * takes it. */
    int32_t id = m->single ? -1 : fv__vocab_id(&m->vocab, s + a, b - a);
    if (id >= 0) return fv__emit(w, id, at + a, at + b);
    if (!fall_back(m, w, s, at, a, b, &done)) return false;
    if (done) return true;
    if (m->unk >= 0) return fv__emit(w, m->unk, at + a, at + b);
    fv_fail(&w->err, FV_EFORMAT,
            "the text has characters the vocabulary lacks, and the tokenizer has no unknown token");
    return false;
}

/* The path is followed from the end and turned round in place (next), then emitted in order. */
bool fv__unigram(const fv__model *m, fv__work *w, uint32_t a, uint32_t b)
{
    const char *s = w->text->s + a;
    uint32_t n = b - a;
    void *path = w->path;
    bool ok = fv__want(w, &path, &w->cap_path, (size_t)n + 1, sizeof *w->path);
    w->path = path;
    if (!ok) return false;
    fv__path *best = w->path;
    if (!forward(m, w, best, s, n)) return false;
    for (uint32_t end = n; end; end = best[end].start) best[best[end].start].next = end;
    for (uint32_t from = 0, to; from < n; from = to) {
        to = best[from].next;
        if (best[to].id >= 0 && best[to].id != m->unk) {
            if (!fv__emit(w, best[to].id, a + from, a + to)) return false;
            continue;
        }
        while (to < n) { /* neighbours that are unknown too belong to it */
            int32_t id = best[best[to].next].id;
            if (id >= 0 && id != m->unk) break;
            to = best[to].next;
        }
        if (!emit_unknown(m, w, s, a, from, to)) return false;
    }
    return true;
}
