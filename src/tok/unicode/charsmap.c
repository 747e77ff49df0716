/* charsmap.c - SentencePiece's precompiled character map: a Darts double array from text to an
 * offset in a list of texts.
 *
 * Layout: size of the array in bytes (little-endian u32), the array, then NUL-terminated
 * replacements.  A unit of the array has a label in bits 0-7 and 31, "a key ends here" in bit 8,
 * and the distance to its children in bits 10-30 (times 256 if bit 9 is set); a leaf has bit 31 and
 * the value in bits 0-30. */
#include "tok/tok.h"

bool fv__charsmap_init(fv__charsmap *m, fv__str blob)
{
    uint32_t size;
    *m = (fv__charsmap){.blob = blob};
    if (blob.n < 4) return false;
    memcpy(&size, blob.s, 4);
    if (size % 4 || size < 4 || size > blob.n - 4) return false;
    /* blobs come from a pool: aligned to 16 */
    m->units = (const uint32_t *)(const void *)(blob.s + 4);
    m->n_units = size / 4;
    m->text = blob.s + 4 + size;
    m->n_text = blob.n - 4 - size;
    /* Every replacement must end inside, and be text. */
    return m->n_text && !m->text[m->n_text - 1] && fv__utf8_check(m->text, m->n_text) == m->n_text;
}

static uint32_t distance(uint32_t unit) { return unit >> 10 << ((unit & 512) >> 6); }
static uint32_t label(uint32_t unit) { return unit & 0x800000FFu; }

bool fv__charsmap_find(const fv__charsmap *m, const char *s, size_t n, bool longest, size_t *len,
                       fv__str *out)
{
    uint32_t unit = m->units[0], value = 0;
    size_t at = distance(unit), found = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        at ^= c;
        if (!c || at >= m->n_units) break;
        unit = m->units[at];
        if (label(unit) != c) break;
        at ^= distance(unit);
        bool whole = i + 1 == n || (s[i + 1] & 0xC0) != 0x80;
        if (!(unit & 256) || !whole) continue;
        if (at >= m->n_units) break;
        value = m->units[at] & 0x7FFFFFFFu;
        found = i + 1;
        if (!longest) break;
    }
    if (!found || value >= m->n_text || (m->text[value] & 0xC0) == 0x80) return false;
    *len = found;
    *out = (fv__str){m->text + value, strlen(m->text + value)};
    return true;
}
