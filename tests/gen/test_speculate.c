/* test_speculate.c - speculative decoding gives the same text, bit for bit: drafts from the text
 * and by an assistant, greedy and sampled, rows of different lengths, with and without an encoder;
 * an assistant that is the model itself is nearly always right; what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "helper/device.h"
#include "helper/dice.h"

enum { ROWS = 4, V = 61 };

/* Few tokens and small weights make texts that repeat themselves, so that lookups find much; the
 * last one has an encoder. */
static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":61,\"max_position_embeddings\":96,\"initializer_range\":0.3}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":61,\"n_positions\":96,\"initializer_range\":0.1,"
    "\"n_embd\":64,\"n_layer\":2,\"n_head\":4}",
    "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":61,\"max_position_embeddings\":16,\"initializer_range\":0.3,"
    "\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}}",
    "{\"model_type\":\"t5\",\"vocab_size\":61,\"d_model\":32,\"d_kv\":8,\"d_ff\":64,"
    "\"num_layers\":2,\"num_heads\":4,\"decoder_start_token_id\":0,"
    "\"architectures\":[\"T5ForConditionalGeneration\"]}",
};
enum { LLAMA, GPT2, DYNAMIC, T5, CONFIGS };

static void ok(fv_status st, const fv_err *e)
{
    if (st) fail_msg("%s", e->text);
}

static fv_model *make(int config, uint64_t seed)
{
    fv_model *m;
    fv_err e;
    ok(fv_model_new(&m, device, configs[config], (fv_model_opt){.serve = true}, seed, &e), &e);
    return m;
}

/* Prompts of 1 to 30 tokens, half of them a phrase that comes several times. */
static int32_t prompt[ROWS][30];
static int64_t len[ROWS];
static void make_prompts(bool even)
{
    for (int i = 0; i < ROWS; i++) {
        len[i] = even ? 12 : 1 + dice(30);
        for (int64_t k = 0; k < len[i]; k++) prompt[i][k] = (int32_t)(i % 2 ? dice(V) : 3 + k % 5);
    }
}

static fv_gen_opt options(int i)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = 1;
    o.max_new_tokens = 1 + dice(60);
    o.do_sample = i % 3;
    o.temperature = 0.6f + 0.2f * (float)dice(4);
    o.top_k = dice(2) ? 20 : 0;
    o.seed = dice(100);
    o.repetition_penalty = dice(3) ? 1 : 1.2f;
    o.renormalize_logits = !dice(4);
    o.min_new_tokens = dice(2) ? dice(9) : 0;
    o.eos = (int32_t)dice(V);
    o.start = 0;
    return o;
}

/* Tokens as they come, with where a row is ended by its callback. */
typedef struct stream {
    int32_t ids[ROWS][64];
    int64_t n[ROWS], most;
} stream;

static bool take(void *user, int64_t source, int32_t token)
{
    stream *s = user;
    s->ids[source][s->n[source]++] = token;
    return s->n[source] < s->most;
}

static fv_generated generate(const fv_model *m, fv_gen_opt o, stream *s)
{
    fv_generated out;
    fv_err e;
    const int32_t *source[ROWS];
    for (int i = 0; i < ROWS; i++) source[i] = prompt[i];
    o.token = take;
    o.user = s;
    ok(fv_generate(&out, device, m, source, len, ROWS, &o, &e), &e);
    return out;
}

/* The same text with and without drafts; returns how many drafts were right. */
static int64_t compare(const fv_model *m, fv_gen_opt o, const fv_model *assistant, int64_t stop)
{
    stream plain = {.most = stop}, drafted = {.most = stop};
    fv_generated a = generate(m, o, &plain);
    assert_int_equal(a.drafted, 0);
    o.assistant = assistant;
    o.num_assistant_tokens = 1 + dice(6);
    o.prompt_lookup_num_tokens = assistant ? 0 : 1 + dice(8);
    o.max_matching_ngram_size = 1 + dice(3);
    fv_generated b = generate(m, o, &drafted);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(a.hyp[i].n, b.hyp[i].n);
        assert_memory_equal(a.hyp[i].ids, b.hyp[i].ids, (size_t)a.hyp[i].n * sizeof(int32_t));
        /* a device adds up what the host adds up with drafts; and renormalised, behind an encoder,
         * on the host, too */
        bool same = test_on_cpu() && !o.renormalize_logits;
        double off = fabs(a.hyp[i].score - b.hyp[i].score);
        if (!(off <= (same ? 0 : 1e-4 * (1 + fabs(a.hyp[i].score)))))
            fail_msg("%s, sampled %d, renormalised %d: row %d of %d tokens scores %.9g, with "
                     "drafts %.9g",
                     fv_model_head(m), o.do_sample, o.renormalize_logits, i, (int)a.hyp[i].n,
                     a.hyp[i].score, b.hyp[i].score);
    }
    assert_memory_equal(&plain, &drafted, sizeof plain);
    assert_true(b.accepted <= b.drafted);
    int64_t right = b.accepted;
    fv_generated_free(&a);
    fv_generated_free(&b);
    return right;
}

