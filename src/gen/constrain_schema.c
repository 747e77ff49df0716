/* constrain_schema.c - a JSON schema as rules over bytes.
 *
 * Understood are types, properties, required, additionalProperties, items, minItems, maxItems,
 * minLength, maxLength, enum, const, anyOf, oneOf, allOf of one, and $ref within the document;
 * annotations change nothing.  Every other keyword is refused by its name: a schema that is only
 * half obeyed would be worse than none.  Properties come in the order of the schema, and others
 * only where additionalProperties says so.
 *
 * The result is a context-free grammar over bytes (constrain_json.c), run by constrain.c
 * against the tokens of a vocabulary. A regular expression would do for schemas without
 * recursion; $ref to an object that holds itself needs a stack.
 *
 * Right recursion throughout: "what may follow i items" is a rule that ends or takes one item
 * and goes on with the rule of i + 1. So rules are built from the last to the first, and a
 * bound of 1024 on every count keeps their number in hand. */
#include <stdio.h>

#include "base/json/tree.h"
#include "gen/constrain.h"

enum { MOST_REPEATS = 1024, MOST_NODES = 4096, MOST_DEPTH = 64 };

/* Found again by the address of the node in the parsed document, which lives as long as the
 * builder. */
typedef struct known {
    const fv__jnode *node;
    int32_t rule;
} known;

typedef struct builder {
    fv_rules *r;
    fv_json_rules json;
    const fv__jnode *root;
    known known[MOST_NODES]; /* schemas that have a rule, so that they may refer to themselves */
    int n_known, depth;
    fv_status st;
    fv_err *e;
} builder;

static int32_t build(builder *b, const fv__jnode *s);

/* Returns a rule that exists, so that callers need no check; the first refusal is the one
 * reported. */
static int32_t refuse(builder *b, const char *fmt, const char *what)
{
    if (!b->st) b->st = fv_fail(b->e, FV_EARG, fmt, what);
    return b->json.value;
}

static fv_seq begin(const builder *b) { return (fv_seq){.env = b->r->env}; }

/* An alternative of rules one behind the other, with a text before them; -1: no more. */
static void add(builder *b, int32_t rule, const char *text, int32_t one, int32_t two, int32_t three)
{
    fv_seq s = begin(b);
    fv__seq_text(&s, text, strlen(text));
    if (one >= 0) fv__seq_rule(&s, one);
    if (two >= 0) fv__seq_rule(&s, two);
    if (three >= 0) fv__seq_rule(&s, three);
    fv__rule_add(b->r, rule, &s);
}

/* The value itself, as JSON writes it.
 * Printed without blanks: an enum's value has one spelling. */
static void add_literal(builder *b, int32_t rule, const fv__jnode *value)
{
    fv_buf text = {.env = b->r->env};
    fv_seq s = begin(b);
    fv__jnode_print(&text, value, -1);
    if (text.data) fv__seq_text(&s, text.data, text.len);
    s.failed |= text.failed;
    fv__buf_free(&text);
    fv__rule_add(b->r, rule, &s);
}

/* A bound of the schema; -1: there is none. */
static int64_t bound(builder *b, const fv__jnode *s, const char *key)
{
    const fv__jnode *v = fv__jnode_get(s, key);
    if (!v) return -1;
    if (fv__jnode_is(v, FV__J_INT) && v->i >= 0 && v->i <= MOST_REPEATS) return v->i;
    refuse(b, "schema: %s: a whole number from 0 to 1024 was expected", key);
    return 0;
}

/* ---- strings and arrays: a number of parts between two bounds ---- */

static int32_t build_string(builder *b, const fv__jnode *s)
{
    int64_t least = bound(b, s, "minLength"), most = bound(b, s, "maxLength");
    if (least <= 0 && most < 0) return b->json.string;
    if (most >= 0 && most < least) return refuse(b, "schema: %s is below minLength", "maxLength");
    /* from the end: what may follow i characters */
    int32_t next = most < 0 ? b->json.characters : fv__rule_new(b->r);
    if (most >= 0) add(b, next, "\"", -1, -1, -1);
    /* Rules of 0 to least - 1 characters cannot end; from least on a quote may come. */
    for (int64_t i = (most < 0 ? least : most) - 1; i >= 0; i--) {
        int32_t here = fv__rule_new(b->r);
        if (i >= least) add(b, here, "\"", -1, -1, -1);
        add(b, here, "", b->json.character, next, -1);
        next = here;
    }
    int32_t rule = fv__rule_new(b->r);
    add(b, rule, "\"", next, -1, -1);
    return rule;
}

