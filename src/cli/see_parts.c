/* see_parts.c - parts of fovea see: the image that is looked at and what a model writes about it,
 * output to a pipe, and what each head is worth to a text.
 *
 * For the last the model runs once as it is and once for each head, whose output is replaced by
 * zeros: the exact question, at the price of as many forward passes as there are heads.  Gradients
 * of the loss with respect to a gate on each head would need one pass, and answer for small changes
 * only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/pipeline.h"
#include "see.h"

/* Images, from number 3 on sounds, from 7 on time series; -1: none of them. */
static int ending_of(const char *path)
{
    static const char *const all[] = {".png", ".jpg", ".jpeg", ".wav", ".flac",
                                      ".ogg", ".mp3", ".csv",  ".gz"};
    const char *dot = path ? strrchr(path, '.') : NULL;
    int i = dot ? 8 : -1;
    while (i >= 0 && strcasecmp(dot, all[i]) != 0) i--;
    return i;
}

bool see_is_sound(const char *path) { return ending_of(path) >= 3 && ending_of(path) < 7; }

/* A folder is no text either: opening it as an image says what is wrong. */
const char *see_take_image(const char *option, int *n, char ***operand)
{
    struct stat s;
    if (option || !*n) return option;
    if (ending_of(**operand) < 0 && (stat(**operand, &s) || !S_ISDIR(s.st_mode))) return option;
    --*n;
    return *(*operand)++;
}

fv_status see_take_drawn(const char *text, fv_see_in *in, fv_err *e)
{
    unsigned long long seed, number;
    int label;
    char end;
    if (sscanf(text, "%llu,%llu,%d%c", &seed, &number, &label, &end) != 3)
        return fv_fail(e, FV_EARG, "--drawn %s: SEED,N,CLASS is wanted, three numbers", text);
    in->drawn = true;
    in->seed = seed;
    in->number = number;
    in->label = label;
    return FV_OK;
}

typedef struct taken {
    char *text;
    fv_err *e;
} taken;

/* The line of the one image, without its end. */
static bool take(void *user, const fv_task_result *r)
{
    taken *t = user;
    if (r->error) {
        *t->e = *r->error;
        return true;
    }
    t->text = strndup(r->text, r->n && r->text[r->n - 1] == '\n' ? r->n - 1 : r->n);
    return true;
}

fv_status see_caption(char **out, fv_device *d, const char *model, const char *image, int64_t beams,
                      fv_err *e)
{
    fv_pipeline *p;
    char number[24];
    fv_setting beam = {"num_beams", number};
    fv_text path = {.s = image, .n = strlen(image)};
    taken t = {.e = e};
    snprintf(number, sizeof number, "%lld", (long long)beams);
    *out = NULL;
    *e = (fv_err){0};
    fv_pipeline_opt o = {.task = see_is_sound(image) ? "transcribe" : "caption",
                         .model = model,
                         .settings = &beam,
                         .n_settings = beams > 0};
    fv_status st = fv_pipeline_open(&p, d, o, e);
    if (st) return st;
    st = fv_pipeline_run(p, &path, 1, 1, take, &t, e);
    fv_pipeline_close(p);
    if (!st) st = e->code;
    if (!st && !t.text) st = fv_fail(e, FV_ENOMEM, "out of memory");
    *out = t.text;
    return st;
}

/* The library writes files whole or not at all, so standard output gets a copy of one. */
fv_status see_save_stdout(fv_see *s, fv_see_opt o, fv_err *e)
{
    const char *tmp = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/fovea-see-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0) return fv_fail(e, FV_EIO, "%s: cannot make a temporary file", path);
    close(fd);
    fv_status st = fv_see_save(s, NULL, path, o, e);
    if (!st) st = cli_copy_out(path, e);
    unlink(path);
    return st;
}

/* ---- ablation ---- */

/* Heads of a kind in all its layers, 0 where the kind is not wanted. */
static int64_t heads_of(const see_worth *w, const fv_see *s, int kind, int64_t *heads)
{
    fv_see_shape shape = fv_see_shape_of(s, (fv_see_kind)kind);
    *heads = shape.heads;
    return w->kind < 0 || w->kind == kind ? shape.layers * shape.heads : 0;
}

fv_status see_ablate(see_worth *w, fv_device *d, fv_model *m, const fv_see *s, fv_see_in in,
                     fv_err *e)
{
    int64_t n = 0, heads;
    for (int k = 0; k < FV_SEE_KINDS; k++) n += heads_of(w, s, k, &heads);
    double *to = w->change = malloc((size_t)(n + 1) * sizeof *to);
    if (!to) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv_see_ablate(d, m, in, (fv_see_pick){.layer = FV_SEE_ALL}, &w->loss, e);
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        int64_t all = heads_of(w, s, k, &heads);
        for (int64_t i = 0; !st && i < all; i++, to++) {
            fv_see_pick head = {(fv_see_kind)k, i / heads, i % heads, false, false};
            st = fv_see_ablate(d, m, in, head, to, e);
            *to -= w->loss;
        }
    }
    return st;
}

static void print_json(const see_worth *w, const fv_see *s)
{
    cli_json j = {0};
    const double *from = w->change;
    int64_t heads;
    cli_json_put(&j, "{s:f, s:[", "loss", w->loss, "heads");
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        int64_t all = heads_of(w, s, k, &heads);
        for (int64_t i = 0; i < all; i++)
            cli_json_put(&j, "{s:s, s:I, s:I, s:f}", "kind", fv_see_kind_name((fv_see_kind)k),
                         "layer", i / heads, "head", i % heads, "change", *from++);
    }
    cli_json_put(&j, "]}");
    cli_json_end();
}

/* A row for each layer, a column for each head. */
void see_print_worth(const see_worth *w, const fv_see *s, bool json)
{
    const double *from = w->change;
    int64_t heads;
    if (json) {
        print_json(w, s);
        return;
    }
    printf("Loss of a token: %.4f.  Change when a head adds nothing:\n", w->loss);
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        int64_t all = heads_of(w, s, k, &heads);
        for (int64_t i = 0; i < all; i++) {
            if (i % heads == 0)
                printf("  %-8s layer %-3lld", fv_see_kind_name((fv_see_kind)k),
                       (long long)(i / heads));
            printf(i % heads == heads - 1 ? " %+8.4f\n" : " %+8.4f", *from++);
        }
    }
}
