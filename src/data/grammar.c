/* grammar.c - one English sentence and its French translation, sampled from a grammar.
 *
 * A sentence is first a list of words in each language, chosen with all agreement (gender, number,
 * person); spelling comes last, because elision ("l'ami") and contraction ("du") depend on the next
 * word, whatever phrase it came from.  Random numbers are Philox by (seed, sentence, count), so
 * sentence i is the same on every machine and needs none before it.
 *
 * Each kind of sentence notes the pair of content words that makes it a test of generalisation: one
 * pair in eight is held out for every seed, so a model that translates a held-out sentence has
 * never seen these two words together. */
#include <stdio.h>
#include <string.h>

#include "fovea/author/grammar.h"
#include "fovea/author/op.h"

#include "lexicon.h"

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct words {
    const char *at[40];
    int n;
} words;

typedef struct sentence {
    uint64_t seed, i;
    uint32_t drawn; /* random numbers used so far: the counter of the next */
    words en, fr;
    int pair[2]; /* the two content words that decide whether it is held out */
} sentence;

static void add(words *w, const char *s) { w->at[w->n++] = s; }

/* A number in [0, n). */
static int draw(sentence *s, int n)
{
    uint32_t r[4];
    fv_philox(r, s->seed, s->drawn++, 0, s->i);
    return (int)((uint64_t)r[0] * (uint64_t)n >> 32);
}

static bool chance(sentence *s, int percent) { return draw(s, 100) < percent; }

/* ---- words ---- */

/* A vowel is heard first: h is silent in all words of this lexicon. */
static bool vowel_first(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return strchr("aeiouh", u[0]) != NULL;
    return !(u[0] == 0xC3 && u[1] == 0xA7); /* of the letters beyond ASCII only ç is none */
}

/* Any noun of these kinds, all equally likely. */
static const noun *a_noun(sentence *s, int kinds)
{
    int n = 0;
    for (int i = 0; i < COUNT(nouns); i++) n += (nouns[i].kind & kinds) != 0;
    n = draw(s, n);
    for (int i = 0;; i++)
        if ((nouns[i].kind & kinds) && !n--) return &nouns[i];
}

/* Uniform among those that suit the kind of noun: counted first, then the n-th is found, because
 * tables are short and need no index. */
static const adjective *an_adjective(sentence *s, int kind)
{
    int n = 0;
    for (int i = 0; i < COUNT(adjectives); i++) n += (adjectives[i].kinds & kind) != 0;
    n = draw(s, n);
    for (int i = 0;; i++)
        if ((adjectives[i].kinds & kind) && !n--) return &adjectives[i];
}

/* ---- noun phrases ---- */

typedef enum article { THE, A, BARE, THIS, OWN, COUNTED, ALL_OF_A_KIND } article;

typedef struct phrase {
    const noun *noun;
    const adjective *adjective; /* or NULL */
    article article;
    int which; /* of the owners or numbers */
    bool plural;
    bool negated; /* object of a negation: "pas de" */
} phrase;

/* Substances ("water") have no plural, and no article or "the"; other nouns any article. */
static phrase a_phrase(sentence *s, int kinds, bool adjectives_too)
{
    phrase p = {.noun = a_noun(s, kinds)};
    if (!p.noun->en_plural) { /* a substance */
        p.article = chance(s, 50) ? BARE : THE;
    } else {
        static const article usual[] = {THE, THE, A, A, BARE, THIS, OWN, COUNTED};
        p.article = usual[draw(s, COUNT(usual))];
        p.plural = p.article == BARE || p.article == COUNTED || (p.article != A && chance(s, 30));
    }
    if (p.article == OWN) p.which = draw(s, COUNT(owners));
    if (p.article == COUNTED) p.which = draw(s, COUNT(numbers));
    if (adjectives_too && chance(s, 35)) p.adjective = an_adjective(s, p.noun->kind);
    return p;
}

