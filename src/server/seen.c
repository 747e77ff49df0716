/* seen.c - captures that are kept: the forward passes of the texts that were looked at last.
 *
 * The page asks for a text's weights piece by piece, thumbnails of a layer, rows of a head, as the
 * reader comes to them.  Each piece costs its own rows only if the pass need not be run again, so
 * an engine keeps the captures of its last texts: SEEN of them, of SEEN_BYTES together, each for
 * SEEN_SECONDS after its last use.  They belong to the engine's thread, as contexts do, and need no
 * lock; a reload closes them with the engine.
 *
 * The other way, a name for a capture that the server hands out and the client gives back, would
 * need a deadline and an answer for names that have expired; here a piece of a capture that is gone
 * is the same request again, and costs a pass. */
#include <stdlib.h>
#include <string.h>

#include "see.h"

enum { SEEN = 2, SEEN_SECONDS = 60 };
#define SEEN_BYTES ((size_t)2 << 30)

struct sv_seen {
    sv_see at[SEEN]; /* see NULL: none */
    double used[SEEN];
};

static size_t bytes_of(const sv_see *k)
{
    return k->see ? fv_see_shape_of(k->see, k->kind).bytes : 0;
}

static void drop(sv_seen *s, int i)
{
    fv_see_free(s->at[i].see);
    free(s->at[i].source);
    free(s->at[i].target);
    s->at[i] = (sv_see){0};
}

static bool same(const int32_t *a, int64_t n, const int32_t *b, int64_t m)
{
    return n == m && (!n || !memcmp(a, b, (size_t)n * sizeof *a));
}

bool sv_seen_take(sv_engine *g, sv_see *k)
{
    for (int i = 0; g->seen && i < SEEN; i++) {
        sv_see *s = &g->seen->at[i];
        if (!s->see || s->adapted != k->adapted ||
            !same(s->source, s->n_source, k->source, k->n_source) ||
            !same(s->target, s->n_target, k->target, k->n_target))
            continue;
        k->see = s->see;
        s->see = NULL;
        drop(g->seen, i);
        return true;
    }
    return false;
}

bool sv_seen_keep(sv_engine *g, sv_see *k)
{
    size_t bytes = bytes_of(k);
    int to = 0;
    if (!g->seen) g->seen = calloc(1, sizeof *g->seen);
    sv_seen *s = g->seen;
    if (!s || bytes > SEEN_BYTES) return false;
    for (int i = 0; i < SEEN; i++)
        if (!s->at[i].see || (s->at[to].see && s->used[i] < s->used[to])) to = i;
    drop(s, to);
    for (int i = 0; i < SEEN; i++) {
        bytes += bytes_of(&s->at[i]);
        if (bytes > SEEN_BYTES) drop(s, i);
    }
    s->at[to] = *k;
    s->used[to] = sv_now();
    return true;
}

bool sv_seen_expire(sv_engine *g)
{
    bool any = false;
    for (int i = 0; g->seen && i < SEEN; i++) {
        if (g->seen->at[i].see && sv_now() - g->seen->used[i] > SEEN_SECONDS) drop(g->seen, i);
        any |= g->seen->at[i].see != NULL;
    }
    return any;
}

void sv_seen_free(sv_engine *g)
{
    for (int i = 0; g->seen && i < SEEN; i++) drop(g->seen, i);
    free(g->seen);
    g->seen = NULL;
}
