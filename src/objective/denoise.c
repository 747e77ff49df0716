/* denoise.c - BART's pre-training objective: running text restored from one with masked spans. */
#include "data/feed_parts.h"
#include "data/infill.h"
#include "fovea/author/objective.h"

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    return fv__infill_open(out, t, from, false, report, e);
}

static const fv_field keys[] = {FV__KEY_CONTEXT, FV__KEY_MASK, FV__KEY_SPAN, {0}};
static const char *const loss_inputs[] = {"decoder_input_ids", "labels", NULL};

const fv_objective fv__objective_denoise = {
    .name = "denoise",
    .help = "running text restored from one with masked spans (BART)",
    .keys = keys,
    .options_size = sizeof(fv__stream_opt),
    FV__ENCODER_TEXTS,
    .texts = fv_texts_first,
    .head = FV_HEAD_SEQ2SEQ,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
