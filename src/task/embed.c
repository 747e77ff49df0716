/* embed.c - a vector for each text: its tokens' states, averaged or the first one's, scaled to
 * length 1. */
#include <math.h>

#include "task.h"

typedef struct pooling {
    fv_pool pool;
    bool normal;
    float *out;
} pooling;

int64_t fv_task_width(const fv_task *t)
{
    static const char *const keys[] = {"hidden_size", "dim", "d_model", "n_embd", NULL};
    int64_t width = 0;
    for (int i = 0; keys[i] && !width; i++) width = fv__task_setting(t, keys[i]);
    return width;
}

static void scale_to_one(float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)y[i] * (double)y[i];
    double by = 1 / fmax(sqrt(sum), 1e-12);
    for (int64_t i = 0; i < n; i++) y[i] = (float)((double)y[i] * by);
}

static fv_status pool_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    const pooling *p = user;
    float *y = p->out + i * width;
    (void)e;
    for (int64_t j = 0; j < width; j++) {
        double sum = 0, most = -INFINITY;
        for (int64_t t = 0; t < s->n; t++) {
            double x = out[0][t * width + j];
            sum += x;
            most = x > most ? x : most;
        }
        y[j] = p->pool == FV_POOL_CLS ? out[0][j]
                                      : (float)(p->pool == FV_POOL_MAX ? most : sum / (double)s->n);
    }
    if (p->normal) scale_to_one(y, width);
    return FV_OK;
}

fv_status fv_task_embed(fv_task *t, const fv_text *texts, int64_t n, fv_embed_opt opt, float *out,
                        fv_err *e)
{
    pooling p = {.pool = opt.pool  ? opt.pool
                         : t->pool ? t->pool
                                   : FV_POOL_MEAN,
                 .normal = !opt.raw && !t->not_normal,
                 .out = out};
    fv_seq *seqs;
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &seqs, texts, n, e);
    fv_wanted w = {.names = {"last_hidden_state"},
                   .per_token = fv_task_width(t),
                   .fn = pool_row,
                   .user = &p};
    return st ? st : fv__task_run(t, seqs, n, &w, e);
}
