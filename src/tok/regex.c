/* regex.c - patterns of tokenizer files, run by PCRE2.
 *
 * They are written for Oniguruma with Ruby's rules.  What means the same there and here passes; \s,
 * \w and \d are spelled out, because the two engines differ on a few characters; what would mean
 * something else is refused. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>

#include "work.h"

#define SPACES                                                                                     \
    "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"   \
    "\\x{3000}"
#define WORDS                                                                                      \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}\\x{" \
    "1F130}-\\x{1F149}\\x{1F150}-"                                                                 \
    "\\x{1F169}\\x{1F170}-\\x{1F189}"
#define MAX_PATTERN 16384
#define STEP_LIMIT 4000000

/* ---- memory for PCRE2, which does not say how much it gives back ---- */

static void *lib_alloc(PCRE2_SIZE size, void *env)
{
    if (size > SIZE_MAX - 16) return NULL;
    size_t *p = fv__alloc(env, size + 16);
    if (!p) return NULL;
    *p = size + 16;
    return (char *)p + 16;
}

static void lib_free(void *block, void *env)
{
    if (!block) return;
    size_t *p = (size_t *)(void *)((char *)block - 16);
    fv__free(env, p, *p);
}

/* ---- translation ---- */

typedef struct reader {
    const char *s;
    size_t n, i;
    bool in_class;
    fv_buf out;
    const char *refused;
} reader;

static void escape(reader *r)
{
    if (r->i + 1 >= r->n) {
        r->refused = "a \\ at the end";
        return;
    }
    char k = r->s[r->i + 1];
    r->i += 2;
    bool in = r->in_class;
    switch (k) {
    case 's': fv__buf_str(&r->out, in ? SPACES : "[" SPACES "]"); return;
    /* in a class: differs on U+180E alone */
    case 'S': fv__buf_str(&r->out, in ? "\\S" : "[^" SPACES "]"); return;
    case 'w': fv__buf_str(&r->out, in ? WORDS : "[" WORDS "]"); return;
    case 'W':
        if (in)
            r->refused = "\\W in a class";
        else
            fv__buf_str(&r->out, "[^" WORDS "]");
        return;
    case 'd': fv__buf_str(&r->out, "\\p{Nd}"); return;
    case 'D': fv__buf_str(&r->out, "\\P{Nd}"); return;
    case 'u':
        if (r->n - r->i < 4) {
            r->refused = "\\u without four digits";
            return;
        }
        fv__buf_fmt(&r->out, "\\x{%.4s}", r->s + r->i);
        r->i += 4;
        return;
    case 'p':
    case 'P':
    case 'x':
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'v':
    case 'A':
    case 'z':
    case 'Z': break;
    default:
        if ((k >= '0' && k <= '9') || (k >= 'a' && k <= 'z') || (k >= 'A' && k <= 'Z'))
            r->refused = "an escape that is not known";
    }
    if (k == 'v') /* a class of line ends in PCRE2 */
        fv__buf_str(&r->out, "\\x0B");
    else
        fv__buf_fmt(&r->out, "\\%c", k);
}

/* Groups that mean the same in both: (...), (?:, (?=, (?!, (?>, (?<=, (?<!, and the flag i. */
static void group(reader *r)
{
    const char *s = r->s + r->i;
    size_t left = r->n - r->i;
    if (left < 3 || s[1] != '?') {
        if (left >= 2 && s[1] == '*') r->refused = "a group that starts with *";
        return;
    }
    char k = s[2], after = left > 3 ? s[3] : 0;
    bool same = k == ':' || k == '=' || k == '!' || k == '>' ||
                (k == '<' && (after == '=' || after == '!')) ||
                (k == 'i' && (after == ':' || after == ')')) || (k == '-' && after == 'i');
    if (!same) r->refused = "a group of an unknown kind";
}

static void translate(reader *r)
{
    bool first = false; /* just after [ or [^, where ] is a character */
    while (r->i < r->n && !r->refused && !r->out.failed) {
        char k = r->s[r->i];
        if (k == '\\') {
            escape(r);
            first = false;
            continue;
        }
        if (r->in_class) {
            if (k == '[') r->refused = "a class in a class";
            if (k == '&' && r->i + 1 < r->n && r->s[r->i + 1] == '&')
                r->refused = "an intersection of classes";
            if (k == ']' && !first) r->in_class = false;
            first = first && k == '^';
        } else if (k == '[') {
            r->in_class = first = true;
        } else if (k == '(') {
            group(r);
        }
        fv__buf_add(&r->out, &k, 1);
        r->i++;
    }
}

