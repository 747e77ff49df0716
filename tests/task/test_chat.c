/* test_chat.c - conversations: a turn reads only what is new, and its reply has the bits of one
 * that read everything; full contexts; files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/author/author.h"
#include "fovea/chat.h"
#include "fovea/fovea.h"
#include "helper/device.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"
#define CONFIG                                                                                     \
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"                       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":512,\"max_position_embeddings\":%d,\"initializer_range\":0.2,"                 \
    "\"tie_word_embeddings\":true}"

static const char chatml[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

typedef struct world {
    fv_model *model;
    fv_tok *tok;
    fv_chat_template *template;
} world;

static world world_open(int context)
{
    world w;
    fv_err e;
    char config[512];
    snprintf(config, sizeof config, CONFIG, context);
    check(fv_model_new(&w.model, device, config, (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_tok_open(&w.tok, NULL, STORIES, &e), &e);
    check(fv_chat_template_read(&w.template, NULL, chatml, "<s>", "</s>", &e), &e);
    return w;
}

static void world_close(world *w)
{
    fv_chat_template_close(w->template);
    fv_tok_close(w->tok);
    fv_model_free(w->model);
}

static fv_chat *chat_open(const world *w, fv_chat_opt opt)
{
    fv_chat *c;
    fv_err e;
    check(fv_chat_open(&c, device, w->model, w->tok, w->template, opt, &e), &e);
    return c;
}

static fv_gen_opt options(bool sample)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = 1;
    o.max_new_tokens = 12;
    o.do_sample = sample;
    o.seed = 5;
    return o;
}

static void add(fv_chat *c, const char *role, const char *text)
{
    fv_err e;
    check(fv_chat_add(c, role, text, strlen(text), &e), &e);
}

static const char *reply(fv_chat *c, const fv_gen_opt *o)
{
    fv_err e;
    int n;
    check(fv_chat_reply(c, o, NULL, NULL, &e), &e);
    const fv_message *m = fv_chat_messages(c, &n);
    assert_string_equal(m[n - 1].role, "assistant");
    return m[n - 1].text;
}

/* A text of about n tokens. */
static char *long_text(int n)
{
    char *text = calloc((size_t)n, 8);
    for (int i = 0; i < n / 4; i++)
        sprintf(text + strlen(text), "%s", i % 3 ? "the cat " : "a big dog ");
    return text;
}

static int64_t prompt_tokens(const world *w, const fv_chat *c)
{
    int n;
    char *text;
    fv_err e;
    fv_encoding *enc;
    const fv_message *m = fv_chat_messages(c, &n);
    check(fv_chat_template_render(w->template, &text, m, n, NULL, &e), &e);
    check(fv_encoding_new(&enc, w->tok, &e), &e);
    check(fv_tok_encode(enc, text, strlen(text), (fv_tok_opts){0}, &e), &e);
    int64_t tokens = enc->n;
    fv_encoding_free(enc);
    fv_chat_template_free_text(w->template, text);
    return tokens;
}

static void a_turn_reads_only_what_is_new(void **state)
{
    (void)state;
    world w = world_open(4096);
    char *story = long_text(4000);
    for (int sample = 0; sample < 2; sample++) {
        fv_gen_opt o = options(sample);
        fv_chat *c = chat_open(&w, (fv_chat_opt){0}), *fresh = chat_open(&w, (fv_chat_opt){0});
        add(c, "user", story);
        int64_t first = prompt_tokens(&w, c);
        assert_true(first >= 2000);
        reply(c, &o);
        assert_in_range(fv_chat_processed(c), first, first + 12);
        add(c, "user", "And then?");
        int64_t second = prompt_tokens(&w, c), before = fv_chat_processed(c);
        int n;
        const fv_message *m = fv_chat_messages(c, &n);
        for (int i = 0; i < n; i++) add(fresh, m[i].role, m[i].text);
        const char *text = reply(c, &o);
        /* at most the old reply, should its text encode to other tokens, the turn and the new one
         */
        assert_in_range(fv_chat_processed(c) - before, 1, second - first + 12);
        assert_string_equal(text, reply(fresh, &o));
        assert_true(fv_chat_processed(fresh) >= second);
        fv_chat_close(fresh);
        fv_chat_close(c);
    }
    free(story);
    world_close(&w);
}

