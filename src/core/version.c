/* version.c - which library this is. */
#include "fovea/fovea.h"

const char *fv_version(void) { return FV_VERSION; }
