/* session_pages.c - KV caches whose memory follows the tokens in them: pages, by the MMU.
 *
 * Every row has addresses for its whole capacity from the start, and memory for the tokens that
 * were written: the system gives a page (4 KiB, a token or so of one layer's keys) when it is first
 * touched, and takes the pages of a row that is free back.  So a batch takes what its sequences
 * have, not its rows times the longest, and whatever mix of lengths comes there is nothing to
 * fragment: any free page fits anywhere.
 *
 * What lost: a table of blocks for each row, which attention follows (vLLM).  Every kernel of every
 * backend would read keys through it, a gather before each step costs as much as attention itself,
 * and the contiguous layout is what makes the kernels' reading fast.  The MMU does the same
 * translation for nothing, and shows one page in two rows as well: a prefix that several sequences
 * begin with is stored once (session_share.c).
 *
 * Rows need not begin at a page: of a row that is given back, the pages that hold no neighbour's
 * token go. */
#include "model/session.h"

#define ROUND 16 /* tokens: rows of whole blocks of so many can share them */

bool fv__session_page(fv_session *s)
{
    if (!s->dev->backend->discard || s->processed) return false;
    s->allocated = (s->cap + ROUND - 1) / ROUND * ROUND;
    s->paged = true;
    return true;
}

void fv__session_page_out(fv_session *s, slot *at)
{
    s->dev->backend->discard(s->dev, at->t.data, at->bytes);
}

void fv__session_trim(fv_session *s, int64_t row)
{
    for (int i = 0; s->paged && i < 2 * MAX_SLOTS; i++) {
        const slot *at = i < MAX_SLOTS ? &s->k[i] : &s->v[i - MAX_SLOTS];
        if (!at->t.data) continue;
        size_t bytes = fv__tensor_bytes(at->t.dtype, s->allocated * at->t.shape.d[2]);
        s->dev->backend->discard(s->dev, (char *)at->t.data + (size_t)row * bytes, bytes);
    }
}
