/* json.h - results for machines. */
#ifndef FOVEA_CLI_JSON_H
#define FOVEA_CLI_JSON_H

#include <jansson.h>

#include "cli.h"

/* Prints one object on one line, floats with nine digits (enough for f32), and drops it.  NULL
 * (there was no memory for it) is reported. */
int cli_print_json(const cli *c, json_t *object);
/* (rows,cols) as an array of arrays; null where mask (unless it is NULL) is 0. */
json_t *cli_json_matrix(const float *x, const uint8_t *mask, int64_t rows, int64_t cols);
/* A number, or null where JSON has none (NaN, infinities). */
json_t *cli_json_number(double x);

#endif
