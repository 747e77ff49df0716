/* test_data_feeds.c - what each objective puts in a batch, and that it is the same whenever it is
 * asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/author/objective.h"
#include "fovea/fovea.h"
#include "fovea/author/tensor.h"
#include "fovea/author/tok.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/tok.h"

static fv_tok *tok;
static fv_labels labels;
static fv_batch batch;

static const char words[] = "the cat sees the dog\nthe dog sees the cat\na cat likes fish\n\nfish "
                            "likes water\nno dog likes the rain\n";

static int set_up(void **state)
{
    static const char *const specials[] = {"<pad>",        "</s>",         "<unk>",
                                           "<s>",          "<mask>",       "<extra_id_0>",
                                           "<extra_id_1>", "<extra_id_2>", NULL};
    if (scratch_open(state)) return -1;
    tok = tok_trained(words, 300, specials);
    return 0;
}

static int tear_down(void **state)
{
    fv_batch_free(&batch);
    fv_labels_free(&labels);
    fv_tok_close(tok);
    return scratch_close(state);
}

/* Options of an objective: its defaults, then key and value in turn up to NULL. */
static const void *options(const char *name, ...)
{
    static _Alignas(16) unsigned char memory[256];
    const fv_objective *o = fv_objective_find(name);
    va_list ap;
    fv_err e;
    assert_non_null(o);
    assert_true(o->options_size <= sizeof memory);
    memset(memory, 0, sizeof memory);
    if (o->keys) fv_fields_default(memory, o->keys);
    va_start(ap, name);
    for (const char *key; (key = va_arg(ap, const char *));)
        check(fv_fields_set(memory, o->keys, key, va_arg(ap, const char *), &e), &e);
    va_end(ap);
    return memory;
}

/* A window of 12 tokens, of which three in ten are hidden, in spans of two. */
static fv_feed_opt task(const char *name)
{
    static const char *const usual[][2] = {{"context", "12"}, {"mask", "0.3"}, {"span", "2"}};
    const fv_objective *o = fv_objective_find(name);
    fv_err e;
    fv_labels_free(&labels);
    const void *own = options(name, NULL);
    for (int i = 0; i < 3; i++)
        for (const fv_field *f = o->keys; f && f->name; f++)
            if (!strcmp(f->name, usual[i][0]))
                check(fv_fields_set((void *)(uintptr_t)own, o->keys, f->name, usual[i][1], &e), &e);
    return tok_feed(tok, own, &labels);
}

static fv_feed open_feed(const char *name, fv_feed_opt t, fv_records from, fv_data_report *r)
{
    fv_feed f;
    fv_err e;
    *r = (fv_data_report){0};
    check(fv_objective_find(name)->open(&f, &t, &from, r, &e), &e);
    return f;
}

static void make(const fv_feed *f, int32_t from, int64_t n, fv_data_rng how)
{
    int32_t rows[64];
    fv_err e;
    for (int64_t i = 0; i < n; i++) rows[i] = from + (int32_t)i;
    fv_batch_clear(&batch);
    check(f->make(f->self, &batch, rows, n, how, &e), &e);
}

static const int32_t *part(const char *name, int64_t *rows, int64_t *cols)
{
    *rows = *cols = 0;
    for (int i = 0; i < batch.n; i++) {
        if (strcmp(batch.part[i].name, name)) continue;
        *rows = batch.part[i].shape.d[0];
        *cols = batch.part[i].shape.n > 1 ? batch.part[i].shape.d[1] : 1;
        return batch.part[i].data;
    }
    fail_msg("the batch has no %s", name);
    return NULL;
}

static uint64_t digest(void)
{
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < batch.n; i++) {
        const unsigned char *s = batch.part[i].data;
        size_t n = (size_t)fv_shape_len(batch.part[i].shape) * fv_dtype_size(batch.part[i].dtype);
        while (n--) h = (h ^ *s++) * 1099511628211u;
    }
    return h;
}

