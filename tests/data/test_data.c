/* test_data.c - data for training: every format and policy, plans that repeat, and batches made by
 * a thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/data.h"
#include "fovea/author/tensor.h"
#include "helper/device.h"
#include "helper/files.h"

static fv_tok *tok;

static bool next_text(void *self, const char **text, size_t *len)
{
    static const char *const lines[] = {"the cat sees the dog", "the dog sees the cat", "a cat",
                                        "le chat voit le chien"};
    int *i = self;
    if (*i == 4) return false;
    *text = lines[(*i)++];
    *len = strlen(*text);
    return true;
}

static int set_up(void **state)
{
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
    int at = 0;
    fv_err e;
    if (scratch_open(state)) return -1;
    fv_tok_train_opts o = {
        .kind = FV_TOK_BPE, .vocab = 60, .min_count = 1, .specials = specials, .after = "</s>"};
    check(fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &at}, &o, &e), &e);
    return 0;
}

static int tear_down(void **state)
{
    fv_tok_close(tok);
    return scratch_close(state);
}

/* ---- records ---- */

static fv_pairs *read_pairs(fv_records from, fv_data_report *r)
{
    fv_err e;
    fv_pairs *p;
    check(fv_pairs_open(&p, NULL, tok, (fv_pairs_opt){.from = from, .eos = -1, .keep_texts = true},
                        r, &e),
          &e);
    return p;
}

static void refused(fv_records from, const char *why)
{
    fv_err e = {0};
    fv_pairs *p;
    assert_int_not_equal(fv_pairs_open(&p, NULL, tok, (fv_pairs_opt){.from = from, .eos = -1}, NULL,
                                       &e),
                         FV_OK);
    assert_null(p);
    if (!strstr(e.text, why)) print_error("\"%s\" does not say \"%s\"\n", e.text, why);
    assert_non_null(strstr(e.text, why));
}

static void every_format_is_read(void **state)
{
    (void)state;
    fv_data_report r;
    const fv_records ways[] = {
        {.file = scratch_text("a.en", "the cat\nthe dog\r\n"),
         .beside = scratch_text("a.fr", "le chat\nle chien")},
        {.file = scratch_text("b.tsv", "the cat\tle chat\nthe dog\tle chien\n")},
        {.file = scratch_text("c.tsv", "id\tfr\ten\n1\tle chat\tthe cat\n2\tle chien\tthe dog\n"),
         .field = {"en", "fr"}},
        {.file = scratch_text("d.tsv", "x\tx\tx\n1\tle chat\tthe cat\n2\tle chien\tthe dog\n"),
         .field = {"3", "2"},
         .header = true},
        {.file = scratch_text("e.jsonl", "{\"s\": \"the cat\", \"t\": \"le chat\"}\n{\"t\": \"le "
                                         "chien\", \"s\": \"the dog\"}\n"),
         .field = {"s", "t"}},
        {.file = scratch_text("f.csv", "fr,n,en\nle chat,\"1,2\",the cat\nle chien,2,the dog\n"),
         .field = {"en", "fr"}},
        {.file = scratch_text("g.csv", "\"the cat\",\"le chat\"\nthe dog,\"le chien\"\n")},
        {.file = scratch_text("h.jsonl",
                              "{\"t\": {\"en\": \"the cat\", \"fr\": [\"le chat\", \"x\"]}}\n"
                              "{\"t\": {\"fr\": [\"le chien\"], \"en\": \"the dog\"}}\n"),
         .field = {"t.en", "t.fr[0]"}},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        fv_pairs *p = read_pairs(ways[i], &r);
        int64_t n, m;
        assert_int_equal(fv_pairs_count(p), 2);
        assert_int_equal(r.kept, 2);
        assert_string_equal(fv_pairs_text(p, 0), "le chat");
        assert_string_equal(fv_pairs_text(p, 1), "le chien");
        const int32_t *ids = fv_pairs_source(p, 0, &n);
        assert_int_equal(ids[n - 1], fv_tok_id(tok, "</s>"));
        fv_pairs_target(p, 0, &m);
        assert_true(n > 1 && m > 1);
        fv_pairs_close(p);
    }
}

