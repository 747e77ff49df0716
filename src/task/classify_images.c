/* classify_images.c - images by labels of one's own, for models that see and read (CLIP, SigLIP).
 *
 * As transformers' zero-shot image classification: every label becomes a sentence, "This is a photo
 * of LABEL.", and the model says how well each fits the image.  CLIP's scores are a softmax over
 * the labels; SigLIP was trained on pairs alone, so each of its scores is a probability by itself,
 * and its texts are filled up to the length it was trained with. */
#include <math.h>

#include "task_pipeline.h"

struct fv_photo_labels {
    fv_task *t;
    const fv_env *env;
    int32_t *ids;
    uint8_t *mask; /* NULL: padding counts */
    int64_t n, T;
    size_t ids_bytes, mask_bytes;
    bool apart; /* scores by sigmoid */
    float *scores;
};

void fv__photo_labels_close(fv_photo_labels *l)
{
    if (!l) return;
    fv__free(l->env, l->ids, l->ids_bytes);
    fv__free(l->env, l->mask, l->mask_bytes);
    fv__free(l->env, (void *)l, sizeof *l);
}

bool fv__photo_labels_apart(const fv_photo_labels *l) { return l->apart; }

/* The ids of all sentences, padded to one length. */
static fv_status fill(fv_photo_labels *l, const fv_seq *seqs, fv_err *e)
{
    for (int64_t i = 0; i < l->n; i++)
        if (seqs[i].n > l->T) l->T = seqs[i].n;
    if (l->apart && l->t->longest > l->T) l->T = l->t->longest;
    l->ids_bytes = (size_t)(l->n * l->T) * sizeof *l->ids;
    l->mask_bytes = l->apart ? 0 : (size_t)(l->n * l->T);
    l->ids = fv__alloc(l->env, l->ids_bytes);
    l->mask = l->mask_bytes ? fv__alloc(l->env, l->mask_bytes) : NULL;
    if (!l->ids || (l->mask_bytes && !l->mask)) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < l->n; i++)
        for (int64_t k = 0; k < l->T; k++) {
            l->ids[i * l->T + k] = k < seqs[i].n ? seqs[i].ids[k] : l->t->pad;
            if (l->mask) l->mask[i * l->T + k] = k < seqs[i].n;
        }
    return FV_OK;
}

/* The labels' texts are encoded once and go through the text tower with every batch of images;
 * their embeddings are not kept, because the model gives logits of both together. */
fv_status fv__photo_labels_open(fv_photo_labels **out, fv_pipeline *p, const char *hypothesis,
                                const char *const *labels, int n, fv_err *e)
{
    fv_photo_labels *l = *out = fv__alloc(&p->env, sizeof *l);
    fv_text *texts = fv__alloc(&p->env, (size_t)n * sizeof *texts);
    fv_buf all = {.env = &p->env};
    fv_seq *seqs;
    fv_status st = l && texts ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    if (!st) st = fv__open_encoder(p, FV_JOB_CONTRAST, e);
    if (!st) {
        const char *type = fv_json_text(fv_dir_config(p->task->dir), "model_type");
        *l = (fv_photo_labels){.t = p->task, .env = &p->env, .n = n};
        l->apart = type && !strncmp(type, "siglip", 6);
    }
    for (int i = 0; !st && i < n; i++) { /* offsets first: the buffer may move */
        texts[i].n = all.len;
        fv__put_template(&all, hypothesis, labels[i], strlen(labels[i]));
        fv__buf_add(&all, "", 1);
    }
    if (!st && all.failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; !st && i < n; i++) {
        texts[i].s = all.data + texts[i].n;
        texts[i].n = strlen(texts[i].s);
    }
    if (!st) fv__task_begin(p->task);
    if (!st) st = fv__task_encode_all(p->task, &seqs, texts, n, e);
    if (!st) st = fill(l, seqs, e);
    fv__buf_free(&all);
    fv__free(&p->env, texts, (size_t)n * sizeof *texts);
    return st;
}

/* The sentences beside the images of a batch. */
static fv_status add_texts(void *user, fv_ctx *c, fv_items *in)
{
    const fv_photo_labels *l = user;
    fv_items_put(in, "input_ids", fv_ints(c, l->ids, FV_SHAPE(l->n, l->T)));
    if (l->mask) fv_items_put(in, "attention_mask", fv_bytes(c, l->mask, FV_SHAPE(l->n, l->T)));
    return fv_ctx_status(c);
}

/* SigLIP was trained with a sigmoid for each pair, so its labels do not exclude each other; CLIP
 * with a softmax over texts. */
static fv_status score_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    const fv_photo_labels *l = user;
    float *y = l->scores + i * width;
    (void)s, (void)e;
    memcpy(y, out[0], (size_t)width * sizeof *y);
    if (!l->apart) fv__softmax_row(y, width);
    for (int64_t k = 0; l->apart && k < width; k++) y[k] = (float)(1 / (1 + exp(-(double)y[k])));
    return FV_OK;
}

fv_status fv__photo_labels_run(fv_photo_labels *l, const fv_text *in, int64_t n, float *scores,
                               fv_err *e)
{
    fv_wanted w = {.names = {"logits_per_image"}, .fn = score_row, .more = add_texts, .user = l};
    l->scores = scores;
    fv__task_begin(l->t);
    return fv__task_run_images(l->t, in, n, &w, e);
}