/* The ids of the whole text, as the feeds see it. */
static int64_t whole(int32_t *out)
{
    fv_encoding *enc;
    fv_err e;
    check(fv_encoding_new(&enc, tok, &e), &e);
    check(fv_tok_encode(enc, words, sizeof words - 1, (fv_tok_opts){0}, &e), &e);
    int64_t n = enc->n;
    memcpy(out, enc->ids, (size_t)n * sizeof *out);
    fv_encoding_free(enc);
    return n;
}

static void causal_predicts_every_token_but_the_first(void **state)
{
    (void)state;
    fv_data_report r;
    int32_t text[400];
    int64_t all = whole(text), B, T, seen = 0;
    fv_feed f = open_feed("causal", task("causal"),
                          (fv_records){.file = scratch_text("t.txt", words)}, &r);
    assert_int_equal(r.tokens[0], all);
    int64_t n = f.count(f.self, -1);
    make(&f, 0, n, (fv_data_rng){.epoch = -1});
    const int32_t *ids = part("input_ids", &B, &T);
    assert_int_equal(T, 12);
    assert_int_equal((int64_t)batch.labels, all - 1);
    for (int64_t i = 0; i < B; i++)
        for (int64_t t = 0; t < T && i * 11 + t < all; t++) {
            assert_int_equal(ids[i * T + t], text[i * 11 + t]);
            seen += t > 0;
        }
    assert_int_equal(seen, all - 1);
    make(&f, 0, f.count(f.self, 0), (fv_data_rng){1, 0});
    uint64_t first = digest();
    make(&f, 0, f.count(f.self, 1), (fv_data_rng){1, 3});
    assert_true(first != digest()); /* windows have moved */
    fv_feed_close(&f);
}

/* Row r of the batches of an epoch is stream r from some token on, then from its beginning up to
 * there; a label is the token that follows in the text.  Returns where the row begins. */
static int64_t begins_at(const fv_feed *f, int64_t r, int64_t len, fv_data_rng how)
{
    int32_t text[400], ids[400], label[400];
    int64_t n = f->count(f->self, how.epoch), S, T, columns;
    const int32_t *stream = text + r * len;
    assert_true(whole(text) >= 2 * len);
    for (int32_t i = 0; i < n; i++) {
        make(f, i, 1, how);
        const int32_t *of = part("labels", &S, &columns);
        memcpy(label + i * 4, of + r * columns + 1, 4 * sizeof *label);
        of = part("input_ids", &S, &T);
        memcpy(ids + i * T, of + r * T, 4 * sizeof *ids);
        assert_int_equal(T, 4);
    }
    for (int64_t from = 0; from < len; from++) {
        bool same = true;
        for (int64_t i = 0; i < n * 4 && i < len; i++)
            same = same && ids[i] == stream[(from + i) % len] &&
                   label[i] == stream[(from + i) % len + 1];
        if (same) return from;
    }
    fail_msg("row %lld is no stream", (long long)r);
    return -1;
}

static void segments_rotate_every_stream(void **state)
{
    (void)state;
    fv_data_report r;
    int32_t text[400];
    int64_t len = (whole(text) - 1) / 2, moved = 0, apart = 0;
    fv_feed_opt t = task("segments");
    t.options = options("segments", "context", "4", "streams", "2", "memory", "4", NULL);
    fv_feed f = open_feed("segments", t, (fv_records){.file = scratch_text("t.txt", words)}, &r);
    assert_int_equal(f.count(f.self, 0), len / 4);
    for (int64_t epoch = 0, last = 0; epoch < 6; epoch++) {
        fv_data_rng how = {1, epoch};
        int64_t first = begins_at(&f, 0, len, how), second = begins_at(&f, 1, len, how);
        assert_int_equal(begins_at(&f, 0, len, how), first);
        moved += epoch > 0 && first != last;
        apart += first != second;
        last = first;
    }
    assert_true(moved > 2 && apart > 2);
    assert_int_equal(begins_at(&f, 0, whole(text) / 2, (fv_data_rng){.epoch = -1}), 0);
    fv_feed_close(&f);
}

