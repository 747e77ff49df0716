/* classify.c - scores of labels for each text. */
#include <math.h>

#include "task.h"

typedef struct scoring {
    enum { PLAIN, ONE, MANY } how;
    float *out;
} scoring;

static const char *problem(const fv_task *t)
{
    const char *p = fv_json_text(fv_dir_config(t->dir), "problem_type");
    return p ? p : "";
}

bool fv_task_many(const fv_task *t) { return !strcmp(problem(t), "multi_label_classification"); }

static fv_status score_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    const scoring *c = user;
    float *y = c->out + i * width;
    (void)s, (void)e;
    memcpy(y, out[0], (size_t)width * sizeof *y);
    if (c->how == ONE) fv__softmax_row(y, width);
    for (int64_t j = 0; c->how == MANY && j < width; j++)
        y[j] = (float)(1 / (1 + exp(-(double)y[j])));
    return FV_OK;
}

static fv_status score_all(fv_task *t, const fv_text *texts, int64_t n, scoring c, fv_err *e)
{
    fv_seq *seqs;
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &seqs, texts, n, e);
    fv_wanted w = {.names = {"logits"}, .per_token = 1, .fn = score_row, .user = &c};
    return st ? st : fv__task_run(t, seqs, n, &w, e);
}

/* As transformers chooses: a regression's value as it is, the sigmoid for one label or many that go
 * together. */
fv_status fv_task_classify(fv_task *t, const fv_text *texts, int64_t n, float *scores, fv_err *e)
{
    scoring c = {.how = ONE, .out = scores};
    if (!strcmp(problem(t), "regression"))
        c.how = PLAIN;
    else if (fv_task_many(t) || t->labels == 1)
        c.how = MANY;
    return score_all(t, texts, n, c, e);
}

fv_status fv_task_logits(fv_task *t, const fv_text *texts, int64_t n, float *logits, fv_err *e)
{
    return score_all(t, texts, n, (scoring){.how = PLAIN, .out = logits}, e);
}
