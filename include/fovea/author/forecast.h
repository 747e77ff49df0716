/* forecast.h - forecasts of time series with a trained model: from the last window of a file, and
 * back-testing over the windows of a part of it.
 *
 * All values are in the units of the file: a forecaster has the means and deviations that its model
 * was trained with (preprocessor_config.json), and needs none where there is no such file.  It
 * belongs to one thread. */
#ifndef FOVEA_AUTHOR_FORECAST_H
#define FOVEA_AUTHOR_FORECAST_H

#include "fovea/author/series.h"
#include "fovea/model.h"

typedef struct fv_forecaster fv_forecaster;

/* dir: a model that forecasts (PatchTSTForPrediction, DLinearForPrediction); others are refused. */
FV_API fv_status fv_forecaster_open(fv_forecaster **out, fv_device *d, const char *dir,
                                    fv_model_opt opt, fv_err *e);
FV_API void fv_forecaster_close(fv_forecaster *f); /* NULL is allowed */
FV_API int64_t fv_forecaster_context(const fv_forecaster *f);
FV_API int64_t fv_forecaster_horizon(const fv_forecaster *f);
FV_API int64_t fv_forecaster_channels(const fv_forecaster *f);

/* n windows past (n,context,channels) -> future (n,horizon,channels). */
FV_API fv_status fv_forecaster_run(fv_forecaster *f, const float *past, int64_t n, float *future,
                                   fv_err *e);
/* The horizon behind the last moment of a series, (horizon,channels); the columns must be the
 * model's. */
FV_API fv_status fv_forecaster_next(fv_forecaster *f, const fv_series *s, float *future, fv_err *e);

typedef struct fv_backtest_opt {
    int64_t from, to; /* time steps that are forecast; 0, 0: all that have a context before them */
    int64_t stride;   /* time steps from one window to the next; 0: 1 */
    double level;     /* of the intervals, in (0,1); 0: none are wanted */
    float *low,
        *high; /* (horizon,channels): quantiles of actual - forecast, where level is given */
    const double *levels; /* n_levels, each in (0,1): more quantiles */
    int n_levels;
    float *quantiles; /* (n_levels,horizon,channels), likewise of actual - forecast */
} fv_backtest_opt;

typedef struct fv_backtest {
    int64_t windows;
    double mse, mae;               /* of values as the model sees them: mean 0, deviation 1 */
    double unit_mae;               /* in the units of the file */
    double repeat_mse, repeat_mae; /* those of repeating the last value, as the model sees them */
} fv_backtest;

/* Forecasts all windows whose horizon lies in the range and compares. */
FV_API fv_status fv_forecaster_backtest(fv_forecaster *f, const fv_series *s, fv_backtest_opt opt,
                                        fv_backtest *out, fv_err *e);

/* Writes a picture (SVG): of each channel the last `history` time steps, the forecast
 * (horizon,channels) and, where low and high are not NULL, the interval forecast+low ..
 * forecast+high. */
FV_API fv_status fv_forecast_plot(const fv_series *s, const float *future, int64_t horizon,
                                  const float *low, const float *high, int64_t history,
                                  const char *path, fv_err *e);

#endif
