/* test_series.c - time series: files with dates, windows of parts, forecasts, back-tests. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

/* ---- files ---- */

static fv_series *open_text(const char *text, fv_series_opt o)
{
    fv_series *s;
    fv_err e;
    o.file = scratch_text("s.csv", text);
    check(fv_series_open(&s, NULL, &o, &e), &e);
    return s;
}

static void refused(const char *text, fv_series_opt o, const char *says)
{
    fv_series *s;
    fv_err e;
    o.file = scratch_text("s.csv", text);
    assert_int_not_equal(fv_series_open(&s, NULL, &o, &e), FV_OK);
    assert_null(s);
    if (!strstr(e.text, says)) fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void tables_are_read(void **state)
{
    (void)state;
    char date[40];
    fv_series *s = open_text("\xef\xbb\xbf"
                             "when;\"a\";b\r\n2024-02-28 23:00;1;-2.5\n\n"
                             "2024-02-29T00:00:00Z;2;1e3\n",
                             (fv_series_opt){0});
    assert_int_equal(fv_series_count(s), 2);
    assert_int_equal(fv_series_channels(s), 2);
    assert_string_equal(fv_series_name(s, 0), "a");
    assert_true(fv_series_values(s)[1] == -2.5f && fv_series_values(s)[3] == 1000);
    fv_series_date(s, 0, date, sizeof date);
    assert_string_equal(date, "2024-02-28 23:00:00");
    fv_series_date(s, 25, date, sizeof date); /* 24 hours behind the last */
    assert_string_equal(date, "2024-03-01 00:00:00");
    fv_series_close(s);

    s = open_text("x,t,y\n5,1,7\n6,2.5,8\n", (fv_series_opt){.date = "t", .columns = "y"});
    assert_int_equal(fv_series_channels(s), 1);
    assert_true(fv_series_values(s)[1] == 8);
    fv_series_date(s, 2, date, sizeof date);
    assert_string_equal(date, "4");
    fv_series_close(s);
}

static void gaps_are_filled_by_rule(void **state)
{
    (void)state;
    const char *text = "t,a\n1,\n2,4\n3,NaN\n5,\n6,8\n7,NA\n";
    const float previous[] = {4, 4, 4, 4, 8, 8}, linear[] = {4, 4, 5, 7, 8, 8};
    refused(text, (fv_series_opt){0}, ":2: column a is missing");
    fv_series *s = open_text(text, (fv_series_opt){.missing = FV_MISSING_PREVIOUS});
    assert_int_equal(fv_series_filled(s), 4);
    assert_memory_equal(fv_series_values(s), previous, sizeof previous);
    fv_series_close(s);
    s = open_text(text, (fv_series_opt){.missing = FV_MISSING_LINEAR});
    assert_memory_equal(fv_series_values(s), linear, sizeof linear);
    fv_series_close(s);
    refused("t,a\n1,\n", (fv_series_opt){.missing = FV_MISSING_LINEAR}, "has no value");
}

static void what_is_no_series_is_refused(void **state)
{
    (void)state;
    fv_series_opt plain = {0};
    refused("t,a\n2,1\n2,1\n", plain, ":3: 2 is not after");
    refused("t,a\n2024-01-02,1\n2024-01-01,1\n", plain, ":3: 2024-01-01 is not after");
    refused("t,a\n2024-13-02,1\n", plain, ":2: \"2024-13-02\" is no date");
    refused("t,a\n1,x\n", plain, ":2: column a: \"x\" is no number");
    refused("t,a\n1,2,3\n", plain, ":2: 3 fields, expected 2");
    refused("t,a\n", plain, "no row");
    refused("t\n1\n", plain, "no column beside the date");
    refused("t,a\n1,2\n", (fv_series_opt){.date = "day"}, "\"day\"");
    refused("t,a\n1,2\n", (fv_series_opt){.columns = "a,b"}, "1 of the 2 columns");
}

/* ---- windows ---- */

enum { MOMENTS = 40, CONTEXT = 6, HORIZON = 3 };

static const char *put_file(void)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "date,a,b\n");
    for (int i = 0; i < MOMENTS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%d,%d,%g\n", i, i, 10 * sin(i));
    return scratch_text("waves.csv", text);
}

