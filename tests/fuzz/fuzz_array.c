/* fuzz_array.c - libFuzzer target: any bytes as a CSV or NumPy file; what is read is written and
 * read again.
 *
 * From the root of the repository:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc \
 *       -Itests -o fuzz_array tests/fuzz/fuzz_array.c tests/helper/memfs.c \
 *       src/base/[a-z]*.c src/base/json/[a-z]*.c \
 *       src/store/{number,shape,path,array,csv,npy,safetensors/{plan,shard,open,index}}.c -lm
 *   ./fuzz_array -max_len=1024 corpus tests/golden/store */
#include <stdlib.h>
#include <string.h>

#include "fovea/array.h"
#include "helper/memfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(fv_array *a, const fv_env *env, const char *name)
{
    fv_array b;
    int64_t n = a->data ? 1 : 0;
    for (int i = 0; a->data && i < a->shape.n; i++) n *= a->shape.d[i];
    if (fv_array_save(a, env, name, NULL)) return; /* three axes in a .csv, say */
    if (fv_array_open(&b, env, name, (fv_array_opt){.nonfinite = true}, NULL)) abort();
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a->data[i], &b.data[i], sizeof(float)) &&
            (a->data[i] == a->data[i] || b.data[i] == b.data[i]))
            abort();
    fv_array_close(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memfs fs;
    fv_mem_counter mem;
    fv_array a;
    fv_err e = {0};
    memfs_init(&fs);
    fv_mem_counter_init(&mem);
    memfs_put(&fs, "x", data, size);
    fv_env env = {.io = &fs.io, .mem = &mem.mem};
    fv_status st = fv_array_open(&a, &env, "x", (fv_array_opt){.nonfinite = true}, &e);
    if (st && !e.text[0]) abort();
    if (mem.peak > 4 * size + 64) abort(); /* a byte may become a float */
    if (!st) {
        round_trip(&a, &env, "y.npy");
        round_trip(&a, &env, "y.csv");
    }
    fv_array_close(&a);
    if (mem.live || fs.maps || fs.opened) abort();
    memfs_free(&fs);
    return 0;
}
