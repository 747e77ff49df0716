/* index.c - model.safetensors.index.json: which shard holds which tensor.
 *
 * {"metadata": {...}, "weight_map": {"tensor": "shard.safetensors", ...}}.  Shards are plain names
 * of files beside the index.  Every tensor of the map must be in its shard, and every tensor of a
 * shard must be in the map, once. */
#include <stdio.h>

#include "base/json/reader.h"
#include "store/store.h"

#define MAX_SHARDS 1024
#define LONGEST 1024        /* bytes of a tensor's name */
#define LARGEST (64u << 20) /* bytes of an index */

/* The index is read where it lies, twice: for the names of shards, and once these are open for
 * the tensors.  A table of both in between was the alternative; it would hold every name a
 * second time. */
typedef struct shard_map {
    fv__json index;
    fv__jval map; /* the weight_map */
    fv_err *e;
    fv_status st; /* the first failure */
    const fv_env *env;
    fv__str *name; /* of shards, without escapes, in order of names */
    size_t name_bytes;
    int shards;
    fv_st_shard *x;
    uint8_t **seen; /* for each shard one byte per tensor */
} shard_map;

/* Names in messages are cut, as an index may hold anything. */
static int shown(fv__str s) { return (int)(s.n < 120 ? s.n : 120); }

/* Keeps the first failure; false, so that a walk ends with it. */
static bool fail(shard_map *m, fv_status code, const char *what, fv__str name)
{
    if (!m->st)
        m->st = fv_fail(m->e, code, "%s: \"%.*s\": %s", m->index.file, shown(name), name.s, what);
    return false;
}

/* ---- which shards ---- */

static int compare(fv__str a, fv__str b)
{
    int order = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

/* Place of the name among the shards, or where it belongs: negative, one's complement. */
static int shard_of(const shard_map *m, fv__str name)
{
    int from = 0, to = m->shards;
    while (from < to) {
        int mid = (from + to) / 2, order = compare(name, m->name[mid]);
        if (!order) return mid;
        if (order < 0)
            to = mid;
        else
            from = mid + 1;
    }
    return ~from;
}

/* A plain file name: an index must not reach outside of its directory. */
static bool check_name(shard_map *m, fv__str r)
{
    static const char end[] = ".safetensors";
    size_t n = sizeof end - 1;
    if (r.n <= n || r.n > 255 || memcmp(r.s + r.n - n, end, n))
        return fail(m, FV_EFORMAT, "a shard must be a .safetensors file", r);
    if (memchr(r.s, '\\', r.n) || memchr(r.s, '/', r.n) || r.s[0] == '.')
        return fail(m, FV_EFORMAT, "a shard must be a file beside the index", r);
    return true;
}

/* Shards stay in order of names, whatever the order in the index: so tensors have one numbering. */
static bool note_shard(shard_map *m, fv__str tensor, fv__str shard)
{
    (void)tensor;
    if (!check_name(m, shard)) return false;
    int at = shard_of(m, shard);
    if (at >= 0) return true;
    at = ~at;
    if (m->shards == MAX_SHARDS) return fail(m, FV_EFORMAT, "more than 1024 shards", shard);
    void *p = m->name;
    if (!fv__grow(m->env, &p, &m->name_bytes, (size_t)(m->shards + 1) * sizeof *m->name))
        return fail(m, FV_ENOMEM, "out of memory", shard);
    m->name = p;
    memmove(m->name + at + 1, m->name + at, (size_t)(m->shards - at) * sizeof *m->name);
    m->name[at] = shard;
    m->shards++;
    return true;
}

/* ---- which tensors ---- */

/* Each tensor must be in the shard that is named for it, and in the index once. */
static bool mark_tensor(shard_map *m, fv__str tensor, fv__str shard)
{
    char name[LONGEST];
    if (tensor.n >= LONGEST) return fail(m, FV_EFORMAT, "a name too long", tensor);
    name[fv__json_unescape(name, tensor.s, tensor.n)] = 0;
    int at = shard_of(m, shard);
    const fv_st_plan *p = &m->x[at].plan;
    const fv_st_entry *t = fv__st_plan_find(p, name);
    if (!t) return fail(m, FV_EFORMAT, "not in the shard the index gives", tensor);
    if (m->seen[at][t - p->entry]++)
        return fail(m, FV_EFORMAT, "stands twice in the index", tensor);
    return true;
}

static bool bad_at(shard_map *m, size_t at, const char *what)
{
    if (!m->st) m->st = fv__json_bad_at((fv__jval){.j = &m->index, .at = at}, m->e, "%s", what);
    return false;
}

/* Each member of weight_map, which must be a text. */
static bool walk_map(shard_map *m, bool (*each)(shard_map *m, fv__str tensor, fv__str shard))
{
    for (fv__jiter it = fv__json_iter(m->map); fv__json_next(&it);) {
        fv__jval v = {.j = &m->index, .at = it.value};
        fv__str tensor = {m->index.s + it.key, it.key_end - it.key};
        if (fv__json_kind(v) != '"') return bad_at(m, it.value, "the name of a shard was expected");
        if (!each(m, tensor, fv__json_raw(v))) return false;
    }
    return true;
}

/* Other members (metadata.total_size) are notes. */
static bool find_map(shard_map *m)
{
    fv__jval root;
    m->st = fv__json_open(&root, &m->index, m->e);
    if (m->st) return false;
    if (fv__json_kind(root) != '{') return bad_at(m, root.at, "an object was expected");
    for (fv__jiter it = fv__json_iter(root); fv__json_next(&it);) {
        fv__str key = {m->index.s + it.key, it.key_end - it.key};
        if (!fv__str_is(key, "weight_map")) continue;
        if (m->map.j) return bad_at(m, it.key, "weight_map stands twice");
        m->map = (fv__jval){.j = &m->index, .at = it.value};
    }
    if (!m->map.j) return bad_at(m, root.at, "no weight_map in it");
    return fv__json_kind(m->map) == '{' || bad_at(m, m->map.at, "an object was expected");
}

/* ---- all together ---- */

static fv_status no_memory(shard_map *m)
{
    return m->st = fv_fail(m->e, FV_ENOMEM, "%s: out of memory", m->index.file);
}

static fv_status open_shards(shard_map *m, const char *path)
{
    char file[FV_PATH];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof file - 256) return fv_fail(m->e, FV_EIO, "%.200s...: path too long", path);
    memcpy(file, path, n);
    for (int i = 0; i < m->shards; i++) {
        fv_status st = FV_OK;
        memcpy(file + n, m->name[i].s, m->name[i].n);
        file[n + m->name[i].n] = 0;
        if (!fv__file_exists(m->env, file))
            st = fv_fail(m->e, FV_EIO, "%s: its shard %s is missing", path, file + n);
        if (!st) st = fv__st_shard_open(&m->x[i], m->env, file, m->e);
        if (st) return st;
        for (uint32_t k = 0; k < m->x[i].plan.count; k++) m->x[i].plan.entry[k].shard = (uint16_t)i;
    }
    return FV_OK;
}

