/* mpi_library.c - finds libmpi and the names of mpi_library.h in it; connects ranks. */
#include "comm/mpi_library.h"

#if HAVE_MPI
#include <dlfcn.h>
#include <time.h>

/* dlsym gives functions as void *; C has no conversion, POSIX says the bits are the same. */
static bool find(void *handle, const char *name, void *to)
{
    void *at = dlsym(handle, name);
    memcpy(to, &at, sizeof at);
    return at;
}

/* Its plug-ins look names up in it, so it is opened for all (RTLD_GLOBAL). */
fv_status fv__mpi_library_open(fv__mpi_library *m, fv_err *e)
{
    const char *missing = NULL;
    m->handle = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    if (!m->handle) m->handle = dlopen("libmpi.so", RTLD_NOW | RTLD_GLOBAL);
    if (!m->handle)
        return fv_fail(
            e, FV_EMISSING,
            "ranks: this process is one of several, but OpenMPI cannot be opened: %.300s",
            dlerror());
#define X(f)                                                                                       \
    if (!missing && !find(m->handle, "MPI_" #f, &m->f)) missing = "MPI_" #f;
    FV_MPI_FUNCTIONS
#undef X
    const struct {
        const char *name;
        void *to;
    } objects[] = {{"ompi_mpi_comm_world", &m->world},
                   {"ompi_mpi_byte", &m->byte},
                   {"ompi_mpi_float", &m->f32},
                   {"ompi_mpi_op_sum", &m->sum},
                   {"ompi_mpi_errors_return", &m->errors_return},
                   {"ompi_mpi_info_null", &m->info_null}};
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (!missing && !find(m->handle, objects[i].name, objects[i].to)) missing = objects[i].name;
    return missing ? fv_fail(e, FV_EMISSING,
                             "ranks: libmpi has no %s; this build expects OpenMPI's", missing)
                   : FV_OK;
}

int fv__mpi_connect(const fv__mpi_library *m, MPI_Comm comm, const fv_comm *c, int tag)
{
    const struct timespec nap = {0, 1000000};
    int n = 0, rc = 0, done = 0;
    size_t bytes = 2 * (size_t)c->size * (sizeof(MPI_Request) + 1);
    MPI_Request *request = fv__alloc(&c->env, bytes);
    if (!request) return MPI_ERR_NO_MEM;
    char *byte = (char *)(request + 2 * c->size);
    for (int i = 0; i < 2 * c->size && !rc; i++) {
        int r = i % c->size;
        if (r == c->rank) continue;
        rc = i < c->size ? m->Irecv(&byte[n], 1, m->byte, r, tag, comm, &request[n])
                         : m->Isend(&byte[n], 1, m->byte, r, tag, comm, &request[n]);
        n++;
    }
    while (!rc && !done) {
        rc = m->Testall(n, request, &done, MPI_STATUSES_IGNORE);
        if (!done) nanosleep(&nap, NULL);
    }
    fv__free(&c->env, request, bytes);
    return rc;
}
#endif
