/* schedule.c - the options of training, and the learning rate they ask for. */
#include <math.h>
#include <stddef.h>

#include "fovea/train.h"

static const char *const schedules[] = {"inverse_sqrt", "cosine", "linear", "constant", NULL};

const fv_field fv_train_fields[] = {
    FV_INT(fv_train_opt, updates, 1, 10000, 1e12, "updates of the parameters in all"),
    FV_INT(fv_train_opt, batch_tokens, 1, 4096, 1e9, "padded tokens of a batch, each side"),
    FV_INT(fv_train_opt, accumulate, 1, 1, 1e6, "batches whose gradients make one update"),
    FV_FLOAT(fv_train_opt, lr, 0, 5e-4, 100, "highest learning rate"),
    FV_CHOICE(fv_train_opt, schedule, 0, schedules, "how it falls after the warm-up"),
    FV_INT(fv_train_opt, warmup, 0, 4000, 1e12, "updates over which it rises from zero"),
    FV_FLOAT(fv_train_opt, beta1, 0, 0.9, 0.99999, "decay of the mean gradient"),
    FV_FLOAT(fv_train_opt, beta2, 0, 0.98, 0.99999999, "decay of the mean square"),
    FV_FLOAT(fv_train_opt, eps, 0, 1e-9, 1, "added to its root"),
    FV_FLOAT(fv_train_opt, decay, 0, 0, 10, "weight decay, apart from the gradient (AdamW)"),
    FV_FLOAT(fv_train_opt, clip, 0, 1, 1e9, "greatest norm of the gradient; 0: no limit"),
    FV_FLOAT(fv_train_opt, smooth, 0, 0.1, 0.999, "label smoothing"),
    FV_INT(fv_train_opt, seed, 0, 1, 9e15, "of parameters, dropout and the order of the data"),
    FV_INT(fv_train_opt, log_every, 1, 50, 1e9, "updates between lines of train.jsonl"),
    FV_INT(fv_train_opt, eval_every, 0, 500, 1e12, "updates between evaluations; 0: only at the end"),
    FV_INT(fv_train_opt, save_every, 0, 1000, 1e12, "updates between checkpoints; 0: only at the end"),
    FV_INT(fv_train_opt, keep, 1, 3, 1000, "checkpoints kept"),
    FV_INT(fv_train_opt, average, 0, 0, 1000, "the result is the mean of so many last checkpoints; 0: of none"),
    FV_INT(fv_train_opt, patience, 0, 0, 1e6, "stop after so many evaluations without a new best; 0: never"),
    {0},
};

double fv_learning_rate(const fv_train_opt *o, int64_t step)
{
    double t = (double)step, warm = (double)o->warmup, top = (double)o->lr;
    if (step < o->warmup) return top * t / warm;
    double done = o->updates > o->warmup ? (t - warm) / (double)(o->updates - o->warmup) : 1;
    if (done > 1) done = 1;
    switch ((fv_schedule)o->schedule) {
    case FV_INVERSE_SQRT: return top * sqrt((warm > 0 ? warm : 1) / (t > 0 ? t : 1));
    case FV_COSINE: return top * 0.5 * (1 + cos(3.14159265358979323846 * done));
    case FV_LINEAR: return top * (1 - done);
    case FV_CONSTANT: break;
    }
    return top;
}
