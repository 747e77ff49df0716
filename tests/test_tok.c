/* test_tok.c - tokenizers: files that are wrong, memory that is not there, streams, directories, training, hostile texts. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/tok.h"
#include "helper_memfs.h"

#define GOLDEN FOVEA_TESTS "/golden/tok/"

/* ---- helpers ---- */

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *s = malloc(1 << 21);
    assert_non_null(s);
    *n = fread(s, 1, (1 << 21) - 1, f);
    s[*n] = 0;
    fclose(f);
    return s;
}

/* The tokenizer called name in components.jsonl, as text. */
static char *component(const char *name, size_t *n)
{
    size_t size;
    char *all = slurp(GOLDEN "components.jsonl", &size), *out = NULL;
    for (char *line = strtok(all, "\n"); line && !out; line = strtok(NULL, "\n")) {
        json_t *j = json_loads(line, 0, NULL);
        if (!strcmp(json_string_value(json_object_get(j, "name")), name))
            out = json_dumps(json_object_get(j, "tokenizer"), JSON_COMPACT);
        json_decref(j);
    }
    free(all);
    assert_non_null(out);
    *n = strlen(out);
    return out;
}

static fv_tok *open_component(const char *name)
{
    size_t n;
    fv_tok *t;
    fv_err e;
    char *s = component(name, &n);
    if (fv_tok_read(&t, NULL, s, n, name, &e)) fail_msg("%s", e.text);
    free(s);
    return t;
}

static fv_encoding *encode(const fv_tok *t, const char *text, size_t n, fv_tok_opts o)
{
    fv_encoding *enc;
    fv_err e;
    assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
    if (fv_tok_encode(enc, text, n, o, &e)) fail_msg("%s", e.text);
    return enc;
}

static void assert_ids(const fv_encoding *enc, const int32_t *ids, int64_t n)
{
    assert_int_equal(enc->n, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(enc->ids[i], ids[i]);
}

/* ---- wrong files ---- */

static void wrong_files_are_named(void **state)
{
    (void)state;
#define WORDS "\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"<unk>\":1},\"unk_token\":\"<unk>\"}"
    static const struct {
        const char *file, *says;
    } wrong[] = {
        {"", "neither"},
        {"{", "a key was expected"},
        {"{\"model\":", "ends too early"},
        {"{} x", "follows"},
        {"{\"version\":\"1.0\"}", "\"model\" is missing"},
        {"{\"version\":\"2.0\"," WORDS "}", "version"},
        {"{" WORDS ",\"surprise\":1}", "surprise"},
        {"{" WORDS "," WORDS "}", "twice"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"a\":1}}}", "twice"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"b\":0}}}", "taken"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":100000000}}}", "too large"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":-1}}}", "model.vocab.a"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":1.5}}}", "whole number"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"\\ud800\":1}}}", "surrogate"},
        {"{\"model\":{\"type\":\"Neural\",\"vocab\":{}}}", "Neural"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "model.merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "two tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}", "what it makes"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"unk_id\":1}}", "unk_id"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", "finite"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Magic\"}}", "Magic"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"NFC\",\"extra\":1}}", "extra"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}",
         "normalizer.pattern"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\h\"},\"content\":\"\"}}",
         "not implemented"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}", "damaged"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", "UnicodeScripts"},
        {"{" WORDS
         ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\",\"invert\":false}}",
         "Odd"},
        {"{" WORDS
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}}],"
         "\"pair\":[],\"special_tokens\":{}}}",
         "special_tokens"},
        {"{" WORDS ",\"added_tokens\":[{\"id\":7,\"content\":\"x\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
         "\"normalized\":false,\"special\":true}]}",
         "added_tokens[0]"},
        {"\n\x05xxxxx", "pieces[0]"},
        {"\n\x7fxxxxx", "no SentencePiece"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fv_tok *t;
        fv_err e = {0};
        assert_int_not_equal(fv_tok_read(&t, NULL, wrong[i].file, strlen(wrong[i].file), "x.json", &e), FV_OK);
        assert_null(t);
        if (strncmp(e.text, "x.json: ", 8) || !strstr(e.text, wrong[i].says)) fail_msg("case %zu: %s", i, e.text);
    }
    char deep[400] = "";
    memset(deep, '[', 300);
    fv_tok *t;
    fv_err e = {0};
    assert_int_equal(fv_tok_read(&t, NULL, deep, 300, "x.json", &e), FV_EFORMAT);
}

