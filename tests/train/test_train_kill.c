/* test_train_kill.c - the program training, from outside: killed at any moment it loses at most one
 * checkpoint interval, interrupted it saves, and whatever happened to it on the way, it ends with
 * the same bits. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/checkpoint.h"
#include "fovea/author/grammar.h"
#include "helper/files.h"

enum { KILLS = 50, SAVE_EVERY = 5, UPDATES = 240 };

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    FILE *f = fopen(scratch("data.tsv"), "wb");
    for (uint64_t i = 0; i < 60; i++) {
        fv_grammar_pair p;
        fv_grammar_sentence(&p, 5, i);
        fprintf(f, "%s\t%s\n", p.en, p.fr);
    }
    fclose(f);
    f = fopen(scratch("r.ini"), "wb");
    fprintf(
        f,
        "[model]\nmodel_type = marian\nd_model = 16\nencoder_layers = 1\ndecoder_layers = "
        "1\nencoder_attention_heads = 2\n"
        "decoder_attention_heads = 2\nencoder_ffn_dim = 32\ndecoder_ffn_dim = "
        "32\nmax_position_embeddings = 64\ndropout = 0.1\n"
        "init_std = 0\n[data]\ntrain = %s\nvalid = %s\nmax_valid = 10\n[tokenizer]\nvocab = 200\n"
        "[train]\nbatch_tokens = 60\nlr = 3e-3\nwarmup = 10\nlog_every = 1\neval_every = "
        "40\nsave_every = %d\nema = 0.9\n",
        scratch("data.tsv"), scratch("data.tsv"), SAVE_EVERY);
    fclose(f);
    return 0;
}

/* What is done in the new process before it becomes the program; NULL: nothing. */
typedef void prepare(void);

/* Starts "fovea train" on a run of so many updates; returns its process. */
static pid_t start_with(prepare *before, const char *dir, int updates, int threads)
{
    char recipe[256], out[256], count[64], n[16];
    snprintf(recipe, sizeof recipe, "%s", scratch("r.ini"));
    snprintf(out, sizeof out, "%s", scratch("%s", dir));
    snprintf(count, sizeof count, "train.updates=%d", updates);
    snprintf(n, sizeof n, "%d", threads);
    pid_t pid = fork();
    if (pid) return pid;
    if (!freopen("/dev/null", "w", stdout) || !freopen(scratch("stderr"), "w", stderr)) _exit(126);
    if (before) before();
    execl(FOVEA_PROGRAM, "fovea", "train", recipe, "-o", out, "--resume", "--threads", n, "--set",
          count, (char *)NULL);
    _exit(127);
}

static pid_t start(const char *dir, int updates, int threads)
{
    return start_with(NULL, dir, updates, threads);
}

static int finish(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int64_t newest(const char *dir)
{
    fv_ckpt_found found;
    fv_err e;
    assert_int_equal(fv_ckpt_find(&found, NULL, scratch("%s/checkpoints", dir), NULL, NULL, NULL,
                                  &e),
                     FV_OK);
    return found.step;
}

/* The last update that the log tells of, or 0. */
static int64_t logged(const char *dir)
{
    char line[400];
    long long step = 0, last = 0;
    FILE *f = fopen(scratch("%s/train.jsonl", dir), "rb");
    while (f && fgets(line, sizeof line, f)) {
        const char *key = strstr(line, "\"step\": ");
        if (key && strchr(line, '\n') && sscanf(key, "\"step\": %lld", &step) == 1) last = step;
    }
    if (f) fclose(f);
    return last;
}

static void same_run(const char *a, const char *b)
{
    static const char *const files[] = {"model/model.safetensors", "model/config.json",
                                        "model/tokenizer.json", "best/model.safetensors",
                                        "recipe.ini"};
    for (int i = 0; i < 5; i++)
        if (!same_files(scratch("%s/%s", a, files[i]), scratch("%s/%s", b, files[i])))
            fail_msg("%s of %s is not that of %s", files[i], a, b);
}

static void killed_at_any_moment_it_loses_one_interval_at_most(void **state)
{
    (void)state;
    uint32_t random = 12345;
    int64_t before = -1;
    for (int i = 0; i < KILLS; i++) {
        random = random * 1664525u + 1013904223u;
        struct timespec wait = {0, (long)(15 + random % 1000 * 130 / 1000) * 1000000};
        pid_t pid = start("killed", UPDATES, 1 + i % 2);
        nanosleep(&wait, NULL);
        kill(pid, SIGKILL);
        int code = finish(pid);
        assert_true(code == -SIGKILL || code == 0);
        int64_t after = newest("killed"), told = logged("killed");
        assert_true(after >= before);
        assert_true(told <= (after < 0 ? 0 : after) + SAVE_EVERY);
        before = after;
    }
    assert_int_equal(finish(start("killed", UPDATES, 1)), 0);
    assert_int_equal(finish(start("whole", UPDATES, 2)), 0);
    same_run("killed", "whole");
}

static void wait_for_updates(const char *dir, int64_t n)
{
    for (int i = 0; i < 2000 && logged(dir) < n; i++) usleep(5000);
}

static void a_signal_finishes_the_update_and_saves(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        int64_t before = logged("stopped");
        pid_t pid = start("stopped", 60, 2);
        wait_for_updates("stopped", before + 3);
        kill(pid, signals[i]);
        assert_int_equal(finish(pid), 128 + signals[i]);
        assert_int_equal(newest("stopped"), logged("stopped"));
    }
    assert_int_equal(finish(start("stopped", 60, 1)), 0);
    assert_int_equal(finish(start("straight", 60, 2)), 0);
    same_run("stopped", "straight");
}

