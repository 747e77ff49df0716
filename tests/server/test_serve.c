/* test_serve.c - fovea serve from outside: completions and chats as OpenAI's clients ask for them,
 * streaming, probabilities, attention, many at once, clients that go, and the end. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/http.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"
#define STORY ", there was a little girl named Lily. She"

static int start(void **state)
{
    char line[2048];
    scratch_open(state);
    snprintf(line, sizeof line,
             "cp -r '%s' '%s' && cp '%s/golden/chatml.jinja' '%s/chat_template.jinja'", STORIES,
             scratch("chat"), FOVEA_TESTS, scratch("chat"));
    if (system(line)) return -1;
    serve_start("-m plain='%s' -m chat=chat --batch 8 --header-timeout 2 --prefill 64 --quiet",
                STORIES);
    return 0;
}

static void nap(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* ---- text ---- */

static void models_are_listed(void **state)
{
    (void)state;
    json_t *j = post("/v1/models", NULL);
    assert_string_equal(text_at(j, "data.0.id"), "plain");
    assert_string_equal(text_at(j, "data.1.tasks.0"), "chat");
    assert_int_equal((int)number_at(j, "data.0.layers"), 5);
    json_decref(j);
    j = post("/v1/models/chat", NULL);
    assert_string_equal(text_at(j, "object"), "model");
    json_decref(j);
    assert_int_equal(http("/v1/models/other", NULL)->status, 404);
    assert_int_equal(http("/livez", NULL)->status, 200);
    assert_int_equal(http("/readyz", NULL)->status, 200);
}

static void prompts_are_continued(void **state)
{
    (void)state;
    json_t *j = post("/v1/completions",
                     "{\"model\":\"plain\",\"prompt\":\"Once upon a time\",\"max_tokens\":12,"
                     "\"temperature\":0}");
    assert_string_equal(text_at(j, "choices.0.text"), STORY);
    assert_string_equal(text_at(j, "choices.0.finish_reason"), "length");
    assert_string_equal(text_at(j, "object"), "text_completion");
    assert_int_equal((int)number_at(j, "usage.prompt_tokens"), 5);
    assert_int_equal((int)number_at(j, "usage.completion_tokens"), 12);
    json_decref(j);
    /* ids, several prompts, several choices, an echo */
    j = post("/v1/completions", "{\"prompt\":[[1,403,407,261,378],[1,317,327]],\"max_tokens\":4,"
                                "\"temperature\":0,\"n\":2,\"echo\":true}");
    assert_int_equal(json_array_size(at(j, "choices")), 4);
    assert_string_equal(text_at(j, "choices.0.text"), text_at(j, "choices.1.text"));
    assert_int_equal(strncmp(text_at(j, "choices.0.text"), "Once upon a time", 16), 0);
    json_decref(j);
    /* an empty text begins with the token that begins every text */
    j = post("/v1/completions", "{\"prompt\":\"\",\"max_tokens\":4,\"temperature\":0}");
    assert_string_equal(text_at(j, "choices.0.text"), "Once upon a time");
    json_decref(j);
}

static void stop_strings_cut(void **state)
{
    (void)state;
    json_t *j = post("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":40,"
                                        "\"temperature\":0,\"stop\":[\"xyz\",\"girl na\"]}");
    assert_string_equal(text_at(j, "choices.0.text"), ", there was a little ");
    assert_string_equal(text_at(j, "choices.0.finish_reason"), "stop");
    /* tokens that came before the sequence had ended are not counted */
    assert_int_equal((int)number_at(j, "usage.completion_tokens"), 9);
    json_decref(j);
    for (int i = 0; i < 300 && metric("fovea_requests_running{model=\"plain\"} ") > 0; i++) nap(10);
    assert_int_equal((int)metric("fovea_requests_running{model=\"plain\"} "), 0);
    assert_true(metric("fovea_engine_seconds_total{model=\"plain\",part=\"decode\"} ") > 0);
    assert_true(metric("fovea_prompt_steps_total{model=\"plain\"} ") > 0);
    assert_true(metric("fovea_decode_steps_total{model=\"plain\"} ") > 0);
}

