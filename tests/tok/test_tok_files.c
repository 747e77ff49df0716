/* test_tok_files.c - tokenizers from files: wrong ones, damaged ones, directories of every kind. */
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
#include "fovea/author/tok.h"

/* ---- wrong files ---- */

static void wrong_files_are_named(void **state)
{
    (void)state;
#define WORDS                                                                                      \
    "\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"<unk>\":1},\"unk_token\":\"<unk>\"}"
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
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
         "model.merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "two tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}",
         "what it makes"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]],\"unk_id\":1}}", "unk_id"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", "finite"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Magic\"}}", "Magic"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"NFC\",\"extra\":1}}", "extra"},
        {"{" WORDS
         ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}",
         "normalizer.pattern"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?~a)\"},"
         "\"content\":\"\"}}",
         "not implemented"},
        {"{" WORDS ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}",
         "damaged"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"UnicodeScript\"}}", "UnicodeScript"},
        {"{" WORDS ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
         "\"behavior\":\"Odd\",\"invert\":false}}",
         "Odd"},
        {"{" WORDS ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
         "\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}}],"
         "\"pair\":[],\"special_tokens\":{}}}",
         "special_tokens"},
        {"{" WORDS ",\"added_tokens\":[{\"id\":7,\"content\":\"x\",\"single_word\":false,"
         "\"lstrip\":false,\"rstrip\":false,"
         "\"normalized\":false,\"special\":true}]}",
         "added_tokens[0]"},
        {"\n\x05xxxxx", "pieces[0]"},
        {"\n\x7fxxxxx", "no SentencePiece"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fv_tok *t;
        fv_err e = {0};
        if (!fv_tok_read(&t, NULL, wrong[i].file, strlen(wrong[i].file), "x.json", &e))
            fail_msg("accepted: %s", wrong[i].file);
        assert_null(t);
        if (strncmp(e.text, "x.json: ", 8) || !strstr(e.text, wrong[i].says))
            fail_msg("case %zu: %s", i, e.text);
    }
    char deep[400] = "";
    memset(deep, '[', 300);
    fv_tok *t;
    fv_err e = {0};
    assert_int_equal(fv_tok_read(&t, NULL, deep, 300, "x.json", &e), FV_EFORMAT);
}

