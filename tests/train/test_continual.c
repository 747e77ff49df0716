/* test_continual.c - tasks one after another: every method runs, is stopped and resumed with the
 * same bits; what is done against forgetting does something; the report adds up. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

enum { SIDE = 4, EACH = 24, LABELS = 4 };

/* Images of SIDE x SIDE: the label's quarter is bright, with some noise. */
static void put_images(const char *name, uint32_t noise)
{
    enum { N = EACH * LABELS, BYTES = N * SIDE * SIDE };
    static unsigned char images[16 + BYTES], labels[8 + N];
    unsigned char head[16] = {0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    memcpy(images, head, 16);
    memcpy(labels, "\0\0\x08\x01\0\0\0", 7);
    labels[7] = N;
    for (int i = 0; i < N; i++) {
        int label = i % LABELS;
        labels[8 + i] = (unsigned char)label;
        for (int p = 0; p < SIDE * SIDE; p++) {
            bool bright = (p / SIDE / 2) * 2 + p % SIDE / 2 == label;
            noise = noise * 1664525u + 1013904223u;
            images[16 + i * SIDE * SIDE + p] = (unsigned char)((noise >> 26) +
                                                               (bright ? 150u : 0u));
        }
    }
    char file[80];
    snprintf(file, sizeof file, "%s-images-idx3-ubyte", name);
    scratch_put(file, images, sizeof images);
    snprintf(file, sizeof file, "%s-labels-idx1-ubyte", name);
    scratch_put(file, labels, sizeof labels);
}

static int set_up(void **state)
{
    if (scratch_open(state) || open_device(state)) return -1;
    put_images("train", 1);
    put_images("valid", 2);
    scratch_text("r.ini",
                 "[model]\nmodel_type = vit\narchitecture = ViTForImageClassification\n"
                 "patch_size = 2\nhidden_size = 16\nnum_hidden_layers = 1\n"
                 "num_attention_heads = 2\nintermediate_size = 16\n"
                 "[data]\nobjective = image_classify\ntrain = train-images-idx3-ubyte\n"
                 "valid = valid-images-idx3-ubyte\n"
                 "[continual]\ntasks = 0,1 2,3\nepochs = 6\nmemory = 16\nfisher_samples = 12\n"
                 "[train]\nbatch_rows = 12\nlr = 1e-2\nschedule = constant\nwarmup = 0\n"
                 "eval_every = 1000\nsave_every = 1000\nbatch_tokens = 1000\n");
    return 0;
}

static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

typedef struct stopping {
    volatile int stop;
    int64_t after;
} stopping;

static void progress(void *user, const fv_train_state *s, const char *event)
{
    stopping *x = user;
    (void)event;
    if (x->after && s->step >= x->after) x->stop = 1;
}

static const char *recipe = "r.ini";

/* Trains, until `after` updates are done where that is not 0. */
static void run(const char *dir, const char *const *set, int64_t after, bool resume)
{
    fv_err e;
    fv_recipe *r;
    fv_train_state s;
    stopping x = {.after = after};
    char key[80];
    check(fv_recipe_open(&r, NULL, scratch("%s", recipe), &e), &e);
    check(fv_recipe_set(r, "data.dir", scratch("."), &e), &e);
    for (; set && *set; set++) {
        const char *equals = strchr(*set, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *set), *set);
        check(fv_recipe_set(r, key, equals + 1, &e), &e);
    }
    char out[512];
    snprintf(out, sizeof out, "%s", scratch("%s", dir));
    fv_recipe_job job = {.device = device,
                         .dir = out,
                         .resume = resume,
                         .stop = &x.stop,
                         .progress = progress,
                         .user = &x};
    check(fv_recipe_train(r, &job, &s, &e), &e);
    fv_recipe_close(r);
}

static json_t *report(const char *dir)
{
    json_error_t why;
    json_t *j = json_load_file(scratch("%s/continual.json", dir), 0, &why);
    assert_non_null(j);
    return j;
}

