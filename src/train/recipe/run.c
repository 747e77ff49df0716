/* run.c - following a recipe: check it, open its input, make the model, train it in its directory.
 *
 * Nothing is written before everything has been opened, so a recipe that cannot run leaves nothing
 * behind; what a run has written when it fails before its first update is removed again. */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "core/core.h"
#include "fovea/author/train.h"
#include "store/checkpoint.h"
#include "store/store.h"
#include "train/distill.h"
#include "train/ranks.h"
#include "train/tensor.h"
#include "train/recipe/recipe.h"

/* ---- the run's directory ---- */

static void add_name(void *user, const char *name) { fv__buf_add(user, name, strlen(name) + 1); }

/* The names in a directory, each ending in NUL; *there is false where it does not exist. */
static fv_status list_names(fv_buf *names, const char *dir, bool *there, fv_err *e)
{
    const fv_io *io = fv__io(names->env);
    int rc = io->list ? io->list(io->self, dir, add_name, names) : -ENOENT;
    *there = rc != -ENOENT;
    if (rc && *there) return fv_fail(e, FV_EIO, "%s: cannot be listed: %s", dir, strerror(-rc));
    return names->failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", dir) : FV_OK;
}

/* *fresh: nothing is in the directory, so whatever is there later was written by this run. */
static fv_status check_dir(const fv_recipe_job *job, const fv_env *env, bool *fresh, fv_err *e)
{
    fv_buf names = {.env = env};
    bool there;
    fv_status st = list_names(&names, job->dir, &there, e);
    *fresh = !names.len;
    if (!st && names.len && !job->resume)
        st = fv_fail(e, FV_ESTATE,
                     "%s: is not empty; give --resume to go on with the run in it, or name another "
                     "directory",
                     job->dir);
    fv__buf_free(&names);
    return st;
}

/* How much of the path exists: the length of the longest directory above it, or of itself. */
static size_t existing(const fv_env *env, const char *dir)
{
    char path[FV_PATH];
    snprintf(path, sizeof path, "%s", dir);
    while (*path && !fv__is_dir(env, path)) {
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = 0;
    }
    return strlen(path);
}

/* Removes the files of a run that did not begin, and the directories that were made for it. */
static void remove_run(const fv_env *env, const char *dir, size_t kept)
{
    const fv_io *io = fv__io(env);
    fv_buf names = {.env = env};
    char path[FV_PATH];
    bool there;
    if (!list_names(&names, dir, &there, NULL))
        for (size_t at = 0; at < names.len; at += strlen(names.data + at) + 1) {
            fv__recipe_path(path, dir, names.data + at);
            if (io->unlink(io->self, path)) io->rmdir(io->self, path); /* checkpoints/, empty */
        }
    fv__buf_free(&names);
    snprintf(path, sizeof path, "%s", dir);
    while (strlen(path) > kept && !io->rmdir(io->self, path)) {
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = 0;
    }
}

/* recipe.ini: every key with the value of this run. */
static fv_status write_recipe(fv_recipe *r, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    const char *text = fv_recipe_text(r, e);
    fv__recipe_path(path, dir, "recipe.ini");
    return text ? fv__file_write(env, path, text, strlen(text), e) : FV_ENOMEM;
}

/* ---- resuming ---- */

static void add_key(void *user, const char *key, const char *value)
{
    fv__buf_fmt(user, "\n%s = %s\n", key, value);
}

/* The keys that a resumed run may not change, with their values: "\nsection.key = value\n". */
static fv_status fixed_text(fv_buf *b, const fv_recipe *r, fv_err *e)
{
    fv_status st = fv__recipe_fixed(r, add_key, b, e);
    return !st && b->failed ? fv_fail(e, FV_ENOMEM, "recipe: out of memory") : st;
}

typedef struct comparing {
    const fv_buf *old; /* fixed_text of the run */
    char key[160], now[600], was[600];
} comparing;

