/* params.c - parameters from files and into files.
 *
 * Loading has two steps: match every parameter with a tensor of the file and collect what does not
 * fit, then copy.  A file that does not fit changes nothing. */
#include <stdio.h>

#include "core/adapter.h"
#include "core/blocks.h"
#include "core/collect.h"
#include "core/core.h"
#include "core/params.h"
#include "fovea/author/params.h"
#include "store.h"

#define PIECE (1 << 18) /* elements converted at a time */

/*    for each parameter     own name -> with or without prefix -> other ending -> tied name
 *    for each tensor left   a copy of a tied one -> on the list of what is ignored -> a problem */
typedef struct loading {
    fv_params *p;
    const fv_env *env;
    const char *path;
    fv_st *file;
    fv_load_opt opt;
    fv_st_info *from; /* for each parameter; count -1: stays as it is */
    uint8_t *used;    /* for each tensor of the file */
    fv_err *e;
} loading;

/* ---- names ---- */

/* "a", "*a", "a*" and "*a*"; a star inside a pattern is a star. */
static bool matches(const char *pattern, const char *name)
{
    size_t n = strlen(pattern), m = strlen(name);
    bool front = n && pattern[0] == '*', back = n > 1 && pattern[n - 1] == '*';
    if (front && back) return n == 2 || memmem(name, m, pattern + 1, n - 2);
    if (front) return m >= n - 1 && !memcmp(name + m - (n - 1), pattern + 1, n - 1);
    if (back) return m >= n - 1 && !memcmp(name, pattern, n - 1);
    return !strcmp(pattern, name);
}

static bool listed(const char *const *list, const char *name)
{
    for (; list && *list; list++)
        if (matches(*list, name)) return true;
    return false;
}

/* The tensor of that name, with the prefix added or taken away if need be. */
static bool find_name(const loading *l, const char *name, fv_st_info *out)
{
    char longer[512];
    size_t n = l->opt.prefix ? strlen(l->opt.prefix) : 0;
    if (!fv_st_find(l->file, name, out, NULL)) return true;
    if (!n) return false;
    if (!strncmp(name, l->opt.prefix, n) && !fv_st_find(l->file, name + n, out, NULL)) return true;
    return (size_t)snprintf(longer, sizeof longer, "%s%s", l->opt.prefix, name) < sizeof longer &&
           !fv_st_find(l->file, longer, out, NULL);
}

/* The same, also with another ending. */
static bool find(const loading *l, const char *name, fv_st_info *out)
{
    char other[512];
    if (find_name(l, name, out)) return true;
    size_t n = strlen(name);
    for (const fv_tie *t = l->opt.endings; t && t->name; t++) {
        size_t cut = strlen(t->name);
        if (n < cut || strcmp(name + n - cut, t->name)) continue;
        int len = snprintf(other, sizeof other, "%.*s%s", (int)(n - cut), name, t->same_as);
        if (len < (int)sizeof other && find_name(l, other, out)) return true;
    }
    return false;
}

/* Where a file may hold the parameter under a second name. */
static const char *other_name(const loading *l, const char *name)
{
    for (const fv_tie *t = l->opt.ties; t && t->name; t++)
        if (!strcmp(t->name, name)) return t->same_as;
    return NULL;
}

/* ---- matching ---- */

/* Problems of one kind: the first few by name, then how many. */
typedef struct listing {
    fv_buf text;
    int n;
} listing;

/* Three names of each kind of problem are enough to see what is wrong. */
static void note(listing *l, const char *what, const char *name)
{
    if (!l->n++) fv__buf_fmt(&l->text, "%s: ", what);
    if (l->n <= 3) fv__buf_fmt(&l->text, "%s%.80s", l->n > 1 ? ", " : "", name);
}

static void close_listing(fv_buf *all, listing *l)
{
    if (l->n > 3) fv__buf_fmt(&l->text, " and %d more", l->n - 3);
    if (l->n) fv__buf_fmt(all, "%s%s", all->len ? "; " : "", l->text.data ? l->text.data : "");
    fv__buf_free(&l->text);
}

/* Which tensor of the file it is, by its data: infos come from fv_st_at and fv_st_find alike. */
static void mark_used(loading *l, const fv_st_info *t)
{
    for (int i = 0; i < fv_st_count(l->file); i++)
        if (fv_st_at(l->file, i).name == t->name) l->used[i] = 1;
}

