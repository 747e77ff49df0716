/* json.c - results for machines. */
#include <math.h>
#include <stdio.h>

#include "cli/json.h"

int cli_print_json(const cli *c, json_t *object)
{
    if (!object) return cli_fail(c, "out of memory");
    int bad = json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    putchar('\n');
    return bad ? cli_fail(c, "cannot write the output") : CLI_OK;
}

json_t *cli_json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *cli_json_matrix(const float *x, const uint8_t *mask, int64_t rows, int64_t cols)
{
    json_t *m = json_array();
    for (int64_t i = 0; i < rows; i++) {
        json_t *row = json_array();
        for (int64_t j = 0; j < cols; j++) {
            bool hidden = mask && !mask[i * cols + j];
            json_array_append_new(row,
                                  hidden ? json_null() : cli_json_number((double)x[i * cols + j]));
        }
        json_array_append_new(m, row);
    }
    return m;
}
