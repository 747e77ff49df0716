/* dice.c - a linear congruential generator, whose upper bits are used. */
#include "dice.h"

static uint32_t state = 1;

void dice_seed(uint32_t seed) { state = seed; }

uint32_t dice(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

void dice_prompt(int32_t *ids, int64_t n, int32_t vocabulary)
{
    for (int64_t k = 0; k < n; k++) ids[k] = (int32_t)dice((uint32_t)vocabulary);
    for (int64_t k = 0, same = dice(2) ? dice(70) : 0; k < n && k < same; k++)
        ids[k] = (int32_t)(7 * k % vocabulary);
}
