/* see.h - what the files of this folder share: the capture of a pass, its labels, and the writers.
 *
 * A forward pass is captured (capture.c) as one fv_see_map a kind of attention: views of the
 * attentions that ran, which hold queries, keys and log-sum-exps.  weights.c computes weights from
 * views when asked, rollout.c and alignment.c combine them, and the writers (numbers.c, draw/,
 * page/) ask for blocks of rows, so that a full map is held only where it is drawn. */
#ifndef FV_SEE_SEE_H
#define FV_SEE_SEE_H

#include "base/base.h"
#include "fovea/author/config.h"
#include "fovea/author/image.h"
#include "fovea/author/processor.h"
#include "fovea/see.h"

typedef struct fv_see_layer {
    const fv_attn_view *view; /* lives in the context */
    char name[128];
} fv_see_layer;

/* The patches of an image among the tokens of one side: high x wide of them, row by row, from token
 * `at` on; high 0: there are none. */
typedef struct fv_see_grid {
    int64_t at, high, wide;
} fv_see_grid;

/* The tokens along one side of a map. */
typedef struct fv_see_axis {
    int64_t n;
    char **text;   /* NULL: positions are shown */
    int32_t *word; /* which word a token is part of, rising from 0; NULL: each is one */
    int32_t *type; /* token types (0: sentence A, 1: sentence B); NULL: there is one sentence */
    fv_see_grid grid;
} fv_see_axis;

/* All attentions of one kind; they have one shape. */
typedef struct fv_see_map {
    fv_see_layer *layer;
    size_t capacity; /* bytes */
    int64_t layers, heads, rows, cols;
    bool causal; /* in all layers, and square: weights right of the diagonal are 0 */
    fv_see_axis row, col;
} fv_see_map;

/* An object that was found: the row of its token, and its edges (left, top, right, bottom) as
 * shares of the image. */
typedef struct fv_see_box {
    int64_t row;
    float edge[4];
} fv_see_box;

/* An image as a model sees it, or a sound or series as it is shown: its spectrogram (sound.c), its
 * line (series.c). */
typedef struct fv_see_image {
    const fv_env *env;
    fv_dir *dir;    /* of the model */
    fv_image shown; /* RGB, as the model sees it */
    float *pixels;  /* (C,H,W); of a sound what the model reads, of shape `shape` */
    size_t bytes;
    int channels;
    fv_processor *processor;
    int64_t latents; /* numbers that it is drawn from; 0: it was read */
    int64_t patch;   /* pixels of a patch's side; 0: its configuration does not say */
    int64_t objects; /* tokens behind the patches that stand for objects */
    fv_shape shape;
    double seconds; /* of a sound, moments of a series; 0: it is an image */
    double heard;   /* the share of the encoder's positions that are sound, the rest is padding */
    /* of a series: when each of its patches begins, and the channel that is shown; NULL: none */
    char (*date)[40];
    int64_t dates, channel;
    char name[256]; /* of the file */
} fv_see_image;

typedef struct fv_see_guide fv_see_guide; /* guided.c */

struct fv_see {
    const fv_env *env;
    fv_ctx *ctx;
    bool own;     /* the context is ours */
    bool outline; /* labels without weights */
    int64_t batch;
    fv_err err; /* of the tap, which cannot return one */
    fv_see_map map[FV_SEE_KINDS];
    fv_see_image *image; /* NULL: texts alone were read */
    fv_see_guide *guide; /* of the image's attention by a text; NULL: none */
    fv_see_box *box;     /* what was found in it */
    int64_t boxes;
    size_t box_bytes;
};

/* The kind that an attention of this role belongs to. */
fv_see_kind fv__see_kind(const fv_attn_view *v);
/* Runs m in c on the tokens of in and on im, which may be NULL; the texts are checked first. */
fv_status fv__see_pass(fv_ctx *c, const fv_model *m, const fv_see_in *in, const fv_see_image *im,
                       fv_items *out, fv_err *e);

/* The same with these heads silenced; *ahead: the model predicts what comes next. */
fv_status fv__see_silent_pass(fv_ctx *c, const fv_model *m, const fv_see_in *in,
                              const fv_see_image *im, fv_items *out, const fv_see_pick *heads,
                              int n, bool *ahead, fv_err *e);

/* The image, or the sound, that in names, opened for m with the processor in its dir; NULL where it
 * names none. */
fv_status fv__see_image_open(fv_see_image **out, const fv_env *env, const fv_model *m,
                             const fv_see_in *in, fv_err *e);
void fv__see_image_free(fv_see_image *im); /* NULL is allowed */
/* The inputs of the image: pixel_values (1,C,H,W), or latents and the label of one to be drawn. */
void fv__see_put_image(fv_ctx *c, const fv_see_image *im, const fv_see_in *in, fv_items *items);
/* Whether m hears sounds; opening one, its input, and its positions among n. */
bool fv__see_hears(const fv_model *m);
fv_status fv__see_sound_open(fv_see_image *im, const char *path, fv_err *e);
void fv__see_put_sound(fv_ctx *c, const fv_see_image *im, fv_items *items);
fv_see_grid fv__see_sound_grid(const fv_see_image *im, int64_t n);
/* Whether m reads time series; opening one, a channel of it counted from 1 (0: the last), and its
 * input. */
