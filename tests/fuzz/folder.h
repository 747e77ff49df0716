/* folder.h - directories in memory: seeds, and what the library sees of one in which a file was
 * spoiled. */
#ifndef FUZZ_FOLDER_H
#define FUZZ_FOLDER_H

#include "fovea/fovea.h"
#include "mutate.h"

enum { MAX_FILES = 12 };

/* Opens the directory "m" of env as a command would, and uses it; d computes. */
typedef fv_status use_fn(fv_device *d, const fv_env *env, fv_err *e);

typedef struct seed {
    char name[80];
    use_fn *use;
    int n;
    char file[MAX_FILES][64];
    bytes content[MAX_FILES];
} seed;

/* A seed whose file `nonfinite` is another; read-only. */
typedef struct folder {
    const seed *s;
    int spoiled;
    bytes instead;
    size_t at[32]; /* of what is open: how far it was read, and which file it is, from 1 */
    int file[32], opened;
} folder;

fv_io folder_io(folder *f);
size_t folder_size(const folder *f); /* bytes of all files */

/* Seeds, from the small models, tokenizers, recipes and data of this repository. */
void seeds_collect(void);
int seeds_count(void);
/* From now on only ways that look at images. */
void seeds_images_only(void);
/* A seed of one file, which is copied; for seeds_images.c, which adds images, archives and
 * annotations. */
void seeds_add(const char *name, use_fn *use, const char *file, bytes content);
void seeds_add_images(const char *golden);
/* One of them; every way of using is as likely as the others. */
const seed *seeds_pick(dice *d);

/* Ways of using, use.c */
use_fn use_model, use_trained, use_tensors, use_task, use_writer, use_tokenizer, use_recipe,
    use_array, use_data, use_image, use_images, use_boxes;

#endif
