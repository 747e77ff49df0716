/* tidy.h - included before every file that clang-tidy reads: what functions of other files promise.
 *
 * The analyzer sees one file at a time, so it thinks that fv_fail might return FV_OK, and follows
 * each failure into code that only success can reach.  These macros state the promise where the
 * function is called. */
#ifndef TOOLS_TIDY_H
#define TOOLS_TIDY_H

#include "fovea/author/op.h"

#define fv_fail(e, code, ...) (fv_fail(e, code, __VA_ARGS__), (code))
#define fv_raise(c, code, ...) (fv_raise(c, code, __VA_ARGS__), (void *)0)
#define fv_need(c, have, kernel, t) ((have) && fv_need(c, have, kernel, t))
#define fv_same_dtype(c, op, a, b) ((a) && (b) && fv_same_dtype(c, op, a, b))

#ifdef TIDY_CLI
#include "cli/cli.h"

#define cli_fail(c, ...) (cli_fail(c, __VA_ARGS__), CLI_FAILED)
#define cli_usage(c, ...) (cli_usage(c, __VA_ARGS__), CLI_USAGE)
#define cli_error(c, e) (cli_error(c, e), CLI_FAILED)
#endif

#endif