bool fv__see_reads_series(const fv_model *m);
fv_status fv__see_series_open(fv_see_image *im, const char *path, int channel, fv_err *e);
void fv__see_put_series(fv_ctx *c, const fv_see_image *im, fv_items *items);
/* The items of a history, by number and by name; freed whether or not it could be opened. */
typedef struct fv_see_history {
    const fv_env *env;
    int32_t *ids;
    size_t bytes;
    fv_see_axis names;
} fv_see_history;
fv_status fv__see_history_open(fv_see_history *h, const fv_env *env, const fv_model *m,
                               const fv_see_in *in, fv_err *e);
void fv__see_history_free(fv_see_history *h);
/* A number of config.json, or of the part of it that is about images; 0: it has none. */
int64_t fv__see_setting(const fv_dir *dir, const char *key);
/* The image that was drawn, and how large a patch of n tokens is on it. */
fv_status fv__see_take_drawn(fv_see *s, const fv_items *out, int64_t n, fv_err *e);
/* Labels of n tokens of which the image's patches are some; on failure what there is stays in
 * *a. */
fv_status fv__see_axis_image(const fv_see *s, fv_see_axis *a, int64_t n, fv_err *e);
/* The row of the patch at row at[0] and column at[1] of patches; a sentence where there is none. */
fv_status fv__see_patch(const fv_see *s, fv_see_kind k, const int64_t at[2], int64_t *row,
                        fv_err *e);
/* Finds the objects that the outputs of a detector name, and labels their tokens in *a. */
fv_status fv__see_find_boxes(fv_see *s, fv_see_axis *a, const fv_items *out, fv_err *e);

/* What a text looks at: one pass with gradients, kept as *out.  Then weights a (to-from,n) of a
 * head become those that count for the text; and the scale of these, once the pass that is looked
 * at has been captured. */
fv_status fv__see_guide_run(fv_see_guide **out, fv_device *d, const fv_model *m,
                            const fv_see_in *in, const fv_see_image *im, fv_err *e);
void fv__see_guide_rows(const fv_see_guide *g, int64_t layer, int64_t head, int64_t heads,
                        int64_t from, int64_t to, float *a);
fv_status fv__see_guide_scale(fv_see *s, fv_err *e);
void fv__see_guide_free(fv_see_guide *g); /* NULL is allowed */

/* Labels of n tokens by their ids; tok NULL: the ids themselves.  The types stay NULL. */
bool fv__see_axis_label(const fv_env *env, fv_see_axis *a, const fv_tok *tok, const int32_t *ids,
                        int64_t n);
bool fv__see_axis_copy(const fv_env *env, fv_see_axis *to, const char *const *text,
                       const int32_t *word, const int32_t *type, int64_t n);
/* Appends a token's label to a word: a continuation loses its mark, a character cut into parts is
 * written once. */
void fv__see_join(fv_buf *b, const char *label, bool first);
void fv__see_axis_free(const fv_env *env, fv_see_axis *a);

/* The mean of the heads of one layer, or one of them; scratch: (to-from, cols) where it is the
 * mean. */
fv_status fv__see_layer_rows(fv_see *s, fv_see_kind k, int64_t layer, int64_t head, int64_t from,
                             int64_t to, float *out, float *scratch, fv_err *e);
/* Whether there is a rollout of this kind; else why not. */
fv_status fv__see_rolls(const fv_see *s, fv_see_kind k, fv_err *e);
/* next = rows of (mean + I) r, each divided by its sum: one layer of a rollout whose product so far
 * is r; all three (n,n). */
void fv__see_rollout_step(double *next, const double *r, const float *mean, int64_t n);
/* Rows [from,to) of a rollout up to layer. */
fv_status fv__see_rollout(fv_see *s, fv_see_kind k, int64_t layer, int64_t from, int64_t to,
                          float *out, fv_err *e);

/* flow.c: cap (layers,n,n), layer 0 first; top (n) is what enters above -> out (n). */
fv_status fv__explain_flow(const fv_env *env, const float *cap, int64_t layers, int64_t n,
                           const double *top, float *out, fv_err *e);
/* Capacities of the first `layers` layers, for that: rows of (A + I), A the mean of the heads,
 * divided by their sums; scratch (n,n). */
fv_status fv__see_capacities(fv_see *s, fv_see_kind k, int64_t layers, float *out, float *scratch,
                             fv_err *e);
/* Rows [from,to) of the attention flow up to layer. */
fv_status fv__see_flow(fv_see *s, fv_see_kind k, int64_t layer, int64_t from, int64_t to,
                       float *out, fv_err *e);

/* Refuses a layer, head or kind that is not there, in a sentence. */
fv_status fv__see_check(const fv_see *s, fv_see_pick p, fv_err *e);
/* Refuses an outline, which has labels alone. */
fv_status fv__see_check_pass(const fv_see *s, fv_err *e);
/* "Cross-attention, layer 1, head 2" */
void fv__see_title(char *out, size_t n, const fv_see *s, fv_see_pick p);

/* A block of rows small enough to be held beside others, at least one. */
static inline int64_t fv__see_block(int64_t cols)
{
    return cols < 65536 ? 65536 / (cols ? cols : 1) : 1;
}

/* In large maps weights are small: there shades go by the square root. */
static inline bool fv__see_by_root(int64_t cols) { return cols > 40; }

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
