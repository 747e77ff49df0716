/* serve.c - fovea serve: models behind an HTTP interface.
 *
 * All limits are options, because a server's are set by whoever runs it: sequences side by side,
 * memory of the KV cache, sizes of requests, and a time limit for each stage of a connection.
 * Units are those that people use (MiB, seconds); the server's own are bytes and milliseconds,
 * converted in run(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "server/server.h"

/* As the options have them: times in seconds, memory in MiB. */
typedef struct serve_values {
    cli_list models, adapters;
    int dtype;
    const char *device;
    int64_t threads;
    const char *host, *socket, *keys, *cors, *runs;
    int64_t port;
    int64_t rows, context, prefill, waiting, cache, prefixes;
    int64_t body, connections, weights;
    double head_time, body_time, idle_time, answer_time, drain_time;
    bool quiet, tensor_parallel, pipeline_parallel;
} serve_values;

static const serve_values defaults = {.port = 8080,
                                      .rows = 16,
                                      .prefill = 512,
                                      .waiting = 1024,
                                      .prefixes = 256,
                                      .body = 4,
                                      .connections = 4096,
                                      .weights = 4000000,
                                      .head_time = 10,
                                      .body_time = 30,
                                      .idle_time = 75,
                                      .answer_time = 600,
                                      .drain_time = 30};

static const cli_option options[] = {
    CLI_LIST(serve_values, models, 'm', "model", "[NAME=]DIR",
             "a model directory, and the name requests ask for; may be repeated"),
    CLI_LIST(serve_values, adapters, 0, "adapter", "NAME[@MODEL]=DIR",
             "a PEFT adapter of a model, the first unless named, under a name of its own; its "
             "sequences share the model's batch; may be repeated"),
    CLI_CHOICE(serve_values, dtype, 0, "dtype", cli_weights, CLI_WEIGHTS_HELP),
    CLI_DEVICE(serve_values, device),
    CLI_INT(serve_values, threads, 't', "threads", "N", 0, 4096,
            "0: as OMP_NUM_THREADS says, else all cores"),
    CLI_TEXT(serve_values, host, 0, "host", "HOST", "to listen at; 127.0.0.1 unless given"),
    CLI_INT(serve_values, port, 0, "port", "N", 0, 65535, "0: one that is free"),
    CLI_FILE(serve_values, socket, 0, "socket", "PATH",
             "listen at a Unix socket instead of host and port"),
    CLI_FILE(serve_values, keys, 0, "api-keys", "FILE",
             "requests need one of these keys, one a line (Authorization: Bearer KEY)"),
    CLI_TEXT(serve_values, cors, 0, "cors", "ORIGIN",
             "pages of this origin may call from a browser; none may unless given"),
    CLI_INT(serve_values, rows, 0, "batch", "N", 1, 4096, "sequences that run side by side"),
    CLI_INT(serve_values, context, 0, "context", "N", 0, 1 << 24,
            "tokens of a sequence with its prompt; 0: the model's context, or 2048"),
    CLI_INT(serve_values, prefill, 0, "prefill", "N", 1, 1 << 20,
            "tokens of a prompt that one step reads at most"),
    CLI_INT(serve_values, waiting, 0, "queue", "N", 1, 1 << 20,
            "sequences that may wait; more are refused with status 429"),
    CLI_INT(
        serve_values, cache, 0, "kv-budget", "MIB", 0, 1 << 30,
        "memory of each model's KV cache at most: sequences wait until theirs fit; 0: no limit"),
    CLI_INT(serve_values, prefixes, 0, "prefix-budget", "MIB", 0, 1 << 30,
            "memory for keys and values of prompts, for those that begin alike; 0: none"),
    CLI_INT(serve_values, body, 0, "body-limit", "MIB", 1, 1024, "of a request"),
    CLI_INT(serve_values, connections, 0, "connections", "N", 1, 1 << 20, "open at once"),
    CLI_INT(serve_values, weights, 0, "attention-limit", "N", 1, 1 << 30,
            "attention weights in one answer"),
    CLI_REAL(serve_values, head_time, 0, "header-timeout", "S", 0.1, 3600,
             "seconds for the head of a request"),
    CLI_REAL(serve_values, body_time, 0, "body-timeout", "S", 0.1, 3600, "seconds for its body"),
    CLI_REAL(serve_values, idle_time, 0, "idle-timeout", "S", 0.1, 3600,
             "seconds of a connection without a request"),
    CLI_REAL(serve_values, answer_time, 0, "answer-timeout", "S", 0.1, 86400,
             "seconds from a request to the end of its answer"),
    CLI_REAL(serve_values, drain_time, 0, "drain-timeout", "S", 0, 86400,
             "seconds for what runs when SIGTERM comes"),
    CLI_FILE(serve_values, runs, 0, "runs", "DIR",
             "a directory of trainings, which the page shows while they go on"),
    CLI_FLAG(serve_values, quiet, 0, "quiet", "no line for each request"),
    CLI_FLAG(serve_values, tensor_parallel, 0, "tensor-parallel",
             "by mpirun: the ranks share the model, rank 0 listens"),
    CLI_FLAG(serve_values, pipeline_parallel, 0, "pipeline-parallel",
             "likewise, each rank some of its layers"),
    {0},
};

