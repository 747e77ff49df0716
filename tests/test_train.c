/* test_train.c - training: a tiny corpus is learnt by heart, parts add up to the whole batch, and a run that was stopped
 * and resumed, with other threads, has the same bits as one that was not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "helper_device.h"
#include "fovea/backend.h"
#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "fovea/grammar.h"
#include "fovea/train.h"
#include "helper_files.h"

enum { N = 60 };

static fv_grammar_pair pair[N];
static const char *en[N], *fr[N];
static fv_tok *tok;
static fv_pairs *pairs;
static fv_feed feed;
static int32_t pad, eos;

static bool next_text(void *self, const char **text, size_t *len)
{
    int *i = self;
    if (*i == 2 * N) return false;
    *text = *i % 2 ? fr[*i / 2] : en[*i / 2];
    *len = strlen(*text);
    ++*i;
    return true;
}

static int make_corpus(void **state)
{
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
    fv_err e;
    int at = 0;
    for (int i = 0; i < N; i++) {
        fv_grammar_sentence(&pair[i], 5, (uint64_t)i);
        en[i] = pair[i].en, fr[i] = pair[i].fr;
    }
    fv_tok_train_opts o = {.kind = FV_TOK_BPE, .vocab = 400, .min_count = 1, .specials = specials};
    check(fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &at}, &o, &e), &e);
    pad = fv_tok_id(tok, "<pad>");
    eos = fv_tok_id(tok, "</s>");
    check(fv_pairs_make(&pairs, NULL, tok, en, fr, N, (fv_pairs_opt){.eos = eos}, NULL, &e), &e);
    check(fv_feed_pairs(&feed, pairs, pad, pad, true, &e), &e);
    return scratch_open(state);
}

static int free_corpus(void **state)
{
    fv_feed_close(&feed);
    fv_tok_close(tok);
    return scratch_close(state);
}

static fv_model *new_model(fv_device *d, double dropout)
{
    char config[700];
    fv_model *m;
    fv_err e;
    snprintf(config, sizeof config,
             "{\"model_type\": \"marian\", \"vocab_size\": %d, \"d_model\": 48, \"encoder_layers\": 1, \"decoder_layers\": 1, "
             "\"encoder_attention_heads\": 4, \"decoder_attention_heads\": 4, \"encoder_ffn_dim\": 96, \"decoder_ffn_dim\": 96, "
             "\"max_position_embeddings\": 64, \"activation_function\": \"relu\", \"scale_embedding\": true, \"dropout\": %g, "
             "\"attention_dropout\": %g, \"init_std\": 0.0, \"pad_token_id\": %d, \"eos_token_id\": %d, "
             "\"decoder_start_token_id\": %d}",
             fv_tok_size(tok), dropout, dropout, pad, eos, pad);
    check(fv_model_new(&m, d, config, (fv_model_opt){.train = true}, 3, &e), &e);
    return m;
}

static fv_train_job job_of(fv_device *d, fv_model *m, int64_t updates)
{
    fv_train_job j = {.model = m, .device = d, .train = &feed, .tok = tok};
    fv_fields_default(&j.opt, fv_train_fields);
    j.opt.updates = updates;
    j.opt.batch_tokens = 300;
    j.opt.lr = 5e-3f;
    j.opt.warmup = 20;
    j.opt.schedule = FV_CONSTANT;
    j.opt.smooth = 0;
    return j;
}

static fv_device *device_with(int threads)
{
    fv_device *d;
    fv_err e;
    check(fv_device_open(&d, test_device(), (fv_device_opt){.threads = threads}, &e), &e);
    return d;
}

static void a_tiny_corpus_is_learnt_by_heart(void **state)
{
    (void)state;
    if (test_brief()) skip(); /* runs of a few updates follow */
    fv_err e;
    fv_train_state s;
    fv_device *d = device_with(2);
    fv_model *m = new_model(d, 0);
    fv_train_job j = job_of(d, m, 400);
    check(fv_train(&j, &s, &e), &e);
    assert_true(s.loss < 0.05);

    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = 2;
    o.max_length = 60;
    o.start = o.pad = pad;
    o.eos = eos;
    o.forced_eos = -1;
    o.banned = NULL;
    o.n_banned = 0;
    int right = 0;
    for (int i = 0; i < N; i++) {
        int64_t len, want_len;
        const int32_t *source = fv_pairs_source(pairs, i, &len), *want = fv_pairs_target(pairs, i, &want_len);
        fv_generated g;
        check(fv_generate(&g, d, m, &source, &len, 1, &o, &e), &e);
        right += g.hyp[0].n == want_len && !memcmp(g.hyp[0].ids, want, (size_t)want_len * sizeof *want);
        fv_generated_free(&g);
    }
    assert_true(right >= N - 2);
    fv_model_free(m);
    fv_device_close(d);
}