/* Where tokenizers 0.22 cuts; what stands before the first run is dropped. */
static void scripts_are_kept_apart(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n;
        fv_span at[4];
    } cases[] = {
        {"\u3069\u3053\u3067\u751f\u308c\u3002Yes", 3, {{0, 5}, {5, 6}, {6, 9}}},
        {"Apples are \u308a\u3093\u3054 \u6797\u6a8e", 2, {{0, 11}, {11, 17}}},
        {"  hi there", 1, {{2, 10}}},
        {"12 abc \u30fc\u30a2", 3, {{0, 3}, {3, 7}, {7, 9}}},
        {"a\u0300b", 3, {{0, 1}, {1, 2}, {2, 3}}},
        {"\ue000x y", 1, {{1, 4}}},
        {"   ", 0, {{0, 0}}},
    };
    static const char file[] = "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"<unk>\":0},"
                               "\"unk_token\":\"<unk>\"},"
                               "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}";
    fv_tok *t;
    fv_encoding *enc;
    fv_err e = {0};
    assert_int_equal(fv_tok_read(&t, NULL, file, strlen(file), "x.json", &e), FV_OK);
    assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
    fv_tok_opts o = {.offsets = FV_OFFSETS_CHARS};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *s = cases[i].text;
        assert_int_equal(fv_tok_encode(enc, s, strlen(s), o, &e), FV_OK);
        assert_int_equal(enc->n, cases[i].n);
        for (int k = 0; k < cases[i].n; k++) {
            assert_int_equal(enc->spans[k].from, cases[i].at[k].from);
            assert_int_equal(enc->spans[k].to, cases[i].at[k].to);
        }
    }
    fv_encoding_free(enc);
    fv_tok_close(t);
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
        if (!fv_tok_encode(enc, text, sizeof text - 1,
                           (fv_tok_opts){.specials = true, .offsets = FV_OFFSETS_BYTES}, &e) &&
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
        snprintf(path, sizeof path, TOK_GOLDEN "spm/%s.model", models[i % 4]);
        char *whole = i < 8 ? tok_component(names[i], &n) : slurp(path, &n), *copy = malloc(n + 1);
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

/* ---- directories ---- */

static void put(memfs *fs, const char *path, const char *text)
{
    memfs_put(fs, path, text, strlen(text));
}

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
    fv_encoding *enc = tok_encode(t, "Hello worlds! [MASK]", 20, (fv_tok_opts){.specials = true});
    /* capitals in the vocabulary: a cased one */
    tok_assert_ids(enc, (int32_t[]){2, 9, 6, 7, 8, 4, 3}, 7);
    fv_encoding_free(enc);
    fv_tok_close(t);

    put(&fs, "bert/tokenizer_config.json",
        "{\"do_lower_case\": true, \"tokenizer_class\": \"BertTokenizer\", \"model_max_length\": "
        "512}");
    assert_int_equal(fv_tok_open(&t, &env, "bert", &e), FV_OK);
    enc = tok_encode(t, "HELLO w\xc3\xb6rld", 12, (fv_tok_opts){0});
    tok_assert_ids(enc, (int32_t[]){5, 6}, 2);
    fv_encoding_free(enc);
    fv_tok_close(t);
    put(&fs, "bert/tokenizer_config.json", "{\"tokenizer_class\": \"BertJapaneseTokenizer\"}");
    assert_int_equal(fv_tok_open(&t, &env, "bert", &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "BertJapaneseTokenizer"));

    /* of proteins: every token splits a text, and what lies between is unknown */
    put(&fs, "esm/vocab.txt", "<cls>\n<pad>\n<eos>\n<unk>\nL\nA\nG\n.\n<null_1>\n<mask>\n");
    put(&fs, "esm/tokenizer_config.json", "{\"tokenizer_class\": \"EsmTokenizer\"}");
    if (fv_tok_open(&t, &env, "esm", &e)) fail_msg("%s", e.text);
    enc = tok_encode(t, "LAG A<mask>xyL. z", 17, (fv_tok_opts){.specials = true});
    tok_assert_ids(enc, (int32_t[]){0, 4, 5, 6, 5, 9, 3, 4, 7, 3, 2}, 11);
    fv_encoding_free(enc);
    fv_tok_close(t);

    put(&fs, "gpt/vocab.json",
        "{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120ab\":4,\"<|endoftext|>\":5}");
    put(&fs, "gpt/merges.txt", "#version: 0.2\na b\n\xc4\xa0 ab\n");
    if (fv_tok_open(&t, &env, "gpt/merges.txt", &e)) fail_msg("%s", e.text);
    enc = tok_encode(t, "ab ab<|endoftext|>a", 19, (fv_tok_opts){0});
    tok_assert_ids(enc, (int32_t[]){3, 4, 5, 0}, 4);
    fv_encoding_free(enc);
    fv_tok_close(t);
    put(&fs, "gpt/merges.txt", "#version: 0.2\na b\na c\n");
    assert_int_equal(fv_tok_open(&t, &env, "gpt", &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "gpt/merges.txt: line 3"));
    assert_int_equal(fv_tok_open(&t, &env, "nowhere", &e), FV_EIO);
    memfs_free(&fs);
}