/* The session's own call: tokens and scores, however much is known. */
static void what_is_known_changes_no_bit(void **state)
{
    (void)state;
    enum { N = 700 };
    world w = world_open(1024);
    int32_t ids[N];
    fv_err e;
    fv_ctx *ctx;
    fv_session *s;
    for (int i = 0; i < N; i++) ids[i] = 3 + (i * 37 + i / 11) % 500;
    check(fv_ctx_new(&ctx, device, (fv_ctx_opt){.dtype = fv_model_dtype(w.model)}, &e), &e);
    check(fv_session_new(&s, w.model, device, 1, 1024, &e), &e);
    for (int sample = 0; sample < 2; sample++) {
        fv_gen_opt o = options(sample);
        fv_generated want, have;
        const int32_t *source = ids;
        int64_t n = N;
        check(fv_generate(&want, device, w.model, &source, &n, 1, &o, &e), &e);
        static const int64_t known[] = {0, 1, 511, 512, 600, N - 1, N};
        fv_session_reset(s);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (i && known[i] > fv_session_len(s, 0)) fail_msg("the session holds too little");
            check(fv_session_generate(&have, ctx, s, ids, N, known[i], &o, &e), &e);
            assert_int_equal(have.hyp[0].n, want.hyp[0].n);
            assert_memory_equal(have.hyp[0].ids, want.hyp[0].ids,
                                (size_t)want.hyp[0].n * sizeof *ids);
            assert_true(have.hyp[0].score == want.hyp[0].score);
            assert_int_equal(fv_session_len(s, 0), N + have.hyp[0].n - 1);
            fv_generated_free(&have);
        }
        fv_generated_free(&want);
    }
    assert_int_equal(fv_session_generate(&(fv_generated){0}, ctx, s, ids, N, 1000,
                                         &(fv_gen_opt){.num_beams = 1, .num_return_sequences = 1},
                                         &e),
                     FV_EARG);
    fv_session_free(s);
    fv_ctx_free(ctx);
    world_close(&w);
}

static void a_full_context_is_refused_or_trimmed(void **state)
{
    (void)state;
    world w = world_open(256);
    fv_gen_opt o = options(false);
    fv_err e;
    int n;
    fv_chat *c = chat_open(&w, (fv_chat_opt){0}), *t = chat_open(&w, (fv_chat_opt){.trim = true});
    char *text = long_text(120);
    add(t, "system", "Be kind.");
    fv_status st = FV_OK;
    for (int i = 0; i < 8; i++) {
        add(t, "user", text);
        reply(t, &o);
        add(c, "user", text);
        if (!st) st = fv_chat_reply(c, &o, NULL, NULL, &e);
    }
    assert_int_equal(st, FV_EARG);
    assert_non_null(strstr(e.text, "the context holds 256"));
    const fv_message *m = fv_chat_messages(t, &n);
    assert_string_equal(m[0].role, "system");
    assert_string_equal(m[1].role, "user");
    assert_true(n < 10 && prompt_tokens(&w, t) <= 256 + 20);
    fv_chat_reset(t);
    fv_chat_messages(t, &n);
    assert_int_equal(n, 1);
    char *huge = long_text(1200);
    add(t, "user", huge);
    assert_int_equal(fv_chat_reply(t, &o, NULL, NULL, &e), FV_EARG);
    free(huge);
    free(text);
    fv_chat_close(c);
    fv_chat_close(t);
    world_close(&w);
}

static bool stop_at_once(void *user, const char *text, size_t n)
{
    (void)text;
    *(size_t *)user += n;
    return false;
}

static void conversations_are_saved(void **state)
{
    (void)state;
    world w = world_open(512);
    fv_gen_opt o = options(false);
    fv_err e;
    char path[] = "/tmp/fovea-chat-XXXXXX";
    int n, k, file = mkstemp(path);
    size_t seen = 0;
    close(file);
    fv_chat *c = chat_open(&w, (fv_chat_opt){0}), *d = chat_open(&w, (fv_chat_opt){0});
    add(c, "system", "Say \"hi\"\n\\ and \x01 é.");
    add(c, "user", "Hello");
    check(fv_chat_reply(c, &o, stop_at_once, &seen, &e), &e);
    check(fv_chat_save(c, path, &e), &e);
    add(d, "user", "gone after loading");
    check(fv_chat_load(d, path, &e), &e);
    const fv_message *a = fv_chat_messages(c, &n), *b = fv_chat_messages(d, &k);
    assert_int_equal(n, 3);
    assert_int_equal(k, n);
    assert_int_equal(strlen(a[2].text), seen);
    for (int i = 0; i < n; i++) {
        assert_string_equal(a[i].role, b[i].role);
        assert_string_equal(a[i].text, b[i].text);
    }
    FILE *f = fopen(path, "w");
    fputs("{\"messages\": [{\"role\": \"user\"}]}", f);
    fclose(f);
    assert_int_equal(fv_chat_load(d, path, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "message 1"));
    fv_chat_messages(d, &k);
    assert_int_equal(k, n);
    assert_int_equal(fv_chat_add(d, "user", "\xff", 1, &e), FV_EARG);
    unlink(path);
    fv_chat_close(c);
    fv_chat_close(d);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_reads_only_what_is_new),
        cmocka_unit_test(what_is_known_changes_no_bit),
        cmocka_unit_test(a_full_context_is_refused_or_trimmed),
        cmocka_unit_test(conversations_are_saved),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
