/* train.c - fv_tok_train: count the pieces of all texts, then learn a vocabulary from them.
 *
 *    texts -> stages around the model -> pieces with counts -> BPE, WordPiece, Unigram or words
 *
 * Counting goes through the very encoder that will be used (on_piece), so training and encoding
 * cannot disagree on what a word is.  Words are sorted before learning: the result does not
 * depend on the order of the texts, nor on a hash seed.
 *
 * Phases, each of which can end in an error sentence: set_stages (normaliser, splitter, decoder
 * as JSON), count_words (one pass over the texts), set_specials, set_model (bpe.c, unigram.c or
 * train_words), fv__tok_finish (tables for encoding). Memory is that of the distinct words, not
 * of the corpus.
 *
 * Special tokens have the lowest ids, then the alphabet, then what was learned. The result is a
 * tokenizer like any other: fv_tok_save writes it as a tokenizer.json that transformers opens. */
#include "train.h"
#include "tok/open/unpack.h"
#include "tok/work.h"

static const fv_tok_train_opts defaults;

/* ---- specials ---- */

/* Bytes can write every text; all others need a token for what they do not know. */
static const char *unknown_token(fv_tok_kind kind)
{
    return kind == FV_TOK_BYTE_BPE ? NULL : kind == FV_TOK_WORDPIECE ? "[UNK]" : "<unk>";
}

/* What was asked for, or the usual ones; an unknown token where the kind cannot do without. */
static bool set_specials(fv__trainer *r)
{
    static const char *const gpt[] = {"<|endoftext|>", NULL}, *const bert[] = {"[PAD]",  "[UNK]",
                                                                               "[CLS]",  "[SEP]",
                                                                               "[MASK]", NULL};
    static const char *const pieces[] = {"<unk>", "<s>", "</s>", "<pad>", NULL};
    fv_tok_kind kind = r->o->kind;
    const char *const *list = r->o->specials             ? r->o->specials
                              : kind == FV_TOK_BYTE_BPE  ? gpt
                              : kind == FV_TOK_WORDPIECE ? bert
                                                         : pieces;
    const char *unknown = unknown_token(kind);
    bool there = !unknown;
    for (int i = 0; list[i] && !there; i++) there = !strcmp(list[i], unknown);
    if (!there && fv__set_add(&r->specials, unknown, strlen(unknown)) < 0) return false;
    for (int i = 0; list[i]; i++)
        if (*list[i] && fv__set_add(&r->specials, list[i], strlen(list[i])) < 0) return false;
    return true;
}

/* ---- counting ---- */

static bool count_piece(void *self, const char *s, size_t n)
{
    fv__set *words = self;
    int32_t i = fv__set_add(words, s, n);
    if (i >= 0) words->v[i].count++;
    return i >= 0;
}

static fv_status count_words(fv__trainer *r, fv_tok_source texts)
{
    fv_encoding *enc;
    fv_status st = fv_encoding_new(&enc, r->t, r->e);
    if (st != FV_OK) return st;
    fv__work *w = (fv__work *)enc;
    /* The encoder stops at pieces and hands them over instead of asking a model. */
    w->on_piece = count_piece;
    w->on_piece_self = &r->words;
    const char *text;
    size_t n;
    int64_t seen = 0;
    while (st == FV_OK && texts.next(texts.self, &text, &n)) {
        if (!fv__encode_text(r->t, w, text, n, &w->tokens[0]))
            st = fv_fail(r->e, w->err.code, "%s", w->err.text);
        if (++seen % 1024 == 0) fv__progress(r, "reading", 0);
    }
    fv_encoding_free(enc);
    if (st == FV_OK && !fv__set_sort(&r->words, false)) st = fv__train_no_memory(r);
    return st;
}

/* ---- the tokenizer around the model ---- */

#define META "\\u2581"
#define BYTES(trim, regex)                                                                         \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":" trim                    \
    ",\"use_regex\":" regex "}"
