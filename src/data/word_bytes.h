/* word_bytes.h - the letters of a word as a model reads them (char_ids): its bytes plus 1, then
 * 0. */
#ifndef FV_DATA_WORD_BYTES_H
#define FV_DATA_WORD_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* out (most): the first bytes of a word; what is longer is cut, what is shorter ends in zeros. */
static inline void fv__word_bytes(int32_t *out, int64_t most, const char *word, size_t n)
{
    for (int64_t i = 0; i < most; i++) out[i] = i < (int64_t)n ? (unsigned char)word[i] + 1 : 0;
}

#endif