/* Letters and the end; ids are those of transformers' SpeechT5Tokenizer on the same file. */
static void speecht5_directories_open(void **state)
{
    (void)state;
    static const int32_t want[] = {3, 44, 4, 7, 7, 10, 3, 13, 10, 17, 7, 11, 2};
    memfs fs;
    fv_tok *t;
    fv_err e = {0};
    size_t n;
    char *model = slurp(TOK_GOLDEN "spm/char.model", &n);
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    memfs_put(&fs, "tts/spm_char.model", model, n);
    put(&fs, "tts/config.json", "{\"model_type\":\"speecht5\"}");
    if (fv_tok_open(&t, &env, "tts", &e)) fail_msg("%s", e.text);
    fv_encoding *enc = tok_encode(t, "Hello world", 11, (fv_tok_opts){.specials = true});
    assert_int_equal(enc->n, 13);
    assert_memory_equal(enc->ids, want, sizeof want);
    fv_encoding_free(enc);
    fv_tok_close(t);
    memfs_free(&fs);
    free(model);
}

static void marian_directories_open(void **state)
{
    (void)state;
    memfs fs;
    fv_tok *t;
    fv_err e = {0};
    size_t n, m;
    char *source = slurp(TOK_GOLDEN "spm/unigram.model", &n),
         *target = slurp(TOK_GOLDEN "spm/bpe.model", &m);
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    memfs_put(&fs, "mt/source.spm", source, n);
    memfs_put(&fs, "mt/target.spm", target, m);
    put(&fs, "mt/vocab.json",
        "{\"</s>\":0,\"<unk>\":1,\"\\u2581\":2,\"a\":3,\"e\":4,\">>fra<<\":5,\"<pad>\":6}");
    if (fv_tok_open(&t, &env, "mt", &e)) fail_msg("%s", e.text);
    fv_encoding *enc = tok_encode(t, ">>fra<<a", 8,
                                  (fv_tok_opts){.specials = true, .offsets = FV_OFFSETS_BYTES});
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

static void check_m2m_100(const fv_tok *t, json_t *one)
{
    const char *text = json_string_value(json_object_get(one, "text"));
    fv_err e = {0};
    char *back;
    size_t len;
    for (int specials = 0; specials < 2; specials++) {
        json_t *want = json_object_get(one, specials ? "ids" : "plain");
        fv_encoding *enc = tok_encode(t, text, strlen(text), (fv_tok_opts){.specials = specials});
        bool same = (size_t)enc->n == json_array_size(want);
        for (int64_t i = 0; same && i < enc->n; i++)
            same = enc->ids[i] == json_integer_value(json_array_get(want, (size_t)i));
        if (!same) fail_msg("\"%s\": other ids, specials %d", text, specials);
        if (specials) {
            assert_int_equal(fv_tok_decode(t, &back, &len, enc->ids, enc->n, true, &e), FV_OK);
            assert_string_equal(back, json_string_value(json_object_get(one, "decoded")));
            fv_tok_free_text(t, back, len);
        }
        fv_encoding_free(enc);
    }
}

/* sentencepiece.bpe.model and vocab.json: ids, languages and texts as transformers has them. */
static void m2m_100_directories_open(void **state)
{
    (void)state;
    fv_tok *t;
    fv_err e = {0};
    json_t *expected = json_load_file(TOK_GOLDEN "m2m_100/expected.json", 0, NULL), *one;
    const char *code;
    size_t i;
    if (fv_tok_open(&t, NULL, TOK_GOLDEN "m2m_100", &e)) fail_msg("%s", e.text);
    json_object_foreach(json_object_get(expected, "languages"), code, one)
    {
        assert_int_equal(fv_tok_id(t, code), json_integer_value(one));
        assert_true(fv_tok_special(t, fv_tok_id(t, code)));
    }
    json_array_foreach(json_object_get(expected, "cases"), i, one) check_m2m_100(t, one);
    assert_int_equal(fv_tok_save(t, "x.json", &e), FV_EMISSING);
    fv_tok_close(t);
    json_decref(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_files_are_named),     cmocka_unit_test(scripts_are_kept_apart),
        cmocka_unit_test(damaged_files_do_no_harm),  cmocka_unit_test(directories_open),
        cmocka_unit_test(speecht5_directories_open), cmocka_unit_test(marian_directories_open),
        cmocka_unit_test(m2m_100_directories_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