/* Remembers the first key whose value differs from the run's. */
static void compare_key(void *user, const char *key, const char *value)
{
    comparing *c = user;
    char line[800];
    if (*c->key || !c->old->data) return;
    snprintf(line, sizeof line, "\n%s = ", key);
    const char *at = strstr(c->old->data, line), *was = at ? at + strlen(line) : "";
    size_t n = strcspn(was, "\n");
    if (at && n == strlen(value) && !memcmp(was, value, n)) return;
    snprintf(c->key, sizeof c->key, "%s", key);
    snprintf(c->now, sizeof c->now, "%s", value);
    snprintf(c->was, sizeof c->was, "%.*s", (int)n, was);
}

/* Names the key that differs.  A recipe.ini that this version cannot read is no reason to stop: the
 * checkpoints know their configuration, too. */
static fv_status compare_recipes(const fv_recipe *r, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_recipe *old;
    fv_buf text = {.env = env};
    fv__recipe_path(path, dir, "recipe.ini");
    if (!fv__file_exists(env, path) || fv_recipe_open(&old, env, path, NULL)) return FV_OK;
    comparing c = {.old = &text};
    fv_status st = fixed_text(&text, old, NULL) ? FV_OK : fv__recipe_fixed(r, compare_key, &c, e);
    if (!st && *c.key)
        st = fv_fail(e, FV_ESTATE,
                     "%s: %s is \"%.80s\", but \"%.80s\" in the run that is resumed; a resumed run "
                     "may not change it",
                     path, c.key, c.now, c.was);
    fv__buf_free(&text);
    fv_recipe_close(old);
    return st;
}

/* ---- training ---- */

/* The recipe's options as a training job. */
static fv_status train(const fv_recipe *r, const fv_recipe_job *job, fv_model *model,
                       fv_comm *copies, const fv__input *in, fv_train_state *out, fv_err *e)
{
    fv_buf config = {.env = in->env};
    fv__beside beside = {.r = r, .in = in, .model = model, .from = fv__late_get(&r->model, "from")};
    const fv_objective *o = fv__recipe_objective(r);
    fv__bleu bleu = {.device = job->device,
                     .beside = &beside,
                     .pairs = o->pairs ? o->pairs(&in->valid) : NULL,
                     .n = r->train.bleu};
    fv_status st = fixed_text(&config, r, e);
    fv_train_job t = {.model = model,
                      .device = job->device,
                      .train = &in->train,
                      .valid = in->valid.self ? &in->valid : NULL,
                      .processor = in->processor,
                      .opt = r->train,
                      .dir = job->dir,
                      .locked = true,
                      .config = config.data,
                      .resume = job->resume,
                      .stop = job->stop,
                      .progress = job->progress,
                      .on_message = job->on_message,
                      .user = job->user,
                      .score_name = "bleu",
                      .score = r->train.bleu ? fv__bleu_score : NULL,
                      .score_user = &bleu,
                      .extra = fv__beside_write,
                      .extra_user = &beside,
                      .comm = job->comm,
                      .copies = copies,
                      .trace = job->trace};
    if (!st) st = fv_train(&t, out, e);
    fv__buf_free(&config);
    return st;
}

/* What saves the adapters of tasks. */
typedef struct saving {
    const fv_recipe_job *job;
    fv_model *model;
    const fv__input *in;
} saving;

/* adapters/TASK of the run, "sst2:" as "sst2", "0,1" as "0-1". */
static fv_status save_own(void *user, const char *task, fv_err *e)
{
    const saving *s = user;
    char dir[FV_PATH];
    int n = snprintf(dir, sizeof dir, "%s/adapters", s->job->dir);
    fv_status st = n < (int)sizeof dir - 200 ? fv__dir_make(s->in->env, dir, e)
                                             : fv_fail(e, FV_EARG, "the path is too long");
    dir[n++] = '/';
    for (const char *c = task; *c && !(*c == ':' && !c[1]); c++)
        dir[n++] = (char)(strchr("/,: ", *c) ? '-' : *c);
    dir[n] = 0;
    if (!st) st = fv_model_save(s->model, dir, FV_F32, e);
    return st ? st : fv_processor_save(s->in->processor, dir, e);
}

