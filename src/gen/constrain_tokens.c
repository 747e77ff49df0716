/* constrain_tokens.c - the bytes that each token adds to a text, and the tokens sorted by them.
 *
 * A token's bytes are what decoding it behind another adds.  Where that is a part of a character,
 * which decoding shows as U+FFFD, they are read from the token's own name: <0xE2> of byte fallback,
 * or the alphabet in which byte-level BPE writes bytes.  A token of neither kind has no bytes, and
 * special tokens have none: constrained text holds none of them. */
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/tok.h"
#include "gen/constrain.h"

/* The byte that a character of the alphabet of byte-level BPE stands for, or -1: printable Latin-1
 * stands for itself, the others for U+0100 on in their order. */
static int byte_of(uint32_t cp)
{
    bool itself = (cp >= '!' && cp <= '~') || (cp >= 0xa1 && cp <= 0xac) ||
                  (cp >= 0xae && cp <= 0xff);
    if (itself) return (int)cp;
    if (cp < 0x100 || cp > 0x143) return -1;
    int n = (int)cp - 0x100;
    if (n <= 0x20) return n;
    if (n <= 0x42) return n - 0x21 + 0x7f;
    return 0xad;
}

static int read_name(const char *name, unsigned char *out)
{
    unsigned byte;
    int n = 0, used = 0;
    if (sscanf(name, "<0x%2x>%n", &byte, &used) == 1 && used == 6 && !name[6]) {
        out[0] = (unsigned char)byte;
        return 1;
    }
    for (size_t left = strlen(name); left;) {
        uint32_t cp;
        int len = fv__utf8_get(&cp, name, left), b = len ? byte_of(cp) : -1;
        if (b < 0 || n == FV_MOST_TOKEN_BYTES) return 0;
        out[n++] = (unsigned char)b;
        name += len;
        left -= (size_t)len;
    }
    return n;
}

/* What decoding adds for `id` behind `before`; the length, or 0. */
static int read_decoded(const fv_tok *t, int32_t before, const char *head, size_t n_head,
                        int32_t id, unsigned char *out)
{
    char *both = NULL;
    size_t n = 0;
    int len = 0;
    if (fv_tok_decode(t, &both, &n, (int32_t[]){before, id}, 2, false, NULL)) return 0;
    bool follows = n >= n_head && !memcmp(both, head, n_head);
    bool whole = follows && !memmem(both, n, "\xef\xbf\xbd", 3);
    if (whole && n - n_head <= FV_MOST_TOKEN_BYTES)
        memcpy(out, both + n_head, (size_t)(len = (int)(n - n_head)));
    fv_tok_free_text(t, both, n);
    return len;
}

/* A token that is one letter, behind which others are decoded; -1: there is none. */
static int32_t find_letter(const fv_tok *t)
{
    for (int32_t id = 0; id < fv_tok_size(t); id++) {
        char *s = NULL;
        size_t n = 0;
        if (fv_tok_special(t, id) || fv_tok_decode(t, &s, &n, &id, 1, false, NULL)) continue;
        bool letter = n == 1 && s[0] >= 'a' && s[0] <= 'z';
        fv_tok_free_text(t, s, n);
        if (letter) return id;
    }
    return -1;
}

static void read_all(fv_buf *bytes, uint32_t *at, const fv_tok *t, int64_t V)
{
    int32_t letter = find_letter(t);
    char *head = NULL;
    size_t n_head = 0;
    if (letter >= 0 && fv_tok_decode(t, &head, &n_head, &letter, 1, false, NULL)) letter = -1;
    for (int64_t id = 0; id < V; id++) {
        unsigned char one[FV_MOST_TOKEN_BYTES + 1];
        const char *name = fv_tok_token(t, (int32_t)id);
        int n = 0;
        at[id] = (uint32_t)bytes->len;
        if (!name || fv_tok_special(t, (int32_t)id)) continue;
        if (letter >= 0) n = read_decoded(t, letter, head, n_head, (int32_t)id, one);
        if (!n) n = read_name(name, one);
        fv__buf_add(bytes, one, (size_t)n);
    }
    at[V] = (uint32_t)bytes->len;
    fv_tok_free_text(t, head, n_head);
}

/* ---- in order ---- */

static int by_bytes(const void *a, const void *b, void *user)
{
    const fv_token_bytes *t = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    size_t n = t->at[x + 1] - t->at[x], m = t->at[y + 1] - t->at[y];
    int c = memcmp(t->bytes + t->at[x], t->bytes + t->at[y], n < m ? n : m);
    if (c) return c;
    if (n != m) return n < m ? -1 : 1;
    return x < y ? -1 : 1;
}

static void sort(fv_token_bytes *t)
{
    for (int64_t id = 0; id < t->V; id++)
        if (t->at[id + 1] > t->at[id]) t->order[t->n++] = (int32_t)id;
    qsort_r(t->order, (size_t)t->n, sizeof *t->order, by_bytes, t);
    for (int64_t i = 1; i < t->n; i++) {
        const unsigned char *a = t->bytes + t->at[t->order[i - 1]],
                            *b = t->bytes + t->at[t->order[i]];
        size_t n = t->at[t->order[i - 1] + 1] - t->at[t->order[i - 1]], k = 0;
        size_t m = t->at[t->order[i] + 1] - t->at[t->order[i]];
        while (k < n && k < m && a[k] == b[k]) k++;
        t->lcp[i] = (uint8_t)k;
    }
}

fv_status fv_token_bytes_new(fv_token_bytes **out, const fv_env *env, const fv_tok *tok, fv_err *e)
{
    fv_buf bytes = {.env = env};
    size_t V = (size_t)fv_tok_size(tok);
    *out = NULL;
    fv_token_bytes *t = fv__alloc(env, sizeof *t);
    if (!t) return fv_fail(e, FV_ENOMEM, "tokens: out of memory");
    if (env) t->env = *env;
    t->V = (int64_t)V;
    t->tables = (V + 1) * sizeof *t->at + V * (sizeof *t->order + sizeof *t->lcp);
    t->at = fv__alloc(&t->env, t->tables);
    if (t->at) {
        t->order = (int32_t *)(t->at + V + 1);
        t->lcp = (uint8_t *)(t->order + V);
        read_all(&bytes, t->at, tok, t->V);
        t->blob = bytes.len + 1;
        t->bytes = bytes.failed ? NULL : fv__alloc(&t->env, t->blob);
    }
    if (t->bytes) {
        if (bytes.len) memcpy(t->bytes, bytes.data, bytes.len);
        sort(t);
        *out = t;
    }
    fv__buf_free(&bytes);
    if (*out) return FV_OK;
    fv_token_bytes_free(t);
    return fv_fail(e, FV_ENOMEM, "tokens: out of memory");
}

void fv_token_bytes_free(fv_token_bytes *t)
{
    if (!t) return;
    fv_env env = t->env;
    fv__free(&env, t->at, t->tables);
    fv__free(&env, t->bytes, t->blob);
    fv__free(&env, t, sizeof *t);
}