/* Items: a comma stands before all but the first. */
static void add_item(builder *b, int32_t rule, bool first, int32_t item, int32_t next)
{
    fv_seq s = begin(b);
    if (!first) fv__seq_text(&s, ",", 1);
    if (!first) fv__seq_rule(&s, b->json.ws);
    fv__seq_rule(&s, item);
    fv__seq_rule(&s, b->json.ws);
    fv__seq_rule(&s, next);
    fv__rule_add(b->r, rule, &s);
}

static int32_t build_array(builder *b, const fv__jnode *s)
{
    const fv__jnode *items = fv__jnode_get(s, "items");
    int64_t least = bound(b, s, "minItems"), most = bound(b, s, "maxItems");
    int32_t item = items ? build(b, items) : b->json.value, next = fv__rule_new(b->r);
    if (most >= 0 && most < least) return refuse(b, "schema: %s is below minItems", "maxItems");
    /* Without maxItems the last rule repeats itself; it has to stand behind at least one item,
     * as only the first has no comma before it. */
    int64_t end = most >= 0 ? most : least > 1 ? least : 1;
    add(b, next, "]", -1, -1, -1);
    if (most < 0) add_item(b, next, false, item, next);
    for (int64_t i = end - 1; i >= 0; i--) {
        int32_t here = fv__rule_new(b->r);
        if (i >= least) add(b, here, "]", -1, -1, -1);
        add_item(b, here, i == 0, item, next);
        next = here;
    }
    int32_t rule = fv__rule_new(b->r);
    add(b, rule, "[", b->json.ws, next, -1);
    return rule;
}

/* ---- objects ---- */

/* A name in required that is no property is never met here, and so demands nothing. */
static bool is_required(const fv__jnode *s, const char *key)
{
    const fv__jnode *list = fv__jnode_get(s, "required");
    for (int i = 0; fv__jnode_is(list, FV__J_ARRAY) && i < list->n; i++)
        if (fv__jnode_is(list->kid[i], FV__J_TEXT) && !strcmp(list->kid[i]->text, key)) return true;
    return false;
}

/* "key": value, and blanks. */
static int32_t build_pair(builder *b, const fv__jnode *property)
{
    fv_buf key = {.env = b->r->env};
    fv_seq s = begin(b);
    /* Written as JSON, with quotes and escapes, since the model has to write it like that. */
    fv__jnode_print(&key, &(fv__jnode){.type = FV__J_TEXT, .text = property->key}, -1);
    if (key.data) fv__seq_text(&s, key.data, key.len);
    s.failed |= key.failed;
    fv__buf_free(&key);
    fv__seq_text(&s, ":", 1);
    fv__seq_rule(&s, b->json.ws);
    fv__seq_rule(&s, build(b, property));
    fv__seq_rule(&s, b->json.ws);
    int32_t rule = fv__rule_new(b->r);
    fv__rule_add(b->r, rule, &s);
    return rule;
}

/* Further pairs of any name; first: none was written yet. */
static void add_others(builder *b, int32_t rest, int32_t first, const fv__jnode *others)
{
    int32_t value = fv__jnode_is(others, FV__J_OBJECT) ? build(b, others) : b->json.value;
    int32_t pair = fv__rule_new(b->r);
    fv_seq s = begin(b);
    fv__seq_rule(&s, b->json.string);
    fv__seq_text(&s, ":", 1);
    fv__seq_rule(&s, b->json.ws);
    fv__seq_rule(&s, value);
    fv__seq_rule(&s, b->json.ws);
    fv__rule_add(b->r, pair, &s);
    add(b, rest, ",", b->json.ws, pair, rest);
    add(b, first, "", pair, rest, -1);
}

/* From the last property to the first, two rules each: what may follow where nothing was written
 * yet, and where a comma is needed. */
