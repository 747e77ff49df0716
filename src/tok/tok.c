/* tok.c - a tokenizer's life, and what it knows about its ids. */
#include "tok.h"
#include "fovea/author/tok.h"

fv_tok *fv__tok_new(const fv_env *env, fv_err *e)
{
    fv_tok *t = fv__alloc(env, sizeof *t);
    if (!t) {
        fv_fail(e, FV_ENOMEM, "out of memory for a tokenizer");
        return NULL;
    }
    if (env) {
        t->env_copy = *env;
        t->env = &t->env_copy;
    }
    t->pool.env = t->env;
    t->model.unk = t->pieces_unk = -1;
    t->model.prefix = t->model.suffix = (fv__str){"", 0};
    return t;
}

/* Patterns are PCRE2's memory and freed one by one; all other tables go with the pool. */
void fv_tok_close(fv_tok *t)
{
    if (!t) return;
    fv_env env = t->env_copy;
    const fv_env *back = t->env ? &env : NULL;
    for (int i = 0; i < t->n_norm; i++) fv__pattern_free(&t->norm[i].pattern);
    for (int i = 0; i < t->n_split; i++) fv__pattern_free(&t->split[i].pattern);
    for (int i = 0; i < t->n_dec; i++) fv__pattern_free(&t->dec[i].pattern);
    fv_tok_close(t->target);
    fv__pool_free(&t->pool);
    fv__free(back, t, sizeof *t);
}

static bool finish_model(fv_tok *t)
{
    switch (t->model.kind) {
    case FV__MODEL_BPE: return fv__bpe_finish(&t->model, &t->pool);
    case FV__MODEL_WORDPIECE: return fv__wordpiece_finish(&t->model, &t->pool);
    case FV__MODEL_UNIGRAM:
        return fv__unigram_finish(&t->model, &t->pool, t->spm ? t->spm->types : NULL);
    default: return true;
    }
}

static fv_status check_vocab(const fv_tok *t, const char *file, fv_err *e)
{
    fv__model_kind kind = t->model.kind;
    bool searched = kind == FV__MODEL_UNIGRAM || kind == FV__MODEL_WORDPIECE;
    if (!t->model.vocab.n && !t->added.n && !t->pieces)
        return fv_fail(e, FV_EFORMAT, "%s: the vocabulary is empty", file);
    if (searched && t->model.vocab.longest > FV__LONGEST_TOKEN)
        return fv_fail(e, FV_EFORMAT, "%s: a token of %zu bytes; such a model takes at most %d",
                       file, t->model.vocab.longest, FV__LONGEST_TOKEN);
    return FV_OK;
}

fv_status fv__tok_finish(fv_tok *t, const char *file, fv_err *e)
{
    fv__split *last = t->n_split ? t->split + t->n_split - 1 : NULL;
    if (last && last->kind == FV__BYTE_LEVEL && t->model.kind == FV__MODEL_BPE)
        last->in_model = t->model.takes_bytes = true;
    fv_status st = check_vocab(t, file, e);
    if (st != FV_OK) return st;
    bool ok = finish_model(t);
    if (ok && t->post.kind == FV__POST_NONE && !t->post.single)
        ok = fv__post_layout(t, "A0", "A0B1");
    return ok ? fv__added_finish(t, file, e) : fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
}

/* ---- ids ---- */

int32_t fv_tok_size(const fv_tok *t)
{
    if (t->pieces) return t->pieces->size;
    int32_t size = t->model.vocab.size;
    if (t->added.n) {
        int32_t last = t->added.all[t->added.by_id[t->added.n - 1]].id;
        if (last >= size) size = last + 1;
    }
    return size;
}

int32_t fv_tok_id(const fv_tok *t, const char *token)
{
    size_t n = strlen(token);
    if (t->pieces) return fv__vocab_id(t->pieces, token, n);
    int32_t i = fv__vocab_id(&t->added.names, token, n);
    return i >= 0 ? t->added.all[i].id : fv__vocab_id(&t->model.vocab, token, n);
}

fv__str fv__token_str(const fv_tok *t, int32_t id)
{
    if (t->pieces) return fv__vocab_str(t->pieces, id);
    const fv__added *a = fv__added_by_id(t, id);
    return a ? a->content : fv__vocab_str(&t->model.vocab, id);
}

const char *fv_tok_token(const fv_tok *t, int32_t id) { return fv__token_str(t, id).s; }

bool fv_tok_special(const fv_tok *t, int32_t id)
{
    if (t->pieces) {
        for (int i = 0; i < t->post.n_specials; i++)
            if (t->post.specials[i].ids[0] == id) return true;
        fv__str s = fv__vocab_str(t->pieces, id);
        return id == fv_tok_pad(t) || id == t->pieces_unk ||
               (s.s && fv__vocab_id(&t->added.names, s.s, s.n) >= 0);
    }
    const fv__added *a = fv__added_by_id(t, id);
    if (a) return a->special;
    return t->spm && fv__vocab_has(&t->model.vocab, id) && t->spm->types[id] == FV__SPM_CONTROL;
}

int32_t fv_tok_unknown(const fv_tok *t) { return t->pieces ? t->pieces_unk : t->model.unk; }

int64_t fv_tok_max_len(const fv_tok *t) { return t->truncation.set ? t->truncation.max_length : 0; }

int32_t fv_tok_pad(const fv_tok *t)
{
    if (t->padding.set) return (int32_t)t->padding.id;
    int32_t id = fv_tok_id(t, "[PAD]");
    return id >= 0 ? id : fv_tok_id(t, "<pad>");
}
