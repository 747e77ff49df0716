/* inputs.c - inputs.json of a run: hashes of the tokenizer and of the data it began with.
 *
 * A resumed run has the bits of one that was never stopped only if it reads the same things.  The
 * recipe's keys are compared by run.c; these are the files they name.  Whole files are hashed, as
 * the sizes of examples alone would let a word be exchanged for another.  Data that is no regular
 * file (a folder of images, a pipe) is not looked at.  A run without inputs.json is of an earlier
 * version: it goes on. */
#include <stdio.h>

#include "fovea/author/config.h"
#include "store/checkpoint.h"
#include "train/recipe/recipe.h"

enum { TOKENIZER, TRAIN, VALID, KINDS };
static const char *const names[KINDS] = {"tokenizer", "train", "valid"};

/* Of files beyond MOST the size and both ends. */
#define MOST ((size_t)1 << 30)
#define END ((size_t)64 << 20)

typedef struct inputs {
    char path[KINDS][FV_PATH]; /* for messages; the first file of each */
    char hash[KINDS][24];      /* hexadecimal; "": nothing to compare */
} inputs;

static fv_status add_file(uint64_t *hash, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    fv_path_kind kind;
    fv_status st = fv__path_kind(&kind, env, path, e);
    if (st || kind != FV_PATH_FILE) return st;
    st = fv__file_open(&f, env, path, e);
    if (st) return st;
    size_t n = f.size > MOST ? END : f.size;
    uint64_t of[4] = {*hash, f.size, fv__ckpt_hash(f.data, n),
                      fv__ckpt_hash(f.data + (f.size - n), n)};
    *hash = fv__ckpt_hash(of, sizeof of);
    fv__file_close(&f);
    return FV_OK;
}

/* Up to two files of one kind; empty names are none. */
static fv_status add_files(inputs *in, int kind, const fv_env *env, const char *dir,
                           const char *first, const char *second, fv_err *e)
{
    char path[FV_PATH];
    uint64_t hash = 0;
    fv_status st = FV_OK;
    fv__recipe_path(in->path[kind], dir, first);
    if (*first) st = add_file(&hash, env, in->path[kind], e);
    fv__recipe_path(path, dir, second);
    if (!st && *second) st = add_file(&hash, env, path, e);
    if (!st && hash)
        snprintf(in->hash[kind], sizeof in->hash[kind], "%016llx", (unsigned long long)hash);
    return st;
}

static fv_status look(inputs *in, const fv_recipe *r, const fv_env *env, const char *run, fv_err *e)
{
    const fv_data_opt *d = &r->data;
    fv_status st = add_files(in, TOKENIZER, env, run, "tokenizer.json", "preprocessor_config.json",
                             e);
    if (!st) st = add_files(in, TRAIN, env, d->dir, d->train, d->train_target, e);
    return st ? st : add_files(in, VALID, env, d->dir, d->valid, d->valid_target, e);
}

fv_status fv__inputs_write(const fv_recipe *r, const fv_env *env, const char *run, fv_err *e)
{
    char path[FV_PATH], text[200];
    inputs in = {0};
    fv_status st = look(&in, r, env, run, e);
    if (st) return st;
    fv__recipe_path(path, run, "inputs.json");
    int n = snprintf(text, sizeof text, "{\"%s\": \"%s\", \"%s\": \"%s\", \"%s\": \"%s\"}\n",
                     names[TOKENIZER], in.hash[TOKENIZER], names[TRAIN], in.hash[TRAIN],
                     names[VALID], in.hash[VALID]);
    return fv__file_write(env, path, text, (size_t)n, e);
}

fv_status fv__inputs_compare(const fv_recipe *r, const fv_env *env, const char *run, fv_err *e)
{
    char path[FV_PATH];
    inputs in = {0};
    fv_json *j;
    fv__recipe_path(path, run, "inputs.json");
    if (!fv__file_exists(env, path)) return FV_OK;
    fv_status st = look(&in, r, env, run, e);
    if (!st) st = fv_json_open(&j, env, path, e);
    if (st) return st;
    for (int i = 0; i < KINDS && !st; i++) {
        const char *was = fv_json_text(j, names[i]);
        if (was && *was && strcmp(was, in.hash[i]))
            st = fv_fail(e, FV_ESTATE,
                         "%s: has changed since the run began; put the old file back to resume it, "
                         "or begin another run with [model] from = %s/model",
                         in.path[i], run);
    }
    fv_json_close(j);
    return st;
}
