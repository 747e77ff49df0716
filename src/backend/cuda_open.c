/* cuda_open.c - finds and opens the CUDA backend, libfovea_cuda.so.
 *
 * Search order: $FOVEA_CUDA; the folder of the program or library that contains this code; the
 * folder it is installed to; the dynamic loader's path.  It is never closed: kernel tables point
 * into it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/backends.h"
#include "backend/cuda_host.h"
#include "base/base.h"
#include "base/launcher.h"

#define FILE_NAME "libfovea_cuda.so"

/* What the backend needs from the library is handed over as pointers: the shared object has no
 * undefined symbols of ours, so it loads beside a static or a shared libfovea alike. */
static const fv_cuda_host host = {.work = fv_stream_scratch,
                                  .fail = fv_stream_fail,
                                  .refuse = fv_fail};

/* The folder of the file that contains this function, with a trailing slash; "" if unknown. */
static void own_folder(char *out, size_t capacity)
{
    Dl_info here;
    out[0] = 0;
    if (!dladdr((const void *)&host, &here) || !here.dli_fname) return;
    const char *slash = strrchr(here.dli_fname, '/');
    if (slash && (size_t)(slash - here.dli_fname) + 2 <= capacity)
        snprintf(out, capacity, "%.*s", (int)(slash - here.dli_fname) + 1, here.dli_fname);
}

static void *open_backend(fv_err *e)
{
    const char *requested = getenv("FOVEA_CUDA");
    if (requested && *requested) {
        void *so = dlopen(requested, RTLD_NOW | RTLD_LOCAL);
        if (!so) fv_fail(e, FV_EDEVICE, "device cuda: FOVEA_CUDA: %s", dlerror());
        return so;
    }
    static const char *const search_dirs[] = {"", "../", "fovea/", "../lib/fovea/"};
    char folder[FV_PATH - 64], path[FV_PATH];
    own_folder(folder, sizeof folder);
    for (size_t i = 0; *folder && i < sizeof search_dirs / sizeof *search_dirs; i++) {
        snprintf(path, sizeof path, "%s%s" FILE_NAME, folder, search_dirs[i]);
        if (!fv__file_exists(NULL, path)) continue;
        void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!so) fv_fail(e, FV_EDEVICE, "device cuda: %s", dlerror());
        return so;
    }
    void *so = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        fv_fail(e, FV_EDEVICE,
                "device cuda: %s was not found beside fovea; this build has no CUDA backend, or "
                "FOVEA_CUDA must name it",
                FILE_NAME);
    return so;
}

/* GPUs that this process sees; 0: none, or it cannot be known. */
static int count_gpus(void)
{
    int n = fv__cuda_list(NULL, 0, NULL);
    return n > 0 ? n : 0;
}

/* The number in "cuda:3"; -1 for anything else.  "cuda" is 0, and of several ranks on a machine
 * each takes the next GPU, from the first again where ranks are more. */
static int number_of(const char *name)
{
    if (!name[4]) {
        fv__launch launch = fv__launch_of_env();
        int n = launch.local_size > 1 ? count_gpus() : 1;
        return n > 1 ? launch.local_rank % n : 0;
    }
    char *end;
    long n = strtol(name + 5, &end, 10);
    return name[5] >= '0' && name[5] <= '9' && !*end && n < 4096 ? (int)n : -1;
}

fv_status fv__cuda_open(fv_device *d, const char *name, fv_err *e)
{
    int number = number_of(name);
    if (number < 0)
        return fv_fail(e, FV_EDEVICE, "device %s: expected cuda or cuda:N, N counts from 0", name);
    void *so = open_backend(e);
    if (!so) return FV_EDEVICE;
    fv_cuda_open_fn *open;
    *(void **)&open = dlsym(so, FV_CUDA_OPEN);
    if (!open) return fv_fail(e, FV_EDEVICE, "device cuda: " FILE_NAME " is not fovea's");
    return open(d, &host, FV_CUDA_ABI, number, e);
}

int fv__cuda_list(char (*lines)[128], int most, fv_err *e)
{
    void *so = open_backend(e);
    fv_cuda_list_fn *list = NULL;
    if (so) *(void **)&list = dlsym(so, FV_CUDA_LIST);
    if (so && !list) fv_fail(e, FV_EDEVICE, "device cuda: " FILE_NAME " is not fovea's");
    return list ? list(&host, FV_CUDA_ABI, lines, most, e) : -1;
}

void *fv__cuda_stream(fv_stream *s)
{
    void *so = open_backend(NULL);
    fv_cuda_stream_fn *stream = NULL;
    if (so) *(void **)&stream = dlsym(so, FV_CUDA_STREAM);
    return stream ? stream(s) : NULL;
}
