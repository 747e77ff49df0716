/* tensors.c - fovea tensors: what a safetensors file holds, without reading the numbers. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "fovea/store.h"

typedef struct values {
    bool json;
} values;

static const cli_option options[] = {
    CLI_FLAG(values, json, 0, "json", "print one JSON object a line"),
    {0},
};

static const cli_example examples[] = {
    {"fovea tensors gpt2/model.safetensors", "names, dtypes and shapes"},
    {"fovea tensors --json model.safetensors.index.json | head -n 3", "those of all shards"},
    {0},
};

static void print(const fv_st_info *t, bool json)
{
    cli_json j = {0};
    if (!json) {
        printf("%s\t%s\t(", t->name, t->dtype_name);
        for (int i = 0; i < t->shape.n; i++)
            printf("%s%lld", i ? "," : "", (long long)t->shape.d[i]);
        printf(")\n");
        return;
    }
    cli_json_put(&j, "{s:s, s:s, s:[", "name", t->name, "dtype", t->dtype_name, "shape");
    for (int i = 0; i < t->shape.n; i++) cli_json_put(&j, "I", t->shape.d[i]);
    cli_json_put(&j, "], s:I}", "bytes", (int64_t)t->bytes);
    cli_json_end();
}

/* The header alone is read: a file of 100 GB is listed as fast as one of a megabyte. */
static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    fv_st *s;
    fv_err e;
    uint64_t bytes = 0;
    int64_t elements = 0;
    (void)n;
    if (fv_st_open(&s, NULL, operand[0], &e)) return cli_error(c, &e);
    for (int i = 0; i < fv_st_count(s); i++) {
        fv_st_info t = fv_st_at(s, i);
        print(&t, v->json);
        bytes += t.bytes;
        elements += t.count;
    }
    /* beside the list, so that what reads it gets tensors only */
    fprintf(stderr, "%d tensors, %lld numbers, %.1f MB\n", fv_st_count(s), (long long)elements,
            1e-6 * (double)bytes);
    fv_st_close(s);
    return CLI_OK;
}

const cli_command tensors_command = {
    .name = "tensors",
    .summary = "list names, dtypes and shapes of a safetensors file",
    .about = "Lists the tensors of a safetensors file, or of all shards that an index names.",
    CLI_OWN(values),
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
};
