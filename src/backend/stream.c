/* stream.c - what the streams of every backend have: workspace that grows, and a sticky error.
 *
 * A stream belongs to one context.  Its scratch is one block that every kernel call may use and
 * none keeps: it grows by a quarter more than asked for and never shrinks, so a steady state
 * allocates nothing.  Kernels return nothing; what fails in one sticks to the stream and the
 * context picks it up. */
#include <stdarg.h>
#include <stdio.h>

#include "backend/stream.h"
#include "base/base.h"

fv__memory_text fv__memory_left(fv_device *d)
{
    fv__memory_text text = {0};
    size_t left = 0, all = 0;
    if (d->backend->memory) d->backend->memory(d, &left, &all);
    if (all)
        snprintf(text.s, sizeof text.s, ", %zu of %zu bytes are left on the device", left, all);
    else if (d->backend->memory)
        snprintf(text.s, sizeof text.s, ", device %s does not answer", d->backend->name);
    return text;
}

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

/* A second call in one kernel may move the first one's block: kernels ask once, for all they
 * need. Synchronises before it lets the old block go, since queued kernels may still use it. */
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

bool fv__ids_valid(fv_stream *s, const char *kernel, const int32_t *ids, int64_t n, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        fv_stream_fail(s, FV_EARG, "%s: id %d at index %lld is outside 0..%lld", kernel, ids[i],
                       (long long)i, (long long)vocab - 1);
        return false;
    }
    return true;
}
