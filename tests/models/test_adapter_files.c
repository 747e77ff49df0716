/* test_adapter_files.c - directories of adapters: saved and read again, opened for every family,
 * and refused where something in them is wrong. */
#include <dirent.h>
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
#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/adapters.h"
#include "helper/device.h"
#include "helper/files.h"

/* Saved and read again it is the same, bit by bit. */
static void saved(const char *name, const adapter_case *p)
{
    fv_err e;
    fv_model *m = adapter_trainable(p);
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
            near_numbers(name, a.name, (const float *)a.data, (const float *)b.data, a.count, 1e-5);
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
    each_adapter(saved);
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

/* ---- refusals ---- */

static void refuse(const char *config, const char *base, const char *expected)
{
    fv_err e = {0};
    char dir[512];
    adapter_case p = adapter_case_of("llama-lora");
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
    adapter_case p = adapter_case_of("llama-lora"), other = adapter_case_of("bert-lora");
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
    adapter_case p = adapter_case_of("llama-lora");
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
    adapter_case p = adapter_case_of("llama-lora");
    refuse_files(LORA("\"r\": 3"), p.base, "lora_A");
    refuse_files("{\"peft_type\": \"LORA\", \"r\": 8, \"target_modules\": [\"../q_proj\"]}", p.base,
                 "../q_proj");
    refuse_files("{\"peft_type\": \"LORA\", \"r\": 8, \"target_modules\": \"(.+)+(.+)+(.+)+!\"}",
                 p.base, "no linear map");
    /* without a last character that PCRE2 looks for first */
    refuse_files("{\"peft_type\": \"LORA\", \"target_modules\": \"(.+)+(.+)+(.+)+[!?]\"}", p.base,
                 "no linear map");
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
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
