/* token_stream.h - running text as one sequence of tokens, cut into windows that shift from epoch
 * to epoch. */
#ifndef FV_TOKEN_STREAM_H
#define FV_TOKEN_STREAM_H

#include "data/records.h"
#include "fovea/author/op.h"
#include "fovea/author/config.h"

/* Options of the objectives that read running text; each lists the keys it has. */
typedef struct fv__stream_opt {
    int64_t context; /* tokens of a window, special ones included */
    float mask, span;
} fv__stream_opt;

#define FV__KEY_CONTEXT                                                                            \
    FV_INT(fv__stream_opt, context, 2, 256, 1 << 20, "tokens of a window of running text")
#define FV__KEY_MASK                                                                               \
    FV_FLOAT(fv__stream_opt, mask, 0.01, 0.15, 0.9, "share of tokens that are hidden")
#define FV__KEY_SPAN FV_FLOAT(fv__stream_opt, span, 1, 3, 100, "mean length of a hidden span")

typedef struct fv__token_stream {
    const fv_env *env;
    fv_feed_opt task;
    int32_t *ids;
    size_t bytes;
    int64_t n;
    int64_t width; /* tokens of a window */
    /* from one window to the next: width, or one less where neighbours share a token */
    int64_t step;
} fv__token_stream;

/* width: tokens of a window; shared: windows overlap by one token. */
fv_status fv__token_stream_open(fv__token_stream **out, const fv_feed_opt *t,
                                const fv_records *from, int64_t width, bool shared,
                                fv_data_report *report, fv_err *e);
void fv__token_stream_close(void *self);
int64_t fv__token_stream_count(const void *self, int64_t epoch);
void fv__token_stream_size(const void *self, int64_t i, int64_t *source, int64_t *target);
/* Window i of the epoch: *n tokens, fewer than width only at the end of the text. */
const int32_t *fv__token_stream_window(const fv__token_stream *r, int64_t i, fv_data_rng how,
                                       int64_t *n);

/* Random numbers by counter: each (stream, row, position) has its own 32-bit word, number in [0, n)
 * (0 where n is 0) and number in [0, 1). */
static inline uint32_t fv__rng_word(fv_data_rng how, uint64_t stream, int64_t row, int64_t position,
                                    int k)
{
    uint32_t w[4];
    fv_philox(w, how.seed, 16 + stream, (uint64_t)(how.epoch + 1),
              (uint64_t)row << 24 ^ (uint64_t)position);
    return w[k];
}
/* Below n, by remainder: the bias is n / 2^32 and does not matter for positions. */
static inline int64_t fv__rng_below(fv_data_rng how, uint64_t stream, int64_t row, int64_t position,
                                    int64_t n)
{
    return n > 0 ? (int64_t)(fv__rng_word(how, stream, row, position, 0) % (uint64_t)n) : 0;
}
static inline double fv__rng_uniform(fv_data_rng how, uint64_t stream, int64_t row,
                                     int64_t position)
{
    return fv__rng_word(how, stream, row, position, 1) * 0x1p-32;
}

#endif
