/* chains.h - chains of multiply-adds on registers alone, for one width of vector: machine.c
 * includes it for each, with NAME (and its target), VECTOR and CHAINS, the independent ones,
 * defined.
 *
 * s = s f + f, CHAINS of them at once: as many as hide the latency of a multiply-add. */
static float NAME(float a)
{
    VECTOR s[CHAINS], f = {0};
    f += a;
#pragma GCC unroll 32
    for (int i = 0; i < CHAINS; i++) s[i] = f + (float)i;
    for (int64_t r = 0; r < ROUNDS; r++)
#pragma GCC unroll 32
        for (int i = 0; i < CHAINS; i++) s[i] = s[i] * f + f;
#pragma GCC unroll 32
    for (int i = 1; i < CHAINS; i++) s[0] += s[i];
    return s[0][0] * CHAINS;
}
#undef CHAINS
#undef VECTOR
#undef NAME
