/* test_adapters.c - adapters against PEFT (bottlenecks against PyTorch): outputs, gradients, three
 * steps of AdamW, directories.
 *
 * A case is a folder of tests/golden/adapters, made by tools/golden/adapters.py: an adapter as PEFT
 * saves it, the model below it, in.safetensors and out.safetensors. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/author/adapter.h"
#include "fovea/fovea.h"
#include "fovea/author/author.h"
#include "helper/device.h"
#include "helper/files.h"

#define CASES FOVEA_TESTS "/golden/adapters"
#define PREFIX "base_model.model."
#define VIRTUAL_PREFIX "base_model."

typedef struct paths {
    char dir[512], base[512], in[512], out[512];
} paths;

static paths paths_of(const char *name)
{
    paths p;
    char file[600], word[100];
    snprintf(p.dir, sizeof p.dir, "%s/%s", CASES, name);
    snprintf(p.in, sizeof p.in, "%s/%s/in.safetensors", CASES, name);
    snprintf(p.out, sizeof p.out, "%s/%s/out.safetensors", CASES, name);
    snprintf(file, sizeof file, "%s/base.txt", p.dir);
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%99s", word), 1);
    fclose(f);
    snprintf(p.base, sizeof p.base, "%s/golden/models/%s", FOVEA_TESTS, word);
    return p;
}

static void each_case(void (*run)(const char *name, const paths *p))
{
    DIR *d = opendir(CASES);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        paths p = paths_of(f->d_name);
        run(f->d_name, &p);
        n++;
    }
    closedir(d);
    assert_true(n >= 34);
}

static float *numbers(const fv_st *s, const char *name, int64_t *n)
{
    fv_err e;
    fv_st_info t;
    check(fv_st_find(s, name, &t, &e), &e);
    float *x = malloc((size_t)t.count * sizeof *x + 1);
    assert_non_null(x);
    check(fv_st_read(s, &t, x, FV_F32, t.count, &e), &e);
    *n = t.count;
    return x;
}

static void near(const char *name, const char *what, const float *got, const float *want, int64_t n,
                 double bound)
{
    double off = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        off += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(off) <= bound * sqrt(norm) + 1e-6))
        fail_msg("%s: %s: off by %g of %g", name, what, sqrt(off), sqrt(norm));
}

/* A parameter by its name in PEFT's file. */
static fv_tensor *param(fv_params *p, const char *name)
{
    fv_tensor *t = fv_params_find(p, name);
    const char *wrapped = strstr(name, ".base_layer.");
    char plain[300];
    if (!t && !strncmp(name, PREFIX, strlen(PREFIX))) t = fv_params_find(p, name + strlen(PREFIX));
    if (!t && !strncmp(name, VIRTUAL_PREFIX, strlen(VIRTUAL_PREFIX)))
        t = fv_params_find(p, name + strlen(VIRTUAL_PREFIX));
    if (!t && wrapped) {
        snprintf(plain, sizeof plain, "%.*s.%s", (int)(wrapped - name), name,
                 wrapped + strlen(".base_layer."));
        t = fv_params_find(p, plain + strlen(PREFIX));
    }
    if (!t) fail_msg("no parameter %s", name);
    return t;
}

static fv_model *trainable(const paths *p)
{
    fv_err e;
    fv_adapter_opt opt;
    fv_model *m;
    check(fv_adapter_read(&opt, NULL, p->dir, &e), &e);
    check(fv_model_open(&m, device, p->base, (fv_model_opt){.train = true, .adapter = &opt}, &e),
          &e);
    check(fv_model_load(m, p->dir, &e), &e);
    return m;
}

/* ---- folded into the weights ---- */

static void folded(const char *name, const paths *p)
{
    fv_err e;
    fv_adapter_use use = {.dir = p->dir};
    for (int serve = 0; serve < 2; serve++) {
        fv_model *m;
        fv_model_opt opt = {.serve = serve, .adapters = {&use, 1}};
        check(fv_model_open(&m, device, p->base, opt, &e), &e);
        const char *out = scratch("folded.safetensors");
        check(fv_model_run(m, device, p->in, out, (fv_run_opt){0}, &e), &e);
        fv_st *got, *want;
        int64_t n, k;
        check(fv_st_open(&got, NULL, out, &e), &e);
        check(fv_st_open(&want, NULL, p->out, &e), &e);
        float *a = numbers(got, "logits", &n), *b = numbers(want, "logits", &k);
        assert_int_equal(n, k);
        near(name, "folded logits", a, b, n, 1e-5);
        free(a), free(b);
        fv_st_close(got), fv_st_close(want);
        fv_model_free(m);
    }
}

