/* info.h - what this build and this machine are made of, for `fovea info` and for bug reports. */
#ifndef FOVEA_INFO_H
#define FOVEA_INFO_H

#include "fovea/device.h"

typedef struct fv_library {
    const char *name;
    char version[32]; /* of the library that is loaded, not of its headers */
} fv_library;

/* The libraries fovea uses: fills in at most max of them and returns how many there are. */
FV_API int fv_libraries(fv_library *out, int max);

/* Those extensions of this machine's instruction set that some kernel of ours can use ("neon",
 * "bf16", "avx2"), in the same way.  What is really used is the level of a device: see device.h. */
FV_API int fv_cpu_features(const char **out, int max);

/* Which kernel a device uses when, where it has a choice: a line each, in the same way. */
FV_API int fv_device_choices(const fv_device *d, char (*lines)[160], int max);

#endif
