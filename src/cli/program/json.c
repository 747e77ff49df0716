/* json.c - results for machines, written as they come: nothing is built first that could run out of
 * memory half way. */
#include "cli/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A comma before every value but the first of its list; brackets and colons reset it. */
static void separate(cli_json *j)
{
    if (j->comma) putchar(',');
    j->comma = true;
}

/* Length of the UTF-8 character at s, or 0. */
static size_t character(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t len = u[0] < 0x80 ? 1 : u[0] < 0xC2 ? 0 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    if (!len || len > n || u[0] > 0xF4) return 0;
    for (size_t i = 1; i < len; i++)
        if ((u[i] & 0xC0) != 0x80) return 0;
    bool overlong = (u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xF0 && u[1] < 0x90);
    bool beyond = (u[0] == 0xED && u[1] > 0x9F) || (u[0] == 0xF4 && u[1] > 0x8F);
    return overlong || beyond ? 0 : len;
}

void cli_json_text(cli_json *j, const char *s, size_t n)
{
    static const char plain[] = "\"\\\b\f\n\r\t", escaped[] = "\"\\bfnrt";
    separate(j);
    putchar('"');
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        const char *at = s[i] ? strchr(plain, s[i]) : NULL;
        len = character(s + i, n - i);
        if (!len)
            fputs("\xEF\xBF\xBD", stdout);
        else if (at)
            printf("\\%c", escaped[at - plain]);
        else if ((unsigned char)s[i] < 0x20)
            printf("\\u%04X", (unsigned)s[i]);
        else
            fwrite(s + i, 1, len, stdout);
    }
    putchar('"');
}

/* %.9g with a point or an exponent, and the exponent without + and leading zeros. */
static void put_number(cli_json *j, double x)
{
    char text[40];
    separate(j);
    snprintf(text, sizeof text, "%.9g", x);
    char *exponent = strchr(text, 'e');
    if (!isfinite(x))
        fputs("null", stdout);
    else if (!exponent)
        printf("%s%s", text, strchr(text, '.') ? "" : ".0");
    else
        printf("%.*se%d", (int)(exponent - text), text, atoi(exponent + 1));
}

/* The format is walked once; what is not a letter or a bracket is there to be read. It is not
 * checked against the arguments by the compiler, which is why formats are literals next to them. */
void cli_json_put(cli_json *j, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    for (const char *f = format; *f; f++) {
        const char *text;
        switch (*f) {
        case 's': text = va_arg(ap, const char *), cli_json_text(j, text, strlen(text)); break;
        case 'I': separate(j), printf("%lld", (long long)va_arg(ap, int64_t)); break;
        case 'i': separate(j), printf("%d", va_arg(ap, int)); break;
        case 'f': put_number(j, va_arg(ap, double)); break;
        case 'b': separate(j), fputs(va_arg(ap, int) ? "true" : "false", stdout); break;
        case '{':
        case '[': separate(j), putchar(*f), j->comma = false; break;
        case '}':
        case ']': putchar(*f), j->comma = true; break;
        case ':': putchar(*f), j->comma = false; break;
        default: break;
        }
    }
    va_end(ap);
}

void cli_json_matrix(cli_json *j, const float *x, const uint8_t *mask, int64_t rows, int64_t cols)
{
    cli_json_put(j, "[");
    for (int64_t i = 0; i < rows; i++) {
        cli_json_put(j, "[");
        for (int64_t k = i * cols; k < (i + 1) * cols; k++)
            cli_json_put(j, "f", mask && !mask[k] ? (double)NAN : (double)x[k]);
        cli_json_put(j, "]");
    }
    cli_json_put(j, "]");
}

void cli_json_end(void) { putchar('\n'); }
