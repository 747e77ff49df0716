/* tables.h - the reference tables, for backends to start from. */
#ifndef FV_REF_TABLES_H
#define FV_REF_TABLES_H

#include "fovea/author/backend.h"

/* Fills all four tables with the reference kernels. */
void fv__ref_fill(fv_kernels k[FV_FLOATS]);

#endif
