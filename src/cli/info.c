/* info.c - fovea info: version, devices, kernels, libraries.
 *
 * For bug reports and for scripts that choose a device: what this build has, what this machine
 * has, and which kernels therefore run. It opens the device as every command does, so what it says
 * is what happens. */
#include <stdio.h>

#include "cli.h"

typedef struct info_values {
    const char *device;
    int64_t threads;
    bool json;
} info_values;

static const cli_option options[] = {
    CLI_DEVICE(info_values, device),
    CLI_INT(info_values, threads, 't', "threads", "N", 0, 1024,
            "threads of the device; 0: all cores this process may use"),
    CLI_FLAG(info_values, json, 0, "json", "print one JSON object"),
    {0},
};

static const cli_example examples[] = {
    {"fovea info", "what this build can do on this machine"},
    {"FOVEA_CPU=generic fovea info", "the same with the portable kernels forced"},
    {"fovea info --device cuda",
     "the same, whether a GPU can be used, and what runs on which of its kernels"},
    {"fovea info --json", "for scripts and bug reports"},
    {0},
};

enum { MOST = 32 };

/* All of it at once, so that text and JSON say the same. */
typedef struct facts {
    const char *levels[MOST], *features[MOST];
    int n_levels, n_features;
    fv_library libraries[MOST];
    int n_libraries;
    const fv_device *device;
    char gpus[MOST][128];
    int n_gpus;
    fv_err no_gpu;
    char choices[MOST][160];
    int n_choices;
} facts;

static void print_text(const facts *f)
{
    printf("fovea      %s\n", fv_version());
    printf("device     %s: %d threads, kernels for %s\n", fv_device_name(f->device),
           fv_device_threads(f->device), fv_device_level(f->device));
    if (f->n_gpus < 0) printf("gpus       none: %s\n", f->no_gpu.text);
    for (int i = 0; i < f->n_gpus && i < MOST; i++)
        printf("%s cuda:%d %s\n", i ? "          " : "gpus      ", i, f->gpus[i]);
    for (int i = 0; i < f->n_choices && i < MOST; i++)
        printf("%s %s\n", i ? "          " : "choices   ", f->choices[i]);
    printf("levels    ");
    for (int i = 0; i < f->n_levels; i++) printf(" %s", f->levels[i]);
    printf("\nfeatures  ");
    for (int i = 0; i < f->n_features; i++) printf(" %s", f->features[i]);
    printf("\nlibraries ");
    for (int i = 0; i < f->n_libraries; i++)
        printf("%s %s %s", i ? "," : "", f->libraries[i].name, f->libraries[i].version);
    printf("\n");
}

static void put_list(cli_json *j, const char *key, const char *const *list, int n)
{
    cli_json_put(j, "s:[", key);
    for (int i = 0; i < n && i < MOST; i++) cli_json_put(j, "s", list[i]);
    cli_json_put(j, "]");
}

static void print_json(const facts *f)
{
    cli_json j = {0};
    cli_json_put(&j, "{s:s, s:[{s:s, s:s, s:i", "version", fv_version(), "devices", "name",
                 fv_device_name(f->device), "level", fv_device_level(f->device), "threads",
                 fv_device_threads(f->device));
    cli_json_put(&j, "s:[", "choices");
    for (int i = 0; i < f->n_choices && i < MOST; i++) cli_json_put(&j, "s", f->choices[i]);
    cli_json_put(&j, "]}], s:[", "gpus");
    for (int i = 0; i < f->n_gpus && i < MOST; i++) cli_json_put(&j, "s", f->gpus[i]);
    cli_json_put(&j, "]");
    put_list(&j, "levels", f->levels, f->n_levels);
    put_list(&j, "features", f->features, f->n_features);
    cli_json_put(&j, "s:{", "libraries");
    for (int i = 0; i < f->n_libraries; i++)
        cli_json_put(&j, "s:s", f->libraries[i].name, f->libraries[i].version);
    cli_json_put(&j, "}}");
    cli_json_end();
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    const info_values *v = values;
    fv_device *device;
    fv_err e;
    if (fv_device_open(&device, v->device, (fv_device_opt){.threads = cli_threads(v->threads)}, &e))
        return cli_error(c, &e);

    facts f = {.device = device};
    f.n_gpus = fv_cuda_devices(f.gpus, MOST, &f.no_gpu);
    f.n_choices = fv_device_choices(device, f.choices, MOST);
    f.n_levels = fv_cpu_levels(f.levels, MOST);
    f.n_features = fv_cpu_features(f.features, MOST);
    f.n_libraries = fv_libraries(f.libraries, MOST);
    if (v->json)
        print_json(&f);
    else
        print_text(&f);
    fv_device_close(device);
    return CLI_OK;
}

const cli_command info_command = {
    .name = "info",
    .summary = "show version, devices, CPU features, kernels and libraries",
    .about = "Says what this build is and what it found on this machine.  \"levels\" are the sets "
             "of kernels that were built and that this processor can run, best first; the "
             "environment variable FOVEA_CPU picks one of them.  \"choices\" say which kernel a "
             "GPU uses when.",
    CLI_OWN(info_values),
};
