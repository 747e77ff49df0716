/* test_comm_tcp.c - ranks that torchrun's variables describe: they find each other by TCP, talk
 * through rank 0, notice who dies, and train to the bits of one process. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "helper/device.h"
#include "helper/program.h"
#include "helper/ranks.h"

enum { MOST = 5 };

static int port; /* of the next job */

static void set_number(const char *name, int x)
{
    char text[16];
    snprintf(text, sizeof text, "%d", x);
    setenv(name, text, 1);
}

/* The work of n ranks, each a process; the code of each is returned in code. */
static void among(int n, int (*work)(fv_comm *c), int *code)
{
    pid_t child[MOST];
    set_number("MASTER_PORT", ++port);
    for (int r = 0; r < n; r++) {
        child[r] = fork();
        assert_true(child[r] >= 0);
        if (child[r]) continue;
        fv_err e = {0};
        fv_comm *c;
        set_number("RANK", r);
        set_number("WORLD_SIZE", n);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        if (fv_comm_open(&c, NULL, (fv_comm_opt){.engine = "tcp", .timeout = 3}, &e)) {
            fprintf(stderr, "%s\n", e.text);
            _exit(99);
        }
        int came_to = work(c);
        fv_comm_close(c);
        _exit(came_to);
    }
    for (int r = 0; r < n; r++) {
        int status;
        waitpid(child[r], &status, 0);
        code[r] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
}

/* Every rank sends two numbers to every rank, itself too; then a megabyte around. */
static int everybody_talks(fv_comm *c)
{
    enum { LARGE = 1 << 18 };
    int n = fv_comm_size(c), me = fv_comm_rank(c), root = 7, wrong = ranks_exchange(c);
    if (wrong) return wrong;
    if (me == n - 1) root = 42;
    if (fv_comm_broadcast(c, &root, sizeof root, n - 1, NULL) || root != 42) return 3;
    float *x = malloc(LARGE * sizeof *x);
    for (int i = 0; i < LARGE; i++) x[i] = (float)(me + i % 1000);
    int bad = fv_comm_all_reduce(c, x, LARGE, NULL) ? 4 : 0;
    for (int i = 0; i < LARGE && !bad; i++)
        if (x[i] != (float)(n * (n - 1) / 2 + n * (i % 1000))) bad = 5;
    free(x);
    return bad ? bad : fv_comm_barrier(c, NULL) ? 6 : 0;
}

static void ranks_talk(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n += 2) {
        int code[MOST];
        among(n, everybody_talks, code);
        for (int r = 0; r < n; r++) assert_int_equal(code[r], 0);
    }
}

/* Rank 1 is killed; the others leave with a sentence that names it, at the latest at the second
 * barrier: what a killed process has sent last may be lost with it. */
static int one_dies(fv_comm *c)
{
    fv_err e = {0};
    fv_status st = fv_comm_barrier(c, &e);
    if (fv_comm_rank(c) == 1) raise(SIGKILL);
    if (!st) st = fv_comm_barrier(c, &e);
    if (!st) return 2;
    return strstr(e.text, "rank 1 is lost") ? 0 : 3;
}

/* Rank 2 cannot go on, and says why. */
static int one_fails(fv_comm *c)
{
    fv_err e = {0};
    if (fv_comm_rank(c) == 2) {
        fv_comm_abort(c, "the disk is full");
        return 0;
    }
    if (!fv_comm_barrier(c, &e)) return 2;
    return strcmp(e.text, "rank 2: the disk is full") ? 3 : 0;
}

/* Rank 2 is stopped: nothing is heard of it for the timeout. */
static int one_stops(fv_comm *c)
{
    fv_err e = {0};
    if (fv_comm_barrier(c, NULL)) return 1;
    if (fv_comm_rank(c) == 2) {
        if (!fork()) { /* it ends when the others have noticed */
            sleep(6);
            kill(getppid(), SIGKILL);
            _exit(0);
        }
        raise(SIGSTOP);
    }
    if (!fv_comm_barrier(c, &e)) return 2;
    return strstr(e.text, "rank 2 is lost: nothing was heard of it for 3 seconds") ? 0 : 3;
}

static void lost_ranks_are_named(void **state)
{
    (void)state;
    int code[MOST];
    among(3, one_dies, code);
    assert_int_equal(code[0], 0);
    assert_int_equal(code[1], -SIGKILL);
    assert_int_equal(code[2], 0);
    among(3, one_fails, code);
    for (int r = 0; r < 3; r++) assert_int_equal(code[r], 0);
    among(3, one_stops, code);
    assert_int_equal(code[0], 0);
    assert_int_equal(code[1], 0);
}

static void one_that_does_not_come_is_named(void **state)
{
    (void)state;
    fv_err e = {0};
    fv_comm *c;
    set_number("MASTER_PORT", ++port);
    set_number("RANK", 0);
    set_number("WORLD_SIZE", 2);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    assert_int_equal(fv_comm_open(&c, NULL, (fv_comm_opt){.timeout = 0.05}, &e), FV_EDEVICE);
    assert_non_null(strstr(e.text, "rank 1 has not joined (1 of 2 are here)"));
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static const char recipe[] = "[model]\nmodel_type = gpt2\nn_embd = 32\nn_layer = 1\nn_head = 2\n"
                             "n_positions = 32\n[data]\nobjective = causal\ntrain = lines.txt\n"
                             "context = 16\n[tokenizer]\nkind = byte_bpe\nvocab = 270\n"
                             "min_count = 1\n[train]\nupdates = 4\nbatch_tokens = 128\n"
                             "warmup = 1\nshards = 4\n";

static void training_gives_the_bits_of_one(void **state)
{
    (void)state;
    ranks_recipe(recipe);
    succeeded(sh("$fovea train r.ini -o one -q -t 1"));
    succeeded(sh("export WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=%d; "
                 "RANK=1 timeout 60 $fovea train r.ini -o two -q -t 1 & "
                 "RANK=0 timeout 60 $fovea train r.ini -o two -q -t 1 && wait",
                 ++port));
    succeeded(sh("cmp one/model/model.safetensors two/model/model.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_talk),
        cmocka_unit_test(lost_ranks_are_named),
        cmocka_unit_test(one_that_does_not_come_is_named),
        cmocka_unit_test(training_gives_the_bits_of_one),
    };
    port = 20000 + getpid() % 20000; /* tests may run beside each other */
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
