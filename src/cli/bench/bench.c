/* bench.c - fovea bench: the list of benchmarks. */
#include "cli/cli.h"

extern const cli_command bench_gemm_command, bench_attention_command, bench_softmax_command,
    bench_layernorm_command, bench_rmsnorm_command, bench_gelu_command, bench_cross_entropy_command,
    bench_adamw_command, bench_machine_command, bench_decode_command, bench_forward_command,
    bench_train_command, bench_serve_command, bench_image_command;

static const cli_command *const benchmarks[] = {
    &bench_gemm_command,          &bench_attention_command, &bench_softmax_command,
    &bench_layernorm_command,     &bench_rmsnorm_command,   &bench_gelu_command,
    &bench_cross_entropy_command, &bench_adamw_command,     &bench_machine_command,
    &bench_decode_command,        &bench_forward_command,   &bench_train_command,
    &bench_serve_command,         &bench_image_command,     NULL,
};

const cli_command bench_command = {
    .name = "bench",
    .summary = "measure the operations on this machine",
    .about = "Each benchmark repeats one operation and prints a line: its parameters, the median "
             "time and the spread (between the quartiles), the rate, and the most memory that was "
             "held.  With --json each line is an object with name, the parameters, device, "
             "threads, level, runs, median_s, spread_s, gflops or gb_per_s or both, and "
             "peak_bytes.",
    .subs = benchmarks,
};
