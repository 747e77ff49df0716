/* open.c - safetensors files, one or several with an index, and what is in them.
 *
 * Nothing is read but headers: data stays in the mapped file until somebody converts or borrows
 * it. All pointers of fv_st_info live as long as the fv_st. */
#include "base/hub.h"
#include "safetensors.h"
#include "store/store.h"

/* One file is one shard; tensors of several are numbered one shard after the other.  Everything
 * that fv_st_info points to lies in the mapping and lives as long as the fv_st. */
struct fv_st {
    const fv_env *env;
    char *path; /* as given, for messages */
    fv_st_shard *shard;
    int shards, count;
};

/* ---- opening ---- */

/* A file by itself. */
static fv_status open_one(fv_st *s, const char *path, fv_err *e)
{
    s->shard = fv__alloc(s->env, sizeof *s->shard);
    if (!s->shard) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    s->shards = 1;
    s->shard->file.env = s->shard->plan.env = s->env;
    return fv__st_shard_open(s->shard, s->env, path, e);
}

/* A directory stands for the one file in it, or for its index. */
static fv_status open_dir(fv_st *s, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = fv__store_path(path, dir, "model.safetensors", e);
    if (st || fv__file_exists(s->env, path)) return st ? st : open_one(s, path, e);
    st = fv__store_path(path, dir, "model.safetensors.index.json", e);
    if (st || fv__file_exists(s->env, path))
        return st ? st : fv__st_index_open(&s->shard, &s->shards, s->env, path, e);
    return fv_fail(e, FV_EIO,
                   "%s: neither model.safetensors nor model.safetensors.index.json in it", dir);
}

/* A directory, an index, a file, or the name of a model in the Hugging Face cache. */
fv_status fv_st_open(fv_st **out, const fv_env *env, const char *path, fv_err *e)
{
    char found[FV_PATH];
    *out = NULL;
    fv_status st = fv__hub_find(found, env, path, e);
    if (st) return st;
    path = found;
    fv_st *s = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    s->env = env;
    s->path = fv__strdup(env, path);
    if (!s->path)
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    else if (fv__is_dir(env, path))
        st = open_dir(s, path, e);
    else if (fv__ends_with(path, ".json"))
        st = fv__st_index_open(&s->shard, &s->shards, env, path, e);
    else
        st = open_one(s, path, e);
    if (st) {
        fv_st_close(s);
        return st;
    }
    for (int i = 0; i < s->shards; i++) s->count += (int)s->shard[i].plan.count;
    *out = s;
    return FV_OK;
}

void fv_st_close(fv_st *s)
{
    if (!s) return;
    const fv_env *env = s->env;
    fv__st_shards_free(env, s->shard, s->shards);
    if (s->path) fv__free(env, s->path, strlen(s->path) + 1);
    fv__free(env, s, sizeof *s);
}

/* Pages of a tensor that was read once need not stay: the model has its numbers elsewhere now. */
void fv__st_forget(const fv_st *s, const void *data, size_t bytes)
{
    const fv_io *io = fv__io(s->env);
    if (io->advise_unused) io->advise_unused(io->self, data, bytes);
}

/* ---- looking ---- */

int fv_st_count(const fv_st *s) { return s->count; }

/* The plan was checked against the file's size, so begin and bytes lie inside the mapping. */
static fv_st_info info(const fv_st_shard *x, const fv_st_entry *t)
{
    fv_st_info i = {.name = x->plan.text + t->name,
                    .dtype_name = fv__kinds[t->kind].plain,
                    .shape = fv__st_shape(t)};
    fv__shape_count(&i.count, &i.shape);
    i.bytes = fv__st_bytes(t);
    i.data = x->file.data + t->begin;
    return i;
}

fv_st_info fv_st_at(const fv_st *s, int i)
{
    const fv_st_shard *x = s->shard;
    for (; i >= (int)x->plan.count; x++) i -= (int)x->plan.count;
    return info(x, &x->plan.entry[i]);
}

/* Two at a time, so that no list is needed. */
static const char *nearest(const fv_st *s, const char *name)
{
    const char *best = NULL;
    for (int i = 0; i < s->count && i < 20000; i++) {
        const char *list[] = {best ? best : "", fv_st_at(s, i).name, NULL};
        best = fv__closest(name, best ? list : list + 1);
    }
    return best;
}