static void open_feed(fv_feed *f, fv_processor **p, void *own, bool evaluation)
{
    static const char *const keys[] = {"context", "6", "horizon", "3", "parts", "20 10 10", NULL};
    const fv_objective *o = fv_objective_find("forecast");
    fv_err e;
    fv_data_report r = {0};
    fv_records from = {.file = put_file()};
    fv_fields_default(own, o->keys);
    for (int i = 0; keys[i]; i += 2)
        check(fv_fields_set(own, o->keys, keys[i], keys[i + 1], &e), &e);
    if (!*p) check(o->make_processor(p, NULL, own, &from, NULL, &e), &e);
    fv_feed_opt t = {.processor = *p, .options = own, .evaluation = evaluation};
    check(o->open(f, &t, &from, &r, &e), &e);
    assert_int_equal(o->config_value(own, *p, "context_length"), CONTEXT);
    assert_int_equal(o->config_value(own, *p, "num_input_channels"), 2);
    assert_int_equal(o->config_value(own, *p, "d_model"), -1);
}

/* Moments 0 to 19 train: mean 9.5, variance 399/12.  Validation begins at 20, with a context that
 * reaches back. */
static void windows_are_those_of_their_part(void **state)
{
    (void)state;
    char own[4096];
    fv_feed train, valid;
    fv_processor *p = NULL;
    fv_batch b = {0};
    fv_err e;
    const int32_t rows[] = {0, 11};
    const double deviation = sqrt(399 / 12.0);
    open_feed(&train, &p, own, false);
    assert_int_equal(train.count(train.self, 0), 20 - CONTEXT - HORIZON + 1);
    check(train.make(train.self, &b, rows, 2, (fv_data_rng){0}, &e), &e);
    const float *past = fv_batch_get(&b, "past_values")->data,
                *future = fv_batch_get(&b, "future_values")->data;
    assert_true(fabs((double)past[0] - (0 - 9.5) / deviation) < 1e-6);
    /* the last value of the last window is moment 19 */
    assert_true(fabs((double)future[(2 * HORIZON - 1) * 2] - (19 - 9.5) / deviation) < 1e-6);
    assert_true(b.labels == 2 * HORIZON * 2);
    fv_batch_clear(&b);
    open_feed(&valid, &p, own, true);
    assert_int_equal(valid.count(valid.self, 0), 10 - HORIZON + 1);
    check(valid.make(valid.self, &b, rows, 1, (fv_data_rng){.epoch = -1}, &e), &e);
    future = fv_batch_get(&b, "future_values")->data;
    assert_true(fabs((double)future[0] - (20 - 9.5) / deviation) < 1e-6);
    fv_batch_free(&b);
    fv_feed_close(&train);
    fv_feed_close(&valid);
    fv_processor_close(p);
}

/* ---- forecasts ---- */

/* A model that repeats the last value, with the processor of the training part. */
static const char *put_model(void)
{
    char own[4096];
    fv_model *m;
    fv_feed f;
    fv_processor *p = NULL;
    fv_err e;
    const char *dir = scratch("model");
    check(fv_model_new(&m, device,
                       "{\"model_type\": \"dlinear\", \"context_length\": 6, "
                       "\"prediction_length\": 3, \"num_input_channels\": 2}",
                       (fv_model_opt){0}, 1, &e),
          &e);
    for (int i = 0; i < fv_params_count(fv_model_params(m)); i++) {
        fv_tensor *t = fv_params_at(fv_model_params(m), i);
        float x[HORIZON * CONTEXT] = {0};
        for (int h = 0; h < HORIZON && fv_len(t) > HORIZON; h++) x[h * CONTEXT + CONTEXT - 1] = 1;
        check(fv_params_set(fv_model_params(m), t, x, fv_len(t), &e), &e);
    }
    check(fv_model_save(m, dir, FV_F32, &e), &e);
    open_feed(&f, &p, own, false);
    check(fv_processor_save(p, dir, &e), &e);
    fv_feed_close(&f);
    fv_processor_close(p);
    fv_model_free(m);
    return dir;
}