static fv_status report_tasks(const fv_recipe *r, const saving *s, fv_err *e)
{
    if (!fv__continual_wanted(&r->continual)) return FV_OK;
    fv_status st = fv__continual_each_own(&s->in->train, s->model, save_own, (void *)(uintptr_t)s,
                                          e);
    return st ? st
              : fv__continual_report(&s->in->train, s->job->dir, s->job->on_message, s->job->user,
                                     e);
}

/* Makes the directory of a new run and locks it.  Another run may have made it, too, since it was
 * found missing: then its files are there, and nothing of it is touched. */
static fv_status take_dir(const fv_recipe_job *job, const fv_env *env, int *lock, fv_err *e)
{
    bool fresh;
    fv_status st = fv__dir_make(env, job->dir, e);
    if (!st) st = fv__dir_lock(lock, env, job->dir, e);
    if (!st) st = check_dir(job, env, &fresh, e);
    if (!st && !fresh)
        st = fv_fail(e, FV_ESTATE, "%s: another process began a run in it just now", job->dir);
    return st;
}

/* Writes the recipe and the processor, so that a resumed run finds them, and trains. */
static fv_status train_in_dir(fv_recipe *r, const fv_recipe_job *job, bool fresh, int *lock,
                              fv_model *model, fv_comm *copies, const fv__input *in,
                              fv_train_state *out, fv_err *e)
{
    bool writes = !fv_comm_rank(job->comm);
    size_t kept = existing(in->env, job->dir);
    fv_status st = writes && *lock < 0 && fresh ? take_dir(job, in->env, lock, e) : FV_OK;
    if (st) return fv_comm_agree(job->comm, st, e);
    if (writes && in->made) st = fv_processor_save(in->processor, job->dir, e);
    if (!st && writes && fresh) st = write_recipe(r, in->env, job->dir, e);
    if (!st && writes)
        st = (fresh ? fv__inputs_write : fv__inputs_compare)(r, in->env, job->dir, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st) st = train(r, job, model, copies, in, out, e);
    if (!st) st = report_tasks(r, &(saving){job, model, in}, e);
    /* only now, as the recipe may be one that does not fit the run */
    if (!st && writes && !fresh) st = write_recipe(r, in->env, job->dir, e);
    if (st && writes && fresh && !out->step) remove_run(in->env, job->dir, kept);
    return st;
}

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

/* The memory that the run needs, by trying its largest batch. */
static fv_status dry_run(const fv_recipe *r, const fv_recipe_job *job, fv_model *model,
                         fv_comm *copies, const fv__input *in, const fv__messages *m, fv_err *e)
{
    fv_train_job t = {.model = model,
                      .device = job->device,
                      .train = &in->train,
                      .opt = r->train,
                      .comm = job->comm,
                      .copies = copies};
    int ranks = fv_comm_size(job->comm);
    char each[40] = "";
    fv_train_memory need;
    if (job->look) return job->look(job->user, &t, e);
    fv_status st = fv_train_dry_run(&t, &need, e);
    if (st) return st;
    if (ranks > 1) snprintf(each, sizeof each, " of each of %d ranks", ranks);
    fv__message(
        m,
        "memory%s: %.1f MiB = parameters %.1f, gradients %.1f, optimiser %.1f, largest batch "
        "(%lld x %lld) %.1f",
        each, mib(need.parameters + need.gradients + need.optimiser + need.batch),
        mib(need.parameters), mib(need.gradients), mib(need.optimiser), (long long)need.rows,
        (long long)need.columns, mib(need.batch));
    return FV_OK;
}