fv_status fv_st_find(const fv_st *s, const char *name, fv_st_info *out, fv_err *e)
{
    for (int i = 0; i < s->shards; i++) {
        const fv_st_entry *t = fv__st_plan_find(&s->shard[i].plan, name);
        if (!t) continue;
        *out = info(&s->shard[i], t);
        return FV_OK;
    }
    if (!e) return FV_EARG;
    const char *suggestion = nearest(s, name);
    if (suggestion)
        return fv_fail(e, FV_EARG, "%s: no tensor \"%.100s\" in it; did you mean \"%.100s\"?",
                       s->path, name, suggestion);
    if (!s->count)
        return fv_fail(e, FV_EARG, "%s: no tensor \"%.100s\" in it; it has none at all", s->path,
                       name);
    return fv_fail(e, FV_EARG,
                   "%s: no tensor \"%.100s\" in it; it has %d, from \"%.80s\" to \"%.80s\"",
                   s->path, name, s->count, fv_st_at(s, 0).name, fv_st_at(s, s->count - 1).name);
}

/* Metadata lies behind the names as key, value, key, value, each ending in NUL. */
const char *fv_st_meta(const fv_st *s, const char *key)
{
    for (int i = 0; i < s->shards; i++) {
        const fv_st_plan *p = &s->shard[i].plan;
        for (size_t at = p->meta; at < p->meta_end;) {
            const char *k = p->text + at, *value = k + strlen(k) + 1;
            if (!strcmp(k, key)) return value;
            at = (size_t)(value + strlen(value) + 1 - p->text);
        }
    }
    return NULL;
}

/* ---- reading ---- */

/* Floats never become integers: that would cut them off in silence. */
static fv_status readable(const fv_st *s, const fv_st_info *t, fv_dtype to, fv_kind *kind,
                          fv_err *e)
{
    int k = 0;
    while (k < FV_KINDS && strcmp(fv__kinds[k].plain, t->dtype_name)) k++;
    *kind = (fv_kind)k;
    if (k == FV_KINDS || !fv__kind_readable(*kind))
        return fv_fail(e, FV_EDTYPE, "%s: tensor \"%.100s\": %s is not read", s->path, t->name,
                       t->dtype_name);
    if (to > FV_U8 || (fv__kind_float(*kind) && (to == FV_I32 || to == FV_U8)))
        return fv_fail(e, FV_EDTYPE, "%s: tensor \"%.100s\": %s cannot be read as %s", s->path,
                       t->name, t->dtype_name,
                       to == FV_I32  ? "i32"
                       : to == FV_U8 ? "u8"
                                     : "packed weights");
    return FV_OK;
}

/* n elements from `at` on; a number that the destination cannot hold is an error with its place. */
fv_status fv__st_read_part(const fv_st *s, const fv_st_info *t, int64_t at, int64_t n, void *out,
                           fv_dtype to, fv_err *e)
{
    static const char *const names[] = {[FV_F32] = "f32", [FV_F64] = "f64", [FV_BF16] = "bf16",
                                        [FV_F16] = "f16", [FV_I32] = "i32", [FV_U8] = "u8"};
    fv_kind k;
    fv_status st = readable(s, t, to, &k, e);
    if (st) return st;
    int64_t done = fv__convert(out, to, (const char *)t->data + at * (fv__kinds[k].bits / 8), k, n);
    if (done == n) return FV_OK;
    return fv_fail(e, FV_ENUMERIC, "%s: tensor \"%.100s\": the %s at %s cannot be held in %s",
                   s->path, t->name, t->dtype_name, fv__element(&t->shape, at + done).s, names[to]);
}

fv_status fv_st_read(const fv_st *s, const fv_st_info *t, void *out, fv_dtype to, int64_t n,
                     fv_err *e)
{
    if (n == t->count) return fv__st_read_part(s, t, 0, n, out, to, e);
    return fv_fail(e, FV_ESHAPE, "%s: tensor \"%.100s\" has %lld elements where %lld are wanted",
                   s->path, t->name, (long long)t->count, (long long)n);
}
