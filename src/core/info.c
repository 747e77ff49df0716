/* info.c - the libraries behind this one, and what the processor can do. */
#include <stdbool.h>
#include <stdio.h>
#include <utf8proc.h>
#include <zlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#if defined(HAVE_CAIRO)
#include <cairo.h>
#endif
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "fovea/info.h"

int fv_libraries(fv_library *out, int max)
{
    char pcre2[64] = ""; /* "10.42 2022-12-11" */
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    char openmp[32];
    snprintf(openmp, sizeof openmp, "%d", _OPENMP);
    const struct {
        const char *name, *version;
    } all[] = {
#if defined(HAVE_CAIRO)
        {"cairo", CAIRO_VERSION_STRING}, /* of the headers: it is loaded for pictures only */
#endif
        {"openmp", openmp},
        {"pcre2", pcre2},
        {"utf8proc", utf8proc_version()},
        {"zlib", zlibVersion()}
    };

    int n = (int)(sizeof all / sizeof *all);
    for (int i = 0; i < n && i < max; i++) {
        out[i].name = all[i].name;
        snprintf(out[i].version, sizeof out[i].version, "%.*s", (int)sizeof out[i].version - 1,
                 all[i].version);
    }
    return n;
}

typedef struct feature {
    const char *name;
    bool have;
} feature;

/* What the machine has, for bug reports; which level is used follows from cpu.c alone. */
int fv_cpu_features(const char **out, int max)
{
#if defined(__aarch64__)
    unsigned long a = getauxval(AT_HWCAP), b = getauxval(AT_HWCAP2);
    const feature all[] = {{"neon", a & HWCAP_ASIMD},
                           {"fp16", a & HWCAP_ASIMDHP},
                           {"dotprod", a & HWCAP_ASIMDDP},
                           {"bf16", b & HWCAP2_BF16},
                           {"i8mm", b & HWCAP2_I8MM}};
#elif defined(__x86_64__)
    const feature all[] = {{"avx2", __builtin_cpu_supports("avx2")},
                           {"fma", __builtin_cpu_supports("fma")},
                           {"f16c", __builtin_cpu_supports("f16c")},
                           {"avx512f", __builtin_cpu_supports("avx512f")},
                           {"avx512bw", __builtin_cpu_supports("avx512bw")},
                           {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
                           {"avx512bf16", __builtin_cpu_supports("avx512bf16")}};
#else
    const feature all[] = {{"generic", false}};
#endif
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].have) continue;
        if (n < max) out[n] = all[i].name;
        n++;
    }
    return n;
}