static int32_t build_object(builder *b, const fv__jnode *s)
{
    const fv__jnode *properties = fv__jnode_get(s, "properties"),
                    *others = fv__jnode_get(s, "additionalProperties");
    if (!properties && !fv__jnode_is(others, FV__J_OBJECT) && !fv__jnode_is(others, FV__J_FALSE))
        return b->json.object;
    if (properties && !fv__jnode_is(properties, FV__J_OBJECT))
        return refuse(b, "schema: %s is no object", "properties");
    int32_t first = fv__rule_new(b->r), rest = fv__rule_new(b->r);
    add(b, first, "}", -1, -1, -1);
    add(b, rest, "}", -1, -1, -1);
    if (fv__jnode_is(others, FV__J_OBJECT) || fv__jnode_is(others, FV__J_TRUE))
        add_others(b, rest, first, others);
    for (int i = properties ? properties->n - 1 : -1; i >= 0; i--) {
        int32_t pair = build_pair(b, properties->kid[i]);
        int32_t here = fv__rule_new(b->r), comma = fv__rule_new(b->r);
        add(b, here, "", pair, rest, -1);
        add(b, comma, ",", b->json.ws, pair, rest);
        /* One that is not required may be skipped: the rule of the next property is an
         * alternative, with or without a comma pending. */
        if (!is_required(s, properties->kid[i]->key)) {
            add(b, here, "", first, -1, -1);
            add(b, comma, "", rest, -1, -1);
        }
        first = here;
        rest = comma;
    }
    int32_t rule = fv__rule_new(b->r);
    add(b, rule, "{", b->json.ws, first, -1);
    return rule;
}

/* ---- all of them ---- */

static int32_t build_type(builder *b, const fv__jnode *s, const char *type)
{
    if (!strcmp(type, "string")) return build_string(b, s);
    if (!strcmp(type, "object")) return build_object(b, s);
    if (!strcmp(type, "array")) return build_array(b, s);
    if (!strcmp(type, "number")) return b->json.number;
    if (!strcmp(type, "integer")) return b->json.integer;
    int32_t rule = fv__rule_new(b->r);
    bool boolean = !strcmp(type, "boolean");
    if (!boolean && strcmp(type, "null")) return refuse(b, "schema: no type is called %s", type);
    add(b, rule, boolean ? "true" : "null", -1, -1, -1);
    if (boolean) add(b, rule, "false", -1, -1, -1);
    return rule;
}

/* JSON pointers without ~0 and ~1: names with a slash or a tilde are not found and refused.
 * "#/$defs/name": a member of a member .. of the document. */
static const fv__jnode *find_ref(builder *b, const char *ref)
{
    char key[256];
    const fv__jnode *at = b->root;
    if (ref[0] != '#') return NULL;
    for (const char *p = ref + 1; at && *p;) {
        size_t n = strcspn(p + 1, "/");
        if (*p != '/' || n >= sizeof key) return NULL;
        snprintf(key, sizeof key, "%.*s", (int)n, p + 1);
        at = fv__jnode_get(at, key);
        p += n + 1;
    }
    return at;
}

/* A keyword that is not understood is refused: what it forbids would be generated. */
static void check_keywords(builder *b, const fv__jnode *s)
{
    static const char *const understood[] = {
        "type",        "properties", "required",    "additionalProperties",
        "items",       "minItems",   "maxItems",    "minLength",
        "maxLength",   "enum",       "const",       "anyOf",
        "oneOf",       "allOf",      "$ref",        "$defs",
        "definitions", "title",      "description", "default",
        "examples",    "$schema",    "$id",         "$comment",
        "deprecated",  "readOnly",   "writeOnly",   NULL};
    for (int i = 0; i < s->n; i++) {
        bool found = false;
        for (int k = 0; understood[k] && !found; k++)
            found = !strcmp(understood[k], s->kid[i]->key);
        if (!found) refuse(b, "schema: the keyword %.100s is not supported", s->kid[i]->key);
    }
}

