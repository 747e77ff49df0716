/* test_contrastive.c - the loss between images of one text against its formula in double precision,
 * also where both are changed alike, and all parts of the loss by finite differences. */
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
#include "helper/differences.h"
#include "helper/files.h"

enum { TEXTS = 4, SIDE = 8, WIDTH = 12 };
static const char *const texts[TEXTS] = {"red heart", "blue heart", "red car", "sleepy cat"};

static fv_tok *tok;
static fv_processor *processor;

static bool next_text(void *self, const char **text, size_t *len)
{
    int *i = self;
    if (*i == TEXTS) return false;
    *text = texts[(*i)++];
    *len = strlen(*text);
    return true;
}

/* Every text has two images, in the same order of styles. */
static void put_images(void)
{
    static uint8_t idx[20 + 2 * TEXTS * SIDE * SIDE * 3] = {0,         0,    8, 4, 0,    0, 0,
                                                            2 * TEXTS, 0,    0, 0, SIDE, 0, 0,
                                                            0,         SIDE, 0, 0, 0,    3};
    char table[1000] = "index\ttext\n";
    for (size_t i = 20; i < sizeof idx; i++) idx[i] = (uint8_t)(i * i * 31 % 251);
    for (int i = 0; i < 2 * TEXTS; i++) {
        size_t n = strlen(table);
        snprintf(table + n, sizeof table - n, "%d\t%s\n", i, texts[i / 2]);
    }
    scratch_text("t.tsv", table);
    scratch_put("t-images-idx4-ubyte", idx, sizeof idx);
}

static int set_up(void **state)
{
    static const char *const specials[] = {"<|startoftext|>", "<|endoftext|>", "<unk>", NULL};
    int at = 0;
    fv_err e;
    if (scratch_open(state) || open_device(state)) return -1;
    fv_tok_train_opts o = {.kind = FV_TOK_WORD, .vocab = 20, .min_count = 1, .specials = specials};
    check(fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &at}, &o, &e), &e);
    put_images();
    return 0;
}

static int tear_down(void **state)
{
    fv_tok_close(tok);
    return close_device(state) || scratch_close(state);
}

static fv_feed open_feed(const char *image_weight, const char *joint, const char *overlap)
{
    static _Alignas(16) unsigned char own[4096];
    const char *const keys[] = {"image_weight",
                                image_weight,
                                "joint_augment",
                                joint,
                                "text_overlap",
                                overlap,
                                "images",
                                "t-images-idx4-ubyte",
                                "brightness",
                                "0.3",
                                NULL};
    const fv_objective *o = fv_objective_find("contrastive");
    fv_records from = {.file = scratch("t.tsv"), .field = {"index", "text"}};
    fv_data_report r = {0};
    fv_feed f;
    fv_err e;
    assert_true(o && o->options_size <= sizeof own);
    fv_fields_default(own, o->keys);
    for (int i = 0; keys[i]; i += 2)
        check(fv_fields_set(own, o->keys, keys[i], keys[i + 1], &e), &e);
    check(o->make_processor(&processor, NULL, own, &from, NULL, &e), &e);
    fv_feed_opt t = {.tok = tok,
                     .processor = processor,
                     .options = own,
                     .pad = fv_tok_id(tok, "<|endoftext|>"),
                     .eos = fv_tok_id(tok, "<|endoftext|>")};
    check(o->open(&f, &t, &from, &r, &e), &e);
    return f;
}

static void close_all(fv_feed *f, fv_model *m)
{
    fv_model_free(m);
    fv_feed_close(f);
    fv_processor_close(processor);
}

static fv_model *new_model(uint64_t seed)
{
    char config[900];
    fv_model *m;
    fv_err e;
    snprintf(
        config, sizeof config,
        "{\"model_type\": \"clip\", \"projection_dim\": %d, \"vision_config\": {\"image_size\": "
        "%d, \"patch_size\": 4, \"hidden_size\": 16, \"intermediate_size\": 24, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"initializer_range\": 0.3}, "
        "\"text_config\": {\"vocab_size\": %d, \"hidden_size\": 16, \"intermediate_size\": 24, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"max_position_embeddings\": 16, "
        "\"eos_token_id\": %d, \"bos_token_id\": %d, \"pad_token_id\": %d, "
        "\"initializer_range\": 0.3}}",
        WIDTH, SIDE, fv_tok_size(tok), fv_tok_id(tok, "<|endoftext|>"),
        fv_tok_id(tok, "<|startoftext|>"), fv_tok_id(tok, "<|endoftext|>"));
    check(fv_model_new(&m, device, config, (fv_model_opt){.train = true, .dtype = FV_F64}, seed,
                       &e),
          &e);
    return m;
}

