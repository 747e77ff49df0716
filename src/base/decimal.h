/* decimal.h - numbers as text, with '.' whatever the locale of the program that uses the library.
 *
 * printf and strtod follow the locale of the host: in a program that called setlocale(LC_ALL,
 * "de_DE.UTF-8") 0.5 is written as 0,5, and a checkpoint written so could not be read again.
 * fv__buf_fmt and fv_fail switch the thread to the C locale themselves. */
#ifndef FV_BASE_DECIMAL_H
#define FV_BASE_DECIMAL_H

#include <locale.h>
#include <stdbool.h>
#include <stddef.h>

#include "fovea/error.h"

/* Between these two, printf and strtod of this thread are those of the C locale. */
locale_t fv__c_numbers(void);
void fv__c_numbers_end(locale_t before);

/* strtod, strtof and snprintf of the C locale. */
double fv__strtod(const char *s, char **end);
float fv__strtof(const char *s, char **end);
int fv__format(char *out, size_t n, const char *fmt, ...) FV_PRINTF(3, 4);

/* The shortest decimal that reads back as the same double (as the same float, when single). */
typedef struct fv_digits {
    char s[40];
} fv_digits;
fv_digits fv__digits(double x, bool single);

#endif
