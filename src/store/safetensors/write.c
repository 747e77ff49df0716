/* write.c - safetensors files out.
 *
 * All sizes are known from the shapes, so the header comes first and the data streams behind it, a
 * block at a time.  Order, header text and padding are those of the reference implementation
 * (largest dtype first, then by name), so the same tensors give the same bytes there and here.
 * With shards, tensors are dealt out by name, the index is written last, and the files it replaces
 * are removed after it. */
#include <stdio.h>

#include "store/store.h"

#define BLOCK 65536 /* elements at a time */

/* Tensors are fetched, converted and written a block at a time: memory does not grow with the
 * model. */
typedef struct writer {
    const fv_env *env;
    const fv_st_item *items;
    fv_st_save_opt opt;
    uint32_t *order; /* of items: by name, and within one file as the format wants it */
    uint64_t *bytes; /* of each item */
    char *in, *out;  /* a block fetched, and converted */
    int n;
    fv_err *e;
} writer;

static fv_kind kind_of(fv_dtype t)
{
    static const fv_kind kinds[] = {[FV_F32] = FV_K_F32, [FV_F64] = FV_K_F64, [FV_BF16] = FV_K_BF16,
                                    [FV_F16] = FV_K_F16, [FV_I32] = FV_K_I32, [FV_U8] = FV_K_U8};
    return t <= FV_U8 ? kinds[t] : FV_KINDS;
}

/* Place of a dtype in the reference's order. */
static int rank_of(fv_dtype t)
{
    static const int rank[] = {
        [FV_U8] = 0, [FV_F16] = 1, [FV_BF16] = 2, [FV_I32] = 3, [FV_F32] = 4, [FV_F64] = 5};
    return rank[t];
}

static int by_name(const void *a, const void *b, void *user)
{
    const fv_st_item *items = user;
    return strcmp(items[*(const uint32_t *)a].name, items[*(const uint32_t *)b].name);
}

/* As the reference writes files: the largest element sizes first, names within one size in
 * order. */
static int by_format(const void *a, const void *b, void *user)
{
    const fv_st_item *items = user;
    int ra = rank_of(items[*(const uint32_t *)a].dtype),
        rb = rank_of(items[*(const uint32_t *)b].dtype);
    return ra != rb ? rb - ra : by_name(a, b, user);
}

/* ---- one file ---- */