/* ---- compiling ---- */

static void *compile(fv_buf *text, const fv_env *env, char *why, size_t size, bool *no_memory)
{
    int number = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE at = 0;
    pcre2_code *code = NULL;
    pcre2_general_context *memory = pcre2_general_context_create(lib_alloc, lib_free,
                                                                 (void *)(uintptr_t)env);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (context) {
        pcre2_set_max_pattern_length(context, MAX_PATTERN);
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
        code = pcre2_compile((PCRE2_SPTR)(text->data ? text->data : ""), text->len, options,
                             &number, &at, context);
        /* without it matching is slower, not different */
        if (code) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    }
    if (context) pcre2_compile_context_free(context);
    if (memory) pcre2_general_context_free(memory);
    if (code) return code;
    /* 121: "failed to allocate heap memory" */
    *no_memory = number == PCRE2_ERROR_NOMEMORY || number == 121;
    char message[128] = "";
    pcre2_get_error_message(number, (PCRE2_UCHAR *)message, sizeof message);
    snprintf(why, size, "regex: %s at %zu of its translation", message, (size_t)at);
    return NULL;
}

bool fv__pattern_compile(fv__pattern *p, const fv_env *env, char *why, size_t why_size,
                         bool *no_memory)
{
    *no_memory = false;
    if (!p->regex) return true;
    if (p->text.n > MAX_PATTERN) {
        snprintf(why, why_size, "the regex has more than %d bytes", MAX_PATTERN);
        return false;
    }
    reader r = {.s = p->text.s, .n = p->text.n, .out = {.env = env}};
    translate(&r);
    if (r.refused)
        snprintf(why, why_size, "regex: %s is not implemented (byte %zu)", r.refused, r.i);
    else if (r.out.failed)
        *no_memory = true;
    else
        p->code = compile(&r.out, env, why, why_size, no_memory);
    fv__buf_free(&r.out);
    return p->code != NULL;
}

void fv__pattern_free(fv__pattern *p)
{
    pcre2_code_free(p->code);
    p->code = NULL;
}

/* ---- matching ---- */

static bool prepare(fv__work *w)
{
    if (w->match) return true;
    pcre2_general_context *memory = pcre2_general_context_create(lib_alloc, lib_free,
                                                                 (void *)(uintptr_t)w->env);
    if (!memory) return false;
    w->match_context = pcre2_match_context_create(memory);
    w->jit_stack = pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, memory);
    pcre2_match_data *match = pcre2_match_data_create(1, memory);
    pcre2_general_context_free(memory);
    if (w->match_context) {
        pcre2_set_match_limit(w->match_context, STEP_LIMIT);
        if (w->jit_stack) pcre2_jit_stack_assign(w->match_context, NULL, w->jit_stack);
    }
    w->match = match;
    return w->match_context && match;
}

void fv__pattern_release(fv__work *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->match_context);
    pcre2_jit_stack_free(w->jit_stack);
}

int fv__pattern_find(const fv__pattern *p, fv__work *w, const char *s, size_t n, size_t at,
                     size_t *from, size_t *to)
{
    if (!p->regex) {
        const char *hit = p->text.n && at < n ? memmem(s + at, n - at, p->text.s, p->text.n) : NULL;
        if (!hit) return 0;
        *from = (size_t)(hit - s);
        *to = *from + p->text.n;
        return 1;
    }
    if (!prepare(w)) return fv__no_memory(w) - 1;
    int rc = pcre2_match(p->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, w->match,
                         w->match_context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc == PCRE2_ERROR_NOMEMORY) return fv__no_memory(w) - 1;
    if (rc < 0) {
        fv_fail(&w->err, FV_EFORMAT,
                "the tokenizer's regex \"%.80s\" gave up on this text (PCRE2 error %d)", p->text.s,
                rc);
        return -1;
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(w->match);
    *from = v[0];
    *to = v[1];
    return 1;
}
