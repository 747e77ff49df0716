/* test_tok.c - tokenizers: memory that is not there, hostile texts, streams, training, threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "helper/files.h"
#include "helper/memfs.h"
#include "helper/tok.h"
#include "helper/failing.h"
#include "fovea/author/tok.h"

/* ---- each allocation fails in turn ---- */

typedef struct span_arg {
    const char *s;
    size_t n;
} span_arg;

static fv_status all_of_it(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)fs;
    static const char text[] = "Hello   e\xcc\x81 \xe6\xbc\xa2 apples\xff 123";
    const span_arg *a = arg;
    fv_tok *t;
    fv_encoding *enc = NULL;
    char *back = NULL;
    size_t len = 0;
    fv_status st = fv_tok_read(&t, env, a->s, a->n, "x", e);
    if (st == FV_OK) st = fv_encoding_new(&enc, t, e);
    if (st == FV_OK)
        st = fv_tok_encode(enc, text, sizeof text - 1,
                           (fv_tok_opts){.specials = true, .offsets = FV_OFFSETS_CHARS}, e);
    if (st == FV_OK) st = fv_tok_decode(t, &back, &len, enc->ids, enc->n, false, e);
    if (back) fv_tok_free_text(t, back, len);
    fv_encoding_free(enc);
    fv_tok_close(t);
    return st;
}

static const char *const corpus[] = {"low lower lowest", "new newer newest", "wide wider widest",
                                     "low low new new wide", "lower newer wider"};

typedef struct lines {
    const char *const *s;
    int n, at;
} lines;

static bool next_line(void *self, const char **text, size_t *len)
{
    lines *l = self;
    if (l->at == l->n) return false;
    *text = l->s[l->at++];
    *len = strlen(*text);
    return true;
}

static fv_status train_it(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)fs;
    lines l = {corpus, 5, 0};
    fv_tok *t;
    fv_status st = fv_tok_train(&t, env, (fv_tok_source){next_line, &l}, arg, e);
    fv_tok_close(t);
    return st;
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    static const char *const names[] = {"BPE bytes",  "WordPiece",    "Unigram byte fallback",
                                        "cl100k",     "Added tokens", "Sequence of processors",
                                        "Decoder CTC"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        span_arg a;
        char *s = tok_component(names[i], &a.n);
        a.s = s;
        fail_in_turn(NULL, all_of_it, &a);
        free(s);
    }
    for (int kind = 0; kind < 4; kind++) {
        fv_tok_train_opts o = {.kind = (fv_tok_kind)kind, .vocab = kind ? 40 : 270};
        fail_in_turn(NULL, train_it, &o);
    }
    span_arg a;
    char *s = slurp(TOK_GOLDEN "spm/bpe-symbols.model", &a.n);
    a.s = s;
    fail_in_turn(NULL, all_of_it, &a);
    free(s);
}

/* ---- texts ---- */