/* A matrix as rows of a quantised dtype, whichever of its axes was the inner one of products.
 * u8 (rows, bytes of a row): the row length in bytes tells which axis was quantised along. */
static bool quantised(const loading *l, const fv_st_info *from, fv_shape s)
{
    if (!l->opt.rows || s.n != 2 || from->shape.n != 2 || strcmp(from->dtype_name, "u8"))
        return false;
    for (int i = 0; i < 2; i++)
        if (from->shape.d[0] == s.d[i] &&
            from->shape.d[1] == (int64_t)fv_dtype_row(l->opt.rows, s.d[!i]))
            return true;
    return false;
}

/* fresh: names that may be missing, as a new head has; they keep the values they were drawn
 * with. */
static void match_params(loading *l, listing *missing, listing *shapes)
{
    for (int i = 0; i < fv_params_count(l->p); i++) {
        const fv_tensor *t = fv_params_at(l->p, i);
        fv_st_info *from = &l->from[i];
        const char *other = other_name(l, t->name);
        /* an adapter's file has what is trained, the base model's what is not the adapter's */
        if (l->opt.trained ? fv__param_frozen(t) : fv__param_added(t)) {
            from->count = -1;
            continue;
        }
        if (!find(l, t->name, from) && !(other && find(l, other, from))) {
            from->count = -1;
            if (!listed(l->opt.fresh, t->name))
                note(missing, "missing", t->name);
            else if (l->opt.on_skipped)
                l->opt.on_skipped(l->opt.user, t->name, true);
            continue;
        }
        mark_used(l, from);
        fv_tensor whole = {.shape = fv__split_whole((const fv_entry *)t)};
        if (fv_shape_same(from->shape, whole.shape) || quantised(l, from, t->shape)) continue;
        char text[256];
        fv_tensor stored = {.shape = from->shape};
        snprintf(text, sizeof text, "%.60s is %s, expected %s", t->name,
                 strchr(fv_desc(&stored).s, '('), strchr(fv_desc(&whole).s, '('));
        note(shapes, "of another shape", text);
    }
}

/* A surplus name that is tied to a parameter must hold the same numbers, or something would be
 * lost.
 * Checkpoints often store tied weights under both names. */
static bool is_copy(const loading *l, const fv_st_info *t)
{
    fv_st_info same;
    const char *other = other_name(l, t->name);
    return other && find(l, other, &same) && same.bytes == t->bytes &&
           !memcmp(same.data, t->data, t->bytes);
}

static void match_file(loading *l, listing *surplus)
{
    for (int i = 0; i < fv_st_count(l->file); i++) {
        fv_st_info t = fv_st_at(l->file, i);
        if (l->used[i] || is_copy(l, &t)) continue;
        if (!listed(l->opt.ignore, t.name))
            note(surplus, "unexpected", t.name);
        else if (l->opt.on_skipped)
            l->opt.on_skipped(l->opt.user, t.name, false);
    }
}

/* All problems at once: what is missing, what has another shape, what nobody asked for. */
static fv_status match(loading *l)
{
    listing missing = {.text.env = l->env}, shapes = missing, surplus = missing;
    fv_buf all = {.env = l->env};
    fv_status st = FV_OK;
    match_params(l, &missing, &shapes);
    match_file(l, &surplus);
    int problems = missing.n + shapes.n + surplus.n;
    close_listing(&all, &missing);
    close_listing(&all, &shapes);
    close_listing(&all, &surplus);
    if (problems)
        st = fv_fail(l->e, shapes.n ? FV_ESHAPE : FV_EFORMAT, "%s: %s", l->path,
                     all.data ? all.data : "does not fit");
    fv__buf_free(&all);
    return st;
}

/* ---- copying ---- */

/* Of a weight that ranks share, the runs that are this one's. */
static fv_status copy_share(loading *l, fv_tensor *t, const fv_st_info *from, void *piece)
{
    int64_t from_at, n, to = 0;
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && fv__split_run((const fv_entry *)t, i, &from_at, &n); i++)
        for (int64_t at = 0; !st && at < n; at += PIECE) {
            int64_t some = n - at < PIECE ? n - at : PIECE;
            st = fv__st_read_part(l->file, from, from_at + at, some, piece, t->dtype, l->e);
            if (!st) st = fv__params_write(l->p, t, to, piece, some, l->e);
            to += some;
        }
    return st;
}

