/* test_serve_media.c - images and sounds in requests: what the program gives for the file, the
 * server gives for its bytes; a path is never taken from a request; forms that are wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/http.h"
#include "helper/program.h"
#include "helper/tok.h"

#define MODELS FOVEA_TESTS "/golden/models/"
#define IMAGE FOVEA_TESTS "/golden/images/alpha.png"
#define SWEEP FOVEA_TESTS "/golden/audio/sweep.wav"
#define EDGE "----edge"

static int start(void **state)
{
    scratch_open(state);
    succeeded(sh("cp -r '" MODELS "vit-classify' seeing && cp -r '" MODELS
                 "yolos-detect' finding && "
                 "cp -r '" MODELS "moonshine-text' hearing && cp -r '" MODELS
                 "vision-encoder-decoder' telling && chmod -R u+w ."));
    scratch_text("seeing/preprocessor_config.json",
                 "{\"image_processor_type\":\"ViTImageProcessor\",\"do_resize\":true,\"size\":"
                 "{\"height\":12,\"width\":12},\"do_normalize\":true,\"image_mean\":[0.5,0.5,0.5],"
                 "\"image_std\":[0.5,0.5,0.5]}");
    scratch_text("finding/preprocessor_config.json",
                 "{\"image_processor_type\":\"YolosImageProcessor\",\"do_resize\":true,\"size\":"
                 "{\"shortest_edge\":32,\"longest_edge\":44},\"do_normalize\":true,"
                 "\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5]}");
    scratch_text(
        "hearing/preprocessor_config.json",
        "{\"feature_extractor_type\":\"Wav2Vec2FeatureExtractor\",\"do_normalize\":false}");
    tok_put_letters("hearing/tokenizer.json");
    scratch_text("telling/preprocessor_config.json",
                 "{\"image_processor_type\":\"ViTImageProcessor\",\"do_resize\":true,\"size\":"
                 "{\"height\":8,\"width\":8},\"do_normalize\":true,\"image_mean\":[0.5,0.5,0.5],"
                 "\"image_std\":[0.5,0.5,0.5]}");
    scratch_text("telling/generation_config.json",
                 "{\"decoder_start_token_id\":35,\"eos_token_id\":36,\"pad_token_id\":0,"
                 "\"max_new_tokens\":8}");
    tok_put_letters("telling/tokenizer.json");
    serve_start("-m seeing=seeing -m finding=finding -m hearing=hearing -m telling=telling "
                "--quiet");
    return 0;
}

/* {"model":..,"input":"data:TYPE;base64,.."} of a file; the caller frees. */
static char *media_body(const char *model, const char *type, const char *path)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n;
    unsigned char *bytes = (unsigned char *)slurp(path, &n);
    char *body = malloc(2 * n + 400);
    int k = sprintf(body, "{\"model\":\"%s\",\"input\":\"data:%s;base64,", model, type);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) |
                     (i + 2 < n ? bytes[i + 2] : 0);
        for (int d = 0; d < 4; d++) {
            bool there = i + (size_t)d < n + 1;
            body[k++] = (char)(there ? digits[x >> (18 - 6 * d) & 63] : '=');
        }
    }
    strcpy(body + k, "\"}");
    free(bytes);
    return body;
}

static char *image_body(const char *model, const char *path)
{
    return media_body(model, "image/png", path);
}

/* What the program prints for the file, without its name, is what the server answers. */
static void same_as_program(const char *model, const char *task, const char *path)
{
    json_t *want = json_line(succeeded(fovea("%s -m %s --json '%s'", task, model, path)), 0);
    char *body = image_body(model, path), route[64];
    json_object_del(want, "image");
    snprintf(route, sizeof route, "/v1/%s", task);
    json_t *got = post(route, body);
    const json_t *one = at(got, "data.0");
    const char *key = strcmp(task, "detect") ? "labels" : "objects";
    assert_int_equal(json_array_size(at(one, key)), json_array_size(at(want, key)));
    for (size_t i = 0; i < json_array_size(at(want, key)); i++) {
        const json_t *a = json_array_get(at(one, key), i), *b = json_array_get(at(want, key), i);
        assert_string_equal(text_at(a, "label"), text_at(b, "label"));
        assert_true(number_at(a, "score") == number_at(b, "score"));
    }
    assert_null(json_object_get(one, "image"));
    json_decref(got);
    json_decref(want);
    free(body);
}

