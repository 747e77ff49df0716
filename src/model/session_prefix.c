/* session_prefix.c - keys and values of a run of tokens, out of a row and into another.
 *
 * Outside of the session they lie one cache behind the other: the run's keys of layer 0, its
 * values, the keys of layer 1, ... */
#include "base/base.h"
#include "model/session.h"

/* Packed rows are one cache: of a token all keys and values lie side by side. */
const slot *fv__session_cache(const fv_session *s, int i)
{
    static const slot none;
    if (s->pages.data) return i ? &none : &s->pages.whole;
    return i % 2 ? &s->v[i / 2] : &s->k[i / 2];
}

size_t fv__session_step_bytes(const slot *cache)
{
    return fv__tensor_bytes(cache->t.dtype, cache->t.shape.d[2]);
}

char *fv__session_row_at(const fv_session *s, const slot *cache, int64_t row)
{
    size_t bytes = s->pages.data ? s->pages.row
                                 : fv__session_step_bytes(cache) * (size_t)s->allocated;
    return (char *)cache->t.data + (size_t)row * bytes;
}

size_t fv__session_token_bytes(const fv_session *s)
{
    size_t bytes = 0;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (at->t.data) bytes += fv__session_step_bytes(at);
    }
    return bytes;
}

static void copy_list(fv_ctx *c, const fv_session *s, const fv_copy *list, int64_t n, bool packs)
{
    const fv_kernels *k = s->dev->k[FV_F32];
    if (packs && k && k->copy_many) {
        if (n) k->copy_many(&c->stream, list, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        s->dev->backend->move(&c->stream, list[i].to, list[i].from, list[i].bytes);
}

/* Goes over the caches: `runs` times n tokens of a row; to: into out[0], out[1], .., else from
 * them.  One launch where the device copies lists and the list holds all. */
static void exchange(fv_ctx *c, const fv_session *s, int64_t row, int64_t from, int64_t n,
                     void *const *out, int64_t runs, bool to)
{
    fv_copy list[1024];
    int64_t n_list = 0, most = sizeof list / sizeof *list;
    size_t before = 0; /* bytes of a run in the caches before this one */
    bool packs = true;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (!at->t.data) continue;
        size_t token = fv__session_step_bytes(at), bytes = token * (size_t)n;
        char *in = fv__session_row_at(s, at, row) + (size_t)from * token;
        packs = packs && token % 16 == 0;
        for (int64_t k = 0; k < runs; k++, in += bytes) {
            char *other = (char *)out[k] + before;
            if (n_list == most) copy_list(c, s, list, n_list, packs), n_list = 0;
            list[n_list++] = (fv_copy){to ? other : in, to ? in : other, bytes};
        }
        before += bytes;
    }
    copy_list(c, s, list, n_list, packs);
}

void fv__session_copy(fv_ctx *c, fv_session *s, int64_t row, int64_t from, int64_t n,
                      void *const *to, int64_t runs)
{
    exchange(c, s, row, from + s->virtual, n, to, runs, true);
}

bool fv__session_paste(fv_ctx *c, fv_session *s, int64_t row, int64_t n, void *const *from,
                       int64_t runs)
{
    if (!fv__session_narrow(c, s, row, 1, runs * n)) return false; /* caches grow */
    bool ok = fv__session_begin_rows(c, s);
    fv__session_restore(s);
    if (!ok || !fv__session_hold(c, s, row, s->len[row] + runs * n)) return false;
    exchange(c, s, row, s->len[row], n, from, runs, false);
    s->len[row] += (int32_t)(runs * n);
    return true;
}