/* Parameters after one update from all pairs at once and from parts, as far apart as rounding makes them. */
static void parts_of_a_batch_add_up(void **state)
{
    (void)state;
    float *w[2];
    int64_t n = 0;
    for (int parts = 0; parts < 2; parts++) {
        fv_err e;
        fv_train_state s;
        fv_device *d = device_with(1);
        fv_model *m = new_model(d, 0);
        fv_train_job j = job_of(d, m, 1);
        j.opt.batch_tokens = parts ? 300 : 100000;
        j.opt.accumulate = parts ? 1000 : 1;
        j.opt.warmup = 0;
        j.opt.clip = 0;
        j.opt.eps = 1e-4f; /* a first step of Adam is the sign of the gradient: a large eps keeps rounding small */
        check(fv_train(&j, &s, &e), &e);
        w[parts] = test_values(fv_model_params(m), &n);
        assert_non_null(w[parts]);
        fv_model_free(m);
        fv_device_close(d);
    }
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs((double)w[0][i] - (double)w[1][i]);
        if (off > most) most = off;
    }
    assert_true(most < 1e-5);
    free(w[0]);
    free(w[1]);
}

/* ---- resuming ---- */

static volatile int stop;

static void stop_at(void *user, const fv_train_state *s, const char *event)
{
    if (!strcmp(event, "step") && s->step == *(const int64_t *)user) stop = 1;
}

static float *trained(const char *dir, int threads, int64_t stop_after, bool resume, int64_t *n)
{
    fv_err e;
    fv_train_state s;
    fv_device *d = device_with(threads);
    fv_model *m = new_model(d, 0.2);
    fv_train_job j = job_of(d, m, 40);
    j.dir = dir;
    j.resume = resume;
    j.opt.save_every = 15;
    j.valid = &feed;
    j.opt.eval_every = 10;
    stop = 0;
    j.stop = &stop;
    j.progress = stop_at;
    j.user = &stop_after;
    check(fv_train(&j, &s, &e), &e);
    if (stop_after && !test_on_cpu()) /* a device is told of steps later, several at once */
        assert_in_range(s.step, stop_after, 39);
    else
        assert_int_equal(s.step, stop_after ? stop_after : 40);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    fv_model_free(m);
    fv_device_close(d);
    return w;
}

static void a_resumed_run_has_the_same_bits(void **state)
{
    (void)state;
    const char *one = scratch("one"), *two = scratch("two");
    int64_t n, m;
    float *whole = trained(one, 1, 0, false, &n);
    free(trained(two, 2, 17, false, &m));
    free(trained(two, 1, 27, true, &m));
    float *pieces = trained(two, 3, 0, true, &m);
    assert_int_equal(n, m);
    assert_memory_equal(whole, pieces, (size_t)n * sizeof *whole);
    free(whole);
    free(pieces);
}

static void a_loss_that_is_not_finite_stops_the_run(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    fv_device *d = device_with(1);
    fv_model *m = new_model(d, 0);
    fv_tensor *t = fv_params_find(fv_model_params(m), "model.shared.weight");
    int64_t n = fv_len(t);
    float *w = malloc((size_t)n * sizeof *w);
    check(fv_params_get(fv_model_params(m), t, w, n, &e), &e);
    for (int64_t i = 0; i < n; i++) w[i] = NAN;
    check(fv_params_set(fv_model_params(m), t, w, n, &e), &e);
    fv_train_job j = job_of(d, m, 5);
    float *before = test_values(fv_model_params(m), &n);
    assert_int_equal(fv_train(&j, &s, &e), FV_ENUMERIC);
    assert_non_null(strstr(e.text, "update 1"));
    assert_int_equal(s.step, 0);
    float *after = test_values(fv_model_params(m), &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *before); /* nor have updates that were under way changed anything */
    free(before);
    free(after);
    free(w);
    fv_model_free(m);
    fv_device_close(d);
}

