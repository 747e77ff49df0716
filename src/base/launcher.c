/* launcher.c - see launcher.h. */
#include "launcher.h"

#include <stddef.h>
#include <stdlib.h>

int fv__env_int(const char *name)
{
    const char *s = getenv(name);
    char *end;
    if (!s || !*s) return -1;
    long x = strtol(s, &end, 10);
    return *end || x < 0 || x > 1 << 24 ? -1 : (int)x;
}

int fv__slurm_entry(const char *list, int node)
{
    while (list && *list && node >= 0) {
        char *end;
        long n = strtol(list, &end, 10), times = 1;
        if (end == list || n < 0 || n > 1 << 24) return -1;
        if (end[0] == '(' && end[1] == 'x') {
            times = strtol(end + 2, &end, 10);
            if (*end++ != ')' || times < 1) return -1;
        }
        if (node < times) return (int)n;
        node -= (int)times;
        if (*end && *end != ',') return -1;
        list = *end ? end + 1 : end;
    }
    return -1;
}

/* Slurm says for each node how many tasks of the step it has. */
static int local_size(const char *name)
{
    int n = fv__env_int(name), node = fv__env_int("SLURM_NODEID");
    const char *list = getenv(name);
    return n < 0 && list && node >= 0 ? fv__slurm_entry(list, node) : n;
}

/* What launchers set.  The batch script of a Slurm job has SLURM_NTASKS but is no task of a step,
 * so the size of the step counts. */
fv__launch fv__launch_of_env(void)
{
    static const struct {
        const char *by, *rank, *size, *local_rank, *local_size;
        bool mpi;
    } known[] = {
        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", true},
        {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
        {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
         "SLURM_STEP_TASKS_PER_NODE", true},
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int rank = fv__env_int(known[i].rank), size = fv__env_int(known[i].size);
        int local = fv__env_int(known[i].local_rank), locals = local_size(known[i].local_size);
        if (rank < 0 || size < 1 || rank >= size) continue;
        return (fv__launch){.rank = rank,
                            .size = size,
                            .local_rank = local < 0 ? 0 : local,
                            .local_size = locals < 1 ? 1 : locals,
                            .mpi = known[i].mpi,
                            .by = known[i].by};
    }
    return (fv__launch){0};
}
