/* bleu.c - BLEU of the first sentences of the validation data, translated as the model is now. */
#include "fovea/author/metric.h"
#include "fovea/author/tensor.h"
#include "train/recipe/recipe.h"

typedef struct outputs {
    char **text;
    size_t *len;
    const char **reference;
    int64_t n;
} outputs;

enum { AT_ONCE = 32 };

/* In groups of sentences, as generation batches them. */
static fv_status translate(const fv__bleu *b, outputs *out, fv_err *e)
{
    const fv_tok *tok = fv_processor_tok(b->beside->in->processor);
    fv_gen_opt o;
    fv_gen_config *config;
    fv_status st = fv__beside_generation(b->beside, &o, &config, e);
    o.num_return_sequences = 1;
    for (int64_t at = 0; !st && at < out->n; at += AT_ONCE) {
        const int32_t *ids[AT_ONCE];
        int64_t len[AT_ONCE], n = out->n - at < AT_ONCE ? out->n - at : AT_ONCE;
        fv_generated g;
        for (int64_t i = 0; i < n; i++) ids[i] = fv_pairs_source(b->pairs, at + i, &len[i]);
        st = fv_generate(&g, b->device, b->beside->model, ids, len, n, &o, e);
        for (int64_t i = 0; !st && i < n; i++)
            st = fv_tok_decode(tok, &out->text[at + i], &out->len[at + i], g.hyp[i].ids, g.hyp[i].n,
                               true, e);
        if (g.hyp) fv_generated_free(&g);
    }
    fv_gen_config_close(config);
    return st;
}

/* Translates as the model will be used, beams included, and compares with the references as they
 * stand in the file. */
fv_status fv__bleu_score(void *user, double *value, fv_err *e)
{
    const fv__bleu *b = user;
    const fv_env *env = fv_device_env(b->device);
    int64_t n = fv_pairs_count(b->pairs);
    outputs out = {.n = n < b->n ? n : b->n};
    size_t bytes = (size_t)out.n * (sizeof *out.text + sizeof *out.len + sizeof *out.reference);
    fv_bleu bleu = {0};
    out.text = fv__alloc(env, bytes);
    if (!out.text) return fv_fail(e, FV_ENOMEM, "bleu: out of memory");
    out.len = (size_t *)(out.text + out.n);
    out.reference = (const char **)(out.len + out.n);
    for (int64_t i = 0; i < out.n; i++) out.reference[i] = fv_pairs_text(b->pairs, i);
    fv_status st = translate(b, &out, e);
    if (!st)
        st = fv_bleu_score(&bleu, env, (const char *const *)out.text, out.reference, out.n,
                           (fv_bleu_opt){.tokens = FV_BLEU_NONE}, e);
    *value = bleu.score;
    const fv_tok *tok = fv_processor_tok(b->beside->in->processor);
    for (int64_t i = 0; i < out.n; i++)
        if (out.text[i]) fv_tok_free_text(tok, out.text[i], out.len[i]);
    fv__free(env, out.text, bytes);
    return st;
}
