/* yolos.c - YOLOS: a ViT that finds objects, with tokens behind the patches that each may answer
 * for one.
 *
 *     x = [class token, patches, detection tokens] + positions;   layers as in ViT, and after each
 *     but the last positions of its own are added;   of each detection token a class and a box
 *
 * The loss matches objects to tokens (model/detect.h).
 *
 * Paper: Fang et al. 2021 (arXiv:2106.00666). There is no decoder as DETR has one: detection
 * tokens pass the same layers as the patches. Names are those of transformers' YolosModel. */
#include <stddef.h>

#include "model/detect.h"
#include "model/vit.h"

static const fv_family_head heads[] = {
    {"YolosModel", .job = FV_HEAD_BASE},
    {"YolosForObjectDetection", FV_HEAD_DETECT, .base = "YolosModel"},
    {0},
};

typedef struct config {
    fv__vit_config vit;
    int num_detection_tokens;
    bool use_mid_position_embeddings;
    /* whole numbers: transformers refuses others */
    int class_cost, bbox_cost, giou_cost, bbox_loss_coefficient, giou_loss_coefficient;
    float eos_coefficient, dense_loss_coefficient;
} config;

static const fv_field fields[] = {
    FV__VIT_STACK_FIELDS,
    FV__VIT_LAYER_FIELDS,
    FV__VIT_FIELD(FV_INTS, image_size, 1, "512 864", 1 << 14, "height and width"),
    FV__VIT_FIELD(FV_INTS, patch_size, 1, "16", 1 << 12, "pixels of a patch's side"),
    FV__VIT_FIELD(FV_INT, num_channels, 1, 3, 1024, "channels of an image"),
    FV__VIT_FIELD(FV_BOOL, qkv_bias, true, "queries, keys and values have biases"),
    FV_INT(config, num_detection_tokens, 1, 100, 1 << 16, "objects that an image can have"),
    FV_BOOL(config, use_mid_position_embeddings, true, "positions are added between layers"),
    FV_INT(config, class_cost, 0, 1, 1000, "of a class, where objects are matched"),
    FV_INT(config, bbox_cost, 0, 5, 1000, "of the distance of boxes there"),
    FV_INT(config, giou_cost, 0, 2, 1000, "of how little they overlap"),
    FV_INT(config, bbox_loss_coefficient, 0, 5, 1000, "of the distance of boxes in the loss"),
    FV_INT(config, giou_loss_coefficient, 0, 2, 1000, "of how little they overlap"),
    FV_FLOAT(config, eos_coefficient, 0, 0.1, 1000, "weight of tokens that answer for nothing"),
    FV_FLOAT(config, dense_loss_coefficient, 0, 0, 1000,
             "of a loss that asks every patch for the object around it; 0: none"),
    FV__VIT_FIELD(FV_INT, num_labels, 1, 2, 1 << 20, "labels"),
    {0},
};

/* Losses of the layers before the last, as DETR has them, are not computed. */
static const fv_key_rule rules[] = {
    {"auxiliary_loss", "false"},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"pixel_values", FV_F32, true},
    {"class_labels", FV_I32, false},
    {"boxes", FV_F32, false},
    {0},
};

typedef struct yolos {
    config cfg;
    fv_head_job job;
    fv_tensor *class_token, *detection_tokens; /* (1,1,D), (1,Q,D) */
    fv_tensor *positions, *between;            /* (1,S,D), (layers-1,1,S,D) or NULL */
    fv_conv patches;
    fv__vit_block *blocks;
    fv_norm norm;
    fv_lin pooler, classes[3], boxes[3];
} yolos;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    const fv__vit_config *v = &k->vit;
    fv_status st = fv__vit_check(v, e);
    int64_t p = fv__side(&v->patch_size, 0);
    /* transformers sizes the tables between layers by pixels, those in front of them by patches */
    for (int axis = 0; !st && k->use_mid_position_embeddings && axis < 2; axis++)
        if (fv__side(&v->image_size, axis) % p)
            st = fv_fail(e, FV_EFORMAT, "image_size %lld is no multiple of patch_size %lld",
                         (long long)fv__side(&v->image_size, axis), (long long)p);
    return st;
}