/* What objectives want to know of the model before it changes. */
static fv_status prepare(fv__input *in, const fv_model *m, fv_device *d, fv_err *e)
{
    fv_status st = in->train.prepare ? in->train.prepare(in->train.self, m, d, e) : FV_OK;
    return st || !in->valid.prepare ? st : in->valid.prepare(in->valid.self, m, d, e);
}

/* ---- ranks ---- */

/* Of what the feed has to give: how many examples, and their sizes. */
static uint64_t hash_feed(const fv_feed *f)
{
    int64_t n = f->self ? f->count(f->self, 0) : 0;
    uint64_t hash = fv__ckpt_hash(&n, sizeof n);
    for (int64_t i = 0; i < n; i++) {
        int64_t of[3] = {(int64_t)hash, 0, 0};
        f->size(f->self, i, &of[1], &of[2]);
        hash = fv__ckpt_hash(of, sizeof of);
    }
    return hash;
}

static uint64_t hash_tokenizer(const fv_processor *p)
{
    const fv_tok *tok = fv_processor_tok(p);
    uint64_t hash = 0;
    for (int32_t i = 0; tok && i < fv_tok_size(tok); i++) {
        const char *text = fv_tok_token(tok, i);
        hash = hash * 0x9E3779B97F4A7C15u + (text ? fv__ckpt_hash(text, strlen(text)) : 1);
    }
    return hash;
}

/* Its size and, where the host can read them, its parameters.  Of a model that ranks share, what
 * all of them have. */
static uint64_t hash_model(const fv_model *m, const fv_device *d)
{
    int64_t n;
    const fv_params *p = fv_model_params(m);
    const void *data = fv_params_data(p, &n);
    if (fv__tensor_ranks(p)) return fv__tensor_hash(p);
    size_t bytes = (size_t)n * fv_dtype_size(fv_params_at(p, 0)->dtype);
    return fv__device_is_host(d) ? fv__ckpt_hash(data, bytes) : (uint64_t)n;
}

/* Of this program's file; 0 where that cannot be read. */
static uint64_t hash_build(const fv_env *env)
{
    fv_file f;
    if (fv__file_open(&f, env, "/proc/self/exe", NULL)) return 0;
    uint64_t hash = fv__ckpt_hash(f.data, f.size);
    fv__file_close(&f);
    return hash;
}

/* Ranks that were started with different things would train a model that nobody asked for.  The
 * recipe's keys that a resumed run may change do not matter. */
static fv_status compare_ranks(const fv_recipe *r, const fv_recipe_job *job, const fv_model *model,
                               const fv__input *in, fv_err *e)
{
    fv_buf fixed = {.env = in->env};
    const char *level = fv_device_level(job->device);
    if (fv_comm_size(job->comm) == 1) return FV_OK;
    fv_status st = fv_comm_agree(job->comm, fixed_text(&fixed, r, e), e);
    const fv__same same[] = {{"the build of fovea", hash_build(in->env)},
                             {"the instruction level of the device",
                              fv__ckpt_hash(level, strlen(level))},
                             {"the recipe", fv__ckpt_hash(fixed.data, fixed.len)},
                             {"the tokenizer", hash_tokenizer(in->processor)},
                             {"the training data", hash_feed(&in->train)},
                             {"the validation data", hash_feed(&in->valid)},
                             {"the model", hash_model(model, job->device)}};
    if (!st) st = fv__ranks_same(job->comm, same, (int)(sizeof same / sizeof *same), e);
    fv__buf_free(&fixed);
    return st;
}

/* Rank 0 looks at the run's directory and locks it; all learn whether it is fresh.  The recipe of a
 * run that is resumed is compared by each. */
