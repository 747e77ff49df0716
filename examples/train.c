/* train.c - ten updates of a small GPT-2 on one batch, written out: forward, backward, AdamW.
 *
 * fv_train does all this with data, schedule, evaluation and checkpoints. */
#include <stdio.h>

#include <fovea/fovea.h>

#define BATCH 4
#define LENGTH 16

static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, "
                             "\"n_embd\": 32, \"n_positions\": 32, \"vocab_size\": 64}";

/* The loss of the batch, whose gradient is in the model's parameters afterwards. */
static float gradient(fv_ctx *c, fv_model *m, const int32_t *ids, int step)
{
    fv_items in = {.n_labels = BATCH * (LENGTH - 1)}, out = {0};
    float loss = 0;
    fv_ctx_reset(c, (uint64_t)step);
    fv_params_zero_grad(fv_model_params(m));
    fv_tensor *x = fv_ints(c, ids, FV_SHAPE(BATCH, LENGTH));
    fv_items_put(&in, "input_ids", x);
    fv_items_put(&in, "labels", x); /* the model shifts them by one */
    fv_model_forward(c, m, &in, &out);
    fv_tensor *l = fv_items_get(&out, "loss");
    fv_backward(c, l);
    fv_read(c, l, &loss, 1);
    return loss;
}

static fv_status train(fv_device *device, fv_model *m, fv_ctx *c, fv_err *e)
{
    fv_train_opt o = {0};
    fv_adam *adam = NULL;
    int32_t ids[BATCH * LENGTH];
    double norm;
    for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = (i % LENGTH * 7 + i / LENGTH) % 64;
    fv_fields_default(&o, fv_train_fields);
    o.lr = 0.003f;
    o.schedule = FV_CONSTANT;
    o.warmup = 0;
    fv_status st = fv_adam_new(&adam, fv_model_params(m), device, &o, e);
    for (int step = 1; !st && step <= 10; step++) {
        float loss = gradient(c, m, ids, step);
        st = fv_ctx_status(c);
        if (st) *e = *fv_ctx_err(c);
        if (!st) st = fv_adam_step(adam, &o, step, &norm, e);
        if (!st) printf("update %2d  loss %.4f  gradient norm %.3f\n", step, (double)loss, norm);
    }
    fv_adam_free(adam);
    return st;
}

int main(void)
{
    fv_device *device = NULL;
    fv_model *m = NULL;
    fv_ctx *c = NULL;
    fv_err e;
    fv_status st = fv_device_open(&device, "cpu", (fv_device_opt){0}, &e);
    if (!st) st = fv_model_new(&m, device, config, (fv_model_opt){.train = true}, 1, &e);
    if (!st) st = fv_ctx_new(&c, device, (fv_ctx_opt){.record = true, .train = true}, &e);
    if (!st) st = train(device, m, c, &e);
    if (st) fprintf(stderr, "%s\n", e.text);
    fv_ctx_free(c);
    fv_model_free(m);
    fv_device_close(device);
    return st ? 1 : 0;
}
