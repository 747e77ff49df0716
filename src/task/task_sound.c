/* task_sound.c - sound files through a model, one after the other.
 *
 * To a model that takes input_features or input_values a text is the path of a sound file, as it is
 * the path of an image to a model of images (task_images.c).  Clips differ in length, so each goes
 * alone: nothing is padded, and a result depends on its clip only. */
#include "fovea/author/audio.h"
#include "fovea/author/family.h"
#include "task.h"

#define MOST_BYTES ((size_t)2 << 30) /* of standard input */

bool fv__family_hears(const fv_family *f)
{
    return fv_family_takes(f, "input_features") || fv_family_takes(f, "input_values");
}

bool fv__task_hears(const fv_task *t) { return fv_processor_sound_steps(t->processor) != NULL; }

/* A file of any format begins with one of these; raw samples do so with a chance of 2^-32. */
static bool is_sound_file(const fv_file *f)
{
    static const char *const heads[] = {"RIFF", "fLaC", "OggS", "FORM", "caff"};
    for (int i = 0; i < 5; i++)
        if (f->size >= 4 && !memcmp(f->data, heads[i], 4)) return true;
    return f->size >= 3 && !memcmp(f->data, "ID3", 3);
}

/* Raw samples, signed 16 bits, at the model's rate, where nothing says otherwise: what arecord and
 * ffmpeg -f s16le pipe. */
static fv_status read_stream(fv_clip *out, const fv_env *env, int rate, fv_err *e)
{
    fv_file f;
    fv_status st = fv__file_read(&f, env, "/dev/stdin", MOST_BYTES, e);
    if (st) return st;
    if (is_sound_file(&f))
        st = fv_clip_decode(out, env, f.data, f.size, "standard input", e);
    else
        st = fv_clip_pcm(out, env, f.data, f.size, rate, "standard input", e);
    fv__file_close(&f);
    return st;
}

fv_status fv__clip_at(fv_clip *out, const fv_env *env, const fv_text *x, int rate, fv_err *e)
{
    char path[FV_PATH];
    if (!x->n || x->n >= sizeof path || memchr(x->s, 0, x->n))
        return fv_fail(e, FV_EARG, "no path of a sound file");
    memcpy(path, x->s, x->n);
    path[x->n] = 0;
    if (!strcmp(path, "-")) return read_stream(out, env, rate, e);
    return fv_clip_open(out, env, path, e);
}

static fv_status failed(const fv_task *t, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
}

/* One clip's numbers through the model, and its outputs handed to w. */
static fv_status run_one(fv_task *t, int64_t i, const fv_clip *x, fv_shape s, const fv_wanted *w,
                         fv_err *e)
{
    fv_items in = {0}, out = {0};
    fv_shape batch = s.n == 1 ? FV_SHAPE(1, s.d[0]) : FV_SHAPE(1, s.d[0], s.d[1]);
    fv_ctx_reset(t->ctx, 0);
    fv_items_put(&in, fv_processor_sound_input(t->processor), fv_floats(t->ctx, x->data, batch));
    fv_model_forward(t->ctx, t->model, &in, &out);
    if (fv_ctx_status(t->ctx)) return failed(t, e);
    const float *mine[2] = {NULL, NULL};
    int64_t width = 0, rows = 0;
    for (int k = 0; k < 2 && w->names[k]; k++) {
        const fv_tensor *y = fv_items_get(&out, w->names[k]);
        if (!y) return fv_fail(e, FV_EARG, "%s gives no %s", fv_model_head(t->model), w->names[k]);
        float *host = fv__task_claim(t, (size_t)fv_len(y) * sizeof *host, e);
        if (!host) return FV_ENOMEM;
        if (fv_read(t->ctx, y, host, fv_len(y))) return failed(t, e);
        mine[k] = host;
        width = fv_cols(y);
        if (!k) rows = fv_len(y) / width;
    }
    return w->fn(w->user, i, &(fv_seq){.n = rows}, mine, width, e);
}

/* One clip at a time: lengths differ by much, and padding would change what some models hear. */
fv_status fv__task_run_sound(fv_task *t, const fv_text *paths, int64_t n, const fv_wanted *w,
                             fv_err *e)
{
    fv_clip raw = {0}, x = {0};
    fv_shape shape;
    fv_status st = FV_OK;
    int rate = fv_processor_sound_steps(t->processor)->rate;
    for (int64_t i = 0; !st && i < n; i++) {
        fv_mark mark = {t->host.at, t->host.used};
        st = fv__clip_at(&raw, &t->env, &paths[i], rate, e);
        if (!st) st = fv_processor_sound(t->processor, &x, &raw, &shape, "the clip", e);
        if (!st) st = run_one(t, i, &x, shape, w, e);
        fv__arena_rewind(&t->host, mark);
    }
    fv_clip_free(&raw);
    fv_clip_free(&x);
    return st;
}
