/* preprocessor.c - the file of a processor of images or sounds, and its tokenizer's, written. */
#include "media/preprocessor.h"

#include <stdio.h>

#include "base/base.h"

fv_status fv__preprocessor_save(const fv_json *config, bool shared, const fv_processor *tok,
                                const char *dir, fv_err *e)
{
    char path[FV_PATH];
    snprintf(path, sizeof path, "%s/%s", dir,
             shared ? "processor_config.json" : "preprocessor_config.json");
    fv_status st = fv_json_save(config, path, e);
    return st || !tok ? st : fv_processor_save(tok, dir, e);
}
