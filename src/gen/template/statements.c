/* statements.c - the tags of a template: tokens to lists of statements.
 *
 * Each parse_x is called behind the word of its tag and reads up to the end of its last tag.  A
 * body ends at one of the words its caller names; parse_body leaves that word to be read, so that
 * if, for and else can tell which it was.  Statements of Jinja that no chat template needs
 * (include, extends, block, import, call, with, autoescape) are refused by name.
 *
 * A statement is a node whose meaning of a, b, c, d depends on its kind (jinja.h lists them);
 * bodies are lists linked by `next`. exec.c runs them. Whitespace control ({%- and trim_blocks)
 * is over by now: the lexer has dropped those characters. */
#include "gen/template/jinja.h"

static jinja_node *parse_body(jinja_parser *p, const char *const *ends);

static bool word(jinja_parser *p, const char *text)
{
    return fv__jinja_accept(p, TOKEN_NAME, text);
}

static void end_tag(jinja_parser *p) { fv__jinja_expect(p, TOKEN_STMT_END, NULL); }

/* {% name %}, its brace and percent sign having been read. */
static void expect_word(jinja_parser *p, const char *name)
{
    fv__jinja_expect(p, TOKEN_NAME, name);
    end_tag(p);
}

/* if: a condition, b body, c the else part, which for elif is the next if. */
static jinja_node *parse_if(jinja_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    jinja_node *first = NULL, *before = NULL;
    do { /* each elif is an if in the else of the one before */
        jinja_node *n = fv__jinja_new_node(p, NODE_IF);
        jinja_node *a = fv__jinja_parse_expression(p, false, true);
        end_tag(p);
        jinja_node *b = parse_body(p, ends);
        if (p->pool->st) return n;
        n->a = a;
        n->b = b;
        if (before) before->c = n;
        if (!first) first = n;
        before = n;
    } while (word(p, "elif"));
    if (word(p, "else")) {
        end_tag(p);
        jinja_node *c = parse_body(p, last);
        if (!p->pool->st) before->c = c;
    }
    expect_word(p, "endif");
    return first;
}

/* x, or x, y: the targets of a loop. */
static jinja_node *parse_targets(jinja_parser *p)
{
    jinja_node *first = NULL, *last = NULL;
    bool parenthesis = fv__jinja_accept(p, TOKEN_OPERATOR, "(");
    do {
        /* A loop's names and the names of {% set a, b = ... %} have one form. */
        jinja_node *n = fv__jinja_new_node(p, NODE_NAME);
        jinja_text name = p->at->text;
        fv__jinja_expect(p, TOKEN_NAME, NULL);
        if (p->pool->st) return n;
        n->name = name;
        if (last) last->next = n;
        if (!first) first = n;
        last = n;
    } while (fv__jinja_accept(p, TOKEN_OPERATOR, ","));
    if (parenthesis) fv__jinja_expect(p, TOKEN_OPERATOR, ")");
    return first;
}

/* for x in y if z: the condition filters items before the loop, and loop.* counts what is left. */
static jinja_node *parse_for(jinja_parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    jinja_node *n = fv__jinja_new_node(p, NODE_FOR), *items = parse_targets(p), *otherwise = NULL;
    fv__jinja_expect(p, TOKEN_NAME, "in");
    /* Not conditional: in "for x in y if z" the if is the loop's filter and no inline condition. */
    jinja_node *a = fv__jinja_parse_expression(p, true, false);
    jinja_node *d = word(p, "if") ? fv__jinja_parse_expression(p, false, true) : NULL;
    if (fv__jinja_at(p, TOKEN_NAME, "recursive"))
        fv__jinja_fail(p->pool, FV_EMISSING, "\"recursive\" loops are not implemented");
    end_tag(p);
    p->loops++;
    jinja_node *b = parse_body(p, ends);
    p->loops--;
    if (word(p, "else")) {
        end_tag(p);
        otherwise = parse_body(p, last);
    }
    expect_word(p, "endfor");
    if (p->pool->st) return n;
    n->items = items;
    n->a = a;
    n->b = b;
    n->c = otherwise;
    n->d = d;
    return n;
}

