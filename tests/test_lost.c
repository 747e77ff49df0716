/* test_lost.c - a device that is lost in the middle of a run: a sentence that says so, a non-zero exit, and a checkpoint that
 * the run goes on from as if nothing had been.  lost/lost.c does the losing; this runs with a GPU only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper_program.h"

enum { UPDATES = 400, SAVE_EVERY = 20 };

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    FILE *f = fopen(scratch("data.tsv"), "wb");
    for (uint64_t i = 0; f && i < 60; i++) {
        fv_grammar_pair p;
        fv_grammar_sentence(&p, 5, i);
        fprintf(f, "%s\t%s\n", p.en, p.fr);
    }
    if (!f || fclose(f)) return -1;
    f = fopen(scratch("r.ini"), "wb");
    if (!f) return -1;
    fprintf(f,
            "[model]\nmodel_type = marian\nd_model = 32\nencoder_layers = 1\ndecoder_layers = 1\nencoder_attention_heads = 2\n"
            "decoder_attention_heads = 2\nencoder_ffn_dim = 64\ndecoder_ffn_dim = 64\nmax_position_embeddings = 64\n"
            "dropout = 0.1\n[data]\ntrain = data.tsv\n[tokenizer]\nvocab = 200\n[train]\nupdates = %d\nbatch_tokens = 200\n"
            "lr = 3e-3\nwarmup = 10\nsave_every = %d\n",
            UPDATES, SAVE_EVERY);
    return fclose(f);
}

/* The program ended by itself, with an error that names the device. */
static void said_so(const result *r)
{
    if (r->code != 1 || !strstr(r->err, "cuda")) fail_msg("exit %d: %s", r->code, r->err);
}

static void a_run_says_so_and_goes_on_from_its_checkpoint(void **state)
{
    (void)state;
    const result *r = sh(
        "FOVEA_LOSE_AT=lost/checkpoints/step-%d/MANIFEST.json LD_PRELOAD='%s' exec \"$fovea\" train r.ini -o lost "
        "--device cuda",
        2 * SAVE_EVERY, FOVEA_LOST);
    said_so(r);
    assert_non_null(strstr(r->err, "the last kernel started was "));
    assert_non_null(strstr(r->err, "; the last checkpoint, of update "));
    assert_false(scratch_has("lost/model/model.safetensors"));
    succeeded(fovea("train r.ini -o lost --resume --device cuda"));
    succeeded(fovea("train r.ini -o whole --device cuda"));
    assert_true(same_files(scratch("lost/model/model.safetensors"), scratch("whole/model/model.safetensors")));
}

/* From the first moment on that there is a device: while the model is read, or written from. */
static void a_command_that_writes_says_so(void **state)
{
    (void)state;
    scratch_text("now", "");
    for (int i = 0; i < 3; i++)
        said_so(
            sh("FOVEA_LOSE_AT=now LD_PRELOAD='%s' exec \"$fovea\" translate -m whole/model --device cuda data.tsv", FOVEA_LOST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_says_so_and_goes_on_from_its_checkpoint),
        cmocka_unit_test(a_command_that_writes_says_so),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
