/* cores.c - how many cores this process may use: by affinity, by the CPU quota of its cgroups, and
 * by how many ranks share the machine.
 *
 * A container with a quota of two cores on a machine of 64 sees 64 in its affinity.  64 threads
 * would use up in 3 ms what it is given for 100, and then all be stopped until the period is
 * over. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher.h"
#include "thread_pool.h"

/* The text of a small file; false if it cannot be read. */
static bool read_text(char *out, size_t size, const fv_env *env, const char *path)
{
    fv_file f;
    if (!fv__file_exists(env, path) || fv__file_read(&f, env, path, size - 1, NULL)) return false;
    memcpy(out, f.data, f.size);
    out[f.size] = 0;
    fv__file_close(&f);
    return true;
}

/* Hundredths of cores that the group in `dir` may use; 2^40 where it has no bound. */
static long long quota_of(const fv_env *env, const char *dir, bool v2)
{
    char path[FV_PATH + 64], text[64], period[64];
    const long long none = 1LL << 40;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_text(text, sizeof text, env, path)) return none;
    char *end;
    long long quota = strtoll(text, &end, 10), each = strtoll(end, NULL, 10);
    if (!v2) {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        each = read_text(period, sizeof period, env, path) ? strtoll(period, NULL, 10) : 0;
    }
    return end == text || quota <= 0 || each <= 0 ? none : quota * 100 / each;
}

/* The least of a group and those above it.  A group whose path is that of the host, as in a
 * container with its own view of /sys, is not there: the root then is the container's. */
static long long least_quota(const fv_env *env, const char *root, const char *group, bool v2)
{
    char dir[FV_PATH];
    long long least = quota_of(env, root, v2);
    int n = snprintf(dir, sizeof dir, "%s%s", root, group);
    for (char *slash; n < (int)sizeof dir && (slash = strrchr(dir, '/')) &&
                      (size_t)(slash - dir) >= strlen(root);
         *slash = 0) {
        long long q = quota_of(env, dir, v2);
        if (q < least) least = q;
    }
    return least;
}

/* /proc/self/cgroup has a line for each hierarchy: "0::/group" for v2, "4:cpu,cpuacct:/group" for
 * the one of v1 that bounds the CPU. */
static long long cgroup_quota(const fv_env *env)
{
    char text[4096], *next;
    long long least = 1LL << 40;
    if (!read_text(text, sizeof text, env, "/proc/self/cgroup")) return least;
    for (char *line = text; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        bool v2 = !strcmp(names, ":"), v1 = !strncmp(names, ":cpu,", 5) || !strcmp(names, ":cpu");
        if (!v1 && !v2) continue;
        long long q = least_quota(env, v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu", group, v2);
        if (q < least) least = q;
    }
    return least;
}

int fv__cores(const fv_env *env)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    long long quota = (cgroup_quota(env) + 50) / 100; /* 1.5 cores are used by two threads */
    if (quota < n) n = (int)quota;
    return n > 0 ? n : 1;
}

/* Of n cores, those of one of the machine's ranks: the first n % ranks take one more.  More ranks
 * than cores take one each. */
int fv__cores_share(int n, int rank, int ranks)
{
    int share = ranks > 1 ? n / ranks + (rank < n % ranks) : n;
    return share > 0 ? share : 1;
}

/* A rank that is bound to cores has its share of the machine, or less, in its affinity; one that is
 * bound to a socket, or not at all, sees the cores of other ranks too. */
int fv__cores_of_rank(const fv_env *env)
{
    fv__launch launch = fv__launch_of_env();
    int mine = fv__cores(env), online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    long long quota = (cgroup_quota(env) + 50) / 100;
    if (quota < online) online = (int)quota;
    int share = fv__cores_share(online, launch.local_rank, launch.local_size);
    return share < mine ? share : mine;
}
