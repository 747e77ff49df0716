/* fields_list.c - fields that hold integers: one, or a list of them.
 *
 * Published configurations write the size of a square as one number and that of a rectangle as two,
 * and what differs from stage to stage as a list.  A list of one is written back as a number where
 * the field's default is one. */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"

static bool add(fv_int_list *list, const fv_field *f, double x)
{
    if (list->n == FV_MAX_LIST || !(x >= f->least && x <= f->greatest)) return false;
    list->at[list->n++] = (int)x;
    return true;
}

bool fv__list_parse(fv_int_list *out, const fv_field *f, const char *text)
{
    *out = (fv_int_list){0};
    while (*(text += strspn(text, " ,"))) {
        char *end;
        long x = strtol(text, &end, 10);
        if (end == text || (*end && !strchr(" ,", *end)) || !add(out, f, (double)x)) return false;
        text = end;
    }
    return true;
}

bool fv__list_read(fv_int_list *out, const fv_field *f, const fv__jnode *v)
{
    *out = (fv_int_list){0};
    if (v->type == FV__J_INT) return add(out, f, v->x);
    bool may_be_empty = !*f->text; /* an empty list is its default */
    if (v->type != FV__J_ARRAY || (!v->n && !may_be_empty)) return false;
    for (int i = 0; i < v->n; i++)
        if (v->kid[i]->type != FV__J_INT || !add(out, f, v->kid[i]->x)) return false;
    return true;
}

bool fv__list_same(const fv_int_list *list, const fv_field *f, const fv__jnode *v)
{
    fv_int_list other;
    bool read = v->type == FV__J_NULL ? fv__list_parse(&other, f, f->text)
                                      : fv__list_read(&other, f, v);
    return read && other.n == list->n &&
           !memcmp(other.at, list->at, (size_t)list->n * sizeof *list->at);
}

/* image_size 224 must come back as 224, not as [224]: other readers expect the form they know. */
fv__jnode *fv__list_node(fv__jtree *t, const fv_int_list *list, const fv_field *f)
{
    fv_int_list normal;
    if (list->n == 1 && fv__list_parse(&normal, f, f->text) && normal.n < 2)
        return fv__jnode_int(t, list->at[0]);
    fv__jnode *all = fv__jnode_new(t, FV__J_ARRAY);
    for (int i = 0; i < list->n; i++)
        if (!fv__jnode_put(t, all, NULL, fv__jnode_int(t, list->at[i]))) return NULL;
    return all;
}

int fv__list_print(const fv_int_list *list, char *out, size_t n)
{
    int len = 0;
    if (n) *out = 0;
    for (int i = 0; i < list->n; i++) {
        size_t at = (size_t)len < n ? (size_t)len : n;
        len += snprintf(out + at, n - at, "%s%d", i ? " " : "", list->at[i]);
    }
    return len;
}