static void images_are_seen(void **state)
{
    (void)state;
    same_as_program("seeing", "classify", IMAGE);
    same_as_program("finding", "detect", IMAGE);
}

/* The same caption by the program, by its path, and in a conversation, whole and streamed. */
static void images_are_described(void **state)
{
    (void)state;
    json_t *want = json_line(succeeded(fovea("caption -m telling --json '" IMAGE "'")), 0);
    char *body = image_body("telling", IMAGE), *uri = strstr(body, "data:"), *chat;
    json_t *got = post("/v1/caption", body);
    assert_string_equal(text_at(got, "data.0.caption"), text_at(want, "caption"));
    json_decref(got);
    *strrchr(uri, '"') = 0;
    assert_true(asprintf(&chat,
                         "{\"model\":\"telling\",\"messages\":[{\"role\":\"user\",\"content\":["
                         "{\"type\":\"text\",\"text\":\"What is this?\"},{\"type\":\"image_url\","
                         "\"image_url\":{\"url\":\"%s\"}},{\"type\":\"image_url\",\"image_url\":"
                         "{\"url\":\"%s\"}}]}]}                  ",
                         uri, uri) > 0);
    got = post("/v1/chat/completions", chat);
    const char *caption = text_at(want, "caption"),
               *reply = text_at(got, "choices.0.message.content");
    size_t n = strlen(caption);
    assert_int_equal(strlen(reply), 2 * n + 1); /* a line for each image */
    assert_memory_equal(reply, caption, n);
    assert_string_equal(reply + n + 1, caption);
    assert_int_equal((int)number_at(got, "usage.completion_tokens"),
                     2 * (int)json_array_size(at(want, "ids")));
    json_decref(got);
    strcpy(strrchr(chat, '}'), ",\"stream\":true}");
    const answer *a = http("/v1/chat/completions", chat);
    assert_non_null(strstr(a->head, "text/event-stream"));
    assert_non_null(strstr(a->body, caption));
    assert_non_null(strstr(a->body, "data: [DONE]"));
    free(chat);
    free(body);
    json_decref(want);
    http_refused(400, "part of type image_url", "/v1/chat/completions",
                 "{\"model\":\"telling\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    http_refused(400, "data: URI", "/v1/chat/completions",
                 "{\"model\":\"telling\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                 "\"image_url\",\"image_url\":{\"url\":\"file:///etc/passwd\"}}]}]}");
    http_refused(400, "temperature", "/v1/chat/completions",
                 "{\"model\":\"telling\",\"temperature\":1,\"messages\":[]}");
    http_refused(400, "does not describe", "/v1/caption", "{\"model\":\"seeing\",\"input\":\"a\"}");
}

/* The weights of `fovea see`, and its page. */
static void what_is_looked_at(void **state)
{
    (void)state;
    size_t n;
    succeeded(fovea("see -m seeing '" IMAGE "' -o seen.json"));
    char *text = slurp(scratch("seen.json"), &n), *body = image_body("seeing", IMAGE);
    json_t *want = json_loads(text, 0, NULL), *got = post("/v1/attention", body);
    const json_t *heads = at(want, "attentions.0.layers.1.heads");
    assert_true(json_equal((json_t *)at(got, "weights.1.1"), (json_t *)at(heads, "1.weights")));
    assert_true(
        json_equal((json_t *)at(got, "row_tokens"), (json_t *)at(want, "attentions.0.rows")));
    strcpy(strrchr(body, '}'), ",\"format\":\"html\"}");
    const answer *a = http("/v1/attention", body);
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->body, "<canvas"));
    assert_null(strstr(a->body, "base64,iVBOR")); /* the request is not its heading */
    json_decref(want);
    json_decref(got);
    free(text);
    free(body);
    body = image_body("telling", IMAGE);
    got = post("/v1/attention", body);
    assert_string_equal(text_at(got, "kind"), "cross"); /* words to patches */
    json_decref(got);
    free(body);
    http_refused(400, "data: URI", "/v1/attention", "{\"model\":\"hearing\",\"input\":\"a\"}");
}

