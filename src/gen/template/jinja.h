/* jinja.h - the inside of the template interpreter: memory, values, the syntax tree, evaluation.
 *
 * A template is lexed and parsed once (lexer.c, parser.c, statements.c) into a tree that never
 * changes; rendering walks the tree (eval.c, exec.c) with values of its own.  Both sides take
 * memory from a pool that is freed as a whole.  A failure is sticky, as in fv_ctx: the first one
 * stays in the error, every function returns quickly once there is one, and only the top level
 * looks.
 *
 * The language is Jinja 2 as transformers sets it up: trim_blocks, lstrip_blocks, the sandbox's
 * immutable lists and dicts, break and continue, generation blocks, tojson without HTML escapes.
 * Compiling to closures or bytecode would be faster and harder to bound; a template runs once a
 * turn, in microseconds. */
#ifndef FV_JINJA_H
#define FV_JINJA_H

#include "base/base.h"

enum {
    FV_JINJA_MAX_DEPTH = 64,         /* nested expressions and blocks of the source, and JSON */
    FV_JINJA_MAX_CALLS = 400,        /* nested evaluations: macros, and operators in a row */
    FV_JINJA_MAX_SOURCE = 1 << 20,   /* bytes of a template */
    FV_JINJA_MAX_STEPS = 20000000,   /* nodes evaluated in a rendering */
    FV_JINJA_MAX_OUTPUT = 32 << 20,  /* bytes of text it may write */
    FV_JINJA_MAX_MEMORY = 256 << 20, /* bytes of values it may make */
};

/* ---- memory ---- */

typedef struct jinja_pool {
    fv_env env;
    struct jinja_chunk *chunks;
    size_t used, limit; /* bytes of all chunks */
    fv_status st;
    fv_err *e; /* gets the first failure; may be NULL */
    int line;  /* of the template, for messages */
} jinja_pool;

/* Cleared; NULL with a sticky failure. */
void *fv__jinja_alloc(jinja_pool *p, size_t n);
void fv__jinja_pool_free(jinja_pool *p);
/* The first failure, as "line N: ..". */
void fv__jinja_fail(jinja_pool *p, fv_status st, const char *fmt, ...) FV_PRINTF(3, 4);

/* ---- values ---- */

typedef struct jinja_text {
    const char *s; /* UTF-8, not NUL-terminated */
    size_t n;
} jinja_text;

typedef enum jinja_kind {
    JINJA_UNDEFINED = 0,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_VIEW,      /* of dict.items() and the like: has a length and no index */
    JINJA_GENERATOR, /* of map, select and the like: can only be gone through */
    JINJA_DICT,
    JINJA_NAMESPACE, /* a dict whose entries {% set ns.x = .. %} changes */
    JINJA_LOOP,      /* the variable loop */
    JINJA_MACRO,
    JINJA_FUNCTION, /* one of the global functions, by its name */
    JINJA_METHOD    /* a method and the value it belongs to */
} jinja_kind;

typedef struct jinja_value {
    jinja_kind kind;
    bool safe; /* a string from the filter safe: what is joined to it gets HTML escapes */
    union {
        bool b;
        int64_t i;
        double f;
        jinja_text text;
        struct jinja_list *list;
        struct jinja_dict *dict;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        struct jinja_method *method;
    };
} jinja_value;

typedef struct jinja_list {
    jinja_value *at;
    int64_t n, cap;
} jinja_list;

/* In the order of insertion, as Python's. */
typedef struct jinja_dict {
    jinja_value *key, *value;
    int64_t n, cap;
} jinja_dict;

typedef struct jinja_method {
    jinja_value self;
    jinja_text name;
} jinja_method;

typedef struct jinja_loop {
    const jinja_list *items;
    int64_t index, depth; /* both from 0 */
} jinja_loop;

bool fv__text_is(jinja_text t, const char *word);
bool fv__text_same(jinja_text a, jinja_text b);
jinja_value fv__jinja_string(jinja_text t);
jinja_value fv__jinja_chars(const char *s); /* borrowed */
/* The bytes of b, which is freed. */
jinja_value fv__jinja_take(jinja_pool *p, fv_buf *b);
jinja_value fv__jinja_bool(bool b);
jinja_value fv__jinja_int(int64_t i);
jinja_value fv__jinja_new_list(jinja_pool *p, jinja_kind kind);
jinja_value fv__jinja_new_dict(jinja_pool *p, jinja_kind kind);
void fv__jinja_append(jinja_pool *p, jinja_list *l, jinja_value v);
void fv__jinja_put(jinja_pool *p, jinja_dict *d, jinja_value key, jinja_value v);
/* NULL if there is no such key. */
jinja_value *fv__jinja_get(const jinja_dict *d, jinja_value key);

