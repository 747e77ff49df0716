/* core.h - the server's own state, shared by its files. */
#ifndef SV_CORE_H
#define SV_CORE_H

#include <stdatomic.h>

#include "http.h"

/* ---- figures for /metrics ---- */

#define SV_BOUNDS 16

/* Times in seconds: how many were at most bound[i], their sum and their number. */
typedef struct sv_histogram {
    _Atomic int64_t at[SV_BOUNDS + 1];
    _Atomic int64_t sum_us;
} sv_histogram;

extern const double sv_bounds[SV_BOUNDS];
void sv_observe(sv_histogram *h, double seconds);

/* ---- one model ---- */

typedef struct sv_seen sv_seen;
typedef void sv_work_fn(sv_engine *g, sv_request *r);

typedef struct sv_work {
    struct sv_work *next;
    sv_work_fn *fn;
    sv_request *r;
} sv_work;

/* outputs.c: records of what the scheduler told, one behind the other. */
typedef struct sv_outputs {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, room;
    char *queue; /* n bytes are used */
    size_t n, cap;
    char *taken; /* of the thread */
    size_t taken_cap;
    bool open, sleeps, waited_for, ends;
} sv_outputs;

/* The model with an adapter folded into its weights; its sequences share the model's batch. */
typedef struct sv_adapted {
    const char *name; /* the options' */
    fv_model *model;
    int number; /* the scheduler's */
} sv_adapted;

/* A model that is open, with the thread that runs it.  Counted: by the server while it is the one
 * of its name, and by requests; the last to let go ends the thread and closes the model. */
struct sv_engine {
    sv_server *server;
    char *name, *dir;
    fv_device *device;
    fv_head_job job;
    bool generates;             /* a causal language model: it has a writer and a scheduler */
    fv_writer writer;           /* its enc is not used: requests take one of the pool */
    fv_chat_template *template; /* NULL: there is none */
    char no_template[512];      /* and this is why */
    fv_scheduler *scheduler;
    sv_outputs outputs;  /* what becomes of its tokens */
    sv_adapted *adapted; /* n_adapted of them, in the order of the options */
    int n_adapted;
    fv_tok *tok;                      /* the writer's, where there is one */
    fv_task *task[FV_JOB_ANSWER + 1]; /* opened when first asked for, by the engine's thread */
    fv_translator *translator;
    const char *media;     /* the task of a model that sees or hears, else NULL */
    fv_pipeline *pipeline; /* for that task */
    fv_tok *words;         /* of what a model that hears writes; opened when first asked for */
    fv_model *model;       /* for /v1/attention; NULL where the writer has it */
    sv_seen *seen;         /* captures of the last texts; of the engine's thread */
    int64_t created;       /* seconds since 1970 */
    atomic_int refs;
    /* the queue of work beside the scheduler */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    sv_work *first, *last;
    int64_t queued;
    sv_work *starts, *last_start; /* sequences to be submitted, all before the next step */
    bool stopping;
    bool pending;          /* the scheduler has got something since its last step */
    fv_token_bytes *bytes; /* for constrained text, made when first asked for */
    pthread_mutex_t bytes_lock;
    /* encodings not in use */
    fv_encoding *spare[32];
    int n_spare;
    sv_histogram first_token, between_tokens;
};

fv_status sv_engine_open(sv_engine **out, sv_server *s, const char *name, const char *dir,
                         fv_err *e);
void sv_engine_hold(sv_engine *g);
void sv_engine_drop(sv_engine *g);
/* The engine of the model or adapter that the request's body names, held by the request; NULL:
 * refused. */
sv_engine *sv_find_engine(sv_request *r);
/* The name that was asked for, or the engine's where none was. */
const char *sv_asked_name(const sv_request *r);
/* Runs fn on the engine's thread, between two steps of its scheduler; false: refused, since too
 * much waits. */
bool sv_post(sv_engine *g, sv_request *r, sv_work_fn *fn);
/* The same for work that is done at once, such as submitting sequences: all of it before the next
 * step, and as much as comes. */
bool sv_post_start(sv_engine *g, sv_request *r, sv_work_fn *fn);
void sv_wake(sv_engine *g); /* the scheduler has got something to do */
fv_encoding *sv_take_encoding(sv_engine *g, fv_err *e);
void sv_give_encoding(sv_engine *g, fv_encoding *enc);
const fv_model *sv_asked_model(const sv_request *r); /* for passes of one's own */
/* The same, opened if nobody has needed it yet; NULL: it cannot be.  On the engine's thread. */
const fv_model *sv_engine_model(const sv_request *r, fv_err *e);
const fv_token_bytes *sv_engine_bytes(sv_engine *g, fv_err *e); /* NULL: e says why */
/* The engine's task for a job, opened at its first use; NULL: refused.  On the engine's thread. */
fv_task *sv_engine_task(sv_engine *g, sv_request *r, fv_job job);

