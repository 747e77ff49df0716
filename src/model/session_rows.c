/* session_rows.c - moving rows of a session: beams that continue or end, sequences that leave.
 *
 * Only what differs is copied.  Rows that descend from one ancestor hold the same keys and values
 * up to where they forked, because equal tokens give equal bits whatever the batch; the length of
 * that common prefix is tracked for every two rows, without looking at tokens.  Paged attention
 * (a block table per row) would save the rest of the copying; with beams that part a few tokens
 * back there is little left to save, and every backend's attention kernel would have to follow
 * the table.  Blocks that a row shows without owning them are shown where it goes
 * (session_share.c). */
#include "base/base.h"
#include "model/session.h"
#include "fovea/author/session.h"

size_t fv__session_prefix_bytes(const fv_session *s)
{
    return (size_t)(s->all * s->all) * sizeof(int32_t);
}
static size_t scratch_bytes(const fv_session *s)
{
    return fv__session_prefix_bytes(s) + 4 * (size_t)s->all * sizeof(int32_t);
}
static size_t moves_bytes(const fv_session *s)
{
    return 2 * (size_t)s->all * sizeof(fv_cache_move);
}

void fv__session_rows_free(fv_session *s)
{
    fv__free(&s->env, s->shared, fv__session_prefix_bytes(s));
    fv__free(&s->env, s->scratch, scratch_bytes(s));
    fv__free(&s->env, s->moves, moves_bytes(s));
}

/* ---- lengths of rows ---- */

void fv_session_expect(fv_session *s, int64_t row, int64_t n)
{
    n += s->virtual;
    if (n > s->virtual && n <= s->cap) s->expected[row] = (int32_t)n;
}

int64_t fv_session_span(fv_session *s, int64_t row, int64_t n)
{
    s->spans = true;
    row += s->first; /* of a step that is narrowed */
    return s->len[row] < s->expected[row] ? s->expected[row] : s->len[row] + n;
}

void fv_session_truncate(fv_session *s, int64_t row, int64_t n)
{
    if (n < 0 || (n += s->virtual) >= s->len[row]) return;
    s->len[row] = (int32_t)n;
    fv__session_share_cut(s, row, n);
    for (int64_t i = 0; s->forked && i < s->all; i++) {
        int32_t *a = &s->shared[row * s->all + i], *b = &s->shared[i * s->all + row];
        *a = *b = *a < (int32_t)n ? *a : (int32_t)n;
    }
}

/* ---- moves ---- */

/* Orders the copies of a parallel assignment row[i] = row[from[i]]: a row is overwritten only
 * when no other still reads it, and a cycle is broken by saving one of its rows in row `spare`.
 * At most 2n moves, without their token ranges; used: 2 * spare entries, the number of readers of
 * each row and then a stack of rows that are ready. */
static int64_t order_moves(fv_cache_move *out, const int32_t *from, int64_t n, int32_t spare,
                           int32_t *used)
{
    int64_t n_out = 0, n_ready = 0;
    int32_t *ready = used + spare;
    memset(used, 0, (size_t)spare * sizeof *used);
    for (int32_t i = 0; i < n; i++) used[from[i]] += from[i] != i;
    for (int32_t i = 0; i < n; i++)
        if (from[i] != i && !used[i]) ready[n_ready++] = i;
    for (int32_t start = 0; start < n; start++) {
        while (n_ready) {
            int32_t to = ready[--n_ready], source = from[to];
            out[n_out++] = (fv_cache_move){.to = to, .from = source};
            used[to] = -1; /* done */
            if (!--used[source] && source < n && from[source] != source) ready[n_ready++] = source;
        }
        if (from[start] == start || used[start] < 0) continue;
        /* only cycles are left, in which each row has one reader */
        out[n_out++] = (fv_cache_move){.to = spare, .from = start};
        for (int32_t to = start; used[to] > 0; to = from[to]) {
            out[n_out++] = (fv_cache_move){.to = to, .from = from[to] == start ? spare : from[to]};
            used[to] = -1;
        }
    }
    return n_out;
}

