/* regex.c - patterns of tokenizer files, run by PCRE2 with limits on time and memory.
 *
 * tokenizer.json has patterns of Oniguruma; oniguruma.c translates them to PCRE2 and refuses what
 * has no equal.  A pattern comes from a file, so a match is bounded: PCRE2's own limits on
 * backtracking and on its stack, and the thread's CPU time per text.  PCRE2 counts backtracking
 * only: a*a*+b and (?:a(?!.*b))* are quadratic in one call without much of it.  So every item of
 * a pattern calls back (PCRE2_AUTO_CALLOUT), where the time is looked at.  Matching parts of the
 * text at a time bounds nothing: one starting position can take hours.
 *
 * Callbacks make real patterns half as fast, so a pattern is compiled twice: most matches begin
 * where the last one ended and need few steps, and are found without them.  Where a group is
 * repeated this is not done: compiled code does not count its iterations. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <time.h>

#include "oniguruma.h"
#include "work.h"

#define MAX_PATTERN 16384
#define STEP_LIMIT 4000000
#define STACK_KIB 8192 /* of JIT-compiled code */
#define HEAP_KIB 65536 /* of the interpreter, where there is no JIT */
/* Between two callbacks a match reads at most the text; the clock is read when this many bytes may
 * have been, some milliseconds, and costs a hundredth of matching. */
#define BYTES_A_CHECK (1 << 25)
/* Steps of a match without callbacks, from one start: at most this many times the text is read. */
#define QUICK_STEPS 64
/* Seconds that all matches in a text may take: real patterns need 0.05 for a megabyte. */
#define SECONDS 0.3
#define SECONDS_A_BYTE 0.8e-6

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

/* ---- compiling ---- */

static void *compile(const fv_buf *text, uint32_t more, const fv_env *env, char *why, size_t size,
                     bool *no_memory)
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
        uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                           PCRE2_USE_OFFSET_LIMIT | more;
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

/* Whether a group may be repeated: a parenthesis in a class is taken for one, too. */
static bool repeats_groups(const fv_buf *text)
{
    for (size_t i = 0; i + 1 < text->len; i++) {
        char next = text->data[i + 1];
        if (text->data[i] == '\\')
            i++;
        else if (text->data[i] == ')' && (next == '*' || next == '+' || next == '{'))
            return true;
    }
    return false;
}

/* Asked of PCRE2 itself, whose Unicode tables differ between versions. */
static bool is_script(const char *name, size_t n)
{
    char pattern[64];
    int number;
    PCRE2_SIZE at;
    int len = snprintf(pattern, sizeof pattern, "\\p{sc:%.*s}", (int)n, name);
    if (len < 0 || (size_t)len >= sizeof pattern) return false;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, (PCRE2_SIZE)len, PCRE2_UTF, &number, &at,
                                     NULL);
    pcre2_code_free(code);
    return code != NULL;
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
    fv_buf text = {.env = env};
    const char *refused;
    size_t at;
    fv__oniguruma(&text, p->text.s, p->text.n, is_script, &refused, &at);
    if (refused)
        snprintf(why, why_size, "regex: %s is not implemented (byte %zu)", refused, at);
    else if (text.failed)
        *no_memory = true;
    else
        p->code = compile(&text, PCRE2_AUTO_CALLOUT, env, why, why_size, no_memory);
    bool quick = p->code && !repeats_groups(&text);
    if (quick) p->quick = compile(&text, 0, env, why, why_size, no_memory);
    fv__buf_free(&text);
    if (quick && !p->quick) fv__pattern_free(p);
    return p->code != NULL;
}

void fv__pattern_free(fv__pattern *p)
{
    pcre2_code_free(p->code);
    pcre2_code_free(p->quick);
    p->code = p->quick = NULL;
}

/* ---- matching ---- */

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The thread's own time decides, so that a busy machine refuses no more than an idle one; the
 * clock, which is cheap, says when to ask for it. */
static bool late(const fv__work *w)
{
    double most = SECONDS + SECONDS_A_BYTE * (double)w->bytes;
    if (seconds(CLOCK_MONOTONIC) - w->match_start < most) return false;
    return seconds(CLOCK_THREAD_CPUTIME_ID) - w->match_cpu > most;
}

/* Called before each item of a pattern; a negative result ends the match with it. */
static int on_item(pcre2_callout_block *item, void *work)
{
    fv__work *w = work;
    if (w->match_calls--) return 0;
    w->match_calls = 8 + BYTES_A_CHECK / (item->subject_length + 1);
    return late(w) ? PCRE2_ERROR_MATCHLIMIT : 0;
}

/* Match data, context and JIT stack belong to the work of one call at a time; the compiled
 * pattern is shared by all threads. */
static bool prepare(fv__work *w)
{
    if (w->match) return true;
    pcre2_general_context *memory = pcre2_general_context_create(lib_alloc, lib_free,
                                                                 (void *)(uintptr_t)w->env);
    if (!memory) return false;
    w->match_context = pcre2_match_context_create(memory);
    w->jit_stack = pcre2_jit_stack_create(32 * 1024, STACK_KIB * 1024, memory);
    pcre2_match_data *match = pcre2_match_data_create(1, memory);
    pcre2_general_context_free(memory);
    if (w->match_context) {
        pcre2_set_heap_limit(w->match_context, HEAP_KIB);
        pcre2_set_callout(w->match_context, on_item, w);
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

static int match(const pcre2_code *code, fv__work *w, const char *s, size_t n, size_t at,
                 size_t last_start, uint32_t steps)
{
    pcre2_set_offset_limit(w->match_context, last_start);
    pcre2_set_match_limit(w->match_context, steps);
    return pcre2_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, w->match, w->match_context);
}

/* The match that begins first at or behind `at`. */
static int find_from(const fv__pattern *p, fv__work *w, const char *s, size_t n, size_t at)
{
    if (!w->matches++) {
        w->match_start = seconds(CLOCK_MONOTONIC);
        w->match_cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    }
    if (w->matches % 4 == 0 && late(w)) return PCRE2_ERROR_MATCHLIMIT;
    if (p->quick) {
        int rc = match(p->quick, w, s, n, at, at, QUICK_STEPS);
        if (rc >= 0) return rc;
    }
    return match(p->code, w, s, n, at, PCRE2_UNSET, STEP_LIMIT);
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
    int rc = find_from(p, w, s, n, at);
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
