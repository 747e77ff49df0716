/* weights.c - a forward pass with attention weights: which token each token attends to most.
 *
 *     weights MODEL_DIRECTORY "some text"
 *
 * The directory is one of Hugging Face's: config.json, model.safetensors, tokenizer files.  No map
 * of weights is stored in the pass; the rows asked for are recomputed from the log-sum-exp. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fovea/fovea.h>

/* The last layer, its heads averaged. */
static fv_status print_rows(fv_see *s, fv_see_kind kind, fv_err *e)
{
    fv_see_shape shape = fv_see_shape_of(s, kind);
    int64_t rows = shape.rows, cols = shape.cols;
    fv_see_pick pick = {.kind = kind, .layer = shape.layers - 1, .head = FV_SEE_ALL};
    float *w = malloc((size_t)cols * sizeof *w);
    fv_status st = w ? FV_OK : FV_ENOMEM;
    for (int64_t i = 0; !st && i < rows; i++) {
        int64_t best = 0;
        st = fv_see_weights(s, pick, i, i + 1, w, e);
        for (int64_t j = 0; !st && j < cols; j++) best = w[j] > w[best] ? j : best;
        if (!st)
            printf("%3d %-12s attends most to %3d %-12s %.3f\n", (int)i, fv_see_row(s, kind, i),
                   (int)best, fv_see_col(s, kind, best), (double)w[best]);
    }
    free(w);
    return st;
}

int main(int argc, char **argv)
{
    fv_device *device = NULL;
    fv_model *m = NULL;
    fv_tok *tok = NULL;
    fv_encoding *text = NULL;
    fv_see *s = NULL;
    fv_err e = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: weights MODEL_DIRECTORY TEXT\n");
        return 2;
    }
    fv_status st = fv_device_open(&device, "cpu", (fv_device_opt){0}, &e);
    if (!st) st = fv_model_open(&m, device, argv[1], (fv_model_opt){0}, &e);
    if (!st) st = fv_tok_open(&tok, NULL, argv[1], &e);
    if (!st) st = fv_encoding_new(&text, tok, &e);
    if (!st) st = fv_tok_encode(text, argv[2], strlen(argv[2]), (fv_tok_opts){0}, &e);
    if (!st)
        st = fv_see_run(&s, device, m,
                        (fv_see_in){.tok = tok, .source = text->ids, .n_source = text->n}, &e);
    bool causal = !st && fv_see_shape_of(s, FV_SEE_DECODER).layers;
    if (!st) st = print_rows(s, causal ? FV_SEE_DECODER : FV_SEE_ENCODER, &e);
    if (st) fprintf(stderr, "%s\n", e.text);
    fv_see_free(s);
    fv_encoding_free(text);
    fv_tok_close(tok);
    fv_model_free(m);
    fv_device_close(device);
    return st ? 1 : 0;
}
