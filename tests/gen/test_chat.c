/* test_chat.c - conversations as transformers writes them; templates that are not known are
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "fovea/chat.h"

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    assert_non_null(s);
    return s;
}

static void conversations_are_written_as_published(void **state)
{
    (void)state;
    json_t *cases = json_load_file(FOVEA_TESTS "/golden/chat.json", 0, NULL);
    assert_true(json_array_size(cases) >= 15);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i), *list = json_object_get(one, "messages");
        fv_message m[8];
        int n = (int)json_array_size(list);
        for (int k = 0; k < n; k++) {
            const json_t *o = json_array_get(list, (size_t)k);
            m[k] = (fv_message){text_of(o, "role"), text_of(o, "content")};
        }
        fv_err e;
        fv_chat *c;
        char *text;
        if (fv_chat_read(&c, NULL, text_of(one, "template"), text_of(one, "begin"),
                         text_of(one, "end"), &e))
            fail_msg("%s", e.text);
        assert_string_equal(fv_chat_name(c), text_of(one, "name"));
        if (fv_chat_render(c, &text, m, n, &e)) fail_msg("%s", e.text);
        assert_string_equal(text, text_of(one, "text"));
        fv_chat_free_text(c, text);
        fv_chat_close(c);
    }
    json_decref(cases);
}

static void what_is_not_known_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{{ messages[0]['content'] }}", "none of those known"},
        {"{% if tools %}x{% endif %}", "tools"},
        {"{{ strftime_now('%d') }}", "strftime"},
        {"", "empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_chat *c;
        fv_err e;
        assert_int_not_equal(fv_chat_read(&c, NULL, cases[i].text, "", "", &e), FV_OK);
        assert_null(c);
        if (!strstr(e.text, cases[i].says)) print_error("%s\n", e.text);
        assert_non_null(strstr(e.text, cases[i].says));
    }
}

static void roles_take_turns(void **state)
{
    (void)state;
    json_t *cases = json_load_file(FOVEA_TESTS "/golden/chat.json", 0, NULL);
    const json_t *one = json_array_get(cases, 0);
    fv_chat *c;
    fv_err e;
    char *text;
    assert_int_equal(fv_chat_read(&c, NULL, text_of(one, "template"), "", "", &e), FV_OK);
    assert_int_equal(fv_chat_render(c, &text, (fv_message[]){{"user", "a"}, {"user", "b"}}, 2, &e),
                     FV_EARG);
    assert_null(text);
    assert_non_null(strstr(e.text, "assistant"));
    assert_int_equal(fv_chat_render(c, &text, (fv_message[]){{"tool", "a"}}, 1, &e), FV_EARG);
    fv_chat_close(c);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_are_written_as_published),
        cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(roles_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
