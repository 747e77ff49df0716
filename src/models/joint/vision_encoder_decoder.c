/* vision_encoder_decoder.c - an encoder of images and a decoder of text in one model: captions.
 *
 *     x = encoder(pixel_values), projected where the widths differ;   logits = decoder(ids, x)
 *
 * Both halves are families by themselves, named by the model_type of `encoder` and `decoder` in
 * config.json.  Their parameters are declared below "encoder." and "decoder.", and they are reached
 * by the interface of families alone: any encoder that takes pixel_values, any decoder that attends
 * to what others have encoded (fv_family.attend).  Copying both halves into one file lost: every
 * pair of families would have been a family. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "core/params.h"
#include "model/part.h"

static const fv_family_head heads[] = {
    {"VisionEncoderDecoderModel", .job = FV_HEAD_SEQ2SEQ},
    {0},
};

typedef struct config {
    int decoder_start_token_id, pad_token_id;
} config;

static const fv_field fields[] = {
    FV_INT(config, decoder_start_token_id, 0, -1, 1 << 24, "what a text begins with"),
    FV_INT(config, pad_token_id, 0, -1, 1 << 24, "padding"),
    {0},
};

static const fv_key_rule rules[] = {
    {"encoder", NULL}, /* read by the families of the halves */
    {"decoder", NULL},
    {"is_encoder_decoder", "true"},
    {"tie_word_embeddings", NULL}, /* the decoder's own key counts */
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"pixel_values", FV_F32, true},
    {"decoder_input_ids", FV_I32, false},
    {"decoder_attention_mask", FV_U8, false},
    {"labels", FV_I32, false},
    {0},
};

#define MAX_NAMES 24

/* One of the two. */
typedef struct half {
    const fv_family *family;
    void *self;
    fv_load_opt load; /* with names of the whole */
} half;

typedef struct joint {
    config cfg;
    half encoder, decoder;
    fv_lin projection; /* no weight: the widths are equal */
    fv_tie ties[MAX_NAMES + 1];
    const char *ignore[2 * MAX_NAMES + 1];
} joint;

/* ---- parameters ---- */

/* Declaring cannot return a status: the first error sticks to the parameters, with the half it is
 * about. */
static void fail(fv_params *p, fv_status code, const char *which, const char *text)
{
    fv_err e;
    fv_fail(&e, code, "%s: %s", which, text);
    fv__params_fail(p, &e);
}

/* The architecture of a half: the bare encoder, or the language model. */
static const fv_family_head *head_of(const fv_family *f, fv_head_job job)
{
    for (const fv_family_head *h = f->heads; h->name; h++)
        if (h->job == job && (!h->type || !strcmp(h->type, f->type))) return h;
    return NULL;
}

/* Finds the family of `which` ("encoder"), reads its configuration and declares it below that. */
static void declare_half(half *l, const fv_setup *s, const char *which, fv_head_job job)
{
    char at[64], scope[32];
    fv_err e;
    fv_params *p = s->params;
    snprintf(at, sizeof at, "%s.model_type", which);
    const char *type = fv_json_text(s->json, at);
    l->family = type ? fv_family_find(type) : NULL;
    const fv_family *f = l->family;
    const fv_family_head *head = f ? head_of(f, job) : NULL;
    if (!head || (job == FV_HEAD_BASE ? !fv_family_takes(f, "pixel_values") : !f->attend)) {
        fail(p, FV_EMISSING, which,
             type ? "model_type is of a family that cannot be it here" : "model_type is missing");
        return;
    }
    const fv_key_rule *all[] = {fv_keys_common, f->rules, NULL};
    void *k = fv_params_scratch(p, f->config_size);
    l->self = fv_params_scratch(p, f->size);
    if (!k || !l->self) return;
    fv_status st = fv_fields_read(k, f->config, s->json, which, all, &e);
    if (!st && f->check) st = f->check(k, &e);
    if (st) {
        fail(p, st, which, e.text);
        return;
    }
    snprintf(scope, sizeof scope, "%s.", which);
    fv__params_scope(p, scope);
    f->declare(
        l->self,
        &(fv_setup){.params = p, .config = k, .head = head, .file = s->file, .json = s->json});
    fv__params_scope(p, "");
}

/* A name of a half as the whole has it; one that begins with '*' fits as it is. */
static const char *below(fv_params *p, const char *which, const char *name)
{
    char path[256];
    if (*name == '*') return name;
    size_t n = (size_t)snprintf(path, sizeof path, "%s.%s", which, name) + 1;
    char *kept = n <= sizeof path ? fv_params_scratch(p, n) : NULL;
    return kept ? memcpy(kept, path, n) : name;
}

/* What the halves tie and leave unread, under their names in the whole.  Lists are of this model,
 * as those of a family live only as long as its own. */
static void merge_load(joint *m, fv_params *p, const half *l, const char *which, int *ties,
                       int *ignored)
{
    if (!l->self || !l->family->load) return;
    fv_load_opt own = l->family->load(l->self);
    for (const fv_tie *t = own.ties; t && t->name && *ties < MAX_NAMES; t++)
        m->ties[(*ties)++] = (fv_tie){below(p, which, t->name), below(p, which, t->same_as)};
    for (const char *const *n = own.ignore; n && *n && *ignored < 2 * MAX_NAMES; n++)
        m->ignore[(*ignored)++] = below(p, which, *n);
}

/* hidden_size of a half, by whatever name its family has it. */
static int64_t width(const fv_setup *s, const char *which, const char *key)
{
    char at[64];
    double x = 768; /* the default of all of them */
    snprintf(at, sizeof at, "%s.%s", which, key);
    if (!fv_json_number(s->json, at, &x)) {
        snprintf(at, sizeof at, "%s.hidden_size", which);
        fv_json_number(s->json, at, &x);
    }
    return (int64_t)x;
}