static void expect_error(const char *part)
{
    size_t n;
    char *text = slurp(scratch("stderr"), &n);
    if (!strstr(text, part)) fail_msg("no \"%s\" in: %s", part, text);
    free(text);
}

/* Whoever read the progress is gone: the run is saved. */
static int pipe_ends[2];
static void write_to_pipe(void) { dup2(pipe_ends[1], 2), close(pipe_ends[0]), close(pipe_ends[1]); }

static void a_closed_pipe_saves(void **state)
{
    (void)state;
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t pid = start_with(write_to_pipe, "piped", UPDATES, 1);
    close(pipe_ends[1]);
    wait_for_updates("piped", 3);
    close(pipe_ends[0]);
    assert_int_equal(finish(pid), 128 + SIGPIPE);
    assert_int_equal(newest("piped"), logged("piped"));
}

/* Beyond the limit on the size of a file a write fails as on a full disk. */
static void limit_files(void) { setrlimit(RLIMIT_FSIZE, &(struct rlimit){30000, 30000}); }

static void a_file_beyond_the_limit_is_a_sentence(void **state)
{
    (void)state;
    assert_int_equal(finish(start("limited", 10, 1)), 0);
    assert_int_equal(finish(start_with(limit_files, "limited", 40, 1)), 1);
    expect_error("File too large");
    expect_error("the last checkpoint, of update 10, is intact");
    assert_int_equal(newest("limited"), 10);
    assert_int_equal(finish(start("limited", 40, 1)), 0);
    assert_int_equal(finish(start("unlimited", 40, 1)), 0);
    assert_true(same_files(scratch("limited/model/model.safetensors"),
                           scratch("unlimited/model/model.safetensors")));
}

/* Nothing that is printed ends up in a file that was opened in place of standard error. */
static void close_standard(void) { close(0), close(1), close(2); }

static void closed_standard_files_are_not_reused(void **state)
{
    (void)state;
    size_t n;
    finish(start_with(close_standard, "closed", 10, 1));
    assert_int_equal(newest("closed"), 10);
    char *text = slurp(scratch("closed/train.jsonl"), &n);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (*line != '{') fail_msg("in train.jsonl: %s", line);
    free(text);
}

static void a_second_run_in_the_directory_is_refused(void **state)
{
    (void)state;
    pid_t pid = start("shared", 60, 1);
    wait_for_updates("shared", 3);
    kill(pid, SIGSTOP); /* or it may be through before the second starts */
    assert_int_equal(finish(start("shared", 60, 1)), 1);
    expect_error("shared: another process is training in it");
    kill(pid, SIGCONT);
    assert_int_equal(finish(pid), 0);
    assert_int_equal(finish(start("unshared", 60, 1)), 0);
    same_run("shared", "unshared");
}

static void interrupt_calls(void)
{
    setenv("LD_PRELOAD", FOVEA_FAULTS, 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    setenv("FAULT_EINTR", "1", 1);
}

static void interrupted_calls_are_made_again(void **state)
{
    (void)state;
    assert_int_equal(finish(start("calm", 10, 1)), 0);
    assert_int_equal(finish(start_with(interrupt_calls, "interrupted", 10, 1)), 0);
    same_run("interrupted", "calm");
}

static void broken_checkpoints_are_skipped(void **state)
{
    (void)state;
    assert_int_equal(finish(start("broken", 10, 1)), 0);
    FILE *f = fopen(scratch("broken/checkpoints/step-10/model.safetensors"), "r+b");
    assert_non_null(f);
    fseek(f, -3, SEEK_END);
    fputc('x', f);
    fclose(f);
    assert_int_equal(finish(start("broken", 20, 1)), 0);
    size_t n;
    char *text = slurp(scratch("stderr"), &n);
    assert_non_null(strstr(text, "skipped a checkpoint"));
    assert_non_null(strstr(text, "step-10"));
    free(text);
    assert_int_equal(finish(start("unbroken", 20, 1)), 0);
    assert_true(same_files(scratch("broken/model/model.safetensors"),
                           scratch("unbroken/model/model.safetensors")));
}

/* What did not fit goes on with smaller batches; the epoch that was under way begins anew. */
static void a_run_goes_on_with_smaller_batches(void **state)
{
    (void)state;
    size_t n;
    assert_int_equal(finish(start("smaller", 10, 1)), 0);
    char recipe[4096], *text = slurp(scratch("r.ini"), &n);
    char *at = strstr(text, "batch_tokens = 60\n");
    assert_non_null(at);
    snprintf(recipe, sizeof recipe, "%.*sbatch_tokens = 30\naccumulate = 2\nrecompute = true\n%s",
             (int)(at - text), text, strchr(at, '\n') + 1);
    scratch_text("r.ini", recipe);
    assert_int_equal(finish(start("smaller", 20, 1)), 0);
    scratch_text("r.ini", text);
    free(text);
    text = slurp(scratch("stderr"), &n);
    assert_non_null(strstr(text, "batches have another size than before: the epoch begins anew\n"));
    free(text);
    assert_int_equal(newest("smaller"), 20);
    assert_int_equal(logged("smaller"), 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_moment_it_loses_one_interval_at_most),
        cmocka_unit_test(a_signal_finishes_the_update_and_saves),
        cmocka_unit_test(a_closed_pipe_saves),
        cmocka_unit_test(a_file_beyond_the_limit_is_a_sentence),
        cmocka_unit_test(closed_standard_files_are_not_reused),
        cmocka_unit_test(a_second_run_in_the_directory_is_refused),
        cmocka_unit_test(interrupted_calls_are_made_again),
        cmocka_unit_test(broken_checkpoints_are_skipped),
        cmocka_unit_test(a_run_goes_on_with_smaller_batches),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
