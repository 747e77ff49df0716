/* test_store_checkpoint.c - checkpoints: found again, verified, and never lost to a crash. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "fovea/store.h"
#include "fovea/author/checkpoint.h"
#include "helper/files.h"
#include "helper/memfs.h"
#include "helper/failing.h"

/* A checkpoint of that step with two files; the second is written by the caller itself. */
static fv_status write_step(memfs *fs, const fv_env *env, int64_t step, const char *config,
                            int keep, fv_err *e)
{
    (void)fs;
    fv_ckpt *c;
    char text[64];
    int n = snprintf(text, sizeof text, "weights of step %lld", (long long)step);
    fv_status st = fv_ckpt_begin(&c, env, "run/ck", step, config, e);
    if (st) return st;
    st = fv_ckpt_add(c, "model.safetensors", text, (size_t)n, e);
    if (!st) st = fv_ckpt_add(c, "state.json", "{}", 2, e);
    if (!st) return fv_ckpt_commit(c, keep, e);
    fv_ckpt_abandon(c);
    return st;
}

typedef struct heard {
    int n;
    char dir[128], why[512];
} heard;

static void hear(void *user, const char *dir, const char *why)
{
    heard *h = user;
    h->n++;
    snprintf(h->dir, sizeof h->dir, "%s", dir);
    snprintf(h->why, sizeof h->why, "%s", why);
}

static int64_t newest(const fv_env *env, const char *config, heard *h)
{
    fv_ckpt_found f;
    fv_err e = {0};
    if (fv_ckpt_find(&f, env, "run/ck", config, h ? hear : NULL, h, &e)) fail_msg("%s", e.text);
    return f.step;
}

static void the_newest_is_found_and_old_ones_go(void **state)
{
    (void)state;
    memfs fs;
    memfs_init(&fs);
    memfs_put(&fs, "run/x", "", 0);
    fv_env env = {.io = &fs.io};
    fv_err e = {0};
    assert_int_equal(newest(&env, NULL, NULL), -1);
    for (int64_t step = 8; step <= 12; step++)
        if (write_step(&fs, &env, step, "config", 2, &e)) fail_msg("%s", e.text);
    assert_int_equal(newest(&env, "config", NULL), 12);
    assert_int_equal(newest(&env, "other", NULL), -1);
    assert_true(memfs_has(&fs, "run/ck/step-11"));
    assert_false(memfs_has(&fs, "run/ck/step-10"));
    assert_false(memfs_has(&fs, "run/ck/step-12.tmp"));
    size_t n;
    assert_memory_equal(memfs_get(&fs, "run/ck/last", &n), "step-12\n", 8);
    assert_int_equal(write_step(&fs, &env, 12, "config", 2, &e), FV_ESTATE);
    assert_int_equal(fs.opened + fs.maps, 0);
    memfs_free(&fs);
}

static void broken_ones_are_named_and_skipped(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *why;
    } cases[] = {
        {"run/ck/step-2/model.safetensors", "weights of step 3",
         "its content is not what its manifest says"},
        {"run/ck/step-2/model.safetensors", "weights", "7 bytes, its manifest says 17"},
        {"run/ck/step-2/MANIFEST.json", "{", "MANIFEST.json: line 1, column 2"},
        {"run/ck/step-2/MANIFEST.json", "{\"format\": \"other\"}", "unknown format"},
        {"run/ck/step-2/MANIFEST.json",
         "{\"format\": \"fovea checkpoint 1\", \"step\": 3, \"files\": []}", "malformed"},
        {"run/ck/step-2/MANIFEST.json",
         "{\"format\": \"fovea checkpoint 1\", \"step\": 2, \"files\": [{\"name\": \"../../x\", "
         "\"size\": 0, \"xxh3\": \"0\"}]}",
         "malformed"},
        {"run/ck/step-2/MANIFEST.json",
         "{\"format\": \"fovea checkpoint 1\", \"step\": 2, \"files\": [{\"name\": \"gone\", "
         "\"size\": 0, \"xxh3\": \"0\"}]}",
         "cannot open"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memfs fs;
        heard h = {0};
        memfs_init(&fs);
        memfs_put(&fs, "run/x", "", 0);
        fv_env env = {.io = &fs.io};
        assert_int_equal(write_step(&fs, &env, 1, NULL, 0, NULL), FV_OK);
        assert_int_equal(write_step(&fs, &env, 2, NULL, 0, NULL), FV_OK);
        memfs_put(&fs, cases[i].file, cases[i].text, strlen(cases[i].text));
        assert_int_equal(newest(&env, NULL, &h), 1);
        assert_int_equal(h.n, 1);
        assert_string_equal(h.dir, "run/ck/step-2");
        if (!strstr(h.why, cases[i].why))
            fail_msg("\"%s\" does not say \"%s\"", h.why, cases[i].why);
        /* a broken one may be written again */
        assert_int_equal(write_step(&fs, &env, 2, NULL, 0, NULL), FV_OK);
        assert_int_equal(newest(&env, NULL, NULL), 2);
        memfs_free(&fs);
    }
}