/* One alternative for each member of a list. */
static bool build_choice(builder *b, const fv__jnode *s, const char *key, int32_t rule)
{
    const fv__jnode *list = fv__jnode_get(s, key);
    if (!list) return false;
    bool literals = !strcmp(key, "enum"), names = !strcmp(key, "type");
    if (names && fv__jnode_is(list, FV__J_TEXT)) {
        add(b, rule, "", build_type(b, s, list->text), -1, -1);
        return true;
    }
    /* allOf of several would need the intersection of grammars, which is not context-free in
     * general. */
    if (!fv__jnode_is(list, FV__J_ARRAY) || !list->n || (!strcmp(key, "allOf") && list->n > 1))
        refuse(b, "schema: %s: a list that is not empty was expected (allOf: of one)", key);
    for (int i = 0; i < list->n && !b->st; i++) {
        const fv__jnode *one = list->kid[i];
        if (literals)
            add_literal(b, rule, one);
        else if (names && !fv__jnode_is(one, FV__J_TEXT))
            refuse(b, "schema: %s: names were expected", key);
        else
            add(b, rule, "", names ? build_type(b, s, one->text) : build(b, one), -1, -1);
    }
    return true;
}

static void fill(builder *b, const fv__jnode *s, int32_t rule)
{
    static const char *const choices[] = {"enum", "anyOf", "oneOf", "allOf", "type", NULL};
    const fv__jnode *ref = fv__jnode_get(s, "$ref"), *only = fv__jnode_get(s, "const");
    check_keywords(b, s);
    /* Keywords beside $ref are not looked at, as drafts up to 7 have it. */
    if (ref) {
        const fv__jnode *to = fv__jnode_is(ref, FV__J_TEXT) ? find_ref(b, ref->text) : NULL;
        if (!to) refuse(b, "schema: %s leads nowhere", "$ref");
        if (to) add(b, rule, "", build(b, to), -1, -1);
        return;
    }
    if (only) {
        add_literal(b, rule, only);
        return;
    }
    for (int i = 0; choices[i]; i++)
        if (build_choice(b, s, choices[i], rule)) return;
    bool object = fv__jnode_get(s, "properties") || fv__jnode_get(s, "additionalProperties");
    add(b, rule, "", object ? build_object(b, s) : b->json.value, -1, -1);
}

/* A rule for a schema, the same one whenever it is met again. */
static int32_t build(builder *b, const fv__jnode *s)
{
    if (fv__jnode_is(s, FV__J_TRUE)) return b->json.value;
    if (!fv__jnode_is(s, FV__J_OBJECT)) return refuse(b, "schema: %s was expected", "an object");
    for (int i = 0; i < b->n_known; i++)
        if (b->known[i].node == s) return b->known[i].rule;
    if (b->n_known == MOST_NODES || b->depth == MOST_DEPTH)
        return refuse(b, "schema: %s", "it is too large");
    int32_t rule = fv__rule_new(b->r);
    /* Noted before it is filled: a schema that refers to itself finds its own rule here. */
    b->known[b->n_known++] = (known){s, rule};
    b->depth++;
    fill(b, s, rule);
    b->depth--;
    return rule;
}

/* Blanks, the value, blanks: a reply may begin with one. */
static fv_status make_root(fv_schema *out, const fv__jnode *schema, fv_err *e)
{
    builder *b = fv__alloc(&out->env, sizeof *b);
    if (!b) return fv_fail(e, FV_ENOMEM, "schema: out of memory");
    b->r = &out->rules;
    b->root = schema;
    b->e = e;
    fv__json_rules(b->r, &b->json);
    /* No schema: any object. */
    int32_t value = schema ? build(b, schema) : b->json.object;
    out->root = fv__rule_new(b->r);
    add(b, out->root, "", b->json.ws, value, -1);
    fv_status st = b->st;
    if (!st && fv__rules_failed(b->r)) st = fv_fail(e, FV_ENOMEM, "schema: out of memory");
    fv__free(&out->env, b, sizeof *b);
    return st;
}

fv_status fv_schema_read(fv_schema **out, const fv_env *env, const char *schema, fv_err *e)
{
    fv__jtree tree = {.pool.env = env};
    *out = NULL;
    fv_schema *s = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "schema: out of memory");
    if (env) s->env = *env;
    fv__rules_begin(&s->rules, &s->env);
    fv_status st = FV_OK;
    if (schema) st = fv__jtree_parse(&tree, schema, strlen(schema), "schema", 32, e);
    if (!st) st = make_root(s, schema ? tree.root : NULL, e);
    if (schema) fv__jtree_free(&tree);
    if (st)
        fv_schema_free(s);
    else
        *out = s;
    return st;
}

void fv_schema_free(fv_schema *s)
{
    if (!s) return;
    fv_env env = s->env;
    fv__rules_free(&s->rules);
    fv__free(&env, s, sizeof *s);
}