static void a_part_of_the_text_can_be_held_out(void **state)
{
    (void)state;
    fv_data_report r, s;
    int32_t text[400];
    fv_feed_opt t = task("causal");
    fv_feed f = open_feed("causal", t,
                          (fv_records){.file = scratch_text("t.txt", words), .part = {0, 0.5}}, &r);
    fv_feed_close(&f);
    f = open_feed("causal", t, (fv_records){.file = scratch_text("t.txt", words), .part = {0.5, 1}},
                  &s);
    fv_feed_close(&f);
    assert_true(r.tokens[0] + s.tokens[0] >= whole(text) &&
                r.tokens[0] + s.tokens[0] <= whole(text) + 4);
}

/* Where a label stands, something may have changed; elsewhere nothing has. */
static void masked_hides_some_and_remembers_them(void **state)
{
    (void)state;
    fv_data_report r;
    int64_t B, T, hidden = 0, masks = 0;
    fv_feed_opt k = task("masked");
    fv_feed f = open_feed("masked", k, (fv_records){.file = scratch_text("t.txt", words)}, &r);
    int64_t n = f.count(f.self, -1);
    make(&f, 0, n, (fv_data_rng){.epoch = -1});
    uint64_t once = digest();
    const int32_t *ids = part("input_ids", &B, &T), *label = part("labels", &B, &T);
    for (int64_t i = 0; i < B; i++) {
        assert_int_equal(ids[i * T], k.cls);
        int64_t here = 0;
        for (int64_t t = 0; t < T; t++) {
            here += label[i * T + t] >= 0;
            if (label[i * T + t] < 0) assert_int_not_equal(ids[i * T + t], k.mask);
            masks += ids[i * T + t] == k.mask;
        }
        hidden += here;
    }
    assert_true(hidden > B && hidden < B * T / 2 && masks > 0 && masks < hidden);
    assert_int_equal((int64_t)batch.labels, hidden);
    make(&f, 0, n, (fv_data_rng){.epoch = -1});
    assert_true(digest() == once);
    make(&f, 0, f.count(f.self, 0), (fv_data_rng){1, 0});
    once = digest();
    make(&f, 0, f.count(f.self, 0), (fv_data_rng){1, 0});
    assert_true(digest() == once);
    make(&f, 0, f.count(f.self, 0), (fv_data_rng){1, 1});
    assert_true(digest() != once);
    fv_feed_close(&f);
}

static void sentences_follow_or_not(void **state)
{
    (void)state;
    fv_data_report r;
    int64_t B, T, yes = 0, no = 0;
    fv_feed_opt k = task("masked_next");
    k.options = options("masked_next", "context", "40", "mask", "0.3", NULL);
    fv_feed f = open_feed("masked_next", k, (fv_records){.file = scratch_text("t.txt", words)}, &r);
    assert_int_equal(f.count(f.self, 0), 5);
    for (int64_t epoch = 0; epoch < 20; epoch++) {
        make(&f, 0, 5, (fv_data_rng){1, epoch});
        const int32_t *next = part("next_sentence_label", &B, &T);
        for (int i = 0; i < 5; i++) next[i] ? no++ : yes++;
        assert_int_equal(next[2], 1); /* the last sentence of its document has none that follows */
        const int32_t *type = part("token_type_ids", &B, &T);
        assert_int_equal(type[0], 0);
    }
    assert_true(yes > 15 && no > 40);
    fv_feed_close(&f);
}

