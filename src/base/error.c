/* error.c - filling in an fv_err.
 *
 * e may be NULL where the caller needs no sentence; the code is returned either way, so a failure
 * is one statement: return fv_fail(e, FV_EIO, "%s: ..", path).  Texts that are too long are cut. */
#include <stdarg.h>
#include <stdio.h>

#include "decimal.h"

fv_status fv_fail(fv_err *e, fv_status code, const char *fmt, ...)
{
    if (!e) return code;
    va_list ap;
    locale_t before = fv__c_numbers();
    va_start(ap, fmt);
    e->code = code;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    fv__c_numbers_end(before);
    for (char *s = e->text; *s; s++) /* what a file holds may be quoted: it moves no cursor */
        if ((unsigned char)*s < ' ' || *s == 127) *s = '?';
    return code;
}

const char *fv_status_name(fv_status code)
{
    static const char *const names[] = {"ok",      "out of memory", "argument", "shape",
                                        "dtype",   "input/output",  "format",   "device",
                                        "missing", "numeric",       "state",    "usage"};
    return (unsigned)code < sizeof names / sizeof *names ? names[code] : "unknown status";
}
