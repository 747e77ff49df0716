/* post.c - the post_processor section of a tokenizer.json: whatever it is called, a template comes
 * out.
 *
 *    "single": [CLS] A [SEP]            items: special 0, sequence A, special 1
 *    "pair":   [CLS] A [SEP] B [SEP]    each with a type id (0 or 1)
 *
 * BERT's and RoBERTa's own processors are the same with fixed layouts, written below in two
 * characters an item: 'A' or 'B' for a text or the digit of a special, then its type id. */
#include "load.h"

static fv_status no_memory(fv__jval v, fv_err *e)
{
    return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
}

/* ---- TemplateProcessing ---- */

/* {"[CLS]": {"id": "[CLS]", "ids": [101], "tokens": ["[CLS]"]}, ...} */
static fv_status read_special(fv__template_special *s, fv_tok *t, fv__jval v, fv_err *e)
{
    fv__jobj o;
    fv__jval ids, tokens;
    fv__str id;
    fv_status st = fv__json_object(&o, v, e);
    if (st == FV_OK) st = fv__json_str(&id, &t->pool, &o, "id", true, e);
    if (st != FV_OK) return st;
    if (!fv__json_get(&ids, &o, "ids") || !fv__json_get(&tokens, &o, "tokens") ||
        fv__json_kind(ids) != '[' || fv__json_kind(tokens) != '[')
        return fv__json_bad(v, e, "arrays \"ids\" and \"tokens\" were expected");
    /* A special of a template may stand for several ids. */
    s->n = (int32_t)fv__json_count(ids);
    if (fv__json_count(tokens) != s->n)
        return fv__json_bad(v, e, "\"ids\" and \"tokens\" differ in length");
    s->ids = fv__pool_array(&t->pool, (size_t)s->n, sizeof *s->ids);
    s->tokens = fv__pool_array(&t->pool, (size_t)s->n, sizeof *s->tokens);
    if (!s->ids || !s->tokens) return no_memory(v, e);
    for (fv__jiter it = fv__json_iter(ids); st == FV_OK && fv__json_next(&it);) {
        int64_t x;
        st = fv__json_to_int(&x, fv__json_item(ids, &it), 0, INT32_MAX, e);
        if (st == FV_OK) s->ids[it.index] = (int32_t)x;
    }
    for (fv__jiter it = fv__json_iter(tokens); st == FV_OK && fv__json_next(&it);)
        st = fv__json_to_str(&s->tokens[it.index], &t->pool, fv__json_item(tokens, &it), e);
    return st == FV_OK ? fv__json_done(&o, e) : st;
}

static fv_status read_specials(fv_tok *t, fv__jval v, fv_err *e)
{
    fv__post *p = &t->post;
    if (fv__json_kind(v) != '{') return fv__json_bad(v, e, "an object was expected");
    int64_t n = fv__json_count(v);
    /* A bound on what a file can make us allocate and search; real ones have a handful. */
    if (n > 4096) return fv__json_bad(v, e, "%lld special tokens are too many", (long long)n);
    p->specials = fv__pool_array(&t->pool, (size_t)n, sizeof *p->specials);
    if (!p->specials) return no_memory(v, e);
    fv_status st = FV_OK;
    for (fv__jiter it = fv__json_iter(v); st == FV_OK && fv__json_next(&it);) {
        fv__template_special *s = p->specials + p->n_specials;
        st = fv__json_to_str(&s->name, &t->pool, (fv__jval){.j = v.j, .at = it.key - 1}, e);
        for (int i = 0; st == FV_OK && i < p->n_specials; i++)
            if (fv__str_eq(p->specials[i].name, s->name))
                st = fv__json_bad(v, e, "\"%.60s\" is there twice", s->name.s);
        if (st == FV_OK) st = read_special(s, t, fv__json_item(v, &it), e);
        p->n_specials++;
    }
    return st;
}