static void malformed_text_is_replaced(void **state)
{
    (void)state;
    fv_tok *t = tok_open_component("BPE bytes");
    /* As Python's errors="replace": one U+FFFD for each maximal ill-formed part. */
    const char bad[] = "a\xff\xe2\x82z\xf0\x9f\x98",
               good[] = "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd";
    fv_encoding *x = tok_encode(t, bad, sizeof bad - 1, (fv_tok_opts){.offsets = FV_OFFSETS_BYTES});
    fv_encoding *y = tok_encode(t, good, sizeof good - 1, (fv_tok_opts){0});
    tok_assert_ids(x, y->ids, y->n);
    assert_int_equal(x->spans[0].from, 0);
    assert_int_equal(x->spans[0].to, 1);
    assert_int_equal(x->spans[x->n - 1].from, 5);
    assert_int_equal(x->spans[x->n - 1].to, 8);
    fv_encoding_free(x);
    x = tok_encode(t, bad, sizeof bad - 1, (fv_tok_opts){.offsets = FV_OFFSETS_CHARS});
    assert_int_equal(x->spans[x->n - 1].from, 4);
    assert_int_equal(x->spans[x->n - 1].to, 5);
    fv_encoding_free(x);
    fv_encoding_free(y);
    x = tok_encode(t, "a\0b", 3, (fv_tok_opts){0}); /* a NUL is a byte like any other */
    char *back;
    size_t n;
    fv_err e;
    assert_int_equal(fv_tok_decode(t, &back, &n, x->ids, x->n, false, &e), FV_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(back, "a\0b", 3);
    fv_tok_free_text(t, back, n);
    fv_encoding_free(x);
    fv_tok_close(t);
}

static void length_is_kept(void **state)
{
    (void)state;
    fv_tok *t = tok_open_component("WordPiece");
    const char *a = "low lower lowest new newer newest", *b = "wide wider";
    fv_encoding *all = tok_encode(t, a, strlen(a), (fv_tok_opts){.specials = true});
    fv_encoding *cut = tok_encode(t, a, strlen(a), (fv_tok_opts){.specials = true, .max_len = 5});
    assert_int_equal(cut->n, 5);
    for (int i = 0; i < 4; i++) assert_int_equal(cut->ids[i], all->ids[i]);
    assert_int_equal(cut->ids[4], all->ids[all->n - 1]);
    fv_encoding_free(cut);
    cut =
        tok_encode(t, a, strlen(a),
                   (fv_tok_opts){.specials = true, .max_len = 7, .pair = b, .pair_len = strlen(b)});
    assert_int_equal(cut->n, 7);
    assert_int_equal(cut->token_types[6], 1);
    fv_err e;
    assert_int_equal(fv_tok_encode(cut, a, strlen(a), (fv_tok_opts){.specials = true, .max_len = 1},
                                   &e),
                     FV_EARG);
    fv_encoding_free(cut);
    fv_encoding_free(all);
    fv_tok_close(t);
}

/* A megabyte of one character, of letters without a space, of marks.  Work that grows with the
 * square of the length would take longer than a test may. */
static void hostile_texts_are_linear(void **state)
{
    (void)state;
    static const char *const names[] = {"BPE bytes",    "BPE byte fallback, whole text",
                                        "WordPiece",    "Unigram",
                                        "cl100k",       "NFC",
                                        "Bert",         "Added tokens",
                                        "Replace regex"};
    static const char *const fillers[] = {"a", " ",  "!",        "\xcc\x81", "\xe6\xbc\xa2",
                                          "<", "ab", "a\xcc\x81"};
    size_t n = 1000000;
    char *text = malloc(n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_tok *t = tok_open_component(names[i]);
        for (size_t k = 0; k < sizeof fillers / sizeof *fillers; k++) {
            size_t len = strlen(fillers[k]), whole = n / len * len;
            for (size_t j = 0; j < whole; j++) text[j] = fillers[k][j % len];
            fv_encoding *enc = tok_encode(t, text, whole,
                                          (fv_tok_opts){.offsets = FV_OFFSETS_BYTES});
            for (int64_t j = 0; j < enc->n; j++) {
                fv_span s = enc->spans[j];
                if (s.to < s.from || s.to > (int64_t)whole ||
                    (j && s.from < enc->spans[j - 1].from))
                    fail_msg("%s, \"%s\": token %lld stands at %lld to %lld", names[i], fillers[k],
                             (long long)j, (long long)s.from, (long long)s.to);
            }
            fv_encoding_free(enc);
        }
        fv_tok_close(t);
    }
    free(text);
}

/* ---- streams ---- */

/* What a stream gives of ids, which it has to give as they are decoded together. */
static void stream_joins(const fv_tok *t, const int32_t *ids, int64_t many)
{
    fv_tok_stream *s;
    fv_err e;
    char joined[512] = "", *whole;
    const char *piece;
    size_t n, len;
    assert_int_equal(fv_tok_stream_new(&s, t, true, &e), FV_OK);
    for (int64_t k = 0; k <= many; k++) {
        fv_status st = k < many ? fv_tok_stream_push(s, ids[k], &piece, &n, &e)
                                : fv_tok_stream_finish(s, &piece, &n, &e);
        assert_int_equal(st, FV_OK);
        json_t *valid = json_stringn(piece, n); /* only UTF-8 becomes a string */
        assert_non_null(valid);
        json_decref(valid);
        strcat(joined, piece);
    }
    assert_int_equal(fv_tok_decode(t, &whole, &len, ids, many, true, &e), FV_OK);
    assert_string_equal(joined, whole);
    fv_tok_free_text(t, whole, len);
    fv_tok_stream_free(s);
}

/* SentencePiece leaves out all blanks before the first word: a line that is indented is none. */
static void streams_keep_blanks(void **state)
{
    (void)state;
    static const int32_t ids[] = {410, 126, 13, 410, 410, 410, 436, 412, 410, 410, 13, 410, 410};
    fv_tok *t;
    fv_err e;
    if (fv_tok_open(&t, NULL, FOVEA_TESTS "/golden/stories260K", &e)) fail_msg("%s", e.text);
    for (int64_t n = 1; n <= (int64_t)(sizeof ids / sizeof *ids); n++) stream_joins(t, ids, n);
    fv_tok_close(t);
}

static void streams_give_whole_characters(void **state)
{
    (void)state;
    static const char *const names[] = {"BPE bytes", "BPE byte fallback, whole text",
                                        "Unigram byte fallback", "WordPiece"};
    const char *text = "Hello w\xc3\xb6rld \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x91\x8d apples don't";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_tok *t = tok_open_component(names[i]);
        fv_encoding *enc = tok_encode(t, text, strlen(text), (fv_tok_opts){.specials = true});
        stream_joins(t, enc->ids, enc->n);
        fv_encoding_free(enc);
        fv_tok_close(t);
    }
}

