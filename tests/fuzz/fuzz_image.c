/* fuzz_image.c - libFuzzer target: any bytes as PNG or JPEG; make fuzz-image.
 *
 * Beyond memory errors: a refusal has a sentence, nothing is leaked, and what was decoded can be
 * resized.  Only our side is instrumented: libpng and libjpeg-turbo are the system's.  Memory is
 * limited, so that runs are not spent on clearing pages for large empty images. */
#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fv_mem_counter mem;
    fv_err e = {0};
    fv_image image = {0}, small = {0};
    fv_mem_counter_init(&mem);
    mem.limit = 48 << 10;
    fv_env env = {.mem = &mem.mem};
    fv_status st = fv_image_decode(&image, &env, data, size, "x", &e);
    if (st && !e.text[0]) abort();
    if (!st) {
        if (image.width < 1 || image.height < 1 || image.channels < 1) abort();
        st = fv_image_convert(&image, 3, &e);
        if (!st) st = fv_image_resize(&small, &image, 4, 4, FV_BILINEAR, (fv_window){0}, &e);
        if (st && st != FV_ENOMEM) abort();
    }
    fv_image_free(&image);
    fv_image_free(&small);
    if (mem.live) abort();
    return 0;
}
