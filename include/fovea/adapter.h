/* adapter.h - adapters: few parameters that change a frozen model, in the format of PEFT, which has
 * no bottleneck adapters: theirs are directories of the same form.
 *
 * An adapter is a directory with adapter_config.json and adapter_model.safetensors.  It is trained
 * on a model whose own parameters stay as they are (fv_model_opt.adapter).  LoRA and IA3 are used
 * by folding them into the weights of products (fv_model_opt.adapters), so that they cost nothing
 * while the model runs; bottlenecks and virtual tokens stay beside the model, one adapter of theirs
 * at most. */
#ifndef FOVEA_ADAPTER_H
#define FOVEA_ADAPTER_H

#include "fovea/fields.h"

typedef enum fv_peft {
    FV_PEFT_NONE = 0, /* no adapter */
    FV_PEFT_LORA,
    FV_PEFT_IA3,
    FV_PEFT_PROMPT,    /* prompt tuning: embeddings of virtual tokens in front of the text */
    FV_PEFT_P_TUNING,  /* the same, made by a small network while they are trained */
    FV_PEFT_PREFIX,    /* prefix tuning: keys and values of virtual tokens in every layer */
    FV_PEFT_BOTTLENECK /* a small MLP behind the attention and the MLP of each layer */
} fv_peft;

/* The settings of an adapter, under the names of adapter_config.json.  Lists are words with blanks
 * between them. */
typedef struct fv_adapter_opt {
    int peft_type; /* fv_peft */
    int r;
    float lora_alpha, lora_dropout;
    bool use_rslora, use_dora, fan_in_fan_out;
    int bias; /* which biases are trained: none, all, or those of the adapted maps */
    /* Linear maps that are adapted: names, or the last parts of names ("q_proj v_proj"); empty:
     * PEFT's choice for the family.  target_regex: instead of these, a pattern of whole names. */
    char target_modules[1024], target_regex[512], exclude_modules[512];
    char feedforward_modules[512]; /* IA3: those whose input is scaled */
    char modules_to_save[512];     /* parts of the base model that are trained as they are */
    char layers_to_transform[512]; /* numbers of the layers that are adapted; empty: all */
    /* ---- virtual tokens ---- */
    int num_virtual_tokens;
    int num_transformer_submodules; /* 2: PEFT counts an encoder and a decoder; 0: found out */
    int token_dim, num_layers, num_attention_heads; /* of the base model; 0: found out */
    int prompt_tuning_init;                         /* RANDOM, SAMPLE_VOCAB, TEXT */
    char prompt_tuning_init_text[512], tokenizer_name_or_path[512];
    int encoder_hidden_size; /* of the network that makes them; 0: the model's width */
    int encoder_reparameterization_type;
    bool prefix_projection; /* prefix tuning with such a network */
    /* ---- bottlenecks, under the names of the library `adapters` ---- */
    bool mh_adapter, output_adapter; /* behind the attention; behind the MLP */
    float reduction_factor;          /* their width is the layer's divided by this */
    int non_linearity;
    float scaling; /* what they add is multiplied by this */

    char task_type[32]; /* SEQ_CLS, CAUSAL_LM, ...; for other programs */
    char base_model_name_or_path[512];
} fv_adapter_opt;

/* Keys, ranges, defaults and help of the above: [adapter] of a recipe. */
FV_DATA const fv_field fv_adapter_fields[];

/* An adapter in use. */
typedef struct fv_adapter_use {
    const char *dir;
    float weight; /* its change of the weights is multiplied by this; 0 means 1 */
} fv_adapter_use;

typedef struct fv_adapter_list {
    const fv_adapter_use *at;
    int n;
} fv_adapter_list;

#endif
