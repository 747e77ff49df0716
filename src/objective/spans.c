/* spans.c - T5's pre-training objective: hidden spans of running text, named by sentinels. */
#include "data/infill.h"

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    return fv__infill_open(out, t, from, true, report, e);
}

static const fv_field keys[] = {FV__KEY_CONTEXT, FV__KEY_MASK, FV__KEY_SPAN, {0}};
static const char *const loss_inputs[] = {"decoder_input_ids", "labels", NULL};
static const char *const specials[] = {"<pad>",         "</s>",          "<unk>",
                                       "<extra_id_0>",  "<extra_id_1>",  "<extra_id_2>",
                                       "<extra_id_3>",  "<extra_id_4>",  "<extra_id_5>",
                                       "<extra_id_6>",  "<extra_id_7>",  "<extra_id_8>",
                                       "<extra_id_9>",  "<extra_id_10>", "<extra_id_11>",
                                       "<extra_id_12>", "<extra_id_13>", "<extra_id_14>",
                                       "<extra_id_15>", "<extra_id_16>", "<extra_id_17>",
                                       "<extra_id_18>", "<extra_id_19>", "<extra_id_20>",
                                       "<extra_id_21>", "<extra_id_22>", "<extra_id_23>",
                                       "<extra_id_24>", "<extra_id_25>", "<extra_id_26>",
                                       "<extra_id_27>", "<extra_id_28>", "<extra_id_29>",
                                       "<extra_id_30>", "<extra_id_31>", NULL};

const fv_objective fv__objective_spans = {
    .name = "spans",
    .help = "hidden spans of running text (T5)",
    .keys = keys,
    .options_size = sizeof(fv__stream_opt),
    .processor = "tokenizer",
    .specials = specials,
    .after = "</s>",
    .texts = fv_texts_first,
    .head = FV_HEAD_SEQ2SEQ_LM,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
