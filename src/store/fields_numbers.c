/* fields_numbers.c - fields that hold a list of numbers.
 *
 * The member is an array of floats with 0 behind the last, so that a table needs no second member
 * for the count; a field whose numbers may be 0 cannot be held so, and its range must leave 0
 * out. */
#include <string.h>

#include "base/decimal.h"
#include "json.h"

static int capacity(const fv_field *f) { return (int)(f->size / sizeof(float)); }

static const float *numbers(const void *obj, const fv_field *f)
{
    return (const float *)(const void *)((const char *)obj + f->offset);
}

int fv__numbers_count(const void *obj, const fv_field *f)
{
    int n = 0;
    while (n < capacity(f) && numbers(obj, f)[n] != 0) n++;
    return n;
}

bool fv__numbers_read(void *obj, const fv_field *f, const fv__jnode *v)
{
    float *to = (float *)(void *)((char *)obj + f->offset);
    if (v->type != FV__J_ARRAY || v->n > capacity(f)) return false;
    memset(to, 0, f->size);
    for (int i = 0; i < v->n; i++) {
        const fv__jnode *x = v->kid[i];
        if (!fv__jnode_number(x) || !(x->x >= f->least && x->x <= f->greatest)) return false;
        to[i] = (float)x->x;
    }
    return true;
}

fv__jnode *fv__numbers_node(fv__jtree *t, const void *obj, const fv_field *f)
{
    fv__jnode *list = fv__jnode_new(t, FV__J_ARRAY);
    for (int i = 0; i < fv__numbers_count(obj, f); i++) {
        double x = fv__strtod(fv__digits((double)numbers(obj, f)[i], true).s, NULL);
        if (!fv__jnode_put(t, list, NULL, fv__jnode_real(t, x))) return NULL;
    }
    return list;
}

bool fv__numbers_same(const void *obj, const fv_field *f, const fv__jnode *v)
{
    bool same = v->type == FV__J_ARRAY && v->n == fv__numbers_count(obj, f);
    for (int i = 0; same && i < v->n; i++)
        same = fv__jnode_number(v->kid[i]) && (float)v->kid[i]->x == numbers(obj, f)[i];
    return same;
}
