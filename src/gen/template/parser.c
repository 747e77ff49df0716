/* parser.c - expressions: tokens to a tree, by recursive descent.
 *
 * Precedence as in Jinja's own parser, loosest first:
 *     x if c else y,  or,  and,  not,  == != < > <= >= in,  + -,  ~,  * / // %,  **,  sign,
 *     then what follows a value: .name [i] (args), and behind those |filter and "is test".
 * So -1|abs filters -1, and a ~ b + c is (a ~ b) + c.  Comparisons chain as in Python.  Filters
 * and tests are looked up here, not when they run: a template is refused whole, before its first
 * use.
 *
 * After a failure new nodes are one shared node that nobody writes to, so that callers need no
 * check; the sticky failure ends every loop.
 *
 * Nodes live in the template's pool and never change once parsed, so one parsed template serves
 * all threads. Lists of nodes (arguments, items, statements) are linked through `next`: a node
 * is in one list only. */
#include "gen/template/jinja.h"

/* The line is that of the token at hand: messages of the evaluation point there. */
jinja_node *fv__jinja_new_node(jinja_parser *p, jinja_node_kind kind)
{
    static jinja_node nowhere; /* after a failure: read by nobody, and never written to */
    jinja_node *n = fv__jinja_alloc(p->pool, sizeof *n);
    if (!n) return &nowhere;
    n->kind = kind;
    n->line = p->at->line;
    return n;
}

bool fv__jinja_at(const jinja_parser *p, jinja_token_kind kind, const char *text)
{
    return !p->pool->st && p->at->kind == kind && (!text || fv__text_is(p->at->text, text));
}

bool fv__jinja_accept(jinja_parser *p, jinja_token_kind kind, const char *text)
{
    if (!fv__jinja_at(p, kind, text)) return false;
    /* Messages name the line of what is read next, not of the last token read. */
    p->at++;
    p->pool->line = p->at->line;
    return true;
}

void fv__jinja_expect(jinja_parser *p, jinja_token_kind kind, const char *text)
{
    static const char *const names[] = {"the end",    "text",     "{{",         "}}",
                                        "{%",         "%}",       "a name",     "a string",
                                        "an integer", "a number", "an operator"};
    if (fv__jinja_accept(p, kind, text)) return;
    fv__jinja_fail(p->pool, FV_EFORMAT, "expected %s, found %s \"%.*s\"", text ? text : names[kind],
                   names[p->at->kind], p->at->text.n < 40 ? (int)p->at->text.n : 40,
                   p->at->text.s ? p->at->text.s : "");
}

static bool op(jinja_parser *p, const char *text)
{
    return fv__jinja_accept(p, TOKEN_OPERATOR, text);
}
static bool word(jinja_parser *p, const char *text)
{
    return fv__jinja_accept(p, TOKEN_NAME, text);
}

/* A sign binds tighter than filters: only the outermost call looks for these.
 * Declared here because a sign's operand is again a unary expression. */
static jinja_node *parse_unary(jinja_parser *p, bool filters);

/* A list of nodes that grows at its end. */
typedef struct chain {
    jinja_node *first, *last;
} chain;

static void link_node(jinja_parser *p, chain *c, jinja_node *n)
{
    if (p->pool->st) return;
    if (c->last) c->last->next = n;
    if (!c->first) c->first = n;
    c->last = n;
}

/* A node with a name and two operands. */
static jinja_node *binary(jinja_parser *p, jinja_node_kind kind, jinja_text name, jinja_node *a,
                          jinja_node *b)
{
    jinja_node *n = fv__jinja_new_node(p, kind);
    if (p->pool->st) return n;
    n->name = name;
    n->a = a;
    n->b = b;
    return n;
}

/* ---- literals ---- */

static jinja_node *constant(jinja_parser *p, jinja_value v)
{
    jinja_node *n = fv__jinja_new_node(p, NODE_CONST);
    if (!p->pool->st) n->value = v;
    return n;
}

