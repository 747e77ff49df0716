/* recognise.h - what the objectives of recognisers share: batches of recordings and texts, and the
 * word error rate of what the model hears in them. */
#ifndef FV_OBJECTIVE_RECOGNISE_H
#define FV_OBJECTIVE_RECOGNISE_H

#include "data/speech.h"
#include "fovea/author/objective.h"

typedef struct fv__recognise_keys {
    fv__speech_opt speech; /* first: fv__speech_texts */
    /* of a model that hears streams */
    int chunk, left;
    float stream;
    bool valid_stream;
} fv__recognise_keys;

extern const fv_field fv__recognise_fields[];

/* input_features (n,T,F) or input_values (n,N), attention_mask (n,T), or (n,T,T) where a share of
 * the rows is heard in chunks, input_lengths (n), labels (n,U), label_lengths (n), and with
 * with_blank decoder_input_ids (n,U+1), the blank first. */
fv_status fv__recognise_open(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                             bool with_blank, fv_data_report *report, fv_err *e);

/* Entries that both have; specials: the blank comes first. */
extern const char *const fv__recognise_specials[];
fv_status fv__recognise_processor(fv_processor **out, const fv_env *env, const void *own,
                                  const fv_records *from, fv_processor *tok, fv_err *e);
int64_t fv__recognise_value(const void *own, const fv_processor *p, const char *key);

#define FV__RECOGNISE_PARTS                                                                        \
    .keys = fv__recognise_fields, .options_size = sizeof(fv__recognise_keys),                      \
    .processor = "audio", .specials = fv__recognise_specials, .texts = fv__speech_texts,           \
    .make_processor = fv__recognise_processor, .config_value = fv__recognise_value

#endif
