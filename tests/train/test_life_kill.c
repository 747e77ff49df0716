/* test_life_kill.c - adapters, methods against forgetting and preferences, killed at any moment
 * (SIGKILL, so nothing is saved on the way out) and resumed: the same bits as a run that was left
 * alone.  What each keeps besides the parameters - the Fisher information and the parameters it
 * holds (EWC), remembered examples (replay, A-GEM), one adapter a task, the log-probabilities of
 * the reference (DPO) - comes back from the last checkpoint or is computed again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/lines.h"
#include "helper/program.h"

enum { KILLS = 6 };

static const char classes[] =
    "[train]\nupdates = 120\nlr = 0.01\nbatch_tokens = 24\nsave_every = 4\nwarmup = 0\n";

static const char turns[] =
    "[continual]\ntasks = good,bad fair\nscenario = task\nepochs = 40\nmemory = 4\n"
    "fisher_samples = 4\nstrength = 10\n"
    "[train]\nlr = 0.01\nbatch_tokens = 24\nbatch_rows = 1\nsave_every = 4\nwarmup = 0\n"
    "schedule = constant\neval_every = 1000\n";

static const char pairs[] =
    "[model]\nfrom = writer/model\n[data]\nobjective = preference\ntrain = pairs.jsonl\n"
    "loss = dpo\n[train]\nupdates = 120\nlr = 0.01\nwarmup = 0\nbatch_tokens = 24\n"
    "save_every = 4\n";

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    train_base(1);
    put_classify("classes.ini", classes);
    put_classify("turns.ini", turns);
    scratch_text("pairs.ini", pairs);
    train_writer();
    return 0;
}

/* Everything a run leaves as its result; `files` are names or patterns below its directory.  How
 * far a run comes before it is killed depends on the machine, so the waits grow from what only
 * starts the program to what trains for a while, and one that is through earlier is left so. */
static void killed(const char *name, const char *recipe, const char *more, const char *files)
{
    succeeded(sh("$fovea train %s -q -o %s %s --threads 2", recipe, name, more));
    uint32_t random = 7;
    for (int i = 0; i < KILLS; i++) {
        random = random * 1664525u + 1013904223u;
        double wait = 0.02 + 0.03 * i + (double)(random % 1000) * 4e-5;
        sh("$fovea train %s -q -o %s-cut %s --resume --threads %d & p=$!; sleep %.3f; kill -9 $p; "
           "wait $p",
           recipe, name, more, 1 + i % 2, wait);
    }
    succeeded(sh("$fovea train %s -q -o %s-cut %s --resume --threads 1", recipe, name, more));
    succeeded(
        sh("cd %s && for f in %s; do cmp $f ../%s-cut/$f || exit 1; done", name, files, name));
}

static void adapters(void **state)
{
    (void)state;
    const char *files = "model/adapter_model.safetensors model/adapter_config.json";
    killed("lora", "classes.ini",
           "--set adapter.peft_type=LORA --set adapter.lora_dropout=0.1 "
           "--set 'adapter.target_modules=query value word_embeddings'",
           files);
    killed("prefix", "classes.ini",
           "--set adapter.peft_type=PREFIX_TUNING --set adapter.num_virtual_tokens=3", files);
}

static void methods_against_forgetting(void **state)
{
    (void)state;
    const char *files = "model/model.safetensors continual.json";
    killed("ewc", "turns.ini", "--set continual.method=ewc", files);
    killed("online", "turns.ini", "--set continual.method=online_ewc", files);
    killed("si", "turns.ini", "--set continual.method=si", files);
    killed("replay", "turns.ini", "--set continual.method=replay --set continual.buffer=reservoir",
           files);
    killed("agem", "turns.ini", "--set continual.method=agem", files);
    killed("own", "turns.ini", "--set continual.method=adapters --set adapter.peft_type=LORA",
           "adapters/*/adapter_model.safetensors continual.json");
}

static void preferences(void **state)
{
    (void)state;
    killed("dpo", "pairs.ini", "", "model/model.safetensors");
    killed("dpo-lora", "pairs.ini", "--set adapter.peft_type=LORA",
           "model/adapter_model.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters),
        cmocka_unit_test(methods_against_forgetting),
        cmocka_unit_test(preferences),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