/* A stream reads only the end of a long prompt, all of it where that is blanks, and what follows
 * is the same: echo makes it read the whole. */
static void long_prompts_are_continued(void **state)
{
    (void)state;
    for (int blanks = 0; blanks < 2; blanks++) {
        char prompt[800] = "Once upon a time", body[1000];
        for (int i = 0; i < 90; i++) strcat(prompt, blanks ? " " : " big");
        json_t *j[2];
        for (int echo = 0; echo < 2; echo++) {
            snprintf(body, sizeof body,
                     "{\"prompt\":\"%s\",\"max_tokens\":12,\"temperature\":0,\"echo\":%s}", prompt,
                     echo ? "true" : "false");
            j[echo] = post("/v1/completions", body);
        }
        const char *added = text_at(j[0], "choices.0.text"), *all = text_at(j[1], "choices.0.text");
        assert_true(strlen(added) > 0 && strlen(all) > strlen(added));
        assert_string_equal(all + strlen(all) - strlen(added), added);
        json_decref(j[0]);
        json_decref(j[1]);
    }
}

static void sampling_follows_the_seed(void **state)
{
    (void)state;
    static const char ask[] = "{\"prompt\":\"The\",\"max_tokens\":30,\"seed\":%d,\"n\":2}";
    char body[200], first[1000], second[1000];
    for (int i = 0; i < 3; i++) {
        snprintf(body, sizeof body, ask, i < 2 ? 5 : 6);
        json_t *j = post("/v1/completions", body);
        if (!i) snprintf(first, sizeof first, "%s", text_at(j, "choices.0.text"));
        if (!i) snprintf(second, sizeof second, "%s", text_at(j, "choices.1.text"));
        if (!i) assert_string_not_equal(first, second);
        if (i == 1) assert_string_equal(first, text_at(j, "choices.0.text"));
        if (i == 1) assert_string_equal(second, text_at(j, "choices.1.text"));
        if (i == 2) assert_string_not_equal(first, text_at(j, "choices.0.text"));
        json_decref(j);
    }
}

static void biases_and_penalties_count(void **state)
{
    (void)state;
    json_t *j = post("/v1/completions", "{\"prompt\":\"The\",\"max_tokens\":5,\"temperature\":0,"
                                        "\"logit_bias\":{\"317\":100}}");
    assert_string_equal(text_at(j, "choices.0.text"), " Lily Lily Lily Lily Lily");
    json_decref(j);
    j = post("/v1/completions",
             "{\"prompt\":\"The\",\"max_tokens\":12,\"temperature\":0,\"logit_bias\":{\"317\":"
             "50,\"327\":50},\"presence_penalty\":2,\"frequency_penalty\":2}");
    const char *text = text_at(j, "choices.0.text");
    assert_non_null(strstr(text, " Lily"));
    assert_null(strstr(text, " Lily Lily Lily Lily Lily Lily Lily Lily Lily Lily Lily Lily"));
    json_decref(j);
}

static void probabilities_are_told(void **state)
{
    (void)state;
    json_t *j = post("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":3,"
                                        "\"temperature\":0,\"logprobs\":2}");
    assert_int_equal(json_array_size(at(j, "choices.0.logprobs.tokens")), 3);
    assert_string_equal(text_at(j, "choices.0.logprobs.tokens.1"), " there");
    assert_true(number_at(j, "choices.0.logprobs.token_logprobs.0") < 0);
    assert_int_equal(json_object_size(at(j, "choices.0.logprobs.top_logprobs.0")), 2);
    json_decref(j);
    j = post("/v1/chat/completions",
             "{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
             "\"max_tokens\":4,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":3}");
    assert_int_equal(json_array_size(at(j, "choices.0.logprobs.content")), 4);
    assert_int_equal(json_array_size(at(j, "choices.0.logprobs.content.0.top_logprobs")), 3);
    assert_true(number_at(j, "choices.0.logprobs.content.0.logprob") ==
                number_at(j, "choices.0.logprobs.content.0.top_logprobs.0.logprob"));
    json_decref(j);
}