/* A name, an entry of a namespace, or several names that take a tuple apart. */
static jinja_node *parse_set_target(jinja_parser *p)
{
    jinja_node *first = parse_targets(p);
    if (fv__jinja_accept(p, TOKEN_OPERATOR, ".")) {
        jinja_node *n = fv__jinja_new_node(p, NODE_ATTR);
        jinja_text name = p->at->text;
        fv__jinja_expect(p, TOKEN_NAME, NULL);
        if (!p->pool->st) n->a = first, n->name = name;
        return n;
    }
    if (!p->pool->st && first->next) {
        jinja_node *n = fv__jinja_new_node(p, NODE_TUPLE);
        if (!p->pool->st) n->items = first;
        return n;
    }
    return first;
}

/* {% set x = value %}, or {% set x %}text{% endset %} with filters behind the name. */
static jinja_node *parse_set(jinja_parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    jinja_node *n = fv__jinja_new_node(p, NODE_SET), *target = parse_set_target(p);
    jinja_node *b = NULL, *filter = NULL;
    bool block = !fv__jinja_accept(p, TOKEN_OPERATOR, "=");
    if (!block) {
        b = fv__jinja_parse_expression(p, true, true);
        end_tag(p);
    } else {
        /* Filters of a block start from the text of its body, which has no node: the innermost a
         * is NULL. */
        while (fv__jinja_accept(p, TOKEN_OPERATOR, "|")) filter = fv__jinja_parse_filter(p, filter);
        end_tag(p);
        b = parse_body(p, ends);
        expect_word(p, "endset");
    }
    if (p->pool->st) return n;
    if (block) n->kind = NODE_SET_BLOCK;
    n->a = target;
    n->b = b;
    n->c = filter;
    return n;
}

/* A macro's body is not in the loop around its definition: break and continue are refused there. */
static jinja_node *parse_macro(jinja_parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    jinja_node *n = fv__jinja_new_node(p, NODE_MACRO), *first = NULL, *last = NULL;
    jinja_text name = p->at->text;
    fv__jinja_expect(p, TOKEN_NAME, NULL);
    fv__jinja_expect(p, TOKEN_OPERATOR, "(");
    while (!p->pool->st && !fv__jinja_accept(p, TOKEN_OPERATOR, ")")) {
        if (first) fv__jinja_expect(p, TOKEN_OPERATOR, ",");
        jinja_node *arg = fv__jinja_new_node(p, NODE_ARG);
        jinja_text param = p->at->text;
        fv__jinja_expect(p, TOKEN_NAME, NULL);
        jinja_node *a = fv__jinja_accept(p, TOKEN_OPERATOR, "=")
                            ? fv__jinja_parse_expression(p, false, true)
                            : NULL;
        if (p->pool->st) return n;
        arg->name = param;
        arg->a = a;
        if (last) last->next = arg;
        if (!first) first = arg;
        last = arg;
    }
    end_tag(p);
    /* Saved and restored, since a macro may be defined inside a loop. */
    int loops = p->loops;
    p->loops = 0;
    jinja_node *b = parse_body(p, ends);
    p->loops = loops;
    if (word(p, "endmacro") && fv__jinja_at(p, TOKEN_NAME, NULL)) p->at++; /* its name again */
    end_tag(p);
    if (p->pool->st) return n;
    n->name = name;
    n->items = first;
    n->b = b;
    return n;
}

/* {% filter a | b %}: the text of the block goes through the filters. */
static jinja_node *parse_filter_block(jinja_parser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    jinja_node *n = fv__jinja_new_node(p, NODE_FILTER_BLOCK), *filter = NULL;
    do filter = fv__jinja_parse_filter(p, filter);
    while (fv__jinja_accept(p, TOKEN_OPERATOR, "|"));
    end_tag(p);
    jinja_node *b = parse_body(p, ends);
    expect_word(p, "endfilter");
    if (!p->pool->st) n->b = b, n->c = filter;
    return n;
}

/* {% generation %}: marks what the assistant says, for training; its text is as without. */
static jinja_node *parse_generation(jinja_parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    jinja_node *n = fv__jinja_new_node(p, NODE_GROUP);
    end_tag(p);
    jinja_node *b = parse_body(p, ends);
    expect_word(p, "endgeneration");
    if (!p->pool->st) n->b = b;
    return n;
}