/* ---- files that were damaged at random ---- */

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void mutate(char *s, size_t *n, uint64_t *seed)
{
    static const char interesting[] = "{}[]\",:0\\-1e.\x00\xff\x80\x0a";
    for (int k = (int)(next_random(seed) % 4) + 1; k-- && *n > 8;) {
        size_t at = next_random(seed) % *n;
        switch (next_random(seed) % 5) {
        case 0: s[at] = (char)next_random(seed); break;
        case 1: s[at] = interesting[next_random(seed) % (sizeof interesting - 1)]; break;
        case 2: /* cut a piece out */
        {
            size_t len = next_random(seed) % 16 + 1;
            if (at + len < *n) memmove(s + at, s + at + len, *n - at - len), *n -= len;
            break;
        }
        case 3: s[at] ^= (char)(1 << next_random(seed) % 8); break;
        default: *n = next_random(seed) % 20 ? *n : at; /* the end is missing */
        }
    }
}

static void try_damaged(const char *s, size_t n)
{
    static const char text[] = "Hello <s> w\xc3\xb6rld 123  apples [MASK] \xe6\xbc\xa2 \xff";
    fv_mem_counter mem;
    fv_tok *t;
    fv_encoding *enc;
    fv_err e = {0};
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    if (fv_tok_read(&t, &env, s, n, "damaged", &e)) {
        assert_true(e.text[0]);
    } else if (fv_encoding_new(&enc, t, &e) == FV_OK) {
        char *back;
        size_t len;
        if (!fv_tok_encode(enc, text, sizeof text - 1, (fv_tok_opts){.specials = true, .offsets = FV_OFFSETS_BYTES}, &e) &&
            !fv_tok_decode(t, &back, &len, enc->ids, enc->n, false, &e))
            fv_tok_free_text(t, back, len);
        fv_encoding_free(enc);
        fv_tok_close(t);
    }
    assert_int_equal(mem.live, 0);
}

static void damaged_files_do_no_harm(void **state)
{
    (void)state;
    static const char *const names[] = {
        "BPE bytes",          "BPE byte fallback, whole text", "WordPiece", "Unigram byte fallback",
        "TemplateProcessing", "Sequence of processors",        "cl100k",    "Added tokens"};
    static const char *const models[] = {"unigram-symbols", "bpe-bytes", "word", "bpe-suffix"};
    uint64_t seed = 88172645463325252ull;
    for (int i = 0; i < 12; i++) {
        char path[256];
        size_t n, m;
        snprintf(path, sizeof path, GOLDEN "spm/%s.model", models[i % 4]);
        char *whole = i < 8 ? component(names[i], &n) : slurp(path, &n), *copy = malloc(n + 1);
        for (int k = 0; k < 400; k++) {
            memcpy(copy, whole, n + 1);
            m = n;
            mutate(copy, &m, &seed);
            try_damaged(copy, m);
        }
        free(copy);
        free(whole);
    }
}

/* ---- each allocation fails in turn ---- */

typedef fv_status (*work)(const fv_env *env, void *arg, fv_err *e);

static void fail_each(work run, void *arg)
{
    for (size_t at = 1;; at++) {
        fv_mem_counter mem;
        fv_err e = {0};
        fv_mem_counter_init(&mem);
        mem.fail_at = at;
        fv_env env = {.mem = &mem.mem};
        fv_status st = run(&env, arg, &e);
        assert_int_equal(mem.live, 0);
        if (mem.count < at) {
            assert_int_equal(st, FV_OK);
            return;
        }
        if (st != FV_OK && !e.text[0]) fail_msg("allocation %zu: no message", at);
    }
}

typedef struct span_arg {
    const char *s;
    size_t n;
} span_arg;

static fv_status all_of_it(const fv_env *env, void *arg, fv_err *e)
{
    static const char text[] = "Hello   e\xcc\x81 \xe6\xbc\xa2 apples\xff 123";
    const span_arg *a = arg;
    fv_tok *t;
    fv_encoding *enc = NULL;
    char *back = NULL;
    size_t len = 0;
    fv_status st = fv_tok_read(&t, env, a->s, a->n, "x", e);
    if (st == FV_OK) st = fv_encoding_new(&enc, t, e);
    if (st == FV_OK)
        st = fv_tok_encode(enc, text, sizeof text - 1, (fv_tok_opts){.specials = true, .offsets = FV_OFFSETS_CHARS}, e);
    if (st == FV_OK) st = fv_tok_decode(t, &back, &len, enc->ids, enc->n, false, e);
    if (back) fv_tok_free_text(t, back, len);
    fv_encoding_free(enc);
    fv_tok_close(t);
    return st;
}

