/* put.h - values of a tokenizer.json as JSON text. */
#ifndef FV_TOK_JSON_PUT_H
#define FV_TOK_JSON_PUT_H

#include "tok/tok.h"

/* A string in quotes, escaped as serde_json does; members come with the comma before them. */
void fv__put_str(fv_buf *b, fv__str s);
void fv__put_bool(fv_buf *b, const char *key, bool x);
void fv__put_member(fv_buf *b, const char *key, fv__str s);
void fv__put_double(fv_buf *b, double x);
void fv__put_base64(fv_buf *b, fv__str s);
void fv__put_pattern(fv_buf *b, const fv__pattern *p);

#endif
