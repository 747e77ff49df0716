/* transducer.c - the objective of transducers: what is said, over all alignments of frames and
 * tokens.
 *
 * Recordings and their texts come from a table or from folders (data/speech.h).  The padding token
 * is the blank, with which the label encoder begins. */
#include "objective/part/recognise.h"

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    return fv__recognise_open(out, t, from, true, report, e);
}

static const char *const loss_inputs[] = {"decoder_input_ids", "input_lengths", "labels",
                                          "label_lengths", NULL};

const fv_objective fv__objective_transducer = {
    FV__RECOGNISE_PARTS,
    .name = "transducer",
    .help = "the text of each recording, by frames and prefixes of the text (RNN-T)",
    .head = FV_HEAD_TRANSDUCER,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
