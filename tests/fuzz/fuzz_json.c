/* fuzz_json.c - libFuzzer target: any bytes as JSON; make fuzz-json.
 *
 * Beyond memory errors: what was read is printed, read again and equal; a document that one of the
 * two readers takes, the other takes. */
#include <stdlib.h>

#include "base/json/reader.h"
#include "base/json/tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fv_mem_counter mem;
    fv_err e = {0};
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv__jtree one = {.pool = {.env = &env}}, two = {.pool = {.env = &env}};
    fv__json whole = {.s = (const char *)data, .n = size, .file = "x"};
    fv__jval root;
    bool valid = !fv__json_open(&root, &whole, &e);
    fv_status st = fv__jtree_parse(&one, (const char *)data, size, "x", 32, &e);
    if (st && !e.text[0]) abort();
    if (!st && !valid) abort();
    if (!st) {
        fv_buf text = {.env = &env};
        fv__jnode_print(&text, one.root, -1);
        if (fv__jtree_parse(&two, text.data, text.len, "again", 32, &e)) abort();
        if (!fv__jnode_equal(one.root, two.root)) abort();
        fv__buf_free(&text);
    }
    fv__jtree_free(&one);
    fv__jtree_free(&two);
    if (mem.live) abort();
    return 0;
}
