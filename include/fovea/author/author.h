/* author.h - all headers for those who add to the library, in reading order.
 *
 * op.h           an operation: tensors made, recorded, kernels reached
 * tensor.h       members of tensors and contexts
 * params.h       parameters, declared and packed
 * ops.h          the rarer operations
 * nn.h           layers
 * position.h     positions: added, by distance, rotary
 * config.h       configurations: JSON, field tables, model directories
 * checkpoint.h   parameters in files, checkpoints
 * session.h      sessions step by step
 * family.h       a family of models
 * adapter.h      what is known of an adapter
 * tok.h          tokenizers
 * processor.h    a processor
 * audio.h        sound: clips, the audio processor
 * data.h         records, labels
 * feed.h         batches and their loader
 * grammar.h      the demonstration corpus
 * series.h       time series from files
 * events.h       events by user and time
 * metric.h       BLEU, chrF, ROUGE, F1
 * objective.h    a training objective
 * comm.h         collectives between ranks
 * train.h        optimiser and updates
 * demo.h         the demonstration: a translator of that corpus
 * gen.h          scores of continuations
 * recognise.h    tokens of a sound: CTC, transducers
 * see.h          attention of a pass of one's own
 * explain.h      which tokens a prediction rests on
 * task.h         what a task knows of its model
 * shots.h        few-shot evaluation
 * forecast.h     forecasts and back-tests
 * recommend.h    recommendations and their ranking
 * backend.h      a backend
 * kernels.h      its table of kernels
 * kernel_args.h  what they are given */
#ifndef FOVEA_AUTHOR_AUTHOR_H
#define FOVEA_AUTHOR_AUTHOR_H

#include "fovea/author/op.h"
#include "fovea/author/tensor.h"
#include "fovea/author/params.h"
#include "fovea/author/ops.h"
#include "fovea/author/nn.h"
#include "fovea/author/position.h"
#include "fovea/author/config.h"
#include "fovea/author/checkpoint.h"
#include "fovea/author/session.h"
#include "fovea/author/family.h"
#include "fovea/author/adapter.h"
#include "fovea/author/tok.h"
#include "fovea/author/image.h"
#include "fovea/author/processor.h"
#include "fovea/author/audio.h"
#include "fovea/author/data.h"
#include "fovea/author/feed.h"
#include "fovea/author/grammar.h"
#include "fovea/author/series.h"
#include "fovea/author/events.h"
#include "fovea/author/metric.h"
#include "fovea/author/objective.h"
#include "fovea/author/comm.h"
#include "fovea/author/train.h"
#include "fovea/author/demo.h"
#include "fovea/author/gen.h"
#include "fovea/author/recognise.h"
#include "fovea/author/speak.h"
#include "fovea/author/see.h"
#include "fovea/author/explain.h"
#include "fovea/author/task.h"
#include "fovea/author/shots.h"
#include "fovea/author/forecast.h"
#include "fovea/author/recommend.h"
#include "fovea/author/backend.h"
#include "fovea/author/kernels.h"
#include "fovea/author/kernel_args.h"

#endif
