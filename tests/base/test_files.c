/* test_files.c - what a path may be when a file is written or looked for: links, devices, FIFOs,
 * names of models; and numbers in files under a locale with a decimal comma. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/decimal.h"
#include "base/hub.h"
#include "helper/files.h"

static void assert_content(const char *path, const char *text)
{
    size_t n;
    char *s = slurp(path, &n);
    assert_string_equal(s, text);
    free(s);
}

static fv_status put(const char *path, const char *text, fv_err *e)
{
    return fv__file_write(NULL, path, text, strlen(text), e);
}

/* ---- writing ---- */

static void links_are_written_through(void **state)
{
    (void)state;
    struct stat st;
    const char *target = scratch_text("target", "old"), *link = scratch("link");
    assert_int_equal(symlink("target", link), 0);
    assert_int_equal(put(link, "new", NULL), FV_OK);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_content(target, "new");
    /* to nothing yet, over two links, one of them absolute */
    assert_int_equal(symlink(scratch("second"), scratch("first")), 0);
    assert_int_equal(symlink("third", scratch("second")), 0);
    assert_int_equal(put(scratch("first"), "x", NULL), FV_OK);
    assert_content(scratch("third"), "x");
    assert_int_equal(symlink("loop", scratch("loop")), 0);
    assert_int_equal(put(scratch("loop"), "x", NULL), FV_EIO);
}

