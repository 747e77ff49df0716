/* eval_shots.c - few-shot evaluation: draws of examples, and figures over numbers and seeds.
 *
 * For each number K and each seed the first K of a shuffled order of the examples are solved in
 * front of every record, so a larger K only adds examples to those of a smaller one with the same
 * seed.  What is printed is the mean over seeds and its deviation: with few examples the draw
 * often matters more than the model (Zhao et al. 2021), and one draw says little. */
#include "eval_shots.h"

#include <ini.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/backend.h"
#include "fovea/author/config.h"

const fv_field fv_shots_fields[] = {
    FV_TEXT(fv_shots_opt, prompt, "", "what the model reads, {} being the text; the task's own"),
    FV_TEXT(fv_shots_opt, labels, "", "words for labels: \"0=negative 1=positive\""),
    FV_TEXT(fv_shots_opt, examples, "", "file that solved examples are drawn from"),
    FV_TEXT(fv_shots_opt, shots, "0", "numbers of examples: \"0 1 4\""),
    FV_INT(fv_shots_opt, seeds, 1, 5, 10000, "draws for each number"),
    FV_INT(fv_shots_opt, seed, 0, 1, 9e15, "the first of them"),
    FV_INT(fv_shots_opt, most, 0, 0, 1e12, "records that are judged; 0: all"),
    FV_BOOL(fv_shots_opt, calibrate, true, "figures also calibrated by texts without content"),
    {0},
};

/* ---- the recipe ---- */

typedef struct reading {
    fv_shots_opt *out;
    fv_err e;
} reading;

/* inih's callback for each key = value; 0 ends it. */
static int take(void *user, const char *section, const char *key, const char *value)
{
    reading *r = user;
    if (strcmp(section, "shots") != 0) return 1;
    return !fv_fields_set(r->out, fv_shots_fields, key, value, &r->e);
}

fv_status fv_shots_read(fv_shots_opt *out, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    reading r = {.out = out};
    fv_buf text = {.env = env};
    fv_fields_default(out, fv_shots_fields);
    fv_status st = fv__file_read(&f, env, path, 1 << 20, e);
    if (st) return st;
    fv__buf_add(&text, f.data, f.size);
    fv__file_close(&f);
    int line = text.failed ? -1 : ini_parse_string(text.data ? text.data : "", take, &r);
    fv__buf_free(&text);
    if (r.e.code) return fv_fail(e, FV_EUSAGE, "%s:%d: [shots] %s", path, line, r.e.text);
    return line ? fv_fail(e, FV_EFORMAT, "%s:%d: expected key = value", path, line) : FV_OK;
}

/* ---- examples ---- */

void fv__shots_prompt(const fv__shots *s, fv_buf *b, const char *text)
{
    const char *how = *s->opt.prompt ? s->opt.prompt : s->task->prompt;
    fv__buf_add(b, s->solved.data ? s->solved.data : "", s->solved.len);
    fv__put_template(b, how, text, strlen(text));
}

/* Fisher and Yates by counters: a function of the seed alone. */
static void shuffle(fv__shots *s, uint64_t seed)
{
    for (int64_t i = 0; i < s->solved_text.n; i++) s->order[i] = i;
    for (int64_t i = s->solved_text.n - 1; i > 0; i--) {
        uint32_t w[4];
        fv_philox(w, seed, 0x73686f74, 0, (uint64_t)i);
        int64_t k = (int64_t)((((uint64_t)w[0] << 32) | w[1]) % (uint64_t)(i + 1)),
                swap = s->order[i];
        s->order[i] = s->order[k];
        s->order[k] = swap;
    }
}

/* What stands behind the prompt where the reference is given: a label's word, or the first of
 * several references. */
static const char *solution(const fv__shots *s, const char *gold, size_t *n)
{
    for (int i = 0; i < s->labels; i++)
        if (!strcmp(s->label[i], gold)) gold = s->word[i];
    *n = strcspn(gold, FV_NEXT_TEXT);
    return gold;
}