/* ---- streams ---- */

/* The pieces of a stream joined; its last lines are looked at. */
static void read_stream(const char *path, const char *body, const char *piece, char *out, size_t n,
                        int *chunks)
{
    const answer *a = http(path, body);
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->head, "text/event-stream"));
    assert_non_null(strstr(a->body, "data: [DONE]\n\n"));
    out[0] = 0;
    *chunks = 0;
    char *all = strdup(a->body), *rest = all;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "data: {", 7)) continue;
        json_t *j = json_loads(line + 6, 0, NULL);
        assert_non_null(j);
        if (json_array_size(at(j, "choices"))) {
            strncat(out, text_at(j, piece), n - strlen(out) - 1);
            ++*chunks;
        } else {
            assert_int_equal((int)number_at(j, "usage.completion_tokens"), 12);
        }
        json_decref(j);
    }
    free(all);
}

static void streams_join_to_the_whole(void **state)
{
    (void)state;
    char text[1000];
    int chunks;
    read_stream("/v1/completions",
                "{\"prompt\":\"Once upon a time\",\"max_tokens\":12,\"temperature\":0,"
                "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                "choices.0.text", text, sizeof text, &chunks);
    assert_string_equal(text, STORY);
    assert_in_range(chunks, 8, 14);
    read_stream("/v1/completions",
                "{\"prompt\":\"Once upon a time\",\"max_tokens\":40,\"temperature\":0,"
                "\"stream\":true,\"stop\":\"girl na\"}",
                "choices.0.text", text, sizeof text, &chunks);
    assert_string_equal(text, ", there was a little ");
    read_stream("/v1/chat/completions",
                "{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":"
                "[{\"type\":\"text\",\"text\":\"Hi\"}]}],\"max_tokens\":12,\"temperature\":0,"
                "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                "choices.0.delta.content", text, sizeof text, &chunks);
    json_t *j = post("/v1/chat/completions",
                     "{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                     "\"max_tokens\":12,\"temperature\":0}");
    assert_string_equal(text, text_at(j, "choices.0.message.content"));
    assert_string_equal(text_at(j, "choices.0.message.role"), "assistant");
    json_decref(j);
}

/* ---- attention ---- */

/* The rows of a stream's chunks, one behind the other, are those of the whole answer. */
static void streamed_weights_are_those_of_the_whole(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":12,"
                               "\"temperature\":0,\"attention\":{\"layers\":-1,\"heads\":[0,5]}%s}";
    char whole[256], streamed[256];
    snprintf(whole, sizeof whole, body, "");
    snprintf(streamed, sizeof streamed, body, ",\"stream\":true");
    json_t *want = post("/v1/completions", whole), *got = json_array();
    const answer *a = http("/v1/completions", streamed);
    char *all = strdup(a->body), *rest = all;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "data: {", 7)) continue;
        json_t *j = json_loads(line + 6, 0, NULL);
        json_array_extend(got, (json_t *)at(j, "choices.0.attention.rows"));
        json_decref(j);
    }
    assert_in_range(json_array_size(got), 11, 12);
    assert_true(json_equal(got, (json_t *)at(want, "choices.0.attention.rows")));
    json_decref(want);
    json_decref(got);
    free(all);
}

