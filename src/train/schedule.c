/* schedule.c - the options of training, and the learning rate they ask for.
 *
 * A resumed run may change how long it trains, how often it reports and saves, what it keeps, and
 * how much it computes at a time (one that did not fit its device goes on with smaller batches);
 * all else would make it another run. */
#include <math.h>
#include <stddef.h>

#include "fovea/train.h"
#include "fovea/author/config.h"
#include "fovea/author/train.h"

static const char *const schedules[] = {"inverse_sqrt", "cosine", "linear", "constant", NULL};
static const char *const results[] = {"last", "best", "average", "ema", NULL};
static const char *const dtypes[] = {"f32", "bf16", NULL};
static const char *const bases[] = {"f32", "q8", "q4", NULL};
static const char *const judges[] = {"loss", "metric", NULL};

const fv_field fv_train_fields[] = {
    FV_INT(fv_train_opt, updates, 1, 10000, 1e12, "updates of the parameters in all", FV_ON_RESUME),
    FV_INT(fv_train_opt, batch_tokens, 1, 4096, 1e9, "padded tokens of a batch, each side",
           FV_ON_RESUME),
    FV_INT(fv_train_opt, batch_rows, 0, 0, 1e6,
           "examples of a batch; 0: as many as its tokens allow", FV_ON_RESUME),
    FV_INT(fv_train_opt, accumulate, 1, 1, 65536, "batches whose gradients make one update",
           FV_ON_RESUME),
    FV_FLOAT(fv_train_opt, lr, 0, 5e-4, 100, "highest learning rate"),
    FV_FLOAT(fv_train_opt, lr_min, 0, 0, 100, "learning rate at which cosine and linear end"),
    FV_CHOICE(fv_train_opt, schedule, 0, schedules, "how it falls after the warm-up"),
    FV_INT(fv_train_opt, warmup, 0, 4000, 1e12, "updates over which it rises from zero"),
    FV_FLOAT(fv_train_opt, layer_decay, 0.01, 1, 1,
             "factor of the learning rate for each layer further from the output"),
    FV_TEXT(fv_train_opt, lr_scale, "", "factors by name: \"classifier*=10 *embed*=0.1\""),
    FV_TEXT(fv_train_opt, freeze, "", "names that are not trained; ! takes back: \"* !*.bias\""),
    FV_FLOAT(fv_train_opt, beta1, 0, 0.9, 0.99999, "decay of the mean gradient"),
    FV_FLOAT(fv_train_opt, beta2, 0, 0.98, 0.99999999, "decay of the mean square"),
    FV_FLOAT(fv_train_opt, eps, 1e-30, 1e-9, 1,
             "added to its root, so that nothing is divided by 0"),
    FV_FLOAT(fv_train_opt, decay, 0, 0, 10, "weight decay, apart from the gradient (AdamW)"),
    FV_FLOAT(fv_train_opt, clip, 0, 1, 1e9, "greatest norm of the gradient; 0: no limit"),
    FV_FLOAT(fv_train_opt, smooth, 0, 0, 0.999, "label smoothing"),
    FV_CHOICE(fv_train_opt, dtype, 0, dtypes,
              "of parameters and arithmetic; bf16 keeps f32 master weights"),
    FV_CHOICE(fv_train_opt, base, 0, bases,
              "with an adapter: how the weights of linear maps below it are held"),
    FV_BOOL(fv_train_opt, recompute, false,
            "keep only what enters each layer and compute the rest again: less memory",
            FV_ON_RESUME),
    FV_INT(fv_train_opt, seed, 0, 1, 9e15, "of parameters, dropout and the order of the data"),
    FV_INT(fv_train_opt, prefetch, 0, 4, 1024, "batches made ahead by threads; 0: no thread",
           FV_ON_RESUME),
    FV_INT(fv_train_opt, workers, 1, 1, 64, "threads that make them, at most prefetch",
           FV_ON_RESUME),
    FV_INT(fv_train_opt, log_every, 1, 50, 1e9, "updates between lines of train.jsonl",
           FV_ON_RESUME),
    FV_INT(fv_train_opt, eval_every, 0, 500, 1e12,
           "updates between evaluations; 0: only at the end", FV_ON_RESUME),
    FV_INT(fv_train_opt, save_every, 0, 1000, 1e12,
           "updates between checkpoints; 0: only at the end", FV_ON_RESUME),
    FV_INT(fv_train_opt, keep, 1, 3, 1000, "checkpoints kept", FV_ON_RESUME),
    FV_CHOICE(fv_train_opt, best_by, 0, judges, "what makes an evaluation the best", FV_ON_RESUME),
    FV_INT(fv_train_opt, patience, 0, 0, 1e6,
           "stop after so many evaluations without a new best; 0: never", FV_ON_RESUME),
    FV_INT(fv_train_opt, bleu, 0, 0, 1e6,
           "validation sentences translated at each evaluation for BLEU; 0: none", FV_ON_RESUME),
    FV_FLOAT(fv_train_opt, ema, 0, 0, 0.999999,
             "decay of a moving average of the parameters; 0: none"),
    FV_CHOICE(fv_train_opt, result, 0, results, "which parameters the model gets in the end",
              FV_ON_RESUME),
    FV_INT(fv_train_opt, average, 1, 10, 1000, "checkpoints whose mean is the result \"average\"",
           FV_ON_RESUME),
    FV_INT(fv_train_opt, shards, 0, 0, 4096,
           "pieces of a batch, by rows, that ranks share: the same bits for any number of ranks up "
           "to it; 0: batches are not cut"),
    FV_BOOL(fv_train_opt, fast_sums, false,
            "add up gradients as is fastest: other bits for another number of ranks", FV_ON_RESUME),
    {0},
};

fv_dtype fv_train_base(const fv_train_opt *o)
{
    static const fv_dtype held[] = {FV_F32, FV_Q8, FV_Q4};
    return held[o->base];
}
fv_dtype fv_train_dtype(const fv_train_opt *o) { return o->dtype == 1 ? FV_BF16 : FV_F32; }

/* Linear warm-up to lr, then
 *
 *     inverse_sqrt  lr sqrt(warmup / step)
 *     cosine        lr_min + (lr - lr_min) (1 + cos(pi done)) / 2
 *     linear        lr_min + (lr - lr_min) (1 - done)
 *     constant      lr
 *
 * where done goes from 0 at the end of the warm-up to 1 at the last update. */
double fv_learning_rate(const fv_train_opt *o, int64_t step)
{
    double t = (double)step, warm = (double)o->warmup, top = (double)o->lr, end = (double)o->lr_min;
    if (step < o->warmup) return top * t / warm;
    double done = o->updates > o->warmup ? (t - warm) / (double)(o->updates - o->warmup) : 1;
    if (done > 1) done = 1;
    switch ((fv_schedule)o->schedule) {
    case FV_INVERSE_SQRT: return top * sqrt((warm > 0 ? warm : 1) / (t > 0 ? t : 1));
    case FV_COSINE: return end + (top - end) * 0.5 * (1 + cos(3.14159265358979323846 * done));
    case FV_LINEAR: return end + (top - end) * (1 - done);
    case FV_CONSTANT: break;
    }
    return top;
}
