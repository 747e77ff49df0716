/* tag.c - entities: runs of words, or of tokens, with one label.
 *
 * A label is the likeliest one.  I-X goes on with what was labelled X; B-X begins anew.  Labels
 * without B- and I- go on.  Taggers learn the label of a word's first token and nothing about the
 * others, so a word goes by its first (transformers' aggregation "first"); where every token was
 * taught, each may be asked ("simple").  A word is what the tokenizer's own splitting makes: that
 * of WordPiece is transformers' too, which for other tokenizers goes by blanks and says it is
 * guessing.
 *
 * Offsets are in characters (code points) of the input line, as transformers gives them. A
 * score is the mean of the probabilities of the tokens that decided, so a word of many tokens
 * counts once with "first". */
#include "task_pipeline.h"

/* One token's label and its probability.
 * The label is an index into the model's labels; 0 where no window decided, which does not
 * happen to tokens that are not special. */
typedef struct token_label {
    int32_t label;
    float score;
} token_label;

/* A part of a text that the model sees at once: tokens [at, at + n) between the special tokens
 * around a text.  It decides the labels of [from, to): where two windows overlap, each token goes
 * by the one in which it has more context. */
typedef struct window {
    int64_t text, lead, at, n, from, to;
} window;

typedef struct tagging {
    fv_task *t;
    const fv_seq *seqs;   /* whole texts */
    token_label **labels; /* of each text's tokens */
    fv_seq *parts;        /* windows, as the model reads them */
    window *windows;
    int64_t n_parts, capacity;
} tagging;

/* Words or tokens with one label that are not closed yet; n is 0: none. */
typedef struct open_run {
    const char *label;
    int64_t from, to, n;
    double score; /* sum over n */
} open_run;

static const char *without_prefix(const char *label)
{
    bool prefixed = (label[0] == 'B' || label[0] == 'I') && label[1] == '-';
    return prefixed ? label + 2 : label;
}

/* The score of an entity is the mean of its tokens' scores. */
static void finish(fv_entity *out, int64_t *n, int64_t text, open_run *r)
{
    /* "O" is a run like any other while it is open, and is dropped here. */
    if (r->n && strcmp(r->label, "O"))
        out[(*n)++] = (fv_entity){.text = text,
                                  .from = r->from,
                                  .to = r->to,
                                  .label = r->label,
                                  .score = (float)(r->score / (double)r->n)};
    *r = (open_run){0};
}

/* Token j belongs to the word of the token before it. */
static bool inside_word(const fv_seq *s, int64_t j)
{
    return j > 0 && s->words[j] >= 0 && s->words[j] == s->words[j - 1];
}

/* ---- windows ---- */

/* A text that fits is one part, unchanged; else a window [at, at + n) of its tokens, framed by its
 * special tokens. [from, to) are those whose labels are taken: the middle of the window, which has
 * context on both sides. */
static fv_status add_part(tagging *g, window w, fv_err *e)
{
    fv_task *t = g->t;
    const fv_seq *all = &g->seqs[w.text];
    if (g->n_parts == g->capacity) {
        /* Old arrays stay in the task's scratch until the next call. */
        int64_t more = g->capacity * 2 + 64;
        fv_seq *parts = fv__task_claim(t, (size_t)more * sizeof *parts, e);
        window *windows = fv__task_claim(t, (size_t)more * sizeof *windows, e);
        if (!parts || !windows) return FV_ENOMEM;
        if (g->n_parts) memcpy(parts, g->parts, (size_t)g->n_parts * sizeof *parts);
        if (g->n_parts) memcpy(windows, g->windows, (size_t)g->n_parts * sizeof *windows);
        g->parts = parts, g->windows = windows, g->capacity = more;
    }
    fv_seq *s = &g->parts[g->n_parts];
    *s = *all;
    g->windows[g->n_parts++] = w;
    if (w.n == all->n) return FV_OK;
    int64_t tail = 0; /* special tokens behind the text */
    while (tail < all->n - w.lead && all->special[all->n - 1 - tail]) tail++;
    s->n = w.lead + w.n + tail;
    s->ids = fv__task_claim(t, (size_t)s->n * sizeof *s->ids, e);
    s->types = fv__task_claim(t, (size_t)s->n * sizeof *s->types, e);
    int64_t most = t->word_bytes;
    s->letters = fv__task_claim(t, (size_t)(s->n * most) * sizeof *s->letters, e);
    if (!s->ids || !s->types || !s->letters) return FV_ENOMEM;
    for (int64_t i = 0; i < s->n; i++) {
        /* Special tokens of the whole text frame every window: the model saw no text without
         * them. */
        int64_t j = i < w.lead ? i : w.at + i - w.lead;
        if (i >= w.lead + w.n) j = all->n - tail + i - w.lead - w.n;
        s->ids[i] = all->ids[j];
        s->types[i] = all->types[j];
        if (most)
            memcpy(s->letters + i * most, all->letters + j * most,
                   (size_t)most * sizeof *s->letters);
    }
    return FV_OK;
}