static double cell(const json_t *j, size_t row, size_t column)
{
    return json_number_value(
        json_array_get(json_array_get(json_object_get(j, "matrix"), row), column));
}

/* 4 updates an epoch, 24 a task, 48 in all: stopped within the second task. */
static void every_method_resumes(void **state)
{
    (void)state;
    static const char *const methods[] = {"none", "ewc",    "online_ewc", "si", "lwf",
                                          "agem", "replay", "joint",      NULL};
    for (int i = 0; methods[i]; i++) {
        char method[64], whole[64], cut[64];
        snprintf(method, sizeof method, "continual.method=%s", methods[i]);
        snprintf(whole, sizeof whole, "%s", methods[i]);
        snprintf(cut, sizeof cut, "%s-cut", methods[i]);
        const char *set[] = {method, NULL};
        run(whole, set, 0, false);
        run(cut, set, 29, false);
        assert_false(scratch_has(scratch("%s/continual.json", cut)));
        run(cut, set, 0, true);
        if (!same_files(scratch("%s/model/model.safetensors", whole),
                        scratch("%s/model/model.safetensors", cut)) ||
            !same_files(scratch("%s/continual.json", whole), scratch("%s/continual.json", cut)))
            fail_msg("%s: resumed it ends otherwise", methods[i]);
    }
}

/* The head of labels that are not asked for forgets; remembered examples keep it. */
static void memory_helps_where_classes_come_one_after_another(void **state)
{
    (void)state;
    static const char *const none[] = {"continual.scenario=class", "continual.epochs=20", NULL};
    static const char *const replay[] = {"continual.scenario=class", "continual.method=replay",
                                         "continual.buffer=reservoir", "continual.epochs=20", NULL};
    run("class-none", none, 0, false);
    run("class-replay", replay, 0, false);
    json_t *a = report("class-none"), *b = report("class-replay");
    assert_true(cell(a, 1, 0) > 0.9); /* learnt, */
    assert_true(cell(a, 2, 0) < 0.1); /* and forgotten */
    assert_true(cell(b, 2, 0) > 0.8);
    double forgetting = cell(a, 1, 0) - cell(a, 2, 0),
           average = (cell(a, 2, 0) + cell(a, 2, 1)) / 2;
    assert_true(fabs(json_number_value(json_object_get(a, "forgetting")) - forgetting) < 1e-5);
    assert_true(fabs(json_number_value(json_object_get(a, "average_accuracy")) - average) < 1e-5);
    json_decref(a), json_decref(b);
}

/* A penalty so strong that the second task cannot move what the first needed. */
static void a_penalty_holds(void **state)
{
    (void)state;
    static const char *const set[] = {"continual.scenario=domain", "continual.method=ewc",
                                      "continual.strength=1e6",    "train.lr=1e-3",
                                      "continual.epochs=20",       NULL};
    static const char *const free_[] = {"continual.scenario=domain", "train.lr=1e-3",
                                        "continual.epochs=20", NULL};
    run("held", set, 0, false);
    run("free", free_, 0, false);
    json_t *a = report("held"), *b = report("free");
    assert_true(cell(a, 1, 0) == cell(b, 1, 0)); /* until then nothing differs */
    assert_true(cell(a, 2, 0) >= cell(b, 2, 0));
    assert_true(cell(a, 2, 1) <= cell(b, 2, 1));
    json_decref(a), json_decref(b);
}

static void pixels_are_permuted(void **state)
{
    (void)state;
    static const char *const set[] = {"continual.tasks=", "continual.permute=3",
                                      "continual.scenario=domain", "continual.epochs=30", NULL};
    run("permuted", set, 0, false);
    json_t *j = report("permuted");
    assert_int_equal(json_array_size(json_object_get(j, "tasks")), 3);
    for (size_t t = 0; t < 3; t++) assert_true(cell(j, t + 1, t) > 0.8);
    assert_true(scratch_has("permuted/continual.svg"));
    json_decref(j);
}

