/* ctx.h - one context for all tests of a program, on the device of device.h with one thread. */
#ifndef HELPER_CTX_H
#define HELPER_CTX_H

#include "helper/device.h"

extern fv_ctx *ctx; /* it records */

/* For cmocka: set-up and tear-down of a group, and before each test. */
int open_ctx(void **state);
int close_ctx(void **state);
int reset_ctx(void **state);

#endif