/* Names as JSON text. */
static void add_text(fv_buf *b, const char *s)
{
    fv__buf_str(b, "\"");
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            fv__buf_fmt(b, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            fv__buf_fmt(b, "\\u%04x", (unsigned)*s);
        else
            fv__buf_add(b, s, 1);
    fv__buf_str(b, "\"");
}

/* Padded with blanks to a multiple of 8: with the largest dtypes first every tensor is then
 * aligned to its own element size in the file, and can be used where it is mapped. */
static void add_header(writer *w, fv_buf *b, const uint32_t *order, int n)
{
    static const char *const normal[][2] = {{"format", "pt"}, {NULL, NULL}};
    const char *const(*meta)[2] = w->opt.meta ? w->opt.meta : normal;
    uint64_t at = 0;
    fv__buf_add(b, "\0\0\0\0\0\0\0\0", 8); /* its length, once known */
    fv__buf_str(b, "{\"__metadata__\":{");
    for (int i = 0; meta[i][0]; i++) {
        if (i) fv__buf_str(b, ",");
        add_text(b, meta[i][0]);
        fv__buf_str(b, ":");
        add_text(b, meta[i][1]);
    }
    fv__buf_str(b, "}");
    for (int i = 0; i < n; i++) {
        const fv_st_item *t = &w->items[order[i]];
        fv__buf_str(b, ",");
        add_text(b, t->name);
        fv__buf_fmt(b, ":{\"dtype\":\"%s\",\"shape\":[", fv__kinds[kind_of(t->dtype)].name);
        for (int k = 0; k < t->shape.n; k++)
            fv__buf_fmt(b, k ? ",%lld" : "%lld", (long long)t->shape.d[k]);
        uint64_t end = at + w->bytes[order[i]];
        fv__buf_fmt(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                    (unsigned long long)end);
        at = end;
    }
    fv__buf_str(b, "}");
    while (b->len % 8 && !b->failed) fv__buf_str(b, " ");
    uint64_t length = b->len - 8;
    for (int i = 0; i < 8 && !b->failed; i++) b->data[i] = (char)(length >> 8 * i);
}

/* Narrowing that would make an infinity stops here, with the element's indices: a checkpoint
 * that was written is one that can be read back. */
static fv_status add_data(writer *w, fv_out *o, const fv_st_item *t)
{
    fv_kind from = kind_of(t->from);
    size_t width = (size_t)fv__kinds[from].bits / 8,
           stored = (size_t)fv__kinds[kind_of(t->dtype)].bits / 8;
    int64_t n;
    fv__shape_count(&n, &t->shape);
    for (int64_t at = 0; at < n && !o->rc; at += BLOCK) {
        int64_t m = n - at < BLOCK ? n - at : BLOCK;
        const void *src = t->data ? (const char *)t->data + (size_t)at * width : w->in;
        fv_status st = t->data ? FV_OK : w->opt.fetch(w->opt.user, t, at, m, w->in, w->e);
        if (st) return st;
        int64_t done = t->from == t->dtype ? m : fv__convert(w->out, t->dtype, src, from, m);
        if (done < m)
            return fv_fail(w->e, FV_ENUMERIC, "%s: the %s at %s cannot be held in %s", t->name,
                           fv__kinds[from].plain, fv__element(&t->shape, at + done).s,
                           fv__kinds[kind_of(t->dtype)].plain);
        fv__out_add(o, t->from == t->dtype ? src : w->out, (size_t)m * stored);
    }
    return FV_OK;
}

static fv_status write_file(writer *w, const char *path, uint32_t *order, int n)
{
    fv_out o;
    fv_buf header = {.env = w->env};
    fv__heapsort(order, (size_t)n, sizeof *order, by_format, (void *)(uintptr_t)w->items);
    add_header(w, &header, order, n);
    fv_status st = header.failed ? fv_fail(w->e, FV_ENOMEM, "%s: out of memory", path)
                                 : fv__out_open(&o, w->env, path, w->e);
    if (st) {
        fv__buf_free(&header);
        return st;
    }
    fv__out_add(&o, header.data, header.len);
    fv__buf_free(&header);
    for (int i = 0; i < n && !st; i++) st = add_data(w, &o, &w->items[order[i]]);
    if (!st) return fv__out_commit(&o, w->e);
    fv__out_abandon(&o);
    return st;
}

/* ---- several ---- */

/* Where the shard that begins at item `from` ends: as many as fit, at least one. */
static int shard_end(const writer *w, int from)
{
    uint64_t size = w->bytes[w->order[from]];
    int to = from + 1;
    while (to < w->n && size + w->bytes[w->order[to]] <= w->opt.shard_bytes)
        size += w->bytes[w->order[to++]];
    return to;
}

static int count_shards(const writer *w)
{
    int shards = 0;
    for (int at = 0; at < w->n; at = shard_end(w, at)) shards++;
    return shards;
}

/* path without ".safetensors", then the shard's number. */
static fv_status shard_path(char out[FV_PATH], const char *path, int i, int of, fv_err *e)
{
    int stem = (int)(strlen(path) - strlen(".safetensors"));
    if ((size_t)snprintf(out, FV_PATH, "%.*s-%05d-of-%05d.safetensors", stem, path, i, of) <
        FV_PATH)
        return FV_OK;
    return fv_fail(e, FV_EIO, "%.200s...: path too long", path);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static fv_status write_shards(writer *w, const char *path, const char *index, int shards)
{
    char file[FV_PATH];
    fv_buf map = {.env = w->env};
    uint64_t total = 0;
    fv_status st = FV_OK;
    for (int i = 0; i < w->n; i++) total += w->bytes[i];
    fv__buf_fmt(&map, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
                (unsigned long long)total);
    for (int at = 0, end, i = 1; at < w->n && !st; at = end, i++) {
        end = shard_end(w, at);
        st = shard_path(file, path, i, shards, w->e);
        /* before write_file brings them into another order */
        for (int k = at; k < end && !st; k++) {
            fv__buf_str(&map, k ? ",\n    " : "\n    ");
            add_text(&map, w->items[w->order[k]].name);
            fv__buf_str(&map, ": ");
            add_text(&map, last_part(file));
        }
        if (!st) st = write_file(w, file, w->order + at, end - at);
    }
    fv__buf_str(&map, "\n  }\n}\n");
    if (!st && map.failed) st = fv_fail(w->e, FV_ENOMEM, "%s: out of memory", index);
    if (!st) st = fv__file_write(w->env, index, map.data, map.len, w->e);
    fv__buf_free(&map);
    return st;
}

/* ---- checks and order ---- */

static fv_status prepare(writer *w)
{
    for (int i = 0; i < w->n; i++) {
        const fv_st_item *t = &w->items[i];
        int64_t count;
        fv_kind to = kind_of(t->dtype), from = kind_of(t->from);
        if (to == FV_KINDS || from == FV_KINDS)
            return fv_fail(w->e, FV_EDTYPE, "%s: a packed dtype cannot be written", t->name);
        if (t->shape.n > FV_MAX_DIM || !fv__shape_count(&count, &t->shape) ||
            !fv__kind_bytes(&w->bytes[i], to, (uint64_t)count))
            return fv_fail(w->e, FV_ESHAPE, "%s: a shape that cannot be", t->name);
        if (count && !t->data && !w->opt.fetch)
            return fv_fail(w->e, FV_EARG, "%s: neither data nor a way to fetch it", t->name);
        if (!strcmp(t->name, "__metadata__") ||
            fv__utf8_check(t->name, strlen(t->name)) < strlen(t->name))
            return fv_fail(w->e, FV_EARG, "\"%.100s\" cannot be the name of a tensor", t->name);
        w->order[i] = (uint32_t)i;
    }
    fv__heapsort(w->order, (size_t)w->n, sizeof *w->order, by_name, (void *)(uintptr_t)w->items);
    for (int i = 1; i < w->n; i++)
        if (!by_name(&w->order[i - 1], &w->order[i], (void *)(uintptr_t)w->items))
            return fv_fail(w->e, FV_EARG, "tensor \"%.100s\" is given twice",
                           w->items[w->order[i]].name);
    return FV_OK;
}

/* What lay there before in the other form would be found first, or never again. */
static void remove_other(const writer *w, const char *path)
{
    const fv_io *io = fv__io(w->env);
    if (fv__file_exists(w->env, path)) io->unlink(io->self, path);
}

/* A model directory must not hold both model.safetensors and an index: readers prefer the
 * former. */
static fv_status save(writer *w, const char *path)
{
    char index[FV_PATH];
    fv_status st = prepare(w);
    if (st) return st;
    if ((size_t)snprintf(index, sizeof index, "%s.index.json", path) >= sizeof index)
        return fv_fail(w->e, FV_EIO, "%.200s...: path too long", path);
    int shards = w->opt.shard_bytes && w->n ? count_shards(w) : 1;
    st = shards > 1 ? write_shards(w, path, index, shards) : write_file(w, path, w->order, w->n);
    if (!st) remove_other(w, shards > 1 ? path : index);
    return st;
}

/* One block for everything: order, sizes, and two buffers as large as the longest item needs. */
static fv_status with_memory(writer *w, const char *path)
{
    int64_t longest = 0, count;
    for (int i = 0; i < w->n; i++)
        if (w->items[i].shape.n <= FV_MAX_DIM && fv__shape_count(&count, &w->items[i].shape) &&
            count > longest)
            longest = count;
    size_t block = (size_t)(longest < BLOCK ? longest : BLOCK) * sizeof(double),
           scratch_bytes = (size_t)w->n * (sizeof *w->bytes + sizeof *w->order);
    char *memory = fv__alloc(w->env, 2 * block + scratch_bytes);
    if (!memory && w->n) return fv_fail(w->e, FV_ENOMEM, "%s: out of memory", path);
    w->in = memory;
    w->out = memory + block;
    w->bytes = (uint64_t *)(void *)(memory + 2 * block);
    w->order = (uint32_t *)(void *)(w->bytes + w->n);
    fv_status st = save(w, path);
    fv__free(w->env, memory, 2 * block + scratch_bytes);
    return st;
}

fv_status fv_st_save(const fv_env *env, const char *path, const fv_st_item *items, int n,
                     fv_st_save_opt opt, fv_err *e)
{
    if (!fv__ends_with(path, ".safetensors"))
        return fv_fail(e, FV_EARG, "%s: the name must end in .safetensors", path);
    writer w = {.env = env, .items = items, .opt = opt, .n = n, .e = e};
    return with_memory(&w, path);
}