static const char *const corpus[] = {"low lower lowest", "new newer newest", "wide wider widest", "low low new new wide",
                                     "lower newer wider"};

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

static fv_status train_it(const fv_env *env, void *arg, fv_err *e)
{
    lines l = {corpus, 5, 0};
    fv_tok *t;
    fv_status st = fv_tok_train(&t, env, (fv_tok_source){next_line, &l}, arg, e);
    fv_tok_close(t);
    return st;
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    static const char *const names[] = {
        "BPE bytes", "WordPiece", "Unigram byte fallback", "cl100k", "Added tokens", "Sequence of processors", "Decoder CTC"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        span_arg a;
        char *s = component(names[i], &a.n);
        a.s = s;
        fail_each(all_of_it, &a);
        free(s);
    }
    for (int kind = 0; kind < 4; kind++) {
        fv_tok_train_opts o = {.kind = (fv_tok_kind)kind, .vocab = kind ? 40 : 270};
        fail_each(train_it, &o);
    }
    span_arg a;
    char *s = slurp(GOLDEN "spm/bpe-symbols.model", &a.n);
    a.s = s;
    fail_each(all_of_it, &a);
    free(s);
}

/* ---- texts ---- */

static void malformed_text_is_replaced(void **state)
{
    (void)state;
    fv_tok *t = open_component("BPE bytes");
    /* As Python's errors="replace": one U+FFFD for each maximal ill-formed part. */
    const char bad[] = "a\xff\xe2\x82z\xf0\x9f\x98", good[] = "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd";
    fv_encoding *x = encode(t, bad, sizeof bad - 1, (fv_tok_opts){.offsets = FV_OFFSETS_BYTES});
    fv_encoding *y = encode(t, good, sizeof good - 1, (fv_tok_opts){0});
    assert_ids(x, y->ids, y->n);
    assert_int_equal(x->spans[0].from, 0);
    assert_int_equal(x->spans[0].to, 1);
    assert_int_equal(x->spans[x->n - 1].from, 5);
    assert_int_equal(x->spans[x->n - 1].to, 8);
    fv_encoding_free(x);
    x = encode(t, bad, sizeof bad - 1, (fv_tok_opts){.offsets = FV_OFFSETS_CHARS});
    assert_int_equal(x->spans[x->n - 1].from, 4);
    assert_int_equal(x->spans[x->n - 1].to, 5);
    fv_encoding_free(x);
    fv_encoding_free(y);
    x = encode(t, "a\0b", 3, (fv_tok_opts){0}); /* a NUL is a byte like any other */
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
    fv_tok *t = open_component("WordPiece");
    const char *a = "low lower lowest new newer newest", *b = "wide wider";
    fv_encoding *all = encode(t, a, strlen(a), (fv_tok_opts){.specials = true});
    fv_encoding *cut = encode(t, a, strlen(a), (fv_tok_opts){.specials = true, .max_len = 5});
    assert_int_equal(cut->n, 5);
    for (int i = 0; i < 4; i++) assert_int_equal(cut->ids[i], all->ids[i]);
    assert_int_equal(cut->ids[4], all->ids[all->n - 1]);
    fv_encoding_free(cut);
    cut = encode(t, a, strlen(a), (fv_tok_opts){.specials = true, .max_len = 7, .pair = b, .pair_len = strlen(b)});
    assert_int_equal(cut->n, 7);
    assert_int_equal(cut->token_types[6], 1);
    fv_err e;
    assert_int_equal(fv_tok_encode(cut, a, strlen(a), (fv_tok_opts){.specials = true, .max_len = 1}, &e), FV_EARG);
    fv_encoding_free(cut);
    fv_encoding_free(all);
    fv_tok_close(t);
}

/* A megabyte of one character, of letters without a space, of marks: time must not explode. */
static void hostile_texts_are_linear(void **state)
{
    (void)state;
    static const char *const names[] = {
        "BPE bytes",    "BPE byte fallback, whole text", "WordPiece", "Unigram", "cl100k", "NFC", "Bert", "Added tokens",
        "Replace regex"};
    static const char *const fillers[] = {"a", " ", "!", "\xcc\x81", "\xe6\xbc\xa2", "<", "ab", "a\xcc\x81"};
    size_t n = 200000;
    char *text = malloc(n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_tok *t = open_component(names[i]);
        for (size_t k = 0; k < sizeof fillers / sizeof *fillers; k++) {
            size_t len = strlen(fillers[k]), whole = n / len * len;
            for (size_t j = 0; j < whole; j++) text[j] = fillers[k][j % len];
            clock_t from = clock();
            fv_encoding_free(encode(t, text, whole, (fv_tok_opts){.offsets = FV_OFFSETS_CHARS}));
            double seconds = (double)(clock() - from) / CLOCKS_PER_SEC;
            if (seconds > 20) fail_msg("%s took %.1f s for 200 kB of \"%s\"", names[i], seconds, fillers[k]);
        }
        fv_tok_close(t);
    }
    free(text);
}

