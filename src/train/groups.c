/* groups.c - which parameters are trained, and how fast, by their names.
 *
 * Layer-wise rates: a layer is the first number in a name ("encoder.layer.3.output..."), counted
 * apart for each text in front of it, so that an encoder and a decoder of different depth both end
 * at the full rate.  Embeddings stand below layer 0, what has no number and is no embedding (heads,
 * last norms) above all layers. */
#include "train/groups.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/decimal.h"
#include "core/adapter.h"

/* Goes on from the last '*' whenever the rest does not fit: earlier ones need no second try. */
bool fv__name_matches(const char *pattern, size_t n, const char *name)
{
    size_t at = 0, star = n;
    const char *again = name;
    while (*name) {
        if (at < n && pattern[at] == '*')
            star = at++, again = name;
        else if (at < n && pattern[at] == *name)
            at++, name++;
        else if (star < n)
            at = star + 1, name = ++again;
        else
            return false;
    }
    while (at < n && pattern[at] == '*') at++;
    return at == n;
}

/* The next word of a list with blanks between; false at the end. */
static bool next_word(const char **at, const char **word, size_t *n)
{
    while (**at == ' ') ++*at;
    *word = *at;
    while (**at && **at != ' ') ++*at;
    *n = (size_t)(*at - *word);
    return *n > 0;
}

/* In order: a word freezes what it names, !word takes it back ("* !*.bias" is BitFit).  What an
 * adapter has frozen has no gradient to take back. */
static fv_status freeze(fv_params *p, const char *list, fv_err *e)
{
    const char *word;
    size_t n;
    while (next_word(&list, &word, &n)) {
        int hits = 0;
        bool back = *word == '!';
        for (int i = 0; i < fv_params_count(p); i++) {
            fv_tensor *t = fv_params_at(p, i);
            if (!fv__name_matches(word + back, n - back, t->name)) continue;
            if (!fv__param_frozen(t)) t->wants_grad = back;
            hits++;
        }
        if (!hits) return fv_fail(e, FV_EARG, "freeze: no parameter is called %.*s", (int)n, word);
    }
    for (int i = 0; i < fv_params_count(p); i++)
        if (fv_params_at(p, i)->wants_grad) return FV_OK;
    return fv_fail(e, FV_EARG, "freeze: nothing is left to train");
}

/* ---- layers ---- */

/* The number of the layer and the length of the name in front of it; -1: none. */
static long layer_of(const char *name, size_t *front)
{
    for (const char *s = name; *s; s++) {
        char *end;
        if (*s < '0' || *s > '9' || (s > name && s[-1] != '.')) continue;
        long i = strtol(s, &end, 10);
        if (*end != '.') continue;
        *front = (size_t)(s - name);
        return i;
    }
    return -1;
}

/* Layers that stand behind the same text. */
static long depth_of(const fv_params *p, const char *name, size_t front)
{
    long most = 0;
    for (int i = 0; i < fv_params_count(p); i++) {
        const char *other = fv_params_at(p, i)->name;
        size_t n = 0;
        long layer = layer_of(other, &n);
        if (layer >= most && n == front && !memcmp(other, name, n)) most = layer + 1;
    }
    return most;
}

/* Names of embedding tables in the families that have them. */
static bool is_embedding(const char *name)
{
    static const char *const words[] = {"embed", "shared", "wte", "wpe", NULL};
    for (int i = 0; words[i]; i++)
        if (strstr(name, words[i])) return true;
    return false;
}

/* Embeddings lie below the deepest stack. */
static long whole_depth(const fv_params *p)
{
    long most = 0;
    for (int i = 0; i < fv_params_count(p); i++) {
        size_t front;
        long layer = layer_of(fv_params_at(p, i)->name, &front);
        if (layer >= most) most = layer + 1;
    }
    return most;
}

/* factor^(depth of the output - depth of the parameter), as ELECTRA and BEiT are fine-tuned. */
static void by_layer(float *scale, const fv_params *p, double factor)
{
    long all = whole_depth(p);
    for (int i = 0; i < fv_params_count(p); i++) {
        const char *name = fv_params_at(p, i)->name;
        size_t front = 0;
        long layer = layer_of(name, &front), below = 0;
        if (layer >= 0)
            below = depth_of(p, name, front) - layer;
        else if (is_embedding(name))
            below = all + 1;
        scale[i] = (float)pow(factor, (double)below);
    }
}

/* "pattern=factor ...": factors multiply. */
static fv_status by_name(float *scale, const fv_params *p, const char *list, fv_err *e)
{
    const char *word;
    size_t n;
    while (next_word(&list, &word, &n)) {
        const char *equals = memchr(word, '=', n);
        char *end = NULL;
        double x = equals ? fv__strtod(equals + 1, &end) : -1;
        if (!equals || end != word + n || !(x >= 0 && x <= 1e6))
            return fv_fail(e, FV_EARG, "lr_scale: expected pattern=factor, found \"%.*s\"", (int)n,
                           word);
        int hits = 0;
        for (int i = 0; i < fv_params_count(p); i++)
            if (fv__name_matches(word, (size_t)(equals - word), fv_params_at(p, i)->name))
                scale[i] *= (float)x, hits++;
        if (!hits)
            return fv_fail(e, FV_EARG, "lr_scale: no parameter is called %.*s",
                           (int)(equals - word), word);
    }
    return FV_OK;
}

/* scale: a factor of the learning rate for each parameter; frozen ones get no gradient at all. */
fv_status fv__groups(float *scale, fv_params *p, const fv_train_opt *o, fv_err *e)
{
    for (int i = 0; i < fv_params_count(p); i++) scale[i] = 1;
    if (!o) return FV_OK;
    if (o->layer_decay < 1) by_layer(scale, p, (double)o->layer_decay);
    fv_status st = by_name(scale, p, o->lr_scale, e);
    return st || !*o->freeze ? st : freeze(p, o->freeze, e);
}
