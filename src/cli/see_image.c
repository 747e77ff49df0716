/* see_image.c - the image that is looked at, and what a model writes about it before it is shown
 * how that came about. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fovea/pipeline.h"
#include "see.h"

static bool names_image(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot &&
           (!strcasecmp(dot, ".png") || !strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg"));
}

const char *see_take_image(const char *option, int *n, char ***operand)
{
    if (option || !*n || !names_image(**operand)) return option;
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
    fv_pipeline_opt o = {.task = "caption",
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
