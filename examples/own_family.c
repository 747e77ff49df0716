/* own_family.c - a family of models of one's own, in its own file: what a file of src/models does,
 * outside of the library.
 *
 *     x = E[ids] + P[positions];   x += attn(norm x);   x += mlp(norm x);   logits = norm(x) E'
 *
 * The table says which keys config.json has, declare() gives each parameter its name, forward()
 * writes the block out.  From these the library opens and saves directories, initialises, loads,
 * differentiates.  The program makes such a model, saves it, opens it again and compares.
 *
 * Build it against an installed fovea:  cc own_family.c $(pkg-config --cflags --libs fovea) -o
 * own_family;  run it with a directory to write to. */
#include <stdio.h>
#include <string.h>

#include <fovea/author/family.h>
#include <fovea/fovea.h>

/* ---- the family ---- */

typedef struct config {
    int vocab_size, width, layers, heads, longest;
} config;

static const fv_field fields[] = {
    /* key, least, default, greatest, what it is */
    FV_INT(config, vocab_size, 1, 64, 1 << 20, "tokens"),
    FV_INT(config, width, 1, 32, 1 << 16, "model width"),
    FV_INT(config, layers, 1, 2, 64, "layers"),
    FV_INT(config, heads, 1, 4, 256, "attention heads"),
    FV_INT(config, longest, 1, 32, 1 << 20, "longest sequence"),
    {0},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"TinyForCausalLM", .job = FV_HEAD_CAUSAL_LM},
    {0},
};

typedef struct block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
} block;

typedef struct tiny {
    config cfg;
    fv_emb tokens;
    fv_pos positions;
    block *blocks;
    fv_norm norm;
} tiny;

/* Failures stick to the parameters: nothing is checked here. */
static void declare(void *self, const fv_setup *s)
{
    tiny *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    fv_emb_init(p, &m->tokens, k->vocab_size, k->width, 0.1f, "tokens");
    fv_pos_init(p, &m->positions, k->longest, k->width, FV_POS_LEARNED, 0, 0.1f, "positions");
    m->blocks = fv_params_scratch(p, (size_t)k->layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->layers; i++) {
        block *b = &m->blocks[i];
        fv_norm_init(p, &b->attn_norm, k->width, (fv_norm_opt){0}, "blocks.%d.attn_norm", i);
        fv_mha_init(p, &b->attn, k->width, k->heads, (fv_mha_opt){0}, "blocks.%d.attn", i);
        fv_norm_init(p, &b->mlp_norm, k->width, (fv_norm_opt){0}, "blocks.%d.mlp_norm", i);
        fv_mlp_init(p, &b->mlp, k->width, 4 * (int64_t)k->width, (fv_mlp_opt){.act = FV_GELU},
                    "blocks.%d.mlp", i);
    }
    fv_norm_init(p, &m->norm, k->width, (fv_norm_opt){0}, "norm");
}

/* (B,T) -> logits (B,T,V); labels are those of the next tokens, -100 where there is none. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const tiny *m = self;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *labels = fv_items_get(in, "labels");
    fv_tensor *x = fv_pos_fwd(c, &m->positions, fv_emb_fwd(c, &m->tokens, ids), NULL);
    for (int i = 0; i < m->cfg.layers; i++) {
        const block *b = &m->blocks[i];
        fv_tensor *h = fv_norm_fwd(c, &b->attn_norm, x);
        x = fv_add(c, x, fv_mha_fwd(c, &b->attn, h, (fv_mha_arg){.causal = true}));
        x = fv_add(c, x, fv_mlp_fwd(c, &b->mlp, fv_norm_fwd(c, &b->mlp_norm, x)));
    }
    fv_tensor *logits = fv_emb_logits(c, &m->tokens, fv_norm_fwd(c, &m->norm, x));
    fv_items_put(out, "logits", logits);
    if (labels) fv_items_put(out, "loss", fv_loss_tokens(c, logits, labels, in));
}

static const fv_family family = {
    .type = "tiny",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(tiny),
    .declare = declare,
    .forward = forward,
};

/* ---- its use ---- */

#define B 2
#define T 5
#define V 64

/* Logits and loss of a small batch, into host memory. */
static fv_status run(fv_device *d, const fv_model *m, float *logits, float *loss, fv_err *e)
{
    static const int32_t ids[B * T] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3},
                                 next[B * T] = {1, 4, 1, 5, -100, 2, 6, 5, 3, -100};
    fv_ctx *c = NULL;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (st) return st;
    fv_items in = {.n_labels = 8}, out = {0};
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(B, T)));
    fv_items_put(&in, "labels", fv_ints(c, next, FV_SHAPE(B, T)));
    fv_model_forward(c, m, &in, &out);
    fv_read(c, fv_items_get(&out, "logits"), logits, (int64_t)B * T * V);
    fv_read(c, fv_items_get(&out, "loss"), loss, 1);
    st = fv_ctx_status(c);
    if (st) *e = *fv_ctx_err(c);
    fv_ctx_free(c);
    return st;
}

int main(int argc, char **argv)
{
    static float first[B * T * V], again[B * T * V];
    float loss[2];
    const char *dir = argc > 1 ? argv[1] : "tiny";
    fv_model_opt opt = {.family = &family}; /* nothing else has to know about it */
    fv_device *d = NULL;
    fv_model *made = NULL, *opened = NULL;
    fv_err e;
    fv_status st = fv_device_open(&d, "cpu", (fv_device_opt){0}, &e);
    if (!st) st = fv_model_new(&made, d, "{\"model_type\": \"tiny\", \"layers\": 3}", opt, 1, &e);
    if (!st) st = run(d, made, first, &loss[0], &e);
    if (!st) st = fv_model_save(made, dir, FV_F32, &e);
    if (!st) st = fv_model_open(&opened, d, dir, opt, &e);
    if (!st) st = run(d, opened, again, &loss[1], &e);
    if (st)
        fprintf(stderr, "%s\n", e.text);
    else
        printf("%s: %d parameters, loss %.4f, after reopening %s\n", fv_model_head(opened),
               fv_params_count(fv_model_params(opened)), (double)loss[1],
               memcmp(first, again, sizeof first) ? "different" : "the same");
    fv_model_free(opened);
    fv_model_free(made);
    fv_device_close(d);
    return st ? 1 : 0;
}