/* As transformers' class Qwen2Tokenizer has it. */
#define QWEN2_SPLIT                                                                                \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"                   \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"   \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define METASPACE                                                                                  \
    "{\"type\":\"Metaspace\",\"replacement\":\"" META                                              \
    "\",\"prepend_scheme\":\"always\",\"split\":true}"

static void put_normaliser(fv_buf *b, const fv_tok_train_opts *o)
{
    const char *lower = o->lowercase ? "true" : "false";
    if (o->kind == FV_TOK_WORDPIECE)
        fv__buf_fmt(b,
                    "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_"
                    "chinese_chars\":true,\"strip_"
                    "accents\":null,"
                    "\"lowercase\":%s},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
                    "\"decoder\":{\"type\":\"WordPiece\","
                    "\"prefix\":\"##\","
                    "\"cleanup\":true}",
                    lower);
    else if (o->split == FV_TOK_SPLIT_QWEN2)
        fv__buf_str(b, "\"normalizer\":{\"type\":\"NFC\"}");
    else
        fv__buf_fmt(b, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s%s%s]}",
                    o->nfkc ? "{\"type\":\"NFKC\"}" : "", o->nfkc && o->lowercase ? "," : "",
                    o->lowercase ? "{\"type\":\"Lowercase\"}" : "");
}

/* The stages around the model, as the JSON they will be saved as. */
static fv_status set_stages(fv__trainer *r)
{
    const fv_tok_train_opts *o = r->o;
    fv_buf b = {.env = r->t->env};
    fv__buf_str(&b, "{");
    put_normaliser(&b, o);
    if (o->split == FV_TOK_SPLIT_QWEN2)
        fv__buf_str(&b, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" QWEN2_SPLIT
                        "," BYTES("true", "false") "]},\"decoder\":" BYTES("true", "true"));
    else if (o->kind == FV_TOK_BYTE_BPE)
        fv__buf_str(&b, ",\"pre_tokenizer\":" BYTES("true", "true") ",\"decoder\":" BYTES(
                            "true", "true") ",\"post_processor\":" BYTES("false", "true"));
    if (o->kind == FV_TOK_BPE || o->kind == FV_TOK_UNIGRAM)
        fv__buf_str(&b, ",\"pre_tokenizer\":" METASPACE ",\"decoder\":" METASPACE);
    if (o->kind == FV_TOK_WORD)
        fv__buf_str(&b, ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}");
    fv__buf_str(&b, "}");
    /* Encoding needs a model to be complete; counting never reaches it. */
    r->t->model.kind = FV__MODEL_WORDLEVEL; /* until the real one is there */
    bool ok = fv__vocab_init(&r->t->model.vocab, &r->t->pool, 0, 0, 0) && !b.failed;
    fv_status st = ok ? fv__json_load(r->t, b.data, b.len, "stages", r->e) : fv__train_no_memory(r);
    fv__buf_free(&b);
    return st;
}

/* What encoding puts around a text: BERT's frame for WordPiece, or what was asked for, as far as it
 * is in the vocabulary. */
static bool set_frame(fv__trainer *r)
{
    fv_tok *t = r->t;
    bool bert = t->model.kind == FV__MODEL_WORDPIECE && !r->o->before && !r->o->after;
    const char *name[2] = {bert ? "[CLS]" : r->o->before, bert ? "[SEP]" : r->o->after};
    int32_t id[2];
    for (int i = 0; i < 2; i++)
        id[i] = name[i] ? fv__vocab_id(&t->model.vocab, name[i], strlen(name[i])) : -1;
    if (id[0] < 0 && id[1] < 0) return true;
    t->post.specials = fv__pool_array(&t->pool, 2, sizeof *t->post.specials);
    if (!t->post.specials) return false;
    t->post.kind = bert ? FV__POST_BERT : FV__POST_TEMPLATE;
    for (int i = 0; i < 2; i++)
        /* The specials that exist are numbered 0 and 1 in the order before, after; the layouts
         * below refer to these digits. */
        if (id[i] >= 0 && !fv__post_special(t, t->post.specials + t->post.n_specials++,
                                            (fv__str){name[i], strlen(name[i])}, id[i]))
            return false;
    if (id[0] >= 0 && id[1] >= 0)
        return fv__post_layout(t, "00A010", bert ? "00A010B111" : "00A01010B010");
    return id[0] >= 0 ? fv__post_layout(t, "00A0", "00A0B0")
                      : fv__post_layout(t, "A000", "A000B000");
}