/* In pieces that fit a cache, converted on the way. */
static fv_status copy(loading *l, fv_tensor *t, const fv_st_info *from, void *piece)
{
    if (((const fv_entry *)t)->ranks) return copy_share(l, t, from, piece);
    if (!strcmp(from->dtype_name, fv_dtype_name(t->dtype)))
        return fv__params_write(l->p, t, 0, from->data, from->count, l->e);
    for (int64_t at = 0; at < from->count; at += PIECE) {
        int64_t n = from->count - at < PIECE ? from->count - at : PIECE;
        fv_status st = fv__st_read_part(l->file, from, at, n, piece, t->dtype, l->e);
        if (!st) st = fv__params_write(l->p, t, at, piece, n, l->e);
        if (st) return st;
    }
    return FV_OK;
}

/* Numbers of the file into rows of blocks: one matrix at a time is in memory as f32, and
 * for a device as rows.  What the file has as such rows is copied. */
static fv_status copy_rows(loading *l, fv_tensor *t, const fv_st_info *from, fv_err *e)
{
    if (quantised(l, from, t->shape))
        return fv__params_upload(l->p, t->data, from->data, from->bytes, e);
    bool in_out = fv__param_linear(t) == FV_LINEAR_IN_OUT, host = fv__device_is_host(l->p->dev);
    int64_t out = t->shape.d[in_out], in = t->shape.d[!in_out];
    size_t row = fv_dtype_row(t->dtype, in), made = (size_t)out * row,
           bytes = (size_t)(fv_len(t) + in) * sizeof(float) + (host ? 0 : made);
    float *x = fv__alloc(l->env, bytes), *turned = x ? x + fv_len(t) : NULL;
    char *rows = host ? t->data : (char *)(x ? turned + in : NULL);
    fv_status st = x ? fv__st_read_part(l->file, from, 0, fv_len(t), x, FV_F32, e)
                     : fv_fail(e, FV_ENOMEM, "%s: out of memory", l->path);
    for (int64_t i = 0; !st && i < out; i++) {
        for (int64_t k = 0; k < in; k++) turned[k] = x[in_out ? k * out + i : i * in + k];
        fv__quantise_row(rows + (size_t)i * row, t->dtype, turned, in);
    }
    if (!st && !host) st = fv__params_upload(l->p, t->data, rows, made, e);
    fv__free(l->env, x, bytes);
    return st;
}

static fv_status copy_all(loading *l)
{
    fv_status st = FV_OK;
    int64_t longest = 0;
    for (int i = 0; i < fv_params_count(l->p); i++)
        if (l->from[i].count > longest) longest = l->from[i].count;
    size_t scratch_bytes = (size_t)(longest < PIECE ? longest : PIECE) * sizeof(double);
    void *piece = fv__alloc(l->env, scratch_bytes);
    if (scratch_bytes && !piece) return fv_fail(l->e, FV_ENOMEM, "%s: out of memory", l->path);
    for (int i = 0; i < fv_params_count(l->p) && !st; i++) {
        fv_tensor *t = fv_params_at(l->p, i);
        if (l->from[i].count < 0) continue;
        st = fv_dtype_size(t->dtype) ? copy(l, t, &l->from[i], piece)
                                     : copy_rows(l, t, &l->from[i], l->e);
        fv__st_forget(l->file, l->from[i].data, l->from[i].bytes); /* it is read once */
    }
    fv__free(l->env, piece, scratch_bytes);
    return st;
}

/* Opens the file and what matching needs. */
static fv_status begin(loading *l)
{
    fv_status st = fv_st_open(&l->file, l->env, l->path, l->e);
    if (st) return st;
    size_t infos = (size_t)fv_params_count(l->p) * sizeof *l->from,
           marks = (size_t)fv_st_count(l->file);
    l->from = fv__alloc(l->env, infos);
    l->used = fv__alloc(l->env, marks);
    return (infos && !l->from) || (marks && !l->used)
               ? fv_fail(l->e, FV_ENOMEM, "%s: out of memory", l->path)
               : match(l);
}