/* Strings side by side are one. */
static jinja_node *parse_string(jinja_parser *p)
{
    fv_buf b = {.env = &p->pool->env};
    jinja_node *n = fv__jinja_new_node(p, NODE_CONST);
    while (fv__jinja_at(p, TOKEN_STRING, NULL)) {
        fv__buf_add(&b, p->at->text.s, p->at->text.n);
        fv__jinja_accept(p, TOKEN_STRING, NULL);
    }
    jinja_value v = fv__jinja_take(p->pool, &b);
    if (!p->pool->st) n->value = v;
    return n;
}

/* A variable, or one of the six spellings of a constant.
 * Jinja knows both spellings, Python's and its own; no other word is reserved as a value. */
static jinja_node *parse_name(jinja_parser *p)
{
    jinja_text name = p->at->text;
    if (word(p, "true") || word(p, "True")) return constant(p, fv__jinja_bool(true));
    if (word(p, "false") || word(p, "False")) return constant(p, fv__jinja_bool(false));
    if (word(p, "none") || word(p, "None")) return constant(p, (jinja_value){.kind = JINJA_NONE});
    jinja_node *n = fv__jinja_new_node(p, NODE_NAME);
    if (!p->pool->st) n->name = name;
    p->at++;
    return n;
}

/* Up to `close`; pairs: with a colon between each two. */
static jinja_node *parse_items(jinja_parser *p, jinja_node_kind kind, const char *close)
{
    jinja_node *n = fv__jinja_new_node(p, kind);
    chain items = {0};
    while (!p->pool->st && !op(p, close)) {
        if (items.first) fv__jinja_expect(p, TOKEN_OPERATOR, ",");
        /* A comma before the closing bracket is allowed, as in Python. */
        if (items.first && op(p, close)) break;
        link_node(p, &items, fv__jinja_parse_expression(p, false, true));
        if (kind != NODE_DICT) continue;
        fv__jinja_expect(p, TOKEN_OPERATOR, ":");
        link_node(p, &items, fv__jinja_parse_expression(p, false, true));
    }
    if (!p->pool->st) n->items = items.first;
    return n;
}

/* (x) is x, (x,) and (x, y) are tuples. */
static jinja_node *parse_parentheses(jinja_parser *p)
{
    if (op(p, ")")) return fv__jinja_new_node(p, NODE_TUPLE);
    jinja_node *n = fv__jinja_parse_expression(p, true, true);
    fv__jinja_expect(p, TOKEN_OPERATOR, ")");
    return n;
}

jinja_node *fv__jinja_parse_primary(jinja_parser *p)
{
    const jinja_token *t = p->at;
    if (t->kind == TOKEN_NAME) return parse_name(p);
    if (t->kind == TOKEN_STRING) return parse_string(p);
    if (t->kind == TOKEN_INT || t->kind == TOKEN_FLOAT) {
        p->at++;
        if (t->kind == TOKEN_INT) return constant(p, fv__jinja_int(t->i));
        return constant(p, (jinja_value){.kind = JINJA_FLOAT, .f = t->f});
    }
    if (op(p, "(")) return parse_parentheses(p);
    if (op(p, "[")) return parse_items(p, NODE_LIST, "]");
    if (op(p, "{")) return parse_items(p, NODE_DICT, "}");
    fv__jinja_fail(p->pool, FV_EFORMAT, "expected a value, found \"%.*s\"",
                   t->text.n < 40 ? (int)t->text.n : 40, t->text.s ? t->text.s : "");
    return fv__jinja_new_node(p, NODE_CONST);
}

/* ---- what stands behind a value ---- */

