/* test_stages.c - a model whose layers 2 and 3 ranks share computes what one computes, to the bit:
 * logits, and the tokens that it generates.  Ranks are threads, or processes by MPI where this
 * program is started by mpirun with the argument "rank". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/comm.h"
#include "fovea/author/parallel.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/ranks.h"

enum { MOST = 3, B = SHARED_B, T = SHARED_T, VOCAB = SHARED_VOCAB, MADE = SHARED_MADE };

/* Three layers, so that two ranks have one and two of them. */
static const char *const configs[] = {
    "{\"model_type\":\"gpt2\",\"vocab_size\":61,\"n_positions\":32,\"n_embd\":32,\"n_layer\":3,"
    "\"n_head\":4,\"initializer_range\":0.2,\"bos_token_id\":60,\"eos_token_id\":60}",
    "{\"model_type\":\"llama\",\"vocab_size\":61,\"max_position_embeddings\":32,"
    "\"hidden_size\":32,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":64,\"initializer_range\":0.2,"
    "\"bos_token_id\":60,\"eos_token_id\":60}",
    "{\"model_type\":\"gpt_neox\",\"vocab_size\":61,\"max_position_embeddings\":32,"
    "\"hidden_size\":32,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
    "\"intermediate_size\":64,\"initializer_range\":0.2,\"bos_token_id\":60,\"eos_token_id\":60}",
    "{\"model_type\":\"gemma\",\"vocab_size\":61,\"max_position_embeddings\":32,"
    "\"hidden_size\":32,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"head_dim\":8,"
    "\"num_key_value_heads\":2,\"intermediate_size\":64,\"initializer_range\":0.2,"
    "\"bos_token_id\":60,\"eos_token_id\":60}",
};
enum { MODELS = sizeof configs / sizeof *configs };

typedef struct outcome {
    float logits[B * T * VOCAB];
    int32_t made[MADE];
    int64_t n_made, numbers; /* numbers: of the parameters that are here */
} outcome;

static fv_status compute(void *outcome_, const shared_job *job, const char *dir, fv_comm *c,
                         fv_err *e)
{
    outcome *o = outcome_;
    fv_device *d;
    fv_model *m;
    fv_model_opt how = {.serve = true, .weights = job->weights};
    fv_status st = fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, e);
    if (st) return st;
    st = fv_model_open_stages(&m, d, dir, how, c, e);
    for (int i = 0; !st && i < fv_params_count(fv_model_params(m)); i++)
        o->numbers += fv_len(fv_params_at(fv_model_params(m), i));
    if (!st) st = shared_forward(o->logits, NULL, d, m, e);
    if (!st) st = shared_decode(o->made, &o->n_made, d, m, dir, e);
    fv_model_free(m);
    fv_device_close(d);
    return st;
}

/* Every rank gets the bits of the whole model, and holds fewer parameters. */
static int compare(void *shared, const void *whole_)
{
    const outcome *a = shared, *whole = whole_;
    bool logits = !memcmp(a->logits, whole->logits, sizeof a->logits),
         tokens = a->n_made == whole->n_made &&
                  !memcmp(a->made, whole->made, (size_t)whole->n_made * sizeof *a->made);
    if (logits && tokens && a->numbers < whole->numbers) return 0;
    fprintf(stderr, "logits %s, tokens %s, %lld of %lld numbers\n", logits ? "same" : "differ",
            tokens ? "same" : "differ", (long long)a->numbers, (long long)whole->numbers);
    return 1;
}

static const shared_job job = {.size = sizeof(outcome),
                               .compute = compute,
                               .compare = compare,
                               .models = MODELS};

static void threads_share_the_layers(void **state)
{
    (void)state;
    fv_dtype as[] = {FV_F32, FV_Q8};
    for (int k = 0; k < MODELS; k++) {
        const char *dir = scratch("model-%d", k);
        write_model(dir, configs[k]);
        for (size_t w = 0; w < sizeof as / sizeof *as; w++) {
            shared_job as_w = job;
            as_w.weights = as[w];
            if (as[w] != FV_F32 && strcmp(test_device(), "cpu")) continue;
            for (int n = 2; n <= MOST; n++) share_by_threads(&as_w, dir, n);
        }
    }
}

/* What cannot be shared is refused by a sentence. */
static void what_has_no_stages_is_refused(void **state)
{
    (void)state;
    fv_err e = {0};
    fv_comm *comm[4];
    fv_device *d;
    fv_model *m;
    write_model(scratch("few"), configs[0]);
    write_model(scratch("t5"), "{\"model_type\":\"t5\",\"vocab_size\":61,\"d_model\":16,\"d_kv\":4,"
                               "\"d_ff\":32,\"num_layers\":2,\"num_heads\":4}");
    check(fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, &e), &e);
    check(fv_comm_threads(comm, 4, NULL, &e), &e);
    assert_int_equal(fv_model_open_stages(&m, d, scratch("few"), (fv_model_opt){.serve = true},
                                          comm[0], &e),
                     FV_EARG);
    assert_non_null(strstr(e.text, "3 layers cannot be divided among 4 ranks"));
    assert_int_equal(fv_model_open_stages(&m, d, scratch("few"), (fv_model_opt){.train = true},
                                          comm[0], &e),
                     FV_EMISSING);
    assert_non_null(strstr(e.text, "not for training"));
    assert_int_equal(fv_model_open_stages(&m, d, scratch("t5"), (fv_model_opt){.serve = true},
                                          comm[0], &e),
                     FV_EMISSING);
    assert_non_null(strstr(e.text, "the layers of t5 cannot be divided"));
    for (int i = 0; i < 4; i++) fv_comm_close(comm[i]);
    fv_device_close(d);
}

static void processes_share_the_layers(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST; n++) share_by_processes(n);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_the_layers),
        cmocka_unit_test(processes_share_the_layers),
        cmocka_unit_test(what_has_no_stages_is_refused),
    };
    return share_main(argc, argv, &job, tests, sizeof tests / sizeof *tests);
}