static void lookups_change_no_bit(void **state)
{
    (void)state;
    for (int f = 0; f < CONFIGS; f++) {
        int64_t right = 0;
        fv_model *m = make(f, 7);
        for (int i = 0; i < (test_brief() ? 4 : 16); i++) {
            make_prompts(i % 2);
            right += compare(m, options(i), NULL, i % 4 ? 64 : 5);
        }
        /* frequencies that follow the length allow no drafts */
        if (f == DYNAMIC ? right : !right) fail_msg("%s: %lld right", configs[f], (long long)right);
        fv_model_free(m);
    }
}

static void assistants_change_no_bit(void **state)
{
    (void)state;
    fv_model *llama = make(LLAMA, 7), *gpt2 = make(GPT2, 3), *same = make(LLAMA, 7);
    int64_t right = 0;
    for (int i = 0; i < (test_brief() ? 4 : 16); i++) {
        make_prompts(i % 2);
        right += compare(llama, options(i), same, 64);
        compare(llama, options(i), gpt2, i % 4 ? 64 : 5);
        compare(gpt2, options(i), llama, 64);
    }
    assert_true(right > 100); /* it is the model itself, with the same random numbers */
    fv_model_free(llama);
    fv_model_free(gpt2);
    fv_model_free(same);
}

/* Texts up to the model's context: no draft may go beyond it. */
static void full_contexts(void **state)
{
    (void)state;
    fv_model *m = make(GPT2, 3), *same = make(GPT2, 3);
    make_prompts(false);
    for (int i = 0; i < 4; i++) {
        fv_gen_opt o = options(0);
        stream a = {.most = 1000}, b = a;
        o.max_new_tokens = 0;
        o.eos = -1;
        o.min_new_tokens = 0;
        for (int k = 0; k < ROWS; k++) len[k] = 30 + (i > 1 ? 0 : k % 3 - 2);
        o.max_length = 90;
        fv_generated x = generate(m, o, &a);
        o.assistant = i % 2 ? same : NULL;
        o.prompt_lookup_num_tokens = 9;
        o.num_assistant_tokens = 9;
        fv_generated y = generate(m, o, &b);
        assert_memory_equal(&a, &b, sizeof a);
        fv_generated_free(&x);
        fv_generated_free(&y);
    }
    fv_model_free(m);
    fv_model_free(same);
}

static void refusals(void **state)
{
    (void)state;
    fv_model *m = make(LLAMA, 7), *other, *t5 = make(T5, 1);
    fv_err e;
    fv_generated out;
    fv_gen_opt o = options(0);
    const int32_t *source = prompt[0];
    int64_t n = 3;
    ok(fv_model_new(&other, device,
                    "{\"model_type\":\"gpt2\",\"vocab_size\":60,\"n_positions\":96,\"n_embd\":16,"
                    "\"n_layer\":1,\"n_head\":2}",
                    (fv_model_opt){.serve = true}, 1, &e),
       &e);
    make_prompts(true);
    o.assistant = other;
    assert_int_equal(fv_generate(&out, device, m, &source, &n, 1, &o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "60 tokens"));
    assert_non_null(strstr(e.text, "same 61 tokens"));
    o.assistant = t5;
    assert_int_equal(fv_generate(&out, device, m, &source, &n, 1, &o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "without an encoder"));
    o.assistant = m; /* whose context is 96 */
    o.max_new_tokens = 0;
    o.max_length = 200;
    assert_int_equal(fv_generate(&out, device, t5, &source, &n, 1, &o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "context is 96 tokens"));
    fv_model_free(m);
    fv_model_free(other);
    fv_model_free(t5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookups_change_no_bit),
        cmocka_unit_test(assistants_change_no_bit),
        cmocka_unit_test(full_contexts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