/* A server pushes a hundred thousand tokens a second. */
static void streams_allocate_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"BPE bytes", "BPE byte fallback, whole text",
                                        "Unigram byte fallback"};
    const char *text = "Hello w\xc3\xb6rld \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x91\x8d apples don't";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_mem_counter mem;
        fv_mem_counter_init(&mem);
        fv_env env = {.mem = &mem.mem};
        size_t bytes;
        fv_tok *t;
        fv_err e;
        char *file = tok_component(names[i], &bytes);
        if (fv_tok_read(&t, &env, file, bytes, names[i], &e)) fail_msg("%s", e.text);
        free(file);
        fv_encoding *enc = tok_encode(t, text, strlen(text), (fv_tok_opts){0});
        fv_tok_stream *s;
        const char *piece;
        size_t n, before = 0;
        assert_int_equal(fv_tok_stream_new(&s, t, true, &e), FV_OK);
        for (int k = 0; k < 20; k++) {
            if (k == 2) before = mem.count;
            for (int64_t j = 0; j < enc->n; j++)
                assert_int_equal(fv_tok_stream_push(s, enc->ids[j], &piece, &n, &e), FV_OK);
        }
        assert_int_equal(mem.count, before);
        fv_tok_stream_free(s);
        fv_encoding_free(enc);
        fv_tok_close(t);
        assert_int_equal(mem.live, 0);
    }
}

/* ---- training ---- */