/* Sentinels replaced by the spans that stand behind them in the target give the text again. */
static void spans_can_be_put_back(void **state)
{
    (void)state;
    fv_data_report r;
    int32_t text[400], again[64];
    int64_t B, S, T;
    whole(text);
    fv_feed_opt k = task("spans");
    fv_feed f = open_feed("spans", k, (fv_records){.file = scratch_text("t.txt", words)}, &r);
    make(&f, 0, 2, (fv_data_rng){.epoch = -1});
    const int32_t *source = part("input_ids", &B, &S), *label = part("labels", &B, &T),
                  *input = part("decoder_input_ids", &B, &T);
    for (int64_t i = 0; i < 2; i++) {
        const int32_t *s = source + i * S, *l = label + i * T;
        int64_t n = 0, at = 0;
        assert_int_equal(input[i * T], k.start);
        for (int64_t t = 1; t < T; t++) assert_int_equal(input[i * T + t], l[t - 1]);
        for (int64_t j = 0; j < S && s[j] != k.eos; j++) {
            if (!fv_tok_special(tok, s[j])) {
                again[n++] = s[j];
                continue;
            }
            assert_int_equal(l[at++], s[j]);
            while (l[at] != k.eos && !fv_tok_special(tok, l[at])) again[n++] = l[at++];
        }
        assert_int_equal(l[at], k.eos);
        assert_int_equal(n, 12);
        assert_memory_equal(again, text + i * 12, 12 * sizeof *again);
    }
    fv_feed_close(&f);
}

static void denoising_asks_for_the_whole_text(void **state)
{
    (void)state;
    fv_data_report r;
    int32_t text[400];
    int64_t B, S, T, masks = 0;
    whole(text);
    fv_feed_opt k = task("denoise");
    fv_feed f = open_feed("denoise", k, (fv_records){.file = scratch_text("t.txt", words)}, &r);
    make(&f, 0, 1, (fv_data_rng){.epoch = -1});
    const int32_t *source = part("input_ids", &B, &S), *label = part("labels", &B, &T);
    assert_int_equal(T, 13);
    assert_memory_equal(label, text, 12 * sizeof *label);
    assert_int_equal(label[12], k.eos);
    for (int64_t i = 0; i < S; i++) masks += source[i] == k.mask;
    assert_int_equal(masks, 2);
    assert_true(S < T);
    fv_feed_close(&f);
}

static void classes_are_numbered_as_they_come(void **state)
{
    (void)state;
    fv_data_report r;
    int64_t B, T;
    fv_feed_opt k = task("classify");
    k.options = options("classify", "label_until", ":", NULL);
    const char *text =
        "NUM:date when is the rain\nHUM:ind who likes fish\nNUM:count how many dogs\n";
    fv_feed f = open_feed("classify", k,
                          (fv_records){.file = scratch_text("c.label", text),
                                       .format = FV_FORMAT_WORD},
                          &r);
    assert_int_equal(labels.n, 2);
    assert_string_equal(labels.name[0], "NUM");
    make(&f, 0, 3, (fv_data_rng){.epoch = -1});
    const int32_t *label = part("labels", &B, &T);
    assert_true(label[0] == 0 && label[1] == 1 && label[2] == 0);
    assert_int_equal(part("input_ids", &B, &T)[0], k.cls);
    fv_feed_close(&f);

    /* words before each text are as if they stood in the file */
    int32_t ids[2][3 * 64];
    int64_t len[2];
    for (int i = 0; i < 2; i++) {
        k.options = options("classify", "label_until", ":", i ? "text_prefix" : NULL, "who likes ",
                            NULL);
        const char *one = i ? "NUM:x fish\n" : "NUM:x who likes fish\n";
        f = open_feed("classify", k,
                      (fv_records){.file = scratch_text("e.label", one), .format = FV_FORMAT_WORD},
                      &r);
        make(&f, 0, 1, (fv_data_rng){.epoch = -1});
        const int32_t *x = part("input_ids", &B, &len[i]);
        memcpy(ids[i], x, (size_t)len[i] * sizeof *x);
        fv_feed_close(&f);
    }
    assert_int_equal(len[0], len[1]);
    assert_memory_equal(ids[0], ids[1], (size_t)len[0] * sizeof **ids);

    fv_err e;
    fv_records other = {.file = scratch_text("d.label", "LOC:city where\n"),
                        .format = FV_FORMAT_WORD};
    labels.closed = true;
    assert_int_equal(fv_objective_find("classify")->open(&f, &k, &other, &r, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "d.label:1: the label \"LOC\" does not occur"));
}

