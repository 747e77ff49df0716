/* config.c - tokenizer_config.json, and the paths around it.
 *
 * The file says which class of transformers a tokenizer is and with what settings it was saved.  A
 * tokenizer.json beside it has all of that in its own form and wins; from here come the class of
 * directories that have none (vocab.txt, spiece.model), the names of special tokens, and what a
 * class puts around a text.  A setting that would change ids and is not understood is refused. */
#include <stdio.h>

#include "open.h"

/* ---- paths ---- */

bool fv__tok_join(char out[FV__MAX_PATH], const char *dir, const char *name)
{
    return (size_t)snprintf(out, FV__MAX_PATH, "%s/%s", dir, name) < FV__MAX_PATH;
}

bool fv__tok_has_file(const fv_env *env, const char *dir, const char *name)
{
    char path[FV__MAX_PATH];
    return fv__tok_join(path, dir, name) && fv__packed_exists(env, path);
}

bool fv__tok_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* The directory of a path, "." if it names none. */
void fv__tok_directory(char out[FV__MAX_PATH], const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, FV__MAX_PATH, "%.*s", slash ? (int)(slash > path ? slash - path : 1) : 1,
             slash ? path : ".");
}

/* ---- the file ---- */

/* "name": "[CLS]" or "name": {"content": "[CLS]", ...}
 * transformers writes AddedToken objects in newer files and plain strings in older ones. */
static fv_status read_name(fv__str *out, fv_tok *t, fv__jobj *o, const char *key, fv_err *e)
{
    fv__jval v, content;
    fv__jobj in;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return FV_OK;
    if (fv__json_kind(v) == '"') return fv__json_to_str(out, &t->pool, v, e);
    fv_status st = fv__json_object(&in, v, e);
    if (st == FV_OK && !fv__json_get(&content, &in, "content"))
        st = fv__json_bad(v, e, "\"content\" is missing");
    return st == FV_OK ? fv__json_to_str(out, &t->pool, content, e) : st;
}

static fv_status read_config(fv__config *c, fv_tok *t, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    bool basic = true;
    fv_status st;
    if ((st = fv__json_str(&c->class, &t->pool, o, "tokenizer_class", false, e)) != FV_OK)
        return st;
    if (c->class.n > 4 && fv__tok_ends_with(c->class.s, "Fast")) c->class.n -= 4;
    c->has_lower = fv__json_get(&v, o, "do_lower_case") && !fv__json_null(v);
    c->has_accents = fv__json_get(&v, o, "strip_accents") && !fv__json_null(v);
    if ((st = fv__json_bool(&c->lower, o, "do_lower_case", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->accents, o, "strip_accents", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->cjk, o, "tokenize_chinese_chars", false, e)) != FV_OK ||
        (st = fv__json_bool(&basic, o, "do_basic_tokenize", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->prefix_space, o, "add_prefix_space", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->add_bos, o, "add_bos_token", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->add_eos, o, "add_eos_token", false, e)) != FV_OK ||
        (st = fv__json_int(&c->extra_ids, o, "extra_ids", 0, 1000, false, e)) != FV_OK ||
        (st = read_name(&c->unk, t, o, "unk_token", e)) != FV_OK ||
        (st = read_name(&c->cls, t, o, "cls_token", e)) != FV_OK ||
        (st = read_name(&c->sep, t, o, "sep_token", e)) != FV_OK ||
        (st = read_name(&c->pad, t, o, "pad_token", e)) != FV_OK ||
        (st = read_name(&c->mask, t, o, "mask_token", e)) != FV_OK ||
        (st = read_name(&c->language_codes, t, o, "language_codes", e)) != FV_OK ||
        (st = read_name(&c->src_lang, t, o, "src_lang", e)) != FV_OK)
        return st;
    if (!basic) return fv__json_bad(o->self, e, "do_basic_tokenize = false is not implemented");
    if (fv__json_get(&v, o, "never_split") && !fv__json_null(v))
        return fv__json_bad(v, e, "never_split is not implemented");
    return FV_OK;
}

