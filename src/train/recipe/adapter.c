/* adapter.c - [adapter]: its settings, and the first values of a prompt. */
#include <stdio.h>

#include "fovea/author/adapter.h"
#include "fovea/author/backend.h"
#include "fovea/author/family.h"
#include "model/adapter.h"
#include "train/recipe/recipe.h"

/* What PEFT notes beside an adapter follows from the recipe: the base, the tokenizer, the task. */
fv_status fv__recipe_adapter(fv_adapter_opt *out, const fv_recipe *r, const char *from, fv_err *e)
{
    static const struct {
        fv_head_job job;
        const char *word;
    } tasks[] = {{FV_HEAD_CLASSIFY, "SEQ_CLS"},
                 {FV_HEAD_TAG, "TOKEN_CLS"},
                 {FV_HEAD_CAUSAL_LM, "CAUSAL_LM"},
                 {FV_HEAD_SEQ2SEQ, "SEQ_2_SEQ_LM"},
                 {FV_HEAD_ANSWER, "QUESTION_ANS"}};
    *out = r->adapter;
    if (out->peft_type == FV_PEFT_NONE) return FV_OK;
    if (!from)
        return fv_fail(e, FV_EARG,
                       "%s: [adapter]: an adapter is trained on a model that exists: "
                       "[model] from is missing",
                       r->path);
    if (!*out->base_model_name_or_path)
        snprintf(out->base_model_name_or_path, sizeof out->base_model_name_or_path, "%s", from);
    if (!*out->tokenizer_name_or_path)
        snprintf(out->tokenizer_name_or_path, sizeof out->tokenizer_name_or_path, "%s", from);
    for (size_t i = 0; !*out->task_type && i < sizeof tasks / sizeof *tasks; i++)
        if (tasks[i].job == fv__recipe_objective(r)->head)
            snprintf(out->task_type, sizeof out->task_type, "%s", tasks[i].word);
    return FV_OK;
}

/* First values of a prompt: a text's tokens, or tokens drawn by the seed. */
fv_status fv__recipe_prompt(fv_model *model, const fv_recipe *r, const fv__input *in, fv_err *e)
{
    enum { RANDOM, SAMPLE_VOCAB, TEXT };
    const fv_adapter_opt *o = fv_model_adapter(model);
    const fv__virtual *v = fv__model_virtual(model);
    fv_params *p = fv_model_params(model);
    const fv_tok *tok = fv_processor_tok(in->processor);
    if (!o || o->peft_type != FV_PEFT_PROMPT || o->prompt_tuning_init == RANDOM) return FV_OK;
    if (!tok) return fv_fail(e, FV_EARG, "prompt_tuning_init: there is no tokenizer");
    if (o->prompt_tuning_init == TEXT) {
        fv_encoding *enc = NULL;
        const char *text = o->prompt_tuning_init_text;
        if (!*text) return fv_fail(e, FV_EARG, "prompt_tuning_init_text is empty");
        fv_status st = fv_encoding_new(&enc, tok, e);
        if (!st) st = fv_tok_encode(enc, text, strlen(text), (fv_tok_opts){.specials = true}, e);
        if (!st) st = fv__prompt_begin_as(v, p, enc->ids, enc->n, e);
        fv_encoding_free(enc);
        return st;
    }
    int64_t n = fv_dim(v->table, 0);
    int32_t *ids = fv__alloc(in->env, (size_t)n * sizeof *ids);
    if (!ids) return fv_fail(e, FV_ENOMEM, "adapter: out of memory");
    for (int64_t i = 0; i < n; i++) {
        uint32_t word[4];
        fv_philox(word, (uint64_t)r->train.seed, 0x70726f6d, 0, (uint64_t)i);
        ids[i] = (int32_t)(word[0] % (uint32_t)fv_tok_size(tok));
    }
    fv_status st = fv__prompt_begin_as(v, p, ids, n, e);
    fv__free(in->env, ids, (size_t)n * sizeof *ids);
    return st;
}