static void schedules_rise_and_fall(void **state)
{
    (void)state;
    fv_train_opt o;
    fv_fields_default(&o, fv_train_fields);
    o.updates = 1000;
    o.warmup = 100;
    o.lr = 1;
    for (int k = FV_INVERSE_SQRT; k <= FV_CONSTANT; k++) {
        o.schedule = k;
        assert_true(fabs(fv_learning_rate(&o, 50) - 0.5) < 1e-12);
        assert_true(fabs(fv_learning_rate(&o, 100) - 1) < 1e-12);
    }
    o.schedule = FV_INVERSE_SQRT;
    assert_true(fabs(fv_learning_rate(&o, 400) - 0.5) < 1e-12);
    o.schedule = FV_COSINE;
    assert_true(fabs(fv_learning_rate(&o, 550) - 0.5) < 1e-12 && fabs(fv_learning_rate(&o, 1000)) < 1e-12);
    o.schedule = FV_LINEAR;
    assert_true(fabs(fv_learning_rate(&o, 550) - 0.5) < 1e-12 && fabs(fv_learning_rate(&o, 1000)) < 1e-12);
    o.lr_min = 0.25f;
    for (int k = FV_COSINE; k <= FV_LINEAR; k++) {
        o.schedule = k;
        assert_true(fabs(fv_learning_rate(&o, 550) - 0.625) < 1e-12 && fabs(fv_learning_rate(&o, 1000) - 0.25) < 1e-12);
        assert_true(fabs(fv_learning_rate(&o, 100) - 1) < 1e-12);
    }
}

/* ---- options ---- */

static float *after(void (*change)(fv_train_opt *), int64_t updates, int64_t *n, fv_train_state *s, size_t *bytes)
{
    fv_err e;
    fv_device *d = device_with(2);
    fv_model *m = new_model(d, 0.1);
    fv_train_job j = job_of(d, m, updates);
    if (change) change(&j.opt);
    check(fv_train(&j, s, &e), &e);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    if (bytes) *bytes = 0;
    fv_model_free(m);
    fv_device_close(d);
    return w;
}

static void recompute(fv_train_opt *o) { o->recompute = true; }
static void no_thread(fv_train_opt *o) { o->prefetch = 0; }

/* ---- captured steps ---- */

static const fv_backend *real;
static int replays;

static void count_replay(fv_stream *s, void *kept)
{
    replays++;
    real->replay(s, kept);
}

/* Parameters after some updates, with steps captured and replayed or each run by itself. */
static float *with_graphs(bool graphs, void (*change)(fv_train_opt *), int64_t *n)
{
    fv_err e;
    fv_train_state s;
    fv_device *d = device_with(2);
    fv_model *m = new_model(d, 0.1);
    fv_train_job j = job_of(d, m, 20);
    fv_backend watched = *(real = d->backend);
    watched.replay = count_replay;
    if (!graphs) watched.capture = NULL;
    replays = 0;
    change(&j.opt);
    d->backend = &watched;
    check(fv_train(&j, &s, &e), &e);
    d->backend = real;
    assert_true(graphs ? replays >= 10 : !replays);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    fv_model_free(m);
    fv_device_close(d);
    return w;
}

static void all_at_once(fv_train_opt *o) { o->batch_tokens = 100000; }

static void in_parts(fv_train_opt *o) /* of few shapes, each of which comes again */
{
    o->batch_rows = 20;
    o->batch_tokens = 100000;
    o->accumulate = 2;
    o->ema = 0.9f;
    o->result = FV_RESULT_EMA;
    o->updates = 120;
}

static void a_captured_step_has_the_same_bits(void **state)
{
    (void)state;
    if (test_on_cpu()) skip(); /* nothing is captured there */
    void (*const how[])(fv_train_opt *) = {all_at_once, in_parts};
    for (int i = 0; i < 2; i++) {
        int64_t n, m;
        float *captured = with_graphs(true, how[i], &n), *plain = with_graphs(false, how[i], &m);
        assert_int_equal(n, m);
        assert_memory_equal(captured, plain, (size_t)n * sizeof *plain);
        free(captured);
        free(plain);
    }
}

/* Layers that are computed twice, and batches made by the same thread, change nothing. */
static void what_only_moves_work_changes_no_bit(void **state)
{
    (void)state;
    fv_train_state s;
    int64_t n, m;
    float *plain = after(NULL, 8, &n, &s, NULL), *twice = after(recompute, 8, &m, &s, NULL),
          *alone = after(no_thread, 8, &m, &s, NULL);
    assert_memory_equal(plain, twice, (size_t)n * sizeof *plain);
    assert_memory_equal(plain, alone, (size_t)n * sizeof *plain);
    free(plain);
    free(twice);
    free(alone);
}

