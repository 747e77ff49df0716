/* test_tensor_parallel.c - a model that 2 and 4 ranks share computes what one computes: logits,
 * loss, gradients, and the tokens that it generates.  Ranks are threads, or processes by MPI where
 * this program is started by mpirun with the argument "rank". */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/core.h"
#include "core/params.h"
#include "fovea/author/comm.h"
#include "fovea/author/parallel.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/ranks.h"

enum { MOST = 4, B = SHARED_B, T = SHARED_T, VOCAB = SHARED_VOCAB, MADE = SHARED_MADE };

static const char *const configs[] = {
    "{\"model_type\":\"gpt2\",\"vocab_size\":61,\"n_positions\":32,\"n_embd\":32,\"n_layer\":2,"
    "\"n_head\":4,\"initializer_range\":0.2,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0,"
    "\"bos_token_id\":60,\"eos_token_id\":60}",
    "{\"model_type\":\"llama\",\"vocab_size\":61,\"max_position_embeddings\":32,"
    "\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"intermediate_size\":48,\"initializer_range\":0.2,"
    "\"bos_token_id\":60,\"eos_token_id\":60,\"attention_bias\":true,\"mlp_bias\":true}",
    "{\"model_type\":\"qwen3\",\"vocab_size\":61,\"max_position_embeddings\":32,"
    "\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"head_dim\":8,"
    "\"num_key_value_heads\":4,\"intermediate_size\":48,\"initializer_range\":0.2,"
    "\"bos_token_id\":60,\"eos_token_id\":60}",
    "{\"model_type\":\"phi3\",\"vocab_size\":61,\"max_position_embeddings\":32,"
    "\"original_max_position_embeddings\":32,\"pad_token_id\":60,"
    "\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":4,\"intermediate_size\":48,\"initializer_range\":0.2,"
    "\"bos_token_id\":60,\"eos_token_id\":60}",
};
enum { MODELS = sizeof configs / sizeof *configs };

/* What a model, whole or shared, comes to. */
typedef struct outcome {
    float logits[B * T * VOCAB], loss;
    float *grad; /* of all parameters, each where it stands in the whole model's */
    int64_t n_grad;
    int32_t made[MADE];
    int64_t n_made;
} outcome;

static double largest(const float *a, const float *b, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = fabsf(a[i] - (b ? b[i] : 0));
        most = d > most ? d : most;
    }
    return (double)most;
}

/* The gradients of this rank's parts, put where they belong; the rest stays 0. */
static fv_status collect(outcome *o, fv_params *p, fv_err *e)
{
    int64_t at = 0, run_at, run_n;
    fv_status st = FV_OK;
    o->n_grad = 0;
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor whole = {.shape = fv__split_whole((const fv_entry *)fv_params_at(p, i))};
        o->n_grad += fv_len(&whole);
    }
    o->grad = calloc((size_t)o->n_grad, sizeof *o->grad);
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        const fv_entry *entry = (const fv_entry *)t;
        fv_tensor whole = {.shape = fv__split_whole(entry)};
        float *g = malloc((size_t)fv_len(t) * sizeof *g), *from = g;
        st = fv_params_get_grad(p, t, g, fv_len(t), e);
        if (!entry->ranks) memcpy(o->grad + at, g, (size_t)fv_len(t) * sizeof *g);
        for (int64_t k = 0; entry->ranks && fv__split_run(entry, k, &run_at, &run_n); k++) {
            memcpy(o->grad + at + run_at, from, (size_t)run_n * sizeof *g);
            from += run_n;
        }
        free(g);
        at += fv_len(&whole);
    }
    return st;
}

/* Cut for serving, not for training: another opening of the same directory. */
static fv_status decode(outcome *o, fv_device *d, const char *dir, fv_comm *c, fv_err *e)
{
    fv_model *m;
    fv_status st = fv_model_open_ranks(&m, d, dir, (fv_model_opt){.serve = true}, c, e);
    if (st) return st;
    st = shared_decode(o->made, &o->n_made, d, m, dir, e);
    fv_model_free(m);
    return st;
}