/* {"Sequence": {"id": "A", "type_id": 0}} or {"SpecialToken": {"id": "[CLS]", "type_id": 0}} */
static fv_status read_item(fv__template_item *out, fv_tok *t, fv__jval v, bool pair, fv_err *e)
{
    fv__jobj o, in;
    fv__jval inner;
    fv__str id;
    int64_t type = 0;
    fv_status st = fv__json_object(&o, v, e);
    if (st != FV_OK) return st;
    bool sequence = fv__json_get(&inner, &o, "Sequence");
    if (!sequence && !fv__json_get(&inner, &o, "SpecialToken"))
        return fv__json_bad(v, e, "Sequence or SpecialToken was expected");
    if ((st = fv__json_done(&o, e)) != FV_OK || (st = fv__json_object(&in, inner, e)) != FV_OK ||
        (st = fv__json_str(&id, &t->pool, &in, "id", true, e)) != FV_OK ||
        (st = fv__json_int(&type, &in, "type_id", 0, INT32_MAX, true, e)) != FV_OK ||
        (st = fv__json_done(&in, e)) != FV_OK)
        return st;
    *out = (fv__template_item){.sequence = -1, .type = (int32_t)type, .special = -1};
    if (sequence) {
        bool b = fv__str_is(id, "B");
        if ((!b && !fv__str_is(id, "A")) || (b && !pair))
            return fv__json_bad(inner, e, "sequence \"%.60s\" is not known here", id.s);
        out->sequence = b;
        return FV_OK;
    }
    /* Searched linearly: a template has few items and few specials. */
    for (int i = 0; i < t->post.n_specials; i++)
        if (fv__str_eq(t->post.specials[i].name, id)) out->special = i;
    return out->special >= 0 ? FV_OK
                             : fv__json_bad(inner, e, "\"%.60s\" is not in special_tokens", id.s);
}

static fv_status read_items(fv__template_item **out, int *n_out, fv_tok *t, fv__jobj *o,
                            const char *key, fv_err *e)
{
    fv__jval v;
    fv_status st = FV_OK;
    if (!fv__json_get(&v, o, key) || fv__json_kind(v) != '[')
        return fv__json_bad(o->self, e, "an array \"%s\" was expected", key);
    int64_t n = fv__json_count(v);
    if (n > 4096) return fv__json_bad(v, e, "%lld parts are too many", (long long)n);
    fv__template_item *items = fv__pool_array(&t->pool, (size_t)n, sizeof *items);
    if (!items) return no_memory(v, e);
    for (fv__jiter it = fv__json_iter(v); st == FV_OK && fv__json_next(&it);)
        st = read_item(items + it.index, t, fv__json_item(v, &it), n_out == &t->post.n_pair, e);
    *out = items;
    *n_out = (int)n;
    return st;
}

static fv_status read_template(fv_tok *t, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    fv__post *p = &t->post;
    if (!fv__json_get(&v, o, "special_tokens"))
        return fv__json_bad(o->self, e, "\"special_tokens\" is missing");
    fv_status st = read_specials(t, v, e);
    if (st == FV_OK) st = read_items(&p->single, &p->n_single, t, o, "single", e);
    return st == FV_OK ? read_items(&p->pair, &p->n_pair, t, o, "pair", e) : st;
}

/* ---- BERT and RoBERTa ---- */

/* ["[SEP]", 102] */
static fv_status read_named(fv__template_special *s, fv_tok *t, fv__jobj *o, const char *key,
                            fv_err *e)
{
    fv__jval v;
    int64_t id = 0;
    if (!fv__json_get(&v, o, key) || fv__json_kind(v) != '[' || fv__json_count(v) != 2)
        return fv__json_bad(o->self, e, "\"%s\" must be [token, id]", key);
    fv__jiter it = fv__json_iter(v);
    fv__json_next(&it);
    fv_status st = fv__json_to_str(&s->name, &t->pool, fv__json_item(v, &it), e);
    fv__json_next(&it);
    if (st == FV_OK) st = fv__json_to_int(&id, fv__json_item(v, &it), 0, INT32_MAX, e);
    if (st != FV_OK) return st;
    return fv__post_special(t, s, s->name, (int32_t)id) ? FV_OK : no_memory(v, e);
}

/* name is a view into the pool, which outlives the special. */
bool fv__post_special(fv_tok *t, fv__template_special *s, fv__str name, int32_t id)
{
    s->name = name;
    s->n = 1;
    s->ids = fv__pool_array(&t->pool, 1, sizeof *s->ids);
    s->tokens = fv__pool_array(&t->pool, 1, sizeof *s->tokens);
    if (!s->ids || !s->tokens) return false;
    s->ids[0] = id;
    s->tokens[0] = name;
    return true;
}

/* "00A010B111" is special 0 of type 0, text A of type 0, special 1 of type 0, text B of type 1,
 * special 1 of type 1: [CLS] A [SEP] B [SEP] with BERT's segments. */