static double moved(fv_params *p, const float *before, const char *name)
{
    int64_t all, from = 0;
    float *now = test_values(p, &all);
    const fv_tensor *t = fv_params_find(p, name);
    assert_non_null(now);
    assert_non_null(t);
    double sum = 0;
    for (int i = 0; fv_params_at(p, i) != t; i++) from += fv_len(fv_params_at(p, i));
    for (int64_t i = from; i < from + fv_len(t); i++) sum += fabs((double)now[i] - (double)before[i]);
    free(now);
    return sum / (double)fv_len(t);
}

static void parameters_move_as_their_group_says(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    fv_device *d = device_with(1);
    fv_model *m = new_model(d, 0);
    fv_params *p = fv_model_params(m);
    int64_t n;
    float *before = test_values(p, &n);
    assert_non_null(before);
    fv_train_job j = job_of(d, m, 1);
    j.opt.warmup = 0;
    j.opt.layer_decay = 0.5f;
    snprintf(j.opt.freeze, sizeof j.opt.freeze, "model.encoder.layers.0.self_attn.* *.fc1.bias");
    snprintf(j.opt.lr_scale, sizeof j.opt.lr_scale, "*decoder*fc2.weight=0.1");
    check(fv_train(&j, &s, &e), &e);
    /* A first step of Adam moves every number by the learning rate. */
    double full = 5e-3;
    assert_true(moved(p, before, "model.encoder.layers.0.self_attn.q_proj.weight") == 0);
    assert_true(moved(p, before, "model.decoder.layers.0.fc1.bias") == 0);
    assert_true(fabs(moved(p, before, "model.decoder.layers.0.self_attn.v_proj.weight") - full * 0.5) < full * 0.05);
    assert_true(fabs(moved(p, before, "model.decoder.layers.0.fc2.weight") - full * 0.05) < full * 0.005);
    assert_true(moved(p, before, "model.shared.weight") < full * 0.26);
    free(before);
    fv_model_free(m);

    m = new_model(d, 0);
    j = job_of(d, m, 1);
    snprintf(j.opt.freeze, sizeof j.opt.freeze, "model.encodr.*");
    assert_int_equal(fv_train(&j, &s, &e), FV_EARG);
    assert_non_null(strstr(e.text, "model.encodr.*"));
    fv_model_free(m);
    fv_device_close(d);
}

/* The average of parameters that move towards a place lies between where they were and where they are. */
static void a_moving_average_follows(void **state)
{
    (void)state;
    if (!test_on_cpu()) skip(); /* gradients are written where they lie */
    fv_err e;
    fv_device *d = device_with(1);
    fv_model *m = new_model(d, 0);
    fv_params *p = fv_model_params(m);
    fv_train_opt o;
    fv_fields_default(&o, fv_train_fields);
    o.warmup = 0;
    o.schedule = FV_CONSTANT;
    o.lr = 0.01f;
    o.clip = 0;
    o.ema = 0.5f;
    int64_t n;
    fv_adam *a;
    check(fv_adam_new(&a, p, d, &o, &e), &e);
    float *w = fv_params_data(p, &n), *grad = fv_params_grad(p, &n), first = w[0], want = first;
    for (int64_t step = 1; step <= 4; step++) {
        double norm,
            decay = 0.5 < (1.0 + (double)step) / (10.0 + (double)step) ? 0.5 : (1.0 + (double)step) / (10.0 + (double)step);
        for (int64_t i = 0; i < n; i++) grad[i] = 1;
        check(fv_adam_step(a, &o, step, &norm, &e), &e);
        want = (float)(decay * (double)want + (1 - decay) * (double)w[0]);
    }
    float last = w[0];
    check(fv_adam_swap(a, &e), &e);
    assert_true(fabs((double)(w[0] - want)) < 1e-6 && last < want && want < first);
    check(fv_adam_swap(a, &e), &e);
    assert_true(w[0] == last);
    fv_adam_free(a);
    fv_model_free(m);
    fv_device_close(d);
}

static void narrow(fv_train_opt *o) { o->ema = 0.9f; }