/* Each task has a LoRA of its own on one base: what was learnt stays as it was, to the bit, and an
 * earlier task goes on with its own.  Stopped within the second task and resumed it is the same. */
static void one_adapter_a_task(void **state)
{
    (void)state;
    char from[600];
    static const char *const ground[] = {"continual.epochs=1", NULL};
    run("ground", ground, 0, false);
    snprintf(from, sizeof from, "model.from=%s", scratch("ground/model"));
    scratch_text("own.ini", "[model]\narchitecture = ViTForImageClassification\n"
                            "[adapter]\npeft_type = LORA\ntarget_modules = query value dense\n"
                            "[data]\nobjective = image_classify\ntrain = train-images-idx3-ubyte\n"
                            "valid = valid-images-idx3-ubyte\n"
                            "[continual]\nmethod = adapters\ntasks = 0,1 2,3 0,1\nepochs = 6\n"
                            "[train]\nbatch_rows = 12\nlr = 1e-2\nschedule = constant\nwarmup = 0\n"
                            "eval_every = 1000\nsave_every = 1000\nbatch_tokens = 1000\n");
    const char *set[] = {from, NULL};
    recipe = "own.ini";
    run("own", set, 0, false);
    run("own-cut", set, 29, false);
    run("own-cut", set, 0, true);
    recipe = "r.ini";
    assert_true(same_files(scratch("own/continual.json"), scratch("own-cut/continual.json")));
    for (int i = 0; i < 2; i++) {
        const char *task = i ? "2-3" : "0-1";
        char a[512], b[512];
        snprintf(a, sizeof a, "%s", scratch("own/adapters/%s/adapter_model.safetensors", task));
        snprintf(b, sizeof b, "%s", scratch("own-cut/adapters/%s/adapter_model.safetensors", task));
        assert_true(same_files(a, b));
    }
    assert_false(same_files(scratch("own/adapters/0-1/adapter_model.safetensors"),
                            scratch("own/adapters/2-3/adapter_model.safetensors")));
    json_t *j = report("own");
    assert_true(cell(j, 2, 0) == cell(j, 1, 0)); /* nothing is forgotten */
    assert_true(cell(j, 2, 1) > 0.8 && cell(j, 3, 0) > 0.8);
    assert_true(cell(j, 3, 1) == cell(j, 2, 1));
    json_decref(j);
}

static void refused(const char *const *set, const char *part)
{
    fv_err e = {0};
    fv_recipe *r;
    fv_train_state s;
    char key[80], out[512];
    check(fv_recipe_open(&r, NULL, scratch("r.ini"), &e), &e);
    check(fv_recipe_set(r, "data.dir", scratch("."), &e), &e);
    for (; *set; set++) {
        const char *equals = strchr(*set, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *set), *set);
        check(fv_recipe_set(r, key, equals + 1, &e), &e);
    }
    snprintf(out, sizeof out, "%s", scratch("refused"));
    fv_recipe_job job = {.device = device, .dir = out};
    assert_int_not_equal(fv_recipe_train(r, &job, &s, &e), FV_OK);
    if (!strstr(e.text, part)) fail_msg("\"%s\" does not say \"%s\"", e.text, part);
    fv_recipe_close(r);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    refused((const char *const[]){"continual.tasks=0,1 7", NULL}, "no label is called 7");
    refused((const char *const[]){"continual.permute=2", NULL}, "one of them is enough");
    refused((const char *const[]){"data.valid=", NULL}, "validation data");
    refused((const char *const[]){"train.dtype=bf16", NULL}, "train.dtype = f32");
    refused((const char *const[]){"continual.method=adapters", NULL}, "[adapter] is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_resumes),
        cmocka_unit_test(memory_helps_where_classes_come_one_after_another),
        cmocka_unit_test(a_penalty_holds),
        cmocka_unit_test(pixels_are_permuted),
        cmocka_unit_test(one_adapter_a_task),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