/* Going on from an older checkpoint, with broken newer ones around: what is committed stays. */
static void a_broken_newer_one_does_not_push_out_a_good_one(void **state)
{
    (void)state;
    memfs fs;
    memfs_init(&fs);
    memfs_put(&fs, "run/x", "", 0);
    fv_env env = {.io = &fs.io};
    write_step(&fs, &env, 9, NULL, 1, NULL);
    memfs_put(&fs, "run/ck/step-9/state.json", "[]", 2);
    assert_int_equal(write_step(&fs, &env, 5, NULL, 1, NULL), FV_OK);
    assert_int_equal(newest(&env, NULL, NULL), 5);
    memfs_free(&fs);
}

/* The power fails at every call of a commit, and four kinds of disk decide what is left: the old or
 * the new, never none. */
static void no_crash_loses_a_checkpoint(void **state)
{
    (void)state;
    int calls = 0;
    for (int disk = 0; disk < 4; disk++)
        for (int at = 1;; at++) {
            memfs fs;
            memfs_init(&fs);
            memfs_put(&fs, "run/x", "", 0);
            fv_env env = {.io = &fs.io};
            assert_int_equal(write_step(&fs, &env, 1, NULL, 1, NULL), FV_OK);
            fs.calls = 0;
            fs.crash_at = at;
            fv_status st = write_step(&fs, &env, 2, NULL, 1, NULL);
            bool crashed = fs.calls >= at;
            calls = fs.calls;
            memfs_crash(&fs, disk & 1, disk & 2);
            int64_t found = newest(&env, NULL, NULL);
            if (found != 1 && found != 2)
                fail_msg("disk %d, crash at call %d: found %lld", disk, at, (long long)found);
            if (!st) assert_int_equal(found, 2); /* reported as done: it is */
            assert_int_equal(write_step(&fs, &env, 3, NULL, 1, NULL), FV_OK);
            assert_int_equal(newest(&env, NULL, NULL), 3);
            assert_false(memfs_has(&fs, "run/ck/step-1"));
            assert_false(memfs_has(&fs, "run/ck/step-2.tmp"));
            memfs_free(&fs);
            if (!crashed) break;
            assert_true(at < 1000);
        }
    assert_true(calls > 20);
}

static void begin_run(memfs *fs, void *arg)
{
    (void)arg;
    memfs_put(fs, "run/x", "", 0);
    assert_int_equal(write_step(fs, &(fv_env){.io = &fs->io}, 1, NULL, 1, NULL), FV_OK);
    fs->calls = 0;
}

static fv_status go_on(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)arg;
    fv_status st = write_step(fs, env, 2, NULL, 1, e);
    int calls = fs->calls;
    fs->fail_at = 0;
    int64_t found = newest(&(fv_env){.io = &fs->io}, NULL, NULL);
    assert_true(found == 2 || (st && found == 1));
    fs->calls = calls; /* looking does not count */
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(begin_run, go_on, NULL);
}

/* ---- a run directory that somebody else made ---- */

