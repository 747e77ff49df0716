/* session_prefix.c - keys and values of a run of tokens, out of a row and into another.
 *
 * Outside of the session they lie one cache behind the other: the run's keys of layer 0, its
 * values, the keys of layer 1, ... */
#include "base/base.h"
#include "model/session.h"

slot *fv__session_cache(const fv_session *s, int i) { return i % 2 ? &s->v[i / 2] : &s->k[i / 2]; }

size_t fv__session_token_bytes(const fv_session *s)
{
    size_t bytes = 0;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (at->t.data) bytes += fv__tensor_bytes(at->t.dtype, at->t.shape.d[2]);
    }
    return bytes;
}

/* Goes over the caches; to: into `out`, else from it.  One launch where the device copies lists. */
static void exchange(fv_ctx *c, const fv_session *s, int64_t row, int64_t from, int64_t n,
                     char *out, bool to)
{
    const fv_kernels *k = s->dev->k[FV_F32];
    fv_copy list[2 * MAX_SLOTS];
    int64_t n_list = 0;
    bool packs = k && k->copy_many;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (!at->t.data) continue;
        size_t token = fv__tensor_bytes(at->t.dtype, at->t.shape.d[2]), bytes = token * (size_t)n;
        char *in = (char *)at->t.data + (size_t)(row * s->allocated + from) * token;
        list[n_list++] = (fv_copy){to ? out : in, to ? in : out, bytes};
        packs = packs && token % 16 == 0;
        out += bytes;
    }
    if (packs) {
        k->copy_many(&c->stream, list, n_list);
        return;
    }
    for (int64_t i = 0; i < n_list; i++)
        s->dev->backend->move(&c->stream, list[i].to, list[i].from, list[i].bytes);
}

void fv__session_copy(fv_ctx *c, fv_session *s, int64_t row, int64_t from, int64_t n, void *to)
{
    exchange(c, s, row, from + s->virtual, n, to, true);
}

bool fv__session_paste(fv_ctx *c, fv_session *s, int64_t row, int64_t n, void *from)
{
    if (!fv__session_narrow(c, s, row, 1, n)) return false; /* caches grow */
    bool ok = fv__session_begin_rows(c, s);
    fv__session_restore(s);
    if (!ok) return false;
    exchange(c, s, row, s->len[row], n, from, false);
    s->len[row] += (int32_t)n;
    return true;
}
