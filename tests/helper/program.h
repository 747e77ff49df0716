/* program.h - the program from outside, run in the folder of files.h. */
#ifndef HELPER_PROGRAM_H
#define HELPER_PROGRAM_H

#include <jansson.h>

#include "files.h"

typedef struct result {
    int code; /* its exit, or -1 */
    char *out, *err;
} result;

/* Runs a line of the shell in which $fovea is the program, with nothing on standard input; "fovea
 * ARGUMENTS"; the same with input.  Each gives the one result there is, which the next run
 * overwrites. */
const result *sh(const char *fmt, ...) FV_PRINTF(1, 2);
const result *fovea(const char *fmt, ...) FV_PRINTF(1, 2);
const result *fovea_reads(const char *input, const char *fmt, ...) FV_PRINTF(2, 3);

const result *succeeded(const result *r); /* r, whose code is 0 */
/* a line of the shell succeeds and writes text, no more and no less */
void prints(const char *line, const char *text);
/* It left with that code and one sentence on standard error, of which part is a part. */
void refused(const result *r, int code, const char *part);
/* ... and printed no result. */
void refused_silently(const result *r, int code, const char *part);

/* The JSON value on a line of out, the first being 0; the caller lets it go. */
json_t *json_line(const result *r, int line);

#endif