/* Arguments up to the closing parenthesis; those with a name come last, as in Python. */
jinja_node *fv__jinja_parse_args(jinja_parser *p)
{
    chain items = {0};
    while (!p->pool->st && !op(p, ")")) {
        if (items.first) fv__jinja_expect(p, TOKEN_OPERATOR, ",");
        if (items.first && op(p, ")")) break;
        if (fv__jinja_at(p, TOKEN_OPERATOR, "*") || fv__jinja_at(p, TOKEN_OPERATOR, "**"))
            fv__jinja_fail(p->pool, FV_EMISSING, "arguments by * or ** are not implemented");
        jinja_node *n = fv__jinja_new_node(p, NODE_ARG);
        jinja_text name = {0};
        /* name=value: only a name directly before "=" is a keyword; "==" is one token and no
         * "=". */
        if (fv__jinja_at(p, TOKEN_NAME, NULL) && p->at[1].kind == TOKEN_OPERATOR &&
            fv__text_is(p->at[1].text, "=")) {
            name = p->at->text;
            p->at += 2;
        }
        jinja_node *a = fv__jinja_parse_expression(p, false, true);
        if (!p->pool->st) n->name = name, n->a = a;
        link_node(p, &items, n);
    }
    return items.first;
}

/* [b], or [b:c:d] with parts left out. */
static jinja_node *parse_subscript(jinja_parser *p, jinja_node *a)
{
    jinja_node *part[3] = {0};
    int colons = 0;
    while (!p->pool->st && !op(p, "]")) {
        if (op(p, ":")) {
            if (++colons > 2) fv__jinja_fail(p->pool, FV_EFORMAT, "a slice of more than 3 parts");
            continue;
        }
        /* Only the first part may be a tuple, x[1, 2]; in a slice commas mean nothing. */
        part[colons] = fv__jinja_parse_expression(p, !colons, true);
        if (!fv__jinja_at(p, TOKEN_OPERATOR, ":") && !fv__jinja_at(p, TOKEN_OPERATOR, "]"))
            fv__jinja_expect(p, TOKEN_OPERATOR, "]");
    }
    jinja_node *n = fv__jinja_new_node(p, colons ? NODE_SLICE : NODE_ITEM);
    if (!colons && !part[0]) fv__jinja_fail(p->pool, FV_EFORMAT, "empty brackets");
    if (p->pool->st) return n;
    n->a = a;
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    return n;
}

static jinja_node *parse_call(jinja_parser *p, jinja_node *a)
{
    jinja_node *n = fv__jinja_new_node(p, NODE_CALL), *items = fv__jinja_parse_args(p);
    if (!p->pool->st) n->a = a, n->items = items;
    return n;
}

/* Any number of .name, .0, [..] and (..) behind a value. */
static jinja_node *parse_postfix(jinja_parser *p, jinja_node *a)
{
    while (!p->pool->st) {
        if (op(p, ".")) {
            jinja_text name = p->at->text;
            /* x.0 is x[0], a form that Jinja takes over from Django. */
            if (fv__jinja_at(p, TOKEN_INT, NULL)) {
                jinja_node *i = constant(p, fv__jinja_int(p->at->i));
                p->at++;
                a = binary(p, NODE_ITEM, (jinja_text){0}, a, i);
                continue;
            }
            fv__jinja_expect(p, TOKEN_NAME, NULL);
            a = binary(p, NODE_ATTR, name, a, NULL);
        } else if (op(p, "[")) {
            a = parse_subscript(p, a);
        } else if (op(p, "(")) {
            a = parse_call(p, a);
        } else {
            break;
        }
    }
    return a;
}

jinja_node *fv__jinja_parse_filter(jinja_parser *p, jinja_node *a)
{
    jinja_text name = p->at->text;
    jinja_node *n = fv__jinja_new_node(p, NODE_FILTER);
    fv__jinja_expect(p, TOKEN_NAME, NULL);
    if (!p->pool->st && !fv__jinja_has_filter(name))
        fv__jinja_fail(p->pool, FV_EMISSING, "the filter \"%.*s\" is not implemented", (int)name.n,
                       name.s);
    jinja_node *items = op(p, "(") ? fv__jinja_parse_args(p) : NULL;
    if (p->pool->st) return n;
    n->name = name;
    n->a = a;
    n->items = items;
    return n;
}

