/* adapters.c - see adapters.h. */
#include "adapters.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fovea/author/adapter.h"
#include "helper/device.h"

#define CASES FOVEA_TESTS "/golden/adapters"

adapter_case adapter_case_of(const char *name)
{
    adapter_case p;
    char file[600], word[100];
    snprintf(p.dir, sizeof p.dir, "%s/%s", CASES, name);
    snprintf(p.in, sizeof p.in, "%s/%s/in.safetensors", CASES, name);
    snprintf(p.out, sizeof p.out, "%s/%s/out.safetensors", CASES, name);
    snprintf(file, sizeof file, "%s/base.txt", p.dir);
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%99s", word), 1);
    fclose(f);
    snprintf(p.base, sizeof p.base, "%s/golden/models/%s", FOVEA_TESTS, word);
    return p;
}

void each_adapter(void (*run)(const char *name, const adapter_case *p))
{
    DIR *d = opendir(CASES);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        if (f->d_name[0] == '.') continue;
        adapter_case p = adapter_case_of(f->d_name);
        run(f->d_name, &p);
        n++;
    }
    closedir(d);
    assert_true(n >= 35);
}

float *st_numbers(const fv_st *s, const char *name, int64_t *n)
{
    fv_err e;
    fv_st_info t;
    check(fv_st_find(s, name, &t, &e), &e);
    float *x = malloc((size_t)t.count * sizeof *x + 1);
    assert_non_null(x);
    check(fv_st_read(s, &t, x, FV_F32, t.count, &e), &e);
    *n = t.count;
    return x;
}

void near_numbers(const char *name, const char *what, const float *got, const float *want,
                  int64_t n, double bound)
{
    double off = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        off += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(off) <= bound * sqrt(norm) + 1e-6))
        fail_msg("%s: %s: off by %g of %g", name, what, sqrt(off), sqrt(norm));
}

fv_model *adapter_trainable(const adapter_case *p)
{
    fv_err e;
    fv_adapter_opt opt;
    fv_model *m;
    check(fv_adapter_read(&opt, NULL, p->dir, &e), &e);
    check(fv_model_open(&m, device, p->base, (fv_model_opt){.train = true, .adapter = &opt}, &e),
          &e);
    check(fv_model_load(m, p->dir, &e), &e);
    return m;
}
