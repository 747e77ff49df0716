/* device.c - opening a device by name, dtypes, and what every stream has. */
#include <stdio.h>

#include "backend/backends.h"
#include "core.h"
#include "fovea/info.h"

/* ---- dtypes ---- */

static const struct {
    const char *name;
    size_t size;
} dtypes[FV_DTYPES] = {
    [FV_F32] = {"f32", 4}, [FV_F64] = {"f64", 8}, [FV_BF16] = {"bf16", 2},
    [FV_F16] = {"f16", 2}, [FV_I32] = {"i32", 4}, [FV_U8] = {"u8", 1},
    [FV_Q8] = {"q8", 0},   [FV_Q4] = {"q4", 0},   [FV_I8] = {"int8", 0},
};

const char *fv_dtype_name(fv_dtype t) { return (unsigned)t < FV_DTYPES ? dtypes[t].name : "?"; }

size_t fv_dtype_size(fv_dtype t) { return (unsigned)t < FV_DTYPES ? dtypes[t].size : 0; }

size_t fv_dtype_row(fv_dtype t, int64_t n)
{
    size_t blocks = (size_t)((n + 31) / 32), runs = (size_t)((n + 4095) / 4096);
    switch (t) {
    case FV_Q8: return blocks * (sizeof(float) + 32);
    case FV_Q4: return blocks * (sizeof(float) + 16);
    case FV_I8: return blocks * 32 + runs * sizeof(float);
    default: return (size_t)n * fv_dtype_size(t);
    }
}

bool fv_dtype_parse(fv_dtype *out, const char *name)
{
    for (int i = 0; i < FV_DTYPES; i++)
        if (!strcmp(dtypes[i].name, name)) {
            *out = (fv_dtype)i;
            return true;
        }
    return false;
}

/* ---- devices ---- */

fv_status fv_device_open(fv_device **out, const char *name, fv_device_opt opt, fv_err *e)
{
    *out = NULL;
    if (!name) name = "cpu";
    if (opt.threads < 0 || opt.threads > 4096)
        return fv_fail(e, FV_EARG, "device %s: %d threads, expected 0 to 4096", name, opt.threads);
    bool cuda = !strncmp(name, "cuda", 4) && (!name[4] || name[4] == ':');
    if (!cuda && strcmp(name, "cpu"))
        return fv_fail(e, FV_EDEVICE, "device %s: unknown, expected cpu or cuda", name);

    fv_device *d = fv__alloc(opt.env, sizeof *d);
    if (!d) return fv_fail(e, FV_ENOMEM, "device %s: out of memory", name);
    if (opt.env) d->env = *opt.env;
    fv_status st = cuda ? fv__cuda_open(d, name, e) : fv__cpu_open(d, opt, e);
    if (st) {
        fv__free(opt.env, d, sizeof *d);
        return st;
    }
    *out = d;
    return FV_OK;
}

void fv_device_close(fv_device *d)
{
    if (!d) return;
    fv_env env = d->env;
    d->backend->close(d);
    fv__free(&env, d, sizeof *d);
}

bool fv__device_is_host(const fv_device *d) { return !strcmp(d->backend->name, "cpu"); }
int fv_cuda_devices(char (*lines)[128], int most, fv_err *e)
{
    return fv__cuda_list(lines, most, e);
}

const char *fv_device_name(const fv_device *d) { return d->backend->name; }
const char *fv_device_level(const fv_device *d) { return d->level; }
int fv_device_threads(const fv_device *d) { return d->threads; }
int fv_device_choices(const fv_device *d, char (*lines)[160], int max)
{
    return d->backend->choices ? d->backend->choices(d, lines, max) : 0;
}
const fv_env *fv_device_env(const fv_device *d) { return &d->env; }

fv_desc_text fv__memory_left(fv_device *d)
{
    fv_desc_text text = {0};
    size_t left = 0, all = 0;
    if (d->backend->memory) d->backend->memory(d, &left, &all);
    if (all)
        snprintf(text.s, sizeof text.s, ", %zu of %zu bytes are left on the device", left, all);
    else if (d->backend->memory)
        snprintf(text.s, sizeof text.s, ", device %s does not answer", d->backend->name);
    return text;
}

/* ---- streams ---- */

fv_status fv__stream_open(fv_stream *s, fv_device *d, int threads, fv_err *e)
{
    *s = (fv_stream){.dev = d, .threads = threads > 0 ? threads : d->threads};
    return d->backend->stream_open ? d->backend->stream_open(s, e) : FV_OK;
}

void fv__stream_close(fv_stream *s)
{
    if (!s->dev) return;
    const fv_backend *b = s->dev->backend;
    b->sync(s);
    if (s->scratch) b->release(s->dev, s->scratch, s->scratch_bytes);
    if (b->stream_close) b->stream_close(s);
    *s = (fv_stream){0};
}

void *fv_stream_scratch(fv_stream *s, size_t bytes)
{
    if (bytes <= s->scratch_bytes) return s->scratch;
    const fv_backend *b = s->dev->backend;
    /* a little more, so that slowly growing shapes do not come back each time */
    size_t size = bytes + bytes / 4;
    /* Whole huge pages: nothing is read again as often as workspace. */
    if (size > FV__HUGE_PAGE / 2) size = (size + FV__HUGE_PAGE - 1) / FV__HUGE_PAGE * FV__HUGE_PAGE;
    b->sync(s);
    if (s->scratch) b->release(s->dev, s->scratch, s->scratch_bytes);
    s->scratch = b->alloc(s->dev, size);
    s->scratch_bytes = s->scratch ? size : 0;
    if (!s->scratch)
        fv_stream_fail(s, FV_ENOMEM, "out of memory: %zu bytes of workspace%s", size,
                       fv__memory_left(s->dev).s);
    return s->scratch;
}

void fv_stream_fail(fv_stream *s, fv_status code, const char *fmt, ...)
{
    if (s->err.code) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->err.text, sizeof s->err.text, fmt, ap);
    va_end(ap);
    s->err.code = code;
}
