/* registry.h - families by name, beside what author/family.h has. */
#ifndef FV_MODEL_REGISTRY_H
#define FV_MODEL_REGISTRY_H

#include "fovea/author/family.h"

/* Whether the family has this model_type. */
bool fv__family_serves(const fv_family *f, const char *type);

#endif
