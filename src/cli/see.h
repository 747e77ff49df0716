/* see.h - what the parts of fovea see share. */
#ifndef FOVEA_CLI_SEE_H
#define FOVEA_CLI_SEE_H

#include "fovea/see.h"

/* What heads are worth: how the loss of a token changes when one of them adds nothing. */
typedef struct see_worth {
    int kind;       /* an fv_see_kind, or -1: of all kinds */
    double loss;    /* of the model as it is */
    double *change; /* of each head: kind after kind, layer after layer; the caller frees it */
} see_worth;

fv_status see_ablate(see_worth *w, fv_device *d, fv_model *m, const fv_see *s, fv_see_in in,
                     fv_err *e);
void see_print_worth(const see_worth *w, const fv_see *s, bool json);

bool see_is_sound(const char *path); /* by its ending; NULL is allowed */
/* The image or sound, by option or as the first operand, which is taken off; NULL: none. */
const char *see_take_image(const char *option, int *n, char ***operand);
/* --drawn SEED,N,CLASS */
fv_status see_take_drawn(const char *text, fv_see_in *in, fv_err *e);
/* What `fovea caption` or `fovea transcribe` writes of it; the caller frees it by free(). */
fv_status see_caption(char **out, fv_device *d, const char *model, const char *image, int64_t beams,
                      fv_err *e);
/* Writes to standard output, by way of a temporary file. */
fv_status see_save_stdout(fv_see *s, fv_see_opt o, fv_err *e);

#endif
