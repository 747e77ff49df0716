/* train.c - fovea train: follows a recipe, shows how it goes, and can be stopped and resumed.
 *
 * The command parses and shows; recipes, runs, checkpoints and resuming are the library's
 * (fovea/recipe.h). Progress is a bar on a terminal and one line for each report elsewhere, so
 * that logs stay readable. Nothing of it is on standard output, which has the result alone. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/recipe.h"

typedef struct values {
    const char *dir, *device, *keys_of, *trace;
    cli_list set;
    int64_t threads;
    bool resume, dry_run, help_keys, quiet;
} values;

static const values defaults = {.device = "cpu"};

static const cli_option options[] = {
    CLI_DIR(values, dir, 'o', "output", "DIR",
            "the run: checkpoints, log, curve and in the end the model"),
    CLI_LIST(values, set, 0, "set", "SECTION.KEY=VALUE",
             "change a key of the recipe; may be given again and again"),
    CLI_FLAG(values, resume, 'r', "resume", "go on from the newest checkpoint in the directory"),
    CLI_INT(values, threads, 't', "threads", "N", 0, 1024,
            "threads; 0: all cores this process may use"),
    CLI_TEXT(values, device, 'd', "device", "NAME", "cpu, cuda or cuda:N"),
    CLI_FLAG(values, dry_run, 0, "dry-run",
             "read everything, try the largest batch and print the memory a run needs; train and "
             "write nothing"),
    CLI_FLAG(values, help_keys, 0, "help-keys",
             "print every key with its range, default and meaning"),
    CLI_TEXT(values, keys_of, 0, "family", "NAME",
             "with --help-keys: the keys of this family's [model], too"),
    CLI_TEXT(values, trace, 0, "trace", "FILE",
             "write what each rank did when, for ui.perfetto.dev"),
    CLI_FLAG(values, quiet, 'q', "quiet", "no progress on standard error"),
    {0},
};

static const cli_example examples[] = {
    {"fovea train recipes/multi30k-cpu.ini -o runs/m30k --set data.dir=multi30k/tok",
     "a translation model"},
    {"fovea train recipes/multi30k-cpu.ini -o runs/m30k --resume",
     "after Ctrl-C, a crash or a power cut"},
    {"fovea train recipes/multi30k-cpu.ini --dry-run --set train.lr=3e-4",
     "is everything there, and how large is it?"},
    {"mpirun -np 4 fovea train recipes/multi30k-cpu.ini -o runs/m30k --set train.shards=8",
     "four ranks, on one machine or on many (docs/scale.md)"},
    {"fovea train --help-keys --family marian", "what a recipe can say"},
    {0},
};

/* ---- signals ----
 * SIGINT, SIGTERM, SIGHUP (the terminal was closed) and SIGPIPE (whoever read the progress is gone)
 * finish the update and save; the second of the first three ends at once.  SIGXFSZ is ignored: the
 * write that went beyond the limit then fails, and says so.  SIGHUP stays ignored under nohup. */

static volatile int interrupted;           /* the trainer's flag */
static volatile sig_atomic_t which_signal; /* the first */

/* The exit status, as a shell reports the signal. */
static int interrupted_code(void) { return 128 + (int)which_signal; }

static void on_interrupt(int sig)
{
    static const char text[] = "\nfinishing the update and saving; once more to quit at once\n";
    int before = errno;
    if (interrupted && sig != SIGPIPE) _exit(interrupted_code());
    if (!interrupted) which_signal = sig;
    interrupted = 1;
    if (sig != SIGPIPE && write(2, text, sizeof text - 1) < 0) interrupted = 1;
    errno = before;
}

/* A signal that the parent ignores stays ignored (nohup, shells' background jobs). SA_RESTART: a
 * read that is interrupted goes on, and the flag is seen at the next update. */
static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    const struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    struct sigaction old;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &act, NULL);
    signal(SIGXFSZ, SIG_IGN);
}

/* ---- progress ---- */