static const cli_example examples[] = {
    {"fovea serve -m Qwen2.5-0.5B-Instruct", "at http://127.0.0.1:8080, with a page"},
    {"fovea serve -m chat=qwen -m vectors=minilm --port 9000", "two models, by name"},
    {"fovea serve -m llama --adapter law=lora-law --adapter code=lora-code",
     "one model with two adapters, in one batch"},
    {"fovea serve -m gpt2 --dtype q8 --socket /run/fovea/fovea.sock", "behind a proxy"},
    {"mpirun -np 2 fovea serve -m llama --tensor-parallel", "a model larger than a machine"},
    {0},
};

static int64_t ms(double seconds) { return (int64_t)(seconds * 1000); }

static int run(const cli *c, const void *values, int n, char **operand)
{
    const serve_values *v = values;
    sv_model models[64];
    sv_adapter adapters[64];
    sv_names names[64], adapter_names[64];
    fv_err e;
    (void)n, (void)operand;
    if (sv_read_models(v->models.at, v->models.n, models, names, &e) ||
        sv_read_adapters(v->adapters.at, v->adapters.n, models, v->models.n, adapters,
                         adapter_names, &e))
        return cli_error(c, &e);
    sv_opt o = {.models = models,
                .n_models = v->models.n,
                .adapters = adapters,
                .n_adapters = v->adapters.n,
                .host = v->host,
                .port = v->port,
                .socket = v->socket,
                .device = v->device,
                .threads = cli_threads(v->threads),
                .scheduler = {.rows = v->rows,
                              .capacity = v->context,
                              .prefill = v->prefill,
                              .waiting = v->waiting,
                              .cache_bytes = v->cache << 20,
                              .prefix_bytes = v->prefixes << 20},
                .body_bytes = v->body << 20,
                .connections = v->connections,
                .attention_floats = v->weights,
                .header_ms = ms(v->head_time),
                .body_ms = ms(v->body_time),
                .idle_ms = ms(v->idle_time),
                .answer_ms = ms(v->answer_time),
                .drain_ms = ms(v->drain_time),
                .keys = v->keys,
                .cors = v->cors,
                .runs = v->runs,
                .quiet = v->quiet};
    cli_choose_weights(v->dtype, &o.weights, &o.widen);
    bool shared = v->tensor_parallel || v->pipeline_parallel;
    fv_comm *comm = NULL;
    if (shared && fv_comm_open(&comm, NULL, (fv_comm_opt){0}, &e)) return cli_error(c, &e);
    if (v->tensor_parallel) o.ranks = comm;
    if (v->pipeline_parallel) o.stages = comm;
    fv_status st = sv_serve(&o, &e);
    fv_comm_close(comm);
    return st ? cli_error(c, &e) : CLI_OK;
}

const cli_command serve_command = {
    .name = "serve",
    .summary = "serve models over HTTP, with a page that shows attention live",
    .about =
        "Serves models to OpenAI's clients: /v1/chat/completions, /v1/completions, "
        "/v1/embeddings and /v1/models, streaming included; further /v1/classify, tag, answer, "
        "fill, translate and rerank, by what each model can do.  With \"attention\" in a "
        "request its answer holds the exact attention weights of the rows asked for.\n\n"
        "Sequences join and leave a running batch at every step, and each gets the tokens it would "
        "get alone.  It listens at the loopback only unless --host says otherwise; TLS is for a "
        "proxy in front.  SIGTERM lets what runs come to its end, SIGHUP reads models and keys "
        "again.",
    CLI_OWN(serve_values),
    .defaults = &defaults,
};