static void end(loading *l, bool keep_file)
{
    if (!l->file) return;
    fv__free(l->env, l->from, (size_t)fv_params_count(l->p) * sizeof *l->from);
    fv__free(l->env, l->used, (size_t)fv_st_count(l->file));
    if (!keep_file) fv_st_close(l->file);
}

/* Names and shapes alone, before memory is taken for a model that a configuration asks for. */
fv_status fv__params_fit(fv_params *p, const fv_env *env, const char *path, fv_load_opt opt,
                         fv_err *e)
{
    loading l = {.p = p, .env = env, .path = path, .opt = opt, .e = e};
    fv_status st = begin(&l);
    end(&l, false);
    return st;
}

fv_status fv_params_load(fv_params *p, const fv_env *env, const char *path, fv_load_opt opt,
                         fv_err *e)
{
    loading l = {.p = p, .env = env, .path = path, .opt = opt, .e = e};
    fv_status st = begin(&l);
    if (!st) st = copy_all(&l);
    end(&l, false);
    return st;
}

static void close_file(void *file) { fv_st_close(file); }
static void forget_part(void *file, const void *data, size_t bytes)
{
    fv__st_forget(file, data, bytes);
}

static bool may_be_half(const fv_tensor *t) { return t->shape.n == 2 && !fv__param_buffer(t); }

/* bf16 or f16, where the file has every matrix so, in the way it can be read in place; else
 * FV_F32.
 * All or none: kernels of a model are chosen once, for one dtype of its matrices. */
static fv_dtype narrow(const loading *l)
{
    fv_dtype all = FV_F32, t = FV_F32;
    for (int i = 0; i < fv_params_count(l->p); i++) {
        const fv_st_info *from = &l->from[i];
        const fv_tensor *to = fv_params_at(l->p, i);
        if (from->count < 1 || !may_be_half(to) || quantised(l, from, to->shape)) continue;
        bool fits = fv_dtype_parse(&t, from->dtype_name) && (t == FV_BF16 || t == FV_F16) &&
                    (uintptr_t)from->data % 2 == 0;
        if (!fits || (all && all != t)) return FV_F32;
        all = t;
    }
    return all;
}

/* What lies in the file as it is wanted can be used there. */
static bool as_wanted(const fv_st_info *from, fv_dtype dtype)
{
    return !strcmp(from->dtype_name, fv_dtype_name(dtype)) &&
           (uintptr_t)from->data % fv_dtype_size(dtype) == 0;
}

/* Whether a weight of products stays where its file is mapped until it is packed: a device's memory
 * then never holds it as numbers, which may be twice and four times what is packed. */
static bool waits(const fv_tensor *t, fv_load_opt opt)
{
    return opt.half && fv__param_linear(t) && !((const fv_entry *)t)->table;
}

/* On the host a tensor that has the wanted dtype is used where the file is mapped, so a model
 * opens in the time of reading its header; the rest is converted into memory of its own.  The
 * file stays open as long as the parameters borrow from it.  Another device gets quantised rows as
 * they are. */
fv_status fv_params_map(fv_params *p, fv_device *d, fv_dtype dtype, const char *path,
                        fv_load_opt opt, fv_err *e)
{
    loading l = {.p = p, .env = fv_device_env(d), .path = path, .opt = opt, .e = e};
    fv_status st = fv_params_status(p, e);
    if (!st) st = begin(&l);
    int borrowed = 0;
    fv_dtype half = !st && opt.half && dtype == FV_F32 ? narrow(&l) : FV_F32;
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        if (((const fv_entry *)t)->ranks) continue; /* a part of it is copied */
        bool rows = quantised(&l, &l.from[i], t->shape), in_half = half && may_be_half(t);
        if (!fv__device_is_host(d) && (rows || !waits(t, opt))) {
            if (rows && l.from[i].count > 0) fv__param_hold_as(t, opt.rows);
            continue;
        }
        if (l.from[i].count < 1 || !(rows || in_half || as_wanted(&l.from[i], dtype))) continue;
        fv__params_borrow(p, t, l.from[i].data, rows ? opt.rows : in_half ? half : FV_F32);
        l.from[i].count = -1; /* nothing to copy */
        borrowed++;
    }
    if (!st) st = fv_params_alloc(p, d, dtype, false, e);
    if (!st) st = copy_all(&l);
    /* whatever came of it */
    if (borrowed) fv__params_set_owner(p, (fv_data_owner){l.file, close_file, forget_part});
    end(&l, borrowed > 0);
    return st;
}

