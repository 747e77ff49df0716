/* test_serve_adapters.c - adapters of one model in one batch: each answers, bit for bit, as the
 * model that `fovea merge` makes of it, whoever is beside it. */
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

#define STORIES FOVEA_TESTS "/golden/stories260K"
#define MODULE "base_model.model.model.layers.0.self_attn.v_proj."

/* A LoRA of rank 2 on the values of the first layer, of (32,64): numbers that depend on `by`. */
static void write_adapter(const char *dir, float by)
{
    enum { A = 2 * 64, B = 32 * 2 };
    float x[A + B];
    char header[512], all[2048], path[64];
    succeeded(sh("mkdir -p '%s'", dir));
    for (int i = 0; i < A + B; i++) x[i] = by * (float)((i * 37 % 19) - 9);
    int n = snprintf(header, sizeof header,
                     "{\"" MODULE "lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[2,64],"
                     "\"data_offsets\":[0,%zu]},\"" MODULE "lora_B.weight\":{\"dtype\":\"F32\","
                     "\"shape\":[32,2],\"data_offsets\":[%zu,%zu]}}",
                     A * sizeof *x, A * sizeof *x, sizeof x);
    uint64_t length = (uint64_t)n;
    memcpy(all, &length, sizeof length);
    memcpy(all + sizeof length, header, (size_t)n);
    memcpy(all + sizeof length + n, x, sizeof x);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    scratch_put(path, all, sizeof length + (size_t)n + sizeof x);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    scratch_text(path,
                 "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2,\"target_modules\":[\"v_proj\"],"
                 "\"layers_to_transform\":[0],\"task_type\":\"CAUSAL_LM\"}");
}

static int start(void **state)
{
    scratch_open(state);
    write_adapter("one", 0.02f);
    write_adapter("two", -0.03f);
    succeeded(fovea("merge -m '%s' --adapter one -o merged-one", STORIES));
    succeeded(fovea("merge -m '%s' --adapter two -o merged-two", STORIES));
    serve_start("-m plain='%s' -m alone-one=merged-one -m alone-two=merged-two --adapter one=one "
                "--adapter two@plain=two --batch 6 --quiet",
                STORIES);
    return 0;
}

/* The request is sent; what comes back is read by finish. */
static int begin(const char *model)
{
    char body[300], head[512];
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"prompt\":\"Once upon a time\",\"max_tokens\":40,"
             "\"temperature\":0,\"logprobs\":2}",
             model);
    int fd = http_open();
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: "
             "%zu\r\n\r\n%s",
             strlen(body), body);
    http_send(fd, head, strlen(head));
    return fd;
}

/* Text and probabilities, as they were written. */
static char *finish(int fd, const char *model)
{
    const answer *a = http_read(fd);
    assert_int_equal(a->status, 200);
    json_t *j = json_loads(a->body, 0, NULL);
    assert_non_null(j);
    assert_string_equal(text_at(j, "model"), model);
    char *text = json_dumps(at(j, "choices.0"), JSON_SORT_KEYS);
    json_decref(j);
    return text;
}

static void adapters_share_a_batch(void **state)
{
    (void)state;
    static const char *const names[] = {"one", "plain", "two", "one", "two", "plain"};
    static const char *const alone[] = {"alone-one", "plain", "alone-two"};
    char *want[3], *got;
    int fd[6];
    for (int i = 0; i < 3; i++) want[i] = finish(begin(alone[i]), alone[i]);
    assert_string_not_equal(want[0], want[1]);
    assert_string_not_equal(want[1], want[2]);
    for (int i = 0; i < 6; i++) fd[i] = begin(names[i]);
    for (int i = 0; i < 6; i++) {
        int k = names[i][0] == 'o' ? 0 : names[i][0] == 'p' ? 1 : 2;
        got = finish(fd[i], names[i]);
        assert_string_equal(got, want[k]);
        free(got);
    }
    for (int i = 0; i < 3; i++) free(want[i]);
}

static void adapters_are_listed(void **state)
{
    (void)state;
    json_t *j = post("/v1/models", NULL);
    assert_string_equal(text_at(j, "data.1.id"), "one");
    assert_string_equal(text_at(j, "data.1.parent"), "plain");
    json_decref(j);
    j = post("/v1/models/two", NULL);
    assert_string_equal(text_at(j, "id"), "two");
    json_decref(j);
    http_refused(400, "only writes text", "/v1/embeddings", "{\"model\":\"one\",\"input\":\"a\"}");
    http_refused(404, "no model three", "/v1/completions",
                 "{\"model\":\"three\",\"prompt\":\"a\"}");
}

/* The weights that an adapter has changed are seen too. */
static void attention_is_the_adapters(void **state)
{
    (void)state;
    static const char *const names[] = {"one", "alone-one", "plain"};
    char *seen[3];
    for (int i = 0; i < 3; i++) {
        char body[200];
        snprintf(body, sizeof body,
                 "{\"model\":\"%s\",\"input\":\"Once upon a time\",\"attention\":{\"layers\":3}}",
                 names[i]);
        json_t *j = post("/v1/attention", body);
        seen[i] = json_dumps(at(j, "weights"), 0);
        json_decref(j);
    }
    assert_string_equal(seen[0], seen[1]);
    assert_string_not_equal(seen[0], seen[2]);
    for (int i = 0; i < 3; i++) free(seen[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_share_a_batch),
        cmocka_unit_test(adapters_are_listed),
        cmocka_unit_test(attention_is_the_adapters),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
