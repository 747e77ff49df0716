/* openapi.c - /openapi.json: what every path takes, made from the table of routes.
 *
 * A field is a word of a route's list with its type: "top:int(1,64)" is a whole number of that
 * range, "join:one(first,simple)" one of these words, and "prompt:prompt!" a type of the table
 * below, without which (!) the request is refused.  Fields that are not needed may be null.
 *
 * Written by hand the document would be a second list of fields, and the two would drift apart.
 * tests/server/test_openapi.c sends each field and an unknown one to each path, and `make test-api`
 * sends what schemathesis makes of the document, so it cannot say anything else than the server
 * does. */
#include <string.h>

#include "core.h"

#define TEXTS "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1}"
#define IDS                                                                                        \
    "{\"type\":\"array\",\"minItems\":1,\"items\":"                                                \
    "{\"type\":\"integer\",\"minimum\":0,\"maximum\":2147483647}}"

/* Types by their words, as JSON schemas. */
static const struct {
    const char *word, *schema;
} types[] = {
    {"text", "{\"type\":\"string\"}"},
    {"texts", "{\"anyOf\":[{\"type\":\"string\"}," TEXTS "]}"},
    {"prompt", "{\"anyOf\":[{\"type\":\"string\"}," TEXTS "," IDS
               ",{\"type\":\"array\",\"minItems\":1,\"items\":" IDS "}]}"},
    {"ids", "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,"
            "\"maximum\":2147483647}}"},
    {"bool", "{\"type\":\"boolean\"}"},
    {"object", "{\"type\":\"object\"}"},
    {"messages",
     "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":"
     "[\"role\",\"content\"],\"properties\":{\"role\":{\"type\":\"string\"},\"content\":"
     "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":"
     "\"object\",\"required\":[\"type\"]}}]}}}}"},
    {"rows", "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":2}"},
    {"stop", "{\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",\"items\":"
             "{\"type\":\"string\",\"minLength\":1},\"maxItems\":16}]}"},
    {"bias", "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,"
             "\"maximum\":100}}"},
    {"weights", "{\"anyOf\":[{\"type\":\"object\"},{\"const\":false}]}"}, /* attention wanted */
    {"pairs", "{\"type\":\"array\",\"maxItems\":1024,\"items\":{\"type\":\"array\",\"minItems\":2,"
              "\"maxItems\":2,\"items\":{\"type\":\"integer\",\"minimum\":0}}}"},
    {"file", "{\"type\":\"string\",\"format\":\"binary\"}"}, /* of a form */
    {"any", "{}"},
};

/* "(a,b)" as {"type":...,"minimum":a,"maximum":b}; the digits stand as they are, since not every
 * 64-bit number is a double. */
static void put_range(sv_text *t, const char *type, const char *range)
{
    size_t least = strcspn(range + 1, ",");
    const char *most = range + least + 2;
    sv_put(t, "{\"type\":\"");
    sv_put(t, type);
    sv_put(t, "\",\"minimum\":");
    sv_add(t, range + 1, least);
    sv_put(t, ",\"maximum\":");
    sv_add(t, most, strcspn(most, ")"));
    sv_put(t, "}");
}

/* "(a,b,c)" as {"type":"string","enum":["a","b","c"]}. */
static void put_words(sv_text *t, const char *list)
{
    sv_put(t, "{\"type\":\"string\",\"enum\":[");
    for (const char *p = list; *p != ')'; p += 1 + strcspn(p + 1, ",)"))
        sv_string(t, p + 1, strcspn(p + 1, ",)"));
    sv_put(t, "]}");
}

/* The names that are served now, and those of checkpoints where trainings are shown. */
static void put_models(sv_text *t, sv_server *s)
{
    if (s->opt.runs)
        sv_put(t, "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^runs/[^/]+/step-[0-9]+$\"},");
    sv_put(t, "{\"type\":\"string\",\"enum\":[");
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->opt.n_models; i++)
        sv_string(t, s->engine[i]->name, strlen(s->engine[i]->name));
    for (int i = 0; i < s->opt.n_adapters; i++)
        sv_string(t, s->opt.adapters[i].name, strlen(s->opt.adapters[i].name));
    pthread_mutex_unlock(&s->lock);
    sv_put(t, s->opt.runs ? "]}]}" : "]}");
}

/* The little language of sv_route.fields: int(1,8), real(0,2), one(...), model, or a name of the
 * table. */
