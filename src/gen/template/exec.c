/* exec.c - the statements of a template, one after the other, writing text.
 *
 * Frames hold variables: a loop's body and a macro's have one of their own, an if has none.  That
 * is why {% set %} inside a loop is forgotten behind it and namespaces exist. */
#include "gen/template/jinja.h"

void fv__jinja_set(jinja_run *r, jinja_text name, jinja_value v)
{
    jinja_frame *f = r->frame;
    for (int i = 0; i < f->n; i++)
        if (fv__text_same(f->name[i], name)) {
            f->value[i] = v;
            return;
        }
    if (f->n == f->cap) {
        int cap = 2 * f->cap + 4;
        jinja_text *names = fv__jinja_alloc(r->pool, (size_t)cap * sizeof *names);
        jinja_value *values = fv__jinja_alloc(r->pool, (size_t)cap * sizeof *values);
        if (!names || !values) return;
        if (f->n) memcpy(names, f->name, (size_t)f->n * sizeof *names);
        if (f->n) memcpy(values, f->value, (size_t)f->n * sizeof *values);
        f->name = names;
        f->value = values;
        f->cap = cap;
    }
    f->name[f->n] = name;
    f->value[f->n++] = v;
}

static jinja_frame *new_frame(jinja_run *r, jinja_frame *above)
{
    jinja_frame *f = fv__jinja_alloc(r->pool, sizeof *f);
    if (f) f->above = above;
    return f;
}

/* One name takes the value, several take its parts. */
static void assign(jinja_run *r, const jinja_node *names, jinja_value v)
{
    int64_t n = 0;
    if (!names->next) {
        fv__jinja_set(r, names->name, v);
        return;
    }
    jinja_list *parts = fv__jinja_items(r->pool, v);
    for (const jinja_node *i = names; i && parts && !r->pool->st; i = i->next, n++)
        if (n < parts->n) fv__jinja_set(r, i->name, parts->at[n]);
    if (parts && n != parts->n)
        fv__jinja_fail(r->pool, FV_EARG, "%lld names for %lld values", (long long)n,
                       (long long)parts->n);
}

static void set_target(jinja_run *r, const jinja_node *target, jinja_value v)
{
    if (r->pool->st) return;
    if (target->kind == NODE_NAME) {
        fv__jinja_set(r, target->name, v);
    } else if (target->kind == NODE_TUPLE) {
        assign(r, target->items, v);
    } else {
        jinja_value space = fv__jinja_eval(r, target->a);
        if (space.kind != JINJA_NAMESPACE)
            fv__jinja_fail(r->pool, FV_EARG, "an entry set in a %s, which is no namespace",
                           fv__jinja_kind_name(space));
        else
            fv__jinja_put(r->pool, space.dict, fv__jinja_string(target->name), v);
    }
}

jinja_value fv__jinja_capture(jinja_run *r, const jinja_node *body)
{
    fv_buf outer = r->out;
    jinja_frame *frame = r->frame;
    r->out = (fv_buf){.env = &r->pool->env};
    r->frame = new_frame(r, frame);
    if (r->frame) fv__jinja_exec(r, body);
    r->frame = frame;
    jinja_value v = fv__jinja_take(r->pool, &r->out);
    r->out = outer;
    return v;
}

/* A block's filters stand one in the other; the innermost one gets the text. */
static jinja_value filter_block(jinja_run *r, const jinja_node *filter, jinja_value v)
{
    if (!filter || r->pool->st) return v;
    v = filter_block(r, filter->a, v);
    jinja_args a = fv__jinja_eval_args(r, filter->items);
    return r->pool->st ? v : fv__jinja_filter(r, filter->name, v, &a);
}

jinja_value fv__jinja_call_macro(jinja_run *r, const jinja_macro *m, const jinja_args *a)
{
    jinja_frame *caller = r->frame, *f = new_frame(r, m->frame);
    jinja_value out = {0};
    int i = 0, known = 0;
    if (!f) return out;
    if (++r->depth > FV_JINJA_MAX_CALLS)
        fv__jinja_fail(r->pool, FV_EARG, "macros nested deeper than %d", FV_JINJA_MAX_CALLS);
    r->frame = f;
    for (const jinja_node *p = m->node->items; p && !r->pool->st; p = p->next, i++) {
        jinja_value v = {0};
        bool given = i < a->unnamed;
        if (given) v = a->at[i];
        for (int k = a->unnamed; k < a->n; k++)
            if (fv__text_same(a->name[k], p->name)) v = a->at[k], given = true;
        known += given;
        if (!given && p->a) v = fv__jinja_eval(r, p->a);
        fv__jinja_set(r, p->name, v);
    }
    if (known != a->n)
        fv__jinja_fail(r->pool, FV_EARG, "the macro %.*s takes other arguments",
                       (int)m->node->name.n, m->node->name.s);
    if (!r->pool->st) out = fv__jinja_capture(r, m->node->b);
    r->frame = caller;
    r->depth--;
    return out;
}

