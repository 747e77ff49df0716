/* test_nn_parts.c - positions, caches, small layers, and what layers refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/author/backend.h"
#include "fovea/author/nn.h"
#include "helper/golden.h"
#include "helper/layer.h"
#include "nn/part.h"
#include "ops/embed.h"

/* ---- positions ---- */

static void sinusoids_are_the_published_ones(void **state)
{
    (void)state;
    golden g = {.file = FOVEA_TESTS "/golden/nn_layers.safetensors"};
    fv_params *p;
    fv_pos halves, pairs, learned;
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_pos_init(p, &halves, 40, 7, FV_POS_HALVES, 0, 0, "halves");
    fv_pos_init(p, &pairs, 40, 6, FV_POS_PAIRS, 0, 0, "pairs");
    fv_pos_init(p, &learned, 9, 6, FV_POS_LEARNED, 2, 0.02f, "learned");
    assert_int_equal(fv_params_alloc(p, device, FV_F32, true, NULL), FV_OK);
    assert_int_equal(fv_params_randomize(p, 3, NULL), FV_OK);
    assert_int_equal(fv_pos_fill(p, &halves, NULL), FV_OK);
    assert_int_equal(fv_pos_fill(p, &pairs, NULL), FV_OK);
    assert_int_equal(fv_pos_fill(p, &learned, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&g.ctx, device, (fv_ctx_opt){.record = true}, NULL), FV_OK);
    golden_near(&g, halves.table, 2e-7, "sinusoid.halves");
    golden_near(&g, pairs.table, 2e-7, "sinusoid.pairs");
    assert_false(halves.table->wants_grad);

    /* counted from the offset, or by row */
    const int32_t rows[] = {2, 3, 4, 5, 2, 3, 4, 5};
    fv_tensor *x = fv_full(g.ctx, FV_SHAPE(2, 4, 6), 0.5f),
              *by_row = fv_ints(g.ctx, rows, FV_SHAPE(2, 4));
    float a[48], b[48], table[54];
    assert_int_equal(fv_read(g.ctx, fv_pos_fwd(g.ctx, &learned, x, NULL), a, 48), FV_OK);
    assert_int_equal(fv_read(g.ctx, fv_pos_fwd(g.ctx, &learned, x, by_row), b, 48), FV_OK);
    assert_int_equal(fv_read(g.ctx, learned.table, table, 54), FV_OK);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < 48; i++) assert_true(a[i] == 0.5f + table[12 + i % 24]);
    assert_null(fv_pos_fwd(g.ctx, &learned, fv_zeros(g.ctx, FV_SHAPE(1, 8, 6)), NULL));
    assert_int_equal(fv_ctx_status(g.ctx), FV_ESHAPE);
    fv_ctx_free(g.ctx);
    fv_params_free(p);
}

static void distances_fall_into_t5s_buckets(void **state)
{
    (void)state;
    golden g = {.file = FOVEA_TESTS "/golden/nn_layers.safetensors"};
    const int64_t size[][2] = {{32, 128}, {8, 20}};
    for (int k = 0; k < 2; k++)
        for (int unidirectional = 0; unidirectional < 2; unidirectional++) {
            fv_array want = golden_array(&g, "t5_buckets_%d.%s", (int)size[k][0],
                                         unidirectional ? "one" : "both");
            for (int i = 0; i < 601; i++)
                assert_int_equal(fv_rel_bucket(i - 300, size[k][0], size[k][1], unidirectional),
                                 (int)want.data[i]);
            fv_array_close(&want);
        }
}

static void alibi_slopes_are_the_papers(void **state)
{
    (void)state;
    golden g = {.file = FOVEA_TESTS "/golden/nn_layers.safetensors"};
    for (int heads = 4; heads <= 6; heads += 2) {
        fv_array want = golden_array(&g, "alibi.slopes%d", heads);
        for (int h = 0; h < heads; h++)
            assert_float_equal(fv_alibi_slope(h, heads), want.data[h], 1e-7);
        fv_array_close(&want);
    }
    assert_int_equal(fv_ctx_new(&g.ctx, device, (fv_ctx_opt){0}, NULL), FV_OK);
    int64_t zero;
    float two_way[2 * 5], causal[2 * 3];
    assert_int_equal(fv_read(g.ctx, fv_alibi(g.ctx, FV_F32, 2, 3, false, &zero), two_way, 10),
                     FV_OK);
    assert_int_equal(zero, 2);
    assert_int_equal(fv_read(g.ctx, fv_alibi(g.ctx, FV_F32, 2, 3, true, &zero), causal, 6), FV_OK);
    assert_int_equal(zero, 2);
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 5; i++)
            assert_float_equal(two_way[h * 5 + i], -fv_alibi_slope(h, 2) * (float)abs(i - 2), 1e-7);
        for (int i = 0; i < 3; i++) assert_true(causal[h * 3 + i] == two_way[h * 5 + i]);
    }
    fv_ctx_free(g.ctx);
}

