/* test_session.c - sessions: rows that change places, rows that leave, weights laid out once; the
 * same bits throughout. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/author/backend.h"
#include "fovea/author/gen.h"
#include "fovea/fovea.h"
#include "fovea/author/op.h"
#include "fovea/author/session.h"
#include "helper/device.h"
#include "helper/files.h"
#include "model/session.h"

enum { SOURCES = 4, BEAMS = 3, ROWS = SOURCES * BEAMS, VOCAB = 50, LONGEST = 100, WORDS = 7 };

static const char config[] = "{\"model_type\":\"marian\",\"vocab_size\":50,\"d_model\":24,"
                             "\"encoder_layers\":2,\"decoder_layers\":2,"
                             "\"encoder_attention_heads\":2,\"decoder_attention_heads\":3,"
                             "\"encoder_ffn_dim\":40,\"decoder_ffn_dim\":36,"
                             "\"max_position_embeddings\":128,\"scale_embedding\":true,\"init_"
                             "std\":0.3,\"pad_token_id\":49,\"eos_token_id\":0,"
                             "\"decoder_start_token_id\":49}";

static uint32_t random_state;
static int draw(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (uint32_t)n);
}

/* Source i: words of its own, of a length of its own. */
static int source_len(int i) { return WORDS - i; }
static int source_word(int i, int j) { return 1 + (i * 13 + j * 7) % (VOCAB - 2); }

/* Begins with n sources side by side, padded to the longest. */
static void begin(fv_ctx *c, fv_session *s, const int *sources, int n)
{
    int32_t ids[SOURCES * WORDS];
    uint8_t mask[SOURCES * WORDS];
    fv_items in = {0};
    int most = 0;
    for (int i = 0; i < n; i++)
        most = source_len(sources[i]) > most ? source_len(sources[i]) : most;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < most; j++) {
            mask[i * most + j] = j < source_len(sources[i]);
            ids[i * most + j] = mask[i * most + j] ? source_word(sources[i], j) : VOCAB - 1;
        }
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(n, most)));
    fv_items_put(&in, "attention_mask", fv_bytes(c, mask, FV_SHAPE(n, most)));
    fv_session_begin(c, s, &in);
    assert_int_equal(fv_ctx_status(c), FV_OK);
}

static void step(fv_ctx *c, fv_session *s, const int32_t *ids, int rows, int n, float *logits)
{
    fv_tensor *y = fv_session_step(c, s, fv_ints(c, ids, FV_SHAPE(rows, n)));
    if (fv_read(c, y, logits, rows * VOCAB)) print_error("%s\n", fv_ctx_err(c)->text);
    assert_int_equal(fv_ctx_status(c), FV_OK);
}

typedef struct row {
    int source, n;
    int32_t ids[LONGEST];
} row;

/* What a session of its own says after all these tokens, given at once. */
static void alone(const fv_model *m, const row *r, float *logits)
{
    fv_ctx *c;
    fv_session *s;
    fv_err e;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, m, device, 1, LONGEST, &e), &e);
    begin(c, s, &r->source, 1);
    step(c, s, r->ids, 1, r->n, logits);
    fv_session_free(s);
    fv_ctx_free(c);
}

/* Beams go on from any beam of their source; sources leave, and the last takes the place. */
static int shuffle(row *rows, int n_rows, int32_t *from, int time)
{
    static row old[ROWS];
    int groups = n_rows / BEAMS;
    memcpy(old, rows, (size_t)n_rows * sizeof *rows);
    int leaves = time % 30 == 29 && groups > 1 ? draw(groups) : -1,
        left = leaves >= 0 ? groups - 1 : groups;
    for (int g = 0; g < left; g++)
        for (int k = 0; k < BEAMS; k++) {
            int source = g == leaves ? groups - 1 : g;
            from[g * BEAMS + k] = source * BEAMS + (draw(4) ? draw(BEAMS) : k);
            /* a circle */
            if (time % 7 == 3) from[g * BEAMS + k] = source * BEAMS + (k + 1) % BEAMS;
            rows[g * BEAMS + k] = old[from[g * BEAMS + k]];
        }
    return left * BEAMS;
}

