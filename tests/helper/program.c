/* program.c - the program from outside, run in the folder of files.h. */
#include "program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

static result last;

static void keep(char **text, const char *name)
{
    size_t n;
    free(*text);
    *text = slurp(scratch("%s", name), &n);
}

/* A sanitized program does not look for leaks, which takes seconds at each exit, unless the line
 * says so. */
static const result *run(const char *before, const char *fmt, va_list ap)
{
    char line[8192];
    int n = snprintf(
        line, sizeof line,
        "cd '%s'; export ASAN_OPTIONS=detect_leaks=0 fovea='%s'; exec > out 2> err < /dev/null; %s",
        scratch("."), FOVEA_PROGRAM, before);
    n += vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    assert_true(n < (int)sizeof line);
    int status = system(line);
    last.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    keep(&last.out, "out");
    keep(&last.err, "err");
    return &last;
}

const result *sh(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    run("", fmt, ap);
    va_end(ap);
    return &last;
}

const result *fovea(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    run("exec \"$fovea\" ", fmt, ap);
    va_end(ap);
    return &last;
}

const result *fovea_reads(const char *input, const char *fmt, ...)
{
    va_list ap;
    scratch_text("in", input);
    va_start(ap, fmt);
    run("exec < in \"$fovea\" ", fmt, ap);
    va_end(ap);
    return &last;
}

const result *succeeded(const result *r)
{
    if (r->code) fail_msg("exit %d: %s", r->code, r->err);
    return r;
}

void prints(const char *line, const char *text)
{
    assert_string_equal(succeeded(sh("%s", line))->out, text);
}

void refused(const result *r, int code, const char *part)
{
    const char *end = strchr(r->err, '\n');
    if (r->code != code || !strstr(r->err, part) || !end || end[1])
        fail_msg("exit %d, message: %s", r->code, r->err);
}

void refused_silently(const result *r, int code, const char *part)
{
    refused(r, code, part);
    assert_string_equal(r->out, "");
}

json_t *json_line(const result *r, int line)
{
    const char *s = r->out;
    for (int i = 0; i < line && s; i++) s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL;
    json_t *j = s ? json_loads(s, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!j) fail_msg("no JSON on line %d of: %s", line, r->out);
    return j;
}
