/* fovea.h - self-attention in C: the whole public surface, in reading order.
 *
 * error.h    how failure is reported             model.h    families of models, opened and saved
 * env.h      memory and files, replaceable       gen.h      generating: sessions, a scheduler
 * device.h   where kernels run                   data.h     parallel text, encoded and batched
 * tensor.h   contexts, tensors, parameters       train.h    optimiser, schedule, checkpoints
 * ops.h      the operations                      metric.h   BLEU and chrF
 * nn.h       layers; position.h, pack.h          grammar.h  the demonstration corpus
 * tok.h      tokenizers                          array.h    small matrices from files
 * store.h    safetensors, configuration          see.h      attention, captured and drawn
 * task.h     texts in, labels and spans out      info.h     what this build is made of
 * items.h    tensors by name, in and out         feed.h     where batches come from
 * translate.h lines in, lines out               chat.h     conversations, and their templates
 *
 * Not included here, for authors: author/family.h to add a family, author/op.h to add an operation;
 * author/backend.h, author/kernels.h and author/kernel_args.h to add a backend. */
#ifndef FOVEA_H
#define FOVEA_H

#define FV_VERSION "0.1.0"

#include "fovea/array.h"
#include "fovea/chat.h"
#include "fovea/data.h"
#include "fovea/device.h"
#include "fovea/env.h"
#include "fovea/error.h"
#include "fovea/feed.h"
#include "fovea/gen.h"
#include "fovea/grammar.h"
#include "fovea/info.h"
#include "fovea/items.h"
#include "fovea/metric.h"
#include "fovea/model.h"
#include "fovea/nn.h"
#include "fovea/ops.h"
#include "fovea/pack.h"
#include "fovea/pipeline.h"
#include "fovea/processor.h"
#include "fovea/recipe.h"
#include "fovea/see.h"
#include "fovea/store.h"
#include "fovea/task.h"
#include "fovea/tensor.h"
#include "fovea/tok.h"
#include "fovea/train.h"
#include "fovea/translate.h"

/* The version of the library that is running, to hold against FV_VERSION. */
FV_API const char *fv_version(void);

#endif