/* Both directions: a tensor the index names must be there, and one it does not name must not be,
 * since the same name in two shards would leave open which one is meant. */
static fv_status check_shards(shard_map *m)
{
    for (int i = 0; i < m->shards; i++) {
        uint32_t n = m->x[i].plan.count;
        m->seen[i] = fv__alloc(m->env, n);
        if (n && !m->seen[i]) return no_memory(m);
    }
    if (!walk_map(m, mark_tensor)) return m->st;
    for (int i = 0; i < m->shards; i++) {
        const fv_st_plan *p = &m->x[i].plan;
        for (uint32_t k = 0; k < p->count; k++)
            if (!m->seen[i][k])
                return fv_fail(m->e, FV_EFORMAT,
                               "%s: %.*s holds \"%.100s\", which the index does not place there",
                               m->index.file, shown(m->name[i]), m->name[i].s,
                               p->text + p->entry[k].name);
    }
    return FV_OK;
}

static fv_status read_index(shard_map *m, fv_st_shard **x, int *n, const char *path)
{
    if (!find_map(m) || !walk_map(m, note_shard)) return m->st;
    if (!m->shards) return fv_fail(m->e, FV_EFORMAT, "%s: its weight_map is empty", path);
    m->seen = fv__alloc(m->env, (size_t)m->shards * sizeof *m->seen);
    *x = m->x = fv__alloc(m->env, (size_t)m->shards * sizeof *m->x);
    *n = m->x ? m->shards : 0;
    for (int i = 0; i < *n; i++) m->x[i].file.env = m->x[i].plan.env = m->env;
    if (!m->seen || !m->x) return no_memory(m);
    fv_status st = open_shards(m, path);
    return st ? st : check_shards(m);
}

fv_status fv__st_index_open(fv_st_shard **x, int *n, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    fv_status st = fv__file_read(&f, env, path, LARGEST, e);
    if (st) return st;
    shard_map m = {.index = {.s = f.data, .n = f.size, .file = path}, .e = e, .env = env};
    st = f.size > LARGEST ? fv_fail(e, FV_EFORMAT, "%s: too large for an index", path)
                          : read_index(&m, x, n, path);
    for (int i = 0; i < m.shards && m.seen; i++)
        fv__free(env, m.seen[i], m.x ? m.x[i].plan.count : 0);
    fv__free(env, m.seen, (size_t)m.shards * sizeof *m.seen);
    fv__free(env, m.name, m.name_bytes);
    fv__file_close(&f);
    return st;
}