static void real_step(const char *root, int64_t step, int keep)
{
    fv_ckpt *c;
    fv_err e = {0};
    if (fv_ckpt_begin(&c, NULL, root, step, NULL, &e) ||
        fv_ckpt_add(c, "model.safetensors", "weights", 7, &e) || fv_ckpt_commit(c, keep, &e))
        fail_msg("%s", e.text);
}

static void rotation_stays_in_its_directory(void **state)
{
    (void)state;
    char mine[256], other[256];
    snprintf(mine, sizeof mine, "%s", scratch("mine"));
    snprintf(other, sizeof other, "%s", scratch("other"));
    real_step(mine, 1, 0);
    real_step(other, 2, 0);
    mkdir(scratch("home"), 0700);
    scratch_text("home/letter", "dear");
    scratch_text("other/step-2/NOTES.txt", "mine");
    assert_int_equal(symlink("../other/step-2", scratch("mine/step-2")), 0);
    assert_int_equal(symlink("../home", scratch("mine/step-7.tmp")), 0);
    real_step(mine, 3, 1);
    assert_true(scratch_has("other/step-2/model.safetensors"));
    assert_true(scratch_has("other/step-2/MANIFEST.json"));
    assert_true(scratch_has("home/letter"));
    /* the links themselves are gone, and the old checkpoint */
    assert_int_equal(access(scratch("mine/step-2"), F_OK), -1);
    assert_int_equal(access(scratch("mine/step-7.tmp"), F_OK), -1);
    assert_int_equal(access(scratch("mine/step-1"), F_OK), -1);
}

static void foreign_files_are_left_alone(void **state)
{
    (void)state;
    char root[256];
    snprintf(root, sizeof root, "%s", scratch("notes"));
    real_step(root, 1, 0);
    scratch_text("notes/step-1/NOTES.txt", "mine");
    real_step(root, 2, 1);
    assert_true(scratch_has("notes/step-1/NOTES.txt"));
    assert_false(scratch_has("notes/step-1/model.safetensors"));
    /* what is left of it is in nobody's way */
    real_step(root, 1, 0);
    assert_true(scratch_has("notes/step-1/model.safetensors"));
    assert_true(scratch_has("notes/step-1.damaged-1/NOTES.txt"));
}

/* ---- what cannot be looked at ---- */

static const char *hidden; /* the path that cannot be opened or looked at */

static int kind_or_not(void *self, const char *path)
{
    const fv_io *real = fv__io(NULL);
    (void)self;
    return strstr(path, hidden) ? -EMFILE : real->kind(real->self, path);
}

static void a_failed_look_is_no_absence(void **state)
{
    (void)state;
    char root[256];
    fv_ckpt_found found;
    fv_err e = {0};
    snprintf(root, sizeof root, "%s", scratch("looked"));
    real_step(root, 1, 0);
    real_step(root, 2, 0);
    fv_io io = *fv__io(NULL);
    io.kind = kind_or_not;
    fv_env env = {.io = &io};
    static const char *const paths[] = {"looked", "step-2/MANIFEST.json", "step-2/model"};
    for (size_t i = 0; i < 3; i++) {
        hidden = paths[i];
        assert_int_equal(fv_ckpt_find(&found, &env, root, NULL, NULL, NULL, &e), FV_EIO);
        assert_non_null(strstr(e.text, strerror(EMFILE)));
    }
    assert_int_equal(fv_ckpt_find(&found, NULL, scratch("nowhere"), NULL, NULL, NULL, &e), FV_OK);
    assert_int_equal(found.step, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_is_found_and_old_ones_go),
        cmocka_unit_test(broken_ones_are_named_and_skipped),
        cmocka_unit_test(a_broken_newer_one_does_not_push_out_a_good_one),
        cmocka_unit_test(no_crash_loses_a_checkpoint),
        cmocka_unit_test(every_failure_is_reported),
        cmocka_unit_test(rotation_stays_in_its_directory),
        cmocka_unit_test(foreign_files_are_left_alone),
        cmocka_unit_test(a_failed_look_is_no_absence),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
