/* adam_file.c - the optimiser's state on disk, as f32: m, v, master and ema of each parameter,
 * by its name, so that a file does not hang on how they lie in memory nor on how many ranks
 * share them.
 *
 *     one rank   moments.safetensors
 *     N ranks    moments-00001-of-0000N.safetensors .., and moments.safetensors.index.json
 *
 * Every rank writes a file, all at once: all arrays of some of the parameters.  Their numbers are
 * owned by all ranks in turn, so writing goes in rounds: each rank names the piece that it writes
 * next, and gets it from its owners in one exchange.  No rank ever holds the whole state.  Files of
 * what each rank owns would need no exchange; they would also need N ranks to be read.
 *
 * Where ranks share the model (tensor.h), rank 0 writes one file: it asks the ranks that have the
 * other parts of its model (core/collect.h), and each of these gets its part by a round among those
 * that have the same one. */
#include <stdio.h>
#include <string.h>

#include "core/collect.h"
#include "train/adam.h"
#include "fovea/author/train.h"
#include "fovea/store.h"
#include "store/store.h"

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

/* ---- rounds ---- */

/* Numbers [from, from + n) of a block; kind -1: no more are wanted. */
typedef struct wanted {
    int64_t kind, from, n;
} wanted;

typedef struct saving {
    fv_adam *a;
    wanted *all;         /* of each rank, in this round */
    fv_comm_part *asked; /* where they are */
    size_t all_bytes;
    void *part, *host; /* of a round: messages, and this rank's numbers on their way to others */
    size_t part_bytes, host_bytes;
    fv__collector whole; /* where ranks share the model */
} saving;

static struct fv_comm *model_ranks(const fv_adam *a) { return a->params->ranks; }

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

/* Pieces of w that `owner` has, and how many numbers they are. */
static int count_pieces(const fv__shares *s, const wanted *w, int owner, int64_t *numbers)
{
    int n = 0;
    if (w->kind < 0) return 0;
    for (int64_t b = 0, from, to, at; next_piece(s, w, owner, &b, &from, &to, &at); n++)
        *numbers += to - from;
    return n;
}

/* This rank's pieces of w, downloaded to `out` one behind the other; part, where it is not NULL,
 * says where each goes.  Returns how many. */
static int take_pieces(saving *x, const wanted *w, int to_rank, float *out, fv_comm_part *part)
{
    const fv__shares *s = &x->a->shares;
    int n = 0;
    if (w->kind < 0) return 0;
    for (int64_t b = 0, from, to, at; next_piece(s, w, s->rank, &b, &from, &to, &at); n++) {
        size_t bytes = (size_t)(to - from) * sizeof *out;
        float *host = part ? out : out + (from - w->from);
        x->a->dev->backend->download(&x->a->stream, host, block_of(x->a, (int)w->kind) + at, bytes);
        if (part) part[n] = (fv_comm_part){to_rank, host, bytes};
        if (part) out += to - from;
    }
    return n;
}

/* Memory for the messages of a round. */
static fv_status grow_round(saving *x, const wanted *mine, fv_err *e)
{
    const fv__shares *s = &x->a->shares;
    int64_t sent = 0, got = 0;
    size_t parts = 1;
    for (int r = 0; r < s->ranks; r++) {
        if (r == s->rank) continue;
        parts += (size_t)count_pieces(s, &x->all[r], s->rank, &sent);
        parts += (size_t)count_pieces(s, mine, r, &got);
    }
    const fv_env *env = &x->a->dev->env;
    return fv__grow(env, &x->part, &x->part_bytes, parts * sizeof(fv_comm_part)) &&
                   fv__grow(env, &x->host, &x->host_bytes, (size_t)sent * sizeof(float) + 1)
               ? FV_OK
               : fv_fail(e, FV_ENOMEM, "moments: out of memory");
}

/* Every rank says what it wants, and out gets it.  *more: somebody wanted something. */
static fv_status run_round(saving *x, wanted mine, float *out, bool *more, fv_err *e)
{
    fv_adam *a = x->a;
    const fv__shares *s = &a->shares;
    int sends = 0, recvs = 0;
    x->all[s->rank] = mine;
    fv_status st = fv_comm_all_gather(a->comm, x->asked, e);
    *more = false;
    for (int r = 0; r < s->ranks; r++) *more = *more || x->all[r].kind >= 0;
    if (!st) st = grow_round(x, &mine, e);
    if (st) return st;
    fv_comm_part *part = x->part;
    float *host = x->host;
    for (int r = 0; r < s->ranks; r++) {
        if (r == s->rank) continue;
        int n = take_pieces(x, &x->all[r], r, host, part + sends);
        for (int i = 0; i < n; i++) host += part[sends + i].bytes / sizeof *host;
        sends += n;
    }
    take_pieces(x, &mine, s->rank, out, NULL);
    for (int r = 0; r < s->ranks && mine.kind >= 0; r++)
        for (int64_t b = 0, from, to, at;
             r != s->rank && next_piece(s, &mine, r, &b, &from, &to, &at); recvs++)
            part[sends + recvs] = (fv_comm_part){r, out + (from - mine.from),
                                                 (size_t)(to - from) * sizeof *out};
    return s->ranks == 1 ? FV_OK : fv_comm_exchange(a->comm, part, sends, part + sends, recvs, e);
}