/* ---- saving ---- */

#define LONGEST_NAME 320

/* A file that is being written: the parameters in it, and what they are called there. */
typedef struct saving {
    fv_params *p;
    int n;
    const fv_tensor **param;
    char (*name)[LONGEST_NAME];
    fv_st_item *item;
    fv__collector whole; /* of weights that ranks share */
} saving;

/* The writer asks for pieces, which are read back from the device as they are written. */
static fv_status fetch(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e)
{
    saving *s = user;
    int i = 0;
    while (i < s->n && strcmp(s->name[i], item->name)) i++;
    if (i == s->n) return fv_fail(e, FV_EARG, "no parameter %s", item->name);
    return s->p->ranks ? fv__collect(&s->whole, 0, s->param[i], at, n, out, e)
                       : fv__params_read(s->p, s->param[i], at, out, n, e);
}

/* A bias beside an adapted weight: PEFT keeps it in the layer that the adapter wraps. */
static bool wrapped(const fv_params *p, const char *name)
{
    char weight[LONGEST_NAME];
    size_t n = strlen(name), cut = strlen(".bias");
    if (n <= cut || strcmp(name + n - cut, ".bias")) return false;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)(n - cut), name);
    return fv__param_adapter(fv_params_find(p, weight));
}

static void name_trained(char out[LONGEST_NAME], const fv_params *p, const fv_tensor *t,
                         const char *prefix)
{
    size_t n = strlen(t->name);
    if (wrapped(p, t->name))
        snprintf(out, LONGEST_NAME, "%s%.*s.base_layer.bias", prefix, (int)(n - strlen(".bias")),
                 t->name);
    else
        snprintf(out, LONGEST_NAME, "%s%s", fv__param_added(t) ? "" : prefix, t->name);
}

/* All of them or, with a prefix for the names of the base model's, those that are trained.
 * Streams: the writer fetches a block at a time from the device, so saving needs no copy of the
 * model. */
static fv_status save(fv_params *p, const fv_env *env, const char *path, fv_dtype dtype,
                      const char *prefix, uint64_t shard_bytes, fv_err *e)
{
    size_t all = (size_t)fv_params_count(p);
    saving s = {.p = p,
                .param = fv__alloc(env, all * sizeof *s.param),
                .name = fv__alloc(env, all * sizeof *s.name),
                .item = fv__alloc(env, all * sizeof *s.item),
                .whole = {.params = p, .size = fv_dtype_size(p->dtype)}};
    fv_status st = s.param && s.name && s.item ? FV_OK
                                               : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; !st && i < all; i++) {
        const fv_tensor *t = fv_params_at(p, (int)i);
        if (prefix && fv__param_frozen(t)) continue;
        if (prefix)
            name_trained(s.name[s.n], p, t, prefix);
        else
            snprintf(s.name[s.n], LONGEST_NAME, "%s", t->name);
        s.param[s.n] = t;
        s.item[s.n] = (fv_st_item){.name = s.name[s.n],
                                   .dtype = dtype,
                                   .shape = fv__split_whole((const fv_entry *)t),
                                   .from = t->dtype};
        s.n++;
    }
    fv_st_save_opt opt = {.shard_bytes = shard_bytes, .fetch = fetch, .user = &s};
    if (!st) st = fv_st_save(env, path, s.item, s.n, opt, e);
    fv__collect_free(&s.whole);
    fv__free(env, s.param, all * sizeof *s.param);
    fv__free(env, s.name, all * sizeof *s.name);
    fv__free(env, s.item, all * sizeof *s.item);
    return st;
}

fv_status fv_params_save(fv_params *p, const fv_env *env, const char *path, fv_dtype dtype,
                         uint64_t shard_bytes, fv_err *e)
{
    return save(p, env, path, dtype, NULL, shard_bytes, e);
}

fv_status fv__params_save_trained(fv_params *p, const fv_env *env, const char *path, fv_dtype dtype,
                                  const char *prefix, fv_err *e)
{
    return save(p, env, path, dtype, prefix, 0, e);
}