/* What a model writes of a sound looks at frames, which are named by their times. */
static void what_is_heard_is_looked_at(void **state)
{
    (void)state;
    char *body = media_body("hearing", "audio/wav", SWEEP);
    json_t *got = post("/v1/attention", body);
    assert_string_equal(text_at(got, "kind"), "cross");
    const json_t *head = json_array_get(json_array_get(at(got, "weights"), 0), 0),
                 *times = at(got, "column_tokens"), *row;
    assert_string_equal(json_string_value(json_array_get(times, 0)), "0.00 s");
    assert_true(json_array_size(times) > 1 && json_array_size(head) > 1);
    assert_int_equal(json_array_size(head), json_array_size(at(got, "row_tokens")));
    size_t i, k;
    json_array_foreach((json_t *)head, i, row)
    {
        double sum = 0;
        for (k = 0; k < json_array_size(row); k++) sum += json_number_value(json_array_get(row, k));
        assert_true(fabs(sum - 1) < 1e-5);
        assert_int_equal(json_array_size(row), json_array_size(times));
    }
    json_decref(got);
    free(body);
}

static void paths_are_not_taken(void **state)
{
    (void)state;
    http_refused(400, "data: URI", "/v1/classify",
                 "{\"model\":\"seeing\",\"input\":\"" IMAGE "\"}");
    http_refused(400, "data: URI", "/v1/detect", "{\"model\":\"finding\",\"input\":\"" IMAGE "\"}");
    http_refused(400, "data: URI", "/v1/classify",
                 "{\"model\":\"seeing\",\"input\":\"data:image/png;base64,!!!!\"}");
    http_refused(400, "", "/v1/classify",
                 "{\"model\":\"seeing\",\"input\":\"data:image/png;base64,AAAA\"}");
    http_refused(400, "reads no text", "/v1/embeddings", "{\"model\":\"seeing\",\"input\":\"a\"}");
    http_refused(400, "reads no text", "/tokenize", "{\"model\":\"seeing\",\"text\":\"a\"}");
    http_refused(400, "reads no text", "/detokenize", "{\"model\":\"seeing\",\"tokens\":[1]}");
    http_refused(400, "reads no text", "/v1/attention", "{\"model\":\"seeing\",\"input\":\"a\"}");
    http_refused(400, "does not detect", "/v1/detect", "{\"model\":\"seeing\",\"input\":\"a\"}");
}

/* ---- sounds ---- */

static const answer *send_form(const char *type, const char *body, size_t n)
{
    char head[400];
    snprintf(head, sizeof head,
             "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
             "Content-Type: %s\r\nContent-Length: %zu\r\n\r\n",
             type, n);
    int fd = http_open();
    http_send(fd, head, strlen(head));
    http_send(fd, body, n);
    return http_read(fd);
}

static void sounds_are_transcribed(void **state)
{
    (void)state;
    char *want = strdup(succeeded(fovea("transcribe -m hearing '" SWEEP "'"))->out);
    size_t n, k;
    char *sound = slurp(SWEEP, &n), *form = malloc(n + 600);
    k = (size_t)sprintf(form, "--" EDGE
                              "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nhearing"
                              "\r\n--" EDGE "\r\nContent-Disposition: form-data; "
                              "name=\"response_format\"\r\n\r\nverbose_json\r\n--" EDGE
                              "\r\nContent-Disposition: form-data; name=\"file\"; "
                              "filename=\"../../a.wav\"\r\nContent-Type: audio/wav\r\n\r\n");
    memcpy(form + k, sound, n);
    k += n;
    k += (size_t)sprintf(form + k, "\r\n--" EDGE "--\r\n");
    const answer *a = send_form("multipart/form-data; boundary=" EDGE, form, k);
    assert_int_equal(a->status, 200);
    json_t *j = json_loads(a->body, 0, NULL);
    want[strcspn(want, "\n")] = 0;
    assert_string_equal(text_at(j, "text"), want);
    assert_true(number_at(j, "duration") > 0);
    assert_string_equal(text_at(j, "segments.0.text"), want);
    json_decref(j);
    /* cut anywhere it is refused, and the server goes on */
    for (size_t cut = 0; cut < k; cut += k / 37 + 1)
        assert_int_equal(send_form("multipart/form-data; boundary=" EDGE, form, cut)->status, 400);
    assert_int_equal(send_form("multipart/form-data", form, k)->status, 400);
    assert_int_equal(send_form("multipart/form-data; boundary=other", form, k)->status, 400);
    assert_int_equal(send_form("application/json", "{}", 2)->status, 400);
    free(want);
    free(sound);
    free(form);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_seen),     cmocka_unit_test(images_are_described),
        cmocka_unit_test(what_is_looked_at),   cmocka_unit_test(what_is_heard_is_looked_at),
        cmocka_unit_test(paths_are_not_taken), cmocka_unit_test(sounds_are_transcribed),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