/* ---- parameters ---- */

/* Three layers, D -> D -> D -> out. */
static void head_init(fv_params *p, fv_lin *l, int64_t D, int64_t out, float std, const char *path)
{
    for (int i = 0; i < 3; i++)
        fv_lin_init(p, &l[i], D, i < 2 ? D : out, (fv_lin_opt){.std = std}, "%s.layers.%d", path,
                    i);
}

/* One table of positions covers all S tokens: class token, grid, detection tokens.  The class head
 * has one more class, "no object". */
static void declare(void *self, const fv_setup *s)
{
    yolos *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const fv__vit_config *v = &k->vit;
    const char *at = m->job == FV_HEAD_BASE ? "" : "vit.";
    int64_t D = v->hidden_size, size = fv__side(&v->patch_size, 0),
            S = 1 + fv__vit_grid(v, 0) * fv__vit_grid(v, 1) + k->num_detection_tokens;
    float std = v->initializer_range;
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = std};
    m->class_token = fv_param(p, normal, FV_SHAPE(1, 1, D), "%sembeddings.cls_token", at);
    m->detection_tokens = fv_param(p, normal, FV_SHAPE(1, k->num_detection_tokens, D),
                                   "%sembeddings.detection_tokens", at);
    m->positions = fv_param(p, normal, FV_SHAPE(1, S, D), "%sembeddings.position_embeddings", at);
    fv_conv_init(p, &m->patches, v->num_channels, D, size,
                 (fv_conv_layer_opt){.conv = {.stride = size}, .std = std},
                 "%sembeddings.patch_embeddings.projection", at);
    m->blocks = fv__vit_blocks(p, v, at);
    if (k->use_mid_position_embeddings && v->num_hidden_layers > 1)
        m->between = fv_param(p, normal, FV_SHAPE(v->num_hidden_layers - 1, 1, S, D),
                              "%sencoder.mid_position_embeddings", at);
    fv_norm_init(p, &m->norm, D, (fv_norm_opt){.eps = v->layer_norm_eps}, "%slayernorm", at);
    if (m->job == FV_HEAD_BASE) {
        fv_lin_init(p, &m->pooler, D, D, (fv_lin_opt){.std = std}, "pooler.dense");
        return;
    }
    head_init(p, m->classes, D, v->num_labels + 1, std, "class_labels_classifier");
    head_init(p, m->boxes, D, 4, std, "bbox_predictor");
}

/* A detector's file opens as the bare model and the other way round: heads are left unread or begin
 * anew. */
static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*pooler.dense.*", "class_labels_classifier.*",
                                         "bbox_predictor.*", NULL};
    return (fv_load_opt){.prefix = "vit.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    yolos *m = self;
    fv__vit_pack(p, m->blocks, m->cfg.vit.num_hidden_layers, dtype);
}

/* ---- forward ---- */

/* The rows of a table (1,S,D) for this image: those of the patches resized to its grid. */
static fv_tensor *positions(fv_ctx *c, const yolos *m, fv_tensor *table, const fv_tensor *image)
{
    const fv__vit_config *v = &m->cfg.vit;
    int64_t size = fv__side(&v->patch_size, 0), h = fv__vit_grid(v, 0), w = fv__vit_grid(v, 1),
            rows = fv_dim(image, 2) / size, cols = fv_dim(image, 3) / size;
    if (rows == h && cols == w) return table;
    fv_tensor *first = fv__vit_positions(c, fv_slice(c, table, 1, 0, 1 + h * w), 1, h, w, rows,
                                         cols);
    return fv_concat(c, (fv_tensor *[]){first, fv_slice(c, table, 1, 1 + h * w, fv_dim(table, 1))},
                     2, 1);
}

