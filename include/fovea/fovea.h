/* fovea.h - self-attention in C: the whole public surface, in reading order.
 *
 * error.h      how failure is reported
 * env.h        memory and files, replaceable
 * device.h     devices and dtypes
 * tensor.h     contexts, tensors, parameters, taps
 * items.h      tensors by name: what goes into a model and comes out
 * ops.h        the operations, attention among them
 * nn.h         layers; position.h: positions; pack.h: weights packed for products
 * store.h      safetensors, configurations, model directories, checkpoints; array.h: small matrices
 * tok.h        tokenizers; processor.h: what prepares a model's inputs
 * model.h      families of models, opened and saved
 * session.h    the KV cache of sequences that are generated
 * gen.h        generating: greedy, sampling, beams, a scheduler; chat.h, translate.h
 * data.h       records and labels; feed.h: batches and their loader; grammar.h: the demo's corpus
 * metric.h     BLEU, chrF, ROUGE, F1
 * train.h      optimiser, schedule, checkpoints; recipe.h: the configuration of a run
 * task.h       texts in, labels and spans out; pipeline.h: every task over a stream of records
 * see.h        attention, captured and drawn
 * info.h       what this build is made of
 *
 * Not included here, for authors: author/family.h to add a family, author/objective.h an objective,
 * author/processor.h a processor, author/op.h an operation; author/backend.h, author/kernels.h and
 * author/kernel_args.h to add a backend. */
#ifndef FOVEA_H
#define FOVEA_H

#define FV_VERSION "0.1.0"

#include "fovea/error.h"
#include "fovea/env.h"
#include "fovea/device.h"
#include "fovea/tensor.h"
#include "fovea/items.h"
#include "fovea/ops.h"
#include "fovea/nn.h"
#include "fovea/position.h"
#include "fovea/pack.h"
#include "fovea/store.h"
#include "fovea/array.h"
#include "fovea/tok.h"
#include "fovea/processor.h"
#include "fovea/model.h"
#include "fovea/session.h"
#include "fovea/gen.h"
#include "fovea/chat.h"
#include "fovea/translate.h"
#include "fovea/data.h"
#include "fovea/feed.h"
#include "fovea/grammar.h"
#include "fovea/metric.h"
#include "fovea/train.h"
#include "fovea/recipe.h"
#include "fovea/task.h"
#include "fovea/pipeline.h"
#include "fovea/see.h"
#include "fovea/info.h"

/* The version of the library that is running, to hold against FV_VERSION. */
FV_API const char *fv_version(void);

#endif
