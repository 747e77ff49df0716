/* session_pages.c - KV caches whose memory follows the tokens in them: pages, by the MMU.
 *
 * Every row has addresses for its whole capacity from the start, and memory for the tokens that are
 * there.  So a batch takes what its sequences have, not its rows times the longest, and whatever
 * mix of lengths comes there is nothing to fragment: any free page fits anywhere.
 *
 * Rejected: a table of blocks for each row, which attention follows (vLLM).  Every kernel of every
 * backend would read keys through it, a gather before each step costs as much as attention itself,
 * and the contiguous layout is what makes the kernels' reading fast.  The MMU does the same
 * translation for nothing, and on the host shows one page in two rows as well: a prefix that
 * several sequences begin with is stored once (session_share.c).
 *
 * On the host a page has 4 KiB, a token or so of one layer's keys, and the system gives it when it
 * is first touched.  Rows need not begin at a page: of a row that is given back, the pages that
 * hold no neighbour's token go.
 *
 * A GPU's pages have 2 MiB, more than a row of one cache may have in all, and are committed before
 * use.  There the bytes of a row are ordered by position, then by layer:
 *
 *     row   [ token 0: K V of layer 0, K V of layer 1, .. | token 1: .. | .. ]     rows begin at a
 *     pages [          0          |          1          |   ..                      page
 *
 * Each cache is a view whose positions lie a whole token apart, which kernels take as a stride, and
 * a row has as many pages as its tokens fill.  Copies get simpler by it: a run of tokens is one
 * range of bytes.  A page stays with its row when the sequence ends, so that in the steady state
 * nothing is mapped or unmapped; where the budget is full it is taken from a row that has more than
 * its tokens need.  Rows move in the batch by copying, and both need memory until that is done:
 * so the greatest row is counted twice (fv__session_packs).
 *
 * Keys of one layer as pages of their own, one range after the other, were rejected: with 1.5 MiB a
 * row, as GPT-2 has it, nothing would be saved. */
#include "base/base.h"
#include "model/session.h"

#define ROUND 16             /* tokens: rows of whole blocks of so many can share them */
#define SMALL_PAGE 65536     /* bytes: larger pages are committed, to packed rows */
#define FEWEST_PAGES 4       /* of a row: below, one page would be most of it */
#define ALIGNMENT (size_t)32 /* bytes, of each cache within a token */

static size_t page_size(const fv_session *s)
{
    const fv_backend *b = s->dev->backend;
    return b->page_size ? b->page_size(s->dev) : 0;
}