static void forecasts_and_back_tests(void **state)
{
    (void)state;
    fv_forecaster *f;
    fv_backtest all;
    fv_err e;
    float y[HORIZON * 2], low[HORIZON * 2], high[HORIZON * 2];
    fv_series *s;
    const char *dir = put_model();
    check(fv_series_open(&s, NULL, &(fv_series_opt){.file = put_file()}, &e), &e);
    check(fv_forecaster_open(&f, device, dir, (fv_model_opt){0}, &e), &e);
    check(fv_forecaster_next(f, s, y, &e), &e);
    for (int i = 0; i < HORIZON * 2; i++)
        assert_true(fabs((double)y[i] - (double)fv_series_values(s)[(MOMENTS - 1) * 2 + i % 2]) <
                    1e-3);

    fv_backtest_opt o = {.from = 30, .level = 0.5, .low = low, .high = high};
    check(fv_forecaster_backtest(f, s, o, &all, &e), &e);
    assert_int_equal(all.windows, 10 - HORIZON + 1);
    assert_true(fabs(all.mse - all.repeat_mse) < 1e-4 && fabs(all.mae - all.repeat_mae) < 1e-4);
    /* the first channel counts up: every forecast is off by its distance */
    for (int h = 0; h < HORIZON; h++) {
        assert_true(fabs((double)low[2 * h] - (h + 1)) < 1e-3);
        assert_true(fabs((double)high[2 * h] - (h + 1)) < 1e-3);
        assert_true(low[2 * h + 1] <= high[2 * h + 1]);
    }
    check(fv_forecast_plot(s, y, HORIZON, low, high, 12, scratch("p.svg"), &e), &e);
    assert_true(scratch_has("p.svg"));

    o.to = MOMENTS + 1;
    assert_int_equal(fv_forecaster_backtest(f, s, o, &all, &e), FV_EARG);
    o.to = 32;
    assert_int_equal(fv_forecaster_backtest(f, s, o, &all, &e), FV_EARG);
    fv_series_close(s);
    s = open_text("date,a,c\n1,2,3\n", (fv_series_opt){0});
    assert_int_equal(fv_forecaster_next(f, s, y, &e), FV_EARG);
    assert_non_null(strstr(e.text, "column 2 of the series is c, but the model's is b"));
    fv_series_close(s);
    fv_forecaster_close(f);
}

/* Sinusoids are computed where no file gives them; distributions are refused by name. */
static void a_new_model_has_its_positions(void **state)
{
    (void)state;
    fv_model *m;
    fv_err e;
    float x[5 * 4];
    double sum = 0, squares = 0;
    check(fv_model_new(&m, device,
                       "{\"model_type\": \"patchtst\", \"context_length\": 10, \"d_model\": 4, "
                       "\"patch_length\": 2, \"patch_stride\": 2, \"num_attention_heads\": 2}",
                       (fv_model_opt){0}, 1, &e),
          &e);
    fv_params *p = fv_model_params(m);
    fv_tensor *t = fv_params_find(p, "model.encoder.positional_encoder.position_enc");
    check(fv_params_get(p, t, x, 20, &e), &e);
    for (int i = 0; i < 20; i++) sum += (double)x[i];
    for (int i = 0; i < 20; i++) squares += (double)x[i] * (double)x[i];
    assert_true(fabs(sum) < 1e-5 && fabs(sqrt(squares / 19) - 0.1) < 1e-6);
    fv_model_free(m);
    assert_int_equal(fv_model_new(&m, device,
                                  "{\"model_type\": \"patchtst\", \"loss\": \"nll\", "
                                  "\"share_projection\": false}",
                                  (fv_model_opt){0}, 1, &e),
                     FV_EMISSING);
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_read),
        cmocka_unit_test(gaps_are_filled_by_rule),
        cmocka_unit_test(what_is_no_series_is_refused),
        cmocka_unit_test(windows_are_those_of_their_part),
        cmocka_unit_test(forecasts_and_back_tests),
        cmocka_unit_test(a_new_model_has_its_positions),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