/* Long texts are read in windows that overlap by a quarter; of the overlap each token is taken
 * from the window in which it has more context. */
static fv_status add_windows(tagging *g, int64_t text, fv_err *e)
{
    const fv_seq *s = &g->seqs[text];
    int64_t lead = 0, end = s->n, most = g->t->longest;
    if (!most || s->n <= most) return add_part(g, (window){.text = text, .n = s->n, .to = s->n}, e);
    while (lead < s->n && s->special[lead]) lead++;
    while (end > lead && s->special[end - 1]) end--;
    /* Special tokens take part of what the model sees. */
    int64_t budget = most - lead - (s->n - end), overlap = budget / 4;
    if (budget < 2)
        return fv_fail(e, FV_EARG, "a model that sees %lld tokens has no room for a text",
                       (long long)most);
    fv_status st = FV_OK;
    for (int64_t at = lead; !st;) {
        bool last = at + budget >= end;
        window w = {.text = text, .lead = lead, .at = at, .n = last ? end - at : budget};
        /* The overlap is halved between neighbours; first and last window also decide the ends. */
        w.from = at == lead ? 0 : at + overlap / 2;
        w.to = last ? s->n : at + budget - (overlap - overlap / 2);
        st = add_part(g, w, e);
        if (last) break;
        at += budget - overlap;
    }
    return st;
}

/* ---- labels ---- */

/* Labels are chosen among the first tokens of words, which are all that taggers learn about,
 * where they are chosen together; the other tokens go with their word.  Else each token has its
 * own.  Scores are the token's own probability of the label. */
static fv_status label_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    const tagging *g = user;
    const window *w = &g->windows[i];
    const fv_seq *all = &g->seqs[w->text];
    token_label *labels = g->labels[w->text];
    int64_t n = 0, *at = fv__task_claim(g->t, (size_t)s->n * sizeof *at, e);
    int32_t *best = fv__task_claim(g->t, (size_t)s->n * sizeof *best, e);
    float *p = fv__task_claim(g->t, (size_t)width * sizeof *p, e);
    if (!at || !best || !p) return FV_ENOMEM;
    bool together = g->t->transitions;
    for (int64_t j = w->lead; j < w->lead + w->n && j < s->n; j++)
        if (!together ||
            !(all->special[w->at + j - w->lead] || inside_word(all, w->at + j - w->lead)))
            at[n++] = j;
    fv_status st = fv__task_decode(g->t, best, out[0], at, n, width, e);
    for (int64_t k = 0; !st && k < n; k++) {
        int64_t last = together ? w->lead + w->n : at[k] + 1, end = k + 1 < n ? at[k + 1] : last;
        memcpy(p, out[0] + at[k] * width, (size_t)width * sizeof *p);
        fv__softmax_row(p, width);
        for (int64_t j = at[k]; j < end && j < s->n; j++) {
            int64_t token = w->at + j - w->lead;
            if (token < w->from || token >= w->to) continue;
            labels[token] = (token_label){best[k], p[best[k]]};
        }
    }
    return st;
}

/* The entities of one text; returns how many. */
static int64_t join_labels(const fv_task *t, int64_t text, const fv_seq *s,
                           const token_label *labels, fv_join join, fv_entity *out)
{
    open_run run = {0};
    int64_t n = 0;
    for (int64_t j = 0; j < s->n; j++) {
        if (s->special[j]) continue;
        /* The word's other tokens lengthen the span and have no say about the label. */
        if (join == FV_JOIN_FIRST && inside_word(s, j)) {
            run.to = s->spans[j].to;
            continue;
        }
        const char *label = fv_task_label(t, labels[j].label), *bare = without_prefix(label);
        bool begins = label != bare && label[0] == 'B';
        if (run.n && (begins || strcmp(bare, run.label))) finish(out, &n, text, &run);
        if (!run.n) run = (open_run){.label = bare, .from = s->spans[j].from};
        run.to = s->spans[j].to;
        run.score += (double)labels[j].score;
        run.n++;
    }
    finish(out, &n, text, &run);
    return n;
}

/* All windows of all texts run together; labels[i] are those of text i. */
static fv_status label_all(tagging *g, const fv_text *texts, int64_t n, fv_err *e)
{
    fv_task *t = g->t;
    fv_seq *seqs = fv__task_claim(t, (size_t)n * sizeof *seqs, e);
    g->labels = fv__task_claim(t, (size_t)n * sizeof *g->labels, e);
    fv_status st = seqs && g->labels ? FV_OK : FV_ENOMEM;
    g->seqs = seqs;
    for (int64_t i = 0; i < n && !st; i++) {
        st = fv__task_encode(t, &seqs[i], &texts[i], 0, e);
        if (st) break;
        g->labels[i] = fv__task_claim(t, (size_t)seqs[i].n * sizeof **g->labels, e);
        st = g->labels[i] ? add_windows(g, i, e) : FV_ENOMEM;
    }
    fv_wanted w = {.names = {"logits"}, .per_token = t->labels, .fn = label_row, .user = g};
    return st ? st : fv__task_run(t, g->parts, g->n_parts, &w, e);
}

