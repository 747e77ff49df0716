/* page.c - writes a page of random attention, of any size:
 *
 *     browser_page FILE TOKENS LAYERS HEADS [causal]
 *
 * Tokens are pieces of words in several scripts, so that labels are as uneven as in real texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/see.h"
#include "fovea/author/see.h"

static const char *const pieces[] = {"The",
                                     "quick",
                                     "brown",
                                     "Donaudampfschifffahrt",
                                     "fox",
                                     "jumps",
                                     "over",
                                     "the",
                                     "\u6211\u559c\u6b22",
                                     "lazy",
                                     "dog",
                                     ".",
                                     "[SEP]",
                                     "\U0001F63A 1/2",
                                     "\U0001F63A 2/2",
                                     "l'\u00e9cole",
                                     "un",
                                     "##believ",
                                     "##able",
                                     ","};

static fv_tensor *noise(fv_ctx *c, int64_t n, int64_t width, uint32_t seed)
{
    float *x = malloc((size_t)(n * width) * sizeof *x);
    for (int64_t i = 0; x && i < n * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) / (float)(1 << 23) - 1) * 2.5f;
    }
    fv_tensor *t = x ? fv_floats(c, x, FV_SHAPE(1, n, width)) : NULL;
    free(x);
    return t;
}

static fv_status make(fv_ctx *c, const char *path, int64_t n, int64_t layers, int64_t heads,
                      bool causal, fv_err *e)
{
    fv_see *s;
    fv_status st = fv_see_watch(&s, c, 0, e);
    if (st) return st;
    for (int64_t l = 0; l < layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.attn", (int)l);
        fv_tensor *q = noise(c, n, heads * 8, (uint32_t)(l * 7 + 1)),
                  *k = noise(c, n, heads * 8, (uint32_t)(l * 7 + 2));
        fv_attention(c, q, k, k, (fv_attn){.n_head = heads, .causal = causal, .name = name});
    }
    const char **names = malloc((size_t)n * sizeof *names);
    for (int64_t i = 0; i < n; i++)
        names[i] = pieces[i % (int64_t)(sizeof pieces / sizeof *pieces)];
    fv_see_kind kind = causal ? FV_SEE_DECODER : FV_SEE_ENCODER;
    st = fv_see_label(s, kind, names, n, names, n, e);
    free(names);
    fv_see_opt o = {.pick = {kind, FV_SEE_ALL, FV_SEE_ALL, false},
                    .text = "A text that nobody wrote, to measure the page"};
    if (!st) st = fv_see_save(s, NULL, path, o, e);
    fv_see_free(s);
    return st;
}

int main(int argc, char **argv)
{
    fv_err e;
    fv_device *d;
    fv_ctx *c;
    if (argc < 5) return fprintf(stderr, "page FILE TOKENS LAYERS HEADS [causal]\n"), 2;
    fv_status st = fv_device_open(&d, "cpu", (fv_device_opt){0}, &e);
    if (st) return fprintf(stderr, "%s\n", e.text), 1;
    st = fv_ctx_new(&c, d, (fv_ctx_opt){.record = true}, &e);
    if (!st) {
        st = make(c, argv[1], atoll(argv[2]), atoll(argv[3]), atoll(argv[4]), argc > 5, &e);
        fv_ctx_free(c);
    }
    if (st) fprintf(stderr, "%s\n", e.text);
    fv_device_close(d);
    return st ? 1 : 0;
}
