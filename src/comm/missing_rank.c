/* missing_rank.c - see missing_rank.h.
 *
 * Before ranks have joined there are no heartbeats, and MPI_Init says nothing.  Launchers tell each
 * process which rank of which job it is (PMIX_NAMESPACE and PMIX_RANK: mpirun and srun
 * --mpi=pmix), and /proc shows that of every process of this user, with its state: a rank that
 * SIGSTOP or a debugger holds has the state T.  A rank may be several processes (a shell, and what
 * it started), and is stopped when all of them are, or the newest.  Files or sockets by which ranks
 * announce themselves were the alternative; they would not tell one that is late from one that is
 * stopped, nor be seen from another machine. */
#include "comm/missing_rank.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 4096 }; /* ranks of a machine */

typedef struct looking {
    const fv_env *env;
    const char *job;
    int *newest;   /* of each rank of the job, the newest process; 0: none is on this machine */
    bool *stopped; /* and its state */
    int size;
} looking;

static bool read_proc(fv_file *f, const looking *l, const char *pid, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%.200s/%s", pid, name);
    return !fv__file_read(f, l->env, path, 1 << 20, NULL);
}

/* Whether an environ, where each variable ends in NUL, sets this one so; value NULL: to anything.
 * *at is what it sets. */
static bool has(const fv_file *f, const char *name, const char *value, const char **at)
{
    size_t len = strlen(name);
    const char *all = f->data, *end = all + f->size;
    for (const char *s = all, *next; s < end; s = next) {
        const char *nul = memchr(s, 0, (size_t)(end - s));
        if (!nul) return false;
        next = nul + 1;
        if (strncmp(s, name, len) || s[len] != '=') continue;
        *at = s + len + 1;
        return !value || !strcmp(*at, value);
    }
    return false;
}

/* The letter behind the name in brackets, which may hold anything. */
static char state_of(const looking *l, const char *pid)
{
    fv_file f;
    if (!read_proc(&f, l, pid, "stat")) return '?';
    const char *text = f.data, *end = memrchr(text, ')', f.size);
    char state = end && end + 2 < text + f.size ? end[2] : '?';
    fv__file_close(&f);
    return state;
}

static void look(void *user, const char *pid)
{
    looking *l = user;
    const char *at;
    fv_file f;
    if (!isdigit((unsigned char)pid[0]) || !read_proc(&f, l, pid, "environ")) return;
    bool ours = has(&f, "PMIX_NAMESPACE", l->job, &at) && has(&f, "PMIX_RANK", NULL, &at);
    int r = ours ? atoi(at) : -1, number = atoi(pid);
    fv__file_close(&f);
    if (r < 0 || r >= l->size || number < l->newest[r]) return;
    char state = state_of(l, pid);
    l->newest[r] = number;
    l->stopped[r] = state == 'T' || state == 't';
}

/* Ranks of the job that have a process here. */
static int ranks_here(const looking *l)
{
    int n = 0;
    for (int r = 0; r < l->size; r++) n += l->newest[r] > 0;
    return n;
}

bool fv__comm_missing(char *why, size_t size, const fv_env *env, const fv__launch *launch)
{
    const fv_io *io = fv__io(env);
    looking l = {.env = env, .job = getenv("PMIX_NAMESPACE"), .size = launch->size};
    size_t bytes = (size_t)l.size * (sizeof *l.newest + sizeof *l.stopped);
    snprintf(why, size, "nothing is known of the others");
    if (!l.job || l.size < 1 || l.size > MOST || !(l.newest = fv__alloc(env, bytes))) return false;
    l.stopped = (bool *)(l.newest + l.size);
    bool found = io->list && !io->list(io->self, "/proc", look, &l);
    int stopped = -1, seen = ranks_here(&l);
    for (int r = 0; found && r < l.size; r++)
        if (l.stopped[r] && stopped < 0) stopped = r;
    if (stopped >= 0)
        snprintf(why, size, "rank %d is stopped (process %d)", stopped, l.newest[stopped]);
    else if (found && seen < launch->local_size)
        snprintf(why, size, "of the %d ranks of this machine %d run", launch->local_size, seen);
    else if (found && launch->local_size < l.size)
        snprintf(why, size, "those of this machine run, so it is one of another");
    else if (found)
        snprintf(why, size, "all of them run, but one has not come to MPI");
    fv__free(env, l.newest, bytes);
    return stopped >= 0;
}
