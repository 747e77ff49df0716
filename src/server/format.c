/* format.c - response_format: text, any JSON object, or JSON of a schema.
 *
 * The schema is read once for the request; each choice walks it on its own (fv_constraint), beside
 * the sampling, and bans the tokens that would leave it. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

#define BAD "invalid_request_error"

/* NULL is any JSON object. The schema is compiled once for all choices; each has a constraint of
 * its own, because it is a position in the text. */
static bool read_schema(sv_gen *q, const json_t *schema)
{
    fv_err e;
    char *text = schema ? json_dumps(schema, 0) : NULL;
    bool ok = (text || !schema) && !fv_schema_read(&q->schema, NULL, text, &e);
    if (schema && !text) fv_fail(&e, FV_ENOMEM, "out of memory");
    free(text);
    if (!ok) sv_refuse(q->r, 400, BAD, "response_format", "response_format: %s", e.text);
    return ok;
}

/* OpenAI's three types; "strict" and "name" beside the schema are accepted and change nothing,
 * since what is written always fits. */
bool sv_read_format(sv_gen *q)
{
    const json_t *j = json_object_get(q->r->json, "response_format");
    const char *type = json_string_value(json_object_get(j, "type"));
    if (!j || json_is_null(j) || (type && !strcmp(type, "text"))) return true;
    if (type && !strcmp(type, "json_object")) return read_schema(q, NULL);
    const json_t *schema = json_object_get(json_object_get(j, "json_schema"), "schema");
    if (type && !strcmp(type, "json_schema") && json_is_object(schema))
        return read_schema(q, schema);
    sv_refuse(q->r, 400, BAD, "response_format",
              "response_format: its type is text, json_object or json_schema, which comes with "
              "json_schema.schema");
    return false;
}

/* Ends are allowed where the schema is satisfied, and only there. */
fv_status sv_constrain(sv_gen *q, sv_choice *c, fv_err *e)
{
    int32_t ends[SV_MOST_ENDS];
    int n = 0;
    const fv_gen_opt *o = &q->opt;
    const fv_token_bytes *bytes = sv_engine_bytes(q->g, e);
    if (!bytes) return e->code;
    if (o->eos >= 0) ends[n++] = o->eos;
    for (int i = 0; i < o->n_ends && n < SV_MOST_ENDS; i++) ends[n++] = o->ends[i];
    return fv_constraint_new(&c->constraint, q->schema, bytes, ends, n, e);
}