static void training_is_deterministic_and_reads_back(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        char *file[2];
        size_t size[2];
        fv_err e = {0};
        memfs fs;
        memfs_init(&fs);
        fv_env env = {.io = &fs.io};
        for (int k = 0; k < 2; k++) {
            lines l = {corpus, 5, 0};
            fv_tok *t;
            const char *specials[] = {"<unk>", "</s>", NULL};
            fv_tok_train_opts o = {.kind = (fv_tok_kind)kind,
                                   .vocab = kind ? 45 : 280,
                                   .min_count = kind == FV_TOK_WORD,
                                   .specials = kind == FV_TOK_WORDPIECE ? NULL : specials};
            if (fv_tok_train(&t, &env, (fv_tok_source){next_line, &l}, &o, &e))
                fail_msg("%s", e.text);
            assert_true(fv_tok_size(t) <= (kind ? 45 : 280));
            if (kind != FV_TOK_WORDPIECE) assert_int_equal(fv_tok_id(t, "</s>"), 1);
            fv_encoding *enc = tok_encode(t, "lower widest", 12, (fv_tok_opts){0});
            char *back;
            size_t n;
            assert_int_equal(fv_tok_decode(t, &back, &n, enc->ids, enc->n, true, &e), FV_OK);
            assert_string_equal(back, "lower widest");
            fv_tok_free_text(t, back, n);
            if (kind == FV_TOK_WORD) assert_int_equal(enc->n, 2);
            assert_int_equal(fv_tok_save(t, "t.json", &e), FV_OK);
            const char *s = memfs_get(&fs, "t.json", &size[k]);
            file[k] = malloc(size[k]);
            memcpy(file[k], s, size[k]);
            fv_tok *again;
            if (fv_tok_open(&again, &env, "t.json", &e)) fail_msg("%s", e.text);
            fv_encoding *same = tok_encode(again, "lower widest", 12, (fv_tok_opts){0});
            tok_assert_ids(same, enc->ids, enc->n);
            fv_encoding_free(same);
            fv_encoding_free(enc);
            fv_tok_close(again);
            fv_tok_close(t);
        }
        assert_int_equal(size[0], size[1]);
        assert_memory_equal(file[0], file[1], size[0]);
        free(file[0]);
        free(file[1]);
        memfs_free(&fs);
    }
    fv_tok *t;
    fv_err e;
    lines none = {corpus, 0, 0};
    assert_int_equal(fv_tok_train(&t, NULL, (fv_tok_source){next_line, &none}, NULL, &e), FV_EARG);
}

/* ---- threads ---- */

static void *encode_much(void *arg)
{
    const fv_tok *t = arg;
    const char *text = "Hello world, low lower lowest \xe6\xbc\xa2 don't";
    fv_encoding *one = tok_encode(t, text, strlen(text), (fv_tok_opts){.specials = true}),
                *enc = tok_encode(t, "", 0, (fv_tok_opts){0});
    fv_err e;
    intptr_t bad = 0;
    for (int i = 0; i < 200; i++) {
        if (fv_tok_encode(enc, text, strlen(text), (fv_tok_opts){.specials = true}, &e)) bad++;
        if (enc->n != one->n || memcmp(enc->ids, one->ids, (size_t)one->n * sizeof *one->ids))
            bad++;
    }
    fv_encoding_free(one);
    fv_encoding_free(enc);
    return (void *)bad;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    static const char *const names[] = {"BPE bytes", "cl100k", "Unigram", "WordPiece"};
    for (int i = 0; i < 4; i++) {
        fv_tok *t = tok_open_component(names[i]);
        pthread_t threads[4];
        for (int k = 0; k < 4; k++)
            assert_int_equal(pthread_create(&threads[k], NULL, encode_much, t), 0);
        for (int k = 0; k < 4; k++) {
            void *bad;
            pthread_join(threads[k], &bad);
            assert_null(bad);
        }
        fv_tok_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_allocations_are_reported),
        cmocka_unit_test(malformed_text_is_replaced),
        cmocka_unit_test(length_is_kept),
        cmocka_unit_test(hostile_texts_are_linear),
        cmocka_unit_test(streams_give_whole_characters),
        cmocka_unit_test(streams_allocate_nothing),
        cmocka_unit_test(streams_keep_blanks),
        cmocka_unit_test(training_is_deterministic_and_reads_back),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
