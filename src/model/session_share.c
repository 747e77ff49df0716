/* session_share.c - blocks of tokens that rows of a session share: stored once, copied on write.
 *
 * Keys and values of a beginning that sequences have in common (a system prompt) lie in memory
 * whose pages can be seen at several addresses (base/pages.c): a row shows the blocks of its
 * beginning where its own tokens would lie, and attention reads contiguous rows as ever, with the
 * same bits and no table to follow.  Who shows a block is counted; a block that is shown is neither
 * written nor given to other tokens.  A row writes behind its last token, which is behind the
 * blocks it shows, since these are whole; a row that is cut back into one gets a copy of what is
 * left of it.
 *
 *   row 0   [ block 7 ][ block 8 ][ its own tokens ...
 *   row 1   [ block 7 ][ block 8 ][ its own tokens ...      one memory, three addresses
 *   pages   ... [ 7 ][ 8 ] ...
 *
 * That asks for blocks that are whole pages in every cache, and for addresses that begin one; where
 * they do not, or with virtual tokens in front of rows, or memory by an allocator of the caller's
 * own, prefixes are copied as before (session_prefix.c).  On a GPU they are too: its pages of 2 MiB
 * begin and end within a token (session_pages.c), so that a prefix would share those alone that
 * hold none of the tokens behind it; GPT-2's have 57 tokens.
 *
 * In memory the blocks of one cache follow one another, so that a run of blocks is one map a
 * cache. */
#include "base/base.h"
#include "model/session.h"

/* Linux gives a process 65,530 maps; threads, libraries and mapped weights need few of them. */
#define MAPS 24000

static bool shares(const fv_session *s) { return s->blocks.pages.data != NULL; }

/* One cache: bytes of a block, where its first one lies among the pages, and the rows' memory. */
typedef struct cache {
    size_t block, first, row;
    char *data;
} cache;

/* The i-th cache; *at: where the blocks of the caches before it end.  False: there is none. */
static bool look(const fv_session *s, int i, size_t *at, cache *k)
{
    const slot *of = fv__session_cache(s, i);
    if (!of->t.data) return false;
    size_t token = fv__tensor_bytes(of->t.dtype, of->t.shape.d[2]);
    *k = (cache){.block = token * (size_t)s->blocks.tokens,
                 .first = *at,
                 .row = token * (size_t)s->allocated,
                 .data = of->t.data};
    *at += k->block * (size_t)s->blocks.capacity;
    return true;
}

/* Whether every block of every cache is whole pages; *bytes: of all of them. */
static bool whole_pages(const fv_session *s, size_t *bytes)
{
    size_t page = fv__page_size();
    cache k;
    *bytes = 0;
    for (int i = 0; i < 2 * MAX_SLOTS; i++)
        if (look(s, i, bytes, &k) && (k.block % page || k.row % page || (uintptr_t)k.data % page))
            return false;
    return *bytes > 0;
}

bool fv__session_share(fv_session *s, int64_t tokens, int64_t n)
{
    fv_shared_blocks *b = &s->blocks;
    if (shares(s)) return true;
    if (!s->paged || s->virtual || s->env.mem || !fv__device_is_host(s->dev)) return false;
    size_t pages, rows = (size_t)s->all + 1;
    b->tokens = tokens;
    b->capacity = n;
    b->most = s->allocated / tokens;
    if (!whole_pages(s, &pages)) return false;
    b->bytes = ((size_t)n + rows * (size_t)(b->most + 2)) * sizeof *b->users;
    b->users = fv__alloc(&s->env, b->bytes);
    if (!b->users) return false;
    b->of = b->users + n;
    b->n = b->of + rows * (size_t)b->most;
    b->maps = b->n + rows;
    if (fv__pages_open(&b->pages, pages)) return true;
    fv__free(&s->env, b->users, b->bytes);
    return false;
}

void fv__session_share_free(fv_session *s)
{
    if (!shares(s)) return;
    for (int64_t i = 0; i <= s->all; i++) fv__session_unshare(s, i, 0);
    fv__pages_close(&s->blocks.pages);
    fv__free(&s->env, s->blocks.users, s->blocks.bytes);
}

int64_t fv__session_shared(const fv_session *s, int64_t row)
{
    return shares(s) ? s->blocks.n[row] * s->blocks.tokens : 0;
}

bool fv__session_block_used(const fv_session *s, int64_t block)
{
    return shares(s) && s->blocks.users[block] > 0;
}

