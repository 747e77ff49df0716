/* constrain.c - generation within rules: which tokens may come next.
 *
 * The rules are followed by a pushdown automaton over bytes.  Since alternatives may begin alike
 * (two literals of an enum, an optional property), it is in several configurations at once; each is
 * a stack of positions in the rules, whose top is a class of bytes or, where everything was read,
 * nothing.  Stacks share their lower parts: a link names an element and the link below it.
 *
 * The tokens that may come are found by walking all of them in the order of their bytes: a token
 * takes up the configurations at the depth up to which it agrees with the one before, and a
 * beginning that fails skips everything that shares it.  Inside a string the configurations are the
 * same after most tokens; then the last answer holds.
 *
 * Compiling rules to masks in advance would be faster for large vocabularies, and needs a pass over
 * tokens for every place of every schema. */
#include <math.h>

#include "gen/constrain.h"

typedef struct link {
    int32_t elem, below; /* below: a link, or -1 */
} link;

enum { DONE = -1, MOST_STACKS = 4096, MOST_DEPTH = 200 };

struct fv_constraint {
    fv_env env;
    const fv_schema *schema;
    const fv_token_bytes *tokens;
    fv_buf links; /* of link */
    fv_buf tops;  /* of int32_t: the configurations of depth 0, 1, .. */
    /* where depth d begins; what stands behind d + 1 is not of depth d */
    uint32_t top_at[FV_MOST_TOKEN_BYTES + 3], link_at[FV_MOST_TOKEN_BYTES + 3];
    int64_t consumed; /* ids of the sequence; -1: none were seen */
    uint64_t seen;    /* what the mask was made for; 0: nothing */
    uint64_t *mask;   /* a bit for each token */
    size_t mask_bytes;
    int32_t *ends;
    int n_ends;
};

static link *link_of(fv_constraint *c, int32_t i) { return (link *)(void *)c->links.data + i; }
static int32_t n_links(const fv_constraint *c) { return (int32_t)(c->links.len / sizeof(link)); }
static int32_t *top_of(fv_constraint *c, uint32_t i) { return (int32_t *)(void *)c->tops.data + i; }
static uint32_t n_tops(const fv_constraint *c) { return (uint32_t)(c->tops.len / sizeof(int32_t)); }

/* ---- the automaton ---- */

static int32_t push(fv_constraint *c, int32_t elem, int32_t below)
{
    fv__buf_add(&c->links, &(link){elem, below}, sizeof(link));
    return n_links(c) - 1;
}

/* Adds a configuration of depth d unless it is there. */
static void add_top(fv_constraint *c, int d, int32_t elem, int32_t below)
{
    for (uint32_t i = c->top_at[d]; i < n_tops(c); i++) {
        int32_t t = *top_of(c, i);
        bool same = t == DONE ? elem == DONE
                              : elem != DONE && link_of(c, t)->elem == elem &&
                                    link_of(c, t)->below == below;
        if (same) return;
    }
    if (n_tops(c) - c->top_at[d] >= MOST_STACKS) return;
    int32_t t = elem == DONE ? DONE : push(c, elem, below);
    fv__buf_add(&c->tops, &t, sizeof t);
}

/* Follows rules from an element until bytes are asked for. */
static void expand(fv_constraint *c, int d, int32_t elem, int32_t below, int depth)
{
    const fv_rules *r = &c->schema->rules;
    const fv_elem *e = fv__elem(r, elem);
    if (depth > MOST_DEPTH || c->links.failed || c->tops.failed) return;
    if (e->kind == FV_ELEM_CLASS) {
        add_top(c, d, elem, below);
    } else if (e->kind == FV_ELEM_END) {
        if (below < 0)
            add_top(c, d, DONE, DONE);
        else
            expand(c, d, link_of(c, below)->elem, link_of(c, below)->below, depth + 1);
    } else {
        /* the last element of an alternative leaves nothing to come back to */
        bool last = fv__elem(r, elem + 1)->kind == FV_ELEM_END;
        int32_t back = last ? below : push(c, elem + 1, below);
        const fv_alt *alts = (const fv_alt *)(const void *)r->alts.data;
        int32_t a = ((const int32_t *)(const void *)r->rules.data)[e->arg];
        for (; a >= 0; a = alts[a].next) expand(c, d, alts[a].first, back, depth + 1);
    }
}

