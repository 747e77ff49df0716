/* ctc.c - the objective of CTC models: what is said, as tokens spread over the frames of a sound.
 *
 * Recordings and their texts come from a table or from folders (data/speech.h).  The padding token
 * is the blank, as in wav2vec2. */
#include "objective/part/recognise.h"

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    return fv__recognise_open(out, t, from, false, report, e);
}

static const char *const loss_inputs[] = {"input_lengths", "labels", "label_lengths", NULL};

const fv_objective fv__objective_ctc = {
    FV__RECOGNISE_PARTS,
    .name = "ctc",
    .help = "the text of each recording, by frames (CTC)",
    .head = FV_HEAD_CTC,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