bool fv__post_layout(fv_tok *t, const char *single, const char *pair)
{
    fv__post *p = &t->post;
    for (int two = 0; two < 2; two++) {
        const char *s = two ? pair : single;
        int n = (int)strlen(s) / 2;
        fv__template_item *items = fv__pool_array(&t->pool, (size_t)n, sizeof *items);
        if (!items) return false;
        for (int i = 0; i < n; i++, s += 2) {
            bool text = *s == 'A' || *s == 'B';
            items[i] = (fv__template_item){text ? *s - 'A' : -1, s[1] - '0', text ? -1 : *s - '0'};
        }
        *(two ? &p->pair : &p->single) = items;
        *(two ? &p->n_pair : &p->n_single) = n;
    }
    return true;
}

/* RoBERTa's pair has two separators in the middle, </s></s>, and type id 0 throughout. */
static fv_status read_bert(fv_tok *t, fv__jobj *o, bool roberta, fv_err *e)
{
    fv__post *p = &t->post;
    p->specials = fv__pool_array(&t->pool, 2, sizeof *p->specials);
    if (!p->specials) return no_memory(o->self, e);
    p->n_specials = 2;
    fv_status st = read_named(p->specials, t, o, "cls", e);
    if (st == FV_OK) st = read_named(p->specials + 1, t, o, "sep", e);
    if (st != FV_OK) return st;
    if (!roberta) return fv__post_layout(t, "00A010", "00A010B111") ? FV_OK : no_memory(o->self, e);
    p->trim = p->trim_prefix_space = true;
    if ((st = fv__json_bool(&p->trim, o, "trim_offsets", false, e)) != FV_OK ||
        (st = fv__json_bool(&p->trim_prefix_space, o, "add_prefix_space", false, e)) != FV_OK)
        return st;
    return fv__post_layout(t, "00A010", "00A01010B010") ? FV_OK : no_memory(o->self, e);
}

/* ---- the section ---- */

static fv_status read_post(fv_tok *t, fv__jobj *o, fv__str type, fv_err *e)
{
    fv__post *p = &t->post;
    if (fv__str_is(type, "ByteLevel")) {
        fv_status st;
        if (p->byte_level)
            return fv__json_bad(o->self, e, "more than one ByteLevel is not implemented");
        p->byte_level = p->byte_prefix_space = p->byte_trim = p->byte_use_regex = true;
        /* Whether ByteLevel stands before or after the step that adds tokens, for saving it in
         * the same order. */
        p->byte_first = p->kind == FV__POST_NONE;
        if ((st = fv__json_bool(&p->byte_prefix_space, o, "add_prefix_space", false, e)) != FV_OK ||
            (st = fv__json_bool(&p->byte_trim, o, "trim_offsets", false, e)) != FV_OK ||
            (st = fv__json_bool(&p->byte_use_regex, o, "use_regex", false, e)) != FV_OK)
            return st;
        return FV_OK;
    }
    /* tokenizers runs processors one after the other, each around the result of the one before:
     * two templates would nest. */
    if (p->kind != FV__POST_NONE)
        return fv__json_bad(o->self, e, "more than one step that adds tokens is not implemented");
    if (fv__str_is(type, "TemplateProcessing")) {
        p->kind = FV__POST_TEMPLATE;
        return read_template(t, o, e);
    }
    bool roberta = fv__str_is(type, "RobertaProcessing");
    if (!roberta && !fv__str_is(type, "BertProcessing"))
        return fv__json_bad(o->self, e, "type \"%.60s\" is not implemented", type.s);
    p->kind = roberta ? FV__POST_ROBERTA : FV__POST_BERT;
    return read_bert(t, o, roberta, e);
}

fv_status fv__load_post(fv_tok *t, fv__jval v, fv_err *e)
{
    fv__post *p = &t->post;
    fv_status st = fv__json_steps(t, v, "processors", read_post, e);
    if (st != FV_OK) return st;
    if (p->byte_level && p->kind == FV__POST_ROBERTA && p->trim && p->byte_trim)
        return fv__json_bad(v, e, "trimming offsets twice is not implemented");
    if (p->byte_level && p->byte_trim) {
        p->trim = true;
        p->trim_prefix_space = p->byte_prefix_space;
    }
    return FV_OK;
}