typedef struct show {
    const fv_train_opt *opt;
    bool live, quiet, dry, dirty; /* dirty: a line that will be written over stands there */
    int64_t first;                /* update this process began behind, -1 until the first */
    double last_report;
} show;

static void clear(show *w)
{
    if (w->dirty) fprintf(stderr, "\r\033[K");
    w->dirty = false;
}

static void on_message(void *user, const char *text)
{
    show *w = user;
    clear(w);
    if (w->dry || !w->quiet) fprintf(w->dry ? stdout : stderr, "%s\n", text);
}

/* "1:23:45" */
static void duration(char *out, size_t n, double seconds)
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, n, "%ld:%02ld", s / 60, s % 60);
}

/* Time left goes by the updates of this process: those before a resume may have run on another
 * machine. */
static void bar(show *w, const fv_train_state *s)
{
    enum { CELLS = 24 };
    char cells[CELLS + 1], left[32];
    double done = (double)s->step / (double)w->opt->updates;
    int64_t here = s->step - w->first;
    int full = (int)(done * CELLS);
    for (int i = 0; i < CELLS; i++) cells[i] = i < full ? '#' : '.';
    cells[CELLS] = 0;
    duration(left, sizeof left,
             here > 0 ? s->seconds / (double)here * (double)(w->opt->updates - s->step) : 0);
    fprintf(stderr, "\r\033[K[%s] %lld/%lld  loss %.3f  %.0f tokens/s  %s left", cells,
            (long long)s->step, (long long)w->opt->updates, s->loss,
            s->seconds > 0 ? (double)s->tokens / s->seconds : 0, left);
    w->dirty = true;
}

/* Called by the trainer in the thread that runs it, between updates: it must be quick, and may
 * print. */
static void progress(void *user, const fv_train_state *s, const char *event)
{
    show *w = user;
    if (w->quiet) return;
    if (w->first < 0) w->first = s->step - 1;
    if (!strcmp(event, "valid")) {
        clear(w);
        fprintf(stderr, "update %lld, epoch %lld: validation loss %.4f", (long long)s->step,
                (long long)s->epoch + 1, s->valid);
        if (!isnan(s->metric)) fprintf(stderr, ", metric %.4g", s->metric);
        fprintf(stderr, "%s\n", s->best_step == s->step ? ", the best so far" : "");
    } else if (!strcmp(event, "step") && w->live) {
        bool late = s->seconds - w->last_report > 0.1;
        if (late || s->step == w->opt->updates) bar(w, s), w->last_report = s->seconds;
    } else if (!strcmp(event, "step") && s->step % w->opt->log_every == 0) {
        fprintf(stderr, "update %lld of %lld: loss %.4f, %.0f tokens/s\n", (long long)s->step,
                (long long)w->opt->updates, s->loss,
                s->seconds > 0 ? (double)s->tokens / s->seconds : 0);
    }
}

/* ---- the command ---- */

static void print_line(void *user, const char *text)
{
    (void)user;
    puts(text);
}

static int help_keys(const cli *c, const values *v)
{
    if (!fv_recipe_help(v->keys_of, print_line, NULL))
        return cli_usage(c, "there is no family '%s'", v->keys_of);
    return CLI_OK;
}

/* --set comes after the file, and the whole is checked once: keys may depend on each other. */
fv_status cli_set_keys(fv_recipe *r, const cli_list *set, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; !st && i < set->n; i++) {
        char key[128];
        const char *equals = strchr(set->at[i], '=');
        if (!equals || equals - set->at[i] >= (int)sizeof key)
            return fv_fail(e, FV_EARG, "--set %.100s: expected section.key=value", set->at[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - set->at[i]), set->at[i]);
        st = fv_recipe_set(r, key, equals + 1, e);
    }
    return st ? st : fv_recipe_check(r, e);
}

