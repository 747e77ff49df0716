/* shares.c - see shares.h. */
#include "train/shares.h"

#include "base/base.h"

enum {
    LEAST_CHUNK = 4096,   /* numbers: one call of a kernel */
    MOST_CHUNK = 1 << 20, /* so that a chunk is no larger than a bucket should be */
    CHUNKS = 1024,        /* about as many in all: their sums are gathered */
    SHARE = 1 << 18,      /* numbers of a bucket for each rank: a megabyte in f32 */
    BUCKETS = 4           /* a small model has about as many, of smaller shares */
};

fv__shares fv__shares_of(int64_t n, const fv_comm *c)
{
    return fv__shares_for(n, fv_comm_rank(c), fv_comm_size(c));
}

/* Chunks are summed as wholes when the norm is computed: their size depends on n alone, so that the
 * norm's bits do not depend on the ranks. */
fv__shares fv__shares_for(int64_t n, int rank, int ranks)
{
    fv__shares s = {.n = n, .rank = rank, .ranks = ranks, .chunk = LEAST_CHUNK};
    while (s.chunk < MOST_CHUNK && s.chunk * CHUNKS < n) s.chunk *= 2;
    if (s.ranks == 1) {
        s.per_rank = n;
        s.buckets = 1;
        return s;
    }
    int64_t each = n / (s.ranks * BUCKETS) + 1;
    if (each > SHARE) each = SHARE;
    s.per_rank = (each + s.chunk - 1) / s.chunk * s.chunk;
    s.buckets = (n + s.per_rank * s.ranks - 1) / (s.per_rank * s.ranks);
    return s;
}

void fv__share(const fv__shares *s, int64_t bucket, int rank, int64_t *from, int64_t *to)
{
    int64_t at = (bucket * s->ranks + rank) * s->per_rank, end = at + s->per_rank;
    *from = at < s->n ? at : s->n;
    *to = end < s->n ? end : s->n;
}

int64_t fv__shares_stored(const fv__shares *s) { return s->buckets * s->per_rank; }
int64_t fv__shares_chunks(const fv__shares *s) { return (s->n + s->chunk - 1) / s->chunk; }

/* A bucket goes round all ranks before the next begins. */
int fv__chunk_owner(const fv__shares *s, int64_t chunk)
{
    return s->ranks == 1 ? 0 : (int)(chunk * s->chunk / s->per_rank % s->ranks);
}

/* Buckets [first, end), one at a time: the memory that MPI needs for messages under way stays
 * small.  n: by NCCL. */
static fv_status gather(const fv__shares *s, fv_comm *c, fv__nccl *n, void *stream, int64_t first,
                        int64_t end, void *block, size_t size, fv_err *e)
{
    size_t bytes = (size_t)s->ranks * sizeof(fv_comm_part);
    fv_comm_part *part = fv__alloc(NULL, bytes);
    if (!part) return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    fv_status st = FV_OK;
    for (int64_t b = first; !st && b < end; b++) {
        for (int r = 0; r < s->ranks; r++) {
            int64_t from, to;
            fv__share(s, b, r, &from, &to);
            part[r] = (fv_comm_part){r, (char *)block + (size_t)from * size,
                                     (size_t)(to - from) * size};
        }
        st = n ? fv__nccl_all_gather(n, stream, part, e) : fv_comm_all_gather(c, part, e);
    }
    fv__free(NULL, part, bytes);
    return st;
}

fv_status fv__shares_gather(const fv__shares *s, fv_comm *c, void *block, size_t size, fv_err *e)
{
    return s->ranks == 1 ? FV_OK : gather(s, c, NULL, NULL, 0, s->buckets, block, size, e);
}

fv_status fv__shares_gather_bucket(const fv__shares *s, fv_comm *c, int64_t bucket, void *block,
                                   size_t size, fv_err *e)
{
    return gather(s, c, NULL, NULL, bucket, bucket + 1, block, size, e);
}

fv_status fv__shares_gather_gpu(const fv__shares *s, fv__nccl *n, void *stream, void *block,
                                size_t size, fv_err *e)
{
    return gather(s, NULL, n, stream, 0, s->buckets, block, size, e);
}