static const int32_t rows[TEXTS] = {0, 1, 2, 3};

static void make_batch(const fv_feed *f, fv_batch *b)
{
    fv_err e;
    check(f->make(f->self, b, rows, TEXTS, (fv_data_rng){.seed = 5, .epoch = 1}, &e), &e);
}

/* The batch of all texts through the objective: its loss and, where asked for, gradients. */
static double loss_of(const fv_feed *f, const fv_model *m, bool grad)
{
    fv_batch b = {0};
    fv_ctx *c;
    fv_err e;
    double loss;
    make_batch(f, &b);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.dtype = FV_F64, .record = grad}, &e), &e);
    fv_items in = fv_batch_items(c, &b), out = {0};
    if (f->forward)
        f->forward(f->self, c, m, &in, &out);
    else
        fv_model_forward(c, m, &in, &out);
    fv_tensor *y = fv_items_get(&out, "loss");
    fv_params_zero_grad(fv_model_params(m));
    if (grad) check(fv_backward(c, y), fv_ctx_err(c));
    check(fv_read_f64(c, y, &loss, 1), fv_ctx_err(c));
    fv_ctx_free(c);
    fv_batch_free(&b);
    return loss;
}

/* ---- by hand ---- */

/* The unit vectors of the images of a part of the batch; returns how many there are. */
static int64_t embed(double (*v)[WIDTH], const fv_feed *f, const fv_model *m, const char *part)
{
    fv_batch b = {0};
    fv_ctx *c;
    fv_err e;
    make_batch(f, &b);
    const fv_batch_part *x = fv_batch_get(&b, part);
    assert_non_null(x);
    int64_t n = x->shape.d[0];
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.dtype = FV_F64}, &e), &e);
    fv_items all = fv_batch_items(c, &b), in = {0}, out = {0};
    fv_items_put(&in, "pixel_values", fv_items_get(&all, part));
    fv_model_forward(c, m, &in, &out);
    check(fv_read_f64(c, fv_items_get(&out, "image_embeds"), v[0], n * WIDTH), fv_ctx_err(c));
    fv_ctx_free(c);
    fv_batch_free(&b);
    return n;
}

/* -log softmax(a . others)[right] */
static double entropy(const double *a, double (*others)[WIDTH], int right)
{
    double sum = 0, mine = 0;
    for (int k = 0; k < TEXTS; k++) {
        double s = 0;
        for (int i = 0; i < WIDTH; i++) s += a[i] * others[k][i];
        s /= (double)0.07f;
        sum += exp(s);
        if (k == right) mine = s;
    }
    return log(sum) - mine;
}

/* What image_weight = 2 adds. */
static void image_loss_is_its_formula(void **state)
{
    static const char *const joint[] = {"0", "0.7"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        double v[3 * TEXTS][WIDTH], want = 0;
        fv_feed none = open_feed("0", "0", "0");
        fv_model *m = new_model(3);
        double text = loss_of(&none, m, false);
        fv_feed_close(&none);
        fv_processor_close(processor);
        fv_feed f = open_feed("2", joint[k], "0");
        int64_t n = embed(v + TEXTS, &f, m, "other_pixel_values");
        assert_int_equal(n, k ? 2 * TEXTS : TEXTS);
        if (!k) embed(v, &f, m, "pixel_values");
        double(*a)[WIDTH] = v + (k ? TEXTS : 0), (*b)[WIDTH] = a + TEXTS;
        for (int i = 0; i < TEXTS; i++) want += entropy(a[i], b, i) + entropy(b[i], a, i);
        assert_true(fabs(loss_of(&f, m, false) - (text + want / TEXTS)) < 1e-5);
        close_all(&f, m);
    }
}

static void gradients_are_differences(void **state)
{
    (void)state;
    fv_feed f = open_feed("1.5", "0.5", "0.4");
    fv_model *m = new_model(7);
    gradients_match_differences(&f, m, loss_of, 1.0f / 4096, 1e-4);
    close_all(&f, m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(image_loss_is_its_formula),
        cmocka_unit_test(gradients_are_differences),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