/* ---- streams ---- */

static void streams_give_whole_characters(void **state)
{
    (void)state;
    static const char *const names[] = {"BPE bytes", "BPE byte fallback, whole text", "Unigram byte fallback", "WordPiece"};
    const char *text = "Hello w\xc3\xb6rld \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x91\x8d apples don't";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fv_tok *t = open_component(names[i]);
        fv_encoding *enc = encode(t, text, strlen(text), (fv_tok_opts){.specials = true});
        fv_tok_stream *s;
        fv_err e;
        char joined[512] = "", *whole;
        const char *piece;
        size_t n, len;
        assert_int_equal(fv_tok_stream_new(&s, t, true, &e), FV_OK);
        for (int64_t k = 0; k <= enc->n; k++) {
            fv_status st = k < enc->n ? fv_tok_stream_push(s, enc->ids[k], &piece, &n, &e)
                                      : fv_tok_stream_finish(s, &piece, &n, &e);
            assert_int_equal(st, FV_OK);
            json_t *valid = json_stringn(piece, n); /* only UTF-8 becomes a string */
            assert_non_null(valid);
            json_decref(valid);
            strcat(joined, piece);
        }
        assert_int_equal(fv_tok_decode(t, &whole, &len, enc->ids, enc->n, true, &e), FV_OK);
        assert_string_equal(joined, whole);
        fv_tok_free_text(t, whole, len);
        fv_tok_stream_free(s);
        fv_encoding_free(enc);
        fv_tok_close(t);
    }
}

/* ---- directories ---- */

static void put(memfs *fs, const char *path, const char *text) { memfs_put(fs, path, text, strlen(text)); }

static void directories_open(void **state)
{
    (void)state;
    memfs fs;
    fv_tok *t;
    fv_err e = {0};
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    put(&fs, "bert/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n##s\n!\nHello\n");
    if (fv_tok_open(&t, &env, "bert", &e)) fail_msg("%s", e.text);
    fv_encoding *enc = encode(t, "Hello worlds! [MASK]", 20, (fv_tok_opts){.specials = true});
    assert_ids(enc, (int32_t[]){2, 9, 6, 7, 8, 4, 3}, 7); /* capitals in the vocabulary: a cased one */
    fv_encoding_free(enc);
    fv_tok_close(t);

    put(&fs, "bert/tokenizer_config.json",
        "{\"do_lower_case\": true, \"tokenizer_class\": \"BertTokenizer\", \"model_max_length\": 512}");
    assert_int_equal(fv_tok_open(&t, &env, "bert", &e), FV_OK);
    enc = encode(t, "HELLO w\xc3\xb6rld", 12, (fv_tok_opts){0});
    assert_ids(enc, (int32_t[]){5, 6}, 2);
    fv_encoding_free(enc);
    fv_tok_close(t);
    put(&fs, "bert/tokenizer_config.json", "{\"tokenizer_class\": \"BertJapaneseTokenizer\"}");
    assert_int_equal(fv_tok_open(&t, &env, "bert", &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "BertJapaneseTokenizer"));

    put(&fs, "gpt/vocab.json", "{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120ab\":4,\"<|endoftext|>\":5}");
    put(&fs, "gpt/merges.txt", "#version: 0.2\na b\n\xc4\xa0 ab\n");
    if (fv_tok_open(&t, &env, "gpt/merges.txt", &e)) fail_msg("%s", e.text);
    enc = encode(t, "ab ab<|endoftext|>a", 19, (fv_tok_opts){0});
    assert_ids(enc, (int32_t[]){3, 4, 5, 0}, 4);
    fv_encoding_free(enc);
    fv_tok_close(t);
    put(&fs, "gpt/merges.txt", "#version: 0.2\na b\na c\n");
    assert_int_equal(fv_tok_open(&t, &env, "gpt", &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "gpt/merges.txt: line 3"));
    assert_int_equal(fv_tok_open(&t, &env, "nowhere", &e), FV_EIO);
    memfs_free(&fs);
}

