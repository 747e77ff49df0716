/* adam_file.c - the optimiser's state on disk, as f32: m, v, master and ema of each parameter,
 * by its name, so that a file does not hang on how they lie in memory nor on how many ranks
 * share them.
 *
 * Rank 0 writes.  It asks for the numbers it needs, piece by piece, and every rank that owns
 * some of them sends them: no rank ever holds the whole state. */
#include <stdio.h>
#include <string.h>

#include "train/adam.h"
#include "fovea/author/train.h"
#include "fovea/store.h"

#define LONGEST_NAME 256 /* of an array in the file */

static const char *const kinds[] = {"m", "v", "master", "ema"};
enum { KINDS = (int)(sizeof kinds / sizeof *kinds) };

/* In the order of `kinds`; NULL where this optimiser has no such array. */
static float *block_of(const fv_adam *a, int kind)
{
    float *const all[KINDS] = {a->m, a->v, a->master, a->ema};
    return all[kind];
}

/* Where parameter t begins in every block. */
static int64_t offset(const fv_adam *a, const fv_tensor *t)
{
    int64_t n;
    const char *first = fv_params_data(a->params, &n);
    return ((const char *)t->data - first) / (int64_t)fv_dtype_size(a->dtype);
}

/* ---- numbers that ranks share ---- */

/* Numbers [from, from + n) of a block; kind -1: no more are wanted. */
typedef struct wanted {
    int64_t kind, from, n;
} wanted;

/* One rank's numbers among those that are wanted, from bucket *b on; false: no more. */
static bool next_piece(const fv__shares *s, const wanted *w, int rank, int64_t *b, int64_t *from,
                       int64_t *to, int64_t *local)
{
    for (; *b < s->buckets; ++*b) {
        int64_t lo, hi;
        fv__share(s, *b, rank, &lo, &hi);
        *from = lo > w->from ? lo : w->from;
        *to = hi < w->from + w->n ? hi : w->from + w->n;
        *local = *b * s->per_rank + *from - lo;
        if (*from >= *to) continue;
        ++*b;
        return true;
    }
    return false;
}

/* Pieces of all ranks but 0 in order of their owners: where rank 0 receives them in out, or (of
 * this rank) where they are sent from.  Returns how many; part may be NULL. */
static int list_pieces(const fv_adam *a, const wanted *w, float *out, fv_comm_part *part)
{
    const fv__shares *s = &a->shares;
    int n = 0;
    for (int r = s->rank ? s->rank : 1; r < (s->rank ? s->rank + 1 : s->ranks); r++)
        for (int64_t b = 0, from, to, at; next_piece(s, w, r, &b, &from, &to, &at); n++)
            if (part)
                part[n] = (fv_comm_part){s->rank ? 0 : r, out + (from - w->from),
                                         (size_t)(to - from) * sizeof *out};
    return n;
}

/* Every rank calls it with the same w: out of rank 0 gets the numbers; the others use theirs as
 * scratch. */
static fv_status collect(fv_adam *a, const wanted *w, float *out, fv_err *e)
{
    const fv__shares *s = &a->shares;
    int n = list_pieces(a, w, out, NULL);
    size_t bytes = (size_t)(n + 1) * sizeof(fv_comm_part);
    fv_comm_part *part = fv__alloc(&a->dev->env, bytes);
    if (!part) return fv_fail(e, FV_ENOMEM, "moments: out of memory");
    list_pieces(a, w, out, part);
    for (int64_t b = 0, from, to, at; next_piece(s, w, s->rank, &b, &from, &to, &at);)
        a->dev->backend->download(&a->stream, out + (from - w->from),
                                  block_of(a, (int)w->kind) + at,
                                  (size_t)(to - from) * sizeof *out);
    fv_status st = s->ranks == 1 ? FV_OK
                   : s->rank     ? fv_comm_exchange(a->comm, part, n, NULL, 0, e)
                                 : fv_comm_exchange(a->comm, NULL, 0, part, n, e);
    fv__free(&a->dev->env, part, bytes);
    return st;
}

/* Rank 0 names the piece it wants to write next; alone it needs to ask nobody. */
static fv_status ask(fv_adam *a, wanted *w, fv_err *e)
{
    return a->shares.ranks == 1 ? FV_OK : fv_comm_broadcast(a->comm, w, sizeof *w, 0, e);
}

