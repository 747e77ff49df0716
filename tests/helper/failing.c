/* failing.c - each allocation and each call of the file system fails in turn. */
#include "failing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* The at-th allocation fails or, if calls, the at-th call.  false: there are not so many. */
static bool fails_at(bool calls, size_t at, failing_files *files, failing_work *work, void *arg)
{
    memfs fs;
    fv_mem_counter mem;
    fv_err e = {0};
    memfs_init(&fs);
    fv_mem_counter_init(&mem);
    if (files) files(&fs, arg);
    fv_env env = {.io = &fs.io, .mem = &mem.mem};
    fs.fail_at = calls ? (int)at : 0;
    mem.fail_at = calls ? 0 : at;
    fv_status st = work(&fs, &env, arg, &e);
    bool failed = calls ? fs.calls >= (int)at : mem.count >= at;
    if (st ? !e.text[0] : e.text[0])
        fail_msg("%s %zu: status %d, \"%s\"", calls ? "call" : "allocation", at, st, e.text);
    if (!failed) assert_int_equal(st, FV_OK);
    assert_int_equal(mem.live, 0);
    assert_int_equal(fs.opened, 0);
    assert_int_equal(fs.maps, 0);
    memfs_free(&fs);
    return failed;
}

void fail_in_turn(failing_files *files, failing_work *work, void *arg)
{
    for (int calls = 0; calls < 2; calls++)
        for (size_t at = 1; fails_at(calls, at, files, work, arg); at++) assert_true(at < 100000);
}