static void tags_begin_with_b_and_stand_on_first_pieces(void **state)
{
    (void)state;
    fv_data_report r;
    int64_t B, T, counted = 0;
    fv_feed_opt k = task("tag");
    const char *text = "-DOCSTART- -X- O O\n\nthe DT I-NP O\nwashington NNP I-NP I-PER\npost NN "
                       "I-NP I-PER\nrome NN x B-PER\n\nno x y I-LOC\n";
    fv_feed f = open_feed("tag", k, (fv_records){.file = scratch_text("n.conll", text)}, &r);
    assert_int_equal(r.kept, 2);
    make(&f, 0, 1, (fv_data_rng){.epoch = -1});
    const int32_t *label = part("labels", &B, &T);
    static const char *const want[] = {"O", "B-PER", "I-PER", "B-PER"};
    for (int64_t t = 0; t < T; t++)
        if (label[t] >= 0) assert_string_equal(labels.name[label[t]], want[counted++]);
    assert_int_equal(counted, 4);
    assert_true(T > 6); /* washington has several pieces */
    make(&f, 1, 1, (fv_data_rng){.epoch = -1});
    label = part("labels", &B, &T);
    assert_string_equal(labels.name[label[1]], "B-LOC");
    fv_feed_close(&f);
}

static void dropped_tokens_are_hidden_from_learning_alone(void **state)
{
    (void)state;
    fv_data_report r;
    int64_t B, T, hidden = 0;
    int32_t whole_row[64], first[64];
    fv_feed_opt k = task("classify");
    k.options = options("classify", "drop", "0.5", NULL);
    fv_records from = {.file = scratch_text("drop.label",
                                            "A the dog sees the cat and the dog sees the rain\n"),
                       .format = FV_FORMAT_WORD};
    fv_feed f = open_feed("classify", k, from, &r);
    make(&f, 0, 1, (fv_data_rng){.epoch = -1});
    const int32_t *ids = part("input_ids", &B, &T);
    memcpy(whole_row, ids, (size_t)T * sizeof *ids);
    for (int64_t t = 0; t < T; t++) assert_int_not_equal(ids[t], k.mask);

    make(&f, 0, 1, (fv_data_rng){.seed = 3, .epoch = 0});
    ids = part("input_ids", &B, &T);
    memcpy(first, ids, (size_t)T * sizeof *ids);
    for (int64_t t = 0; t < T; t++) {
        assert_true(ids[t] == k.mask || ids[t] == whole_row[t]);
        hidden += ids[t] == k.mask;
    }
    assert_true(hidden > 0 && hidden < T - 2);
    assert_true(ids[0] == k.cls && ids[T - 1] == k.sep);
    make(&f, 0, 1, (fv_data_rng){.seed = 3, .epoch = 0});
    assert_memory_equal(part("input_ids", &B, &T), first, (size_t)T * sizeof *first);
    make(&f, 0, 1, (fv_data_rng){.seed = 3, .epoch = 1});
    assert_memory_not_equal(part("input_ids", &B, &T), first, (size_t)T * sizeof *first);
    fv_feed_close(&f);
}

/* What is found is given as tags, one for each word; the scores of other pieces must not count. */
static void judge_tags(const fv_feed *f, int32_t row, const char *const *found, double *hits,
                       double *of)
{
    fv_device *d;
    fv_ctx *c;
    fv_err e;
    int64_t B, T;
    float x[64 * 8];
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1}, &e), &e);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e), &e);
    make(f, row, 1, (fv_data_rng){.epoch = -1});
    const int32_t *label = part("labels", &B, &T);
    for (int64_t t = 0; t < T; t++) {
        bool word = label[t] >= 0;
        for (int k = 0; k < labels.n; k++)
            x[t * labels.n + k] = word ? !strcmp(labels.name[k], *found) : (float)k;
        found += word;
    }
    fv_items out = {0};
    fv_items_put(&out, "logits", fv_floats(c, x, FV_SHAPE(1, T, labels.n)));
    assert_int_equal(f->count_correct(f->self, c, &batch, &out, hits, of), FV_OK);
    fv_ctx_free(c);
    fv_device_close(d);
}