/* An argument without parentheses: "is divisibleby 3". */
static jinja_node *parse_bare_argument(jinja_parser *p)
{
    bool starts = p->at->kind == TOKEN_STRING || p->at->kind == TOKEN_INT ||
                  p->at->kind == TOKEN_FLOAT || fv__jinja_at(p, TOKEN_OPERATOR, "[") ||
                  fv__jinja_at(p, TOKEN_OPERATOR, "{");
    /* A word that continues the expression is no argument: "x is defined and y". */
    bool name = p->at->kind == TOKEN_NAME && !fv__jinja_at(p, TOKEN_NAME, "else") &&
                !fv__jinja_at(p, TOKEN_NAME, "or") && !fv__jinja_at(p, TOKEN_NAME, "and") &&
                !fv__jinja_at(p, TOKEN_NAME, "if") && !fv__jinja_at(p, TOKEN_NAME, "is");
    if (p->pool->st || (!starts && !name)) return NULL;
    jinja_node *n = fv__jinja_new_node(p, NODE_ARG);
    jinja_node *a = parse_postfix(p, fv__jinja_parse_primary(p));
    if (!p->pool->st) n->a = a;
    return n;
}

/* "is name", "is not name", with arguments in parentheses or one without. */
static jinja_node *parse_test(jinja_parser *p, jinja_node *a)
{
    bool negated = word(p, "not");
    jinja_text name = p->at->text;
    jinja_node *n = fv__jinja_new_node(p, NODE_TEST);
    fv__jinja_expect(p, TOKEN_NAME, NULL);
    if (!p->pool->st && !fv__jinja_has_test(name))
        fv__jinja_fail(p->pool, FV_EMISSING, "the test \"%.*s\" is not implemented", (int)name.n,
                       name.s);
    jinja_node *items = op(p, "(") ? fv__jinja_parse_args(p) : parse_bare_argument(p);
    if (p->pool->st) return n;
    n->name = name;
    n->a = a;
    n->items = items;
    return negated ? binary(p, NODE_NOT, (jinja_text){0}, n, NULL) : n;
}

/* ---- operators ---- */