/* outputs.c */
fv_status sv_outputs_open(sv_outputs *o, fv_err *e);
void sv_outputs_close(sv_outputs *o);

/* seen.c: lets captures go that nobody has asked for lately, and whether some are left; all. */
bool sv_seen_expire(sv_engine *g);
void sv_seen_free(sv_engine *g);

/* ---- the server ---- */

#define SV_MAX_MODELS 64
#define SV_MAX_KEYS 1024
#define SV_SHOWN 2 /* checkpoints of trainings that are open */

typedef struct sv_keys {
    int n;
    struct {
        unsigned char bytes[128]; /* padded with zeros */
        size_t n;
    } at[SV_MAX_KEYS];
} sv_keys;

/* Which file a name stood for when it was last looked at; all 0: none. */
typedef struct sv_stamp {
    int64_t file, seconds, nanoseconds;
} sv_stamp;

struct sv_server {
    sv_opt opt;
    fv_device *device;
    struct MHD_Daemon *daemon;
    int socket;
    pthread_mutex_t lock;  /* of engines and keys */
    pthread_cond_t closed; /* an engine has been */
    int engines;           /* that are open, those included that a reload has replaced */
    sv_engine *engine[SV_MAX_MODELS];
    sv_stamp versions[2 * SV_MAX_MODELS]; /* CURRENT of the models, then of the adapters */
    pthread_mutex_t shown_lock;
    sv_engine *shown[SV_SHOWN];
    int next_shown; /* which of them gives way next */
    sv_keys *keys;  /* NULL: none are needed */
    _Atomic bool draining;
    _Atomic int64_t active; /* requests that were dispatched and are not done */
    _Atomic uint64_t last_request;
    _Atomic int64_t answered[6]; /* by hundreds of the status */
    _Atomic int64_t disconnected, connections;
    sv_histogram times;
    double started;
    /* watch.c */
    pthread_t watcher;
    pthread_mutex_t watch_lock;
    sv_connection *open;
    uint64_t last_connection;
    int epoll, wake;
    _Atomic bool closing;
    _Atomic int resuming; /* connections, at this moment */
};

/* The route of a path; NULL: there is none for this method, and *allow lists those that the path
 * has, or is NULL. */
const sv_route *sv_find_route(const char *method, const char *path, const char **allow);
const sv_route *sv_route_at(int i); /* NULL past the last */

/* log.c: one JSON object on a line of standard error. */
void sv_log(const char *level, const char *fmt, ...) FV_PRINTF(2, 3);
void sv_log_request(const sv_request *r);

/* keys.c */
fv_status sv_keys_read(sv_keys **out, const char *path, fv_err *e);
bool sv_keys_allow(sv_server *s, const char *authorization);

/* listen.c: a socket that listens, or -1; *what says where. */
int sv_listen(const sv_opt *o, char *what, size_t n, fv_err *e);

/* checkpoints.c: whether a model's name is that of a checkpoint, its engine, held; and the steps of
 * all that a run has, as the field "checkpoints". */
bool sv_is_checkpoint(const sv_server *s, const char *name);
fv_status sv_checkpoint_engine(sv_server *s, sv_engine **out, const char *name, fv_err *e);
void sv_put_checkpoints(sv_text *t, const sv_server *s, const char *run);
void sv_checkpoints_close(sv_server *s);

/* inputs.c: texts of a field: a string, or a list of strings; with pairs a list of two strings is a
 * text and its pair.  NULL: refused; else to be freed. */
fv_text *sv_read_texts(sv_request *r, const char *key, bool pairs, int64_t *n);
void sv_begin_list(sv_text *t, const sv_engine *g, const char *key);

/* routes */
sv_route_fn sv_models, sv_model_named, sv_livez, sv_readyz, sv_metrics, sv_openapi, sv_page;
sv_route_fn sv_detect, sv_caption, sv_transcriptions;
sv_route_fn sv_runs, sv_run_named;
sv_route_fn sv_completions, sv_chat, sv_tokenize, sv_detokenize, sv_apply_template;
sv_route_fn sv_embeddings, sv_attention, sv_heads, sv_ablate, sv_neurons;
sv_route_fn sv_classify, sv_tag, sv_answer_question, sv_fill, sv_translate, sv_rerank;

#endif