/* Quotes hold commas, quotes and line ends; parts of the file count rows, not lines. */
static void csv_has_quotes(void **state)
{
    (void)state;
    fv_err e;
    fv_table *t;
    fv_data_report r = {0};
    size_t n;
    fv_records from = {.file = scratch_text("q.csv", "\"text\",label\n\"a, \"\"b\"\"\nc\",x\n"
                                                     "plain,y\n\"\"\"q\"\"\",z\nlast,w\n"),
                       .field = {"text", "label"}};
    static const char *const texts[] = {"a, \"b\"\nc", "plain", "\"q\"", "last"};
    static const int64_t lines[] = {2, 4, 5, 6};
    check(fv_table_open(&t, NULL, &from, 2, &r, &e), &e);
    assert_int_equal(fv_table_count(t), 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(fv_table_text(t, i, 0, &n), texts[i]);
        assert_int_equal(fv_table_line(t, i), lines[i]);
    }
    fv_table_close(t);
    from.part[1] = 0.5;
    check(fv_table_open(&t, NULL, &from, 2, &r, &e), &e);
    assert_int_equal(fv_table_count(t), 2);
    fv_table_close(t);
    refused((fv_records){.file = scratch_text("r.csv", "a,b\n\"c,d\n")},
            "r.csv:2: a quote is never closed");
}

/* Sequences go over lines; a part of the file counts sequences; lines are those of the headers. */
static void fasta_holds_sequences(void **state)
{
    (void)state;
    fv_err e;
    fv_table *t;
    fv_data_report r = {0};
    size_t n;
    fv_records from = {.file = scratch_text("p.fa", ">a\nMKT\nAY\n\n>b x\nGG\n>c\nL\n>d\nW\n")};
    static const char *const texts[] = {"MKTAY", "GG", "L", "W"};
    static const int64_t lines[] = {1, 5, 7, 9};
    check(fv_table_open(&t, NULL, &from, 1, &r, &e), &e);
    assert_int_equal(fv_table_count(t), 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(fv_table_text(t, i, 0, &n), texts[i]);
        assert_int_equal(fv_table_line(t, i), lines[i]);
    }
    fv_table_close(t);
    from.part[0] = 0.25, from.part[1] = 0.5;
    check(fv_table_open(&t, NULL, &from, 1, &r, &e), &e);
    assert_int_equal(fv_table_count(t), 1);
    assert_string_equal(fv_table_text(t, 0, 0, &n), "GG");
    fv_table_close(t);
    refused((fv_records){.file = scratch_text("q.fasta", "MKT\n")}, "FASTA holds one text each");
}

/* A list is several references where they may be, and a question where they may not. */
static void lists_are_references(void **state)
{
    (void)state;
    fv_err e;
    fv_table *t;
    fv_data_report r = {0};
    size_t n;
    fv_records from = {.file = scratch_text("l.jsonl", "{\"s\":\"x\",\"t\":[\"a\",\"b\"]}\n"),
                       .field = {"s", "t"},
                       .lists = true};
    check(fv_table_open(&t, NULL, &from, 2, &r, &e), &e);
    assert_string_equal(fv_table_text(t, 0, 1, &n), "a" FV_NEXT_TEXT "b");
    fv_table_close(t);
    from.lists = false;
    refused(from, "\"t\" is a list; \"t[0]\" is its first text");
    from.field[1] = "t[2]";
    refused(from, "no text called \"t[2]\"");
}

static void gzip_and_latin1_are_read(void **state)
{
    (void)state;
    fv_data_report r;
    gzFile g = gzopen(scratch("g.tsv.gz"), "wb");
    gzputs(g, "the cat\tle chat\n");
    gzclose(g);
    fv_pairs *p = read_pairs((fv_records){.file = scratch("g.tsv.gz")}, &r);
    assert_string_equal(fv_pairs_text(p, 0), "le chat");
    fv_pairs_close(p);
    p = read_pairs((fv_records){.file = scratch_text("l.tsv", "cat\tchat \xe9t\xe9\n"),
                                .latin1 = true},
                   &r);
    assert_string_equal(fv_pairs_text(p, 0), "chat \xc3\xa9t\xc3\xa9");
    fv_pairs_close(p);
}