bool fv__jinja_truth(jinja_value v);
bool fv__jinja_equal(jinja_value a, jinja_value b);
/* < 0, 0, > 0; false: Python does not order these. */
bool fv__jinja_order(jinja_value a, jinja_value b, int *out);
bool fv__jinja_number(jinja_value v, double *out); /* int, float or bool */
const char *fv__jinja_kind_name(jinja_value v);    /* in Python's words */
bool fv__jinja_is_list(jinja_value v);             /* or a tuple */
bool fv__jinja_has_list(jinja_value v);            /* or a view or generator */
/* As str() gives it; false: the value has no text here. */
bool fv__jinja_write(jinja_pool *p, fv_buf *out, jinja_value v);
jinja_value fv__jinja_str(jinja_pool *p, jinja_value v);
int64_t fv__jinja_length(jinja_value v); /* -1: it has none */
/* What a loop over v yields, as a list; a failure where v is not iterable. */
jinja_list *fv__jinja_items(jinja_pool *p, jinja_value v);

/* Code points of a text, and the byte where code point i begins. */
int64_t fv__text_length(jinja_text t);
size_t fv__text_offset(jinja_text t, int64_t i);

/* ---- JSON ---- */

typedef struct jinja_json_style {
    int64_t indent; /* -1: on one line */
    bool ascii, sort;
    const char *item, *key; /* separators */
} jinja_json_style;

/* As Python's json.dumps. */
void fv__jinja_dump(jinja_pool *p, fv_buf *out, jinja_value v, const jinja_json_style *style,
                    int depth);
jinja_value fv__jinja_load(jinja_pool *p, const char *text, const char *what);

/* ---- tokens ---- */

typedef enum jinja_token_kind {
    TOKEN_END = 0,
    TOKEN_TEXT,       /* outside of tags */
    TOKEN_OUT_BEGIN,  /* {{ */
    TOKEN_OUT_END,    /* }} */
    TOKEN_STMT_BEGIN, /* {% */
    TOKEN_STMT_END,   /* %} */
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OPERATOR
} jinja_token_kind;

typedef struct jinja_token {
    jinja_token_kind kind;
    jinja_text text; /* of a string: without quotes and escapes */
    int64_t i;
    double f;
    int line;
} jinja_token;

/* All tokens of a template, the last one TOKEN_END; NULL after a failure. */
jinja_token *fv__jinja_lex(jinja_pool *p, const char *source, size_t n);

/* ---- the tree ---- */

typedef enum jinja_node_kind {
    NODE_CONST,
    NODE_NAME,
    NODE_LIST,    /* items */
    NODE_TUPLE,   /* items */
    NODE_DICT,    /* items: key, value, key, .. */
    NODE_ATTR,    /* a.name */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* a[b:c:d] */
    NODE_CALL,    /* a(items) */
    NODE_FILTER,  /* a | name(items); a NULL in a block's filters */
    NODE_TEST,    /* a is name(items) */
    NODE_NOT,     /* not a */
    NODE_SIGN,    /* name is + or - */
    NODE_AND,     /* a and b */
    NODE_OR,      /* a or b */
    NODE_BINARY,  /* a name b */
    NODE_COMPARE, /* a, then items: each with its operator as name and its operand as a */
    NODE_IF_ELSE, /* b if a else c */
    NODE_ARG,     /* name = a, or a */
    NODE_TEXT,
    NODE_OUT,          /* {{ a }} */
    NODE_IF,           /* a; b; else c */
    NODE_FOR,          /* items (targets) in a, if d; b; else c */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = the text of b, through the filter c */
    NODE_FILTER_BLOCK, /* the text of b, through the filter c */
    NODE_MACRO,        /* name, items (parameters, a: default); b */
    NODE_GROUP,        /* b */
    NODE_BREAK,
    NODE_CONTINUE
} jinja_node_kind;

