/* pieces.c - SentencePiece models in a model directory, with what their class adds; Marian's two of
 * them. */
#include <stdio.h>

#include "open.h"

static fv_status load_model(fv_tok *t, const char *path, fv_err *e)
{
    fv_file f;
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    st = fv__spm_load(t, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

static fv_status add_special(fv_tok *t, const char *text, const char *file, fv_err *e)
{
    fv__added *a = t->added.all + t->added.n;
    if (!fv__pool_str(&t->pool, &a->content, text, strlen(text)))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    a->special = true;
    a->id = fv__added_number(t, a->content);
    t->added.n++;
    return FV_OK;
}

/* The classes that only add a token at an end: T5 (</s>, and 100 sentinels), SpeechT5 (</s>), Llama
 * (<s>).
 * Sentinels are numbered downwards behind the vocabulary, <extra_id_99> first, as T5 was
 * trained. */
static fv_status add_class(fv_tok *t, const char *dir, const char *file, fv_err *e)
{
    fv__config c;
    char name[32];
    fv_status st = fv__load_config(&c, t, dir, e);
    if (st == FV_OK && !c.class.n) st = fv__class_of_model(&c.class, t, dir, e);
    bool t5 = fv__str_is(c.class, "T5Tokenizer"), llama = fv__str_is(c.class, "LlamaTokenizer"),
         speech = fv__str_is(c.class, "SpeechT5Tokenizer");
    if (st != FV_OK || !c.class.n) return st;
    if (!t5 && !llama && !speech)
        return fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", file,
                       c.class.s);
    fv__str ends[] = {{"<s>", 3}, {"</s>", 4}};
    t->added.all = fv__pool_array(&t->pool, (size_t)c.extra_ids + 4, sizeof *t->added.all);
    t->post.specials = fv__pool_array(&t->pool, 2, sizeof *t->post.specials);
    if (!t->added.all || !t->post.specials) return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    static const char *const marks[] = {"<unk>", "<s>", "</s>", "<pad>"};
    for (int i = 0; i < 4 && st == FV_OK; i++)
        if (fv__vocab_id(&t->model.vocab, marks[i], strlen(marks[i])) >= 0)
            st = add_special(t, marks[i], file, e);
    for (int64_t i = t5 ? c.extra_ids - 1 : -1; i >= 0 && st == FV_OK; i--) {
        snprintf(name, sizeof name, "<extra_id_%d>", (int)i);
        st = add_special(t, name, file, e);
    }
    bool bos = llama && c.add_bos, eos = t5 || speech || c.add_eos;
    if (st != FV_OK || (bos && (st = fv__need(t, ends[0], file, e)) != FV_OK) ||
        (eos && (st = fv__need(t, ends[1], file, e)) != FV_OK))
        return st;
    t->post.kind = FV__POST_TEMPLATE;
    t->post.n_specials = 2;
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && fv__post_special(t, t->post.specials + i, ends[i],
                                    fv__vocab_id(&t->model.vocab, ends[i].s, ends[i].n));
    const char *single = bos ? eos ? "00A010" : "00A0" : eos ? "A010" : "A0";
    const char *pair = bos ? eos ? "00A01000B010" : "00A000B0" : eos ? "A010B010" : "A0B0";
    return ok && fv__post_layout(t, single, pair)
               ? FV_OK
               : fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
}

fv_status fv__load_pieces(fv_tok *t, const char *dir, const char *file, fv_err *e)
{
    fv_status st = load_model(t, file, e);
    return st == FV_OK ? add_class(t, dir, file, e) : st;
}

/* source.spm and target.spm cut into pieces, vocab.json numbers them, </s> ends.
 * Two segmentations, one numbering: an encoder and decoder with a shared embedding. */
fv_status fv__load_marian(fv_tok *t, const char *dir, fv_err *e)
{
    char source[FV__MAX_PATH], target[FV__MAX_PATH], vocab[FV__MAX_PATH];
    if (!fv__tok_join(source, dir, "source.spm") || !fv__tok_join(target, dir, "target.spm") ||
        !fv__tok_join(vocab, dir, "vocab.json"))
        return fv_fail(e, FV_EARG, "%.200s: the path is too long", dir);
    fv_status st = load_model(t, source, e);
    if (st == FV_OK && !(t->target = fv__tok_new(t->env, e))) return FV_ENOMEM;
    if (st == FV_OK) st = load_model(t->target, target, e);
    if (st == FV_OK) st = fv__tok_finish(t->target, target, e);
    if (st != FV_OK) return st;
    t->pieces = fv__pool_alloc(&t->pool, sizeof *t->pieces);
    t->post.specials = fv__pool_array(&t->pool, 1, sizeof *t->post.specials);
    if (!t->pieces || !t->post.specials) return fv_fail(e, FV_ENOMEM, "%s: out of memory", vocab);
    if ((st = fv__load_vocab_json(t->pieces, t, vocab, e)) != FV_OK) return st;
    int32_t end = fv__vocab_id(t->pieces, "</s>", 4);
    t->pieces_unk = fv__vocab_id(t->pieces, "<unk>", 5);
    if (end < 0 || t->pieces_unk < 0)
        return fv_fail(e, FV_EFORMAT, "%s: the vocabulary lacks </s> or <unk>", vocab);
    t->post.kind = FV__POST_TEMPLATE;
    t->post.n_specials = 1;
    bool ok = fv__post_special(t, t->post.specials, (fv__str){"</s>", 4}, end) &&
              fv__post_layout(t, "A000", "A0B000");
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", vocab);
}