/* The digits are those of a pass of the library over the whole sequence. */
static void weights_are_those_of_a_pass(void **state)
{
    (void)state;
    fv_device *d;
    fv_model *m;
    fv_tok *tok;
    fv_encoding *enc;
    fv_see *see;
    fv_err e;
    static float want[64 * 64];
    json_t *j = post("/v1/completions",
                     "{\"prompt\":\"Once upon a time\",\"max_tokens\":12,\"temperature\":0,"
                     "\"attention\":{\"layers\":[2,-1],\"heads\":\"all\",\"rows\":\"all\"}}");
    assert_int_equal(fv_device_open(&d, NULL, (fv_device_opt){0}, &e), FV_OK);
    assert_int_equal(fv_model_open(&m, d, STORIES, (fv_model_opt){.serve = true}, &e), FV_OK);
    assert_int_equal(fv_tok_open(&tok, NULL, STORIES, &e), FV_OK);
    assert_int_equal(fv_encoding_new(&enc, tok, &e), FV_OK);
    static const char all[] = "Once upon a time" STORY;
    fv_tok_encode(enc, all, strlen(all), (fv_tok_opts){.specials = true}, &e);
    int64_t n = (int64_t)json_array_size(at(j, "choices.0.attention.rows"));
    assert_int_equal(n, 16); /* 5 of the prompt and 12 more, but for the last, which has no row */
    assert_int_equal(fv_see_run(&see, d, m, (fv_see_in){.source = enc->ids, .n_source = n}, &e),
                     FV_OK);
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 8; h++) {
            fv_see_pick p = {.kind = FV_SEE_DECODER, .layer = l ? 4 : 2, .head = h};
            assert_int_equal(fv_see_weights(see, p, 0, n, want, &e), FV_OK);
            for (int64_t i = 0; i < n; i++) {
                char path[64];
                snprintf(path, sizeof path, "choices.0.attention.rows.%d.weights.%d.%d", (int)i, l,
                         h);
                const json_t *row = at(j, path);
                assert_int_equal(json_array_size(row), i + 1);
                for (int64_t k = 0; k <= i; k++) {
                    double got = json_number_value(json_array_get(row, (size_t)k));
                    assert_true(fabs(got - (double)want[i * n + k]) < 1e-6);
                }
            }
        }
    json_decref(j);
    j = post("/v1/attention", "{\"input\":\"Once upon a time\",\"attention\":{\"layers\":[2],"
                              "\"heads\":[3]},\"rows\":[2,5]}");
    fv_see_pick p = {.kind = FV_SEE_DECODER, .layer = 2, .head = 3};
    assert_int_equal(fv_see_weights(see, p, 0, n, want, &e), FV_OK);
    for (int i = 2; i < 5; i++)
        for (int k = 0; k <= i; k++) {
            char path[64];
            snprintf(path, sizeof path, "weights.0.0.%d.%d", i - 2, k);
            assert_true(fabs(number_at(j, path) - (double)want[i * n + k]) < 1e-6);
        }
    json_decref(j);
    const answer *a = http_with("Accept: application/vnd.safetensors\r\n", "/v1/attention",
                                "{\"input\":\"Once upon a time\",\"attention\":{\"layers\":[2]}}");
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->head, "octet-stream"));
    fv_see_free(see);
    fv_encoding_free(enc);
    fv_tok_close(tok);
    fv_model_free(m);
    fv_device_close(d);
}

/* ---- texts and ids ---- */