/* "a" or "an" by the first letter, which is enough for the words of this lexicon. */
static void put_en(words *w, phrase p)
{
    const char *word = p.plural ? p.noun->en_plural : p.noun->en;
    const char *next = p.adjective ? p.adjective->en : word;
    switch (p.article) {
    case THE: add(w, "the"); break;
    case A: add(w, strchr("aeiou", next[0]) ? "an" : "a"); break;
    case THIS: add(w, p.plural ? "these" : "this"); break;
    case OWN: add(w, owners[p.which].en); break;
    case COUNTED: add(w, numbers[p.which][0]); break;
    case BARE:
    case ALL_OF_A_KIND: break;
    }
    if (p.adjective) add(w, p.adjective->en);
    add(w, word);
}

/* The adjective in the noun's gender and number. */
static const char *agreeing(const adjective *a, char gender, bool plural)
{
    return a->fr[(gender == 'f') + 2 * plural];
}

/* next is the word behind the article: "cet" and "mon amie" stand before a vowel.  After a negation
 * "un" and "des" become "de"; before an adjective "des" does. */
static void put_article(words *w, phrase p, const char *next, bool adjective_first)
{
    bool f = p.noun->gender == 'f';
    const char *the = p.plural ? "les" : f ? "la" : "le";
    if (p.negated && (p.article == A || p.article == BARE)) {
        add(w, "de");
        return;
    }
    switch (p.article) {
    case THE:
    case ALL_OF_A_KIND: add(w, the); break;
    case A: add(w, f ? "une" : "un"); break;
    case BARE:
        add(w, p.plural && !adjective_first ? "des" : "de");
        if (!p.plural) add(w, the); /* of the substance, some */
        break;
    case THIS: add(w, p.plural ? "ces" : f ? "cette" : vowel_first(next) ? "cet" : "ce"); break;
    case OWN: add(w, owners[p.which].fr[p.plural ? 2 : f && !vowel_first(next)]); break;
    case COUNTED: add(w, numbers[p.which][1]); break;
    }
}

/* Adjectives stand before or after the noun; "vieux" before a vowel is "vieil". */
static void put_fr(words *w, phrase p)
{
    const char *word = p.plural ? p.noun->fr_plural : p.noun->fr, *quality = NULL;
    bool first = p.adjective && p.adjective->place == 'b';
    if (p.adjective) {
        quality = agreeing(p.adjective, p.noun->gender, p.plural);
        if (first && p.adjective->fr_vowel && p.noun->gender == 'm' && !p.plural &&
            vowel_first(word))
            quality = p.adjective->fr_vowel;
    }
    put_article(w, p, first ? quality : word, first);
    if (first) add(w, quality);
    add(w, word);
    if (quality && !first) add(w, quality);
}

static void put_phrase(sentence *s, phrase p)
{
    put_en(&s->en, p);
    put_fr(&s->fr, p);
}

/* ---- subjects ---- */

typedef struct subject {
    const pronoun *pronoun; /* or NULL, and then */
    phrase phrase;
    int person; /* of the French verb */
    bool third; /* English verb with -s */
    bool plural;
    char gender;
} subject;

/* A pronoun in so many per cent, else a phrase; a bare noun makes no subject in this grammar. */
static subject a_subject(sentence *s, int kinds, int pronouns_percent)
{
    if (chance(s, pronouns_percent)) {
        const pronoun *p = &pronouns[draw(s, COUNT(pronouns))];
        return (subject){.pronoun = p,
                         .person = p->person,
                         .third = p->third,
                         .plural = p->plural,
                         .gender = p->gender};
    }
    phrase p = a_phrase(s, kinds, true);
    if (p.article == BARE) p.article = THE;
    return (subject){.phrase = p,
                     .person = p.plural ? 4 : 1,
                     .third = !p.plural,
                     .plural = p.plural,
                     .gender = p.noun->gender};
}

static void put_subject(sentence *s, subject who)
{
    if (!who.pronoun) {
        put_phrase(s, who.phrase);
        return;
    }
    add(&s->en, who.pronoun->en);
    add(&s->fr, who.pronoun->fr);
}

/* To be, which agrees with the subject in both languages. */
static void put_be(sentence *s, subject who)
{
    add(&s->en, who.pronoun ? who.pronoun->en_be : who.plural ? "are" : "is");
    add(&s->fr, who.pronoun ? who.pronoun->fr_be : who.plural ? "sont" : "est");
}

/* ---- sentences ---- */

static const verb *a_verb(sentence *s) { return &verbs[draw(s, COUNT(verbs))]; }

