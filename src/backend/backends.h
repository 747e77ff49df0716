/* backends.h - the backends of this build: each opens a device whose env is set. */
#ifndef FV_BACKENDS_H
#define FV_BACKENDS_H

#include "fovea/backend.h"

fv_status fv__cpu_open(fv_device *d, fv_device_opt opt, fv_err *e);

#endif
