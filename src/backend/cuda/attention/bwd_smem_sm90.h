/* bwd_smem_sm90.h - who has which tiles where dq is added up in shared memory: bwd_smem_sm90.cu. */
#ifndef FV_CUDA_ATTENTION_BWD_SMEM_SM90_H
#define FV_CUDA_ATTENTION_BWD_SMEM_SM90_H

#include <climits>

#include "attention.h"

#define KEYS 128   /* of a block of keys, 64 for each group */
#define QUERIES 64 /* of a tile */
#define SLOTS 8    /* tiles of dq that a block has room for */

/* What is shared out, and what is known before. */
struct team_plan {
    int team, teams; /* members of a team, and teams */
    /* heads of keys, those of a sequence, and how many heads each serves */
    int heads, groups, q_per_kv;
    int tiles, blocks; /* of queries of a head, and of its keys */
    float *stat;       /* of (B, H, tiles): lse of the queries of a tile, then their dy.y */
    float4 *links;     /* LINKS for each block */
    unsigned *done;    /* blocks of keys that each block has gone through */
};

/* A block of keys that this block of threads goes through. */
struct work_item {
    int n, block, b, g; /* which head of keys, which block of it; its sequence and place there */
    __device__ work_item(const team_plan &p) : n(blockIdx.x / p.team), block(0) { find(p); }
    __device__ bool there(const team_plan &p) const { return n < p.heads; }
    __device__ void next(const team_plan &p)
    {
        if (++block < p.blocks) return;
        block = 0;
        n += p.teams;
        find(p);
    }

  private:
    __device__ void find(const team_plan &p)
    {
        b = n / p.groups;
        g = n - b * p.groups;
    }
};

/* A tile of queries: of which head that is served, which of it, and where its dq lies. */
struct tile {
    int h, t, slot;
    __device__ int first_query() const { return t * QUERIES; }
};

/* Tiles that a member owns among [from, to) of each head that is served. */
struct span {
    int from, to;

    template <class T> __device__ span(const head<T> &at, int key)
    {
        int first = at.first_row(key), end = at.last_row(key, KEYS);
        from = first / QUERIES;
        to = end > first ? (end + QUERIES - 1) / QUERIES : 0;
    }
    __device__ explicit span(const team_plan &p) : from(0), to(p.tiles) {}

    __device__ tile first(const team_plan &p) const
    {
        tile x = {-1, to, 0};
        skip(p, x);
        return x;
    }
    __device__ bool has(const team_plan &p, const tile &x) const { return x.h < p.q_per_kv; }
    __device__ void next(const team_plan &p, tile &x) const
    {
        x.t += p.team;
        x.slot++;
        skip(p, x);
    }

  private:
    __device__ void skip(const team_plan &p, tile &x) const
    {
        while (x.h < p.q_per_kv && x.t >= to) {
            /* of the first that is ours */
            int ahead = ((int)blockIdx.x - ++x.h * p.tiles - from) % p.team;
            x.t = from + (ahead < 0 ? ahead + p.team : ahead);
            x.slot = (x.h * p.tiles + x.t) / p.team;
        }
    }
};

/* Where tiles stand to a block of keys, by the place of their first query. */
struct visibility {
    int begins, ends; /* from here on it is the first block that they meet; up to here the last */
    int whole_from, whole_to; /* between these all pairs take part, of 64 keys */

    template <class T> __device__ visibility(const head<T> &at, int key, int keys, bool all_seen)
    {
        const int none = INT_MAX, reach = at.window > 0 ? at.window - at.shift : none;
        begins = key == 0 ? -none : reach == none ? none : key + reach - 1;
        ends = at.len <= key + KEYS ? none : at.causal ? key + KEYS - QUERIES - at.shift : -none;
        whole_from = !all_seen || keys + 64 > at.len ? none
                     : at.causal                     ? keys + 63 - at.shift
                                                     : -none;
        whole_to = min(at.rows - QUERIES, reach == none ? none : keys + reach - QUERIES);
    }
    __device__ bool first_visit(const tile &x) const { return x.first_query() >= begins; }
    __device__ bool last_visit(const tile &x) const { return x.first_query() <= ends; }
    __device__ bool all_visible(const tile &x) const
    {
        return x.first_query() >= whole_from && x.first_query() <= whole_to;
    }
};

#endif