/* The configurations of depth d + 1: those of depth d after a byte; false: there is none. */
static bool step(fv_constraint *c, int d, unsigned char byte)
{
    const fv_rules *r = &c->schema->rules;
    c->top_at[d + 1] = n_tops(c);
    c->link_at[d + 1] = (uint32_t)n_links(c);
    for (uint32_t i = c->top_at[d]; i < c->top_at[d + 1]; i++) {
        int32_t t = *top_of(c, i);
        if (t == DONE) continue;
        link at = *link_of(c, t);
        if (fv__class_has(r, fv__elem(r, at.elem)->arg, byte))
            expand(c, d + 1, at.elem + 1, at.below, 0);
    }
    c->top_at[d + 2] = n_tops(c);
    c->link_at[d + 2] = (uint32_t)n_links(c);
    return n_tops(c) > c->top_at[d + 1];
}

/* Forgets the configurations below depth d, and their links. */
static void cut(fv_constraint *c, int d)
{
    c->tops.len = c->top_at[d + 1] * sizeof(int32_t);
    c->links.len = c->link_at[d + 1] * sizeof(link);
}

static void reset(fv_constraint *c)
{
    const fv_rules *r = &c->schema->rules;
    c->links.len = c->tops.len = 0;
    c->top_at[0] = c->link_at[0] = 0;
    const fv_alt *alts = (const fv_alt *)(const void *)r->alts.data;
    int32_t a = ((const int32_t *)(const void *)r->rules.data)[c->schema->root];
    for (; a >= 0; a = alts[a].next) expand(c, 0, alts[a].first, -1, 0);
}

/* ---- following the sequence ---- */

/* Makes the configurations of depth d those of depth 0, with the links they need alone. */
static void keep_only(fv_constraint *c, int d)
{
    fv_buf links = {.env = &c->env}, tops = {.env = &c->env};
    for (uint32_t i = c->top_at[d]; i < c->top_at[d + 1]; i++) {
        int32_t chain[4096], n = 0, below = -1;
        for (int32_t t = *top_of(c, i); t >= 0 && n < 4096; t = link_of(c, t)->below)
            chain[n++] = t;
        if (!n) below = DONE;
        while (n > 0) {
            link one = {link_of(c, chain[--n])->elem, below};
            below = -1;
            for (int32_t k = 0; k < (int32_t)(links.len / sizeof one) && below < 0; k++)
                if (!memcmp((link *)(void *)links.data + k, &one, sizeof one)) below = k;
            if (below >= 0) continue;
            fv__buf_add(&links, &one, sizeof one);
            below = (int32_t)(links.len / sizeof one) - 1;
        }
        fv__buf_add(&tops, &below, sizeof below);
    }
    fv__buf_free(&c->links);
    fv__buf_free(&c->tops);
    c->links = links;
    c->tops = tops;
    c->top_at[0] = c->link_at[0] = 0;
}

/* A token that the mask did not allow (an end) changes nothing. */
static void consume(fv_constraint *c, int32_t id)
{
    const fv_token_bytes *t = c->tokens;
    int d = 0, n = id < t->V ? (int)(t->at[id + 1] - t->at[id]) : 0;
    c->top_at[1] = n_tops(c);
    c->link_at[1] = (uint32_t)n_links(c);
    while (d < n && step(c, d, t->bytes[t->at[id] + (uint32_t)d])) d++;
    if (n && d == n)
        keep_only(c, d);
    else
        cut(c, 0);
}

/* ---- the mask ---- */

