/* masked_images.h - images with a label for each pixel, as pairs of files. */
#ifndef FV_DATA_MASKED_IMAGES_H
#define FV_DATA_MASKED_IMAGES_H

#include "data/tree.h"
#include "fovea/author/data.h"

typedef struct fv__masked {
    const fv_env *env;
    fv__tree tree;
    int64_t (*at)[2]; /* image and mask, as numbers of files */
    size_t bytes;
    int64_t n;
    int32_t of_level[256]; /* the label of a level of a mask; -1: it stands for none */
} fv__masked;

typedef struct fv__masked_opt {
    const char *path; /* a folder or an archive */
    /* Folders in it, anywhere: IMAGES/X.png with MASKS/X.png */
    const char *images, *masks;
    const char *names; /* "0-23": only files whose names are such numbers; "": all */
    fv_labels *labels; /* levels of the masks in ascending order, named by their numbers */
} fv__masked_opt;

/* Close it whatever comes back. */
fv_status fv__masked_open(fv__masked *m, const fv_env *env, const fv__masked_opt *o, fv_err *e);
void fv__masked_close(fv__masked *m);
/* Which file, for messages. */
const char *fv__masked_name(const fv__masked *m, int64_t i);
/* Image i and its mask, of one channel, of the same size. */
fv_status fv__masked_get(const fv__masked *m, int64_t i, fv_image *image, fv_image *mask,
                         fv_err *e);

#endif