static void define_macro(jinja_run *r, const jinja_node *n)
{
    jinja_macro *m = fv__jinja_alloc(r->pool, sizeof *m);
    if (!m) return;
    *m = (jinja_macro){.node = n, .frame = r->frame};
    fv__jinja_set(r, n->name, (jinja_value){.kind = JINJA_MACRO, .macro = m});
}

/* Those items of a loop that its "if" lets through: loop.length counts only these. */
static jinja_list *select_items(jinja_run *r, const jinja_node *n)
{
    jinja_list *all = fv__jinja_items(r->pool, fv__jinja_eval(r, n->a));
    if (!n->d || !all) return all;
    jinja_list *some = fv__jinja_alloc(r->pool, sizeof *some);
    jinja_frame *outer = r->frame;
    for (int64_t i = 0; some && i < all->n && !r->pool->st; i++) {
        r->frame = new_frame(r, outer);
        if (r->frame) assign(r, n->items, all->at[i]);
        if (r->frame && fv__jinja_truth(fv__jinja_eval(r, n->d)))
            fv__jinja_append(r->pool, some, all->at[i]);
    }
    r->frame = outer;
    return some;
}

static int run_loop(jinja_run *r, const jinja_node *n)
{
    static const jinja_text name = {"loop", 4};
    jinja_list *items = select_items(r, n);
    jinja_frame *outer = r->frame;
    int how = JINJA_GO_ON;
    if (r->pool->st || !items) return how;
    if (!items->n) return fv__jinja_exec(r, n->c);
    jinja_loop *loop = fv__jinja_alloc(r->pool, sizeof *loop);
    if (loop) *loop = (jinja_loop){.items = items, .depth = r->loops};
    r->loops++;
    for (int64_t i = 0; loop && i < items->n && how != JINJA_BREAK && !r->pool->st; i++) {
        r->frame = new_frame(r, outer);
        if (!r->frame) break;
        loop->index = i;
        fv__jinja_set(r, name, (jinja_value){.kind = JINJA_LOOP, .loop = loop});
        assign(r, n->items, items->at[i]);
        how = fv__jinja_exec(r, n->b);
    }
    r->loops--;
    r->frame = outer;
    return JINJA_GO_ON;
}

static int exec(jinja_run *r, const jinja_node *n)
{
    switch (n->kind) {
    case NODE_TEXT: fv__jinja_write(r->pool, &r->out, n->value); break;
    case NODE_OUT: {
        jinja_value v = fv__jinja_eval(r, n->a);
        fv__jinja_write(r->pool, &r->out, v);
        break;
    }
    case NODE_IF: return fv__jinja_exec(r, fv__jinja_truth(fv__jinja_eval(r, n->a)) ? n->b : n->c);
    case NODE_FOR: return run_loop(r, n);
    case NODE_SET: set_target(r, n->a, fv__jinja_eval(r, n->b)); break;
    case NODE_SET_BLOCK: {
        jinja_value v = fv__jinja_capture(r, n->b);
        set_target(r, n->a, filter_block(r, n->c, v));
        break;
    }
    case NODE_FILTER_BLOCK: {
        jinja_value v = fv__jinja_capture(r, n->b);
        fv__jinja_write(r->pool, &r->out, filter_block(r, n->c, v));
        break;
    }
    case NODE_MACRO: define_macro(r, n); break;
    case NODE_GROUP: return fv__jinja_exec(r, n->b);
    case NODE_BREAK: return JINJA_BREAK;
    case NODE_CONTINUE: return JINJA_CONTINUE;
    default: break;
    }
    return JINJA_GO_ON;
}

int fv__jinja_exec(jinja_run *r, const jinja_node *list)
{
    int how = JINJA_GO_ON;
    r->depth++;
    if (r->depth > FV_JINJA_MAX_CALLS)
        fv__jinja_fail(r->pool, FV_EARG, "blocks nested deeper than %d", FV_JINJA_MAX_CALLS);
    for (const jinja_node *n = list; n && how == JINJA_GO_ON && !r->pool->st; n = n->next) {
        if (++r->steps > FV_JINJA_MAX_STEPS)
            fv__jinja_fail(r->pool, FV_EARG, "more than %d steps", FV_JINJA_MAX_STEPS);
        r->pool->line = n->line;
        how = exec(r, n);
    }
    r->depth--;
    return how;
}
