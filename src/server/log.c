/* log.c - messages: one JSON object a line, on standard error.
 *
 * For machines: one object a line, times in UTC, always the same keys.  Prompts and answers are not
 * in it; a request is found by its id, which its answer carries too. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#include "core.h"

static void begin(sv_text *t, const char *level)
{
    struct timeval now;
    struct tm utc;
    char stamp[32];
    gettimeofday(&now, NULL);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    sv_open(t, '{');
    sv_key(t, "time");
    sv_fmt(t, "\"%s.%03dZ\"", stamp, (int)(now.tv_usec / 1000));
    sv_string_at(t, "level", level);
}

/* One write, so that lines of several threads do not mix. */
static void end(sv_text *t)
{
    sv_put(t, "}\n");
    if (t->s) fwrite(t->s, 1, t->n, stderr);
    sv_free(t);
}

void sv_log(const char *level, const char *fmt, ...)
{
    char text[1024];
    sv_text t = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    begin(&t, level);
    sv_string_at(&t, "message", text);
    end(&t);
}

/* Never what was asked or answered: prompts are private. */
void sv_log_request(const sv_request *r)
{
    sv_text t = {0};
    begin(&t, r->status >= 500 ? "error" : "info");
    sv_string_at(&t, "request", r->id);
    sv_string_at(&t, "method", r->method);
    sv_string_at(&t, "path", r->path);
    sv_int_at(&t, "status", r->status);
    sv_key(&t, "seconds");
    sv_fmt(&t, "%.6f", sv_now() - r->arrived);
    if (r->engine) sv_string_at(&t, "model", sv_asked_name(r));
    if (r->prompt_tokens) sv_int_at(&t, "prompt_tokens", r->prompt_tokens);
    if (r->new_tokens) sv_int_at(&t, "completion_tokens", r->new_tokens);
    end(&t);
}