/* The same bits on the CPU, where a row's numbers do not depend on the batch; near on a device. */
static void same_numbers(const float *a, const float *b, int n)
{
    if (test_on_cpu()) assert_memory_equal(a, b, (size_t)n * sizeof *a);
    for (int i = 0; i < n; i++) assert_true(fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i])));
}

static fv_session *open_session(fv_model **m, fv_ctx **c, int rows)
{
    fv_session *s;
    fv_err e;
    check(fv_model_new(m, device, config, (fv_model_opt){0}, 5, &e), &e);
    check(fv_ctx_new(c, device, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, *m, device, rows, LONGEST, &e), &e);
    return s;
}

static void rows_that_change_places_keep_their_history(void **state)
{
    (void)state;
    static row rows[ROWS];
    fv_model *m;
    fv_ctx *c;
    fv_session *s = open_session(&m, &c, ROWS);
    random_state = 1;
    for (int again = 0; again < (test_brief() ? 1 : 2); again++) { /* a session can be used again */
        fv_ctx_reset(c, 0);
        begin(c, s, (int[]){0, 1, 2, 3}, SOURCES);
        for (int i = 0; i < ROWS; i++) rows[i] = (row){.source = i / BEAMS};
        int n_rows = ROWS;
        for (int time = 0; time < LONGEST; time++) {
            int32_t ids[ROWS], from[ROWS];
            float logits[ROWS * VOCAB], want[VOCAB];
            for (int i = 0; i < n_rows; i++) ids[i] = rows[i].ids[rows[i].n++] = draw(VOCAB - 1);
            fv_ctx_reset(c, (uint64_t)time);
            step(c, s, ids, n_rows, 1, logits);
            for (int i = 0;
                 i < n_rows && (time % (test_brief() ? 99 : 9) == 0 || time == LONGEST - 1); i++) {
                alone(m, &rows[i], want);
                same_numbers(logits + i * VOCAB, want, VOCAB);
            }
            n_rows = shuffle(rows, n_rows, from, time);
            fv_session_select(c, s, from, n_rows);
            assert_int_equal(fv_ctx_status(c), FV_OK);
            assert_int_equal(fv_session_count(s), n_rows);
        }
        assert_int_equal(n_rows, BEAMS);
    }
    fv_session_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void a_wrong_order_is_refused(void **state)
{
    (void)state;
    static const struct {
        int32_t from[4];
        int n;
    } cases[] = {{{0, 1, 2, 4}, 4},
                 {{-1, 1, 2, 3}, 4},
                 {{0, 1, 2, 3}, 0},
                 {{0, 2, 2, 3}, 4},
                 {{0, 1, 2, 3}, 3}};
    fv_model *m;
    fv_ctx *c;
    fv_session *s = open_session(&m, &c, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_ctx_reset(c, 0);
        begin(c, s, (int[]){0, 1}, 2);
        fv_session_select(c, s, cases[i].from, cases[i].n);
        assert_int_equal(fv_ctx_status(c), FV_EARG);
    }
    fv_session_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

/* ---- models that serve ---- */

static fv_gen_opt beams(int64_t n, const int32_t *pad)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = n;
    o.max_length = test_brief() ? 10 : 40;
    o.start = o.pad = *pad;
    o.eos = 0;
    o.forced_eos = -1;
    o.banned = pad;
    o.n_banned = 1;
    return o;
}

static fv_generated generate(const fv_model *m, int first, int n, const fv_gen_opt *o)
{
    int32_t ids[SOURCES][WORDS];
    const int32_t *source[SOURCES];
    int64_t len[SOURCES];
    fv_generated out;
    fv_err e;
    for (int i = 0; i < n; i++) {
        source[i] = ids[i];
        len[i] = source_len(first + i);
        for (int j = 0; j < len[i]; j++) ids[i][j] = source_word(first + i, j);
    }
    check(fv_generate(&out, device, m, source, len, n, o, &e), &e);
    return out;
}

static void same_hypothesis(const fv_hyp *a, const fv_hyp *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    if (test_on_cpu()) assert_memory_equal(&a->score, &b->score, sizeof a->score);
    assert_true(fabs(a->score - b->score) <= 1e-4);
}

static void save_and_serve(fv_model **plain, fv_model **served, fv_dtype stored, fv_dtype weights)
{
    const char *dir = scratch("saved");
    fv_err e;
    check(fv_model_new(plain, device, config, (fv_model_opt){0}, 11, &e), &e);
    check(fv_model_save(*plain, dir, stored, &e), &e);
    check(fv_model_open(served, device, dir, (fv_model_opt){.serve = true, .weights = weights}, &e),
          &e);
    scratch_drop("saved"); /* what is mapped stays */
}

static void a_model_that_serves_gives_the_same_bits(void **state)
{
    (void)state;
    const int32_t pad = VOCAB - 1;
    fv_model *plain, *served;
    save_and_serve(&plain, &served, FV_F32, FV_F32);
    for (int64_t k = 1; k <= 5; k += 2)
        for (int more = 0; more < (test_brief() ? 1 : 3); more++) {
            fv_gen_opt o = beams(k, &pad);
            o.renormalize_logits = more == 1;
            o.repetition_penalty = more == 2 ? 1.3f : 1.0f;
            fv_generated a = generate(plain, 0, SOURCES, &o), b = generate(served, 0, SOURCES, &o);
            for (int i = 0; i < SOURCES; i++) {
                fv_generated one = generate(served, i, 1, &o);
                same_hypothesis(&a.hyp[i], &b.hyp[i]);
                same_hypothesis(&a.hyp[i], &one.hyp[0]);
                fv_generated_free(&one);
            }
            fv_generated_free(&a);
            fv_generated_free(&b);
        }
    fv_model_free(plain);
    fv_model_free(served);
}

/* Memory comes with what was there before, which may be no number. */
static void spoil_memory(void)
{
    const size_t bytes = 64 << 20;
    void *host = malloc(bytes), *block = device->backend->alloc(device, bytes);
    fv_ctx *c;
    fv_err e;
    assert_true(host && block);
    memset(host, 0xff, bytes);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    device->backend->upload(fv_ctx_stream(c), block, host, bytes);
    device->backend->sync(fv_ctx_stream(c));
    fv_ctx_free(c);
    device->backend->release(device, block, bytes);
    free(host);
}

static void what_memory_held_before_does_not_matter(void **state)
{
    (void)state;
    const int32_t pad = VOCAB - 1;
    fv_model *m;
    fv_err e;
    check(fv_model_new(&m, device, config, (fv_model_opt){0}, 11, &e), &e);
    for (int64_t k = 1; k <= 3; k += 2) {
        fv_gen_opt o = beams(k, &pad);
        fv_generated a = generate(m, 0, SOURCES, &o);
        spoil_memory();
        fv_generated b = generate(m, 0, SOURCES, &o);
        for (int i = 0; i < SOURCES; i++) same_hypothesis(&a.hyp[i], &b.hyp[i]);
        fv_generated_free(&a);
        fv_generated_free(&b);
    }
    fv_model_free(m);
}

/* A weight is used as it lies in the file, then laid out, then used so: by one after another, and
 * by several at once. */
typedef struct user {
    const fv_model *model;
    fv_generated out;
} user;

static void *use(void *p)
{
    user *u = p;
    const int32_t pad = VOCAB - 1;
    fv_gen_opt o = beams(2, &pad);
    u->out = generate(u->model, 0, 1, &o);
    return NULL;
}

static void weights_may_lie_in_the_file(void **state)
{
    (void)state;
    const fv_dtype kinds[] = {FV_F32, FV_BF16, FV_F16};
    for (int k = test_brief(); k < (test_brief() ? 2 : 3); k++) {
        fv_model *plain, *served, *shared;
        fv_err e;
        save_and_serve(&plain, &served, kinds[k], FV_F32);
        const char *dir = scratch("shared");
        check(fv_model_save(plain, dir, kinds[k], &e), &e);
        check(fv_model_open(&shared, device, dir, (fv_model_opt){.serve = true}, &e), &e);
        scratch_drop("shared");
        user first = {.model = served}, more[4];
        pthread_t thread[4];
        use(&first);
        for (int i = 0; i < 4; i++) {
            more[i] = (user){.model = test_on_cpu() ? shared : served};
            if (test_on_cpu())
                assert_int_equal(pthread_create(&thread[i], NULL, use, &more[i]), 0);
            else
                use(&more[i]);
        }
        for (int i = 0; i < 4; i++) {
            if (test_on_cpu()) pthread_join(thread[i], NULL);
            same_hypothesis(&first.out.hyp[0], &more[i].out.hyp[0]);
            fv_generated_free(&more[i].out);
            user again = {.model = served};
            use(&again);
            same_hypothesis(&first.out.hyp[0], &again.out.hyp[0]);
            fv_generated_free(&again.out);
        }
        fv_generated_free(&first.out);
        fv_model_free(plain);
        fv_model_free(served);
        fv_model_free(shared);
    }
}

/* A hypothesis's score with weights of a dtype, and what f32 weights give its tokens. */
static void near_score(const fv_model *plain, fv_dtype dtype, int source, const fv_hyp *got,
                       double most)
{
    int32_t ids[WORDS];
    double want;
    fv_err e;
    for (int j = 0; j < source_len(source); j++) ids[j] = source_word(source, j);
    check(fv_score_continuations(&want, device, plain, ids, source_len(source),
                                 (const int32_t *const[]){got->ids}, &got->n, 1, VOCAB - 1, &e),
          &e);
    want /= (double)got->n; /* length_penalty 1 */
    if (!(fabs(got->score - want) < most))
        fail_msg("dtype %d, source %d: score %g, with f32 weights %g, at most %g apart", (int)dtype,
                 source, got->score, want, most);
}

/* Rounded weights move the score of a hypothesis a little.  Rounding a factor by u moves a logit, a
 * sum of 24 products of deviation 0.3 each behind about 12 rounded products, by a deviation of
 * 0.3 sqrt(24 * 12) u = 5 u, and the mean log-probability by less than 4 of them: bf16 has
 * u = 2^-9 of weights and, on a GPU, of activations; q8 1/254 and q4 1/14 of the greatest of a
 * block.
 *
 * A batch changes no bit on the CPU.  A GPU has kernels for so many rows, which round activations
 * in places of their own: where two beams are alike another one is kept, and what grows from it may
 * score quite differently.  So a score is held against that of the same tokens. */
static void narrow_weights_serve(void **state)
{
    (void)state;
    static const struct {
        fv_dtype dtype;
        double off;
    } kinds[] = {{FV_BF16, 0.1}, {FV_Q8, 0.2}, {FV_Q4, 2}};
    const int32_t pad = VOCAB - 1;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fv_model *plain, *served;
        save_and_serve(&plain, &served, FV_F32, kinds[k].dtype);
        fv_gen_opt o = beams(4, &pad);
        fv_generated a = generate(plain, 0, SOURCES, &o), b = generate(served, 0, SOURCES, &o);
        for (int i = 0; i < SOURCES; i++) {
            fv_generated one = generate(served, i, 1, &o);
            if (test_on_cpu()) same_hypothesis(&b.hyp[i], &one.hyp[0]);
            near_score(plain, kinds[k].dtype, i, &one.hyp[0], kinds[k].off);
            near_score(plain, kinds[k].dtype, i, &b.hyp[i], kinds[k].off);
            assert_true(fabs(b.hyp[i].score - a.hyp[i].score) > 0);
            fv_generated_free(&one);
        }
        fv_generated_free(&a);
        fv_generated_free(&b);
        fv_model_free(plain);
        fv_model_free(served);
    }
}

