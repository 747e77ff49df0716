/* languages.c - the languages of a translation model that has several.
 *
 * Published models name them in three ways, and the directory shows which:
 *
 *   config.json has task_specific_params.translation_en_to_de.prefix (T5): words before the text
 *   the vocabulary has >>deu<< (Marian): this token before the text
 *   it has de_DE, deu_Latn or __de__ (mBART, NLLB, M2M-100): a token of the source's language among
 *     its special tokens, and the target's as the first token that is written; in the first mBART,
 *     whose decoder starts with a language, as the token it starts with
 *
 * Going by what is there, not by the family's name, serves models that copied one of the ways. */
#include "gen/languages.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* de_DE, deu_Latn, __de__ */
static bool is_language(const char *s)
{
    if (!s) return false;
    size_t n = strspn(s, "_"), letters = strspn(s + n, "abcdefghijklmnopqrstuvwxyz");
    const char *rest = s + n + letters;
    if (letters < 2 || letters > 3) return false;
    if (n == 2) return !strcmp(rest, "__");
    return !n && rest[0] == '_' && isupper((unsigned char)rest[1]) && strlen(rest) >= 3 &&
           strlen(rest) <= 5;
}

/* "de" is de_DE where no other language begins so; a whole token is itself. */
static int32_t find(const fv_tok *tok, const char *name)
{
    char framed[64];
    int32_t id = fv_tok_id(tok, name), found = -1;
    if (id >= 0 && is_language(name)) return id;
    snprintf(framed, sizeof framed, "__%.40s__", name);
    if ((id = fv_tok_id(tok, framed)) >= 0) return id;
    size_t n = strlen(name);
    for (int32_t i = 0; i < fv_tok_size(tok); i++) {
        const char *s = fv_tok_token(tok, i);
        if (!is_language(s) || strncmp(s, name, n) || s[n] != '_') continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

static fv_status unknown(const fv_tok *tok, const char *option, const char *name, fv_err *e)
{
    char list[200] = "";
    size_t used = 0;
    for (int32_t i = 0; i < fv_tok_size(tok) && used + 20 < sizeof list; i++)
        if (is_language(fv_tok_token(tok, i)))
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                                     fv_tok_token(tok, i));
    if (!used) return fv_fail(e, FV_EUSAGE, "%s: the model has no languages to choose", option);
    return fv_fail(e, FV_EUSAGE, "%s: \"%.40s\" is not one language of the model, which has %s%s",
                   option, name, list, used + 20 < sizeof list ? "" : ", ...");
}

/* T5: the prefix of the pair; where one side is not given, of the only pair with the other. */
static fv_status choose_prefix(fv__languages *l, const fv_json *config, const char *from,
                               const char *to, fv_err *e)
{
    const char *all = "task_specific_params", *found = NULL;
    char at[200];
    int matches = 0;
    for (int i = 0; i < fv_json_count(config, all); i++) {
        const char *key = fv_json_key(config, all, i);
        char a[64], b[64];
        if (!key || sscanf(key, "translation_%60[^_]_to_%60s", a, b) != 2) continue;
        if ((from && strcmp(a, from)) || (to && strcmp(b, to))) continue;
        found = key;
        matches++;
    }
    if (matches != 1)
        return fv_fail(e, FV_EUSAGE,
                       "%s: config.json has %d translations from %s to %s (task_specific_params)",
                       to ? "to" : "from", matches, from ? from : "anything", to ? to : "anything");
    snprintf(at, sizeof at, "%s.%.100s.prefix", all, found);
    const char *text = fv_json_text(config, at);
    if (!text || strlen(text) >= sizeof l->prefix)
        return fv_fail(e, FV_EFORMAT, "config.json: %s: a text was expected", at);
    snprintf(l->prefix, sizeof l->prefix, "%s", text);
    return FV_OK;
}

static bool has_prefixes(const fv_json *config)
{
    for (int i = 0; i < fv_json_count(config, "task_specific_params"); i++) {
        const char *key = fv_json_key(config, "task_specific_params", i);
        if (key && !strncmp(key, "translation_", 12)) return true;
    }
    return false;
}

fv_status fv__languages_choose(fv__languages *l, fv_gen_opt *gen, const fv_tok *tok,
                               const fv_json *config, const char *from, const char *to, fv_err *e)
{
    char token[64];
    *l = (fv__languages){.source = -1};
    if (!from && !to) return FV_OK;
    if (has_prefixes(config)) return choose_prefix(l, config, from, to, e);
    if (to) {
        snprintf(token, sizeof token, ">>%.40s<<", to);
        if (fv_tok_id(tok, token) >= 0 && !from) {
            snprintf(l->prefix, sizeof l->prefix, "%s ", token);
            return FV_OK;
        }
        int32_t id = find(tok, to);
        if (id < 0) return unknown(tok, "to", to, e);
        if (is_language(fv_tok_token(tok, gen->start)))
            gen->start = id;
        else
            gen->forced_bos = id;
    }
    if (!from) return FV_OK;
    l->source = find(tok, from);
    return l->source < 0 ? unknown(tok, "from", from, e) : FV_OK;
}

/* Where a language stands among the special tokens, or -1. */
static int64_t standing(const fv_encoding *enc, const fv_tok *tok)
{
    for (int64_t i = 0; i < enc->n; i++)
        if (enc->special[i] && is_language(fv_tok_token(tok, enc->ids[i]))) return i;
    return -1;
}

bool fv__languages_before(const fv__languages *l, const fv_encoding *enc, const fv_tok *tok)
{
    return l->source >= 0 && standing(enc, tok) < 0;
}

void fv__languages_set(const fv__languages *l, fv_encoding *enc, const fv_tok *tok)
{
    int64_t i = l->source >= 0 ? standing(enc, tok) : -1;
    if (i >= 0) enc->ids[i] = l->source;
}
