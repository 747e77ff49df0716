/* ctx.c - see ctx.h. */
#include "helper/ctx.h"

fv_ctx *ctx;
static fv_device *dev;

int open_ctx(void **state)
{
    (void)state;
    return fv_device_open(&dev, test_device(), (fv_device_opt){.threads = 1}, NULL) ||
           fv_ctx_new(&ctx, dev, (fv_ctx_opt){.record = true}, NULL);
}

int close_ctx(void **state)
{
    (void)state;
    fv_ctx_free(ctx);
    fv_device_close(dev);
    return 0;
}

int reset_ctx(void **state)
{
    (void)state;
    fv_ctx_reset(ctx, 0);
    return 0;
}
