/* none.c - the processor of data that are a model's inputs already: it has no files. */
#include "fovea/author/processor.h"

typedef struct none {
    bool open;
} none;

/* Chosen where no other kind is. */
static bool recognise(const fv_env *env, const char *path, const fv_json *preprocessor)
{
    (void)env, (void)path, (void)preprocessor;
    return false;
}

static fv_status open_none(void *self, const fv_env *env, const char *path, fv_err *e)
{
    (void)env, (void)path, (void)e;
    ((none *)self)->open = true;
    return FV_OK;
}

static fv_status save(const void *self, const char *dir, fv_err *e)
{
    (void)self, (void)dir, (void)e;
    return FV_OK;
}

static void close_none(void *self) { ((none *)self)->open = false; }

const fv_processor_type fv__processor_none = {
    .name = "none",
    .size = sizeof(none),
    .recognise = recognise,
    .open = open_none,
    .save = save,
    .close = close_none,
};