static fv_status enter_dir(const fv_recipe *r, const fv_recipe_job *job, const fv_env *env,
                           int *lock, bool *fresh, fv_err *e)
{
    bool writes = !fv_comm_rank(job->comm);
    fv_status st = FV_OK;
    if (writes && fv__is_dir(env, job->dir)) st = fv__dir_lock(lock, env, job->dir, e);
    if (!st && writes) st = check_dir(job, env, fresh, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st) st = fv_comm_broadcast(job->comm, fresh, sizeof *fresh, 0, e);
    return st || *fresh ? st : compare_recipes(r, env, job->dir, e);
}

/* [continual]: the feeds become those of tasks, and so many updates as their epochs need are
 * made. */
static fv_status arrange_tasks(fv_recipe *r, const fv_recipe_job *job, fv__input *in,
                               const fv__messages *m, fv_err *e)
{
    const fv_train_opt *o = &r->train;
    if (!fv__continual_wanted(&r->continual)) return FV_OK;
    fv_status st = FV_OK;
    if (o->shards || fv_comm_size(job->comm) > 1)
        st = fv_fail(e, FV_EARG, "tasks in turn are learnt on one rank, without train.shards");
    if (!st)
        st = fv__continual_wrap(&in->train, &in->valid, &r->continual, in->env, &in->labels,
                                (uint64_t)o->seed, e);
    if (!st)
        st = fv__continual_updates(&in->train, in->env, o->batch_tokens, o->batch_rows,
                                   o->accumulate, (uint64_t)o->seed, &r->train.updates, e);
    if (!st) fv__message(m, "%lld updates for all tasks", (long long)r->train.updates);
    return fv__recipe_prefix_error(r, "[continual]", st, e);
}

/* [distill]: a teacher beside the feeds, or two passes. */
static fv_status take_teacher(const fv_recipe *r, fv__input *in, fv_device *d, fv_err *e)
{
    fv_status st = fv__distill_wrap(&in->train, &r->train, fv__recipe_objective(r)->head, d, e);
    return fv__recipe_prefix_error(r, "[distill] teacher", st, e);
}

/* Everything is opened before anything is written. */
fv_status fv_recipe_train(fv_recipe *r, const fv_recipe_job *job, fv_train_state *out, fv_err *e)
{
    const fv_env *env = fv_device_env(job->device);
    const fv__messages m = {fv_comm_rank(job->comm) ? NULL : job->on_message, job->user};
    const char *from = fv__late_get(&r->model, "from");
    fv__input in = {.env = env};
    fv_dir *source = NULL;
    fv_model *model = NULL;
    fv__tensor tensor = {0};
    bool fresh = true;
    int lock = -1;
    *out = (fv_train_state){.loss = NAN, .valid = NAN, .metric = NAN, .best = NAN};
    fv_status st = fv_recipe_check(r, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st && job->dir) st = enter_dir(r, job, env, &lock, &fresh, e);
    if (!st && from)
        st = fv__recipe_prefix_error(r, "[model] from", fv_dir_open(&source, env, from, e), e);
    if (!st) st = fv__input_open(&in, r, env, source, fresh ? NULL : job->dir, &m, e);
    if (!st) st = take_teacher(r, &in, job->device, e);
    if (!st) st = arrange_tasks(r, job, &in, &m, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st) st = fv__tensor_open(&tensor, &r->train, job->comm, e);
    if (!st) st = fv__recipe_model(&model, r, job->device, &in, source, tensor.model, &m, e);
    if (!st) st = prepare(&in, model, job->device, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st) st = compare_ranks(r, job, model, &in, e);
    if (!st)
        st = job->dir ? train_in_dir(r, job, fresh, &lock, model, tensor.copies, &in, out, e)
                      : dry_run(r, job, model, tensor.copies, &in, &m, e);
    if (st) fv_comm_abort(job->comm, e ? e->text : "training failed");
    fv_model_free(model);
    fv__tensor_close(&tensor);
    fv_dir_close(source);
    fv__input_close(&in);
    fv__dir_unlock(&lock, env);
    return st;
}
