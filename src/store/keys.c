/* keys.c - keys that any Hugging Face config.json may have beside those of its family.
 *
 * transformers keeps every key of a config.json and reads the few that its class knows, so a file
 * may hold anything: what a trainer noted, what a version of ten years ago wrote, what another tool
 * needs.  A key that nothing here names is therefore ignored, as it is there ("*" at the end of the
 * list; fv_fields_ignored tells which ones).  The danger of that is a key which transformers does
 * read and this build does not: those are named, with the one value that leaves the network as it
 * is, and refused at any other.  Keys that a family reads differently stand in the family's list.
 *
 * The alternative, a list of all harmless keys, refused one published model in five. */
#include <string.h>

#include "json.h"

const fv_key_rule fv_keys_common[] = {
    /* keys of transformers' base class that change what a network computes */
    {"add_cross_attention", "false"},
    {"is_decoder", "false"},
    {"pruned_heads", "{}"},
    {"tie_encoder_decoder", "false"},
    {"cross_attention_hidden_size", "0"},
    /* rotary embeddings of several axes (Qwen2-VL) */
    {"use_mrope", "false"},
    /* other names of a family's own keys (transformers' attribute_map), which override them */
    {"head_dim", "=d_kv"},
    {"hidden_size", "=d_model"},
    {"hidden_size", "=dim"},
    {"hidden_size", "=n_embd"},
    {"max_position_embeddings", "=n_positions"},
    {"num_attention_heads", "=encoder_attention_heads"},
    {"num_attention_heads", "=n_head"},
    {"num_attention_heads", "=n_heads"},
    {"num_attention_heads", "=num_heads"},
    {"num_hidden_layers", "=encoder_layers"},
    {"num_hidden_layers", "=n_layer"},
    {"num_hidden_layers", "=n_layers"},
    {"num_hidden_layers", "=num_layers"},
    {"rope_theta", "=global_rope_theta"},
    /* where the model came from */
    {"_name_or_path", NULL},
    {"_commit_hash", NULL},
    {"_attn_implementation", NULL}, /* which kernel computes the attention, not what it computes */
    {"_attn_implementation_autoset", NULL},
    {"architectures", NULL},
    {"auto_map", NULL},
    {"dtype", NULL},
    {"finetuning_task", NULL},
    {"id2label", NULL},
    {"label2id", NULL},
    {"model_type", NULL},
    {"num_labels", NULL},
    {"problem_type", NULL},
    {"task_specific_params", NULL},
    {"tokenizer_class", NULL},
    {"torch_dtype", NULL},
    {"transformers_version", NULL},
    {"quantization_config", NULL}, /* looked at where a model is opened */
    {"use_bfloat16", NULL},        /* of TensorFlow's classes, as the next but one */
    {"torchscript", NULL},         /* tied weights are copied for the tracer: the same numbers */
    {"tf_legacy_loss", NULL},
    /* what the caller of transformers gets back, and how training went */
    {"chunk_size_feed_forward", NULL},
    {"gradient_checkpointing", NULL},
    {"initializer_factor", NULL},
    {"initializer_range", NULL},
    {"output_attentions", NULL},
    {"output_hidden_states", NULL},
    {"output_past", NULL}, /* the name of use_cache until 2020 */
    {"return_dict", NULL},
    {"use_cache", NULL},
    {"use_return_dict", NULL},
    /* written by old versions, by TPU runs and by other tools */
    {"_num_labels", NULL}, /* id2label counts */
    {"adapters", NULL},
    {"eos_token_ids", NULL}, /* XLM's, of 2019; eos_token_id counts */
    {"is_llama_config", NULL},
    {"language", NULL},
    {"n_special", NULL},
    {"name", NULL},
    {"predict_special_tokens", NULL},
    {"sbert_ce_default_activation_function", NULL}, /* read by the cross-encoder's caller */
    {"sentence_transformers", NULL},
    {"transformers.js_config", NULL},
    {"xla_device", NULL},
    /* generation, which generation_config.json and the command line decide */
    {"bad_words_ids", NULL},
    {"bos_token_id", NULL},
    {"begin_suppress_tokens", NULL},
    {"decoder_start_token_id", NULL},
    {"diversity_penalty", NULL},
    {"do_sample", NULL},
    {"early_stopping", NULL},
    {"encoder_no_repeat_ngram_size", NULL},
    {"eos_token_id", NULL},
    {"exponential_decay_length_penalty", NULL},
    {"forced_bos_token_id", NULL},
    {"forced_eos_token_id", NULL},
    {"length_penalty", NULL},
    {"max_length", NULL},
    {"min_length", NULL},
    {"no_repeat_ngram_size", NULL},
    {"num_beam_groups", NULL},
    {"num_beams", NULL},
    {"num_return_sequences", NULL},
    {"output_scores", NULL},
    {"pad_token_id", NULL},
    {"prefix", NULL},
    {"remove_invalid_values", NULL},
    {"repetition_penalty", NULL},
    {"return_dict_in_generate", NULL},
    {"sep_token_id", NULL},
    {"suppress_tokens", NULL},
    {"temperature", NULL},
    {"top_k", NULL},
    {"top_p", NULL},
    {"typical_p", NULL},
    /* everything else */
    {"*", NULL},
    {0},
};

/* "=other": the value must be that of another key of the same object, whose alias this key is. */
static bool rule_allows(const char *allowed, const fv__jnode *object, const fv__jnode *v)
{
    if (!allowed) return true;
    if (*allowed == '=') return fv__jnode_equal(fv__jnode_get(object, allowed + 1), v);
    fv__jtree wanted = {0};
    bool same = !fv__jtree_parse(&wanted, allowed, strlen(allowed), "rule", 8, NULL) &&
                fv__jnode_equal(wanted.root, v);
    fv__jtree_free(&wanted);
    return same;
}

/* Whether a pattern says that the object at a.b's "a" is a configuration of its own: "a.*".
 * Composite models nest whole configurations: "text_config", "vision_config". */
static bool is_config(const fv_key_rule *const *rules, const char *key, size_t dot)
{
    for (; rules && *rules; rules++)
        for (const fv_key_rule *r = *rules; r->key; r++)
            if (!strncmp(r->key, key, dot + 1) && !strcmp(r->key + dot, ".*")) return true;
    return false;
}

/* A rule that names the key decides, whatever patterns say of it; members of objects ("a.b") match
 * no pattern, as objects are only looked into where their members change the result.  Those of an
 * object that is a configuration of its own are judged as keys of a whole one. */
fv__verdict fv__key_judge(const fv_key_rule *const *rules, const fv__jnode *object, const char *key,
                          const fv__jnode *v)
{
    bool named = false, matched = false;
    size_t dot = strcspn(key, ".");
    if (v->type == FV__J_NULL) return FV__KEY_HARMLESS;
    if (key[dot] && is_config(rules, key, dot))
        return fv__key_judge(rules, object, key + dot + 1, v);
    for (; rules && *rules; rules++)
        for (const fv_key_rule *r = *rules; r->key; r++) {
            size_t n = strlen(r->key) - 1;
            if (r->key[n] == '*') {
                matched = matched || (!strncmp(r->key, key, n) && !strchr(key, '.'));
                continue;
            }
            if (strcmp(r->key, key)) continue;
            named = true;
            if (rule_allows(r->value, object, v)) return FV__KEY_HARMLESS;
        }
    return matched && !named ? FV__KEY_IGNORED : FV__KEY_REFUSED;
}
