/* device.c - opening a device by name, and what can be asked of one. */
#include "backend/backends.h"
#include "core.h"
#include "fovea/info.h"

/* "cuda" is the first GPU, "cuda:1" the second.  The environment (allocator, file calls) is
 * copied, so the caller's need not outlive the call. */
fv_status fv_device_open(fv_device **out, const char *name, fv_device_opt opt, fv_err *e)
{
    *out = NULL;
    if (!name) name = "cpu";
    if (opt.threads < 0 || opt.threads > 4096)
        return fv_fail(e, FV_EARG, "device %s: %d threads, expected 0 to 4096", name, opt.threads);
    bool cuda = !strncmp(name, "cuda", 4) && (!name[4] || name[4] == ':');
    if (!cuda && strcmp(name, "cpu"))
        return fv_fail(e, FV_EDEVICE, "device %s: unknown, expected cpu or cuda", name);

    fv_device *d = fv__alloc(opt.env, sizeof *d);
    if (!d) return fv_fail(e, FV_ENOMEM, "device %s: out of memory", name);
    if (opt.env) d->env = *opt.env;
    fv_status st = cuda ? fv__cuda_open(d, name, e) : fv__cpu_open(d, opt, e);
    if (st) {
        fv__free(opt.env, d, sizeof *d);
        return st;
    }
    *out = d;
    return FV_OK;
}

void fv_device_close(fv_device *d)
{
    if (!d) return;
    fv_env env = d->env;
    d->backend->close(d);
    fv__free(&env, d, sizeof *d);
}

bool fv__device_is_host(const fv_device *d) { return !strcmp(d->backend->name, "cpu"); }

int fv_cuda_devices(char (*lines)[128], int most, fv_err *e)
{
    return fv__cuda_list(lines, most, e);
}

const char *fv_device_name(const fv_device *d) { return d->backend->name; }
const char *fv_device_level(const fv_device *d) { return d->level; }
int fv_device_threads(const fv_device *d) { return d->threads; }
int fv_device_choices(const fv_device *d, char (*lines)[160], int max)
{
    return d->backend->choices ? d->backend->choices(d, lines, max) : 0;
}
const fv_env *fv_device_env(const fv_device *d) { return &d->env; }
