/* images.c - images that tests make for themselves. */
#include "images.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device.h"
#include "fovea/author/processor.h"
#include "fovea/fovea.h"

void put_noise(int side, const char *path, int level, unsigned seed)
{
    fv_image im = {0};
    fv_err e;
    check(fv_image_new(&im, NULL, side, side, 3, &e), &e);
    for (int i = 0; i < side * side * 3; i++)
        im.data[i] = (uint8_t)(level + (int)((seed += 0x9E3779B9u) >> 27));
    check(fv_image_save(&im, path, &e), &e);
    fv_image_free(&im);
}
