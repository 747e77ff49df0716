/* test_chat_template.c - chat templates of published models give transformers' text; the language
 * is Jinja's; what is not implemented is refused by its name; hostile templates end. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include <cmocka.h>

#include "fovea/author/gen.h"
#include "fovea/chat.h"

/* A folder of one's own may hold more: tools/golden/chat_templates.py makes its files. */
static const char *folder(void)
{
    const char *other = getenv("FOVEA_CHAT_TEMPLATES");
    return other ? other : FOVEA_TESTS "/golden/chat";
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* Where two texts part, with a few characters around. */
static void show_difference(const char *name, size_t i, const char *want, const char *have)
{
    size_t at = 0;
    while (want[at] && want[at] == have[at]) at++;
    size_t from = at > 40 ? at - 40 : 0;
    print_error("%s, case %zu, byte %zu:\n  want ..%.100s\n  have ..%.100s\n", name, i, at,
                want + from, have + from);
}

/* Returns how many cases differ. */
static int compare_case(const fv_chat_template *t, const json_t *file, const json_t *one, size_t i)
{
    fv_err e = {0};
    char *text, *messages = json_dumps(json_object_get(one, "messages"), 0),
                *tools = json_dumps(json_object_get(one, "tools"), 0);
    const char *want = text_of(one, "text"), *name = text_of(file, "name");
    fv_chat_render how = {.tools = tools,
                          .closed = json_is_true(json_object_get(one, "closed")),
                          .now = json_integer_value(json_object_get(file, "now"))};
    fv_status st = fv_chat_template_render_json(t, &text, messages, &how, &e);
    int wrong = 0;
    if (want && st) {
        print_error("%s, case %zu: %s\n", name, i, e.text);
        wrong = 1;
    } else if (!want && !st) {
        print_error("%s, case %zu: rendered, but transformers says %s\n", name, i,
                    text_of(one, "error"));
        wrong = 1;
    } else if (want && strcmp(want, text) != 0) {
        show_difference(name, i, want, text);
        wrong = 1;
    }
    fv_chat_template_free_text(t, text);
    free(messages);
    free(tools);
    return wrong;
}

static int compare_file(const char *path)
{
    fv_err e = {0};
    fv_chat_template *t;
    int wrong = 0;
    size_t i;
    json_t *file = json_load_file(path, 0, NULL), *one;
    assert_non_null(file);
    const json_t *tokens = json_object_get(file, "tokens");
    if (fv_chat_template_read(&t, NULL, text_of(file, "template"), text_of(tokens, "bos_token"),
                              text_of(tokens, "eos_token"), &e)) {
        print_error("%s: %s\n", text_of(file, "name"), e.text);
        json_decref(file);
        return 1;
    }
    json_array_foreach(json_object_get(file, "cases"), i, one)
        wrong += compare_case(t, file, one, i);
    fv_chat_template_close(t);
    json_decref(file);
    return wrong;
}

static void published_templates_give_the_same_text(void **state)
{
    (void)state;
    char path[4096];
    int files = 0, wrong = 0;
    DIR *d = opendir(folder());
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n < 5 || strcmp(f->d_name + n - 5, ".json") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder(), f->d_name);
        wrong += compare_file(path);
        files++;
    }
    closedir(d);
    assert_true(files >= 6);
    assert_int_equal(wrong, 0);
}

/* ---- the language ---- */

static fv_status render(const char *source, char **text, fv_err *e)
{
    fv_chat_template *t;
    static const fv_message m[] = {{"system", "S"}, {"user", "U"}, {"assistant", "A"}};
    *text = NULL;
    fv_status st = fv_chat_template_read(&t, NULL, source, "<s>", "</s>", e);
    if (st) return st;
    char *own;
    st = fv_chat_template_render(t, &own, m, 3, &(fv_chat_render){.now = 1750000000}, e);
    if (!st) *text = strdup(own);
    fv_chat_template_free_text(t, own);
    fv_chat_template_close(t);
    return st;
}