static void what_cannot_be_used_is_counted_and_named(void **state)
{
    (void)state;
    fv_data_report r;
    fv_records from = {
        .file = scratch_text(
            "m.tsv",
            "the cat\tle chat\n\tle\nthe \xff\tchat\nthe cat the cat the cat\tchat\na\tb\n"),
        .max_len = 4};
    fv_pairs *p = read_pairs(from, &r);
    assert_int_equal(r.records, 5);
    assert_int_equal(r.kept, 2);
    assert_int_equal(r.empty, 1);
    assert_int_equal(r.malformed, 1);
    assert_int_equal(r.too_long, 1);
    assert_non_null(strstr(r.first[0], "m.tsv:2: empty"));
    assert_non_null(strstr(r.first[1], "m.tsv:3: not UTF-8 at byte 5"));
    assert_non_null(strstr(r.first[2], "m.tsv:4: too long"));
    fv_pairs_close(p);

    from.too_long = FV_CUT;
    p = read_pairs(from, &r);
    assert_int_equal(r.kept, 3);
    assert_int_equal(r.cut, 1);
    int64_t n;
    fv_pairs_source(p, 1, &n);
    assert_int_equal(n, 4);
    fv_pairs_close(p);
}

static void policies_refuse_where_asked_to(void **state)
{
    (void)state;
    const char *path = scratch_text("p.tsv", "the cat\tle chat\n\tle\n");
    refused((fv_records){.file = path, .empty = FV_REFUSE}, "p.tsv:2: empty");
    refused((fv_records){.file = scratch_text("q.tsv", "a\t\xff\n"), .malformed = FV_REFUSE},
            "q.tsv:1: not UTF-8 at byte 1");
    refused((fv_records){.file = scratch_text("r.tsv", "a\tthe cat the cat\n"),
                         .max_len = 4,
                         .too_long = FV_REFUSE},
            "at most 4");
    refused((fv_records){.file = scratch_text("s.en", "a\nb\n"),
                         .beside = scratch_text("s.fr", "a\n")},
            "has 2 lines and");
    refused((fv_records){.file = scratch_text("t.tsv", "a\tb\tc\n")}, "t.tsv:1: 3 fields");
    refused((fv_records){.file = scratch_text("u.tsv", "a\tb\n"), .field = {"x", "y"}},
            "no column is called \"x\"");
    refused((fv_records){.file = scratch_text("v.jsonl", "{\"s\": 1}\n"), .field = {"s", "t"}},
            "v.jsonl:1: no text called \"s\"");
    refused((fv_records){.file = scratch_text("w.jsonl", "{\"s\": 1\n"), .field = {"s", "t"}},
            "w.jsonl:1: not JSON");
    refused((fv_records){.file = scratch_text("x.tsv", "\t\n")}, "none of 1 pairs can be used");
    refused((fv_records){.file = scratch("none.tsv")}, "cannot open");
    refused((fv_records){.file = scratch_text("y.txt", "a\n")}, "name a second file");
}

/* ---- plans and feeders ---- */

enum { N = 200 };

static fv_feed numbers(void)
{
    static char text[N][64];
    static const char *side[N];
    fv_pairs *p;
    fv_feed f;
    fv_err e;
    for (int i = 0; i < N; i++) {
        text[i][0] = 0;
        for (int k = 0; k <= i * 7 % 12; k++) strcat(text[i], "cat ");
        side[i] = text[i];
    }
    check(fv_pairs_make(&p, NULL, tok, side, side, N, (fv_pairs_opt){.eos = -1}, NULL, &e), &e);
    check(fv_feed_pairs(&f, p, 0, 0, true, &e), &e);
    return f;
}

static void a_plan_holds_every_example_once(void **state)
{
    (void)state;
    fv_feed f = numbers();
    fv_err e;
    for (int64_t epoch = -1; epoch < 3; epoch++) {
        char seen[N] = {0};
        fv_plan *p;
        check(fv_plan_make(&p, NULL, &f, (fv_plan_opt){.tokens = 100, .rows = 7, .rng = {3, epoch}},
                           &e),
              &e);
        for (int64_t i = 0; i < fv_plan_count(p); i++) {
            int64_t n, most = 0;
            const int32_t *rows = fv_plan_batch(p, i, &n);
            for (int64_t k = 0; k < n; k++) {
                int64_t s, t;
                f.size(f.self, rows[k], &s, &t);
                if (s > most) most = s;
                assert_int_equal(seen[rows[k]]++, 0);
            }
            assert_true(n <= 7 && (n == 1 || n * most <= 100));
        }
        for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
        fv_plan_free(p);
    }
    fv_feed_close(&f);
}

