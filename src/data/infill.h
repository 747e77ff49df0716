/* infill.h - the feed behind the objectives spans and denoise. */
#ifndef FV_INFILL_H
#define FV_INFILL_H

#include "data/token_stream.h"
#include "fovea/author/data.h"

/* t->options is an fv__stream_opt.  sentinels: a sentinel stands for each hidden span and the
 * target holds the spans (T5); else the mask token does and the target is the whole text
 * (BART). */
fv_status fv__infill_open(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                          bool sentinels, fv_data_report *report, fv_err *e);

#endif
