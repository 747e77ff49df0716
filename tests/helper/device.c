/* device.c - where a test runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device.h"

fv_device *device;

const char *test_device(void)
{
    const char *name = getenv("FOVEA_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

bool test_on_cpu(void) { return !strcmp(test_device(), "cpu"); }

bool test_brief(void) { return getenv("FOVEA_TEST_BRIEF") != NULL; }

int open_device(void **state)
{
    (void)state;
    return fv_device_open(&device, test_device(), (fv_device_opt){.threads = 2}, NULL);
}

int close_device(void **state)
{
    (void)state;
    fv_device_close(device);
    return 0;
}

void check(fv_status st, const fv_err *e)
{
    if (st) fail_msg("%s", e->text);
}

float *test_values(fv_params *p, int64_t *n)
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

int run_beside_cpu(const struct CMUnitTest *tests, size_t n, fv_device **dev, fv_device **cpu)
{
    fv_err e;
    if (fv_device_open(cpu, "cpu", (fv_device_opt){0}, &e) ||
        fv_device_open(dev, test_device(), (fv_device_opt){0}, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    int failed = _cmocka_run_group_tests("tests", tests, n, NULL, NULL);
    fv_device_close(*dev);
    fv_device_close(*cpu);
    return failed;
}
