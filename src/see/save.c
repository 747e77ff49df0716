/* save.c - a capture into a file, in the format that its name asks for.
 *
 * Adding a format means a writer in see.h, its ending in the table below and a line in write(). */
#include "see.h"

static const char *const endings[] = {"svg", "png", "pdf", "html", "json", "csv", NULL};

/* The format that was asked for, else the known ending of path; NULL: neither. */
static const char *ending_of(const char *path, const char *format)
{
    const char *dot = strrchr(path, '.');
    for (int i = 0; format && endings[i]; i++)
        if (!strcmp(format, endings[i])) return endings[i];
    if (format) return NULL;
    for (int i = 0; dot && !strchr(dot, '/') && endings[i]; i++)
        if (!strcmp(dot + 1, endings[i])) return endings[i];
    return NULL;
}

/* Everything that can be wrong with opt, before a file is made. */
static fv_status check(const fv_see *s, const char *path, const fv_see_opt *opt, const char *ending,
                       fv_err *e)
{
    if (!ending)
        return fv_fail(e, FV_EARG,
                       "%s: the name must end in .svg, .png, .pdf, .html, .json or .csv, which "
                       "says what is written",
                       path);
    fv_status st = fv__see_check(s, opt->pick, e);
    int64_t rows = fv_see_shape_of(s, opt->pick.kind).rows;
    if (opt->patch) return st; /* found later */
    if (!st && opt->to && (opt->from < 0 || opt->from >= opt->to || opt->to > rows))
        return fv_fail(e, FV_EARG, "rows %lld to %lld: the %s attention has rows 0 to %lld",
                       (long long)opt->from, (long long)(opt->to - 1),
                       fv_see_kind_name(opt->pick.kind), (long long)(rows - 1));
    return st;
}

/* Every writer appends to the open file and leaves renaming or removing it to fv_see_save. */
static fv_status write(fv_out *o, fv_see *s, const fv_see_opt *opt, const char *ending, fv_err *e)
{
    if (!strcmp(ending, "json")) return fv__see_json(o, s, opt, e);
    if (!strcmp(ending, "csv")) return fv__see_csv(o, s, opt, e);
    if (!strcmp(ending, "html")) return fv__see_html(o, s, opt, e);
    return fv__see_picture(o, s, opt, ending, e);
}

fv_status fv_see_save(fv_see *s, const fv_env *env, const char *path, fv_see_opt opt, fv_err *e)
{
    fv_out o;
    const char *ending = ending_of(path, opt.format);
    fv_status st = check(s, path, &opt, ending, e);
    if (!st && opt.patch) {
        st = fv__see_patch(s, opt.pick.kind, opt.patch, &opt.from, e);
        opt.to = opt.from + 1;
    }
    if (!st) st = fv__out_open(&o, env, path, e);
    if (st) return st;
    st = write(&o, s, &opt, ending, e);
    if (!st) return fv__out_commit(&o, e);
    fv__out_abandon(&o);
    return st;
}