static void rotary_frequencies_stretch_as_published(void **state)
{
    (void)state;
    golden g = {.file = FOVEA_TESTS "/golden/nn_layers.safetensors"};
    assert_int_equal(fv_ctx_new(&g.ctx, device, (fv_ctx_opt){0}, NULL), FV_OK);
    const struct {
        const char *name;
        fv_rotary r;
    } kinds[] = {
        {"linear", {.kind = FV_ROTARY_LINEAR, .width = 32, .factor = 4}},
        {"dynamic", {.kind = FV_ROTARY_DYNAMIC, .width = 32, .factor = 2, .trained = 128}},
        {"yarn", {.kind = FV_ROTARY_YARN, .width = 32, .factor = 8, .trained = 128}},
        {"llama3",
         {.kind = FV_ROTARY_LLAMA3, .width = 32, .factor = 8, .trained = 128, .low = 1, .high = 4}},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fv_rope_arg rope = fv_rotary_at(g.ctx, &kinds[i].r, fv_positions(g.ctx, 1, 1, 0), 300);
        golden_near(&g, rope.freq, 1e-6, "rotary.%s", kinds[i].name);
        fv_array by = golden_array(&g, "rotary.%s_sharpen", kinds[i].name);
        assert_float_equal(rope.attention_factor, by.data[0], 1e-6);
        fv_array_close(&by);
    }
    assert_null(
        fv_rotary_at(g.ctx, &(fv_rotary){.kind = FV_ROTARY_YARN, .width = 32}, NULL, 1).freq);
    assert_int_equal(fv_ctx_status(g.ctx), FV_EARG);
    fv_ctx_free(g.ctx);
}

static const fv_backend *real;
static int uploads;

static void count_upload(fv_stream *s, void *dst, const void *host, size_t bytes)
{
    uploads++;
    real->upload(s, dst, host, bytes);
}

/* What a step needs of positions beside its tokens, as models ask for it. */
static int uploads_of_step(fv_ctx *c, const fv_rotary *r, const fv_rel_bias *l, float *first)
{
    int64_t zero;
    fv_ctx_reset(c, 0);
    uploads = 0;
    fv_rope_arg rope = fv_rotary_at(c, r, fv_positions(c, 1, 4, 0), 4);
    fv_tensor *bias = fv_rel_bias_fwd(c, l, &zero);
    int n = uploads;
    assert_non_null(bias);
    assert_int_equal(fv_read(c, rope.freq, first, 2), FV_OK);
    return n;
}

/* So that it can be kept as a graph: nothing goes from the host to the device but the first
 * time. */