static const struct {
    const char *source, *text;
} language[] = {
    {"{{ 1 + 2 * 3 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "19 3 -4 2 3.5"},
    {"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ not 1 == 2 }}", "True False True"},
    {"{{ [1, 'a', \"it's\", 2.0, none] }} {{ (1,) }} {{ {'k': [true]} }}",
     "[1, 'a', \"it's\", 2.0, None] (1,) {'k': [True]}"},
    {"{{ 'abc'[1:] }}{{ 'abc'[::-1] }}{{ 'aöc'[1] }}{{ [1,2,3][-2:] }}{{ 'abc'[-1] }}",
     "bccbaö[2, 3]c"},
    {"{{ messages[0].role }}{{ messages[0]['content'] }}{{ messages[9] is defined }}",
     "systemSFalse"},
    {"{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ m.content "
     "}}{{ '' if loop.last else ',' }}{% else %}none{% endfor %}",
     "1/2U,2/2A"},
    {"{% for m in [] %}x{% else %}none{% endfor %}", "none"},
    {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b2"},
    {"{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}"
     "{% endif %}{{ i }}{% endfor %}",
     "02"},
    {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "21"},
    {"{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x "
     "}}",
     "4"},
    {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
    {"{% set x %}  t {{ 1 }} {% endset %}[{{ x | trim }}]", "[t 1]"},
    {"{% set x | upper | trim %} a {% endset %}[{{ x }}]", "[A]"},
    {"{% macro m(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}", "1z32"},
    {"{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
    {"{{ {'b': 1, 'a': {'x': 'é<>'}} | tojson }}", "{\"b\": 1, \"a\": {\"x\": \"é<>\"}}"},
    {"{{ {'a': [1, {}], 'e': []} | tojson(indent=2) }}",
     "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"e\": []\n}"},
    {"{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", "{\"a\":2,\"b\":1}"},
    {"{{ messages | map(attribute='role') | join(',') }}", "system,user,assistant"},
    {"{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
     "{{ (messages | rejectattr('role', 'in', ['user', 'system']) | first).content }}",
     "1A"},
    {"{{ {'b': 2, 'a': 1} | dictsort }} {{ [3, 1, 2] | sort | last }} {{ ['b', 'A'] | sort }}",
     "[('a', 1), ('b', 2)] 3 ['A', 'b']"},
    {"{{ x | default('d') }}{{ '' | default('e', true) }}{{ none is none }}{{ x is undefined }}",
     "deTrueTrue"},
    {"{{ ' a b '.strip().split(' ') }}{{ 'a,b,c'.split(',')[-1] }}{{ 'x'.startswith(('y', 'x')) }}",
     "['a', 'b']cTrue"},
    {"{{ 'aXbX' | replace('X', '-') }}{{ 'abc' | upper }}{{ 'abc def' | title }}{{ "
     "'ab'.rstrip('b') }}",
     "a-b-ABCAbc Defa"},
    {"{{ 'user' in 'a user' }}{{ 'k' in {'k': 1} }}{{ 4 not in [1, 2] }}", "TrueTrueTrue"},
    {"{{ '3' | int + 1 }}{{ 'x' | int }}{{ 2.5 | int }}{{ '1.5' | float }}{{ 1e3 is defined }}",
     NULL},
    {"{{ strftime_now('%d %b %Y') }}", "15 Jun 2025"},
    {"{{ bos_token }}{{ unk_token }}{{ add_generation_prompt }}{{ tools }}", "<s>TrueNone"},
    {"  {% if true %}\n  x\n  {%- endif %}\n y\n", "  x y"},
    {"a\n  {#- c -#}\n b{#+ d +#}\n{% raw %}{{ x }}{% endraw %}\n", "ab\n{{ x }}"},
    {"{% generation %}g{% endgeneration %}{{ 'a' 'b' }}{{ \"\\n\\u00e9\\x41\" }}", "gab\né\x41"},
    {"{{ 'a' if false }}{{ ('b' if false else 'c') }}{{ 5 is divisibleby 5 }}", "cTrue"},
};

static void the_language_is_jinja(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof language / sizeof *language; i++) {
        fv_err e = {0};
        char *text;
        fv_status st = render(language[i].source, &text, &e);
        if (!language[i].text) {
            assert_int_not_equal(st, FV_OK);
            continue;
        }
        if (st) fail_msg("%s: %s", language[i].source, e.text);
        assert_string_equal(text, language[i].text);
        free(text);
    }
}

static void what_is_not_implemented_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"{% include 'x' %}", "\"include\""},
        {"{{ x | urlize }}", "\"urlize\""},
        {"{{ x is odder }}", "\"odder\""},
        {"{{ lipsum() }}", "\"lipsum\""},
        {"{% for x in y recursive %}{% endfor %}", "\"recursive\""},
        {"{{ f(*x) }}", "by * or **"},
        {"{{ raise_exception('Roles!') }}", "Roles!"},
        {"{% if x %}", "endif"},
        {"{{ 'a }}", "does not end"},
        {"a\n{{ x.y.z }}", "line 2"},
        {"{{ 1 + 'a' }}", "int + string"},
        {"{% break %}", "outside of a loop"},
        {"{% set n = namespace(x, 0) %}", "name=value"},
        {" \n", "empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_err e = {0};
        char *text;
        assert_int_not_equal(render(cases[i].source, &text, &e), FV_OK);
        if (!strstr(e.text, cases[i].says)) print_error("%s: %s\n", cases[i].source, e.text);
        assert_non_null(strstr(e.text, cases[i].says));
    }
}

/* Time, recursion, memory and output end with a sentence, never with the process. */
static void hostile_templates_end(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}",
        "{% for a in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 1000 }}{% endfor %}",
        "{{ 'a' * 9999999999 }}",
        "{{ range(1000000000) }}",
        "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor "
        "%}",
        "{{ 2 ** 4000 }}{{ 9000000000000000 * 9000000000000000 }}",
    };
    char *text;
    fv_err e;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        assert_int_not_equal(render(sources[i], &text, &e), FV_OK);
        assert_null(text);
    }
    static const char *const nests[] = {"{{ ((((",      "{{ [[[[",
                                        "{{ not not -", "{{ a if b else a if b else",
                                        "{% if x %}",   "{{ a.b",
                                        "{{ a + a"};
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        static char deep[200000];
        deep[0] = 0;
        size_t n = 0, len = strlen(nests[i]), tail = len > 3 ? len - 3 : 0;
        memcpy(deep, nests[i], len);
        /* its last characters again and again */
        for (n = len; n + len < sizeof deep - 8; n += tail) memcpy(deep + n, nests[i] + 3, tail);
        memcpy(deep + n, " }}", 4);
        assert_int_not_equal(render(deep, &text, &e), FV_OK);
    }
}

