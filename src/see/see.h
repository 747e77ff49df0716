/* see.h - what the files of this folder share: the record, the picture in numbers, and the
 * writers. */
#ifndef FV_SEE_SEE_H
#define FV_SEE_SEE_H

#include "base/base.h"
#include "fovea/see.h"

typedef struct fv_see_layer {
    const fv_attn_view *view; /* lives in the context */
    char name[128];
} fv_see_layer;

/* All attentions of one kind; they have one shape. */
typedef struct fv_see_map {
    fv_see_layer *layer;
    size_t capacity; /* bytes */
    int64_t layers, heads, rows, cols;
    char **row, **col; /* rows and cols of them, or NULL */
} fv_see_map;

struct fv_see {
    const fv_env *env;
    fv_ctx *ctx;
    bool own; /* the context is ours */
    int64_t batch;
    fv_err err; /* of the tap, which cannot return one */
    fv_see_map map[FV_SEE_KINDS];
};

/* What an attention of this name is. */
fv_see_kind fv__see_kind(const char *name, bool causal);
/* Runs m in c on the tokens of in; the texts are checked first. */
fv_status fv__see_pass(fv_ctx *c, const fv_model *m, const fv_see_in *in, fv_items *out, fv_err *e);

/* The mean of the heads of one layer, or one of them; scratch: (to-from, cols) where it is the
 * mean. */
fv_status fv__see_layer_rows(fv_see *s, fv_see_kind k, int64_t layer, int64_t head, int64_t from,
                             int64_t to, float *out, float *scratch, fv_err *e);
/* Rows [from,to) of a rollout up to layer. */
fv_status fv__see_rollout(fv_see *s, fv_see_kind k, int64_t layer, int64_t from, int64_t to,
                          float *out, fv_err *e);

/* Refuses a layer, head or kind that is not there, in a sentence. */
fv_status fv__see_check(const fv_see *s, fv_see_pick p, fv_err *e);
/* "Cross-attention, layer 1, head 2" */
void fv__see_title(char *out, size_t n, const fv_see *s, fv_see_pick p);

/* A block of rows small enough to be held beside others, at least one. */
static inline int64_t fv__see_block(int64_t cols)
{
    return cols < 65536 ? 65536 / (cols ? cols : 1) : 1;
}

/* ---- writers: all append to an open file ---- */

fv_status fv__see_json(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e);
fv_status fv__see_csv(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e);
fv_status fv__see_html(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e);
/* format: "svg", "png", "pdf" */
fv_status fv__see_picture(fv_out *o, fv_see *s, const fv_see_opt *opt, const char *format,
                          fv_err *e);

/* The character at s, which is not the end, into out; malformed bytes become U+FFFD.  Returns how
 * many were read. */
int fv__see_char(char out[4], const char *s);
/* Text as a JSON string, quotes included; "<" as an escape, so that it can stand inside a page. */
void fv__see_quote(fv_buf *b, const char *text);

#endif