static int32_t in_common(const fv_session *s, int32_t a, int32_t b)
{
    return a == b ? s->len[a] : s->shared[(int64_t)a * s->all + b];
}

/* Token ranges of the moves.  A move to the scratch row and the one back from it are halves of
 * one: both take the range of the final destination. */
static void bound_moves(const fv_session *s, fv_cache_move *m, int64_t n, const int32_t *from)
{
    for (int64_t i = n - 1, last = 0; i >= 0; i--) {
        if (m[i].from == s->all) last = i;
        const fv_cache_move *real = m[i].to == s->all ? &m[last] : &m[i];
        int32_t source = from[real->to];
        m[i].first = in_common(s, real->to, source);
        /* what the destination holds is gone once it shows what the source does */
        if (s->blocks.pages.data) m[i].first = (int32_t)fv__session_shared(s, source);
        m[i].end = s->len[source];
    }
}

/* Copies a range of tokens in every cache. */
static void apply(fv_ctx *c, fv_session *s, const fv_cache_move *m)
{
    for (int i = 0; m->end > m->first && i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (!at->t.data) continue;
        size_t token = fv__session_step_bytes(at), skip = (size_t)m->first * token;
        s->dev->backend->move(&c->stream, fv__session_row_at(s, at, m->to) + skip,
                              fv__session_row_at(s, at, m->from) + skip,
                              (size_t)(m->end - m->first) * token);
    }
}

/* Whether a row is read by moves [at, n), or stays what it is. */
static bool still_read(const fv_session *s, const int32_t *from, int64_t rows, int32_t row,
                       int64_t at, int64_t n)
{
    bool read = row < rows && from[row] == row;
    for (; at < n && !read; at++) read = s->moves[at].from == row;
    return read;
}

/* A row that was overwritten, or read for the last time, needs no more than it has then. */
static void move_in_order(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n)
{
    int64_t n_moves = order_moves(s->moves, from, n, (int32_t)s->all, s->scratch);
    bound_moves(s, s->moves, n_moves, from);
    for (int64_t i = 0; i < n_moves; i++) {
        const fv_cache_move *m = &s->moves[i];
        fv__session_share_alike(s, m->to, m->from);
        fv__session_needs(s, m->to, m->end);
        if (!fv__session_hold(c, s, m->to, m->end)) break;
        apply(c, s, m);
        if (!still_read(s, from, n, m->from, i + 1, n_moves)) fv__session_needs(s, m->from, 0);
    }
    fv__session_unshare(s, s->all, 0);
}

/* All copies of all caches by one kernel, where the device has it: it needs no order, since it
 * reads everything before it writes.  False: not done. */
static bool move_at_once(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n)
{
    const fv_kernels *k = s->dev->k[FV_F32];
    fv_cache_rows cache[2 * MAX_SLOTS];
    int64_t n_caches = 0, n_moves = 0;
    if (!k || !k->move_rows) return false;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (!at->t.data) continue;
        size_t token = fv__session_step_bytes(at);
        if (token % 16) return false;
        cache[n_caches++] =
            (fv_cache_rows){at->t.data, token,
                            (size_t)(fv__session_row_at(s, at, 1) - fv__session_row_at(s, at, 0))};
    }
    if (!fv__session_hold_moves(c, s, from, n)) return fv__failed(c);
    for (int32_t i = 0; i < n; i++) {
        fv_cache_move m = {.to = i,
                           .from = from[i],
                           .first = in_common(s, i, from[i]),
                           .end = s->len[from[i]]};
        if (from[i] != i && m.end > m.first) s->moves[n_moves++] = m;
    }
    k->move_rows(&c->stream, cache, n_caches, s->moves, n_moves);
    return true;
}