static void a_step_uploads_no_table_twice(void **state)
{
    (void)state;
    fv_ctx *c;
    fv_err e;
    float slow[2], fast[2];
    fv_backend watched = *(real = device->backend);
    fv_params *p = NULL;
    fv_rel_bias l;
    check(fv_params_new(&p, NULL, &e), &e);
    fv_rel_bias_init(p, &l, 32, 2, 128, false, "rel");
    check(fv_params_alloc(p, device, FV_F32, false, &e), &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    watched.upload = count_upload;
    device->backend = &watched;
    const fv_rotary one = {.width = 4}, other = {.width = 4, .base = 100};
    const fv_rotary dynamic = {.kind = FV_ROTARY_DYNAMIC, .width = 4, .factor = 2, .trained = 2};
    assert_true(uploads_of_step(c, &one, &l, slow) > 0);
    assert_int_equal(uploads_of_step(c, &one, &l, slow), 0);
    assert_true(uploads_of_step(c, &other, &l, fast) > 0); /* it is another table */
    assert_int_equal(uploads_of_step(c, &one, &l, slow), 0);
    assert_true(slow[0] == 1 && fast[0] == 1);
    assert_float_equal(slow[1], 0.01, 1e-6);
    assert_float_equal(fast[1], 0.1, 1e-6);
    for (int i = 0; i < 2; i++) assert_int_equal(uploads_of_step(c, &dynamic, &l, slow), 1);
    fv_ctx_set_record(c, true); /* then the length does not grow */
    for (int i = 1; i >= 0; i--) assert_int_equal(uploads_of_step(c, &dynamic, &l, slow), i);
    device->backend = real;
    fv_ctx_free(c);
    fv_params_free(p);
}

/* ---- decoding one token at a time gives what the whole sequence gives ---- */

enum { B = 2, T = 6, TM = 4, D = 8, CAP = 9 };

/* Token t of a decoder layer with rotary positions: its keys join those before it, the memory's are
 * there already. */
static fv_tensor *decode(fv_ctx *c, const fv_decoder_layer *l, fv_tensor *x, int t, fv_kv self,
                         const fv_kv *cross)
{
    const int32_t pos[B] = {t, t}, lens[B] = {t + 1, t + 1};
    self.pos = fv_ints(c, pos, FV_SHAPE(B));
    self.lens = fv_ints(c, lens, FV_SHAPE(B));
    fv_rope_arg rope = fv_rotary_at(c, &(fv_rotary){.width = 4}, fv_positions(c, B, 1, t), T);
    fv_tensor *one = fv_slice(c, x, 1, t, t + 1);
    return fv_decoder_layer_fwd(c, l, one, (fv_mha_arg){.causal = true, .rope = rope, .kv = &self},
                                (fv_mha_arg){.kv = cross});
}

static void a_cache_changes_nothing(void **state)
{
    const bool packed = *(bool *)*state;
    fv_ctx *c;
    fv_params *p;
    fv_decoder_layer l;
    float x0[B * T * D], m0[B * TM * D], whole[B * T * D], step[B * D];
    for (int i = 0; i < B * T * D; i++) x0[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < B * TM * D; i++) m0[i] = (float)(i * 29 % 97) / 48 - 1;
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_layer_opt o = {.width = D,
                      .n_head = 2,
                      .mha = {.n_kv_head = 1, .names = packed ? "in_proj out_proj" : NULL},
                      .hidden = 12,
                      .pre_norm = true};
    fv_decoder_layer_init(p, &l, o, "layer");
    assert_int_equal(fv_params_alloc(p, device, FV_F32, false, NULL), FV_OK);
    assert_int_equal(fv_params_randomize(p, 5, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){0}, NULL), FV_OK);

    fv_tensor *x = fv_floats(c, x0, FV_SHAPE(B, T, D)),
              *memory = fv_floats(c, m0, FV_SHAPE(B, TM, D));
    fv_rope_arg rope = fv_rotary_at(c, &(fv_rotary){.width = 4}, fv_positions(c, B, T, 0), T);
    fv_tensor *y = fv_decoder_layer_fwd(c, &l, x, (fv_mha_arg){.causal = true, .rope = rope},
                                        (fv_mha_arg){.memory = memory});
    if (fv_read(c, y, whole, B * T * D)) fail_msg("%s", fv_ctx_err(c)->text);

    fv_kv self = {.k = fv_zeros(c, FV_SHAPE(B, CAP, D / 2)),
                  .v = fv_zeros(c, FV_SHAPE(B, CAP, D / 2))};
    fv_kv cross = fv_mha_keys(c, &l.cross, memory);
    for (int t = 0; t < T; t++) {
        if (fv_read(c, decode(c, &l, x, t, self, &cross), step, B * D))
            fail_msg("%s", fv_ctx_err(c)->text);
        for (int b = 0; b < B; b++)
            for (int j = 0; j < D; j++)
                assert_float_equal(step[b * D + j], whole[(b * T + t) * D + j], 2e-6);
    }
    fv_ctx_free(c);
    fv_params_free(p);
}

/* ---- small layers ---- */

static void patches_are_products_of_their_pixels(void **state)
{
    (void)state;
    enum { C = 2, SIDE = 6, P = 3, N = 4, WIDTH = 5 };
    fv_ctx *c;
    fv_params *p;
    fv_conv l;
    float image[C * SIDE * SIDE], y[N * WIDTH], w[WIDTH * C * P * P];
    for (int i = 0; i < C * SIDE * SIDE; i++) image[i] = (float)(i * 31 % 53) / 26 - 1;
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_conv_init(p, &l, C, WIDTH, P, (fv_conv_layer_opt){.conv = {.stride = P}}, "patch");
    assert_int_equal(fv_params_alloc(p, device, FV_F32, false, NULL), FV_OK);
    assert_int_equal(fv_params_randomize(p, 2, NULL), FV_OK);
    assert_int_equal(fv_params_get(p, l.w, w, WIDTH * C * P * P, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){0}, NULL), FV_OK);
    fv_tensor *t = fv_conv_patches(c, &l, fv_floats(c, image, FV_SHAPE(1, C, SIDE, SIDE)));
    assert_non_null(t);
    assert_true(fv_shape_same(t->shape, FV_SHAPE(1, N, WIDTH)));
    assert_int_equal(fv_read(c, t, y, N * WIDTH), FV_OK);
    for (int n = 0; n < N; n++)
        for (int o = 0; o < WIDTH; o++) {
            double sum = 0;
            for (int i = 0; i < C * P * P; i++) {
                int row = n / 2 * P + i / P % P, col = n % 2 * P + i % P;
                sum += (double)w[o * C * P * P + i] *
                       (double)image[(i / (P * P) * SIDE + row) * SIDE + col];
            }
            assert_float_equal(y[n * WIDTH + o], sum, 1e-5);
        }
    fv_ctx_free(c);
    fv_params_free(p);
}

