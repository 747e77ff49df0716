/* files.c - spoiled files by the ten thousand: each is opened as a command would open it.
 *
 *     make fuzz CASES=100000                   build/tests/fuzz_files CASES [FIRST]
 *     make fuzz-images CASES=100000            only images, archives and annotations (--images)
 *     build/tests/fuzz_files --one NUMBER      the same case again, with what was said,
 *                                              and its file in fuzz-case
 *
 * The seeds are the small models, tokenizers, recipes and data of this repository.  A case is a
 * directory in memory in which one file was spoiled (mutate.c), which one and how being a function
 * of the case's number.  It must be opened and used, or be refused by one printable sentence; and
 * neither may crash, take a second of computing, keep memory, or ask for a piece of more than twice
 * the directory and MARGIN.  Cases run in a child process, so that one that crashes ends only
 * itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "folder.h"
#include "memory.h"

#define MARGIN (8u << 20) /* blocks of arenas are a megabyte, and sinusoids are in no file */
#define MOST_SECONDS 1.0
#define BATCH 500

/* ---- one case ---- */

typedef struct outcome {
    bool refused;
    char fault[160]; /* "" where all is well */
    char said[512];
    memory took;
    double seconds;
} outcome;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool printable(const char *s)
{
    if (!*s) return false;
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127) return false;
    return true;
}

static void run_case(folder *f, outcome *out)
{
    fv_io io = folder_io(f);
    fv_env env = {.io = &io};
    fv_device *d;
    fv_err e = {0};
    size_t total = folder_size(f);
    double start = cpu_seconds();
    if (fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, NULL)) exit(3);
    memory_watch((size_t)1 << 31);
    fv_status st = f->s->use(d, &env, &e);
    out->took = memory_marked();
    size_t kept = memory_seen().live;
    fv_device_close(d);
    out->seconds = cpu_seconds() - start;
    out->refused = st != FV_OK;
    snprintf(out->said, sizeof out->said, "%s", st ? e.text : "opened");
    if (st && !printable(e.text)) snprintf(out->fault, sizeof out->fault, "no printable sentence");
    if (out->took.largest > 2 * total + MARGIN)
        snprintf(out->fault, sizeof out->fault,
                 "asked for %zu bytes at once, the directory has %zu", out->took.largest, total);
    if (out->seconds > MOST_SECONDS)
        snprintf(out->fault, sizeof out->fault, "took %.1f s", out->seconds);
    if (f->opened) snprintf(out->fault, sizeof out->fault, "left a file open");
    if (kept) snprintf(out->fault, sizeof out->fault, "kept %zu bytes", kept);
}

/* Which seed, file and change a number stands for. */
static bytes prepare(uint64_t number, const seed **s, int *file)
{
    dice d = {number * 0x2545F4914F6CDD1Du + 1};
    *s = seeds_pick(&d);
    *file = (int)below(&d, (size_t)(*s)->n);
    const seed *other = seeds_pick(&d);
    return spoil(&d, (*s)->file[*file], (*s)->content[*file],
                 other->content[below(&d, (size_t)other->n)]);
}

static void do_case(uint64_t number, outcome *out)
{
    folder f = {0};
    *out = (outcome){0};
    f.instead = prepare(number, &f.s, &f.spoiled);
    run_case(&f, out);
    if (!strncmp(out->fault, "kept", 4)) { /* what libraries keep, they keep once */
        *out = (outcome){0};
        run_case(&f, out);
    }
    free(f.instead.s);
}

/* ---- many ---- */

typedef struct shared {
    uint64_t at; /* the case under way */
    uint64_t refused, faults;
    double slowest;
} shared;

static void describe(uint64_t number, const char *what)
{
    const seed *s;
    int file;
    bytes b = prepare(number, &s, &file);
    free(b.s);
    printf("case %llu: %s of %s: %s\n", (unsigned long long)number, s->file[file], s->name, what);
    fflush(stdout);
}

static void run_batch(shared *sh, uint64_t from, uint64_t to)
{
    for (sh->at = from; sh->at < to; sh->at++) {
        outcome o;
        setrlimit(RLIMIT_CPU,
                  &(struct rlimit){(rlim_t)cpu_seconds() + 10, (rlim_t)cpu_seconds() + 20});
        do_case(sh->at, &o);
        sh->refused += o.refused;
        sh->slowest = o.seconds > sh->slowest ? o.seconds : sh->slowest;
        if (*o.fault) {
            sh->faults++;
            describe(sh->at, o.fault);
        }
    }
}

static int run_all(uint64_t first, uint64_t cases)
{
    shared *sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED) return 3;
    for (uint64_t at = first; at < first + cases;) {
        uint64_t to = at + BATCH < first + cases ? at + BATCH : first + cases;
        pid_t child = fork();
        if (child < 0) return 3;
        if (!child) {
            run_batch(sh, at, to);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        at = to;
        if (WIFEXITED(status) && !WEXITSTATUS(status)) continue;
        char what[64];
        snprintf(what, sizeof what,
                 WIFSIGNALED(status) ? "ended by signal %d" : "ended with exit %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        describe(sh->at, what);
        sh->faults++;
        at = sh->at + 1;
    }
    printf(
        "%llu cases of %d seeds: %llu refused, %llu opened; %llu faults; the slowest took %.3f s\n",
        (unsigned long long)cases, seeds_count(), (unsigned long long)sh->refused,
        (unsigned long long)(cases - sh->refused), (unsigned long long)sh->faults, sh->slowest);
    return sh->faults ? 1 : 0;
}

static int run_one(uint64_t number)
{
    const seed *s;
    int file;
    outcome o;
    bytes b = prepare(number, &s, &file);
    FILE *f = fopen("fuzz-case", "wb");
    if (f) fwrite(b.s, 1, b.n, f), fclose(f);
    free(b.s);
    do_case(number, &o);
    printf("%s of %s: %s\n%s; %.3f s, at most %zu bytes, %zu at once\n", s->file[file], s->name,
           o.said, *o.fault ? o.fault : "fine", o.seconds, o.took.peak, o.took.largest);
    return *o.fault ? 1 : 0;
}

int main(int argc, char **argv)
{
    seeds_collect();
    if (argc > 1 && !strcmp(argv[1], "--images")) {
        seeds_images_only();
        argc--, argv++;
    }
    if (argc == 3 && !strcmp(argv[1], "--one")) return run_one(strtoull(argv[2], NULL, 10));
    return run_all(argc > 2 ? strtoull(argv[2], NULL, 10) : 0,
                   argc > 1 ? strtoull(argv[1], NULL, 10) : 1000);
}