/* A dry run leaves signals as they are: it has nothing to save. */
static fv_status train(const values *v, fv_recipe *r, fv_device *d, fv_comm *comm,
                       fv_train_state *s, fv_err *e)
{
    show w = {.opt = fv_recipe_options(r),
              .live = isatty(2),
              .quiet = v->quiet || fv_comm_rank(comm), /* rank 0 speaks for all */
              .dry = v->dry_run,
              .first = -1};
    fv_recipe_job job = {.device = d,
                         .dir = v->dry_run ? NULL : v->dir,
                         .resume = v->resume,
                         .stop = &interrupted,
                         .progress = progress,
                         .on_message = on_message,
                         .user = &w,
                         .comm = comm,
                         .trace = v->trace};
    if (!v->dry_run) catch_signals();
    fv_status st = fv_recipe_train(r, &job, s, e);
    clear(&w);
    return st;
}

/* A run that stopped early on purpose (patience) is finished; one that was interrupted says how to
 * go on. */
static void conclude(const values *v, const fv_recipe *r, const fv_train_state *s)
{
    const fv_train_opt *o = fv_recipe_options(r);
    bool patience = o->patience && s->worse >= o->patience;
    if (v->dry_run)
        printf("Everything is there; nothing was trained.\n");
    else if (s->step < s->updates && !patience)
        printf("Stopped after update %lld of %lld; --resume goes on from there.\n",
               (long long)s->step, (long long)s->updates);
    else if (isnan(s->loss)) /* resumed from a checkpoint that does not say */
        printf("%s/model: %lld updates\n", v->dir, (long long)s->step);
    else
        printf("%s/model: %lld updates, loss %.4f\n", v->dir, (long long)s->step, s->loss);
    if (!v->dry_run && !isnan(s->valid))
        printf("best evaluation: %.4f at update %lld\n", s->best, (long long)s->best_step);
}

/* Ranks agree before training: one that cannot read its recipe would leave the others waiting. */
static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    fv_err e = {0};
    fv_recipe *r = NULL;
    fv_device *d = NULL;
    fv_comm *comm = NULL;
    fv_train_state s;
    if (v->help_keys) return help_keys(c, v);
    if (n < 1) return cli_usage(c, "a recipe is missing; see '%s --help'", c->name);
    if (!v->dir && !v->dry_run) return cli_usage(c, "--output DIR is missing: where the run goes");
    fv_status st = fv_comm_open(&comm, NULL, (fv_comm_opt){0}, &e);
    if (st) return cli_error(c, &e);
    st = fv_recipe_open(&r, NULL, operand[0], &e);
    if (!st) st = cli_set_keys(r, &v->set, &e);
    if (!st)
        st = fv_device_open(&d, v->device, (fv_device_opt){.threads = cli_threads(v->threads)}, &e);
    st = fv_comm_agree(comm, st, &e);
    if (!st) st = train(v, r, d, comm, &s, &e);
    if (!st && !fv_comm_rank(comm)) conclude(v, r, &s);
    fv_device_close(d);
    fv_recipe_close(r);
    fv_comm_close(comm);
    if (st) return cli_error(c, &e);
    return interrupted ? interrupted_code() : CLI_OK;
}

const cli_command train_command = {
    .name = "train",
    .summary = "train a model from a recipe",
    .about = "A recipe is a file of sections and keys that says what is trained, on what and how; "
             "every key can also be given "
             "by --set.  The run's directory gets the recipe as it was run, train.jsonl, an event "
             "file for TensorBoard, "
             "curve.svg, checkpoints and, in the end, the model in Hugging Face's layout with its "
             "tokenizer.\n\n"
             "Ctrl-C finishes the update, saves and exits with 130; a second one quits at once.  "
             "So do SIGTERM, a closed terminal, and a closed pipe that the progress goes to.  A "
             "resumed run "
             "ends with the same bits as one "
             "that was never stopped, whatever the number of threads.",
    CLI_OWN(values),
    .defaults = &defaults,
    .operands = "RECIPE",
    .max_operands = 1,
};
