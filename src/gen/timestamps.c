/* timestamps.c - times among the tokens of a transcription, as Whisper writes them: which token may
 * come next, and where a window of sound is cut into segments.
 *
 *     <|0.00|> text <|2.40|> <|2.40|> more text <|5.12|> end
 *
 * Both are transformers' (WhisperTimeStampLogitsProcessor, _retrieve_segment), and are kept apart
 * from the model: they need ids and scores only. */
#include <math.h>

#include "fovea/author/gen.h"

#define SECONDS 0.02 /* between two times */
#define FRAMES 2     /* of a spectrogram, likewise */

/* ---- which token may come next ---- */

static void ban(float *score, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) score[i] = -INFINITY;
}

/* Times are pairs: behind one that closes a text comes its twin, a later time or the end; behind
 * two comes text. */
static void keep_pairs(const fv_times_rule *r, float *score, int64_t V, const int32_t *ids,
                       int64_t n)
{
    bool last = n >= 1 && ids[n - 1] >= r->first, before = n < 2 || ids[n - 2] >= r->first;
    if (last && before) ban(score, r->first, V);
    if (last && !before) ban(score, 0, r->eos);
    int64_t t = n - 1;
    while (t >= 0 && ids[t] < r->first) t--;
    if (t < 0) return;
    /* the same time twice only where it closes one text and opens the next */
    int64_t least = (int64_t)ids[t] + !(last && !before);
    ban(score, r->first, least < V ? least : V);
}

static bool times_are_likelier(const float *score, int64_t V, int64_t first)
{
    float most = -INFINITY, top = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < first; i++) most = score[i] > most ? score[i] : most;
    for (int64_t i = first; i < V; i++) top = score[i] > top ? score[i] : top;
    if (top == -INFINITY) return false;
    for (int64_t i = first; i < V; i++) sum += exp((double)score[i] - (double)top);
    return (double)top + log(sum) > (double)most;
}

void fv_times_logits(void *rule, float *score, int64_t V, const int32_t *ids, int64_t n)
{
    const fv_times_rule *r = rule;
    if (n < r->begin || r->first >= V) return;
    score[r->none] = -INFINITY;
    keep_pairs(r, score, V, ids + r->begin, n - r->begin);
    if (n == r->begin) {
        ban(score, 0, r->first);
        if (r->latest >= 0) ban(score, (int64_t)r->first + r->latest + 1, V);
    }
    if (times_are_likelier(score, V, r->first)) ban(score, 0, r->first);
}

/* ---- segments of a window ---- */

static double seconds_of(int32_t id, int32_t first) { return (id - first) * SECONDS; }

/* No pair: one segment, up to the last time there is, and the window is over. */
static int64_t one_segment(fv_times_segment *out, int64_t *next, const int32_t *ids, int64_t n,
                           int32_t first, int64_t frames)
{
    int64_t t = n - 1;
    while (t >= 0 && ids[t] < first) t--;
    double to = (double)(frames / FRAMES) * SECONDS;
    if (t >= 0 && ids[t] != first) to = seconds_of(ids[t], first);
    out[0] = (fv_times_segment){.to = to, .n = n};
    *next = frames;
    return 1;
}

int64_t fv_times_cut(fv_times_segment *out, int64_t *next, const int32_t *ids, int64_t n,
                     int32_t first, int64_t frames)
{
    int64_t count = 0, at = 0;
    for (int64_t i = 1; i < n; i++) { /* a segment ends between two times */
        if (ids[i - 1] < first || ids[i] < first) continue;
        out[count++] = (fv_times_segment){.from = seconds_of(ids[at], first),
                                          .to = seconds_of(ids[i - 1], first),
                                          .at = at,
                                          .n = i - at};
        at = i;
    }
    if (!count) return one_segment(out, next, ids, n, first, frames);
    bool ends_in_one = ids[n - 1] >= first && ids[n - 2] < first;
    if (ends_in_one) { /* no speech behind it */
        out[count++] = (fv_times_segment){.from = seconds_of(ids[at], first),
                                          .to = seconds_of(ids[n - 1], first),
                                          .at = at,
                                          .n = n - at};
        *next = frames;
        return count;
    }
    /* what follows the last pair was cut off: the next window begins there */
    *next = (int64_t)(ids[at - 1] - first) * FRAMES;
    out[count - 1].n++; /* its second time too, as transformers keeps it */
    return count;
}
