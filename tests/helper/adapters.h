/* adapters.h - the golden cases of adapters: a case is a folder of tests/golden/adapters, made by
 * tools/golden/adapters.py: an adapter as PEFT saves it, the model below it, in.safetensors and
 * out.safetensors. */
#ifndef HELPER_ADAPTERS_H
#define HELPER_ADAPTERS_H

#include <stdint.h>

#include "fovea/model.h"
#include "fovea/store.h"

typedef struct adapter_case {
    char dir[512], base[512], in[512], out[512]; /* base: the model's directory */
} adapter_case;

adapter_case adapter_case_of(const char *name);
void each_adapter(void (*run)(const char *name, const adapter_case *p));

/* Its base with the adapter's parameters loaded, to be trained on `device`; the caller frees. */
fv_model *adapter_trainable(const adapter_case *p);

/* A tensor of a file as f32, which the caller frees; a missing one fails the test. */
float *st_numbers(const fv_st *s, const char *name, int64_t *n);
/* Fails the test, with `name` and `what`, where the norm of the difference is more than this share
 * of the wanted one's. */
void near_numbers(const char *name, const char *what, const float *got, const float *want,
                  int64_t n, double bound);

#endif
