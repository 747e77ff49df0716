/* fuzz_config.c - libFuzzer target: any bytes as config.json, or as the index of a sharded model.
 *
 * From the root of the repository:
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=gnu17 -D_GNU_SOURCE -Iinclude -Isrc \
 *       -Itests -o fuzz_config tests/fuzz/fuzz_config.c tests/helper/memfs.c \
 *       src/base/[a-z]*.c src/base/json/[a-z]*.c \
 *       src/store/{number,shape,path,array,csv,npy,json,fields,keys}.c \
 *       src/store/safetensors/{plan,shard,open,index}.c \
 *       -lm
 *   ./fuzz_config -max_len=1024 corpus tests/golden/store/sharded */
#include <stdlib.h>
#include <string.h>

#include "fovea/store.h"
#include "fovea/author/config.h"
#include "helper/memfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct net {
    int n_layer;
    float dropout;
    bool tied;
    char name[8];
    int act;
} net;

static const char *const acts[] = {"relu", "gelu", NULL};
static const fv_field table[] = {
    FV_INT(net, n_layer, 1, 12, 96, ""), FV_FLOAT(net, dropout, 0, 0.1f, 1, ""),
    FV_BOOL(net, tied, true, ""),        FV_TEXT(net, name, "base", ""),
    FV_CHOICE(net, act, 1, acts, ""),    {0},
};

static void as_config(const fv_env *env)
{
    static const fv_key_rule *const rules[] = {fv_keys_common, NULL};
    fv_json *j;
    net n;
    fv_err e = {0};
    fv_status st = fv_json_open(&j, env, "m/x", &e);
    if (st && !e.text[0]) abort();
    if (st) return;
    if (fv_fields_read(&n, table, j, "", rules, &e) == FV_OK &&
        (n.n_layer < 1 || n.n_layer > 96 || n.act < 0 || n.act > 1))
        abort();
    if (fv_fields_write(&n, table, j, NULL) || fv_json_save(j, "m/y", NULL)) abort();
    fv_json_close(j);
    if (fv_json_open(&j, env, "m/y", NULL)) abort();
    fv_json_close(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char shard[] = "\x3C\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
                                "offsets\":[0,1]}}          1";
    memfs fs;
    fv_st *s;
    fv_err e = {0};
    memfs_init(&fs);
    memfs_put(&fs, "m/x", data, size);
    memfs_put(&fs, "m/model.safetensors.index.json", data, size);
    memfs_put(&fs, "m/1.safetensors", shard, 8 + 0x3C + 1);
    fv_env env = {.io = &fs.io};
    as_config(&env);
    fv_status st = fv_st_open(&s, &env, "m", &e);
    if (st && !e.text[0]) abort();
    fv_st_close(s);
    if (fs.maps || fs.opened) abort();
    memfs_free(&fs);
    return 0;
}