static void tied_embeddings_share_one_table(void **state)
{
    (void)state;
    fv_ctx *c;
    fv_params *p;
    fv_emb l;
    const int32_t ids[] = {3, 0, 1, 3};
    float table[5 * 4], y[4 * 4], grad[5 * 4];
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_emb_init(p, &l, 5, 4, 0, "shared");
    l.skip = 1;
    l.scale = 2;
    assert_int_equal(fv_params_alloc(p, device, FV_F32, true, NULL), FV_OK);
    assert_int_equal(fv_params_randomize(p, 2, NULL), FV_OK);
    assert_int_equal(fv_params_get(p, l.table, table, 20, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){.record = true}, NULL), FV_OK);
    fv_tensor *x = fv_emb_fwd(c, &l, fv_ints(c, ids, FV_SHAPE(2, 2)));
    assert_int_equal(fv_read(c, x, y, 16), FV_OK);
    for (int i = 0; i < 16; i++) assert_true(y[i] == 2 * table[ids[i / 4] * 4 + i % 4]);
    assert_true(fv_shape_same(fv_emb_logits(c, &l, x)->shape, FV_SHAPE(2, 2, 5)));

    fv_ctx_reset(c, 0);
    assert_int_equal(fv_backward(c,
                                 fv_sum_all(c, fv_emb_fwd(c, &l, fv_ints(c, ids, FV_SHAPE(2, 2))))),
                     FV_OK);
    assert_int_equal(fv_params_get_grad(p, l.table, grad, 20, NULL), FV_OK);
    const float want[5] = {2, 0, 0, 4, 0}; /* the padding's row stays as it is */
    for (int i = 0; i < 20; i++) assert_true(grad[i] == want[i / 4]);
    fv_ctx_free(c);
    fv_params_free(p);
}

static void refusals_name_the_layer(void **state)
{
    (void)state;
    fv_ctx *c;
    fv_params *p;
    fv_mha l;
    fv_lin lin;
    fv_err e;
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_mha_init(p, &l, 8, 2, (fv_mha_opt){.names = "in_proj out_proj"}, "h.%d.attn", 3);
    assert_string_equal(l.name, "h.3.attn");
    assert_int_equal(fv_params_alloc(p, device, FV_F32, false, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){0}, NULL), FV_OK);
    fv_tensor *x = fv_zeros(c, FV_SHAPE(1, 2, 8)), *other = fv_zeros(c, FV_SHAPE(1, 3, 8));
    assert_null(fv_mha_fwd(c, &l, x, (fv_mha_arg){.memory = other}));
    assert_non_null(strstr(fv_ctx_err(c)->text, "h.3.attn"));
    fv_ctx_free(c);
    fv_params_free(p);

    char path[400];
    memset(path, 'a', sizeof path);
    path[sizeof path - 1] = 0;
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_lin_init(p, &lin, 2, 2, (fv_lin_opt){0}, "%s", path);
    assert_int_equal(fv_params_alloc(p, device, FV_F32, false, &e), FV_EARG);
    fv_params_free(p);
}