/* A saved state (an encoder's output) serves a group of rows: it moves when whole groups do. */
static void select_kept(fv_ctx *c, fv_session *s, slot *at, const int32_t *from, int64_t n)
{
    if (!at->t.data || fv__failed(c)) return;
    int64_t groups = at->t.shape.d[0], each = s->rows / groups, left = n / each;
    size_t bytes = fv__tensor_bytes(at->t.dtype, fv_len(&at->t)) / (size_t)groups;
    bool whole = n % each == 0;
    for (int64_t i = 0; whole && i < n; i++) whole = from[i] / each == from[i / each * each] / each;
    for (int64_t g = 0; whole && g < left; g++)
        whole = from[g * each] / each == g || from[g * each] / each >= left;
    if (!whole) {
        fv_raise(
            c, FV_EARG,
            "session: rows that share what is kept are exchanged one by one, or groups overlap");
        return;
    }
    for (int64_t g = 0; g < left; g++)
        if (from[g * each] / each != g)
            s->dev->backend->move(&c->stream, (char *)at->t.data + (size_t)g * bytes,
                                  (char *)at->t.data + (size_t)(from[g * each] / each) * bytes,
                                  bytes);
    at->t.shape.d[0] = left;
}

/* Memory for moving rows, made at the first move: greedy decoding of one prompt needs none. */
static bool prepare(fv_ctx *c, fv_session *s)
{
    if (!s->shared) s->shared = fv__alloc(&s->env, fv__session_prefix_bytes(s));
    if (!s->scratch) s->scratch = fv__alloc(&s->env, scratch_bytes(s));
    if (!s->moves) s->moves = fv__alloc(&s->env, moves_bytes(s));
    if (s->shared && s->scratch && s->moves) return true;
    fv_raise(c, FV_ENOMEM, "session: out of memory");
    return false;
}

/* Common prefixes after the rows have moved. */
static void follow_prefixes(fv_session *s, const int32_t *from, int64_t n)
{
    int32_t *now = s->scratch;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) now[i * s->all + j] = in_common(s, from[i], from[j]);
    for (int64_t i = 0; i < n; i++)
        memcpy(s->shared + i * s->all, now + i * s->all, (size_t)n * sizeof *now);
}

/* And lengths.  Where no row has ever become two, as in a scheduler, there are no prefixes in
 * common, and rows^2 numbers less to be moved at every step in which a sequence leaves. */
static void follow(fv_session *s, const int32_t *from, int64_t n)
{
    int32_t *seen = s->scratch, *len = seen + s->all * s->all, *expected = len + s->all;
    if (!s->forked) memset(seen, 0, (size_t)s->all * sizeof *seen);
    for (int64_t i = 0; i < n && !s->forked; i++) s->forked = seen[from[i]]++;
    if (s->forked) follow_prefixes(s, from, n);
    for (int64_t i = 0; i < n; i++) {
        len[i] = s->len[from[i]];
        expected[i] = s->expected[from[i]];
    }
    memcpy(s->len, len, (size_t)n * sizeof *len);
    memcpy(s->expected, expected, (size_t)n * sizeof *expected);
    for (int64_t i = 0; i <= s->all; i++) fv__session_needs(s, i, i < n ? len[i] : 0);
}

void fv_session_select(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n)
{
    bool same = n == s->rows;
    if (n < 1 || n > s->rows) {
        fv_raise(c, FV_EARG, "session: %lld of %lld rows", (long long)n, (long long)s->rows);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] >= s->rows) {
            fv_raise(c, FV_EARG, "session: row %d of %lld", from[i], (long long)s->rows);
            return;
        }
        same = same && from[i] == i;
    }
    if (same || !prepare(c, s)) return;
    if (!move_at_once(c, s, from, n)) move_in_order(c, s, from, n);
    for (int i = 0; i < MAX_SLOTS; i++) select_kept(c, s, &s->kept[i], from, n);
    follow(s, from, n);
    s->rows = n;
}

/* Captured steps know which model's weights they read (session_replay.c). */
void fv__session_use(fv_session *s, const fv_model *m) { s->model = m; }

void fv__session_resize(fv_session *s, int64_t rows)
{
    if (rows == s->rows) return;
    for (int64_t i = rows < s->rows ? rows : s->rows; i < s->all; i++) {
        s->len[i] = s->expected[i] = 0;
        fv__session_needs(s, i, 0);
        fv__session_unshare(s, i, 0);
        for (int64_t j = 0; s->forked && j < s->all; j++)
            s->shared[i * s->all + j] = s->shared[j * s->all + i] = 0;
    }
    s->rows = rows < s->all ? rows : s->all;
}
