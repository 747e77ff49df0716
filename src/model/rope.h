/* rope.h - what config.json says of rotary positions, and the rotation of a batch or a step.
 *
 * transformers 5 reads one object, rope_parameters; files of transformers 4 have rope_scaling, with
 * rope_theta and partial_rotary_factor beside it.  Where a file has both objects rope_scaling
 * counts, and a key beside them counts where the object has none of its own. */
#ifndef FV_MODEL_ROPE_H
#define FV_MODEL_ROPE_H

#include "model/part.h"

#define FV__ROPE_FREQS 256 /* the most that a head has */

/* One of the objects; zeros where nothing is given. */
typedef struct fv__rope_object {
    int rope_type, type, original; /* type: rope_type as older files have it */
    float theta, factor, low, high, slow, fast, attention, mscale, mscale_all;
    double partial; /* not float: 0.7 of 10 is 7 */
    bool truncate;
    float short_factor[FV__ROPE_FREQS], long_factor[FV__ROPE_FREQS];
} fv__rope_object;

typedef struct fv__rope {
    fv__rope_object scaling, parameters;
    float theta;    /* beside the objects; 0: not given */
    double partial; /* likewise */
} fv__rope;

extern const char *const fv__rope_words[]; /* of rope_type; the first stands for none */

/* Fields of the object at `at` in the member of type fv__rope_object. */
#define FV__ROPE_OBJECT(at, config, member)                                                        \
    FV_CHOICE_KEY(at ".rope_type", config, member.rope_type, 0, fv__rope_words,                    \
                  "how positions beyond the trained ones are made"),                               \
        FV_CHOICE_KEY(at ".type", config, member.type, 0, fv__rope_words,                          \
                      "the same, as older files have it"),                                         \
        FV_FLOAT_KEY(at ".rope_theta", config, member.theta, 1, 0, 1e12,                           \
                     "base of the frequencies"),                                                   \
        FV_FLOAT_KEY(at ".factor", config, member.factor, 1e-3, 0, 1e6,                            \
                     "how much longer than trained"),                                              \
        FV_INT_KEY(at ".original_max_position_embeddings", config, member.original, 1, 0, 1 << 28, \
                   "positions trained on"),                                                        \
        FV_FLOAT_KEY(at ".low_freq_factor", config, member.low, 1e-3, 0, 1e6, "llama3"),           \
        FV_FLOAT_KEY(at ".high_freq_factor", config, member.high, 1e-3, 0, 1e6, "llama3"),         \
        FV_FLOAT_KEY(at ".beta_slow", config, member.slow, 1e-3, 0, 1e6, "yarn; 1 if not said"),   \
        FV_FLOAT_KEY(at ".beta_fast", config, member.fast, 1e-3, 0, 1e6, "yarn; 32 if not said"),  \
        FV_FLOAT_KEY(at ".attention_factor", config, member.attention, 1e-3, 0, 1e6,               \
                     "yarn, longrope; by the factor if not said"),                                 \
        FV_FLOAT_KEY(at ".mscale", config, member.mscale, 1e-3, 0, 1e6, "yarn"),                   \
        FV_FLOAT_KEY(at ".mscale_all_dim", config, member.mscale_all, 1e-3, 0, 1e6, "yarn"),       \
        FV_BOOL_KEY(at ".truncate", config, member.truncate, true,                                 \
                    "yarn: the ramp's bounds are whole numbers"),                                  \
        FV_NUMBERS_KEY(at ".short_factor", config, member.short_factor, 1e-6, 1e12,                \
                       "longrope: divides each frequency, up to the trained length"),              \
        FV_NUMBERS_KEY(at ".long_factor", config, member.long_factor, 1e-6, 1e12,                  \
                       "longrope: the same beyond it")

/* All fields of the member of type fv__rope; those of a family that rotates a part of each head. */
#define FV__ROPE(config, member)                                                                   \
    FV_FLOAT_KEY("rope_theta", config, member.theta, 1, 0, 1e12,                                   \
                 "base of the rotation's frequencies; 10000 if not said"),                         \
        FV__ROPE_OBJECT("rope_scaling", config, member.scaling),                                   \
        FV__ROPE_OBJECT("rope_parameters", config, member.parameters)
#define FV__ROPE_PARTIAL(config, member)                                                           \
    FV_FLOAT_KEY("partial_rotary_factor", config, member.partial, 0, -1, 1,                        \
                 "how much of a head is rotated"),                                                 \
        FV_FLOAT_KEY("rope_scaling.partial_rotary_factor", config, member.scaling.partial, 0, -1,  \
                     1, "the same"),                                                               \
        FV_FLOAT_KEY("rope_parameters.partial_rotary_factor", config, member.parameters.partial,   \
                     0, -1, 1, "the same")

/* What a family knows besides. */
typedef struct fv__rope_opt {
    int head;       /* width of a head */
    int positions;  /* max_position_embeddings */
    int original;   /* original_max_position_embeddings beside the objects, which counts; 0: none */
    float theta;    /* where the file gives none; 0: 10000 */
    double partial; /* likewise; 0: all of a head is rotated */
    bool yarn_is_long;   /* Phi-3: yarn is an earlier name of longrope */
    bool rotates_partly; /* it has the fields of FV__ROPE_PARTIAL */
} fv__rope_opt;

/* Whether the file has this object, with anything in it. */
bool fv__rope_is_given(const fv__rope_object *o);
fv_status fv__rope_check(const fv__rope *r, fv__rope_opt opt, fv_err *e);
/* r was checked and lives as long. */
fv_rotary fv__rope_rotary(const fv__rope *r, fv__rope_opt opt);

/* The rotation of a batch by its position_ids, or 0..T-1.  Those that grow with the length go by
 * each row's own positions, so that no row depends on those beside it; in training, where nothing
 * is read back, by T. */
fv_rope_arg fv__rope_batch(fv_ctx *c, const fv_rotary *r, const fv_items *in);
/* The same of a session's step with ids (rows,T). */
fv_rope_arg fv__rope_step(fv_ctx *c, const fv_rotary *r, fv_session *s, fv_tensor *ids);

#endif