static void tags_are_judged_by_whole_entities(void **state)
{
    (void)state;
    fv_data_report r;
    static const struct {
        const char *found[5];
        double right, all; /* entities: in both readings, and of both */
    } cases[] = {
        {{"O", "B-PER", "I-PER", "B-PER", "B-LOC"}, 3, 6},
        /* I- that follows no such entity begins one */
        {{"O", "I-PER", "I-PER", "B-PER", "I-LOC"}, 3, 6},
        {{"O", "B-PER", "I-PER", "I-PER", "B-LOC"}, 1, 5}, /* one entity too long, one missing */
        {{"O", "B-PER", "B-PER", "B-PER", "O"}, 1, 6},     /* split in two, and one missing */
        {{"O", "B-LOC", "I-LOC", "B-PER", "B-LOC"}, 2, 6}, /* of another kind */
        {{"O", "O", "O", "O", "O"}, 0, 3},
        {{"B-PER", "I-PER", "I-PER", "B-PER", "B-LOC"}, 2, 6}, /* begun too early */
    };
    const char *text = "the x O\nwashington x I-PER\npost x I-PER\nrome x B-PER\nfish x "
                       "I-LOC\n\nno x I-LOC\nrain x I-LOC\n";
    fv_feed f = open_feed("tag", task("tag"), (fv_records){.file = scratch_text("f1.conll", text)},
                          &r);
    assert_string_equal(f.metric, "f1");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double hits = 0, of = 0;
        judge_tags(&f, 0, cases[i].found, &hits, &of);
        assert_true(hits == 2 * cases[i].right && of == cases[i].all);
    }
    fv_feed_close(&f);
}

static void answers_are_found_by_their_characters(void **state)
{
    (void)state;
    fv_data_report r;
    int64_t B, T, n;
    fv_feed_opt k = task("answer");
    const char *text = "{\"version\": \"1.1\", \"data\": [{\"title\": \"t\", \"paragraphs\": "
                       "[{\"context\": \"\\u00e9t\\u00e9 the cat sees the "
                       "dog\","
                       " \"qas\": [{\"id\": \"1\", \"question\": \"who sees\", \"answers\": "
                       "[{\"text\": \"the cat\", \"answer_start\": 4}]},"
                       " {\"id\": \"2\", \"question\": \"whom\", \"answers\": [{\"text\": \"the "
                       "dog\", \"answer_start\": 17}]}]}]}]}";
    for (int64_t most = 64; most >= 14; most -= 50) {
        fv_feed f = open_feed("answer", k,
                              (fv_records){.file = scratch_text("q.json", text), .max_len = most},
                              &r);
        assert_int_equal(r.kept, 2);
        assert_int_equal(r.cut, most == 64 ? 0 : 2);
        for (int32_t q = 0; q < 2; q++) {
            char *answer;
            size_t len;
            fv_err e;
            make(&f, q, 1, (fv_data_rng){.epoch = -1});
            const int32_t *ids = part("input_ids", &B, &T),
                          *start = part("start_positions", &B, &n),
                          *end = part("end_positions", &B, &n);
            check(fv_tok_decode(tok, &answer, &len, ids + start[0], end[0] - start[0] + 1, false,
                                &e),
                  &e);
            assert_string_equal(answer + (answer[0] == ' '), q ? "the dog" : "the cat");
            fv_tok_free_text(tok, answer, len);
        }
        fv_feed_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_predicts_every_token_but_the_first),
        cmocka_unit_test(segments_rotate_every_stream),
        cmocka_unit_test(a_part_of_the_text_can_be_held_out),
        cmocka_unit_test(masked_hides_some_and_remembers_them),
        cmocka_unit_test(sentences_follow_or_not),
        cmocka_unit_test(spans_can_be_put_back),
        cmocka_unit_test(denoising_asks_for_the_whole_text),
        cmocka_unit_test(classes_are_numbered_as_they_come),
        cmocka_unit_test(tags_begin_with_b_and_stand_on_first_pieces),
        cmocka_unit_test(dropped_tokens_are_hidden_from_learning_alone),
        cmocka_unit_test(tags_are_judged_by_whole_entities),
        cmocka_unit_test(answers_are_found_by_their_characters),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