static fv_status begin_saving(saving *x, fv_adam *a, fv_err *e)
{
    size_t ranks = (size_t)a->shares.ranks;
    *x = (saving){.a = a, .all_bytes = ranks * (sizeof(wanted) + sizeof(fv_comm_part))};
    x->all = fv__alloc(&a->dev->env, x->all_bytes);
    if (!x->all) {
        fv_comm_abort(a->comm, "out of memory");
        return fv_fail(e, FV_ENOMEM, "moments: out of memory");
    }
    x->asked = (fv_comm_part *)(void *)(x->all + ranks);
    for (int r = 0; r < a->shares.ranks; r++)
        x->asked[r] = (fv_comm_part){r, &x->all[r], sizeof *x->all};
    return FV_OK;
}

/* The others are given what they want until they have all, whether this rank has failed or not. */
static fv_status end_saving(saving *x, fv_err *e)
{
    const wanted none = {.kind = -1};
    fv_status st = FV_OK;
    for (bool more = x->all; more && !st;) st = run_round(x, none, NULL, &more, e);
    const fv_env *env = &x->a->dev->env;
    fv__free(env, x->part, x->part_bytes);
    fv__free(env, x->host, x->host_bytes);
    fv__free(env, x->all, x->all_bytes);
    return st;
}

/* ---- the files ---- */

/* All of this rank's part of a parameter, from those that have the same part. */
static fv_status read_part(void *user, int kind, const fv_entry *t, void *host, fv_err *e)
{
    saving *x = user;
    bool more;
    if (kind < 0 || kind >= KINDS || !block_of(x->a, kind))
        return fv_fail(e, FV_ESTATE, "moments: no array %d", kind);
    wanted w = {.kind = kind, .from = offset(x->a, &t->tensor), .n = fv_len(&t->tensor)};
    return run_round(x, w, host, &more, e);
}

/* Gives fv_st_save a piece of an array: the name says which block and which parameter. */
static fv_status fetch(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e)
{
    saving *x = user;
    bool more;
    for (int kind = 0; kind < KINDS; kind++) {
        size_t len = strlen(kinds[kind]);
        if (strncmp(item->name, kinds[kind], len) || item->name[len] != '.') continue;
        const fv_tensor *t = fv_params_find(x->a->params, item->name + len + 1);
        if (model_ranks(x->a)) return fv__collect(&x->whole, kind, t, at, n, out, e);
        wanted w = {.kind = kind, .from = offset(x->a, t) + at, .n = n};
        return run_round(x, w, out, &more, e);
    }
    return fv_fail(e, FV_EARG, "moments: no array \"%s\"", item->name);
}

static fv_status name_in_file(char *out, int kind, const fv_tensor *t, fv_err *e)
{
    int n = snprintf(out, LONGEST_NAME, "%s.%s", kinds[kind], t->name);
    return n < LONGEST_NAME ? FV_OK
                            : fv_fail(e, FV_EARG, "moments: the name \"%s\" is too long", t->name);
}

/* The rank that writes parameter order[i]: each has about as many numbers. */
static int writer_of(const fv_adam *a, int i)
{
    int64_t from = offset(a, fv_params_at(a->params, a->order[i]));
    if (model_ranks(a)) return 0;
    return (int)(from * a->shares.ranks / a->n);
}

/* "moments.safetensors" of one rank, "moments-00001-of-00002.safetensors" of the first of two. */
static fv_status file_of(char out[FV_PATH], const fv_adam *a, const char *path, int rank, fv_err *e)
{
    static const char end[] = ".safetensors";
    int n = (int)(strlen(path) - (fv__ends_with(path, end) ? strlen(end) : 0)),
        len = a->shares.ranks == 1 || model_ranks(a)
                  ? snprintf(out, FV_PATH, "%s", path)
                  : snprintf(out, FV_PATH, "%.*s-%05d-of-%05d%s", n, path, rank + 1,
                             a->shares.ranks, end);
    return len < FV_PATH ? FV_OK : fv_fail(e, FV_EARG, "%.100s...: the path is too long", path);
}