/* A sign binds tighter than filters: only the outermost call looks for these. */
static jinja_node *parse_unary(jinja_parser *p, bool filters)
{
    jinja_node *n;
    if (++p->depth > FV_JINJA_MAX_DEPTH)
        fv__jinja_fail(p->pool, FV_EARG, "expressions nested deeper than %d", FV_JINJA_MAX_DEPTH);
    jinja_text sign = p->at->text;
    if (p->pool->st)
        n = fv__jinja_new_node(p, NODE_CONST);
    else if (op(p, "-") || op(p, "+"))
        n = binary(p, NODE_SIGN, sign, parse_unary(p, false), NULL);
    else
        n = parse_postfix(p, fv__jinja_parse_primary(p));
    while (filters && !p->pool->st) {
        if (op(p, "|"))
            n = fv__jinja_parse_filter(p, n);
        else if (word(p, "is"))
            n = parse_test(p, n);
        /* A call behind a filter calls its result. */
        else if (op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

/* Operators that go from left to right, by level: each level's operands are of the next. */
static jinja_node *parse_level(jinja_parser *p, int level)
{
    /* "~" between + and *, as in Jinja's grammar. */
    static const char *const levels[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == 4) return parse_unary(p, true);
    jinja_node *n = parse_level(p, level + 1);
    for (int i = 0; !p->pool->st && levels[level][i]; i++) {
        jinja_text name = p->at->text;
        if (!op(p, levels[level][i])) continue;
        n = binary(p, NODE_BINARY, name, n, parse_level(p, level + 1));
        /* All operators of the level are looked for again, since a - b + c is one chain from the
         * left. */
        i = -1;
    }
    return n;
}

/* The comparison that stands here, or NULL: "not in" is one. */
static const char *comparison(jinja_parser *p)
{
    static const char *const names[] = {"==", "!=", "<=", ">=", "<", ">", NULL};
    for (int i = 0; names[i]; i++)
        if (op(p, names[i])) return names[i];
    if (word(p, "in")) return "in";
    if (fv__jinja_at(p, TOKEN_NAME, "not") && p->at[1].kind == TOKEN_NAME &&
        fv__text_is(p->at[1].text, "in")) {
        p->at += 2;
        return "not in";
    }
    return NULL;
}

/* a < b < c is a chain as in Python: each link compares its neighbours. */
static jinja_node *parse_comparison(jinja_parser *p)
{
    jinja_node *first = parse_level(p, 0);
    chain items = {0};
    for (const char *name; !p->pool->st && (name = comparison(p));)
        link_node(p, &items,
                  binary(p, NODE_ARG, (jinja_text){name, strlen(name)}, parse_level(p, 0), NULL));
    if (!items.first) return first;
    jinja_node *n = binary(p, NODE_COMPARE, (jinja_text){0}, first, NULL);
    if (!p->pool->st) n->items = items.first;
    return n;
}

static jinja_node *parse_not(jinja_parser *p)
{
    int negations = 0;
    while (word(p, "not")) negations++;
    jinja_node *n = parse_comparison(p);
    for (; negations > 0 && !p->pool->st; negations--)
        n = binary(p, NODE_NOT, (jinja_text){0}, n, NULL);
    return n;
}

static jinja_node *parse_and(jinja_parser *p)
{
    jinja_node *n = parse_not(p);
    while (word(p, "and")) n = binary(p, NODE_AND, (jinja_text){0}, n, parse_not(p));
    return n;
}

static jinja_node *parse_or(jinja_parser *p)
{
    jinja_node *n = parse_and(p);
    while (word(p, "or")) n = binary(p, NODE_OR, (jinja_text){0}, n, parse_and(p));
    return n;
}

/* b if a else c; without else the value is undefined. */
static jinja_node *parse_condition(jinja_parser *p)
{
    jinja_node *n = parse_or(p);
    /* A loop: "a if b else c if d else e" nests in the else part, and what stands before "if"
     * again is the whole so far. */
    while (word(p, "if")) {
        jinja_node *a = parse_or(p);
        jinja_node *c = word(p, "else") ? fv__jinja_parse_expression(p, false, true) : NULL;
        jinja_node *all = binary(p, NODE_IF_ELSE, (jinja_text){0}, a, n);
        if (!p->pool->st) all->c = c;
        n = all;
    }
    return n;
}

/* The depth is bounded, because the parser recurses and a template comes from a file. */
jinja_node *fv__jinja_parse_expression(jinja_parser *p, bool tuple, bool conditional)
{
    if (++p->depth > FV_JINJA_MAX_DEPTH)
        fv__jinja_fail(p->pool, FV_EARG, "expressions nested deeper than %d", FV_JINJA_MAX_DEPTH);
    jinja_node *n = conditional ? parse_condition(p) : parse_or(p);
    if (tuple && fv__jinja_at(p, TOKEN_OPERATOR, ",")) {
        chain items = {0};
        link_node(p, &items, n);
        while (op(p, ",")) {
            /* A comma at the end makes a tuple of what came before it: {{ x, }}. */
            if (p->at->kind == TOKEN_OUT_END || p->at->kind == TOKEN_STMT_END ||
                fv__jinja_at(p, TOKEN_OPERATOR, ")"))
                break;
            link_node(p, &items, conditional ? parse_condition(p) : parse_or(p));
        }
        n = fv__jinja_new_node(p, NODE_TUPLE);
        if (!p->pool->st) n->items = items.first;
    }
    p->depth--;
    return n;
}
