/* library.c - loads cairo and Pango and fills the table of their functions. */
#ifdef HAVE_CAIRO
#define FV_DRAW_NAMES
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define PANGO "libpangocairo-1.0.so.0" /* which brings Pango, cairo and GLib along */

struct fv__draw fv__draw;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char why[200]; /* empty: everything is there */

static void load(void)
{
    void *library = dlopen(PANGO, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *error = dlerror();
        snprintf(why, sizeof why, "%s", error ? error : PANGO);
        return;
    }
    /* a pointer to data and one to a function have the same bits wherever dlsym exists */
#define X(name)                                                                                    \
    *(void **)(void *)&fv__draw.name##_ = dlsym(library, #name);                                   \
    if (!fv__draw.name##_) snprintf(why, sizeof why, "%s has no " #name, PANGO);
    FV_DRAW_FUNCTIONS
#undef X
}

fv_status fv__draw_library(fv_err *e)
{
    pthread_once(&once, load);
    if (!*why) return FV_OK;
    return fv_fail(e, FV_EMISSING, "pictures need cairo and Pango: %s; .html, .json and .csv work",
                   why);
}
#else
typedef int fv__no_pictures; /* a file may not be empty */
#endif