/* The most frequent words, and of equally frequent ones the first by text. */
static fv_status train_words(fv__trainer *r)
{
    fv__set *words = &r->words;
    fv__vocab *v = &r->t->model.vocab;
    int32_t special = r->specials.n, n = 0, most = r->vocab > special ? r->vocab - special : 0;
    if (!fv__set_sort(words, true)) return fv__train_no_memory(r);
    while (n < words->n && n < most && words->v[n].count >= r->min_count) n++;
    if (!fv__vocab_init(v, &r->t->pool, special + n, special + n, words->used + r->specials.used))
        return fv__train_no_memory(r);
    for (int32_t i = 0; i < special + n; i++) {
        fv__str s = i < special ? fv__set_str(&r->specials, i) : fv__set_str(words, i - special);
        fv__vocab_put(v, s.s, s.n, i); /* a word that is a special token keeps the first id */
    }
    return FV_OK;
}

static bool set_model(fv__trainer *r)
{
    fv_tok *t = r->t;
    fv__model *m = &t->model;
    static const fv__model_kind kinds[] = {FV__MODEL_BPE, FV__MODEL_BPE, FV__MODEL_WORDPIECE,
                                           FV__MODEL_UNIGRAM, FV__MODEL_WORDLEVEL};
    static fv_status (*const learn[])(fv__trainer *) = {fv__train_bpe, fv__train_bpe, fv__train_bpe,
                                                        fv__train_unigram, train_words};
    m->kind = kinds[r->o->kind];
    m->max_chars = 100;
    m->fuse_unk = r->o->kind == FV_TOK_BPE;
    if (m->kind == FV__MODEL_WORDPIECE) m->prefix = (fv__str){"##", 2};
    if (learn[r->o->kind](r) != FV_OK) return false;
    const char *unknown = unknown_token(r->o->kind);
    if (unknown) {
        m->unk_token = (fv__str){unknown, strlen(unknown)};
        m->has_unk_token = true;
        m->unk = fv__vocab_id(&m->vocab, unknown, strlen(unknown));
    }
    t->added.all = fv__pool_array(&t->pool, (size_t)r->specials.n, sizeof *t->added.all);
    if (!t->added.all) return fv__train_no_memory(r), false;
    /* Found by the text, never given to the model: "[MASK]" must not be cut into letters. */
    for (int32_t i = 0; i < r->specials.n; i++) {
        fv__str s = fv__set_str(&r->specials, i);
        fv__added *a = t->added.all + t->added.n++;
        if (!fv__pool_str(&t->pool, &a->content, s.s, s.n)) return fv__train_no_memory(r), false;
        a->special = true;
        a->id = fv__added_number(t, a->content);
    }
    return set_frame(r) || (fv__train_no_memory(r), false);
}