/* Chooses the object and notes that this verb had it. */
static phrase an_object(sentence *s, const verb *v)
{
    phrase p = a_phrase(s, v->takes, true);
    s->pair[0] = (int)(v - verbs);
    s->pair[1] = (int)(p.noun - nouns);
    return p;
}

static void put_pair(words *en, words *fr, const char *const pair[2])
{
    add(en, pair[0]);
    add(fr, pair[1]);
}

static void put_location(sentence *s)
{
    phrase place = {.noun = a_noun(s, PLACE), .article = THE};
    put_pair(&s->en, &s->fr, preps[draw(s, COUNT(preps))]);
    put_phrase(s, place);
}

/* The cat sees a red apple in the garden. */
static void statement(sentence *s)
{
    const verb *v = a_verb(s);
    subject who = a_subject(s, v->who, 40);
    put_subject(s, who);
    add(&s->en, who.third ? v->en_s : v->en);
    add(&s->fr, v->fr[who.person]);
    put_phrase(s, an_object(s, v));
    if (chance(s, 15))
        put_location(s);
    else if (chance(s, 15))
        put_pair(&s->en, &s->fr, times[draw(s, COUNT(times))]);
}

/* I like to eat apples. */
static void wish(sentence *s)
{
    const verb *m = &modals[draw(s, COUNT(modals))], *v = a_verb(s);
    subject who = a_subject(s, PERSON, 55);
    put_subject(s, who);
    add(&s->en, who.third ? m->en_s : m->en);
    add(&s->en, v->en);
    add(&s->fr, m->fr[who.person]);
    add(&s->fr, v->fr_infinitive);
    put_phrase(s, an_object(s, v));
}

/* He does not eat the apple. */
static void denial(sentence *s)
{
    const verb *v = a_verb(s);
    subject who = a_subject(s, v->who, 50);
    put_subject(s, who);
    add(&s->en, who.third ? "does" : "do");
    add(&s->en, "not");
    add(&s->en, v->en);
    add(&s->fr, "ne");
    add(&s->fr, v->fr[who.person]);
    add(&s->fr, "pas");
    phrase object = an_object(s, v);
    object.negated = true;
    put_phrase(s, object);
}

/* The houses are beautiful. */
static void description(sentence *s)
{
    subject who = a_subject(s, LIVING | FOOD | DRINK | THING | PLACE | TEXT, 0);
    who.phrase.adjective = NULL;
    const adjective *a = an_adjective(s, who.phrase.noun->kind);
    s->pair[0] = 100 + (int)(a - adjectives);
    s->pair[1] = (int)(who.phrase.noun - nouns);
    put_subject(s, who);
    put_be(s, who);
    if (chance(s, 20)) add(&s->en, "very"), add(&s->fr, "très");
    add(&s->en, a->en);
    add(&s->fr, agreeing(a, who.gender, who.plural));
}

/* The dog is behind the house. */
static void location(sentence *s)
{
    subject who = a_subject(s, LIVING | THING, 10);
    put_subject(s, who);
    put_be(s, who);
    phrase place = a_phrase(s, PLACE, true);
    if (place.article == BARE || place.article == COUNTED) place.article = THE;
    s->pair[0] = who.pronoun ? 1000 + who.person : 1100 + (int)(who.phrase.noun - nouns);
    s->pair[1] = (int)(place.noun - nouns);
    put_pair(&s->en, &s->fr, preps[draw(s, COUNT(preps))]);
    put_phrase(s, place);
}

/* Does the girl buy your hat? */
static void question(sentence *s)
{
    const verb *v = a_verb(s);
    subject who = a_subject(s, v->who, 50);
    add(&s->en, who.third ? "does" : "do");
    add(&s->fr, "est-ce");
    add(&s->fr, "que");
    put_subject(s, who);
    add(&s->en, v->en);
    add(&s->fr, v->fr[who.person]);
    put_phrase(s, an_object(s, v));
    add(&s->en, "?");
    add(&s->fr, "?");
}

/* Where are my keys? */
static void whereabouts(sentence *s)
{
    subject what = a_subject(s, LIVING | THING | PLACE | TEXT, 0);
    if (what.phrase.article == A || what.phrase.article == COUNTED) what.phrase.article = THE;
    s->pair[0] = 2000 + (int)what.phrase.article * 10 +
                 (what.phrase.article == OWN ? what.phrase.which : 0);
    s->pair[1] = (int)(what.phrase.noun - nouns);
    add(&s->en, "where");
    add(&s->fr, "où");
    put_be(s, what);
    put_subject(s, what);
    add(&s->en, "?");
    add(&s->fr, "?");
}