static void marian_directories_open(void **state)
{
    (void)state;
    memfs fs;
    fv_tok *t;
    fv_err e = {0};
    size_t n, m;
    char *source = slurp(GOLDEN "spm/unigram.model", &n), *target = slurp(GOLDEN "spm/bpe.model", &m);
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    memfs_put(&fs, "mt/source.spm", source, n);
    memfs_put(&fs, "mt/target.spm", target, m);
    put(&fs, "mt/vocab.json", "{\"</s>\":0,\"<unk>\":1,\"\\u2581\":2,\"a\":3,\"e\":4,\">>fra<<\":5,\"<pad>\":6}");
    if (fv_tok_open(&t, &env, "mt", &e)) fail_msg("%s", e.text);
    fv_encoding *enc = encode(t, ">>fra<<a", 8, (fv_tok_opts){.specials = true, .offsets = FV_OFFSETS_BYTES});
    assert_int_equal(enc->ids[0], 5);
    assert_int_equal(enc->ids[enc->n - 1], 0);
    assert_int_equal(enc->spans[enc->n - 2].to, 8);
    assert_int_equal(fv_tok_size(t), 7);
    assert_int_equal(fv_tok_unknown(t), 1);
    assert_int_equal(fv_tok_pad(t), 6);
    assert_int_equal(fv_tok_encode(enc, "a", 1, (fv_tok_opts){.as_target = true}, &e), FV_OK);
    assert_true(enc->n >= 1);
    fv_encoding_free(enc);
    char *text;
    size_t len;
    assert_int_equal(fv_tok_decode(t, &text, &len, (int32_t[]){2, 3, 4, 0}, 4, true, &e), FV_OK);
    assert_string_equal(text, "ae");
    fv_tok_free_text(t, text, len);
    assert_int_equal(fv_tok_save(t, "x.json", &e), FV_EMISSING);
    fv_tok_close(t);
    memfs_free(&fs);
    free(source);
    free(target);
}

/* ---- training ---- */

static void training_is_deterministic_and_reads_back(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
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
            fv_tok_train_opts o = {
                .kind = (fv_tok_kind)kind, .vocab = kind ? 45 : 280, .specials = kind == FV_TOK_WORDPIECE ? NULL : specials};
            if (fv_tok_train(&t, &env, (fv_tok_source){next_line, &l}, &o, &e)) fail_msg("%s", e.text);
            assert_true(fv_tok_size(t) <= (kind ? 45 : 280));
            if (kind != FV_TOK_WORDPIECE) assert_int_equal(fv_tok_id(t, "</s>"), 1);
            fv_encoding *enc = encode(t, "lower widest", 12, (fv_tok_opts){0});
            char *back;
            size_t n;
            assert_int_equal(fv_tok_decode(t, &back, &n, enc->ids, enc->n, true, &e), FV_OK);
            assert_string_equal(back, "lower widest");
            fv_tok_free_text(t, back, n);
            assert_int_equal(fv_tok_save(t, "t.json", &e), FV_OK);
            const char *s = memfs_get(&fs, "t.json", &size[k]);
            file[k] = malloc(size[k]);
            memcpy(file[k], s, size[k]);
            fv_tok *again;
            if (fv_tok_open(&again, &env, "t.json", &e)) fail_msg("%s", e.text);
            fv_encoding *same = encode(again, "lower widest", 12, (fv_tok_opts){0});
            assert_ids(same, enc->ids, enc->n);
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
    fv_encoding *one = encode(t, text, strlen(text), (fv_tok_opts){.specials = true}), *enc = encode(t, "", 0, (fv_tok_opts){0});
    fv_err e;
    intptr_t bad = 0;
    for (int i = 0; i < 200; i++) {
        if (fv_tok_encode(enc, text, strlen(text), (fv_tok_opts){.specials = true}, &e)) bad++;
        if (enc->n != one->n || memcmp(enc->ids, one->ids, (size_t)one->n * sizeof *one->ids)) bad++;
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
        fv_tok *t = open_component(names[i]);
        pthread_t threads[4];
        for (int k = 0; k < 4; k++) assert_int_equal(pthread_create(&threads[k], NULL, encode_much, t), 0);
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
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(damaged_files_do_no_harm),
        cmocka_unit_test(failing_allocations_are_reported),
        cmocka_unit_test(malformed_text_is_replaced),
        cmocka_unit_test(length_is_kept),
        cmocka_unit_test(hostile_texts_are_linear),
        cmocka_unit_test(streams_give_whole_characters),
        cmocka_unit_test(directories_open),
        cmocka_unit_test(marian_directories_open),
        cmocka_unit_test(training_is_deterministic_and_reads_back),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