static uint64_t mix(uint64_t h, int32_t x)
{
    h = (h ^ (uint32_t)x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* A number for all configurations: equal ones allow the same tokens. */
static uint64_t signature(fv_constraint *c)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < n_tops(c); i++) {
        h = mix(h, -7);
        for (int32_t t = *top_of(c, i); t >= 0; t = link_of(c, t)->below)
            h = mix(h, link_of(c, t)->elem);
    }
    return h ? h : 1;
}

static void allow_tokens(fv_constraint *c)
{
    const fv_token_bytes *t = c->tokens;
    int d = 0; /* bytes of the token before that were read */
    memset(c->mask, 0, c->mask_bytes);
    c->top_at[1] = n_tops(c);
    c->link_at[1] = (uint32_t)n_links(c);
    for (int64_t i = 0; i < t->n; i++) {
        int32_t id = t->order[i];
        int n = (int)(t->at[id + 1] - t->at[id]), same = i ? t->lcp[i] : 0;
        if (same > d) continue; /* it shares the byte that failed */
        d = same;
        cut(c, d);
        while (d < n && step(c, d, t->bytes[t->at[id] + (uint32_t)d])) d++;
        if (d == n) c->mask[id / 64] |= (uint64_t)1 << id % 64;
        if (d < n) cut(c, d);
    }
    cut(c, 0);
}

void fv_constraint_logits(void *constraint, float *logits, int64_t V, const int32_t *ids, int64_t n)
{
    fv_constraint *c = constraint;
    bool any = false, complete = false;
    for (int64_t i = c->consumed < 0 ? n : c->consumed; i < n; i++) consume(c, ids[i]);
    c->consumed = n;
    uint64_t now = signature(c);
    if (now != c->seen) allow_tokens(c);
    c->seen = now;
    for (uint32_t i = 0; i < n_tops(c); i++) complete |= *top_of(c, i) == DONE;
    for (size_t i = 0; i < c->mask_bytes / sizeof *c->mask && !any; i++) any = c->mask[i];
    float end[64];
    for (int i = 0; i < c->n_ends; i++) end[i] = logits[c->ends[i]];
    for (int64_t i = 0; i < V; i++)
        if (i >= c->tokens->V || !(c->mask[i / 64] >> i % 64 & 1)) logits[i] = -INFINITY;
    /* where nothing can follow, the text ends, whole or not */
    for (int i = 0; i < c->n_ends && (complete || !any); i++) logits[c->ends[i]] = end[i];
}

/* ---- opening ---- */

fv_status fv_constraint_new(fv_constraint **out, const fv_schema *s, const fv_token_bytes *t,
                            const int32_t *ends, int n_ends, fv_err *e)
{
    *out = NULL;
    if (n_ends < 0 || n_ends > 64)
        return fv_fail(e, FV_EARG, "constraint: %d tokens that end a text, at most 64", n_ends);
    fv_constraint *c = fv__alloc(&s->env, sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "constraint: out of memory");
    *c = (fv_constraint){.env = s->env, .schema = s, .tokens = t, .consumed = -1, .n_ends = n_ends};
    c->links.env = c->tops.env = &c->env;
    c->mask_bytes = (size_t)(t->V + 63) / 64 * sizeof *c->mask;
    c->mask = fv__alloc(&c->env, c->mask_bytes);
    c->ends = fv__alloc(&c->env, 64 * sizeof *c->ends);
    if (c->mask && c->ends) {
        if (n_ends) memcpy(c->ends, ends, (size_t)n_ends * sizeof *ends);
        reset(c);
        if (!c->links.failed && !c->tops.failed) *out = c;
    }
    if (*out) return FV_OK;
    fv_constraint_free(c);
    return fv_fail(e, FV_ENOMEM, "constraint: out of memory");
}

void fv_constraint_free(fv_constraint *c)
{
    if (!c) return;
    fv_env env = c->env;
    c->links.env = c->tops.env = &env;
    fv__buf_free(&c->links);
    fv__buf_free(&c->tops);
    fv__free(&env, c->mask, c->mask_bytes);
    fv__free(&env, c->ends, 64 * sizeof *c->ends);
    fv__free(&env, c, sizeof *c);
}