/* Where the widths differ a linear map stands between the halves; transformers names it
 * enc_to_dec_proj. */
static void declare(void *self, const fv_setup *s)
{
    joint *m = self;
    fv_params *p = s->params;
    int ties = 0, ignored = 0;
    m->cfg = *(const config *)s->config;
    if (!s->json) return;
    declare_half(&m->encoder, s, "encoder", FV_HEAD_BASE);
    declare_half(&m->decoder, s, "decoder", FV_HEAD_CAUSAL_LM);
    int64_t from = width(s, "encoder", "hidden_size"), to = width(s, "decoder", "n_embd");
    if (from != to) fv_lin_init(p, &m->projection, from, to, (fv_lin_opt){0}, "enc_to_dec_proj");
    merge_load(m, p, &m->encoder, "encoder", &ties, &ignored);
    merge_load(m, p, &m->decoder, "decoder", &ties, &ignored);
}

static fv_load_opt load(const void *self)
{
    const joint *m = self;
    return (fv_load_opt){.ties = m->ties, .ignore = m->ignore};
}

/* Tables that a half computes once its parameters are there. */
static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    joint *m = self;
    const half *halves[] = {&m->encoder, &m->decoder};
    fv_status st = FV_OK;
    for (int i = 0; !st && i < 2; i++)
        if (halves[i]->family->ready) st = halves[i]->family->ready(halves[i]->self, p, e);
    return st;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    joint *m = self;
    if (m->encoder.family->pack) m->encoder.family->pack(m->encoder.self, p, dtype);
    if (m->decoder.family->pack) m->decoder.family->pack(m->decoder.self, p, dtype);
    fv_lin_pack(p, &m->projection, dtype);
}

/* ---- forward ---- */

/* What a half shows by the tap, under its name in the whole: "encoder_hidden_states". */
typedef struct renamed {
    fv_tap_fn *tap;
    void *user;
    const char *hidden;
} renamed;

/* Both halves call what they show "hidden_states"; only that name is changed, maps have their
 * paths. */
static void rename_hidden(void *user, fv_ctx *c, const char *site, const char *name,
                          const void *what)
{
    const renamed *r = user;
    r->tap(r->user, c, site, strcmp(site, "hidden") ? name : r->hidden, what);
}

/* The tap is put back before anything else runs: it lies on this call's stack. */
static void run_half(fv_ctx *c, const half *l, const fv_items *in, fv_items *out,
                     const char *hidden)
{
    renamed r = {c->tap, c->tap_user, hidden};
    if (r.tap) fv_ctx_set_tap(c, rename_hidden, &r);
    l->family->forward(c, l->self, in, out);
    if (r.tap) fv_ctx_set_tap(c, r.tap, r.user);
}

/* (B,T,D) of the decoder's width; *last gets what the encoder made. */
static fv_tensor *encode(fv_ctx *c, const joint *m, const fv_items *in, fv_tensor **last)
{
    fv_items image = {0}, out = {0};
    fv_items_put(&image, "pixel_values", fv_items_get(in, "pixel_values"));
    run_half(c, &m->encoder, &image, &out, "encoder_hidden_states");
    *last = fv_items_get(&out, "last_hidden_state");
    return m->projection.w ? fv_lin_fwd(c, &m->projection, *last) : *last;
}

/* The decoder's own loss would shift labels; here they are shifted already, so the loss is taken of
 * its logits. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const joint *m = self;
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"), *labels = fv_items_get(in, "labels"),
              *last;
    if (!ids && labels && m->cfg.decoder_start_token_id < 0) {
        fv_raise(c, FV_EARG, "labels without decoder_input_ids need a decoder_start_token_id");
        return;
    }
    if (!ids && labels)
        ids = fv__shift_right(c, labels, m->cfg.decoder_start_token_id,
                              m->cfg.pad_token_id < 0 ? 0 : m->cfg.pad_token_id);
    if (!ids) {
        fv_raise(c, FV_EARG, "vision-encoder-decoder: neither decoder_input_ids nor labels");
        return;
    }
    fv_items text = {0}, made = {0};
    fv_items_put(&text, "input_ids", ids);
    fv_items_put(&text, "attention_mask", fv_items_get(in, "decoder_attention_mask"));
    fv_items_put(&text, "encoder_hidden_states", encode(c, m, in, &last));
    run_half(c, &m->decoder, &text, &made, "decoder_hidden_states");
    fv__put_tokens(c, in, out, fv_items_get(&made, "logits"), labels);
    fv_items_put(out, "encoder_last_hidden_state", last);
}

/* ---- generation ---- */

/* Images of a batch are all of one size, so there is no mask of patches. */
static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const joint *m = self;
    fv_tensor *last;
    m->decoder.family->attend(c, m->decoder.self, s, encode(c, m, in, &last), NULL);
}

/* From here on the decoder generates as it does alone: the session is its own. */
static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const joint *m = self;
    return m->decoder.family->step(c, m->decoder.self, s, ids);
}

static int64_t vocabulary(const void *self)
{
    const joint *m = self;
    return m->decoder.family->vocabulary(m->decoder.self);
}

static int64_t context(const void *self)
{
    const joint *m = self;
    return m->decoder.family->context ? m->decoder.family->context(m->decoder.self) : 0;
}

const fv_family fv__family_vision_encoder_decoder = {
    .type = "vision-encoder-decoder",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(joint),
    .declare = declare,
    .longest = context,
    .load = load,
    .ready = ready,
    .pack = pack,
    .forward = forward,
    .begin = begin,
    .vocabulary = vocabulary,
    .context = context,
    .step = step,
};
