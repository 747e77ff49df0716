/* device.h - where a test runs: on $FOVEA_TEST_DEVICE, or the CPU. */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/tensor.h"

static inline const char *test_device(void)
{
    const char *name = getenv("FOVEA_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

static inline bool test_on_cpu(void) { return !strcmp(test_device(), "cpu"); }

/* The values of all parameters, one behind the other, wherever they live; NULL if they cannot be had.  The caller frees. */
static inline float *test_values(fv_params *p, int64_t *n)
{
    *n = fv_params_elements(p, "");
    float *all = malloc((size_t)*n * sizeof *all), *at = all;
    for (int i = 0; at && i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        if (fv_params_get(p, t, at, fv_len(t), NULL)) return free(all), NULL;
        at += fv_len(t);
    }
    return all;
}

#endif
