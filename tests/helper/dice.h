/* dice.h - numbers that look random and are the same in every run of a test program. */
#ifndef HELPER_DICE_H
#define HELPER_DICE_H

#include <stdint.h>

void dice_seed(uint32_t seed);
uint32_t dice(uint32_t n); /* 0 to n - 1 */
/* n tokens; half of the prompts begin alike, for some way. */
void dice_prompt(int32_t *ids, int64_t n, int32_t vocabulary);

#endif
