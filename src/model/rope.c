/* rope.c - from what config.json says of rotary positions to the rotation of a batch.
 *
 * One reading for all families: transformers has one too (modeling_rope_utils.py), and keys that
 * are refused in one family and understood in another would be a riddle. */
#include "model/rope.h"

#include <math.h>

const char *const fv__rope_words[] = {"",       "default",  "linear", "dynamic", "yarn",
                                      "llama3", "longrope", "su",     NULL};
enum { NOT_GIVEN, DEFAULT, LINEAR, DYNAMIC, YARN, LLAMA3, LONGROPE, SU };

bool fv__rope_is_given(const fv__rope_object *o)
{
    return o->rope_type || o->type || o->theta > 0 || o->factor > 0 || o->original ||
           *o->short_factor != 0 || o->partial > 0;
}

static const fv__rope_object *object_of(const fv__rope *r)
{
    return fv__rope_is_given(&r->scaling) ? &r->scaling : &r->parameters;
}

static int word_of(const fv__rope_object *o, fv__rope_opt opt)
{
    int word = o->rope_type ? o->rope_type : o->type;
    if (!word) return DEFAULT;
    return word == SU || (word == YARN && opt.yarn_is_long) ? LONGROPE : word;
}

/* How much of a head is rotated, rounded down as transformers does. */
static int width_of(const fv__rope *r, fv__rope_opt opt)
{
    const fv__rope_object *o = object_of(r);
    double share = opt.partial > 0 ? opt.partial : 1;
    if (!opt.rotates_partly) return opt.head;
    if (r->partial >= 0) share = r->partial;
    if (o->partial >= 0) share = o->partial;
    return (int)(opt.head * share);
}

static int original_of(const fv__rope_object *o, fv__rope_opt opt)
{
    if (opt.original) return opt.original;
    return o->original ? o->original : opt.positions;
}

static int count(const float *x)
{
    int n = 0;
    while (n < FV__ROPE_FREQS && x[n] != 0) n++;
    return n;
}

fv_status fv__rope_check(const fv__rope *r, fv__rope_opt opt, fv_err *e)
{
    const fv__rope_object *o = object_of(r);
    int word = word_of(o, opt), width = width_of(r, opt);
    if (width < 2 || width % 2 || width > 2 * FV__ROPE_FREQS)
        return fv_fail(e, FV_EFORMAT,
                       "rotary positions turn %d of the %d elements of a head: expected an even "
                       "number from 2 to %d",
                       width, opt.head, 2 * FV__ROPE_FREQS);
    if (word != DEFAULT && word != LONGROPE && !(o->factor > 0))
        return fv_fail(e, FV_EFORMAT, "rotary positions of type %s need a factor",
                       fv__rope_words[word]);
    if (word == LLAMA3 && !(o->low > 0 && o->high > o->low))
        return fv_fail(e, FV_EFORMAT,
                       "rotary positions of type llama3 need a low_freq_factor and a "
                       "high_freq_factor above it");
    if (word == DYNAMIC && width < 4)
        return fv_fail(e, FV_EFORMAT, "rotary positions of type dynamic need a head of at least 4");
    if (word != LONGROPE) return FV_OK;
    if (count(o->short_factor) != width / 2 || count(o->long_factor) != width / 2)
        return fv_fail(e, FV_EFORMAT,
                       "longrope: short_factor and long_factor have %d and %d numbers, expected %d",
                       count(o->short_factor), count(o->long_factor), width / 2);
    if (original_of(o, opt) < 2)
        return fv_fail(e, FV_EFORMAT,
                       "longrope: original_max_position_embeddings is %d, expected at least 2",
                       original_of(o, opt));
    return FV_OK;
}

/* Yarn's attention factor where two scales of it are given; 0: by the factor alone. */
static float attention_of(const fv__rope_object *o)
{
    if (o->attention > 0 || !(o->mscale > 0) || !(o->mscale_all > 0)) return o->attention;
    if (!(o->factor > 1)) return 1;
    double grown = 0.1 * log((double)o->factor);
    return (float)(((double)o->mscale * grown + 1) / ((double)o->mscale_all * grown + 1));
}

/* Yarn's bounds are named slow and fast in the file, llama3's low and high; dynamic ones count from
 * max_position_embeddings whatever the original length was. */
fv_rotary fv__rope_rotary(const fv__rope *r, fv__rope_opt opt)
{
    static const fv_rotary_kind kinds[] = {
        [DEFAULT] = FV_ROTARY_PLAIN, [LINEAR] = FV_ROTARY_LINEAR, [DYNAMIC] = FV_ROTARY_DYNAMIC,
        [YARN] = FV_ROTARY_YARN,     [LLAMA3] = FV_ROTARY_LLAMA3, [LONGROPE] = FV_ROTARY_LONG};
    const fv__rope_object *o = object_of(r);
    int word = word_of(o, opt);
    bool yarn = word == YARN;
    fv_rotary y = {.kind = kinds[word],
                   .width = width_of(r, opt),
                   .base = o->theta > 0   ? o->theta
                           : r->theta > 0 ? r->theta
                                          : opt.theta,
                   .factor = o->factor,
                   .trained = word == DYNAMIC ? opt.positions : original_of(o, opt),
                   .low = yarn ? o->slow : o->low,
                   .high = yarn ? o->fast : o->high,
                   .attention_factor = yarn ? attention_of(o) : o->attention,
                   .no_truncate = !o->truncate,
                   .short_factor = o->short_factor,
                   .long_factor = o->long_factor};
    if (word == LONGROPE && !(o->factor > 0))
        y.factor = (float)opt.positions / (float)original_of(o, opt);
    return y;
}

/* ---- a batch, a step ---- */

fv_rope_arg fv__rope_batch(fv_ctx *c, const fv_rotary *r, const fv_items *in)
{
    fv_tensor *ids = fv_items_get(in, "input_ids"), *pos = fv_items_get(in, "position_ids");
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1);
    bool grows = fv_rotary_grows(r) && !fv_ctx_training(c) && (pos || T > r->trained);
    if (!pos) pos = fv_positions(c, B, T, 0);
    if (!grows) return fv_rotary_at(c, r, pos, T);
    int64_t *len = fv__step_memory(c, (size_t)B * sizeof *len);
    bool ok = len && fv__row_lengths(c, pos, fv_items_get(in, "attention_mask"), len);
    return ok ? fv_rotary_rows(c, r, pos, len, B) : (fv_rope_arg){0};
}

fv_rope_arg fv__rope_step(fv_ctx *c, const fv_rotary *r, fv_session *s, fv_tensor *ids)
{
    fv_tensor *at = fv_session_positions(c, s);
    if (!fv_rotary_grows(r)) return fv_rotary_at(c, r, at, 1);
    int64_t rows = fv_session_count(s), *len = fv__step_memory(c, (size_t)rows * sizeof *len);
    for (int64_t i = 0; len && i < rows; i++) len[i] = fv_session_span(s, i, fv_dim(ids, 1));
    return len ? fv_rotary_rows(c, r, at, len, rows) : (fv_rope_arg){0};
}
