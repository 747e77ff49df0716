/* pieces.c - SentencePiece models in a model directory, with what their class adds; Marian's two of
 * them, and M2M-100's, whose pieces a vocab.json numbers. */
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

/* ---- pieces that vocab.json numbers ---- */

/* Reads vocab.json into t->pieces, with `more` tokens behind it. */
static fv_status load_numbers(fv_tok *t, const char *vocab, const char *const *more, int32_t n_more,
                              fv_err *e)
{
    fv__vocab read = {0};
    size_t bytes = 0;
    fv_status st = fv__load_vocab_json(&read, t, vocab, e);
    if (st != FV_OK) return st;
    for (int32_t i = 0; i < read.size; i++) bytes += fv__vocab_str(&read, i).n;
    for (int32_t i = 0; i < n_more; i++) bytes += strlen(more[i]);
    t->pieces = fv__pool_alloc(&t->pool, sizeof *t->pieces);
    if (!t->pieces || !fv__vocab_init(t->pieces, &t->pool, (int64_t)read.n + n_more,
                                      (int64_t)read.size + n_more, bytes))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", vocab);
    for (int32_t i = 0; i < read.size; i++) {
        fv__str s = fv__vocab_str(&read, i);
        if (s.s) fv__vocab_put(t->pieces, s.s, s.n, i);
    }
    for (int32_t i = 0; i < n_more; i++)
        if (fv__vocab_put(t->pieces, more[i], strlen(more[i]), read.n + i) != FV__ADDED)
            return fv_fail(e, FV_EFORMAT, "%s: \"%s\" or its id %d is there already", vocab,
                           more[i], read.n + i);
    t->pieces_unk = fv__vocab_id(t->pieces, "<unk>", 5);
    if (fv__vocab_id(t->pieces, "</s>", 4) < 0 || t->pieces_unk < 0)
        return fv_fail(e, FV_EFORMAT, "%s: the vocabulary lacks </s> or <unk>", vocab);
    return FV_OK;
}

/* </s> behind a text, and a language before it where there is one. */
static fv_status frame(fv_tok *t, const char *language, const char *file, fv_err *e)
{
    const char *const texts[] = {"</s>", language};
    int n = language ? 2 : 1;
    bool ok = (t->post.specials = fv__pool_array(&t->pool, 2, sizeof *t->post.specials));
    t->post.kind = FV__POST_TEMPLATE;
    t->post.n_specials = n;
    for (int i = 0; i < n; i++) {
        fv__str s = {texts[i], strlen(texts[i])};
        ok = ok && fv__post_special(t, t->post.specials + i, s, fv__vocab_id(t->pieces, s.s, s.n));
    }
    ok = ok && (language ? fv__post_layout(t, "10A000", "10A0B000")
                         : fv__post_layout(t, "A000", "A0B000"));
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
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
    if (st == FV_OK) st = load_numbers(t, vocab, NULL, 0, e);
    return st == FV_OK ? frame(t, NULL, vocab, e) : st;
}

/* The languages of M2M-100 and of its models for WMT21 (language_codes), in the order of their
 * ids, which follow vocab.json; no file of a published directory numbers them. */
static const char *const m2m100[] = {
    "__af__", "__am__", "__ar__", "__ast__", "__az__", "__ba__", "__be__", "__bg__", "__bn__",
    "__br__", "__bs__", "__ca__", "__ceb__", "__cs__", "__cy__", "__da__", "__de__", "__el__",
    "__en__", "__es__", "__et__", "__fa__",  "__ff__", "__fi__", "__fr__", "__fy__", "__ga__",
    "__gd__", "__gl__", "__gu__", "__ha__",  "__he__", "__hi__", "__hr__", "__ht__", "__hu__",
    "__hy__", "__id__", "__ig__", "__ilo__", "__is__", "__it__", "__ja__", "__jv__", "__ka__",
    "__kk__", "__km__", "__kn__", "__ko__",  "__lb__", "__lg__", "__ln__", "__lo__", "__lt__",
    "__lv__", "__mg__", "__mk__", "__ml__",  "__mn__", "__mr__", "__ms__", "__my__", "__ne__",
    "__nl__", "__no__", "__ns__", "__oc__",  "__or__", "__pa__", "__pl__", "__ps__", "__pt__",
    "__ro__", "__ru__", "__sd__", "__si__",  "__sk__", "__sl__", "__so__", "__sq__", "__sr__",
    "__ss__", "__su__", "__sv__", "__sw__",  "__ta__", "__th__", "__tl__", "__tn__", "__tr__",
    "__uk__", "__ur__", "__uz__", "__vi__",  "__wo__", "__xh__", "__yi__", "__yo__", "__zh__",
    "__zu__",
};
static const char *const wmt21[] = {"__en__", "__ha__", "__is__", "__ja__",
                                    "__cs__", "__ru__", "__zh__", "__de__"};

/* Special tokens stand for themselves wherever a text has them. */
static fv_status add_languages(fv_tok *t, const char *const *codes, int32_t n, const char *file,
                               fv_err *e)
{
    static const char *const marks[] = {"<s>", "</s>", "<pad>", "<unk>"};
    fv_status st = FV_OK;
    t->added.all = fv__pool_array(&t->pool, (size_t)n + 4, sizeof *t->added.all);
    if (!t->added.all) return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    for (int32_t i = 0; i < 4 && st == FV_OK; i++) st = add_special(t, marks[i], file, e);
    for (int32_t i = 0; i < n && st == FV_OK; i++) st = add_special(t, codes[i], file, e);
    for (int32_t i = 0; i < t->added.n; i++) {
        fv__added *a = t->added.all + i;
        a->id = fv__vocab_id(t->pieces, a->content.s, a->content.n);
        if (a->id < 0) return fv_fail(e, FV_EFORMAT, "%s: \"%s\" is missing", file, a->content.s);
    }
    return st;
}

fv_status fv__load_m2m_100(fv_tok *t, const char *dir, fv_err *e)
{
    char model[FV__MAX_PATH], vocab[FV__MAX_PATH], from[32] = "__en__";
    fv__config c;
    if (!fv__tok_join(model, dir, "sentencepiece.bpe.model") ||
        !fv__tok_join(vocab, dir, "vocab.json"))
        return fv_fail(e, FV_EARG, "%.200s: the path is too long", dir);
    fv_status st = fv__load_config(&c, t, dir, e);
    if (st == FV_OK && !c.class.n) st = fv__class_of_model(&c.class, t, dir, e);
    if (st == FV_OK && !fv__str_is(c.class, "M2M100Tokenizer"))
        st = fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", vocab,
                     c.class.n ? c.class.s : "");
    if (st == FV_OK) st = load_model(t, model, e);
    if (st != FV_OK) return st;
    bool few = fv__str_is(c.language_codes, "wmt21");
    const char *const *codes = few ? wmt21 : m2m100;
    int32_t n = few ? (int32_t)(sizeof wmt21 / sizeof *wmt21)
                    : (int32_t)(sizeof m2m100 / sizeof *m2m100);
    if ((st = load_numbers(t, vocab, codes, n, e)) != FV_OK) return st;
    if (c.src_lang.n) snprintf(from, sizeof from, "__%.20s__", c.src_lang.s);
    if (fv__vocab_id(t->pieces, from, strlen(from)) < 0)
        return fv_fail(e, FV_EFORMAT,
                       "%s/tokenizer_config.json: src_lang: \"%.60s\" is no language", dir,
                       c.src_lang.s);
    st = add_languages(t, codes, n, vocab, e);
    return st == FV_OK ? frame(t, from, vocab, e) : st;
}
