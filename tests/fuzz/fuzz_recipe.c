/* fuzz_recipe.c - libFuzzer target: any bytes as a recipe; make fuzz-recipe.
 *
 * What is accepted is written out, read again and written the same. */
#include <stdlib.h>
#include <string.h>

#include "fovea/author/train.h"
#include "fovea/recipe.h"
#include "helper/memfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_again(memfs *fs, const fv_env *env, const char *text)
{
    fv_recipe *r = NULL;
    fv_err e = {0};
    memfs_put(fs, "again.ini", text, strlen(text));
    if (fv_recipe_open(&r, env, "again.ini", &e)) abort();
    const char *second = fv_recipe_text(r, &e);
    if (!second || strcmp(second, text)) abort();
    fv_recipe_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memfs fs;
    fv_mem_counter mem;
    fv_recipe *r = NULL;
    fv_err e = {0};
    memfs_init(&fs);
    memfs_put(&fs, "r.ini", data, size);
    fv_mem_counter_init(&mem);
    fv_env env = {.io = &fs.io, .mem = &mem.mem};
    fv_status st = fv_recipe_open(&r, &env, "r.ini", &e);
    if (!st) st = fv_recipe_check(r, &e);
    if (st && !e.text[0]) abort();
    if (!st) read_again(&fs, &env, fv_recipe_text(r, &e));
    fv_recipe_close(r);
    memfs_free(&fs);
    if (mem.live) abort();
    return 0;
}