/* break and continue, of Jinja's loopcontrols extension, which transformers turns on. */
static jinja_node *parse_jump(jinja_parser *p, jinja_node_kind kind)
{
    jinja_node *n = fv__jinja_new_node(p, kind);
    if (!p->loops) fv__jinja_fail(p->pool, FV_EFORMAT, "break or continue outside of a loop");
    end_tag(p);
    return n;
}

/* The tag whose word is next. */
static jinja_node *parse_statement(jinja_parser *p)
{
    jinja_text name = p->at->text;
    if (word(p, "if")) return parse_if(p);
    if (word(p, "for")) return parse_for(p);
    if (word(p, "set")) return parse_set(p);
    if (word(p, "macro")) return parse_macro(p);
    if (word(p, "filter")) return parse_filter_block(p);
    if (word(p, "generation")) return parse_generation(p);
    if (word(p, "break")) return parse_jump(p, NODE_BREAK);
    if (word(p, "continue")) return parse_jump(p, NODE_CONTINUE);
    fv__jinja_fail(p->pool, FV_EMISSING, "the statement \"%.*s\" is not implemented",
                   name.n < 40 ? (int)name.n : 40, name.s ? name.s : "");
    return NULL;
}

/* Whether the tag here is one of the ends; then it is read up to its word. */
static bool at_end(jinja_parser *p, const char *const *ends)
{
    /* A tag is two tokens, {% and its word: both are looked at before anything is consumed. */
    if (p->at->kind != TOKEN_STMT_BEGIN || p->at[1].kind != TOKEN_NAME) return false;
    for (; *ends; ends++)
        if (fv__text_is(p->at[1].text, *ends)) {
            p->at++;
            return true;
        }
    return false;
}

/* Statements up to one of the ends, or to the template's where there are none. */
static jinja_node *parse_body(jinja_parser *p, const char *const *ends)
{
    jinja_node *first = NULL, *last = NULL;
    if (++p->depth > FV_JINJA_MAX_DEPTH)
        fv__jinja_fail(p->pool, FV_EARG, "blocks nested deeper than %d", FV_JINJA_MAX_DEPTH);
    while (!p->pool->st && !at_end(p, ends)) {
        jinja_node *n = NULL;
        const jinja_token *t = p->at;
        if (t->kind == TOKEN_END && !*ends) break;
        if (t->kind == TOKEN_END) {
            /* The last of the ends is the one that always closes: endif, not elif. */
            while (ends[1]) ends++;
            fv__jinja_fail(p->pool, FV_EFORMAT, "the template ends before \"%s\"", *ends);
        } else if (fv__jinja_accept(p, TOKEN_TEXT, NULL)) {
            n = fv__jinja_new_node(p, NODE_TEXT);
            if (!p->pool->st) n->value = fv__jinja_string(t->text);
        } else if (fv__jinja_accept(p, TOKEN_OUT_BEGIN, NULL)) {
            n = fv__jinja_new_node(p, NODE_OUT);
            jinja_node *a = fv__jinja_parse_expression(p, true, true);
            fv__jinja_expect(p, TOKEN_OUT_END, NULL);
            if (!p->pool->st) n->a = a;
        } else {
            fv__jinja_expect(p, TOKEN_STMT_BEGIN, NULL);
            n = parse_statement(p);
        }
        if (p->pool->st || !n) break;
        if (last) last->next = n;
        if (!first) first = n;
        last = n;
    }
    p->depth--;
    return first;
}

/* The whole template; NULL is an empty one, or a failure, which the pool knows. */
jinja_node *fv__jinja_parse(jinja_pool *pool, const char *source, size_t n)
{
    static const char *const none[] = {NULL};
    pool->line = 1;
    if (n > FV_JINJA_MAX_SOURCE)
        fv__jinja_fail(pool, FV_EARG, "%zu bytes, %d are the most", n, FV_JINJA_MAX_SOURCE);
    jinja_parser p = {.pool = pool, .at = fv__jinja_lex(pool, source, n)};
    return p.at ? parse_body(&p, none) : NULL;
}
