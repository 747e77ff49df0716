/* print.c - trees of JSON values as text.
 *
 * Reals are the shortest decimals that read back as the same double: 1e-12 in a config.json is to
 * stay 1e-12 when the file is written again. */
#include "base/decimal.h"
#include "tree.h"

/* UTF-8 is written as it is; only what JSON forbids inside a string is escaped. */
static void print_text(fv_buf *b, const char *s)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    fv__buf_str(b, "\"");
    for (; *s; s++) {
        const char *plain = strchr(from, *s);
        if (plain)
            fv__buf_fmt(b, "\\%c", to[plain - from]);
        else if ((unsigned char)*s < 0x20)
            fv__buf_fmt(b, "\\u%04x", (unsigned)*s);
        else
            fv__buf_add(b, s, 1);
    }
    fv__buf_str(b, "\"");
}

/* A real stays one: 1.0 is not 1. */
static void print_real(fv_buf *b, double x)
{
    fv_digits d = fv__digits(x, false);
    fv__buf_str(b, d.s);
    if (!strpbrk(d.s, ".en")) fv__buf_str(b, ".0");
}

static void newline(fv_buf *b, int level)
{
    if (level < 0) return;
    fv__buf_str(b, "\n");
    for (int i = 0; i < level; i++) fv__buf_str(b, "  ");
}

static void print_members(fv_buf *b, const fv__jnode *v, int level)
{
    const bool object = v->type == FV__J_OBJECT;
    const int inner = level < 0 ? level : level + 1;
    fv__buf_str(b, object ? "{" : "[");
    for (int i = 0; i < v->n; i++) {
        newline(b, inner);
        if (object) {
            print_text(b, v->kid[i]->key);
            fv__buf_str(b, ": ");
        }
        fv__jnode_print(b, v->kid[i], inner);
        if (i + 1 < v->n) fv__buf_str(b, level < 0 ? ", " : ",");
    }
    if (v->n) newline(b, level);
    fv__buf_str(b, object ? "}" : "]");
}

void fv__jnode_print(fv_buf *b, const fv__jnode *v, int level)
{
    switch (v->type) {
    case FV__J_TEXT: print_text(b, v->text); break;
    case FV__J_INT: fv__buf_fmt(b, "%lld", (long long)v->i); break;
    case FV__J_REAL: print_real(b, v->x); break;
    case FV__J_TRUE: fv__buf_str(b, "true"); break;
    case FV__J_FALSE: fv__buf_str(b, "false"); break;
    case FV__J_NULL: fv__buf_str(b, "null"); break;
    default: print_members(b, v, level); break;
    }
}
