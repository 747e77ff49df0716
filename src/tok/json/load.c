/* load.c - a tokenizer.json, section by section. */
#include "load.h"

/* ---- added tokens ---- */

static fv_status read_added(fv_tok *t, fv__added *a, fv__jval v, fv_err *e)
{
    fv__jobj o;
    int64_t id = 0;
    fv_status st = fv__json_object(&o, v, e);
    a->normalized = true;
    if (st != FV_OK || (st = fv__json_int(&id, &o, "id", 0, INT32_MAX / 4, true, e)) != FV_OK ||
        (st = fv__json_str(&a->content, &t->pool, &o, "content", true, e)) != FV_OK ||
        (st = fv__json_bool(&a->single_word, &o, "single_word", true, e)) != FV_OK ||
        (st = fv__json_bool(&a->lstrip, &o, "lstrip", true, e)) != FV_OK ||
        (st = fv__json_bool(&a->rstrip, &o, "rstrip", true, e)) != FV_OK ||
        (st = fv__json_bool(&a->normalized, &o, "normalized", true, e)) != FV_OK ||
        (st = fv__json_bool(&a->special, &o, "special", true, e)) != FV_OK ||
        (st = fv__json_done(&o, e)) != FV_OK)
        return st;
    if (!a->content.n) return fv__json_bad(v, e, "an added token must have content");
    a->id = (int32_t)id;
    /* The reference numbers added tokens itself and does not look at the id; where the two differ,
     * nobody can be right. */
    int32_t real = fv__added_number(t, a->content);
    if (real != a->id)
        return fv__json_bad(v, e, "\"%.60s\" has id %d here, but its index in the vocabulary is %d",
                            a->content.s, a->id, real);
    return FV_OK;
}

static fv_status load_added(fv_tok *t, fv__jval v, fv_err *e)
{
    fv_status st = FV_OK;
    if (fv__json_kind(v) != '[') return fv__json_bad(v, e, "an array was expected");
    int64_t n = fv__json_count(v);
    if (n > 1000000) return fv__json_bad(v, e, "%lld added tokens are too many", (long long)n);
    t->added.all = fv__pool_array(&t->pool, (size_t)n, sizeof *t->added.all);
    if (!t->added.all) return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
    for (fv__jiter it = fv__json_iter(v); st == FV_OK && fv__json_next(&it);) {
        st = read_added(t, t->added.all + t->added.n, fv__json_item(v, &it), e);
        if (st == FV_OK) t->added.n++;
    }
    return st;
}

/* ---- limits ---- */

static fv_status direction(bool *left, fv_tok *t, fv__jobj *o, fv_err *e)
{
    fv__str s = {"Right", 5};
    fv_status st = fv__json_str(&s, &t->pool, o, "direction", false, e);
    *left = fv__str_is(s, "Left");
    if (st == FV_OK && !*left && !fv__str_is(s, "Right"))
        return fv__json_bad(o->self, e, "direction \"%.60s\" is not known", s.s);
    return st;
}

static fv_status load_truncation(fv_tok *t, fv__jval v, fv_err *e)
{
    static const char *const names[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    fv__truncation *x = &t->truncation;
    fv__jobj o;
    fv__str strategy = {"LongestFirst", 12};
    fv_status st = fv__json_object(&o, v, e);
    if (st != FV_OK || (st = direction(&x->left, t, &o, e)) != FV_OK ||
        (st = fv__json_int(&x->max_length, &o, "max_length", 0, INT32_MAX, true, e)) != FV_OK ||
        (st = fv__json_str(&strategy, &t->pool, &o, "strategy", true, e)) != FV_OK ||
        (st = fv__json_int(&x->stride, &o, "stride", 0, INT32_MAX, true, e)) != FV_OK)
        return st;
    x->set = true;
    for (x->strategy = 0; x->strategy < 3 && !fv__str_is(strategy, names[x->strategy]);
         x->strategy++) {}
    if (x->strategy == 3) return fv__json_bad(v, e, "strategy \"%.60s\" is not known", strategy.s);
    return fv__json_done(&o, e);
}

static fv_status load_padding(fv_tok *t, fv__jval v, fv_err *e)
{
    fv__padding *x = &t->padding;
    fv__jobj o, fixed;
    fv__jval s;
    fv_status st = fv__json_object(&o, v, e);
    if (st != FV_OK || (st = direction(&x->left, t, &o, e)) != FV_OK ||
        (st = fv__json_int(&x->id, &o, "pad_id", 0, INT32_MAX, true, e)) != FV_OK ||
        (st = fv__json_int(&x->type, &o, "pad_type_id", 0, INT32_MAX, true, e)) != FV_OK ||
        (st = fv__json_str(&x->token, &t->pool, &o, "pad_token", true, e)) != FV_OK)
        return st;
    x->set = true;
    x->multiple = -1;
    if ((st = fv__json_int(&x->multiple, &o, "pad_to_multiple_of", 0, INT32_MAX, false, e)) !=
        FV_OK)
        return st;
    x->has_multiple = x->multiple >= 0;
    if (!fv__json_get(&s, &o, "strategy")) return fv__json_bad(v, e, "\"strategy\" is missing");
    if (fv__json_kind(s) == '{') { /* {"Fixed": 128} */
        x->fixed = true;
        if ((st = fv__json_object(&fixed, s, e)) != FV_OK ||
            (st = fv__json_int(&x->length, &fixed, "Fixed", 0, INT32_MAX, true, e)) != FV_OK ||
            (st = fv__json_done(&fixed, e)) != FV_OK)
            return st;
    } else if (fv__json_kind(s) != '"' || !fv__str_is(fv__json_raw(s), "BatchLongest")) {
        return fv__json_bad(s, e, "BatchLongest or Fixed was expected");
    }
    return fv__json_done(&o, e);
}

/* ---- the file ---- */

static fv_status load_version(fv_tok *t, fv__jval v, fv_err *e)
{
    fv__str s;
    fv_status st = fv__json_to_str(&s, &t->pool, v, e);
    return st != FV_OK || fv__str_is(s, "1.0")
               ? st
               : fv__json_bad(v, e, "version \"%.20s\" is not known", s.s);
}

fv_status fv__json_load(fv_tok *t, const char *data, size_t n, const char *file, fv_err *e)
{
    bool has_model = t->model.vocab.slots != NULL;
    /* Added tokens are numbered by the model's vocabulary, so it comes first whatever the order in
     * the file. */
    static const struct {
        const char *name;
        fv_status (*load)(fv_tok *, fv__jval, fv_err *);
    } sections[] = {
        {"version", load_version},           {"truncation", load_truncation},
        {"padding", load_padding},           {"model", fv__load_model},
        {"normalizer", fv__load_normaliser}, {"pre_tokenizer", fv__load_splitter},
        {"post_processor", fv__load_post},   {"decoder", fv__load_decoder},
        {"added_tokens", load_added},
    };
    fv__json j = {.s = data, .n = n, .file = file};
    fv__jval root, v;
    fv__jobj o;
    fv_status st = fv__json_open(&root, &j, e);
    if (st == FV_OK) st = fv__json_object(&o, root, e);
    for (size_t i = 0; st == FV_OK && i < sizeof sections / sizeof *sections; i++) {
        bool there = fv__json_get(&v, &o, sections[i].name);
        if (there && !fv__json_null(v))
            st = sections[i].load(t, v, e);
        else if (!has_model && !strcmp(sections[i].name, "model"))
            st = fv__json_bad(root, e, "\"model\" is missing");
    }
    return st == FV_OK ? fv__json_done(&o, e) : st;
}