/* A number that stands for the next n batches of a feeder. */
static uint64_t digest(const fv_feed *f, fv_loader_opt o, int64_t n)
{
    fv_loader *loader;
    fv_err e;
    uint64_t h = 1469598103934665603u;
    check(fv_loader_new(&loader, NULL, f, o, &e), &e);
    for (int64_t i = 0; i < n; i++) {
        const fv_loaded *loaded;
        fv_loader_release(loader);
        check(fv_loader_next(loader, &loaded, &e), &e);
        h = (h ^ (uint64_t)loaded->index) * 1099511628211u;
        for (int k = 0; k < loaded->batch.n; k++) {
            const unsigned char *s = loaded->batch.part[k].data;
            size_t bytes = (size_t)fv_shape_len(loaded->batch.part[k].shape) *
                           fv_dtype_size(loaded->batch.part[k].dtype);
            while (bytes--) h = (h ^ *s++) * 1099511628211u;
        }
    }
    fv_loader_free(loader);
    return h;
}

static void a_thread_changes_no_batch(void **state)
{
    (void)state;
    fv_feed f = numbers();
    fv_loader_opt o = {.plan = {.tokens = 100, .rng = {5, 0}}};
    uint64_t alone = digest(&f, o, 150);
    for (int64_t ahead = 1; ahead < 6; ahead += 2) {
        o.ahead = ahead;
        assert_true(digest(&f, o, 150) == alone);
    }
    fv_feed_close(&f);
}

static void a_feeder_begins_in_the_middle(void **state)
{
    (void)state;
    fv_feed f = numbers();
    fv_loader *a, *b;
    fv_err e;
    const fv_loaded *x, *y;
    check(fv_loader_new(&a, NULL, &f,
                        (fv_loader_opt){.plan = {.tokens = 100, .rng = {5, 0}}, .ahead = 3}, &e),
          &e);
    int64_t count = 0;
    do {
        fv_loader_release(a);
        check(fv_loader_next(a, &x, &e), &e);
        count++;
    } while (!x->last);
    check(fv_loader_new(
              &b, NULL, &f,
              (fv_loader_opt){.plan = {.tokens = 100, .rng = {5, 0}}, .batch = count, .ahead = 2},
              &e),
          &e);
    fv_loader_release(a);
    check(fv_loader_next(a, &x, &e), &e);
    check(fv_loader_next(b, &y, &e), &e);
    assert_int_equal(x->epoch, 1);
    assert_int_equal(y->epoch, 1);
    assert_int_equal(y->index, 0);
    assert_int_equal(fv_shape_len(x->batch.part[0].shape), fv_shape_len(y->batch.part[0].shape));
    fv_loader_free(a);
    fv_loader_free(b);
    fv_feed_close(&f);
}

static fv_status spoiled(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                         fv_data_rng how, fv_err *e)
{
    (void)self, (void)out, (void)rows, (void)n, (void)how;
    return fv_fail(e, FV_EFORMAT, "spoiled");
}

static void a_failing_feed_fails_the_feeder_and_keeps_failing(void **state)
{
    (void)state;
    fv_feed f = numbers(), bad = f;
    bad.make = spoiled;
    for (int64_t ahead = 0; ahead < 3; ahead += 2) {
        fv_loader *loader;
        fv_err e;
        const fv_loaded *x;
        check(fv_loader_new(&loader, NULL, &bad,
                            (fv_loader_opt){.plan = {.tokens = 100}, .ahead = ahead}, &e),
              &e);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(fv_loader_next(loader, &x, &e), FV_EFORMAT);
            assert_string_equal(e.text, "spoiled");
        }
        fv_loader_free(loader);
    }
    fv_feed_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_read),
        cmocka_unit_test(csv_has_quotes),
        cmocka_unit_test(fasta_holds_sequences),
        cmocka_unit_test(lists_are_references),
        cmocka_unit_test(gzip_and_latin1_are_read),
        cmocka_unit_test(what_cannot_be_used_is_counted_and_named),
        cmocka_unit_test(policies_refuse_where_asked_to),
        cmocka_unit_test(a_plan_holds_every_example_once),
        cmocka_unit_test(a_thread_changes_no_batch),
        cmocka_unit_test(a_feeder_begins_in_the_middle),
        cmocka_unit_test(a_failing_feed_fails_the_feeder_and_keeps_failing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