static void texts_become_ids_and_back(void **state)
{
    (void)state;
    json_t *j = post("/tokenize", "{\"text\":\"Once upon a time\"}");
    assert_int_equal((int)number_at(j, "count"), 5);
    assert_int_equal((int)number_at(j, "tokens.1"), 403);
    json_decref(j);
    j = post("/detokenize", "{\"tokens\":[403,407,261,378]}");
    assert_string_equal(text_at(j, "text"), "Once upon a time");
    json_decref(j);
    j = post("/apply-template",
             "{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    assert_non_null(strstr(text_at(j, "prompt"), "<|im_start|>user\nHi<|im_end|>\n"));
    json_decref(j);
}

static void vectors_come_as_numbers_and_base64(void **state)
{
    (void)state;
    json_t *j = post("/v1/embeddings", "{\"input\":[\"a dog\",\"a cat\"]}");
    assert_int_equal(json_array_size(at(j, "data")), 2);
    double sum = 0;
    for (size_t i = 0; i < json_array_size(at(j, "data.1.embedding")); i++) {
        double x = json_number_value(json_array_get(at(j, "data.1.embedding"), i));
        sum += x * x;
    }
    assert_true(fabs(sum - 1) < 1e-5);
    size_t width = json_array_size(at(j, "data.0.embedding"));
    json_decref(j);
    j = post("/v1/embeddings", "{\"input\":\"a dog\",\"encoding_format\":\"base64\"}");
    assert_int_equal(strlen(text_at(j, "data.0.embedding")), (width * 4 + 2) / 3 * 4);
    json_decref(j);
}

/* ---- refusals ---- */

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    static const char c[] = "/v1/completions", t[] = "/v1/chat/completions";
    http_refused(400, "not JSON", c, "{");
    http_refused(400, "not JSON", c, "{\"prompt\":1,\"prompt\":2}");
    http_refused(400, "not a JSON object", c, "[]");
    http_refused(400, "did you mean temperature?", c, "{\"temperatur\":1}");
    http_refused(404, "no model gpt-4 is served", c, "{\"model\":\"gpt-4\",\"prompt\":\"a\"}");
    http_refused(400, "prompt: a string", c, "{}");
    http_refused(400, "temperature", c, "{\"prompt\":\"a\",\"temperature\":-1}");
    http_refused(400, "temperature", c, "{\"prompt\":\"a\",\"temperature\":\"hot\"}");
    http_refused(400, "max_tokens", c, "{\"prompt\":\"a\",\"max_tokens\":0}");
    http_refused(400, "context holds 512", c, "{\"prompt\":\"a\",\"max_tokens\":512}");
    http_refused(400, "logit_bias", c, "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}");
    http_refused(400, "vocabulary", c, "{\"prompt\":\"a\",\"logit_bias\":{\"9999\":1}}");
    http_refused(400, "vocabulary", c, "{\"prompt\":[99999]}");
    http_refused(400, "stop", c, "{\"prompt\":\"a\",\"stop\":[\"\"]}");
    http_refused(400, "stream_options", c, "{\"prompt\":\"a\",\"stream_options\":{}}");
    http_refused(400, "attention.layers", c, "{\"prompt\":\"a\",\"attention\":{\"layers\":[9]}}");
    http_refused(400, "attention.rows", c, "{\"prompt\":\"a\",\"attention\":{\"rows\":7}}");
    http_refused(400, "weights were asked for", c,
                 "{\"prompt\":\"a\",\"max_tokens\":500,\"attention\":{}}");
    http_refused(400, "does not chat", t, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    http_refused(400, "messages", t, "{\"model\":\"chat\",\"messages\":[]}");
    http_refused(400, "parts of type text", t,
                 "{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":"
                 "[{\"type\":\"image_url\"}]}]}");
    http_refused(400, "logprobs", t,
                 "{\"model\":\"chat\",\"top_logprobs\":2,\"messages\":[{\"role\":\"user\","
                 "\"content\":\"a\"}]}");
    http_refused(400, "ForSequenceClassification", "/v1/classify", "{\"input\":\"a\"}");
    http_refused(400, "does not translate", "/v1/translate", "{\"input\":\"a\"}");
    http_refused(404, "nothing at", "/v2/completions", "{}");
    http_refused(405, "does not take POST", "/v1/models", "{}");
    assert_int_equal(http("/v1/completions", NULL)->status, 405);
}

/* ---- formats ---- */

static void replies_follow_a_schema(void **state)
{
    (void)state;
    static const char ask[] =
        "{\"model\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
        "\"max_tokens\":300,\"seed\":%d,\"response_format\":{\"type\":\"json_schema\","
        "\"json_schema\":{\"name\":\"pet\",\"schema\":{\"type\":\"object\",\"properties\":{"
        "\"kind\":{\"enum\":[\"cat\",\"dog\"]},\"name\":{\"type\":\"string\",\"maxLength\":20},"
        "\"age\":{\"type\":\"integer\"}},\"required\":[\"kind\",\"name\",\"age\"],"
        "\"additionalProperties\":false}}}}";
    char body[1024];
    for (int seed = 0; seed < 8; seed++) {
        snprintf(body, sizeof body, ask, seed);
        json_t *j = post("/v1/chat/completions", body);
        json_t *pet = json_loads(text_at(j, "choices.0.message.content"), 0, NULL);
        if (!pet) fail_msg("no JSON: %s", text_at(j, "choices.0.message.content"));
        assert_int_equal(json_object_size(pet), 3);
        assert_true(json_is_integer(at(pet, "age")));
        assert_true(strlen(text_at(pet, "name")) <= 80);
        assert_string_equal(text_at(j, "choices.0.finish_reason"), "stop");
        json_decref(pet);
        json_decref(j);
    }
    http_refused(400, "pattern", "/v1/completions",
                 "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                 "{\"schema\":{\"pattern\":\"a\"}}}}");
    http_refused(400, "json_object", "/v1/completions",
                 "{\"prompt\":\"a\",\"response_format\":{\"type\":\"xml\"}}");
}

/* ---- many at once ---- */

enum { CLIENTS = 64 };

static void each_gets_what_it_gets_alone(void **state)
{
    (void)state;
    static const char ask[] = "{\"prompt\":\"%s\",\"max_tokens\":%d,\"seed\":%d,"
                              "\"temperature\":%s,\"top_p\":0.9}";
    static const char *const prompts[] = {"Once upon a time", "The dog", "She said",
                                          "Once upon a time there was a big"};
    static char body[CLIENTS][256], request[CLIENTS][512];
    static char *together[CLIENTS];
    int fd[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        snprintf(body[i], sizeof body[i], ask, prompts[i % 4], 5 + i, i, i % 3 ? "1" : "0");
        snprintf(request[i], sizeof request[i],
                 "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%.255s",
                 strlen(body[i]), body[i]);
        fd[i] = http_open();
        http_send(fd[i], request[i], strlen(request[i]));
    }
    for (int i = 0; i < CLIENTS; i++) {
        const answer *a = http_read(fd[i]);
        assert_int_equal(a->status, 200);
        json_t *j = json_loads(a->body, 0, NULL);
        together[i] = strdup(text_at(j, "choices.0.text"));
        json_decref(j);
        close(fd[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        json_t *j = post("/v1/completions", body[i]);
        assert_string_equal(together[i], text_at(j, "choices.0.text"));
        json_decref(j);
        free(together[i]);
    }
    assert_true(metric("fovea_prefix_tokens_total{model=\"plain\"} ") >= 0);
}

static void who_goes_frees_the_row(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":510,\"temperature\":1,"
                               "\"logit_bias\":{\"2\":-100,\"1\":-100}%s}";
    char request[600], full[300];
    for (int stream = 0; stream < 2; stream++) {
        snprintf(full, sizeof full, body, stream ? ",\"stream\":true,\"n\":40" : ",\"n\":40");
        snprintf(request, sizeof request,
                 "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(full), full);
        double gone = metric("fovea_http_disconnected_total ");
        int fd = http_open();
        http_send(fd, request, strlen(request));
        nap(20);
        close(fd);
        for (int i = 0; i < 300; i++) {
            if (metric("fovea_http_disconnected_total ") > gone &&
                metric("fovea_requests_running{model=\"plain\"} ") == 0 &&
                metric("fovea_requests_waiting{model=\"plain\"} ") == 0)
                break;
            nap(10);
        }
        assert_true(metric("fovea_http_disconnected_total ") > gone);
        assert_int_equal((int)metric("fovea_requests_running{model=\"plain\"} "), 0);
    }
}

static void trickles_are_closed(void **state)
{
    (void)state;
    int fd = http_open();
    for (int i = 0; i < 30; i++) { /* a byte now and then, for longer than the deadline */
        http_send(fd, "G", 1);
        nap(100);
    }
    assert_int_equal(http_read(fd)->status, 0);
    assert_true(http_read(fd)->closed);
    close(fd);
    assert_int_equal(http("/livez", NULL)->status, 200);
}

static void models_are_read_again(void **state)
{
    (void)state;
    serve_signal(SIGHUP);
    char *log = NULL;
    for (int i = 0; i < 500 && (!log || !strstr(log, "chat: read again")); i++) {
        json_t *j = post("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":12,"
                                            "\"temperature\":0}");
        assert_string_equal(text_at(j, "choices.0.text"), STORY);
        json_decref(j);
        free(log);
        log = serve_log();
    }
    assert_non_null(strstr(log, "chat: read again"));
    free(log);
}

/* ---- starting and ending ---- */

static void keys_are_needed_and_work_is_drained(void **state)
{
    (void)state;
    scratch_text("keys", "# a comment\n\nsecret-key-1\nsecret-key-2\n");
    serve_start("-m '%s' --api-keys keys --queue 2 --batch 1 --cors https://example.org --quiet",
                STORIES);
    static const char before[] = "OPTIONS /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n";
    int page = http_open();
    http_send(page, before, strlen(before));
    assert_int_equal(http_read(page)->status, 204);
    assert_non_null(strstr(http_with("", "/livez", NULL)->head, "https://example.org"));
    close(page);
    assert_int_equal(http("/v1/models", NULL)->status, 401);
    assert_int_equal(http("/livez", NULL)->status, 200);
    assert_int_equal(
        http_with("Authorization: Bearer secret-key-3\r\n", "/v1/models", NULL)->status, 401);
    assert_int_equal(
        http_with("Authorization: Bearer secret-key-2\r\n", "/v1/models", NULL)->status, 200);
    /* one runs, two wait, and the next is too many */
    assert_int_equal(http_with("Authorization: Bearer secret-key-1\r\n", "/v1/completions",
                               "{\"prompt\":\"a\",\"n\":9}")
                         ->status,
                     429);
    static const char ask[] = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
                              "secret-key-1\r\nContent-Length: %zu\r\n\r\n%s",
                      body[] = "{\"prompt\":\"The\",\"max_tokens\":300,\"temperature\":0,"
                               "\"logit_bias\":{\"2\":-100}}";
    char request[600];
    snprintf(request, sizeof request, ask, strlen(body), body);
    int fd = http_open();
    http_send(fd, request, strlen(request));
    nap(20);
    serve_signal(SIGTERM);
    const answer *a = http_read(fd);
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->body, "\"completion_tokens\":300"));
    close(fd);
    assert_int_equal(serve_stop(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_listed),
        cmocka_unit_test(prompts_are_continued),
        cmocka_unit_test(stop_strings_cut),
        cmocka_unit_test(long_prompts_are_continued),
        cmocka_unit_test(sampling_follows_the_seed),
        cmocka_unit_test(biases_and_penalties_count),
        cmocka_unit_test(probabilities_are_told),
        cmocka_unit_test(streams_join_to_the_whole),
        cmocka_unit_test(streamed_weights_are_those_of_the_whole),
        cmocka_unit_test(weights_are_those_of_a_pass),
        cmocka_unit_test(texts_become_ids_and_back),
        cmocka_unit_test(vectors_come_as_numbers_and_base64),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(replies_follow_a_schema),
        cmocka_unit_test(each_gets_what_it_gets_alone),
        cmocka_unit_test(who_goes_frees_the_row),
        cmocka_unit_test(models_are_read_again),
        cmocka_unit_test(trickles_are_closed),
    };
    const struct CMUnitTest alone[] = {cmocka_unit_test(keys_are_needed_and_work_is_drained)};
    int failed = cmocka_run_group_tests(tests, start, serve_close);
    return failed + cmocka_run_group_tests(alone, scratch_open, scratch_close);
}