/* (B,C,H,W) -> (B,1+N+Q,D), N patches of this image and Q detection tokens. */
static fv_tensor *embed(fv_ctx *c, const yolos *m, fv_tensor *image)
{
    image = fv__image(c, "yolos", image, m->cfg.vit.num_channels);
    if (!image) return NULL;
    fv_tensor *x = fv__prepend(c, m->class_token, fv_conv_patches(c, &m->patches, image));
    fv_shape s = FV_SHAPE(fv_dim(image, 0), m->cfg.num_detection_tokens, m->cfg.vit.hidden_size);
    x = fv_concat(c, (fv_tensor *[]){x, fv_expand(c, m->detection_tokens, s)}, 2, 1);
    x = fv_add(c, x, positions(c, m, m->positions, image));
    return fv_dropout(c, x, m->cfg.vit.hidden_dropout_prob);
}

/* hidden_states are what layers give, before the positions between them are added. */
static fv_tensor *encode(fv_ctx *c, const yolos *m, fv_tensor *x, fv_tensor *image)
{
    fv_mark mark = fv_mark_here(c);
    int layers = m->cfg.vit.num_hidden_layers;
    fv_tap(c, "hidden", "hidden_states", x);
    for (int i = 0; i < layers; i++) {
        x = fv_layer_run(c, fv__pre_norm_fwd, &m->blocks[i], x, (fv_mha_arg){0}, (fv_mha_arg){0});
        fv_tap(c, "hidden", "hidden_states", x);
        if (m->between && i < layers - 1) {
            fv_tensor *table = fv_slice(c, m->between, 0, i, i + 1);
            table = fv_reshape(c, table, FV_SHAPE(1, fv_dim(table, 2), fv_dim(table, 3)));
            x = fv_add(c, x, positions(c, m, table, image));
        }
        x = fv_keep(c, mark, x);
    }
    return fv_norm_fwd(c, &m->norm, x);
}

/* relu between, nothing or a sigmoid behind: boxes are centre, width and height as shares of the
 * image. */
static fv_tensor *predict(fv_ctx *c, const fv_lin *l, fv_tensor *x, fv_act last)
{
    x = fv_lin_act(c, &l[1], fv_lin_act(c, &l[0], x, FV_RELU), FV_RELU);
    return fv_lin_act(c, &l[2], x, last);
}

/* Objects of a batch are padded to one number: class_labels (B,M) with -100 behind, boxes
 * (B,M,4). */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const yolos *m = self;
    const config *k = &m->cfg;
    fv_tensor *image = fv_items_get(in, "pixel_values"),
              *x = encode(c, m, embed(c, m, image), image);
    fv_items_put(out, "last_hidden_state", x);
    if (m->job == FV_HEAD_BASE) {
        fv_items_put(out, "pooler_output", fv_lin_act(c, &m->pooler, fv_first(c, x), FV_TANH));
        return;
    }
    int64_t T = fv_dim(x, 1), Q = k->num_detection_tokens;
    fv_tensor *tokens = fv_slice(c, x, 1, T - Q, T);
    fv_tensor *logits = predict(c, m->classes, tokens, FV_ACT_NONE),
              *boxes = predict(c, m->boxes, tokens, FV_SIGMOID);
    fv__detect_opt opt = {.class_cost = (float)k->class_cost,
                          .box_cost = (float)k->bbox_cost,
                          .giou_cost = (float)k->giou_cost,
                          .box_loss = (float)k->bbox_loss_coefficient,
                          .giou_loss = (float)k->giou_loss_coefficient,
                          .no_object = k->eos_coefficient,
                          .dense = k->dense_loss_coefficient};
    fv_items_put(out, "logits", logits);
    fv_items_put(out, "pred_boxes", boxes);
    fv_tensor *loss = fv__detection_loss(c, in, out, logits, boxes, opt);
    if (loss && opt.dense > 0) {
        int64_t size = fv__side(&k->vit.patch_size, 0), rows = fv_dim(image, 2) / size,
                cols = fv_dim(image, 3) / size;
        fv_tensor *patches = fv_slice(c, x, 1, 1, T - Q);
        logits = predict(c, m->classes, patches, FV_ACT_NONE);
        boxes = predict(c, m->boxes, patches, FV_SIGMOID);
        loss = fv_add(c, loss,
                      fv__dense_detection_loss(c, in, out, logits, boxes, rows, cols, opt));
    }
    fv_items_put(out, "loss", loss);
}

const fv_family fv__family_yolos = {
    .type = "yolos",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(yolos),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
