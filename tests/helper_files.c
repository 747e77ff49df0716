/* helper_files.c - files of a test. */
#include "helper_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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
