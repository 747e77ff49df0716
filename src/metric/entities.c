/* entities.c - entities as conlleval counts them: where one begins and ends follows from
 * neighbouring tags alone, in IOB1, IOB2 and IOBES alike.
 *
 * An entity is right when both its ends and its type are.  One pass walks gold and predicted
 * tags side by side and counts an entity when it ends. */
#include "fovea/author/metric.h"

#include <stdio.h>
#include <string.h>

/* "B-PER": the letter before the first dash, and what is behind it. */
typedef struct tag {
    char letter; /* O for none; a tag without a dash is its first letter */
    const char *type;
} tag;

static tag read_tag(const char *s)
{
    const char *dash = strchr(s, '-');
    return (tag){*s ? *s : 'O', dash ? dash + 1 : ""};
}

/* Whether an entity that `before` belongs to ends before `now`. */
static bool ends(tag before, tag now)
{
    if (before.letter == 'O') return false;
    return before.letter == 'E' || before.letter == 'S' || strchr("BSO", now.letter) ||
           strcmp(before.type, now.type);
}

/* Whether an entity begins at `now`. */
static bool starts(tag before, tag now)
{
    if (now.letter == 'O') return false;
    return now.letter == 'B' || now.letter == 'S' || strchr("ESO", before.letter) ||
           strcmp(before.type, now.type);
}

/* The counts of a type, kept in order of name; NULL where there are too many types, which then
 * count in the total alone. */
static fv_match *match_of(fv_entities *x, const char *name)
{
    int i = 0;
    while (i < x->n && strncmp(x->type[i].name, name, sizeof x->type[i].name - 1) < 0) i++;
    if (i < x->n && !strncmp(x->type[i].name, name, sizeof x->type[i].name - 1))
        return &x->type[i].match;
    if (x->n == FV_MAX_ENTITY_TYPES) return NULL;
    memmove(&x->type[i + 1], &x->type[i], (size_t)(x->n++ - i) * sizeof *x->type);
    memset(&x->type[i], 0, sizeof x->type[i]);
    snprintf(x->type[i].name, sizeof x->type[i].name, "%s", name);
    return &x->type[i].match;
}

static void add(fv_entities *x, const char *type, fv_match more)
{
    fv_match *both[] = {&x->all, match_of(x, type)};
    for (int i = 0; i < 2 && both[i]; i++) {
        both[i]->right += more.right;
        both[i]->given += more.given;
        both[i]->gold += more.gold;
    }
}

typedef struct side {
    tag before;
    int64_t from; /* where the open entity began; -1: none is open */
} side;

/* May be called sentence by sentence: no entity goes on across calls. */
void fv_entities_add(fv_entities *x, const char *const *gold, const char *const *given, int64_t n)
{
    side a = {.before = {'O', ""}, .from = -1}, b = a;
    for (int64_t i = 0; i <= n; i++) { /* the end of a sentence is like a word outside */
        tag wanted = read_tag(i < n ? gold[i] : "O"), got = read_tag(i < n ? given[i] : "O");
        bool end_a = a.from >= 0 && ends(a.before, wanted),
             end_b = b.from >= 0 && ends(b.before, got);
        bool same = end_a && end_b && a.from == b.from && !strcmp(a.before.type, b.before.type);
        if (end_a) add(x, a.before.type, (fv_match){.gold = 1, .right = same});
        if (end_b) add(x, b.before.type, (fv_match){.given = 1});
        if (end_a) a.from = -1;
        if (end_b) b.from = -1;
        if (starts(a.before, wanted)) a.from = i;
        if (starts(b.before, got)) b.from = i;
        a.before = wanted;
        b.before = got;
        if (i < n) x->right_words += !strcmp(gold[i], given[i]);
    }
    x->words += n;
}
