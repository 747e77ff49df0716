/* continual.h - learning tasks one after another without losing the earlier ones.
 *
 * All tasks are one run: epoch e trains task e / epochs, so that checkpoints, resuming and the
 * loader are those of every run.  A feed around the objective's own does the rest: it gives each
 * epoch the examples of its task, masks scores by scenario, mixes remembered examples in, and is
 * told when an epoch ends.  (A loop over runs, one a task, was the alternative: its state between
 * runs would need a second kind of checkpoint.) */
#ifndef FV_CONTINUAL_H
#define FV_CONTINUAL_H

#include "base/base.h"
#include "fovea/author/config.h"
#include "fovea/author/data.h"
#include "core/core.h"

typedef enum fv__continual_method {
    FV__METHOD_NONE = 0, /* tasks one after another, and nothing against forgetting */
    FV__METHOD_JOINT,    /* all tasks at once: what can be reached */
    FV__METHOD_EWC,
    FV__METHOD_ONLINE_EWC,
    FV__METHOD_SI,
    FV__METHOD_LWF,
    FV__METHOD_REPLAY,
    FV__METHOD_AGEM,
    FV__METHOD_ADAPTERS /* one adapter a task */
} fv__continual_method;

/* What is known when a model is asked (van de Ven and Tolias 2019). */
typedef enum fv__scenario {
    FV__SCENARIO_TASK = 0, /* which task: only its labels are compared */
    FV__SCENARIO_DOMAIN,   /* not which, and the labels of all tasks mean the same */
    FV__SCENARIO_CLASS     /* not which: all labels so far are compared */
} fv__scenario;

typedef struct fv__continual_opt {
    char tasks[1024];
    int permute, epochs, method, scenario, buffer;
    int64_t fisher_samples, memory;
    float strength, gamma, xi, temperature;
} fv__continual_opt;

extern const fv_field fv__continual_fields[];

/* The recipe has tasks. */
bool fv__continual_wanted(const fv__continual_opt *o);

/* Replaces train and valid by feeds of tasks, which own them from here on. */
fv_status fv__continual_wrap(fv_feed *train, fv_feed *valid, const fv__continual_opt *o,
                             const fv_env *env, const fv_labels *labels, uint64_t seed, fv_err *e);
/* Updates of the whole run. */
fv_status fv__continual_updates(const fv_feed *train, const fv_env *env, int64_t tokens,
                                int64_t rows, int64_t accumulate, uint64_t seed, int64_t *out,
                                fv_err *e);
/* With one adapter a task: the model has one task's after another when each is called; in the end
 * the last one's. */
fv_status fv__continual_each_own(const fv_feed *train, const fv_model *m,
                                 fv_status (*each)(void *user, const char *task, fv_err *e),
                                 void *user, fv_err *e);
/* continual.json and continual.svg in the run's directory, and the same as lines of text. */
fv_status fv__continual_report(const fv_feed *train, const char *dir,
                               void (*line)(void *user, const char *text), void *user, fv_err *e);

/* ---- inside ---- */

enum { FV__MAX_TASKS = 64 };

/* An example of a task: a row of the objective's feed. */
typedef struct fv__example {
    int32_t task, row;
} fv__example;

typedef struct fv__task {
    char name[128];
    uint8_t *mask;              /* (labels): those that are its own */
    int32_t *rank;              /* (labels): number of a label within the task */
    fv__example *train, *valid; /* its examples */
    int64_t n_train, n_valid;
    int32_t *shuffled; /* the permutation of its pixels; NULL: as they are */
} fv__task;

/* A flat array as large as the parameters, in device memory. */
typedef enum fv__flat_name {
    FV__FLAT_CURVATURE = 0, /* A and B of the penalty's gradient, A x - B */
    FV__FLAT_PULL,
    FV__FLAT_PATH,      /* SI: sum of -g dx along the way */
    FV__FLAT_GRADIENT,  /* SI: of the update before */
    FV__FLAT_BEFORE,    /* SI: parameters before that */
    FV__FLAT_START,     /* SI: parameters when the task began */
    FV__FLAT_REFERENCE, /* A-GEM: gradient on the remembered examples */
    FV__FLATS
} fv__flat_name;

typedef struct fv__continual {
    const fv_env *env;
    fv__continual_opt opt;
    fv_feed inner[2]; /* train, valid */
    uint64_t seed;
    int32_t n_labels;
    int n_tasks;
    fv__task task[FV__MAX_TASKS];
    fv__example *memory[FV__MAX_TASKS + 1]; /* remembered when task i begins */
    int64_t n_memory[FV__MAX_TASKS + 1];
    int64_t pixels, longest, n_rows[2];
    /* ---- what training changes ---- */
    int done;                                         /* tasks that were finished */
    float accuracy[FV__MAX_TASKS + 1][FV__MAX_TASKS]; /* before, and after each task */
    fv_device *dev;
    int64_t n_flat;
    fv_tensor flat[FV__FLATS]; /* data NULL: not used by the method */
    fv_tensor old;             /* LwF: scores (rows,labels) of the model before this task */
    size_t old_bytes;
    fv_tensor own; /* one adapter a task: (tasks,parameters) */
} fv__continual;

/* tasks.c */
int fv__continual_task_of(const fv__continual *s, int64_t epoch);
/* A batch of examples, with what forward needs beside the objective's arrays; seen: tasks that
 * count as known. */
fv_status fv__continual_make(const fv__continual *s, int which, fv_batch *out,
                             const fv__example *of, int64_t n, int seen, fv_data_rng how,
                             fv_err *e);
void fv__continual_forward(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                           fv_items *out);
void fv__continual_close(void *self);

/* learn.c */
fv_status fv__continual_prepare(void *self, const fv_model *m, fv_device *d, fv_err *e);
fv_status fv__continual_end_epoch(void *self, const fv_model *m, int64_t epoch, fv_err *e);
void fv__continual_adjust(void *self, fv_ctx *c, fv_params *p);
fv_status fv__continual_save(const void *self, const fv_env *env, const char *path, fv_err *e);
fv_status fv__continual_load(void *self, const fv_env *env, const char *path, fv_err *e);

/* state.c */
/* Zeros, but where SI begins with the parameters. */
fv_status fv__continual_reserve(fv__continual *s, const fv_model *m, fv_err *e);
void fv__continual_release(fv__continual *s);
/* The penalty is a quadratic form: EWC and SI. */
bool fv__continual_quadratic(const fv__continual *s);
/* A flat array as a tensor, and x copied into one; x may be NULL where a context has failed. */
fv_tensor fv__flat(void *data, int64_t n);
void fv__flat_set(fv_ctx *c, fv_tensor *to, const fv_tensor *x);
fv_status fv__continual_failed(const fv_ctx *c, fv_err *e);

/* own.c: nothing is done by other methods */
fv_status fv__own_reserve(fv__continual *s, const fv_model *m, fv_err *e);
/* Parameters from the values of task t, and to them. */
fv_status fv__own_use(fv__continual *s, const fv_model *m, int t, fv_err *e);
fv_status fv__own_keep(fv__continual *s, const fv_model *m, int t, fv_err *e);

#endif
