/* names.c - which models and adapters are served, and by which names: "NAME=DIR", "NAME@MODEL=DIR".
 *
 * A name is what requests ask for and answers repeat, so it must be unique among models and
 * adapters and may hold nothing that would have to be escaped in JSON, a log or a metric's
 * label. */
#include <string.h>

#include "server.h"

/* "NAME=DIR", or a directory whose last part is the name. */
fv_status sv_read_models(const char *const *list, int n_list, sv_model *out, sv_names *names,
                         fv_err *e)
{
    if (!n_list) return fv_fail(e, FV_EUSAGE, "a model is needed: -m DIR");
    for (int i = 0; i < n_list; i++) {
        const char *given = list[i], *equals = strchr(given, '='), *end = given + strlen(given);
        const char *from = given, *to = equals;
        if (!equals) {
            while (end > given + 1 && end[-1] == '/') end--;
            for (to = from = end; from > given && from[-1] != '/';) from--;
        }
        size_t n = (size_t)(to - from);
        if (!n || n >= sizeof names[i].s)
            return fv_fail(e, FV_EUSAGE, "%s: a name of 1 to %zu characters was expected", given,
                           sizeof names[i].s - 1);
        memcpy(names[i].s, from, n);
        names[i].s[n] = 0;
        if (strpbrk(names[i].s, "\"\\\n"))
            return fv_fail(e, FV_EUSAGE, "%s: a name has no quotes, backslashes and line ends",
                           names[i].s);
        out[i] = (sv_model){.name = names[i].s, .dir = equals ? equals + 1 : given};
        for (int k = 0; k < i; k++)
            if (!strcmp(names[k].s, names[i].s))
                return fv_fail(e, FV_EUSAGE, "two models are called %s: say NAME=DIR", names[i].s);
    }
    return FV_OK;
}

/* "NAME=DIR" or "NAME@MODEL=DIR". */
fv_status sv_read_adapters(const char *const *list, int n_list, const sv_model *models,
                           int n_models, sv_adapter *out, sv_names *names, fv_err *e)
{
    for (int i = 0; i < n_list; i++) {
        const char *given = list[i], *equals = strchr(given, '=');
        size_t n = equals ? (size_t)(equals - given) : 0;
        if (!n || n >= sizeof names[i].s || !equals[1])
            return fv_fail(e, FV_EUSAGE, "--adapter %s: NAME=DIR or NAME@MODEL=DIR was expected",
                           given);
        memcpy(names[i].s, given, n);
        names[i].s[n] = 0;
        char *at = strchr(names[i].s, '@');
        if (at) *at = 0;
        if (!names[i].s[0] || strpbrk(names[i].s, "\"\\\n"))
            return fv_fail(e, FV_EUSAGE,
                           "--adapter %s: a name without quotes and backslashes is needed", given);
        out[i] = (sv_adapter){.name = names[i].s, .dir = equals + 1};
        out[i].model = at ? at + 1 : models[0].name;
        for (int k = 0; k < n_models; k++)
            if (!strcmp(models[k].name, names[i].s))
                return fv_fail(e, FV_EUSAGE, "a model and an adapter are called %s", names[i].s);
        for (int k = 0; k < i; k++)
            if (!strcmp(names[k].s, names[i].s))
                return fv_fail(e, FV_EUSAGE, "two adapters are called %s", names[i].s);
    }
    return FV_OK;
}
