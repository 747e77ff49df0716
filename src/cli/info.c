/* info.c - fovea info: version, devices, kernels, libraries. */
#include <stdio.h>

#include "cli.h"
#include "json.h"

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

static json_t *to_json(const facts *f)
{
    json_t *levels = json_array(), *features = json_array(), *libraries = json_object();
    for (int i = 0; i < f->n_levels; i++) json_array_append_new(levels, json_string(f->levels[i]));
    for (int i = 0; i < f->n_features; i++)
        json_array_append_new(features, json_string(f->features[i]));
    for (int i = 0; i < f->n_libraries; i++)
        json_object_set_new(libraries, f->libraries[i].name, json_string(f->libraries[i].version));
    json_t *gpus = json_array();
    for (int i = 0; i < f->n_gpus && i < MOST; i++)
        json_array_append_new(gpus, json_string(f->gpus[i]));
    json_t *choices = json_array();
    for (int i = 0; i < f->n_choices && i < MOST; i++)
        json_array_append_new(choices, json_string(f->choices[i]));
    json_t *device = json_pack("{s:s, s:s, s:i, s:o}", "name", fv_device_name(f->device), "level",
                               fv_device_level(f->device), "threads", fv_device_threads(f->device),
                               "choices", choices);
    return json_pack("{s:s, s:[o], s:o, s:o, s:o, s:o}", "version", fv_version(), "devices", device,
                     "gpus", gpus, "levels", levels, "features", features, "libraries", libraries);
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
    int code = CLI_OK;
    if (v->json)
        code = cli_print_json(c, to_json(&f));
    else
        print_text(&f);
    fv_device_close(device);
    return code;
}

const cli_command info_command = {
    .name = "info",
    .summary = "version, devices, CPU features, kernels and libraries",
    .about = "Says what this build is and what it found on this machine.  \"levels\" are the sets "
             "of kernels that were built and that this processor can run, best first; the "
             "environment variable FOVEA_CPU picks one of them.  \"choices\" say which kernel a "
             "GPU uses when.",
    .options = options,
    .size = sizeof(info_values),
    .examples = examples,
    .run = run,
};