/* Which file has which array, as files of a model in several parts say it. */
static fv_status save_index(const fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    char file[FV_PATH], name[LONGEST_NAME];
    fv_buf b = {.env = env};
    fv_status st = FV_OK;
    bool first = true;
    fv__buf_str(&b, "{\"metadata\": {}, \"weight_map\": {");
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; !st && block_of(a, kind) && i < a->n_order; i++, first = false) {
            st = name_in_file(name, kind, fv_params_at(a->params, a->order[i]), e);
            if (!st) st = file_of(file, a, path, writer_of(a, i), e);
            const char *slash = st ? NULL : strrchr(file, '/');
            /* families name parameters by letters, digits, dots and underscores */
            fv__buf_fmt(&b, "%s\n\"%s\": \"%s\"", first ? "" : ",", name, slash ? slash + 1 : file);
        }
    fv__buf_str(&b, "\n}}\n");
    if (!st && b.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (!st && snprintf(file, sizeof file, "%s.index.json", path) >= (int)sizeof file)
        st = fv_fail(e, FV_EARG, "%.100s...: the path is too long", path);
    if (!st) st = fv__file_write(env, file, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}

/* This rank's file; pieces are fetched while they are written. */
static fv_status save_own(saving *x, const fv_env *env, const char *path, fv_err *e)
{
    fv_adam *a = x->a;
    char file[FV_PATH];
    int params = a->n_order, n = 0;
    size_t items_bytes = (size_t)params * KINDS * sizeof(fv_st_item),
           names_bytes = (size_t)params * KINDS * LONGEST_NAME;
    fv_st_item *items = fv__alloc(env, items_bytes);
    char(*names)[LONGEST_NAME] = fv__alloc(env, names_bytes);
    fv_status st = items && names ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; !st && block_of(a, kind) && i < params; i++) {
            const fv_tensor *t = fv_params_at(a->params, a->order[i]);
            if (writer_of(a, i) != a->shares.rank) continue;
            st = name_in_file(names[n], kind, t, e);
            fv_shape shape = fv__split_whole((const fv_entry *)t);
            items[n] = (fv_st_item){names[n], FV_F32, shape, FV_F32, NULL};
            n++;
        }
    if (!st) st = file_of(file, a, path, a->shares.rank, e);
    if (!st && n)
        st = fv_st_save(env, file, items, n, (fv_st_save_opt){.fetch = fetch, .user = x}, e);
    fv__free(env, items, items_bytes);
    fv__free(env, names, names_bytes);
    return st;
}

/* Of ranks that share the model: rank 0 writes, those with the other parts answer it, and the rest
 * waits for their rounds (end_saving). */
static fv_status save_shared(saving *x, const fv_env *env, const char *path, fv_err *e)
{
    fv_adam *a = x->a;
    fv_err lost;
    if (a->shares.rank) return FV_OK;
    x->whole =
        (fv__collector){.params = a->params, .size = sizeof(float), .read = read_part, .user = x};
    bool writes = !fv_comm_rank(model_ranks(a));
    fv_status st = writes ? save_own(x, env, path, e) : fv__collect_serve(&x->whole, e),
              done = writes ? fv__collect_end(a->params, &lost) : FV_OK;
    fv__collect_free(&x->whole);
    return !st && done ? fv_fail(e, done, "%s", lost.text) : st;
}

fv_status fv_adam_save(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    saving x;
    fv_err lost;
    fv_status st = begin_saving(&x, a, e);
    if (!st) st = model_ranks(a) ? save_shared(&x, env, path, e) : save_own(&x, env, path, e);
    fv_status done = end_saving(&x, &lost);
    if (!st && done) st = fv_fail(e, done, "%s", lost.text);
    bool parts = a->shares.ranks > 1 && !model_ranks(a);
    if (!st && parts && !a->shares.rank) st = save_index(a, env, path, e);
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
    const fv_entry *entry = (const fv_entry *)t;
    fv_tensor whole = {.shape = fv__split_whole(entry)};
    if (info.count != fv_len(&whole))
        return fv_fail(e, FV_EFORMAT, "moments \"%s\": %lld numbers, expected %lld", name,
                       (long long)info.count, (long long)fv_len(&whole));
    st = fv_st_read(file, &info, host, FV_F32, info.count, e);
    if (st) return st;
    float *own = host; /* runs move to the front, none over one that is still to come */
    for (int64_t i = 0, from, n; entry->ranks && fv__split_run(entry, i, &from, &n); i++, own += n)
        memmove(own, host + from, (size_t)n * sizeof *host);
    const wanted w = {.from = offset(a, t), .n = fv_len(t)};
    for (int64_t b = 0, from, to, at;
         next_piece(&a->shares, &w, a->shares.rank, &b, &from, &to, &at);)
        a->dev->backend->upload(&a->stream, block_of(a, kind) + at, host + (from - w.from),
                                (size_t)(to - from) * sizeof(float));
    a->dev->backend->sync(&a->stream);
    return FV_OK;
}

/* Every rank reads all files and keeps its share, so a run may go on with another number of
 * ranks. */
fv_status fv_adam_load(fv_adam *a, const fv_env *env, const char *path, fv_err *e)
{
    fv_st *file;
    char index[FV_PATH];
    int64_t largest = 0;
    for (int i = 0; i < a->n_order; i++) {
        const fv_tensor *t = fv_params_at(a->params, a->order[i]);
        fv_tensor whole = {.shape = fv__split_whole((const fv_entry *)t)};
        if (fv_len(&whole) > largest) largest = fv_len(&whole);
    }
    size_t bytes = (size_t)largest * sizeof(float);
    if (!fv__file_exists(env, path) &&
        snprintf(index, sizeof index, "%s.index.json", path) < (int)sizeof index &&
        fv__file_exists(env, index))
        path = index;
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