/* 10^10 units: without memory for the first ones nothing goes through the others. */
static void a_repetition_without_memory_ends(void **state)
{
    (void)state;
    fv_mem_counter mem;
    fv_chat_template *t;
    fv_chat_render how = {0};
    fv_err e = {0};
    char *text;
    fv_mem_counter_init(&mem);
    mem.limit = 64 << 10;
    fv_env env = {.mem = &mem.mem};
    assert_int_equal(fv_chat_template_read(&t, &env, "{{ 'ab' * 16000000 }}", NULL, NULL, &e), 0);
    assert_int_equal(fv_chat_template_render_json(t, &text, "[]", &how, &e), FV_ENOMEM);
    fv_chat_template_close(t);
    assert_int_equal(fv_chat_template_read(&t, &env, "{{ 'ab' * 9999999999 }}", NULL, NULL, &e), 0);
    assert_int_equal(fv_chat_template_render_json(t, &text, "[]", &how, &e), FV_EARG);
    assert_non_null(strstr(e.text, "bytes of text"));
    fv_chat_template_close(t);
    assert_int_equal(mem.live, 0);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    tzset();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_templates_give_the_same_text),
        cmocka_unit_test(the_language_is_jinja),
        cmocka_unit_test(what_is_not_implemented_is_named),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(a_repetition_without_memory_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