bool fv__session_block_take(fv_session *s, int64_t block)
{
    size_t end = 0;
    cache k;
    for (int i = 0; i < 2 * MAX_SLOTS; i++)
        if (look(s, i, &end, &k) &&
            !fv__pages_take(&s->blocks.pages, k.first + (size_t)block * k.block, k.block))
            return false;
    return true;
}

void fv__session_block_keep(fv_session *s, int64_t row, int64_t at, int64_t block)
{
    size_t end = 0;
    cache k;
    for (int i = 0; i < 2 * MAX_SLOTS; i++)
        if (look(s, i, &end, &k))
            memcpy(s->blocks.pages.data + k.first + (size_t)block * k.block,
                   k.data + (size_t)row * k.row + (size_t)at * k.block, k.block);
}

/* `bytes` of every cache's n blocks, or all of them with tokens 0, copied to where a row has them.
 */
static void copy_in(fv_session *s, int64_t row, int64_t at, int64_t block, int64_t n,
                    int64_t tokens)
{
    size_t end = 0;
    cache k;
    for (int i = 0; i < 2 * MAX_SLOTS; i++)
        if (look(s, i, &end, &k))
            memcpy(k.data + (size_t)row * k.row + (size_t)at * k.block,
                   s->blocks.pages.data + k.first + (size_t)block * k.block,
                   tokens ? k.block / (size_t)s->blocks.tokens * (size_t)tokens
                          : (size_t)n * k.block);
}

/* How many maps that took; 0: not all caches could, and the row's memory there is undefined. */
static int32_t map(fv_session *s, int64_t row, int64_t at, int64_t block, int64_t n)
{
    size_t end = 0;
    int32_t maps = 0;
    cache k;
    for (int i = 0; i < 2 * MAX_SLOTS; i++) {
        if (!look(s, i, &end, &k)) continue;
        char *to = k.data + (size_t)row * k.row + (size_t)at * k.block;
        if (!fv__pages_show(&s->blocks.pages, k.first + (size_t)block * k.block,
                            (size_t)n * k.block, to))
            return 0;
        maps++;
    }
    return maps;
}

void fv__session_block_show(fv_session *s, int64_t row, int64_t at, int64_t block, int64_t n,
                            bool same)
{
    fv_shared_blocks *b = &s->blocks;
    bool tried = at == b->n[row] && b->n_maps < MAPS;
    int32_t maps = tried ? map(s, row, at, block, n) : 0;
    if (!maps) {
        if (tried || !same) copy_in(s, row, at, block, n, 0);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        b->of[row * b->most + at + i] = (int32_t)(block + i);
        b->users[block + i]++;
    }
    b->n[row] += (int32_t)n;
    b->maps[row] += maps;
    b->n_maps += maps;
}

void fv__session_unshare(fv_session *s, int64_t row, int64_t keep)
{
    fv_shared_blocks *b = &s->blocks;
    size_t end = 0;
    cache k;
    if (!shares(s) || b->n[row] <= keep) return;
    for (int i = 0; i < 2 * MAX_SLOTS; i++)
        if (look(s, i, &end, &k))
            fv__pages_hide(k.data + (size_t)row * k.row + (size_t)keep * k.block,
                           (size_t)(b->n[row] - keep) * k.block);
    for (int64_t i = keep; i < b->n[row]; i++) b->users[b->of[row * b->most + i]]--;
    b->n[row] = (int32_t)keep;
    if (keep) return; /* maps are counted until all are gone */
    b->n_maps -= b->maps[row];
    b->maps[row] = 0;
}

/* Runs of blocks that follow one another, of each a map a cache. */
void fv__session_share_alike(fv_session *s, int64_t row, int64_t as)
{
    fv_shared_blocks *b = &s->blocks;
    if (!shares(s)) return;
    fv__session_unshare(s, row, 0);
    const int32_t *of = b->of + as * b->most;
    for (int64_t i = 0, n; i < b->n[as]; i += n) {
        for (n = 1; i + n < b->n[as] && of[i + n] == of[i] + n;) n++;
        fv__session_block_show(s, row, i, of[i], n, false);
    }
}

/* The copy of copy on write: the only tokens that a row may write again are those it cut off. */
void fv__session_share_cut(fv_session *s, int64_t row, int64_t n)
{
    fv_shared_blocks *b = &s->blocks;
    if (!shares(s) || n >= b->n[row] * b->tokens) return;
    int64_t keep = n / b->tokens;
    int32_t block = b->of[row * b->most + keep];
    fv__session_unshare(s, row, keep);
    if (n % b->tokens) copy_in(s, row, keep, block, 1, n % b->tokens);
}
