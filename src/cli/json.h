/* json.h - results for machines: one JSON object on one line of standard output. */
#ifndef FOVEA_CLI_JSON_H
#define FOVEA_CLI_JSON_H

#include "cli.h"

/* The writer; zeroed at the start of a value. */
typedef struct cli_json {
    bool comma; /* the next value stands behind another */
} cli_json;

/* Writes values as the format says, each letter taking an argument: s text, I int64_t, i int,
 * f double (nine digits, enough for f32; null where it is not finite), b bool as int.  Brackets and
 * colons are written as they stand, commas where they belong; blanks and commas of the format are
 * for its reader.  A value may be written in several calls: "{s:[", then "i" again and again, then
 * "]}". */
void cli_json_put(cli_json *j, const char *format, ...);
void cli_json_text(cli_json *j, const char *s, size_t n); /* bytes that are not UTF-8: U+FFFD */
/* (rows,cols) as an array of arrays; null where mask (unless it is NULL) is 0. */
void cli_json_matrix(cli_json *j, const float *x, const uint8_t *mask, int64_t rows, int64_t cols);
void cli_json_end(void); /* the end of the line */

#endif