/* A child reads; the FIFO is there afterwards, and so is what was written. */
static void a_fifo_is_written_to(void **state)
{
    (void)state;
    struct stat st;
    const char *fifo = scratch("fifo"), *got = scratch("got");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    pid_t child = fork();
    if (!child) {
        execlp("cp", "cp", fifo, got, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(put(fifo, "through", NULL), FV_OK);
    waitpid(child, NULL, 0);
    assert_int_equal(lstat(fifo, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_content(got, "through");
}

static void a_device_is_written_to(void **state)
{
    (void)state;
    struct stat st;
    const char *link = scratch("null");
    assert_int_equal(symlink("/dev/null", link), 0);
    assert_int_equal(put(link, "gone", NULL), FV_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(put(scratch("."), "x", NULL), FV_EIO);
}

static void a_planted_link_is_not_followed(void **state)
{
    (void)state;
    const char *precious = scratch_text("precious", "keep");
    assert_int_equal(symlink("precious", scratch("out.json.tmp")), 0);
    assert_int_equal(put(scratch("out.json"), "{}", NULL), FV_OK);
    assert_content(precious, "keep");
    assert_content(scratch("out.json"), "{}");
}

/* ---- what is there ---- */

static int no_descriptors(void *self, const char *path)
{
    (void)self, (void)path;
    return -EMFILE;
}

static void only_absence_is_absence(void **state)
{
    (void)state;
    fv_path_kind kind;
    fv_err e = {0};
    assert_int_equal(fv__path_kind(&kind, NULL, scratch("nothing"), &e), FV_OK);
    assert_int_equal(kind, FV_PATH_ABSENT);
    assert_int_equal(fv__path_kind(&kind, NULL, scratch("."), &e), FV_OK);
    assert_int_equal(kind, FV_PATH_DIR);
    fv_io io = *fv__io(NULL);
    io.kind = no_descriptors;
    assert_int_equal(fv__path_kind(&kind, &(fv_env){.io = &io}, scratch("."), &e), FV_EIO);
    assert_non_null(strstr(e.text, strerror(EMFILE)));
    assert_true(fv__file_exists(&(fv_env){.io = &io}, scratch("nothing")));
}

/* A FIFO that nobody writes to: looking at it does not wait. */
static void a_fifo_is_seen_without_waiting(void **state)
{
    (void)state;
    fv_path_kind kind;
    assert_int_equal(mkfifo(scratch("silent"), 0600), 0);
    alarm(5);
    assert_int_equal(fv__path_kind(&kind, NULL, scratch("silent"), NULL), FV_OK);
    assert_int_equal(kind, FV_PATH_SPECIAL);
    assert_true(fv__file_exists(NULL, scratch("silent")));
    alarm(0);
}

static void what_never_ends_is_refused(void **state)
{
    (void)state;
    fv_file f;
    fv_err e = {0};
    assert_int_equal(fv__file_read(&f, NULL, "/dev/zero", 1 << 20, &e), FV_EIO);
    assert_non_null(strstr(e.text, "too many"));
}

/* ---- names of models ---- */

static void put_snapshot(const char *repo, const char *commit, const char *ref)
{
    char path[256];
    snprintf(path, sizeof path, "%s", scratch("hub/%s", repo));
    mkdir(scratch("hub"), 0700);
    mkdir(path, 0700);
    mkdir(scratch("hub/%s/refs", repo), 0700);
    mkdir(scratch("hub/%s/snapshots", repo), 0700);
    mkdir(scratch("hub/%s/snapshots/%s", repo, commit), 0700);
    if (!ref) return;
    snprintf(path, sizeof path, "hub/%s/refs/%s", repo, ref);
    scratch_text(path, commit);
}

static void models_are_found_by_name(void **state)
{
    (void)state;
    char found[FV_PATH];
    fv_err e = {0};
    put_snapshot("models--gpt2", "607a30d", "main");
    put_snapshot("models--org--a.b", "abc", "main");
    put_snapshot("models--org--a.b", "def", "v1");
    setenv("HF_HUB_CACHE", scratch("hub"), 1);
    assert_int_equal(fv__hub_find(found, NULL, "gpt2", &e), FV_OK);
    assert_string_equal(found, scratch("hub/models--gpt2/snapshots/607a30d"));
    assert_int_equal(fv__hub_find(found, NULL, "org/a.b", &e), FV_OK);
    assert_string_equal(found, scratch("hub/models--org--a.b/snapshots/abc"));
    assert_int_equal(fv__hub_find(found, NULL, "org/a.b@v1", &e), FV_OK);
    assert_string_equal(found, scratch("hub/models--org--a.b/snapshots/def"));
    assert_int_equal(fv__hub_find(found, NULL, "org/a.b@def", &e), FV_OK);
    assert_string_equal(found, scratch("hub/models--org--a.b/snapshots/def"));
    unsetenv("HF_HUB_CACHE");
    setenv("HF_HOME", scratch("."), 1);
    assert_int_equal(fv__hub_find(found, NULL, "gpt2", &e), FV_OK);
    assert_int_equal(fv__hub_find(found, NULL, "org/none", &e), FV_EIO);
    assert_non_null(strstr(e.text, "hf download org/none"));
    assert_int_equal(fv__hub_find(found, NULL, "org/none@v2", &e), FV_EIO);
    assert_non_null(strstr(e.text, "hf download org/none --revision v2"));
    static const char *const paths[] = {"./gpt2", "../gpt2", "/gpt2", "a/b/c", "",
                                        "gpt2/",  "..",      "a b",   "@main", "a@../x"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        fv_status st = fv__hub_find(found, NULL, paths[i], &e);
        if (st) assert_null(strstr(e.text, "hf download"));
    }
    unsetenv("HF_HOME");
}

static void lfs_pointers_are_recognised(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1\nsize 5\n";
    assert_true(fv__is_lfs_pointer(pointer, sizeof pointer - 1));
    assert_false(fv__is_lfs_pointer("{}", 2));
}

/* ---- the locale ---- */

/* A locale of our own making, as machines rarely have one installed. */
static bool decimal_comma(void)
{
    char command[1024];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s' >/dev/null 2>&1",
             scratch("de_DE.UTF-8"));
    if (system(command) < 0) return false;
    setenv("LOCPATH", scratch("."), 1);
    return setlocale(LC_ALL, "de_DE.UTF-8") && *localeconv()->decimal_point == ',';
}

static void numbers_do_not_follow_the_locale(void **state)
{
    (void)state;
    fv_buf b = {0};
    fv_err e;
    char text[32];
    if (!decimal_comma()) skip(); /* this machine cannot make locales */
    fv__buf_fmt(&b, "%g %.2f", 0.5, 1.25);
    assert_string_equal(b.data, "0.5 1.25");
    fv__buf_free(&b);
    fv_fail(&e, FV_EARG, "%g", 0.5);
    assert_string_equal(e.text, "0.5");
    fv__format(text, sizeof text, "%g", 0.5);
    assert_string_equal(text, "0.5");
    assert_true(fv__strtod("0.5", NULL) == 0.5);
    assert_string_equal(fv__digits(0.1, false).s, "0.1");
    snprintf(text, sizeof text, "%g", 0.5); /* the program's own locale is as it was */
    assert_string_equal(text, "0,5");
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_written_through),
        cmocka_unit_test(a_fifo_is_written_to),
        cmocka_unit_test(a_device_is_written_to),
        cmocka_unit_test(a_planted_link_is_not_followed),
        cmocka_unit_test(only_absence_is_absence),
        cmocka_unit_test(a_fifo_is_seen_without_waiting),
        cmocka_unit_test(what_never_ends_is_refused),
        cmocka_unit_test(models_are_found_by_name),
        cmocka_unit_test(lfs_pointers_are_recognised),
        cmocka_unit_test(numbers_do_not_follow_the_locale),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
