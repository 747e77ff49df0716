/* openapi.c - /openapi.json: what every path takes, made from the table of routes.
 *
 * A field is a word of a route's list with its type: "prompt:text|ids!" is needed (!) and a string
 * or a list of ids.  tests/server/test_openapi.c sends each field and an unknown one to each path,
 * so the document cannot say anything else than the server does. */
#include <string.h>

#include "core.h"

/* Types by their words, as JSON schemas. */
static const struct {
    const char *word, *schema;
} types[] = {
    {"text", "{\"type\":\"string\"}"},
    {"texts",
     "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
     "\"minItems\":1}]}"},
    {"prompt", "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1}]}"},
    {"ids", "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}"},
    {"count", "{\"type\":\"integer\",\"minimum\":0}"},
    {"int", "{\"type\":\"integer\"}"},
    {"real", "{\"type\":\"number\"}"},
    {"bool", "{\"type\":\"boolean\"}"},
    {"object", "{\"type\":\"object\"}"},
    {"messages", "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":"
                 "[\"role\",\"content\"]}}"},
    {"rows", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":2}"},
    {"stop",
     "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
     "\"maxItems\":16}]}"},
    {"any", "{}"},
};

static void put_type(sv_text *t, const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].word) == n && !strncmp(types[i].word, word, n)) {
            sv_raw(t, types[i].schema);
            return;
        }
    sv_raw(t, "{}");
}

/* Goes over "name:type name:type! .."; those with an exclamation mark only, or all. */
static void put_fields(sv_text *t, const char *fields, bool needed)
{
    for (const char *p = fields; *p;) {
        size_t n = strcspn(p, " "), name = strcspn(p, ":");
        bool need = p[n - 1] == '!';
        if (needed && need) sv_string(t, p, name);
        if (!needed) {
            sv_string(t, p, name);
            sv_add(t, ":", 1);
            put_type(t, p + name + 1, n - name - 1 - need);
        }
        p += n + (p[n] == ' ');
    }
}

static void put_body(sv_text *t, const char *fields)
{
    sv_key(t, "requestBody");
    sv_put(t,
           "{\"required\":true,\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\","
           "\"additionalProperties\":false,\"properties\":{");
    put_fields(t, fields, false);
    sv_put(t, "},\"required\":[");
    put_fields(t, fields, true);
    sv_put(t, "]}}}}");
}

static void put_answer(sv_text *t, const char *status, const char *what, const char *type)
{
    sv_key(t, status);
    sv_open(t, '{');
    sv_string_at(t, "description", what);
    sv_key(t, "content");
    sv_open(t, '{');
    sv_raw_at(t, type, "{}");
    sv_close(t, '}');
    sv_close(t, '}');
}

static void put_operation(sv_text *t, const sv_route *r)
{
    static const char json[] = "application/json";
    sv_key(t, r->fields ? "post" : "get");
    sv_open(t, '{');
    sv_string_at(t, "summary", r->what);
    if (strchr(r->path, '*'))
        sv_raw_at(t, "parameters",
                  "[{\"name\":\"model\",\"in\":\"path\",\"required\":true,"
                  "\"schema\":{\"type\":\"string\"}}]");
    if (r->fields) put_body(t, r->fields);
    sv_key(t, "responses");
    sv_open(t, '{');
    put_answer(t, "200", "the answer", r->open ? "*/*" : json);
    if (!r->open) put_answer(t, "401", "an API key is needed", json);
    if (r->fields) put_answer(t, "400", "the request is wrong; the error names the field", json);
    if (r->fields) put_answer(t, "413", "the body is too large", json);
    if (r->fields) put_answer(t, "429", "too much waits", json);
    if (!r->open) put_answer(t, "404", "no such model", json);
    if (!r->open) put_answer(t, "503", "out of memory, or shutting down", json);
    sv_close(t, '}');
    sv_close(t, '}');
}

void sv_openapi(sv_request *r)
{
    sv_text t = {0};
    sv_open(&t, '{');
    sv_string_at(&t, "openapi", "3.1.0");
    sv_raw_at(&t, "info", "{\"title\":\"fovea serve\",\"version\":\"" FV_VERSION "\"}");
    sv_key(&t, "paths");
    sv_open(&t, '{');
    for (int i = 0; sv_route_at(i); i++) {
        const sv_route *route = sv_route_at(i);
        const char *star = strchr(route->path, '*');
        sv_text path = {0};
        sv_add(&path, route->path, star ? (size_t)(star - route->path) : strlen(route->path));
        if (star) sv_put(&path, "{model}");
        sv_key(&t, path.s ? path.s : "");
        sv_free(&path);
        sv_open(&t, '{');
        put_operation(&t, route);
        sv_close(&t, '}');
    }
    sv_put(&t, "}}\n");
    sv_answer(r, 200, NULL, &t);
}