/* A device may do it in one pass where nothing is recorded. */
static void what_enters_an_encoder_is_the_same_recorded_or_not(void **state)
{
    (void)state;
    enum { V = 50, SEQS = 3, LEN = 5, MOST = 1024 };
    static const int64_t widths[] = {768, 256, MOST, 40};
    static const fv_dtype dtypes[] = {FV_F32, FV_BF16};
    float x[3][V * MOST], y[2][SEQS * LEN * MOST], none[2 * MOST];
    int32_t ids[SEQS * LEN], types[SEQS * LEN];
    for (int i = 0; i < 3 * V * MOST; i++) x[i / (V * MOST)][i % (V * MOST)] = sinf((float)i);
    for (int i = 0; i < SEQS * LEN; i++) ids[i] = i * 7 % V, types[i] = i % 2;
    for (size_t k = 0; k < 4 * 2 * 2; k++) {
        int64_t width = widths[k / 4];
        fv_dtype t = dtypes[k % 2];
        for (int record = 0; record < 2; record++) {
            fv_ctx *c;
            assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){.dtype = t, .record = record},
                                        NULL),
                             FV_OK);
            fv_tensor *table[3];
            for (int i = 0; i < 3; i++) table[i] = fv_floats(c, x[i], FV_SHAPE(V, width));
            fv_some_rows of[] = {
                {table[0], .ids = fv_ints(c, ids, FV_SHAPE(SEQS, LEN)), .skip = -1},
                {table[1], .ids = k / 2 % 2 ? fv_ints(c, types, FV_SHAPE(SEQS, LEN)) : NULL,
                 .count = 1, .skip = -1},
                {table[2], .first = 2, .count = LEN, .skip = -1},
            };
            fv_tensor *gain = fv_floats(c, x[0], FV_SHAPE(width)),
                      *bias = fv_floats(c, x[1], FV_SHAPE(width));
            check(fv_read(c, fv__embed(c, of, 3, gain, bias, 1e-5f), y[record], SEQS * LEN * width),
                  fv_ctx_err(c));
            of[0].ids = fv_ints(c, (int32_t[]){0, V}, FV_SHAPE(1, 2));
            of[1].ids = NULL;
            assert_int_not_equal(fv_read(c, fv__embed(c, of, 2, gain, bias, 1e-5f), none,
                                         2 * width),
                                 FV_OK);
            assert_non_null(strstr(fv_ctx_err(c)->text, "50"));
            fv_ctx_free(c);
        }
        assert_memory_equal(y[0], y[1], (size_t)(SEQS * LEN * width) * sizeof(float));
    }
}

/* One mask of a sequence for all its tokens, whichever values they have; none outside training. */
static void variational_dropout_hides_the_same_of_all_tokens(void **state)
{
    enum { SEQS = 3, LEN = 4, WIDE = 64, ALL = SEQS * LEN * WIDE };
    float y[ALL];
    fv_ctx *c;
    int hidden = 0, apart = 0;
    (void)state;
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){.train = true, .seed = 5}, NULL), FV_OK);
    fv_tensor *x = fv_full(c, FV_SHAPE(SEQS, LEN, WIDE), 3);
    assert_int_equal(fv_read(c, fv__variational_dropout(c, x, 0.25f), y, ALL), FV_OK);
    for (int i = 0; i < ALL; i++) {
        int seq = i / WIDE / LEN, first = seq * LEN * WIDE + i % WIDE;
        assert_true(y[i] == 0 || y[i] == 4);
        assert_true(y[i] == y[first]);
        hidden += y[i] == 0;
        apart += y[i] != y[i % WIDE]; /* another sequence has another mask */
    }
    assert_in_range(hidden, ALL / 8, ALL / 2);
    assert_true(apart > 0);
    assert_null(fv__variational_dropout(c, fv_full(c, FV_SHAPE(WIDE), 1), 0.5f));
    assert_int_equal(fv_ctx_status(c), FV_ESHAPE);
    fv_ctx_free(c);
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){0}, NULL), FV_OK);
    x = fv_full(c, FV_SHAPE(SEQS, LEN, WIDE), 3);
    assert_ptr_equal(fv__variational_dropout(c, x, 0.25f), x);
    fv_ctx_free(c);
}

int main(void)
{
    static bool whether[] = {false, true};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinusoids_are_the_published_ones),
        cmocka_unit_test(distances_fall_into_t5s_buckets),
        cmocka_unit_test(alibi_slopes_are_the_papers),
        cmocka_unit_test(rotary_frequencies_stretch_as_published),
        cmocka_unit_test(a_step_uploads_no_table_twice),
        cmocka_unit_test_prestate(a_cache_changes_nothing, &whether[0]),
        cmocka_unit_test_prestate(a_cache_changes_nothing, &whether[1]),
        cmocka_unit_test(patches_are_products_of_their_pixels),
        cmocka_unit_test(tied_embeddings_share_one_table),
        cmocka_unit_test(what_enters_an_encoder_is_the_same_recorded_or_not),
        cmocka_unit_test(variational_dropout_hides_the_same_of_all_tokens),
        cmocka_unit_test(refusals_name_the_layer),
    };
    return cmocka_run_group_tests_name("parts of layers", tests, open_device, close_device);
}