static fv_status solve(fv__shots *s, int64_t shots, fv_err *e)
{
    s->solved.len = 0;
    for (int64_t i = 0; i < shots; i++) {
        fv_buf one = {.env = &s->r->env};
        size_t n;
        const char *text = s->solved_text.at[s->order[i]],
                   *gold = solution(s, s->solved_gold.at[s->order[i]], &n),
                   *how = *s->opt.prompt ? s->opt.prompt : s->task->prompt;
        fv__put_template(&one, how, text, strlen(text));
        fv__buf_str(&one, " ");
        fv__buf_add(&one, gold, n);
        fv__buf_str(&one, "\n\n");
        fv__buf_add(&s->solved, one.data ? one.data : "", one.len);
        bool failed = one.failed || s->solved.failed;
        fv__buf_free(&one);
        if (failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    }
    return FV_OK;
}

/* ---- the table ---- */

typedef struct draws {
    int64_t shots;
    double mean[FV__SHOT_FIGURES], deviation[FV__SHOT_FIGURES];
    double *each; /* (seeds, figures) */
} draws;

static void put_plain(const fv__shots *s, const draws *d, int n)
{
    fv_buf *b = &s->r->out;
    fv__buf_fmt(b, "%lld records, %lld draws of examples\n%5s", (long long)s->text.n,
                (long long)s->opt.seeds, "shots");
    for (int f = 0; f < FV__SHOT_FIGURES; f++)
        if (s->task->figure[f]) fv__buf_fmt(b, "  %20s", s->task->figure[f]);
    for (int i = 0; i < n; i++) {
        fv__buf_fmt(b, "\n%5lld", (long long)d[i].shots);
        for (int f = 0; f < FV__SHOT_FIGURES; f++)
            if (s->task->figure[f])
                fv__buf_fmt(b, "  %11.2f +- %5.2f", d[i].mean[f], d[i].deviation[f]);
    }
    fv__buf_str(b, "\n");
}

static void put_json(const fv__shots *s, const draws *d, int n)
{
    fv_buf *b = &s->r->out;
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", s->task->name, strlen(s->task->name));
    fv__json_int_at(b, "records", s->text.n);
    fv__json_int_at(b, "first_seed", s->opt.seed);
    fv__json_key(b, "shots");
    fv__json_begin(b, '[');
    for (int i = 0; i < n; i++) {
        fv__json_begin(b, '{');
        fv__json_int_at(b, "shots", d[i].shots);
        for (int f = 0; f < FV__SHOT_FIGURES; f++) {
            if (!s->task->figure[f]) continue;
            fv__json_key(b, s->task->figure[f]);
            fv__json_begin(b, '{');
            fv__json_number_at(b, "mean", d[i].mean[f]);
            fv__json_number_at(b, "deviation", d[i].deviation[f]);
            fv__json_key(b, "seeds");
            fv__json_begin(b, '[');
            for (int64_t k = 0; k < s->opt.seeds; k++)
                fv__json_put_number(b, d[i].each[k * FV__SHOT_FIGURES + f]);
            fv__json_end(b, ']');
            fv__json_end(b, '}');
        }
        fv__json_end(b, '}');
    }
    fv__buf_str(b, "]}\n");
}

/* Mean and standard deviation over seeds. */
static void sum_up(draws *d, int64_t seeds)
{
    for (int f = 0; f < FV__SHOT_FIGURES; f++) {
        double sum = 0, squares = 0;
        for (int64_t k = 0; k < seeds; k++) sum += d->each[k * FV__SHOT_FIGURES + f];
        d->mean[f] = sum / (double)seeds;
        for (int64_t k = 0; k < seeds; k++) {
            double off = d->each[k * FV__SHOT_FIGURES + f] - d->mean[f];
            squares += off * off;
        }
        d->deviation[f] = seeds > 1 ? sqrt(squares / (double)(seeds - 1)) : 0;
    }
}

/* Without examples all draws are alike: one pass serves them. */
static fv_status one_number(fv__shots *s, draws *d, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t k = 0; !st && k < s->opt.seeds; k++) {
        double *to = d->each + k * FV__SHOT_FIGURES;
        if (k && !d->shots) {
            memcpy(to, d->each, FV__SHOT_FIGURES * sizeof *to);
            continue;
        }
        shuffle(s, (uint64_t)(s->opt.seed + k));
        st = solve(s, d->shots, e);
        if (!st) st = s->task->judge(s, to, e);
    }
    sum_up(d, s->opt.seeds);
    return st;
}