/* We like cherries: the whole kind, so French says "les". */
static void taste(sentence *s)
{
    subject who = a_subject(s, PERSON, 60);
    phrase what = {.noun = a_noun(s, like.takes), .article = ALL_OF_A_KIND};
    what.plural = what.noun->en_plural != NULL;
    if (chance(s, 30)) what.adjective = an_adjective(s, what.noun->kind);
    s->pair[0] = 500 + who.person;
    s->pair[1] = (int)(what.noun - nouns);
    bool not = chance(s, 25);
    put_subject(s, who);
    if (not ) {
        add(&s->en, who.third ? "does" : "do");
        add(&s->en, "not");
        add(&s->fr, "ne");
    }
    add(&s->en, who.third && !not ? like.en_s : like.en);
    add(&s->fr, like.fr[who.person]);
    if (not ) add(&s->fr, "pas");
    put_phrase(s, what);
}

/* ---- spelling ---- */

/* Words that elide before a vowel. */
static bool loses_vowel(const char *s)
{
    static const char *const those[] = {"je", "le", "la", "de", "ne", "que"};
    for (int i = 0; i < COUNT(those); i++)
        if (!strcmp(s, those[i])) return true;
    return false;
}

/* "de" before "le" or "les" becomes one word with it, unless "le" loses its vowel. */
static const char *contracted(const words *w, int i)
{
    if (strcmp(w->at[i], "de") || i + 1 == w->n) return NULL;
    if (!strcmp(w->at[i + 1], "les")) return "des";
    return !strcmp(w->at[i + 1], "le") && i + 2 < w->n && !vowel_first(w->at[i + 2]) ? "du" : NULL;
}

/* ASCII, and the accented letters of two bytes that French words here begin with. */
static void capital(char *s)
{
    unsigned char *u = (unsigned char *)s;
    if (u[0] >= 'a' && u[0] <= 'z')
        u[0] = (unsigned char)(u[0] - 32);
    else if (u[0] == 0xC3 && u[1] >= 0xA0)
        u[1] = (unsigned char)(u[1] - 32);
}

/* Joins the words with blanks, elision and contraction in French; the question mark stands apart in
 * French alone. */
static void spell(char *out, size_t size, const words *w, bool french)
{
    size_t n = 0;
    bool question = !strcmp(w->at[w->n - 1], "?");
    const char *gap = "";
    for (int i = 0; i < w->n && n < size; i++) {
        const char *word = w->at[i], *one = french ? contracted(w, i) : NULL;
        bool last = i + 1 == w->n;
        if (one) i++, word = one;
        if (last && question && !french) gap = "";
        bool elided = french && !one && !last && loses_vowel(word) && vowel_first(w->at[i + 1]);
        n += (size_t)snprintf(out + n, size - n, "%s%.*s%s", gap, (int)(strlen(word) - elided),
                              word, elided ? "'" : "");
        gap = elided ? "" : " ";
    }
    if (!question && n < size) snprintf(out + n, size - n, ".");
    capital(out);
}

/* By a fixed key, so that a pair is held out for every seed or for none. */
static bool pair_held_out(const int pair[2])
{
    uint32_t r[4];
    fv_philox(r, 0x66726e63, (uint64_t)pair[0], 1, (uint64_t)pair[1]);
    return r[0] % 8 == 0;
}

/* Kinds that are listed more often are more frequent. */
void fv_grammar_sentence(fv_grammar_pair *out, uint64_t seed, uint64_t i)
{
    static void (*const kinds[])(
        sentence *) = {statement, statement,   statement, wish,     wish,        wish,  denial,
                       denial,    description, location,  question, whereabouts, taste, taste};
    sentence s = {.seed = seed, .i = i};
    kinds[draw(&s, COUNT(kinds))](&s);
    spell(out->en, sizeof out->en, &s.en, false);
    spell(out->fr, sizeof out->fr, &s.fr, true);
    out->held_out = pair_held_out(s.pair);
}
