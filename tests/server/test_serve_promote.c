/* test_serve_promote.c - a server follows the directory of versions that `fovea promote` keeps: the
 * version that CURRENT names serves soon after, one that does not open leaves the old one, and
 * nobody is told to ask again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "helper/http.h"
#include "helper/program.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"

/* As promote does it: the file is replaced by a rename. */
static void use(const char *version)
{
    succeeded(sh("printf '%s\\n\\n' > prom/next && mv prom/next prom/CURRENT", version));
}

/* v1 is the model, v2 is spoiled, v3 is the model with a chat template. */
static int start(void **state)
{
    scratch_open(state);
    succeeded(sh("mkdir prom && cp -r '%s' prom/v1 && cp -r prom/v1 prom/v2 && cp -r prom/v1 "
                 "prom/v3 && echo '{' > prom/v2/config.json && cp '" FOVEA_TESTS
                 "/golden/chatml.jinja' prom/v3/chat_template.jinja",
                 STORIES));
    use("v1");
    serve_start("-m story=prom --quiet");
    return 0;
}

static void wait_for(const char *part)
{
    for (int i = 0; i < 400; i++) {
        char *log = serve_log();
        bool found = strstr(log, part);
        free(log);
        if (found) return;
        json_t *j = post("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2}");
        json_decref(j);
        usleep(50000);
    }
    fail_msg("the log does not say: %s", part);
}

static void the_current_version_serves(void **state)
{
    (void)state;
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                               "\"max_tokens\":2}";
    http_refused(400, "template", "/v1/chat/completions", chat);
    use("v2");
    wait_for("not read again, the old one goes on");
    http_refused(400, "template", "/v1/chat/completions", chat);
    use("v3");
    wait_for("story: read again");
    json_decref(post("/v1/chat/completions", chat)); /* which only v3 can */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_current_version_serves)};
    return cmocka_run_group_tests(tests, start, serve_close);
}