/* "0 1 4" or "0,1,4" -> d[i].shots; returns how many, or -1 with an error. */
static int read_numbers(const fv__shots *s, draws *d, fv_err *e)
{
    int n = 0;
    const char *at = s->opt.shots;
    while (*(at += strspn(at, " ,"))) {
        char *end;
        long long k = strtoll(at, &end, 10);
        bool bad = end == at || (*end && !strchr(" ,", *end)) || k < 0 || n == FV__SHOT_COUNTS;
        if (bad || (k && k > s->solved_text.n)) {
            fv_fail(e, FV_EUSAGE,
                    "shots: expected at most %d numbers from 0 to %lld (the examples), not \"%s\"",
                    FV__SHOT_COUNTS, (long long)s->solved_text.n, s->opt.shots);
            return -1;
        }
        d[n++].shots = k;
        at = end;
    }
    if (!n) fv_fail(e, FV_EUSAGE, "shots: a number is needed");
    return n ? n : -1;
}

static fv_status judge_all(fv__shots *s, fv_err *e)
{
    draws d[FV__SHOT_COUNTS] = {0};
    int n = read_numbers(s, d, e);
    if (n < 0) return FV_EUSAGE;
    size_t each = (size_t)(s->opt.seeds * FV__SHOT_FIGURES) * sizeof(double);
    double *memory = fv__alloc(&s->r->env, (size_t)n * each);
    s->order_bytes = (size_t)s->solved_text.n * sizeof *s->order + 1;
    s->order = fv__alloc(&s->r->env, s->order_bytes);
    fv_status st = memory && s->order ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; !st && i < n; i++) {
        d[i].each = memory + (int64_t)i * s->opt.seeds * FV__SHOT_FIGURES;
        st = one_number(s, &d[i], e);
    }
    if (!st) (s->r->opt->json ? put_json : put_plain)(s, d, n);
    if (memory) fv__free(&s->r->env, memory, (size_t)n * each);
    return st;
}

/* ---- one evaluation ---- */

static void close_all(fv__shots *s)
{
    fv_pipeline_close(s->pipe);
    fv__eval_texts_free(&s->text);
    fv__eval_texts_free(&s->gold);
    fv__eval_texts_free(&s->solved_text);
    fv__eval_texts_free(&s->solved_gold);
    fv__buf_free(&s->solved);
    fv__buf_free(&s->words);
    if (s->order) fv__free(&s->r->env, s->order, s->order_bytes);
    fv__free(&s->r->env, s->prior, s->prior_bytes);
    fv__arena_free(&s->memory);
}

static void cut(fv_eval_texts *t, int64_t most)
{
    while (most && t->n > most) {
        t->n--;
        fv__free(t->env, t->at[t->n], t->len[t->n] + 1);
    }
}

fv_status fv_eval_shots(fv_device *d, const fv_eval_opt *opt, const fv_shots_opt *shots,
                        fv_task_result_fn *fn, void *user, fv_err *e)
{
    static const fv__shot_task *const tasks[] = {&fv__shots_classify, &fv__shots_answer,
                                                 &fv__shots_translate};
    fv_eval_run r = {
        .env = *fv_device_env(d), .dev = d, .opt = opt, .fd = -1, .fn = fn, .user = user};
    fv__shots s = {.r = &r, .opt = *shots, .memory.env = &r.env};
    const char *name = opt->task ? opt->task : "classify";
    r.out.env = r.predictions.env = s.solved.env = s.words.env = &r.env;
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (!strcmp(tasks[i]->name, name)) s.task = tasks[i];
    if (fv_comm_size(opt->comm) > 1)
        return fv_fail(e, FV_EUSAGE, "few-shot evaluation runs on one rank");
    if (!s.task)
        return fv_fail(e, FV_EUSAGE,
                       "task: few-shot evaluation has classify, answer and "
                       "translate, not '%s'",
                       name);
    if (*s.opt.prompt && !strstr(s.opt.prompt, "{}"))
        return fv_fail(e, FV_EUSAGE, "prompt: no {} for the text in \"%.200s\"", s.opt.prompt);
    if (!opt->model || !opt->file)
        return fv_fail(e, FV_EUSAGE, "a model and a file of records are needed: -m DIR FILE");
    fv_status st = s.task->open(&s, e);
    cut(&s.text, s.opt.most);
    cut(&s.gold, s.opt.most);
    if (!st) st = judge_all(&s, e);
    if (!st && r.out.failed) st = fv_fail(e, FV_ENOMEM, "out of memory for the report");
    fv_task_result result = {.text = r.out.data ? r.out.data : "", .n = r.out.len};
    if (!st) fn(user, &result);
    fv__buf_free(&r.out);
    fv__buf_free(&r.predictions);
    close_all(&s);
    return st;
}