static void put_type(sv_text *t, sv_server *s, const char *word, size_t n)
{
    if (!strncmp(word, "int(", 4)) {
        put_range(t, "integer", word + 3);
    } else if (!strncmp(word, "real(", 5)) {
        put_range(t, "number", word + 4);
    } else if (!strncmp(word, "one(", 4)) {
        put_words(t, word + 3);
    } else if (!strncmp(word, "model", n)) {
        put_models(t, s);
    } else {
        size_t i = 0, last = sizeof types / sizeof *types - 1;
        while (i < last && (strlen(types[i].word) != n || strncmp(types[i].word, word, n))) i++;
        sv_put(t, types[i].schema);
    }
}

/* Goes over "name:type name:type! .."; those with an exclamation mark only, or all. */
static void put_fields(sv_text *t, sv_server *s, const char *fields, bool needed)
{
    for (const char *p = fields; *p;) {
        size_t n = strcspn(p, " "), name = strcspn(p, ":");
        bool need = p[n - 1] == '!';
        if (needed && need) sv_string(t, p, name);
        if (!needed) {
            sv_string(t, p, name);
            sv_put(t, need ? ":" : ":{\"anyOf\":[");
            put_type(t, s, p + name + 1, n - name - 1 - need);
            if (!need) sv_put(t, ",{\"type\":\"null\"}]}");
        }
        p += n + (p[n] == ' ');
    }
}

/* additionalProperties is false because unknown fields are refused: the schema promises what
 * sv_check_keys does. */
static void put_body(sv_text *t, sv_server *s, const char *fields)
{
    sv_key(t, "requestBody");
    sv_put(t, "{\"required\":true,\"content\":{");
    sv_key(t, strstr(fields, ":file") ? "multipart/form-data" : "application/json");
    sv_put(t, "{\"schema\":{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    put_fields(t, s, fields, false);
    sv_put(t, "},\"required\":[");
    put_fields(t, s, fields, true);
    sv_put(t, "]}}}}");
}

/* other: further types of content, with blanks between, or NULL. */
static void put_answer(sv_text *t, const char *status, const char *what, const char *type,
                       const char *other)
{
    sv_key(t, status);
    sv_open(t, '{');
    sv_string_at(t, "description", what);
    sv_key(t, "content");
    sv_open(t, '{');
    sv_raw_at(t, type, "{}");
    for (const char *p = other; p && *p; p += strcspn(p, " ") + (p[strcspn(p, " ")] == ' ')) {
        sv_string(t, p, strcspn(p, " "));
        sv_put(t, ":{}");
    }
    sv_close(t, '}');
    sv_close(t, '}');
}

/* Statuses follow from the route's kind: what takes a body can be wrong or too large, what is not
 * open needs a key. */
static void put_operation(sv_text *t, sv_server *s, const sv_route *r)
{
    static const char json[] = "application/json";
    sv_key(t, r->fields ? "post" : "get");
    sv_open(t, '{');
    sv_string_at(t, "summary", r->what);
    if (strchr(r->path, '*'))
        sv_raw_at(t, "parameters",
                  "[{\"name\":\"name\",\"in\":\"path\",\"required\":true,"
                  "\"schema\":{\"type\":\"string\"}}]");
    if (r->fields) put_body(t, s, r->fields);
    sv_key(t, "responses");
    sv_open(t, '{');
    put_answer(t, "200", "the answer", r->open ? "*/*" : json, r->other);
    if (!r->open) put_answer(t, "401", "an API key is needed", json, NULL);
    if (r->fields)
        put_answer(t, "400", "the request is wrong; the error names the field", json, NULL);
    if (r->fields) put_answer(t, "413", "the body is too large", json, NULL);
    if (r->fields) put_answer(t, "429", "too much waits", json, NULL);
    if (!r->open) put_answer(t, "404", "no such model", json, NULL);
    if (!r->open) put_answer(t, "503", "out of memory, or shutting down", json, NULL);
    sv_close(t, '}');
    sv_close(t, '}');
}

/* Made from the table that dispatches, so that a route without a description cannot exist. */
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
        if (star) sv_put(&path, "{name}");
        sv_key(&t, path.s ? path.s : "");
        sv_free(&path);
        sv_open(&t, '{');
        put_operation(&t, r->server, route);
        sv_close(&t, '}');
    }
    sv_put(&t, "}}\n");
    sv_answer(r, 200, NULL, &t);
}
