/* fuzz_regex.c - libFuzzer target: a regex of a tokenizer, then a text to cut by it; fuzz-regex.
 *
 * The first line is the regex.  It is refused or compiled, and what it finds lies in the text, in
 * order. */
#include <stdlib.h>
#include <time.h>

#include "tok/work.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* As if all but some milliseconds of a text's 0.3 s were gone, so that runs are not spent on
 * patterns that take long. */
static void shorten(fv__work *w)
{
    w->matches = 1;
    w->match_start = seconds(CLOCK_MONOTONIC) - 0.297;
    w->match_cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - 0.297;
}

static void find_all(const fv__pattern *p, const fv_env *env, const char *s, size_t n)
{
    fv__work w = {.env = env};
    size_t at = 0, from = 0, to = 0;
    fv__work_limits(&w, n);
    shorten(&w);
    while (at <= n && fv__pattern_find(p, &w, s, n, at, &from, &to) > 0) {
        if (from < at || to < from || to > n) abort();
        at = to > from ? to : to + 1;
        while (at < n && (s[at] & 0xC0) == 0x80) at++;
    }
    fv__pattern_release(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fv_mem_counter mem;
    char why[200] = "";
    bool no_memory;
    const char *s = (const char *)data, *end = size ? memchr(s, '\n', size) : NULL;
    size_t n = end ? (size_t)(end - s) : size, rest = size - n - (end != NULL);
    if (fv__utf8_check(s, size) < size) return 0; /* files and texts are checked before this */
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv__pattern p = {.regex = true, .text = {s, n}};
    if (fv__pattern_compile(&p, &env, why, sizeof why, &no_memory))
        find_all(&p, &env, end ? end + 1 : "", rest);
    else if (!why[0] && !no_memory)
        abort();
    fv__pattern_free(&p);
    if (mem.live) abort();
    return 0;
}
