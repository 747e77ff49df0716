/* fields.c - the body of a request: JSON, and its fields with their ranges.
 *
 * A body is strict: duplicate keys are refused, since two readers of one text could take different
 * values, and so is a key that is not known, with the nearest one that is.  A misspelt "temprature"
 * that is silently ignored costs its user an afternoon.  A field that is null counts as missing, as
 * OpenAI's clients send those that were not set.
 *
 * Each getter leaves *out alone where the field is missing, so a caller sets the default first; and
 * each refuses the request itself, so a caller only returns. */
#include <string.h>

#include "core.h"

#define BAD "invalid_request_error"

/* Strict: a key that comes twice is refused, because which of the two holds differs between
 * parsers. NUL may stand in a string; texts carry their length. */
bool sv_read_json(sv_request *r)
{
    json_error_t why;
    r->json = json_loadb(r->body.s ? r->body.s : "", r->body.n,
                         JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!r->json)
        sv_refuse(r, 400, BAD, NULL, "the body is not JSON: line %d, column %d: %s", why.line,
                  why.column, why.text);
    else if (!json_is_object(r->json))
        sv_refuse(r, 400, BAD, NULL, "the body is not a JSON object");
    else
        return true;
    return false;
}

static bool listed(const char *const *list, const char *key)
{
    for (int i = 0; list && list[i]; i++)
        if (!strcmp(list[i], key)) return true;
    return false;
}

/* A misspelt field would otherwise be ignored, and its sender would never learn why nothing
 * changed. OpenAI's fields that we do not have are in the tables, and refused by name elsewhere. */
bool sv_check_keys(sv_request *r, const json_t *object, const char *const *keys,
                   const char *const *more)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (listed(keys, key) || listed(more, key)) continue;
        const char *near = fv_closest(key, keys);
        if (!near && more) near = fv_closest(key, more);
        sv_refuse(r, 400, BAD, key, "%.60s is not a field of this request%s%s%s", key,
                  near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        return false;
    }
    return true;
}

/* null is the same as missing, as in OpenAI's interface. */
static const json_t *field(const sv_request *r, const char *key)
{
    const json_t *j = json_object_get(r->json, key);
    return json_is_null(j) ? NULL : j;
}

/* These leave *out alone where the field is missing, so the caller's value is the default; false:
 * the request has been refused. 1.0 is no integer: JSON's types are kept. */
bool sv_get_int(sv_request *r, const char *key, int64_t least, int64_t greatest, int64_t *out)
{
    const json_t *j = field(r, key);
    if (!j) return true;
    int64_t x = json_integer_value(j);
    if (json_is_integer(j) && x >= least && x <= greatest) {
        *out = x;
        return true;
    }
    sv_refuse(r, 400, BAD, key, "%s: a whole number from %lld to %lld was expected", key,
              (long long)least, (long long)greatest);
    return false;
}

bool sv_get_real(sv_request *r, const char *key, double least, double greatest, double *out)
{
    const json_t *j = field(r, key);
    if (!j) return true;
    double x = json_number_value(j);
    if (json_is_number(j) && x >= least && x <= greatest) {
        *out = x;
        return true;
    }
    sv_refuse(r, 400, BAD, key, "%s: a number from %g to %g was expected", key, least, greatest);
    return false;
}

bool sv_get_bool(sv_request *r, const char *key, bool *out)
{
    const json_t *j = field(r, key);
    if (!j) return true;
    *out = json_is_true(j);
    if (json_is_boolean(j)) return true;
    sv_refuse(r, 400, BAD, key, "%s: true or false was expected", key);
    return false;
}

bool sv_get_text(sv_request *r, const char *key, const char **out, size_t *n)
{
    const json_t *j = field(r, key);
    if (!j) return true;
    if (!json_is_string(j)) {
        sv_refuse(r, 400, BAD, key, "%s: a string was expected", key);
        return false;
    }
    *out = json_string_value(j);
    if (n) *n = json_string_length(j);
    return true;
}
