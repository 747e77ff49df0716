/* tok.c - the tokenizers of tests/golden/tok, and what tests of tokenizers do with one. */
#include "tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "files.h"
#include "fovea/author/tok.h"

char *tok_component(const char *name, size_t *n)
{
    size_t size;
    char *all = slurp(TOK_GOLDEN "components.jsonl", &size), *out = NULL;
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

fv_tok *tok_open_component(const char *name)
{
    size_t n;
    fv_tok *t;
    fv_err e;
    char *s = tok_component(name, &n);
    if (fv_tok_read(&t, NULL, s, n, name, &e)) fail_msg("%s", e.text);
    free(s);
    return t;
}

fv_encoding *tok_encode(const fv_tok *t, const char *text, size_t n, fv_tok_opts o)
{
    fv_encoding *enc;
    fv_err e;
    assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
    if (fv_tok_encode(enc, text, n, o, &e)) fail_msg("%s", e.text);
    return enc;
}

void tok_assert_ids(const fv_encoding *enc, const int32_t *ids, int64_t n)
{
    assert_int_equal(enc->n, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(enc->ids[i], ids[i]);
}

void tok_put_letters(const char *name)
{
    char text[2000];
    int n = snprintf(text, sizeof text,
                     "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
                     "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":"
                     "\"ByteFallback\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 30; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s\"%c\":%d", i ? "," : "",
                      i < 26 ? 'a' + i : '0' + i - 26, i);
    snprintf(text + n, sizeof text - (size_t)n, "}}}");
    scratch_text(name, text);
}

typedef struct one_text {
    const char *text;
    bool given;
} one_text;

static bool next_text(void *self, const char **text, size_t *len)
{
    one_text *o = self;
    *text = o->text;
    *len = strlen(o->text);
    return !o->given && (o->given = true);
}

fv_tok *tok_trained(const char *text, int vocab, const char *const *specials)
{
    fv_tok *tok;
    fv_err e;
    one_text one = {.text = text};
    fv_tok_train_opts o = {.kind = FV_TOK_BYTE_BPE,
                           .vocab = vocab,
                           .min_count = 1,
                           .specials = specials,
                           .before = "<s>",
                           .after = "</s>"};
    if (fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &one}, &o, &e)) fail_msg("%s", e.text);
    return tok;
}

fv_feed_opt tok_feed(const fv_tok *tok, const void *options, fv_labels *labels)
{
    return (fv_feed_opt){.tok = tok,
                         .options = options,
                         .pad = fv_tok_id(tok, "<pad>"),
                         .start = fv_tok_id(tok, "<pad>"),
                         .eos = fv_tok_id(tok, "</s>"),
                         .cls = fv_tok_id(tok, "<s>"),
                         .sep = fv_tok_id(tok, "</s>"),
                         .mask = fv_tok_id(tok, "<mask>"),
                         .labels = labels};
}
