/* common.c - what the learners of BPE and Unigram share: progress, and the alphabet. */
#include "train.h"

fv_status fv__train_no_memory(fv__trainer *r)
{
    return fv_fail(r->e, FV_ENOMEM, "out of memory while training a tokenizer");
}

void fv__progress(fv__trainer *r, const char *stage, double done)
{
    if (r->o->progress)
        r->o->progress(r->o->progress_self, stage, done < 0 ? 0 : done > 1 ? 1 : done);
}

/* Byte-level BPE starts from all 256 bytes, seen or not: no text can then be unknown.  Others
 * keep the characters of the texts, the rarest left out where a limit is given. */
bool fv__alphabet(fv__trainer *r, fv__set *out)
{
    if (r->o->kind == FV_TOK_BYTE_BPE) {
        for (int b = 0; b < 256; b++) {
            char s[4];
            if (fv__set_add(out, s, (size_t)fv__utf8_put(s, fv__byte_to_char((unsigned char)b))) <
                0)
                return false;
        }
        return fv__set_sort(out, false);
    }
    for (int32_t i = 0; i < r->words.n; i++) {
        fv__str s = fv__set_str(&r->words, i);
        for (size_t k = 0, len; k < s.n; k += len) {
            uint32_t cp;
            len = (size_t)fv__char_at(&cp, s.s + k);
            int32_t c = fv__set_add(out, s.s + k, len);
            if (c < 0) return false;
            out->v[c].count += r->words.v[i].count;
        }
    }
    if (r->o->alphabet <= 0 || r->o->alphabet >= out->n) return fv__set_sort(out, false);
    fv__set kept = {.env = out->env};
    bool ok = fv__set_sort(out, true);
    for (int32_t i = 0; i < r->o->alphabet && ok; i++) {
        int32_t c = fv__set_add(&kept, fv__set_str(out, i).s, out->v[i].len);
        ok = c >= 0;
        if (ok) kept.v[c].count = out->v[i].count;
    }
    fv__set_free(out);
    *out = kept;
    return ok && fv__set_sort(out, false);
}