static size_t aligned_bytes(const slot *at)
{
    return at->t.data ? (fv__session_step_bytes(at) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

/* Bytes of a token with all of its keys and values, as packed rows have it. */
static size_t packed_token(const fv_session *like)
{
    size_t bytes = 0;
    for (int i = 0; i < MAX_SLOTS; i++)
        bytes += aligned_bytes(&like->k[i]) + aligned_bytes(&like->v[i]);
    return bytes;
}

static int32_t pages_of(const fv_row_pages *p, int64_t tokens)
{
    return (int32_t)(((size_t)tokens * p->token + p->each - 1) / p->each);
}

bool fv__session_packs(const fv_session *like) { return page_size(like) > SMALL_PAGE; }

int64_t fv__session_row_bytes(const fv_session *like, int64_t tokens)
{
    fv_row_pages p = like->pages; /* asked often: no call of the device where rows are packed */
    if (!p.data && !fv__session_packs(like)) return tokens * (int64_t)fv__session_token_bytes(like);
    if (!p.data) p = (fv_row_pages){.token = packed_token(like), .each = page_size(like)};
    return (int64_t)((size_t)pages_of(&p, tokens + like->virtual) * p.each);
}

bool fv__session_can_page(const fv_session *like, int64_t tokens)
{
    if (!fv__session_packs(like)) return page_size(like) > 0;
    return !like->spans && !like->plain && /* caches are read by attention alone */
           fv__session_row_bytes(like, tokens) >= (int64_t)(FEWEST_PAGES * page_size(like));
}

/* ---- packed rows ---- */

/* Places a cache behind `at` bytes of a token; returns where the next one begins. */
static size_t place(fv_session *s, slot *to, const slot *like, size_t at)
{
    if (!like->t.data) return at;
    int64_t size = (int64_t)fv_dtype_size(like->t.dtype);
    *to = (slot){.inside = true,
                 .t = {.data = s->pages.data + at,
                       .dtype = like->t.dtype,
                       .shape = FV_SHAPE(s->rows, s->allocated, like->t.shape.d[2]),
                       .row_step = (int64_t)s->pages.token / size,
                       .batch_step = (int64_t)s->pages.row / size}};
    return at + aligned_bytes(like);
}

static bool pack(fv_session *s, const fv_session *like, size_t budget)
{
    fv_row_pages *p = &s->pages;
    size_t rows = (size_t)s->all + 1, at = 0;
    *p = (fv_row_pages){.token = packed_token(like), .each = page_size(s)};
    p->row = (size_t)pages_of(p, s->cap) * p->each;
    p->bytes = p->row * rows;
    p->limit = (int64_t)(budget / p->each);
    p->of = fv__alloc(&s->env, 2 * rows * sizeof *p->of);
    if (p->of) p->data = s->dev->backend->reserve(s->dev, p->bytes);
    if (!p->data) return false;
    p->need = p->of + rows;
    s->allocated = s->cap;
    for (int i = 0; i < MAX_SLOTS; i++) {
        at = place(s, &s->k[i], &like->k[i], at);
        at = place(s, &s->v[i], &like->v[i], at);
    }
    p->whole.t = (fv_tensor){.data = p->data,
                             .dtype = FV_U8,
                             .shape = FV_SHAPE(s->all, s->allocated, (int64_t)p->token)};
    return true;
}

void fv__session_pages_free(fv_session *s)
{
    fv_row_pages *p = &s->pages;
    if (p->data) s->dev->backend->release(s->dev, p->data, p->bytes);
    fv__free(&s->env, p->of, 2 * ((size_t)s->all + 1) * sizeof *p->of);
}

bool fv__session_page(fv_session *s, const fv_session *like, size_t budget)
{
    if (!page_size(s) || s->processed) return false;
    if (fv__session_packs(s)) return pack(s, like, budget);
    s->allocated = (s->cap + ROUND - 1) / ROUND * ROUND;
    s->paged = true;
    return true;
}

/* ---- who has which pages ---- */

/* The last n pages of a row, or of what it has beyond its need; how many that were. */
static int64_t take_from(fv_session *s, int64_t row, int64_t n)
{
    fv_row_pages *p = &s->pages;
    int64_t spare = p->of[row] - p->need[row];
    if (spare < n) n = spare;
    if (n < 1) return 0;
    p->of[row] -= (int32_t)n;
    p->n -= n;
    s->dev->backend->discard(s->dev, p->data + (size_t)row * p->row + (size_t)p->of[row] * p->each,
                             (size_t)n * p->each);
    return n;
}

/* n pages from rows that have more than they need, the last ones first: a batch fills its rows from
 * the first on. */
static void take_back(fv_session *s, int64_t n)
{
    for (int64_t row = s->all; row >= 0 && n > 0; row--) n -= take_from(s, row, n);
}

/* False: not within the limit, or the device has no memory; then the row has what it had. */
static bool give(fv_session *s, int64_t row, int64_t more)
{
    fv_row_pages *p = &s->pages;
    char *at = p->data + (size_t)row * p->row + (size_t)p->of[row] * p->each;
    if (p->n + more > p->limit) return false;
    if (!s->dev->backend->commit(s->dev, at, (size_t)more * p->each)) {
        s->dev->backend->discard(s->dev, at, (size_t)more * p->each);
        return false;
    }
    p->of[row] += (int32_t)more;
    p->n += more;
    return true;
}

/* Pages are mapped and unmapped while no kernel is under way. */
bool fv__session_hold(fv_ctx *c, fv_session *s, int64_t row, int64_t tokens)
{
    fv_row_pages *p = &s->pages;
    if (fv__failed(c)) return false;
    if (!p->data) return true;
    int32_t need = pages_of(p, tokens);
    if (need > p->need[row]) p->need[row] = need;
    int64_t more = need - p->of[row];
    if (more <= 0) return true;
    s->dev->backend->sync(&c->stream);
    if (p->n + more > p->limit) take_back(s, p->n + more - p->limit);
    if (give(s, row, more)) return !fv__failed(c);
    take_back(s, p->n); /* what nobody needs serves, where the device has nothing left */
    if (give(s, row, more)) return !fv__failed(c);
    fv_raise(c, FV_ENOMEM,
             "session: out of memory for %lld more pages of %zu bytes; %lld of at most %lld are in "
             "use%s",
             (long long)more, p->each, (long long)p->n, (long long)p->limit,
             fv__memory_left(s->dev).s);
    return false;
}

/* While rows move, one that is read and written needs the more of both. */
bool fv__session_hold_moves(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n)
{
    fv_row_pages *p = &s->pages;
    int64_t more = 0, spare = 0;
    bool ok = !fv__failed(c);
    for (int64_t i = 0; p->data && i < n; i++) {
        int32_t need = from[i] == i ? 0 : pages_of(p, s->len[from[i]]);
        if (need > p->of[i]) more += need - p->of[i];
        if (need > p->need[i]) p->need[i] = need;
    }
    for (int64_t i = 0; more && i <= s->all; i++)
        spare += p->of[i] > p->need[i] ? p->of[i] - p->need[i] : 0;
    if (more && p->n + more - spare > p->limit) return false;
    for (int64_t i = 0; more && i < n && ok; i++)
        if (from[i] != i) ok = fv__session_hold(c, s, i, s->len[from[i]]);
    return ok;
}

void fv__session_needs(fv_session *s, int64_t row, int64_t tokens)
{
    if (s->pages.data) s->pages.need[row] = pages_of(&s->pages, tokens);
}

int64_t fv__session_held_bytes(const fv_session *s) { return s->pages.n * (int64_t)s->pages.each; }

void fv__session_trim(fv_session *s, int64_t row)
{
    fv__session_needs(s, row, 0);
    for (int i = 0; s->paged && i < 2 * MAX_SLOTS; i++) {
        const slot *at = fv__session_cache(s, i);
        if (!at->t.data) continue;
        size_t bytes = fv__session_step_bytes(at) * (size_t)s->allocated;
        s->dev->backend->discard(s->dev, fv__session_row_at(s, at, row), bytes);
    }
}
