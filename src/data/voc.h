/* voc.h - the objects of one image, in Pascal VOC's XML. */
#ifndef FV_DATA_VOC_H
#define FV_DATA_VOC_H

#include "base/base.h"

typedef struct fv__voc_object {
    char name[128];
    double x0, y0, x1, y1;
    bool difficult;
} fv__voc_object;

typedef fv_status fv__voc_fn(void *user, const fv__voc_object *o, fv_err *e);

/* Calls each with every object.  path: for messages. */
fv_status fv__voc_parse(const char *s, size_t n, const char *path, fv__voc_fn *each, void *user,
                        fv_err *e);

#endif
