/* gan.h - images that a generative adversarial network draws. */
#ifndef FOVEA_AUTHOR_GAN_H
#define FOVEA_AUTHOR_GAN_H

#include "fovea/author/image.h"
#include "fovea/model.h"

typedef struct fv_gan fv_gan;

/* dir: a model with a generator (SaganModel); others are refused.  It belongs to one thread. */
FV_API fv_status fv_gan_open(fv_gan **out, fv_device *d, const char *dir, fv_model_opt opt,
                             fv_err *e);
FV_API void fv_gan_close(fv_gan *g); /* NULL is allowed */
FV_API int fv_gan_classes(const fv_gan *g);
/* The name of a class, its number where the model has no names; -1 from fv_gan_class: no class is
 * called so. */
FV_API const char *fv_gan_name(const fv_gan *g, int label);
FV_API int fv_gan_class(const fv_gan *g, const char *name);

typedef struct fv_gan_opt {
    uint64_t seed;
    /* Latents beyond this are drawn again: below 1 fewer different images that look better (Brock
     * et al. 2019); 0: as they are drawn. */
    double truncation;
} fv_gan_opt;

/* Image number `first` + i of a seed for each of n classes, whatever else is drawn with it; each is
 * handed to fn, which may keep it until it returns. */
typedef fv_status fv_gan_fn(void *user, int64_t i, fv_image *image, fv_err *e);
FV_API fv_status fv_gan_draw(fv_gan *g, const int32_t *label, int64_t first, int64_t n,
                             fv_gan_opt opt, fv_gan_fn *fn, void *user, fv_err *e);

typedef struct fv_gan_scores {
    int64_t images;
    int classes, covered; /* covered: those of which the judge recognises at least half */
    double recognised;    /* per cent of the images in which the judge sees their class */
    double frechet;       /* distance of the judge's features to those of real images; -1: none */
} fv_gan_scores;

/* What the classifier in `dir` makes of n images, classes by turns; real: images as fv_images_open
 * reads them, of which at most n are compared, or NULL. */
FV_API fv_status fv_gan_judge(fv_gan *g, fv_device *d, const char *dir, const char *real, int64_t n,
                              fv_gan_opt opt, fv_gan_scores *out, fv_err *e);

#endif