static fv_status compute(void *outcome_, const shared_job *job, const char *dir, fv_comm *c,
                         fv_err *e)
{
    outcome *o = outcome_;
    (void)job;
    fv_device *d;
    fv_model *m;
    fv_status st = fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, e);
    if (st) return st;
    st = fv_model_open_ranks(&m, d, dir, (fv_model_opt){.train = true}, c, e);
    if (!st) st = shared_forward(o->logits, &o->loss, d, m, e);
    if (!st) st = collect(o, fv_model_params(m), e);
    fv_model_free(m);
    if (!st) st = decode(o, d, dir, c, e);
    fv_device_close(d);
    return st;
}

/* The largest difference, relative to the largest number. */
static double off(const float *a, const float *b, int64_t n)
{
    return largest(a, b, n) / largest(b, NULL, n);
}

/* What a rank holds nothing of is not compared: its gradient there is 0. */
static double grad_off(outcome *a, const outcome *whole)
{
    for (int64_t i = 0; i < whole->n_grad; i++)
        if (a->grad[i] == 0) a->grad[i] = whole->grad[i];
    return off(a->grad, whole->grad, whole->n_grad);
}

static int compare(void *shared, const void *whole_)
{
    outcome *a = shared;
    const outcome *whole = whole_;
    double logits = off(a->logits, whole->logits, B * T * VOCAB), grad = grad_off(a, whole),
           loss = fabs((double)a->loss - (double)whole->loss);
    bool same = a->n_made == whole->n_made && a->n_grad == whole->n_grad &&
                !memcmp(a->made, whole->made, (size_t)whole->n_made * sizeof *a->made);
    if (logits <= 1e-5 && loss <= 1e-5 && grad <= 1e-5 && same) return 0;
    fprintf(stderr, "logits %g, loss %g, gradients %g, tokens %s\n", logits, loss, grad,
            same ? "same" : "differ");
    return 1;
}

static void free_gradients(void *outcome_) { free(((outcome *)outcome_)->grad); }

static const shared_job job = {.size = sizeof(outcome),
                               .compute = compute,
                               .compare = compare,
                               .free = free_gradients,
                               .models = MODELS};

static void threads_share_a_model(void **state)
{
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        const char *dir = scratch("model-%d", k);
        write_model(dir, configs[k]);
        for (int n = 2; n <= MOST; n += 2) share_by_threads(&job, dir, n);
    }
}

/* What cannot be shared is refused by a sentence. */
static void what_cannot_be_shared_is_refused(void **state)
{
    (void)state;
    fv_err e = {0};
    fv_comm *comm[3];
    fv_device *d;
    fv_model *m;
    write_model(scratch("three"), configs[0]);
    check(fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, &e), &e);
    check(fv_comm_threads(comm, 3, NULL, &e), &e);
    assert_int_equal(fv_model_open_ranks(&m, d, scratch("three"), (fv_model_opt){0}, comm[0], &e),
                     FV_EARG);
    assert_non_null(strstr(e.text, "cannot be divided evenly among 3 ranks"));
    assert_int_equal(fv_model_open_ranks(&m, d, scratch("three"),
                                         (fv_model_opt){.serve = true, .weights = FV_Q8}, comm[0],
                                         &e),
                     FV_EMISSING);
    assert_non_null(strstr(e.text, "its weights are not floats"));
    for (int i = 0; i < 3; i++) fv_comm_close(comm[i]);
    fv_device_close(d);
}

static void processes_share_a_model(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST; n += 2) share_by_processes(n);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_model),
        cmocka_unit_test(processes_share_a_model),
        cmocka_unit_test(what_cannot_be_shared_is_refused),
    };
    return share_main(argc, argv, &job, tests, sizeof tests / sizeof *tests);
}