static void bf16_learns_too(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    fv_device *d = device_with(2);
    char config[700];
    fv_model *m;
    snprintf(config, sizeof config,
             "{\"model_type\": \"marian\", \"vocab_size\": %d, \"d_model\": 48, \"encoder_layers\": 1, \"decoder_layers\": 1, "
             "\"encoder_attention_heads\": 4, \"decoder_attention_heads\": 4, \"encoder_ffn_dim\": 96, \"decoder_ffn_dim\": 96, "
             "\"max_position_embeddings\": 64, \"activation_function\": \"relu\", \"scale_embedding\": true, \"init_std\": 0.0, "
             "\"pad_token_id\": %d, \"eos_token_id\": %d, \"decoder_start_token_id\": %d}",
             fv_tok_size(tok), pad, eos, pad);
    check(fv_model_new(&m, d, config, (fv_model_opt){.train = true, .dtype = FV_BF16}, 3, &e), &e);
    fv_train_job j = job_of(d, m, 120);
    narrow(&j.opt);
    j.opt.result = FV_RESULT_EMA;
    check(fv_train(&j, &s, &e), &e);
    assert_true(s.loss < 1.5);
    fv_model_free(m);
    fv_device_close(d);
}

/* ---- the disk is full ---- */

static int64_t room;

static int64_t small_write(void *self, int fd, const void *buf, size_t n)
{
    (void)self;
    if (room >= 0 && (int64_t)n > room) return -28; /* ENOSPC */
    if (room >= 0) room -= (int64_t)n;
    return write(fd, buf, n);
}

/* ---- memory ---- */

static void *refuse_all(fv_device *d, size_t bytes)
{
    (void)d, (void)bytes;
    return NULL;
}

static void a_rehearsal_says_what_a_run_needs(void **state)
{
    (void)state;
    fv_err e;
    fv_train_memory need, less;
    int64_t n, same;
    fv_device *d = device_with(2);
    fv_model *m = new_model(d, 0.1);
    fv_train_job j = job_of(d, m, 5);
    float *before = test_values(fv_model_params(m), &n);
    check(fv_train_rehearse(&j, &need, &e), &e);
    float *after = test_values(fv_model_params(m), &same);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    assert_true(need.parameters >= (size_t)n * sizeof(float) && need.gradients >= need.parameters);
    assert_int_equal(need.optimiser, 2 * need.gradients);
    assert_true(need.batch > 0 && need.rows * need.columns <= 300);
    free(before);
    free(after);

    real = d->backend; /* a device that has nothing left says so, and serves again once it has */
    fv_backend empty = *real;
    empty.alloc = refuse_all;
    d->backend = &empty;
    fv_status st = fv_train_rehearse(&j, &less, &e);
    d->backend = real;
    assert_int_equal(st, FV_ENOMEM);
    assert_non_null(strstr(e.text, "batch_tokens"));
    j.opt.batch_tokens = 100;
    check(fv_train_rehearse(&j, &less, &e), &e);
    assert_true(less.rows * less.columns <= 100 && less.batch <= need.batch);
    fv_model_free(m);
    fv_device_close(d);
}

static void a_full_disk_stops_the_run_with_its_last_state_good(void **state)
{
    (void)state;
    const char *dir = scratch("full"), *root = scratch("full/checkpoints");
    fv_io io = *fv__io(NULL);
    io.write = small_write;
    fv_env env = {.io = &io};
    fv_device *d;
    fv_err e;
    fv_train_state s;
    fv_ckpt_found found;
    room = -1;
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, &e), &e);
    fv_model *m = new_model(d, 0);
    fv_train_job j = job_of(d, m, 30);
    j.dir = dir;
    j.opt.save_every = 10;
    j.progress = stop_at;
    int64_t never = -1;
    j.user = &never;
    room = 1500000; /* one checkpoint and a half */
    assert_int_equal(fv_train(&j, &s, &e), FV_EIO);
    assert_non_null(strstr(e.text, "No space left"));
    check(fv_ckpt_find(&found, NULL, root, NULL, NULL, NULL, &e), &e);
    assert_int_equal(found.step, s.step - 10);
    assert_true(found.step >= 10);
    fv_model_free(m);
    fv_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tiny_corpus_is_learnt_by_heart),
        cmocka_unit_test(parts_of_a_batch_add_up),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_the_run),
        cmocka_unit_test(schedules_rise_and_fall),
        cmocka_unit_test(a_captured_step_has_the_same_bits),
        cmocka_unit_test(what_only_moves_work_changes_no_bit),
        cmocka_unit_test(parameters_move_as_their_group_says),
        cmocka_unit_test(a_moving_average_follows),
        cmocka_unit_test(bf16_learns_too),
        cmocka_unit_test(a_rehearsal_says_what_a_run_needs),
        cmocka_unit_test(a_full_disk_stops_the_run_with_its_last_state_good),
    };
    return cmocka_run_group_tests(tests, make_corpus, free_corpus);
}