static void test_folded(void **state)
{
    (void)state;
    each_case(folded);
}

/* ---- generation ---- */

static fv_tensor *ids_of(fv_ctx *c, const int32_t *ids, int64_t from, int64_t n)
{
    return fv_ints(c, ids + from, FV_SHAPE(1, n));
}

/* Scores of a session that gets the text in two steps are those of the whole pass, whatever virtual
 * tokens stand in front; and again after the last tokens were taken back. */
static void generated(const char *name, const char *encoder)
{
    static const int32_t ids[] = {3, 9, 4, 11, 2};
    enum { T = 5 };
    fv_err e;
    fv_model *m;
    fv_session *s;
    fv_ctx *c;
    paths p = paths_of(name);
    fv_adapter_use use = {.dir = p.dir};
    float want[64], got[64];
    check(fv_model_open(&m, device, p.base, (fv_model_opt){.serve = true, .adapters = {&use, 1}},
                        &e),
          &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items in = {0}, out = {0}, source = {0};
    fv_tensor *text = ids_of(c, ids, 0, T);
    fv_items_put(&source, "input_ids", text);
    fv_items_put(&in, "input_ids", text);
    if (encoder) fv_items_put(&in, encoder, ids_of(c, ids, 0, T));
    fv_model_forward(c, m, &in, &out);
    fv_tensor *logits = fv_items_get(&out, "logits");
    assert_int_equal(fv_dim(logits, 1), T);
    int64_t V = fv_cols(logits);
    assert_true(V <= 64);
    assert_int_equal(fv_read(c, fv_slice(c, logits, 1, T - 1, T), want, V), FV_OK);
    check(fv_session_new(&s, m, device, 1, T + 2, &e), &e);
    fv_session_begin(c, s, encoder ? &source : NULL);
    fv_session_step(c, s, ids_of(c, ids, 0, 2));
    for (int again = 0; again < 2; again++) {
        assert_int_equal(fv_session_len(s, 0), 2);
        fv_tensor *y = fv_session_step(c, s, ids_of(c, ids, 2, T - 2));
        if (fv_read(c, y, got, V)) fail_msg("%s: %s", name, fv_ctx_err(c)->text);
        near(name, "scores", got, want, V, 1e-5);
        fv_session_truncate(s, 0, 2);
    }
    fv_session_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void test_generated(void **state)
{
    (void)state;
    generated("gpt2-prompt", NULL);
    generated("gpt2-houlsby", NULL);
    generated("gpt2-lora-embedding", NULL);
    generated("llama-pfeiffer", NULL);
    generated("t5-houlsby", "decoder_input_ids");
    generated("gpt2-prefix", NULL);
    generated("llama-p-tuning", NULL);
    generated("llama-prefix", NULL);
    generated("t5-prompt", "decoder_input_ids");
    generated("t5-prefix", "decoder_input_ids");
}

enum { MADE = 4 };

typedef struct sequence {
    int32_t made[MADE];
    int n;
} sequence;

static bool take(void *user, const fv_sched_event *event)
{
    sequence *q = user;
    if (event->finish == FV_FINISH_FAILED) fail_msg("%s", event->error->text);
    if (event->token >= 0 && q->n < MADE) q->made[q->n++] = event->token;
    return true;
}

/* The likeliest token behind ids, by a pass over all of them. */
static int32_t next_token(fv_ctx *c, const fv_model *m, const int32_t *ids, int64_t n)
{
    float row[64];
    fv_items in = {0}, out = {0};
    fv_ctx_reset(c, 0);
    fv_items_put(&in, "input_ids", ids_of(c, ids, 0, n));
    fv_model_forward(c, m, &in, &out);
    fv_tensor *logits = fv_items_get(&out, "logits");
    int64_t V = fv_cols(logits);
    assert_int_equal(fv_read(c, fv_slice(c, logits, 1, n - 1, n), row, V), FV_OK);
    int32_t best = 0;
    for (int32_t i = 1; i < V; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* Sequences of several lengths side by side, the second asked for twice so that the cache of
 * prefixes has it: each gets what it would get alone. */
static void scheduled(const char *name)
{
    static const int32_t ids[4][8] = {{3, 9, 4}, {11, 2, 5, 7, 1}, {8}, {11, 2, 5, 7, 1}};
    static const int64_t len[4] = {3, 5, 1, 5};
    fv_err e;
    fv_model *m;
    fv_ctx *c;
    fv_scheduler *s;
    paths p = paths_of(name);
    fv_adapter_use use = {.dir = p.dir};
    sequence got[4] = {0};
    check(fv_model_open(&m, device, p.base, (fv_model_opt){.serve = true, .adapters = {&use, 1}},
                        &e),
          &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    check(fv_scheduler_new(
              &s, device, m,
              (fv_scheduler_opt){.rows = 3, .capacity = 16, .prefill = 2, .prefix_bytes = 1 << 20},
              &e),
          &e);
    fv_gen_opt opt = {0};
    fv_fields_default(&opt, fv_gen_fields);
    opt.num_beams = 1;
    opt.eos = -1;
    opt.max_new_tokens = MADE;
    for (int i = 0; i < 4; i++) {
        uint64_t id;
        fv_sched_request r = {
            .prompt = ids[i], .n = len[i], .opt = &opt, .fn = take, .user = &got[i]};
        check(fv_scheduler_submit(s, &id, &r, &e), &e);
    }
    for (int64_t left = 1; left;) check(fv_scheduler_step(s, &left, &e), &e);
    for (int i = 0; i < 4; i++) {
        int32_t all[8 + MADE];
        memcpy(all, ids[i], (size_t)len[i] * sizeof *all);
        for (int k = 0; k < got[i].n; k++) {
            all[len[i] + k] = next_token(c, m, all, len[i] + k);
            if (all[len[i] + k] != got[i].made[k])
                fail_msg("%s: sequence %d, token %d", name, i, k);
        }
        assert_int_equal(got[i].n, MADE);
    }
    fv_scheduler_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void test_scheduled(void **state)
{
    (void)state;
    scheduled("gpt2-prompt");
    scheduled("llama-prefix");
    scheduled("llama-pfeiffer");
}

/* ---- trained ---- */

static void gradients(const char *name, const paths *p, fv_params *params)
{
    fv_err e;
    fv_st *want;
    int trained = 0, held = 0;
    check(fv_st_open(&want, NULL, p->out, &e), &e);
    for (int i = 0; i < fv_st_count(want); i++) {
        const char *full = fv_st_at(want, i).name;
        int64_t n;
        if (strncmp(full, "grad.", 5)) continue;
        float *b = numbers(want, full, &n), *a = malloc((size_t)n * sizeof *a);
        check(fv_params_get_grad(params, param(params, full + 5), a, n, &e), &e);
        near(name, full, a, b, n, 1e-4);
        free(a), free(b);
        trained++;
    }
    for (int i = 0; i < fv_params_count(params); i++) held += !!fv_params_at(params, i)->grad;
    assert_int_equal(held, trained); /* only what is trained has a gradient */
    fv_st_close(want);
}

/* The bias of keys changes nothing, and its gradient is rounding that Adam makes large. */
static bool has_gradient(const fv_st *want, const char *name)
{
    char full[400];
    int64_t n;
    double norm = 0;
    snprintf(full, sizeof full, "grad.%s", name);
    float *g = numbers(want, full, &n);
    for (int64_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
    free(g);
    return sqrt(norm) > 1e-6;
}

static void after_steps(const char *name, const paths *p, fv_params *params)
{
    fv_err e;
    fv_st *want;
    check(fv_st_open(&want, NULL, p->out, &e), &e);
    for (int i = 0; i < fv_st_count(want); i++) {
        const char *full = fv_st_at(want, i).name;
        int64_t n;
        if (strncmp(full, "after.", 6) || !has_gradient(want, full + 6)) continue;
        float *b = numbers(want, full, &n), *a = malloc((size_t)n * sizeof *a);
        check(fv_params_get(params, param(params, full + 6), a, n, &e), &e);
        near(name, full, a, b, n, 1e-4);
        free(a), free(b);
    }
    fv_st_close(want);
}

static void trained(const char *name, const paths *p)
{
    fv_err e;
    fv_model *m = trainable(p);
    fv_params *params = fv_model_params(m);
    fv_train_opt o = {.lr = 1e-2f,
                      .schedule = FV_CONSTANT,
                      .updates = 3,
                      .beta1 = 0.9f,
                      .beta2 = 0.98f,
                      .eps = 1e-5f,
                      .decay = 0.01f,
                      .layer_decay = 1};
    fv_adam *adam;
    check(fv_adam_new(&adam, params, device, &o, &e), &e);
    for (int step = 1; step <= 3; step++) {
        const char *out = scratch("trained.safetensors");
        double norm;
        fv_params_zero_grad(params);
        check(fv_model_run(m, device, p->in, out, (fv_run_opt){.grad = true}, &e), &e);
        if (step == 1) {
            fv_st *got, *want;
            int64_t n;
            check(fv_st_open(&got, NULL, out, &e), &e);
            check(fv_st_open(&want, NULL, p->out, &e), &e);
            float *a = numbers(got, "logits", &n), *b = numbers(want, "logits", &n);
            near(name, "logits", a, b, n, 1e-5);
            free(a), free(b);
            a = numbers(got, "loss", &n), b = numbers(want, "loss", &n);
            near(name, "loss", a, b, n, 1e-5);
            free(a), free(b);
            fv_st_close(got), fv_st_close(want);
            gradients(name, p, params);
        }
        check(fv_adam_step(adam, &o, step, &norm, &e), &e);
    }
    after_steps(name, p, params);
    fv_adam_free(adam);
    fv_model_free(m);
}

static void test_trained(void **state)
{
    (void)state;
    each_case(trained);
}

/* ---- directories ---- */

/* Saved and read again it is the same, bit by bit. */
static void saved(const char *name, const paths *p)
{
    fv_err e;
    fv_model *m = trainable(p);
    char dir[512], file[600];
    snprintf(dir, sizeof dir, "%s", scratch("saved"));
    check(fv_model_save(m, dir, FV_F32, &e), &e);
    fv_model_free(m);
    fv_st *got, *want;
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", dir);
    check(fv_st_open(&got, NULL, file, &e), &e);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", p->dir);
    check(fv_st_open(&want, NULL, file, &e), &e);
    snprintf(file, sizeof file, "%s/prompt_encoder.safetensors", p->dir);
    bool made = !access(file, R_OK); /* by a network, from what the file does not hold */
    int copies = 0; /* PEFT's, of modules that are saved whole and have trained biases */
    for (int i = 0; i < fv_st_count(want); i++)
        copies += strstr(fv_st_at(want, i).name, ".modules_to_save.") ||
                  strstr(fv_st_at(want, i).name, ".original_module.") ||
                  strstr(fv_st_at(want, i).name, ".base_layer.weight"); /* a table, unchanged */
    assert_int_equal(fv_st_count(got), fv_st_count(want) - copies);
    for (int i = 0; i < fv_st_count(got); i++) {
        fv_st_info a = fv_st_at(got, i), b;
        check(fv_st_find(want, a.name, &b, &e), &e);
        assert_int_equal(a.bytes, b.bytes);
        if (made && !strcmp(a.name, "prompt_embeddings")) { /* what our arithmetic gives */
            near(name, a.name, (const float *)a.data, (const float *)b.data, a.count, 1e-5);
            continue;
        }
        if (memcmp(a.data, b.data, a.bytes)) fail_msg("%s: %s changed", name, a.name);
    }
    fv_st_close(got), fv_st_close(want);
    fv_adapter_opt was, is;
    check(fv_adapter_read(&was, NULL, p->dir, &e), &e);
    check(fv_adapter_read(&is, NULL, dir, &e), &e);
    assert_string_equal(was.target_modules, is.target_modules);
    assert_string_equal(was.target_regex, is.target_regex);
    assert_string_equal(was.layers_to_transform, is.layers_to_transform);
    assert_string_equal(was.modules_to_save, is.modules_to_save);
    assert_int_equal(was.r, is.r);
    assert_int_equal(was.num_virtual_tokens, is.num_virtual_tokens);
    assert_int_equal(was.token_dim, is.token_dim);
    assert_int_equal(was.num_layers, is.num_layers);
    assert_int_equal(was.mh_adapter, is.mh_adapter);
    assert_int_equal(was.non_linearity, is.non_linearity);
    assert_true(was.reduction_factor == is.reduction_factor && was.scaling == is.scaling);
    scratch_drop("saved");
}

static void test_saved(void **state)
{
    (void)state;
    each_case(saved);
}

/* Every golden model opens with bottlenecks to be trained, but for families without layers of
 * attention; behind the MLPs alone there are fewer of them. */
static void test_every_family(void **state)
{
    (void)state;
    DIR *d = opendir(FOVEA_TESTS "/golden/models");
    int with = 0;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        fv_err e;
        char dir[512];
        fv_adapter_opt o;
        fv_model *m;
        int64_t n[2] = {0};
        if (f->d_name[0] == '.') continue;
        snprintf(dir, sizeof dir, FOVEA_TESTS "/golden/models/%s", f->d_name);
        for (int mlp = 0; mlp < 2; mlp++) {
            fv_fields_default(&o, fv_adapter_fields);
            o.peft_type = FV_PEFT_BOTTLENECK;
            o.mh_adapter = !mlp;
            fv_status st = fv_model_open(&m, device, dir,
                                         (fv_model_opt){.train = true, .adapter = &o}, &e);
            if (!strncmp(f->d_name, "dlinear", 7) || !strncmp(f->d_name, "sagan", 5) ||
                !strncmp(f->d_name, "speecht5_hifigan", 16)) {
                assert_int_not_equal(st, FV_OK);
                assert_non_null(strstr(e.text, "name target_modules"));
                continue;
            }
            check(st, &e);
            for (int i = 0; i < fv_params_count(fv_model_params(m)); i++)
                n[mlp] += !!strstr(fv_params_at(fv_model_params(m), i)->name, "adapter_up.weight");
            fv_model_free(m);
        }
        if (n[0] < n[1] || (n[0] && (n[0] == n[1] || !n[1])))
            fail_msg("%s: %d bottlenecks, %d behind MLPs", f->d_name, (int)n[0], (int)n[1]);
        with += n[0] > 0;
    }
    closedir(d);
    assert_true(with > 200);
}

/* In, and out again with the opposite weight. */
static void test_taken_out(void **state)
{
    (void)state;
    fv_err e;
    fv_model *base, *again;
    paths p = paths_of("llama-lora");
    fv_adapter_use use[] = {{.dir = p.dir}, {.dir = p.dir, .weight = -1}};
    check(fv_model_open(&base, device, p.base, (fv_model_opt){0}, &e), &e);
    check(fv_model_open(&again, device, p.base, (fv_model_opt){.adapters = {use, 2}}, &e), &e);
    int64_t n, k;
    float *a = test_values(fv_model_params(again), &n), *b = test_values(fv_model_params(base), &k);
    assert_int_equal(n, k);
    for (int64_t i = 0; i < n; i++) assert_true(fabs((double)a[i] - (double)b[i]) <= 1e-6);
    free(a), free(b);
    fv_model_free(base), fv_model_free(again);
}

/* ---- refusals ---- */

static void refuse(const char *config, const char *base, const char *expected)
{
    fv_err e = {0};
    char dir[512];
    paths p = paths_of("llama-lora");
    snprintf(dir, sizeof dir, "%s", scratch("bad"));
    assert_int_equal(mkdir(dir, 0777), 0);
    scratch_text("bad/adapter_config.json", config);
    fv_adapter_use use = {.dir = dir};
    fv_model *m = NULL;
    fv_status st = fv_model_open(&m, device, base ? base : p.base,
                                 (fv_model_opt){.adapters = {&use, 1}}, &e);
    assert_int_not_equal(st, FV_OK);
    assert_null(m);
    if (!strstr(e.text, expected)) fail_msg("\"%s\" does not say \"%s\"", e.text, expected);
    scratch_drop("bad");
}

static void test_refused(void **state)
{
    (void)state;
    refuse("{\"peft_type\": \"OFT\"}", NULL, "OFT");
    refuse("{\"peft_type\": \"LORA\", \"layer_replication\": [[0, 1]], \"target_modules\": []}",
           NULL, "layer_replication");
    refuse("{\"peft_type\": \"LORA\", \"r\": 0, \"target_modules\": [\"q_proj\"]}", NULL, "r");
    refuse("{\"peft_type\": \"LORA\", \"rank_pattern\": {\"q_proj\": 2}, \"target_modules\": "
           "[\"q_proj\"]}",
           NULL, "rank_pattern");
    refuse("{\"peft_type\": \"LORA\"}", NULL, "target_modules");
    refuse("{\"peft_type\": \"BOTTLENECK\", \"mh_adapter\": false, \"output_adapter\": false}",
           NULL, "name target_modules");
    refuse("{\"peft_type\": \"BOTTLENECK\", \"non_linearity\": \"cube\"}", NULL, "non_linearity");
    refuse("{\"peft_type\": \"BOTTLENECK\"}", NULL, "adapter_model");
    refuse("{\"peft_type\": \"LORA\", \"target_modules\": \"(\"}", NULL, "adapter_model");
    /* a sentence also where the pieces are there and do not fit: another base, another rank */
    fv_err e = {0};
    fv_model *m = NULL;
    paths p = paths_of("llama-lora"), other = paths_of("bert-lora");
    fv_adapter_use use = {.dir = p.dir};
    fv_model_opt opt = {.adapters = {&use, 1}};
    assert_int_not_equal(fv_model_open(&m, device, other.base, opt, &e), FV_OK);
    assert_non_null(strstr(e.text, "no linear map of bert"));
    use.dir = "no/such/adapter";
    assert_int_not_equal(fv_model_open(&m, device, p.base, opt, &e), FV_OK);
    assert_non_null(strstr(e.text, "no/such/adapter"));
}

/* llama-lora's own weights below a config.json and settings in which one thing is wrong: opened as
 * an adapter of `base` or, without one, as a directory that names its base. */
static void refuse_files(const char *settings, const char *base, const char *expected)
{
    fv_err e = {0};
    char dir[512], file[600];
    size_t n;
    paths p = paths_of("llama-lora");
    snprintf(dir, sizeof dir, "%s", scratch("bad"));
    assert_int_equal(mkdir(dir, 0777), 0);
    scratch_text("bad/adapter_config.json", settings);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", p.dir);
    char *bytes = slurp(file, &n);
    scratch_put("bad/adapter_model.safetensors", bytes, n);
    free(bytes);
    snprintf(file, sizeof file, "%s/config.json", p.base);
    bytes = slurp(file, &n);
    scratch_put("bad/config.json", bytes, n);
    free(bytes);
    fv_adapter_use use = {.dir = dir};
    fv_model *m = NULL;
    fv_status st = base ? fv_model_open(&m, device, base, (fv_model_opt){.adapters = {&use, 1}}, &e)
                        : fv_model_open(&m, device, dir, (fv_model_opt){0}, &e);
    assert_int_not_equal(st, FV_OK);
    assert_null(m);
    if (!strstr(e.text, expected)) fail_msg("\"%s\" does not say \"%s\"", e.text, expected);
    scratch_drop("bad");
}

#define LORA(more)                                                                                 \
    "{\"peft_type\": \"LORA\", \"target_modules\": [\"q_proj\", \"v_proj\"], " more "}"

/* Shapes that do not fit, and names that lead elsewhere: to the directory itself, to what is no
 * directory, out of it, to a name longer than any path, past the end of a string. */
static void test_bad_files(void **state)
{
    (void)state;
    static char far[6000];
    paths p = paths_of("llama-lora");
    refuse_files(LORA("\"r\": 3"), p.base, "lora_A");
    refuse_files("{\"peft_type\": \"LORA\", \"r\": 8, \"target_modules\": [\"../q_proj\"]}", p.base,
                 "../q_proj");
    refuse_files("{\"peft_type\": \"LORA\", \"r\": 8, \"target_modules\": \"(.+)+(.+)+(.+)+!\"}",
                 p.base, "no linear map");
    refuse_files("[]", p.base, "adapter_config.json");
    refuse_files(LORA("\"r\": 8, \"r\": 8"), p.base, "adapter_config.json");
    refuse_files(LORA("\"base_model_name_or_path\": \".\""), NULL, "config.json");
    refuse_files(LORA("\"base_model_name_or_path\": \"../bad\""), NULL, "no weights in it");
    refuse_files(LORA("\"base_model_name_or_path\": \"../../../../etc/passwd\""), NULL,
                 "is not here");
    refuse_files(LORA("\"base_model_name_or_path\": \"a\\u0000b\""), NULL, "adapter_config.json");
    refuse_files(LORA("\"base_model_name_or_path\": 5"), NULL, "base_model_name_or_path");
    int n = snprintf(far, sizeof far, "%s",
                     "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"");
    memset(far + n, 'x', 5000);
    memcpy(far + n + 5000, "\"}", 3);
    refuse_files(far, NULL, "base_model_name_or_path");
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folded),       cmocka_unit_test(test_trained),
        cmocka_unit_test(test_generated),    cmocka_unit_test(test_scheduled),
        cmocka_unit_test(test_saved),        cmocka_unit_test(test_taken_out),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_every_family),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