typedef struct jinja_node {
    jinja_node_kind kind;
    int line;
    jinja_text name;
    jinja_value value;
    struct jinja_node *a, *b, *c, *d, *items;
    struct jinja_node *next; /* in a list of items or statements */
} jinja_node;

typedef struct jinja_parser {
    jinja_pool *pool;
    const jinja_token *at;
    int depth, loops;
} jinja_parser;

jinja_node *fv__jinja_new_node(jinja_parser *p, jinja_node_kind kind);
bool fv__jinja_at(const jinja_parser *p, jinja_token_kind kind, const char *text);
bool fv__jinja_accept(jinja_parser *p, jinja_token_kind kind, const char *text);
void fv__jinja_expect(jinja_parser *p, jinja_token_kind kind, const char *text);
/* parser.c: with `tuple`, commas make a tuple; without `conditional`, "if" ends the expression. */
jinja_node *fv__jinja_parse_expression(jinja_parser *p, bool tuple, bool conditional);
jinja_node *fv__jinja_parse_primary(jinja_parser *p);
/* name(args), the pipe having been read; a: what it is applied to. */
jinja_node *fv__jinja_parse_filter(jinja_parser *p, jinja_node *a);
jinja_node *fv__jinja_parse_args(jinja_parser *p);
/* statements.c: the whole template. */
jinja_node *fv__jinja_parse(jinja_pool *pool, const char *source, size_t n);

/* ---- evaluation ---- */

typedef struct jinja_frame {
    struct jinja_frame *above;
    jinja_text *name;
    jinja_value *value;
    int n, cap;
} jinja_frame;

typedef struct jinja_macro {
    const jinja_node *node;
    jinja_frame *frame; /* where it was defined */
} jinja_macro;

enum { JINJA_GO_ON = 0, JINJA_BREAK, JINJA_CONTINUE };

typedef struct jinja_run {
    jinja_pool *pool;
    jinja_frame *frame;
    fv_buf out;
    int64_t steps;
    int depth, loops;
    int64_t now;
} jinja_run;

/* Evaluated arguments of a call: first those without a name. */
typedef struct jinja_args {
    jinja_value at[8];
    jinja_text name[8];
    int n, unnamed;
} jinja_args;

/* Argument i, or the one of that name; undefined if there is none. */
jinja_value fv__jinja_arg(const jinja_args *a, int i, const char *name);

void fv__jinja_set(jinja_run *r, jinja_text name, jinja_value v); /* in the innermost frame */
jinja_value fv__jinja_eval(jinja_run *r, const jinja_node *n);
jinja_args fv__jinja_eval_args(jinja_run *r, const jinja_node *items);
int fv__jinja_exec(jinja_run *r, const jinja_node *list);
jinja_value fv__jinja_call_macro(jinja_run *r, const jinja_macro *m, const jinja_args *a);
/* What a block writes, as a string. */
jinja_value fv__jinja_capture(jinja_run *r, const jinja_node *body);
/* v.name or v[name] of anything; undefined if it has none. */
jinja_value fv__jinja_attribute(jinja_run *r, jinja_value v, jinja_text name);

bool fv__jinja_has_filter(jinja_text name);
jinja_value fv__jinja_filter(jinja_run *r, jinja_text name, jinja_value v, const jinja_args *a);
bool fv__jinja_has_test(jinja_text name);
bool fv__jinja_test(jinja_run *r, jinja_text name, jinja_value v, const jinja_args *a);
bool fv__jinja_has_function(jinja_text name);
jinja_value fv__jinja_function(jinja_run *r, jinja_text name, const jinja_args *a);
bool fv__jinja_has_method(jinja_value self, jinja_text name);
jinja_value fv__jinja_method(jinja_run *r, jinja_value self, jinja_text name, const jinja_args *a);

/* Filters over lists (filters_list.c), the others being in filters.c. */
bool fv__jinja_list_filter(jinja_run *r, jinja_text name, jinja_value v, const jinja_args *a,
                           jinja_value *out);
extern const char *const fv__jinja_list_filters[];
/* Text without the characters of `chars` (NULL: blanks) at its sides. */
jinja_text fv__text_strip(jinja_text t, const jinja_text *chars, bool left, bool right);
jinja_value fv__jinja_replace(jinja_pool *p, jinja_text t, jinja_text from, jinja_text to,
                              int64_t most);

#endif
