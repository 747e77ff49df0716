/* test_see_sequences.c - fovea see of time series and of histories of items: each is trained for a
 * moment, its maps have dates or names, and what does not fit is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/program.h"

#define TRAIN "[train]\nupdates = 3\nbatch_rows = 8\nsave_every = 0\neval_every = 0\nwarmup = 0\n"

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    scratch_text("series.ini",
                 "[model]\nmodel_type = patchtst\npatch_length = 8\npatch_stride = 4\n"
                 "d_model = 8\nnum_hidden_layers = 2\nnum_attention_heads = 2\n"
                 "ffn_dim = 16\n[data]\nobjective = forecast\ntrain = series.csv\n"
                 "context = 24\nhorizon = 4\n" TRAIN);
    scratch_text("items.ini", "[model]\nmodel_type = sasrec\nhidden_size = 8\n[data]\n"
                              "objective = next_item\nlayout = sequences\ntrain = events.txt\n"
                              "longest = 6\n" TRAIN);
    scratch_text("masked.ini",
                 "[model]\nmodel_type = bert4rec\nhidden_size = 8\n"
                 "intermediate_size = 8\n[data]\nobjective = next_item\n"
                 "layout = sequences\ntrain = events.txt\nlongest = 6\nmask = 0.4\n" TRAIN);
    succeeded(sh("awk 'BEGIN { print \"date,north,south\"; for (i = 0; i < 96; i++) printf "
                 "\"2024-01-%%02d %%02d:00,%%.3f,%%.3f\\n\", 1 + i / 24, i %% 24, sin(i / 3), "
                 "cos(i / 4) + i / 50 }' > series.csv"));
    succeeded(sh("for u in 1 2 3 4 5 6; do echo u$u i$u i$((u %% 3 + 1)) i4 i5 i$((u %% 2 + 6)); "
                 "done > events.txt"));
    for (const char *const *name = (const char *const[]){"series", "items", "masked", NULL}; *name;
         name++)
        succeeded(sh("$fovea train %s.ini -q -o %s --threads 1", *name, *name));
    return 0;
}

/* How many rows the first attention has, and the labels of its ends. */
static void check_maps(const char *path, int rows, const char *first, const char *last)
{
    json_t *j = json_line(succeeded(sh("tr -d '\\n' < %s", path)), 0);
    json_t *attention = json_object_get(j, "attentions"), *one = json_array_get(attention, 0);
    json_t *labels = json_object_get(one, "rows");
    assert_int_equal(json_array_size(labels), rows);
    assert_string_equal(json_string_value(json_array_get(labels, 0)), first);
    assert_string_equal(json_string_value(json_array_get(labels, (size_t)rows - 1)), last);
    json_decref(j);
}

/* Four hours from patch to patch, of which the last begins eight hours before the end. */
static void a_series_is_seen(void **state)
{
    (void)state;
    succeeded(sh("$fovea see -m series/model series.csv -o s.json"));
    check_maps("s.json", 5, "2024-01-04 00:00", "2024-01-04 16:00");
    succeeded(sh("$fovea see -m series/model series.csv --channel 1 -o n.json"));
    succeeded(
        sh("$fovea see -m series/model series.csv --channel 2 -o t.json && cmp s.json t.json"));
    assert_int_equal(sh("cmp -s s.json n.json")->code, 1); /* another channel, other weights */
    succeeded(sh("$fovea see -m series/model series.csv -o s.html && grep -q 2024-01-04 s.html"));
    refused(sh("$fovea see -m series/model series.csv --channel 3 -o s.json"), 1,
            "channel 3: the series has 2");
    refused(sh("cut -d, -f1,2 series.csv > one.csv; $fovea see -m series/model one.csv -o s.json"),
            1, "has 1 columns, but the model 2");
    refused(sh("head -n 9 series.csv > few.csv; $fovea see -m series/model few.csv -o s.json"), 1,
            "has 8 time steps, but the model reads 24");
}

/* A model that looks back has the history, one that looks both ways a mask behind it. */
static void a_history_is_seen(void **state)
{
    (void)state;
    succeeded(sh("$fovea see -m items/model --text 'i1 i2 i4' -o i.json"));
    check_maps("i.json", 3, "i1", "i4");
    succeeded(sh("$fovea see -m masked/model 'i1  i2 i4' -o m.json"));
    check_maps("m.json", 4, "i1", "next");
    refused(sh("$fovea see -m items/model --text 'i1 cat' -o i.json"), 1,
            "item cat: the model does not know it");
    refused(sh("$fovea see -m items/model --text ' ' -o i.json"), 1, "the history is empty");
    refused(sh("$fovea see -m items/model --text 'i1 i1 i1 i1 i1 i1 i1' -o i.json"), 1,
            "at most 6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_series_is_seen),
        cmocka_unit_test(a_history_is_seen),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
