/* fuzz_template.c - libFuzzer target: any bytes as a chat template; make fuzz-template.
 *
 * It is run on a conversation with tools.  Memory has a limit far below the library's own, so that
 * a template that writes without end is stopped within a millisecond, by the same error path. */
#include <stdlib.h>
#include <string.h>

#include "fovea/author/gen.h"
#include "fovea/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char messages[] =
    "[{\"role\": \"system\", \"content\": \"be brief\"}, {\"role\": \"user\", \"content\": \" a "
    "<b>\"}, "
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"type\": \"function\", "
    "\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.5}}}]}, "
    "{\"role\": \"tool\", \"content\": \"3\"}]";
static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                            "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fv_mem_counter mem;
    fv_chat_template *t = NULL;
    fv_err e = {0};
    char *text = NULL, *copy = malloc(size + 1);
    if (size) memcpy(copy, data, size);
    copy[size] = 0;
    fv_mem_counter_init(&mem);
    mem.limit = 128 << 10;
    fv_env env = {.mem = &mem.mem};
    fv_status st = fv_chat_template_read(&t, &env, copy, "<s>", "</s>", &e);
    if (st && !e.text[0]) abort();
    fv_chat_render how = {.tools = tools};
    if (!st && !fv_chat_template_render_json(t, &text, messages, &how, &e))
        fv_chat_template_free_text(t, text);
    fv_chat_template_close(t);
    free(copy);
    if (mem.live) abort();
    return 0;
}
