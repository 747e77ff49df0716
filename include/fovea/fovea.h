/* fovea.h - self-attention in C: the whole public surface, in reading order.
 *
 * error.h   how failure is reported              ops.h    the operations, attention among them
 * env.h     memory and files, replaceable        nn.h     layers: linear, norm, attention, encoder, decoder
 * device.h  where kernels run                    see op.h and backend.h to add an op or a backend
 * tensor.h  contexts, tensors, parameters         info.h   what this build is made of
 * tok.h     tokenizers */
#ifndef FOVEA_H
#define FOVEA_H

#define FV_VERSION "0.1.0"

#include "fovea/device.h"
#include "fovea/env.h"
#include "fovea/error.h"
#include "fovea/info.h"
#include "fovea/nn.h"
#include "fovea/ops.h"
#include "fovea/tensor.h"
#include "fovea/tok.h"

/* The version of the library that is running, to hold against FV_VERSION. */
FV_API const char *fv_version(void);

#endif
