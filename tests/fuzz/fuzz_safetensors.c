/* fuzz_safetensors.c - libFuzzer target: any bytes as a safetensors file.
 *
 * From the root of the repository:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc \
 *       -o fuzz_safetensors tests/fuzz/fuzz_safetensors.c src/base/*.c src/base/json/*.c \
 *       src/store/{number,shape,path,array,csv,npy,safetensors/{plan,shard,open,index}}.c -lm
 *   ./fuzz_safetensors -max_len=4096 corpus tests/golden/store
 *
 * Beyond memory errors it looks for a plan that takes more than twice the file, and for tensors
 * outside of it. */
#include <stdlib.h>

#include "store/safetensors/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static double out[1 << 16];
    fv_mem_counter mem;
    fv_st_plan p;
    fv_err e = {0};
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_status st = fv__st_plan(&p, &env, (const char *)data, size, size, "fuzz", &e);
    if (st && !e.text[0]) abort();
    if (mem.peak > 2 * size + 64) abort();
    for (uint32_t i = 0; !st && i < p.count; i++) {
        const fv_st_entry *t = &p.entry[i];
        uint64_t bytes = fv__st_bytes(t);
        if (t->begin > size || bytes > size - t->begin ||
            fv__st_plan_find(&p, p.text + t->name) != t)
            abort();
        int64_t n = 0;
        fv_shape shape = fv__st_shape(t);
        if (!fv__shape_count(&n, &shape)) abort();
        if (!fv__kind_readable(t->kind) || n > 1 << 16) continue;
        for (int to = FV_F32; to <= FV_U8; to++)
            fv__convert(out, (fv_dtype)to, data + t->begin, t->kind, n);
    }
    fv__st_plan_free(&p);
    if (mem.live) abort();
    return 0;
}
