/* preprocessor.c - the file of a processor of images or sounds, and its tokenizer's, read and
 * written. */
#include "media/preprocessor.h"

#include <stdio.h>

extern const fv_processor_type fv__processor_tokenizer;

/* Newer directories have one processor_config.json for all parts of a processor, each below its own
 * key; *shared says so, and saving keeps the form. */
fv_status fv__preprocessor_open(fv_json **config, bool *shared, char path[FV_PATH],
                                const fv_env *env, const char *dir, fv_err *e)
{
    snprintf(path, FV_PATH, "%s/preprocessor_config.json", dir);
    if (!fv__file_exists(env, path)) {
        char other[FV_PATH];
        snprintf(other, sizeof other, "%s/processor_config.json", dir);
        *shared = fv__file_exists(env, other);
        if (*shared) memcpy(path, other, FV_PATH);
    }
    return fv_json_open(config, env, path, e);
}

/* A model of images may also read texts (CLIP) or write them (captions): its tokenizer is then a
 * part of the processor. None is no error. */
fv_status fv__preprocessor_tok(fv_processor **tok, const fv_env *env, const char *dir, fv_err *e)
{
    if (!fv__processor_tokenizer.recognise(env, dir, NULL)) return FV_OK;
    return fv_processor_open(tok, env, "tokenizer", dir, e);
}

/* tok is taken over, also by failure: a caller that has made a tokenizer need not know which step
 * failed. */
fv_status fv__preprocessor_new(fv_processor **out, const fv_env *env, const fv_processor_type *type,
                               fv_processor *tok, fv_err *e)
{
    fv_status st = fv_processor_new(out, env, type, e);
    if (st) fv_processor_close(tok);
    return st;
}

fv_status fv__preprocessor_save(const fv_json *config, bool shared, const fv_processor *tok,
                                const char *dir, fv_err *e)
{
    char path[FV_PATH];
    snprintf(path, sizeof path, "%s/%s", dir,
             shared ? "processor_config.json" : "preprocessor_config.json");
    fv_status st = fv_json_save(config, path, e);
    return st || !tok ? st : fv_processor_save(tok, dir, e);
}

fv_status fv__preprocessor_write(const fv_env *env, const char *path, fv_buf *b, fv__jtree *tree,
                                 fv_err *e)
{
    fv__buf_str(b, "\n");
    fv__jtree_free(tree);
    fv_status st = b->failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                             : fv__file_write(env, path, b->data, b->len, e);
    fv__buf_free(b);
    return st;
}
