/* load.h - what the readers of the sections of a tokenizer.json share. */
#ifndef FV_TOK_JSON_LOAD_H
#define FV_TOK_JSON_LOAD_H

#include "base/json/reader.h"
#include "tok/tok.h"

fv_status fv__load_model(fv_tok *t, fv__jval v, fv_err *e);
fv_status fv__load_normaliser(fv_tok *t, fv__jval v, fv_err *e);
fv_status fv__load_splitter(fv_tok *t, fv__jval v, fv_err *e);
fv_status fv__load_post(fv_tok *t, fv__jval v, fv_err *e);
fv_status fv__load_decoder(fv_tok *t, fv__jval v, fv_err *e);

/* {"token": id, ...} */
fv_status fv__json_vocab(fv__vocab *out, fv__pool *p, fv__jval v, fv_err *e);
/* Adds merge number i of a and b; joined has the capacity for both.  NULL, or what is wrong with
 * it. */
const char *fv__bpe_add(fv__model *m, int32_t i, fv__str a, fv__str b, char *joined);
/* {"String": s} or {"Regex": s}, compiled. */
/* The pattern of UnicodeScripts. */
fv_status fv__scripts_pattern(fv__pattern *out, fv_tok *t, fv_err *e);
fv_status fv__json_pattern(fv__pattern *out, fv_tok *t, fv__jobj *o, const char *key, fv_err *e);

/* A section is one step, or a Sequence of them, nested as deep as the file likes: it is flattened.
 * Calls one(t, o, type, e) for each step in order; o is its object, to be emptied. */
typedef fv_status (*fv__step_reader)(fv_tok *t, fv__jobj *o, fv__str type, fv_err *e);
fv_status fv__json_steps(fv_tok *t, fv__jval v, const char *list, fv__step_reader one, fv_err *e);
/* How many steps that is. */
int64_t fv__json_step_count(fv__jval v, const char *list);

/* A number as serde_json reads it; infinite where it is too large. */
double fv__json_score(const char *s, size_t n);

#endif
