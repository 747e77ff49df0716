/* series.h - what families of time series share: the scaling of a window, the loss.
 *
 * A window is (B,T,C): T values of each of C channels. */
#ifndef FV_MODEL_SERIES_H
#define FV_MODEL_SERIES_H

#include "model/part.h"

typedef enum fv__scaling { FV__SCALE_STD, FV__SCALE_MEAN, FV__SCALE_NONE } fv__scaling;

/* A window as a model sees it, x = (past - loc) / scale, and what scales forecasts back: loc and
 * scale (B,1,C). */
typedef struct fv__scaled {
    fv_tensor *x, *loc, *scale;
} fv__scaled;

/* past (B,T,C); observed U8 (B,T,C) or NULL: what is 0 there does not count. */
fv__scaled fv__series_scale(fv_ctx *c, fv__scaling how, fv_tensor *past, fv_tensor *observed);
/* y scale + loc: (B,H,C) -> (B,H,C) */
fv_tensor *fv__series_restore(fv_ctx *c, const fv__scaled *s, fv_tensor *y);

/* (B,T,C) -> (B,C,N,length): patches that begin `stride` time steps apart, the last one ending with
 * the window; values at the beginning that fill none do not count. */
fv_tensor *fv__series_patches(fv_ctx *c, fv_tensor *x, int64_t length, int64_t stride);
/* x (rows,D): sinusoids with mean 0 and deviation 1/10 over the whole table. */
void fv__series_sinusoids(float *x, int64_t rows, int64_t D);

/* A mask (U8) seen as s, as floats: 1 where it is 1. */
fv_tensor *fv__mask_floats(fv_ctx *c, fv_tensor *mask, fv_shape s);

/* A weight that channels share, at path (n 0), or one for each of n, at path.0, path.1, .. */
fv_lin *fv__channel_lins(fv_params *p, int n, int64_t in, int64_t out, float std, const char *path);
/* x (B,C,..,in) -> (B,C,..,out): all channels by the first weight, or each by its own. */
fv_tensor *fv__by_channel(fv_ctx *c, const fv_lin *l, bool shared, fv_tensor *x);

/* Raises and is false unless past is (B,T,C), and observed, where there is one, the same. */
bool fv__is_window(fv_ctx *c, const char *family, const fv_tensor *past, const fv_tensor *observed,
                   int64_t T, int64_t C);

/* Puts "prediction_outputs" (B,H,C) and, where `in` has future_values (B,H,C), the "loss": the
 * mean of the squared differences. */
void fv__put_forecast(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *y);

/* Whether config.json gives null for a key, which means "none" and not the default. */
bool fv__series_null(const fv_json *j, const char *key);
/* A whole number of the model's configuration, by its key. */
int64_t fv__series_setting(const fv_model *m, const char *key);

#endif
