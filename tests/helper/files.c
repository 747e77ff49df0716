/* files.c - files of a test, and a folder of its own for them. */
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *s = malloc(*n + 1);
    assert_non_null(s);
    assert_int_equal(fread(s, 1, *n, f), *n);
    s[*n] = 0;
    fclose(f);
    return s;
}

bool same_files(const char *a, const char *b)
{
    size_t n, m;
    char *x = slurp(a, &n), *y = slurp(b, &m);
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

static char folder[64]; /* one for each program, as cmocka runs one group */

int scratch_open(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/fovea-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_tree(const char *path)
{
    char line[600];
    snprintf(line, sizeof line, "rm -r '%s'", path);
    return system(line);
}

int scratch_close(void **state)
{
    (void)state;
    return remove_tree(folder);
}

const char *scratch(const char *fmt, ...)
{
    static char path[16][512];
    static int at;
    char name[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    at = (at + 1) % 16;
    snprintf(path[at], sizeof path[at], "%s/%s", folder, name);
    return path[at];
}

bool scratch_has(const char *name)
{
    struct stat st;
    return !stat(scratch("%s", name), &st) && st.st_size > 0;
}

void scratch_drop(const char *name) { assert_int_equal(remove_tree(scratch("%s", name)), 0); }

const char *scratch_put(const char *name, const void *data, size_t n)
{
    const char *path = scratch("%s", name);
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("%s cannot be written", path);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

const char *scratch_text(const char *name, const char *text)
{
    return scratch_put(name, text, strlen(text));
}
