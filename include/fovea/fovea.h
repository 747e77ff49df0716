/* fovea.h - self-attention in C: all a program needs to run, train and look into models, in reading
 * order.
 *
 * error.h      how failure is reported
 * env.h        memory and files, replaceable
 * device.h     devices and dtypes
 * tensor.h     contexts, tensors, taps, parameters
 * items.h      tensors by name: what goes into a model and comes out
 * ops.h        the operations, attention among them
 * store.h      safetensors; array.h: small matrices; fields.h: options by name
 * tok.h        tokenizers; processor.h: what prepares a model's inputs
 * model.h      models, opened, run and saved
 * gen.h        generating: greedy, sampling, beams, a scheduler; chat.h, translate.h
 * records.h    how files of records are read
 * comm.h       ranks: the processes of one job
 * train.h      training; recipe.h: the configuration of a run
 * task.h       texts in, labels and spans out; pipeline.h: every task over a stream of records
 * see.h        attention, captured and drawn
 * info.h       what this build is made of
 *
 * Those who add to the library (ops, layers, families, objectives, data, backends) include the
 * headers in author/ too; author/author.h lists them.
 *
 * Options are structs passed by value or by pointer in which zero means the default.  A later
 * version may add members at the end of one, and zero will then mean what it did before: write
 * {.member = value} or {0}, never a list of values in order, and compile against the headers of
 * the library that is linked.  Structs whose members are not shown are made and freed by the
 * library. */
#ifndef FOVEA_H
#define FOVEA_H

#define FV_VERSION "0.1.0"

#include "fovea/error.h"
#include "fovea/env.h"
#include "fovea/device.h"
#include "fovea/tensor.h"
#include "fovea/items.h"
#include "fovea/ops.h"
#include "fovea/store.h"
#include "fovea/array.h"
#include "fovea/fields.h"
#include "fovea/tok.h"
#include "fovea/processor.h"
#include "fovea/model.h"
#include "fovea/gen.h"
#include "fovea/chat.h"
#include "fovea/translate.h"
#include "fovea/records.h"
#include "fovea/comm.h"
#include "fovea/train.h"
#include "fovea/recipe.h"
#include "fovea/task.h"
#include "fovea/pipeline.h"
#include "fovea/see.h"
#include "fovea/info.h"

/* The version of the library that is running, to hold against FV_VERSION. */
FV_API const char *fv_version(void);

#endif