/* The other ranks, while rank 0 writes: they give pieces until they are told that it has all. */
fv_status fv__adam_serve(fv_adam *a, fv_err *e)
{
    void *host = NULL;
    size_t bytes = 0;
    wanted w = {0};
    fv_status st;
    while (!(st = ask(a, &w, e)) && w.kind >= 0) {
        if (!fv__grow(&a->dev->env, &host, &bytes, (size_t)w.n * sizeof(float) + 1))
            st = fv_fail(e, FV_ENOMEM, "moments: out of memory");
        if (!st) st = collect(a, &w, host, e);
        if (st) break;
    }
    fv__free(&a->dev->env, host, bytes);
    return st;
}

fv_status fv__adam_served(fv_adam *a, fv_err *e)
{
    wanted none = {.kind = -1};
    return ask(a, &none, e);
}

/* ---- the file ---- */

/* Gives fv_st_save a piece of an array: the name says which block and which parameter. */
static fv_status fetch(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e)
{
    fv_adam *a = user;
    for (int kind = 0; kind < KINDS; kind++) {
        size_t len = strlen(kinds[kind]);
        if (strncmp(item->name, kinds[kind], len) || item->name[len] != '.') continue;
        wanted w = {.kind = kind, .n = n};
        w.from = offset(a, fv_params_find(a->params, item->name + len + 1)) + at;
        fv_status st = ask(a, &w, e);
        return st ? st : collect(a, &w, out, e);
    }
    return fv_fail(e, FV_EARG, "moments: no array \"%s\"", item->name);
}

static fv_status name_in_file(char *out, int kind, const fv_tensor *t, fv_err *e)
{
    int n = snprintf(out, LONGEST_NAME, "%s.%s", kinds[kind], t->name);
    return n < LONGEST_NAME ? FV_OK
                            : fv_fail(e, FV_EARG, "moments: the name \"%s\" is too long", t->name);
}

/* Pieces are fetched while they are written: no rank ever holds the whole state of all. */
fv_status fv_adam_save(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    int params = a->n_order, n = 0;
    size_t items_bytes = (size_t)params * KINDS * sizeof(fv_st_item),
           names_bytes = (size_t)params * KINDS * LONGEST_NAME;
    fv_st_item *items = fv__alloc(env, items_bytes);
    char(*names)[LONGEST_NAME] = fv__alloc(env, names_bytes);
    fv_status st = items && names ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; !st && block_of(a, kind) && i < params; i++, n++) {
            const fv_tensor *t = fv_params_at(a->params, a->order[i]);
            st = name_in_file(names[n], kind, t, e);
            items[n] = (fv_st_item){names[n], FV_F32, t->shape, FV_F32, NULL};
        }
    if (!st) st = fv_st_save(env, path, items, n, (fv_st_save_opt){.fetch = fetch, .user = a}, e);
    fv__free(env, items, items_bytes);
    fv__free(env, names, names_bytes);
    return st;
}

/* Of one array of the file what this rank owns, into its block.  host has space for the largest
 * parameter. */
static fv_status restore(fv_adam *a, const fv_st *file, int kind, const fv_tensor *t, float *host,
                         fv_err *e)
{
    char name[LONGEST_NAME];
    fv_st_info info;
    fv_status st = name_in_file(name, kind, t, e);
    if (!st) st = fv_st_find(file, name, &info, e);
    if (st) return st;
    if (info.count != fv_len(t))
        return fv_fail(e, FV_EFORMAT, "moments \"%s\": %lld numbers, expected %lld", name,
                       (long long)info.count, (long long)fv_len(t));
    st = fv_st_read(file, &info, host, FV_F32, info.count, e);
    if (st) return st;
    const wanted w = {.from = offset(a, t), .n = info.count};
    for (int64_t b = 0, from, to, at;
         next_piece(&a->shares, &w, a->shares.rank, &b, &from, &to, &at);)
        a->dev->backend->upload(&a->stream, block_of(a, kind) + at, host + (from - w.from),
                                (size_t)(to - from) * sizeof(float));
    a->dev->backend->sync(&a->stream);
    return FV_OK;
}

/* Every rank reads the whole file and keeps its share, so a run may go on with another number of
 * them. */
fv_status fv_adam_load(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    fv_st *file;
    size_t bytes = (size_t)a->n * sizeof(float);
    fv_status st = fv_st_open(&file, env, path, e);
    if (st) return st;
    float *host = fv__alloc(env, bytes);
    if (!host) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; !st && block_of(a, kind) && i < a->n_order; i++)
            st = restore(a, file, kind, fv_params_at(a->params, a->order[i]), host, e);
    fv__free(env, host, bytes);
    fv_st_close(file);
    return st;
}
