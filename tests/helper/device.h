/* device.h - where a test runs: on $FOVEA_TEST_DEVICE, or the CPU. */
#ifndef HELPER_DEVICE_H
#define HELPER_DEVICE_H

#include <stdbool.h>

#include "fovea/tensor.h"

const char *test_device(void);
bool test_on_cpu(void);
/* $FOVEA_TEST_BRIEF is set: each kernel once is enough, as under a tool that makes launches
 * slow. */
bool test_brief(void);

/* One for all tests of a program, with two threads: for cmocka's set-up and tear-down of a
 * group. */
extern fv_device *device;
int open_device(void **state);
int close_device(void **state);

/* Runs tests with that device and a CPU to compare it with, for main; both have all threads. */
struct CMUnitTest;
int run_beside_cpu(const struct CMUnitTest *tests, size_t n, fv_device **dev, fv_device **cpu);

/* Fails the test with the message where there is an error. */
void check(fv_status st, const fv_err *e);

/* The values of all parameters, one behind the other, wherever they live; NULL if they cannot be
 * had.  The caller frees. */
float *test_values(fv_params *p, int64_t *n);

#endif