fv_status fv__load_config(fv__config *c, fv_tok *t, const char *dir, fv_err *e)
{
    char path[FV__MAX_PATH];
    fv_file f;
    fv__jval root = {0};
    fv__jobj *o;
    *c = (fv__config){.class = {"", 0},
                      .lower = true,
                      .cjk = true,
                      .add_bos = true,
                      .extra_ids = 100,
                      .unk = {"[UNK]", 5},
                      .cls = {"[CLS]", 5},
                      .sep = {"[SEP]", 5},
                      .pad = {"[PAD]", 5},
                      .mask = {"[MASK]", 6}};
    if (!fv__tok_has_file(t->env, dir, "tokenizer_config.json")) return FV_OK;
    fv__tok_join(path, dir, "tokenizer_config.json");
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    fv__json j = {.s = f.data, .n = f.size, .file = path};
    o = fv__alloc(t->env, sizeof *o);
    if (!o) {
        fv__file_close(&f);
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    }
    st = fv__json_open(&root, &j, e);
    if (st == FV_OK) st = fv__json_object(o, root, e);
    if (st == FV_OK) st = read_config(c, t, o, e);
    fv__free(t->env, o, sizeof *o);
    fv__file_close(&f);
    return st;
}

/* ---- config.json ---- */

/* Members are looked for one by one: a config.json has more of them than an fv__jobj holds. */
static bool member(fv__jval *out, fv__jval object, const char *key)
{
    for (fv__jiter it = fv__json_iter(object); fv__json_next(&it);)
        if (it.key_end - it.key == strlen(key) &&
            !memcmp(object.j->s + it.key, key, it.key_end - it.key)) {
            *out = (fv__jval){.j = object.j, .at = it.value};
            return fv__json_kind(*out) == '"';
        }
    return false;
}

/* For SentencePiece files without a tokenizer_config.json: the family of the model tells the
 * class. */
static fv_status class_of(fv__str *class, fv_tok *t, fv__jval root, fv_err *e)
{
    static const char *const classes[][2] = {{"t5", "T5Tokenizer"},
                                             {"esm", "EsmTokenizer"},
                                             {"speecht5", "SpeechT5Tokenizer"},
                                             {"llama", "LlamaTokenizer"},
                                             {"m2m_100", "M2M100Tokenizer"},
                                             {"mistral", "LlamaTokenizer"}};
    fv__jval v;
    fv__str type;
    if (member(&v, root, "tokenizer_class")) {
        fv_status st = fv__json_to_str(class, &t->pool, v, e);
        if (st == FV_OK && class->n > 4 && fv__tok_ends_with(class->s, "Fast")) class->n -= 4;
        return st;
    }
    if (!member(&v, root, "model_type")) return FV_OK;
    type = fv__json_raw(v);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (fv__str_is(type, classes[i][0]))
            *class = (fv__str){classes[i][1], strlen(classes[i][1])};
    return FV_OK;
}

fv_status fv__class_of_model(fv__str *class, fv_tok *t, const char *dir, fv_err *e)
{
    char path[FV__MAX_PATH];
    fv_file f;
    fv__jval root = {0};
    if (!fv__tok_has_file(t->env, dir, "config.json")) return FV_OK;
    fv__tok_join(path, dir, "config.json");
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    fv__json j = {.s = f.data, .n = f.size, .file = path};
    st = fv__json_open(&root, &j, e);
    if (st == FV_OK) st = class_of(class, t, root, e);
    fv__file_close(&f);
    return st;
}

/* ---- tokens that must be there ---- */

fv_status fv__need(const fv_tok *t, fv__str token, const char *file, fv_err *e)
{
    if (fv__vocab_id(&t->model.vocab, token.s, token.n) >= 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: the vocabulary lacks \"%.60s\"", file, token.s);
}
