/* bpe_tables.c - what the encoder of bpe.c looks things up in, made once when a tokenizer is
 * opened. */
#include <stdio.h>

#include "tok.h"

bool fv__merge_table(fv__model *m, fv__pool *p, int32_t n)
{
    uint32_t slots = 16;
    m->merge_shift = 60;
    while (slots < (uint32_t)n + (uint32_t)n / 4) slots *= 2, m->merge_shift--;
    m->merge_key = fv__hash_seed() | 1;
    m->merges = fv__pool_array(p, slots, sizeof *m->merges);
    m->pairs = fv__pool_array(p, (size_t)n, sizeof *m->pairs);
    if (!m->merges || !m->pairs) return false;
    m->merge_mask = slots - 1;
    for (uint32_t i = 0; i < slots; i++) m->merges[i].id = -1;
    return true;
}

/* A pair given twice keeps its last rank, as a map filled in order does. */
void fv__merge_put(fv__model *m, int32_t a, int32_t b, int32_t rank, int32_t id)
{
    uint32_t i = fv__merge_slot(m, a, b);
    while (m->merges[i].id >= 0 && (m->merges[i].a != (uint32_t)a || m->merges[i].b != (uint32_t)b))
        i = (i + 1) & m->merge_mask;
    m->merges[i] = (fv__merge){(uint32_t)a, (uint32_t)b, rank, id};
}

void fv__byte_ids(fv__model *m)
{
    for (int b = 0; b < 256; b++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", b);
        m->byte_ids[b] = fv__vocab_id(&m->vocab, name, (size_t)n);
    }
}

/* Ids of all bytes at all four positions of a word.
 * Bit 0 of the variant: not the first byte of the word (continuing prefix); bit 1: the last
 * (suffix). */
static void byte_symbols(fv__model *m)
{
    for (int variant = 0; variant < 4; variant++) {
        for (int b = 0; b < 256; b++) {
            char buf[128];
            size_t n = 0;
            if (variant & 1) memcpy(buf, m->prefix.s, m->prefix.n), n = m->prefix.n;
            n += (size_t)fv__utf8_put(buf + n, fv__byte_to_char((unsigned char)b));
            if (variant & 2) memcpy(buf + n, m->suffix.s, m->suffix.n), n += m->suffix.n;
            m->symbols[variant][b] = fv__vocab_id(&m->vocab, buf, n);
        }
    }
}

/* The first symbols a token may begin (end) with: its first (last) character, or itself.
 * Both forms go into the set: a merge of merged tokens meets at the characters where they touch. */
static void ends(const fv__model *m, int32_t id, bool last, int32_t out[2])
{
    fv__str s = fv__vocab_str(&m->vocab, id);
    size_t at = 0;
    uint32_t cp;
    out[0] = out[1] = id;
    if (!s.n) return;
    if (last) {
        at = s.n - 1;
        while (at && (s.s[at] & 0xC0) == 0x80) at--;
    }
    size_t len = (size_t)fv__char_at(&cp, s.s + at);
    int byte = m->takes_bytes ? fv__char_to_byte(cp) : -1;
    int32_t c = byte >= 0   ? m->symbols[0][byte]
                : cp < 0x80 ? m->ascii[cp]
                            : fv__vocab_id(&m->vocab, s.s + at, len);
    if (c >= 0) out[1] = c;
}

static bool find_joints(fv__model *m, fv__pool *p)
{
    m->joints = fv__pool_alloc(p, (1u << FV__JOINT_BITS) / 8);
    if (!m->joints) return false;
    for (uint32_t i = 0; i <= m->merge_mask; i++) {
        const fv__merge *g = m->merges + i;
        int32_t a[2], b[2];
        if (g->id < 0) continue;
        ends(m, (int32_t)g->a, true, a);
        ends(m, (int32_t)g->b, false, b);
        for (int k = 0; k < 4; k++) {
            uint32_t bit = fv__joint((uint32_t)a[k & 1], (uint32_t)b[k >> 1]);
            m->joints[bit >> 6] |= 1ull << (bit & 63);
        }
    }
    return true;
}

/* With affixes the symbol of a character depends on its position in the word, so neither
 * shortcut holds. */
bool fv__bpe_finish(fv__model *m, fv__pool *p)
{
    bool affixes = m->prefix.n || m->suffix.n;
    fv__byte_ids(m);
    if (m->takes_bytes) byte_symbols(m);
    if (affixes) return true;
    m->ascii = fv__pool_array(p, 128, sizeof *m->ascii);
    if (!m->ascii) return false;
    for (int c = 0; c < 128; c++) {
        char s = (char)c;
        m->ascii[c] = fv__vocab_id(&m->vocab, &s, 1);
    }
    return find_joints(m, p);
}