/* A file of another dtype is converted, and what is mapped is not written to. */
static void a_served_parameter_does_not_change(void **state)
{
    (void)state;
    fv_model *plain, *served;
    fv_err e;
    float one = 1;
    if (!test_on_cpu()) skip(); /* a device has memory of its own: nothing is mapped */
    save_and_serve(&plain, &served, FV_F32, FV_F32);
    fv_tensor *t = fv_params_find(fv_model_params(served), "model.decoder.layers.0.fc1.bias");
    assert_true(fv_params_borrowed(t));
    assert_int_equal(fv_params_set(fv_model_params(served), t, &one, 1, &e), FV_ESTATE);
    assert_non_null(strstr(e.text, "mapped"));
    fv_model_free(plain);
    fv_model_free(served);
    save_and_serve(&plain, &served, FV_BF16, FV_F32);
    t = fv_params_find(fv_model_params(served), "model.decoder.layers.0.fc1.bias");
    assert_false(fv_params_borrowed(t));
    fv_model_free(plain);
    fv_model_free(served);
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

/* ---- steps whose tokens a device has chosen ---- */

enum { GROWN = 20, PROMPT = 5 };

static void keep_logits(fv_ctx *c, void *to, fv_tensor *y)
{
    (void)c;
    *(fv_tensor **)to = y;
}

/* Two rows of a model whose frequencies follow the length.  by_device: the host gives the first
 * step its tokens; those of the others lie where a sampling kernel leaves them. */
static void grow(const fv_model *m, bool by_device, float *logits)
{
    const int32_t prompt[2 * PROMPT] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    fv_ctx *c;
    fv_session *s;
    fv_err e;
    fv_tensor *y = NULL;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, m, device, 2, LONGEST, &e), &e);
    fv_session_step(c, s, fv_ints(c, prompt, FV_SHAPE(2, PROMPT)));
    for (int t = 0; t < GROWN; t++) {
        const int32_t ids[2] = {7 + t % 3, 11 + t % 5};
        bool given = !by_device || t == 0;
        int at = PROMPT + t;
        const int32_t in[8] = {ids[0], ids[1], at, at, at + 1, at + 1, at, at};
        if (!given)
            device->backend->upload(fv_ctx_stream(c), s->step_inputs.all.t.data, in, sizeof in);
        fv__session_replay(c, s, given ? ids : NULL, FV_STEP_LOGITS, keep_logits, &y);
        check(fv_ctx_status(c), fv_ctx_err(c));
        assert_int_equal(fv_session_len(s, 1), at + 1);
        check(fv_read(c, y, logits + t * 2 * VOCAB, 2 * VOCAB), fv_ctx_err(c));
    }
    fv_session_free(s);
    fv_ctx_free(c);
}

static void frequencies_follow_what_a_device_chose(void **state)
{
    static const char growing[] =
        "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"vocab_size\":50,\"max_position_embeddings\":8,\"initializer_range\":0.3,"
        "\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2.0}}";
    static float by_host[GROWN * 2 * VOCAB], by_device[GROWN * 2 * VOCAB];
    fv_model *m;
    fv_err e;
    (void)state;
    check(fv_model_new(&m, device, growing, (fv_model_opt){0}, 5, &e), &e);
    grow(m, false, by_host);
    grow(m, true, by_device);
    same_numbers(by_device, by_host, GROWN * 2 * VOCAB);
    fv_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_change_places_keep_their_history),
        cmocka_unit_test(a_wrong_order_is_refused),
        cmocka_unit_test(what_memory_held_before_does_not_matter),
        cmocka_unit_test(a_model_that_serves_gives_the_same_bits),
        cmocka_unit_test(narrow_weights_serve),
        cmocka_unit_test(weights_may_lie_in_the_file),
        cmocka_unit_test(a_served_parameter_does_not_change),
        cmocka_unit_test(frequencies_follow_what_a_device_chose),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
