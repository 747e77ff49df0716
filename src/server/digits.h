/* digits.h - decimal digits of floats, as printf's %.9g writes them. */
#ifndef SV_DIGITS_H
#define SV_DIGITS_H

enum { SV_DIGITS_BYTES = 24 }; /* that a number needs while it is written */

/* Nine digits, which tell all f32 apart; null where x is not finite.  No NUL behind it; `to` has
 * SV_DIGITS_BYTES bytes.  Returns how many are the number's. */
int sv_put_float(char *to, float x);

#endif
