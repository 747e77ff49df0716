/* test_train_kept.c - training steps of every family that a device keeps and runs again: each is
 * kept, and the parameters after some updates have the same bits as without.  A CPU keeps nothing;
 * there the test is that two runs are one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/backend.h"
#include "fovea/fovea.h"
#include "fovea/train.h"
#include "fovea/author/family.h"
#include "fovea/author/train.h"
#include "helper/device.h"

enum { B = 3, T = 24, UPDATES = 6, VOCAB = 96 };

#define BERT_SIZES                                                                                 \
    "\"vocab_size\": 96, \"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": " \
    "2, \"intermediate_size\": 64"

static const struct {
    const char *name, *config;
} families[] = {
    {"gpt2", "{\"model_type\": \"gpt2\", \"vocab_size\": 96, \"n_embd\": 32, \"n_layer\": 2, "
             "\"n_head\": 2, \"n_positions\": 64}"},
    {"bert",
     "{\"model_type\": \"bert\", \"architectures\": [\"BertForMaskedLM\"], " BERT_SIZES "}"},
    {"roberta", "{\"model_type\": \"roberta\", \"architectures\": [\"RobertaForMaskedLM\"], "
                "\"pad_token_id\": 1, " BERT_SIZES "}"},
    {"distilbert", "{\"model_type\": \"distilbert\", \"architectures\": "
                   "[\"DistilBertForMaskedLM\"], \"vocab_size\": 96, "
                   "\"dim\": 32, \"n_layers\": 2, \"n_heads\": 2, \"hidden_dim\": 64}"},
    {"modernbert", "{\"model_type\": \"modernbert\", \"architectures\": "
                   "[\"ModernBertForMaskedLM\"], \"pad_token_id\": 0, "
                   "\"local_attention\": 8, \"global_attn_every_n_layers\": 2, " BERT_SIZES "}"},
    {"llama", "{\"model_type\": \"llama\", \"num_key_value_heads\": 1, \"attention_dropout\": "
              "0.1, " BERT_SIZES "}"},
    {"mistral",
     "{\"model_type\": \"mistral\", \"num_key_value_heads\": 1, \"sliding_window\": 8, " BERT_SIZES
     "}"},
    {"llama, dynamic", "{\"model_type\": \"llama\", \"max_position_embeddings\": 16, " BERT_SIZES
                       ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}"},
    {"marian", "{\"model_type\": \"marian\", \"vocab_size\": 96, \"d_model\": 32, "
               "\"encoder_layers\": 1, \"decoder_layers\": 1, "
               "\"encoder_attention_heads\": 2, \"decoder_attention_heads\": 2, "
               "\"encoder_ffn_dim\": 64, \"decoder_ffn_dim\": 64, "
               "\"pad_token_id\": 0, \"eos_token_id\": 1, \"decoder_start_token_id\": 0}"},
    {"bart", "{\"model_type\": \"bart\", \"vocab_size\": 96, \"d_model\": 32, \"encoder_layers\": "
             "1, \"decoder_layers\": 1, "
             "\"encoder_attention_heads\": 2, \"decoder_attention_heads\": 2, \"encoder_ffn_dim\": "
             "64, \"decoder_ffn_dim\": 64, "
             "\"max_position_embeddings\": 64}"},
    {"t5", "{\"model_type\": \"t5\", \"vocab_size\": 96, \"d_model\": 32, \"d_kv\": 16, \"d_ff\": "
           "64, \"num_layers\": 2, "
           "\"num_heads\": 2, \"pad_token_id\": 0, \"decoder_start_token_id\": 0}"},
};

static const fv_backend *real;
static int replays;

static void count_replay(fv_stream *s, void *kept)
{
    replays++;
    real->replay(s, kept);
}

static void fill(fv_batch *b, const char *name, uint32_t seed)
{
    int32_t *ids = fv_batch_put(b, name, FV_I32, FV_SHAPE(B, T));
    assert_non_null(ids);
    for (int i = 0; i < B * T; i++)
        ids[i] = 2 + (int32_t)((seed = seed * 1664525u + 1013904223u) >> 8) % (VOCAB - 2);
}

/* Two batches of one shape that hold different tokens, so that a step which kept its tokens too
 * would be noticed. */
static void make_batch(fv_batch *b, const fv_model *m, uint32_t number)
{
    fv_batch_clear(b);
    fill(b, "input_ids", 3 * number);
    fill(b, "labels", 3 * number + 1);
    for (const fv_input *i = fv_model_family(m)->inputs; i->name; i++)
        if (!strcmp(i->name, "decoder_input_ids")) fill(b, i->name, 3 * number + 2);
    b->labels = B * T;
}

static void train(fv_model *m, const char *name, fv_dtype dtype)
{
    fv_updater *u;
    fv_updated done[UPDATES];
    fv_train_opt how = {0};
    fv_err e;
    fv_batch batch = {0};
    int64_t n = 0, all = 0;
    fv_fields_default(&how, fv_train_fields);
    how.lr = 1e-2f;
    how.warmup = 0;
    how.schedule = FV_CONSTANT;
    check(fv_updater_new(&u, m, device, &how, &e), &e);
    for (int64_t step = 1; step <= UPDATES; step++) {
        const fv_batch *one = &batch;
        make_batch(&batch, m, (uint32_t)step);
        check(fv_updater_step(u, step, &one, 1, &e), &e);
        if (step % fv_updater_max_pending(u) && step < UPDATES) continue;
        if (fv_updater_read(u, done, &n, &e))
            fail_msg("%s in %s: %s", name, fv_dtype_name(dtype), e.text);
        all += n;
    }
    assert_int_equal(all, UPDATES);
    fv_updater_free(u);
    fv_batch_free(&batch);
}

/* All parameters after the updates; the caller frees. */
static float *trained(int family, fv_dtype dtype, bool keep, int64_t *n)
{
    fv_model *m;
    fv_err e;
    fv_backend watched = *(real = device->backend);
    if (fv_model_new(&m, device, families[family].config,
                     (fv_model_opt){.train = true, .dtype = dtype}, 3, &e))
        fail_msg("%s: %s", families[family].name, e.text);
    if (watched.replay) watched.replay = count_replay;
    if (!keep) watched.capture = NULL;
    replays = 0;
    device->backend = &watched;
    train(m, families[family].name, dtype);
    device->backend = real;
    bool kept = keep && real->capture; /* the first two find out what memory is needed */
    if (kept ? replays < UPDATES - 2 : replays > 0)
        fail_msg("%s in %s: %d of %d updates were replayed", families[family].name,
                 fv_dtype_name(dtype), replays, UPDATES);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    fv_model_free(m);
    return w;
}

static void a_kept_step_has_the_same_bits(void **state)
{
    (void)state;
    for (int f = 0; f < (int)(sizeof families / sizeof *families); f++)
        for (int narrow = test_brief(); narrow < 2; narrow++) {
            int64_t n, m;
            fv_dtype dtype = narrow ? FV_BF16 : FV_F32;
            float *kept = trained(f, dtype, true, &n), *plain = trained(f, dtype, false, &m);
            assert_int_equal(n, m);
            if (memcmp(kept, plain, (size_t)n * sizeof *plain))
                fail_msg("%s in %s: other bits", families[f].name, fv_dtype_name(dtype));
            free(kept);
            free(plain);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_kept_step_has_the_same_bits)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