fv_status fv_tok_train(fv_tok **out, const fv_env *env, fv_tok_source texts,
                       const fv_tok_train_opts *o, fv_err *e)
{
    fv_err own = {0};
    *out = NULL;
    if (!o) o = &defaults;
    if ((unsigned)o->kind > FV_TOK_WORD || o->vocab < 0 || o->min_count < 0 || o->alphabet < 0 ||
        !texts.next)
        return fv_fail(e, FV_EARG, "fv_tok_train: an option is out of range");
    bool bytes = o->kind == FV_TOK_BYTE_BPE && !o->lowercase && !o->nfkc;
    if (o->split == FV_TOK_SPLIT_QWEN2 && !bytes)
        return fv_fail(e, FV_EARG,
                       "Qwen2's split is for byte-level BPE without lowercase and nfkc");
    fv_tok *t = fv__tok_new(env, e);
    if (!t) return FV_ENOMEM;
    fv__trainer r = {.t = t,
                     .o = o,
                     /* Defaults of the options that are zero. */
                     .vocab = o->vocab ? o->vocab : 8000,
                     .min_count = o->min_count ? o->min_count : 2,
                     .e = &own,
                     .words = {.env = t->env},
                     .specials = {.env = t->env}};
    fv_status st = set_stages(&r);
    if (st == FV_OK) st = count_words(&r, texts);
    if (st == FV_OK && !r.words.n)
        st = fv_fail(&own, FV_EARG, "there is no text to train a tokenizer on");
    if (st == FV_OK && !set_specials(&r)) st = fv__train_no_memory(&r);
    if (st == FV_OK && !set_model(&r)) st = own.code;
    if (st == FV_OK) st = fv__tok_finish(t, "the trained tokenizer", &own);
    fv__set_free(&r.words);
    fv__set_free(&r.specials);
    if (st == FV_OK) {
        *out = t;
        return FV_OK;
        /* own was filled first, since e may be NULL while the sentence is still needed. */
    }
    fv_tok_close(t);
    return fv_fail(e, st, "%s", own.text);
}

/* ---- files ---- */

/* As everywhere: gzip is unpacked, a byte-order mark and the CR of a line end are no text, and what
 * is not UTF-8 is refused with its line. */
typedef struct reader {
    const fv_env *env;
    const char *const *paths;
    int n, at;
    fv_file file;
    bool open;
    size_t pos;
    long long line;
    fv_err *e;
    fv_status st;
} reader;

/* The next line, without its end. */
static bool next_line(void *self, const char **text, size_t *len)
{
    reader *r = self;
    for (;;) {
        if (r->open && r->pos < r->file.size) {
            const char *s = r->file.data + r->pos, *nl = memchr(s, '\n', r->file.size - r->pos);
            *text = s;
            *len = nl ? (size_t)(nl - s) : r->file.size - r->pos;
            r->pos += *len + 1;
            r->line++;
            /* A line of a DOS file; a lone CR inside a line stays. */
            if (*len && s[*len - 1] == '\r') --*len;
            size_t good = fv__utf8_check(s, *len);
            if (good == *len) return true;
            r->st = fv_fail(r->e, FV_EFORMAT, "%s: line %lld: not UTF-8 at byte %zu",
                            r->paths[r->at - 1], r->line, good + 1);
            return false;
        }
        if (r->open) fv__file_close(&r->file);
        r->open = false;
        if (r->at == r->n) return false;
        r->st = fv__file_open(&r->file, r->env, r->paths[r->at++], r->e);
        if (r->st != FV_OK) return false;
        r->open = true;
        if (fv__is_gzip(&r->file))
            r->st = fv__inflate_file(&r->file, r->paths[r->at - 1], SIZE_MAX, r->e);
        if (r->st != FV_OK) return false;
        bool mark = r->file.size >= 3 && !memcmp(r->file.data, "\xEF\xBB\xBF", 3);
        r->pos = mark ? 3 : 0;
        r->line = 0;
    }
}

fv_status fv_tok_train_files(fv_tok **out, const fv_env *env, const char *const *paths, int n_paths,
                             const fv_tok_train_opts *o, fv_err *e)
{
    fv_err own = {0};
    reader r = {.env = env, .paths = paths, .n = n_paths, .e = &own};
    fv_status st = fv_tok_train(out, env, (fv_tok_source){next_line, &r}, o, e);
    if (r.open) fv__file_close(&r.file);
    if (r.st == FV_OK) return st;
    fv_tok_close(*out);
    *out = NULL;
    return fv_fail(e, r.st, "%s", own.text);
}