/* Entities live until the next call, as all results of a task do. */
fv_status fv_task_tag(fv_task *t, const fv_text *texts, int64_t n, fv_join join, fv_entity **found,
                      int64_t *n_found, fv_err *e)
{
    tagging g = {.t = t};
    int64_t total = 0;
    fv__task_begin(t);
    fv_status st = label_all(&g, texts, n, e);
    if (st) return st;
    /* No more entities than tokens. */
    for (int64_t i = 0; i < n; i++) total += g.seqs[i].n;
    fv_entity *all = *found = fv__task_claim(t, (size_t)total * sizeof *all, e);
    *n_found = 0;
    if (!all) return FV_ENOMEM;
    for (int64_t i = 0; !st && i < n; i++) {
        fv_chars chars;
        fv_entity *x = all + *n_found;
        int64_t some = join_labels(t, i, &g.seqs[i], g.labels[i], join, x);
        st = fv__task_chars(t, &chars, texts[i].s, texts[i].n, e);
        for (int64_t k = 0; !st && k < some; k++)
            x[k].s = fv__chars_slice(&chars, x[k].from, x[k].to, &x[k].n);
        *n_found += some;
    }
    return st;
}

/* ---- the task ---- */

typedef struct tag_options {
    int aggregation; /* fv_join */
} tag_options;

static const char *const joins[] = {"first", "simple", NULL}; /* in the order of fv_join */

static const fv_field options[] = {
    FV_CHOICE(tag_options, aggregation, 0, joins,
              "what is joined: words by their first token, or tokens as they are"),
    {0}};

static fv_status open_task(fv_pipeline *p, fv_err *e) { return fv__open_encoder(p, FV_JOB_TAG, e); }

/* record, from, to (characters), label, score, text; tab-separated, so that cut and sort can be
 * used. */
static void put_plain(fv_pipeline *p, const fv_entity *x)
{
    fv__buf_fmt(&p->out, "%lld\t%lld\t%lld\t%s\t%.6f\t", (long long)(p->first + p->done),
                (long long)x->from, (long long)x->to, x->label, (double)x->score);
    fv__put_flat(&p->out, x->s, x->n);
    fv__buf_str(&p->out, "\n");
}

static void put_json(fv_buf *b, const fv_entity *x)
{
    fv__json_begin(b, '{');
    fv__json_text_at(b, "label", x->label, strlen(x->label));
    fv__json_number_at(b, "score", (double)x->score);
    fv__json_int_at(b, "start", x->from);
    fv__json_int_at(b, "end", x->to);
    fv__json_text_at(b, "text", x->s, x->n);
    fv__json_end(b, '}');
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    const tag_options *o = p->options;
    fv_entity *found;
    int64_t n_found, at = 0;
    fv_status st = fv_task_tag(p->task, in, n, (fv_join)o->aggregation, &found, &n_found, e);
    for (int64_t i = 0; i < n && !st; i++) {
        if (p->opt.json) {
            fv__json_begin(&p->out, '{');
            fv__json_text_at(&p->out, "text", in[i].s, in[i].n);
            fv__json_key(&p->out, "entities");
            fv__json_begin(&p->out, '[');
        }
        /* Entities come sorted by text. */
        for (; at < n_found && found[at].text == i; at++) {
            if (p->opt.json)
                put_json(&p->out, &found[at]);
            else
                put_plain(p, &found[at]);
        }
        if (p->opt.json) fv__buf_str(&p->out, "]}\n");
        st = fv__task_emit(p, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"echo 'Angela Merkel was born in Hamburg.' | fovea tag -m bert-ner",
     "line, from, to, label, probability, words"},
    {"fovea tag -m bert-ner --json < news.txt", "for scripts"},
    {0}};

const fv_task_kind fv__tag_task = {
    .name = "tag",
    .summary = "find entities in texts",
    .about = "Reads lines and prints the entities in each: where they stand (in characters of the "
             "line), their label and its mean probability.  A word has the label of its first "
             "token, which is what taggers learn; words with one label are joined, B- begins a new "
             "entity, and O is left out: transformers' aggregation \"first\".  With \"simple\" "
             "every token goes by its own label.  Texts longer than the model sees are read in "
             "windows that overlap.",
    .examples = examples,
    .options = options,
    .size = sizeof(tag_options),
    .batch = 256,
    .open = open_task,
    .run = run,
    .eval = &fv__eval_tag};
