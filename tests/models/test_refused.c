/* test_refused.c - configurations that no family can follow and inputs that a head cannot use get a
 * sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/fovea.h"
#include "helper/files.h"

#define CASES FOVEA_TESTS "/golden/models/"

static int set_up(void **state) { return scratch_open(state) || open_device(state); }

static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

static void ok(fv_status st, const char *which, const fv_err *e)
{
    if (st) fail_msg("%s: %s", which, e->text);
}

#define QWEN2                                                                                      \
    "{\"model_type\":\"qwen2\",\"vocab_size\":9,\"hidden_size\":8,\"intermediate_size\":8,\"num_"  \
    "hidden_layers\":2,"                                                                           \
    "\"num_attention_heads\":2,\"max_position_embeddings\":8,"

/* A configuration, and what the message about it has. */
typedef struct refusal {
    const char *config, *says;
} refusal;

static void refuse(const refusal *wrong, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fv_model *m;
        fv_err e;
        assert_int_not_equal(fv_model_new(&m, device, wrong[i].config, (fv_model_opt){0}, 1, &e),
                             FV_OK);
        assert_null(m);
        if (!strstr(e.text, wrong[i].says)) fail_msg("%s: %s", wrong[i].config, e.text);
    }
}

/* Families whose positions are rotated read one part of config.json: what it refuses. */
static void a_rotation_it_cannot_follow_is_refused(void **state)
{
    (void)state;
    static const refusal wrong[] = {
        {"{\"model_type\":\"qwen3\",\"head_dim\":5}", "even number"},
        {"{\"model_type\":\"qwen3\",\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
        {"{\"model_type\":\"qwen3\",\"rope_parameters\":{\"rope_type\":\"proportional\"}}",
         "proportional"},
        {"{\"model_type\":\"gemma\",\"use_bidirectional_attention\":true}",
         "use_bidirectional_attention"},
        {"{\"model_type\":\"gemma\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2.0}}",
         "low_freq_factor"},
        {"{\"model_type\":\"gemma3_text\",\"final_logit_softcapping\":30.0}",
         "final_logit_softcapping"},
        {"{\"model_type\":\"gemma3_text\",\"rope_scaling\":{\"factor\":8.0,\"type\":\"linear\"},"
         "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6}}}",
         "both given"},
        {"{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForSequenceClassification\"],"
         "\"text_config\":{}}",
         "no head"},
        {"{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}",
         "default or longrope"},
        {"{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1.0],"
         "\"long_factor\":[1.0]}}",
         "1 and 1 numbers, expected 48"},
        {"{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.01}", "turn 0 of the 96"},
        {"{\"model_type\":\"gpt_neox\",\"hidden_size\":100}", "multiple"},
        {"{\"model_type\":\"opt\",\"layerdrop\":0.1}", "layerdrop"},
        {"{\"model_type\":\"opt\",\"layer_norm_elementwise_affine\":false}",
         "layer_norm_elementwise_affine"},
    };
    refuse(wrong, sizeof wrong / sizeof *wrong);
}

static void a_config_it_cannot_follow_is_refused(void **state)
{
    (void)state;
    static const refusal wrong[] = {
        {"{\"model_type\":\"bert\",\"hidden_size\":100,\"num_attention_heads\":12}", "multiple"},
        {"{\"model_type\":\"bert\",\"position_embedding_type\":\"relative_key\"}",
         "position_embedding_type"},
        {"{\"model_type\":\"bert\",\"is_decoder\":true}", "is_decoder"},
        {"{\"model_type\":\"bert\",\"hidden_act\":\"prelu\"}", "found \"prelu\""},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"xielu\"}", "found \"xielu\""},
        {"{\"model_type\":\"bert\",\"pad_token_id\":7,\"vocab_size\":7}", "pad_token_id"},
        {"{\"model_type\":\"bert\",\"id2label\":{\"0\":\"a\",\"2\":\"b\"}}", "id2label"},
        {"{\"model_type\":\"bert\",\"problem_type\":\"guess\"}", "problem_type"},
        {"{\"model_type\":\"bert\",\"layer_norm_eps\":0}", "layer_norm_eps"},
        {"{\"model_type\":\"bert\",\"architectures\":[\"BertForRetrieval\"]}",
         "no head \"BertForRetrieval\""},
        {"{\"model_type\":\"roberta\",\"max_position_embeddings\":2}", "max_position_embeddings"},
        {"{\"model_type\":\"distilbert\",\"sinusoidal_pos_embds\":true}", "sinusoidal_pos_embds"},
        {"{\"model_type\":\"distilbert\",\"dim\":10,\"n_heads\":3}", "multiple"},
        {"{\"model_type\":\"modernbert\",\"layer_types\":[\"full_attention\"]}",
         "1 entries, but num_hidden_layers is 22"},
        {"{\"model_type\":\"modernbert\",\"num_hidden_layers\":1,\"layer_types\":[\"near\"]}",
         "\"near\""},
        {"{\"model_type\":\"modernbert\",\"layer_types\":[3]}", "layer_types"},
        {"{\"model_type\":\"modernbert\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":"
         "\"yarn\"}}}",
         "yarn"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":10,\"n_head\":3}", "multiple"},
        {"{\"model_type\":\"llama\",\"hidden_size\":10,\"num_attention_heads\":3}", "multiple"},
        {"{\"model_type\":\"llama\",\"head_dim\":5}", "even number"},
        {"{\"model_type\":\"llama\",\"num_key_value_heads\":3}", "cannot share"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"linear\"}}", "need a factor"},
        {QWEN2
         "\"use_sliding_window\":false,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "layer 1 has a sliding"},
        {QWEN2
         "\"use_sliding_window\":true,\"sliding_window\":4,\"layer_types\":[\"full_attention\"]}",
         "has 1 entries"},
        {"{\"model_type\":\"t5\",\"relative_attention_max_distance\":16}",
         "relative_attention_max_distance"},
        {"{\"model_type\":\"bart\",\"d_model\":10,\"encoder_attention_heads\":3}", "multiple"},
        {"{\"model_type\":\"bart\",\"vocab_size\":2}", "decoder_start_token_id"},
        {"{\"model_type\":\"bart\",\"encoder_layers\":2,\"num_hidden_layers\":3}",
         "num_hidden_layers"},
        {"{\"model_type\":\"t5\",\"num_layers\":2,\"num_hidden_layers\":3}", "num_hidden_layers"},
        {"{\"model_type\":\"t5\",\"feed_forward_proj\":\"relu\",\"dense_act_fn\":\"gelu\"}",
         "not what feed_forward_proj relu means"},
        {"{\"model_type\":\"t5\",\"feed_forward_proj\":\"relu\",\"is_gated_act\":true}",
         "not what feed_forward_proj relu means"},
        {"{\"model_type\":\"moonshine\",\"decoder_num_hidden_layers\":2,\"num_hidden_layers\":3}",
         "num_hidden_layers"},
        {"{\"model_type\":\"patchtst\",\"architectures\":[\"PatchTSTModel\"],"
         "\"do_mask_input\":true}",
         "do_mask_input"},
        {"{\"model_type\":\"vit\",\"hidden_size\":10,\"num_attention_heads\":3}", "multiple"},
        {"{\"model_type\":\"vit\",\"image_size\":[8,9,10]}", "a height and a width"},
        {"{\"model_type\":\"vit\",\"image_size\":8}", "holds no patch of 16 pixels"},
        {"{\"model_type\":\"deit\",\"patch_size\":[16,8]}", "no squares"},
        {"{\"model_type\":\"dinov2\",\"architectures\":[\"Dinov2Backbone\"]}", "no head"},
        {"{\"model_type\":\"clip\",\"text_config\":{\"hidden_size\":10}}", "text: hidden_size"},
        {"{\"model_type\":\"clip\",\"vision_config\":{\"is_decoder\":true}}", "is_decoder"},
        {"{\"model_type\":\"siglip\",\"text_config\":{\"projection_size\":8}}",
         "vectors of texts have 8 numbers"},
        {"{\"model_type\":\"yolos\",\"auxiliary_loss\":true}", "auxiliary_loss"},
        {"{\"model_type\":\"yolos\",\"image_size\":[20,32]}", "20 is no multiple of patch_size"},
        {"{\"model_type\":\"segformer\",\"depths\":[1,2]}", "depths has 2 entries"},
        {"{\"model_type\":\"segformer\",\"reshape_last_stage\":false}", "reshape_last_stage"},
        {"{\"model_type\":\"videomae\",\"num_frames\":1}", "less than tubelet_size"},
        {"{\"model_type\":\"sagan\",\"image_size\":24}", "4 times a power of 2"},
        {"{\"model_type\":\"sagan\",\"attention_size\":12}", "no side of a map"},
        {"{\"model_type\":\"vision-encoder-decoder\",\"encoder\":{\"model_type\":\"bert\"}}",
         "encoder: model_type is of a family that cannot"},
        {"{\"model_type\":\"vision-encoder-decoder\"}", "encoder: model_type is missing"},
        {"{\"model_type\":\"marian\",\"normalize_before\":true}", "normalize_before"},
        {"{\"model_type\":\"mbart\",\"normalize_before\":false}", "normalize_before"},
        {"{\"model_type\":\"pegasus\",\"static_position_embeddings\":false}",
         "static_position_embeddings"},
        {"{\"model_type\":\"m2m_100\",\"d_model\":2,\"encoder_attention_heads\":1}", "sinusoids"},
        {"{\"model_type\":\"electra\",\"hidden_size\":10,\"num_attention_heads\":3}", "multiple"},
        {"{\"model_type\":\"mpnet\",\"relative_attention_num_buckets\":16}",
         "relative_attention_num_buckets"},
        {"{\"model_type\":\"deberta-v2\",\"conv_kernel_size\":2}", "conv_kernel_size"},
        {"{\"model_type\":\"deberta-v2\",\"embedding_size\":7}", "embedding_size"},
        {"{\"model_type\":\"deberta-v2\",\"relative_attention\":true,\"position_buckets\":8,"
         "\"max_relative_positions\":5}",
         "position_buckets"},
        {"{\"model_type\":\"albert\",\"pad_token_id\":7,\"vocab_size\":7}", "pad_token_id"},
    };
    refuse(wrong, sizeof wrong / sizeof *wrong);
}

/* Where a classifier reads the end of its source, a source without one is no input; the choice of
 * one sequence needs several. */
static void inputs_a_head_cannot_use_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
        fv_shape shape;
    } wrong[] = {{"bart-sequence", "has no eos_token_id", {.n = 2, .d = {2, 3}}},
                 {"mt5-sequence", "has no eos_token_id", {.n = 2, .d = {2, 3}}},
                 {"bert-choice", "expected (B,N,T)", {.n = 2, .d = {2, 3}}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fv_model *m;
        fv_err e;
        int32_t ids[] = {5, 6, 7, 8, 9, 5};
        fv_st_item in = {.name = "input_ids",
                         .dtype = FV_I32,
                         .from = FV_I32,
                         .shape = wrong[i].shape,
                         .data = ids};
        ok(fv_st_save(NULL, scratch("in.safetensors"), &in, 1, (fv_st_save_opt){0}, &e), "in", &e);
        char path[512];
        snprintf(path, sizeof path, CASES "%s", wrong[i].name);
        ok(fv_model_open(&m, device, path, (fv_model_opt){0}, &e), wrong[i].name, &e);
        snprintf(path, sizeof path, "%s", scratch("in.safetensors"));
        assert_int_not_equal(fv_model_run(m, device, path, scratch("out.safetensors"),
                                          (fv_run_opt){0}, &e),
                             FV_OK);
        if (!strstr(e.text, wrong[i].says)) fail_msg("%s: %s", wrong[i].name, e.text);
        fv_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_it_cannot_follow_is_refused),
        cmocka_unit_test(a_rotation_it_cannot_follow_is_refused),
        cmocka_unit_test(inputs_a_head_cannot_use_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
