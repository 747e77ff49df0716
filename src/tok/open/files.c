/* files.c - vocab.txt, and vocab.json with merges.txt: formats that hold a vocabulary and leave the
 * rest to a class in Python.
 *
 * For the classes known here that rest is written as the JSON it is everywhere else, and goes
 * through the same reader.
 *
 *     vocab.txt                 one token a line, id = line - 1            BERT, DistilBERT,
 * ELECTRA
 *
 *     vocab.json + merges.txt   {"token": id}, "a b" by rank, #version     GPT-2, RoBERTa,
 * BART, CLIP
 *
 * What a class in Python adds to these files (normaliser, splitter, template, special tokens)
 * is not in them. A class that is not known is refused by name: guessing would give plausible
 * and wrong ids. The sections below are the ones of the converters in transformers
 * (convert_slow_tokenizer.py), so that both ways of opening a model agree. */
#include <stdio.h>

#include "open.h"

/* ---- sections written here ---- */

static void put_json(fv_buf *b, fv__str s)
{
    fv__buf_str(b, "\"");
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.s[i];
        if (c == '"' || c == '\\' || c < 0x20)
            fv__buf_fmt(b, "\\u%04x", c);
        else
            fv__buf_add(b, s.s + i, 1);
    }
    fv__buf_str(b, "\"");
}

typedef struct added {
    bool lstrip, normalized, special;
} added;

/* An entry of added_tokens. */
static void put_token(fv_buf *b, fv__str s, int32_t id, added how)
{
    fv__buf_str(b, b->len && b->data[b->len - 1] == '}' ? ",{\"content\":" : "{\"content\":");
    put_json(b, s);
    fv__buf_fmt(b,
                ",\"id\":%d,\"single_word\":false,\"lstrip\":%s,\"rstrip\":false,\"normalized\":%s,"
                "\"special\":%s}",
                id, how.lstrip ? "true" : "false", how.normalized ? "true" : "false",
                how.special ? "true" : "false");
}

/* A special one, if the vocabulary has it. */
static void put_added(fv_buf *b, const fv_tok *t, fv__str s, bool lstrip, bool normalized)
{
    int32_t id = fv__vocab_id(&t->model.vocab, s.s, s.n);
    if (id >= 0) put_token(b, s, id, (added){lstrip, normalized, true});
}

/* Defaults of the Python classes written out as JSON: one reader, one set of checks, and what a
 * class means can be compared with a published tokenizer.json. */
static fv_status load_sections(fv_tok *t, fv_buf *b, const char *file, fv_err *e)
{
    fv_status st = b->failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", file)
                             : fv__json_load(t, b->data, b->len, file, e);
    fv__buf_free(b);
    return st;
}

/* ---- vocab.txt ---- */

static bool blank(char c) { return c == ' ' || (c >= 9 && c <= 13); }

/* One token a line; its number is the line's. */
static fv_status read_lines(fv_tok *t, const fv_file *f, const char *path, fv_err *e)
{
    /* Trailing white space is not part of a token, and an empty line still has a number: ids are
     * lines. */
    int64_t lines = 0, id = 0;
    for (size_t i = 0; i < f->size; i++) lines += f->data[i] == '\n';
    if (fv__utf8_check(f->data, f->size) != f->size)
        return fv_fail(e, FV_EFORMAT, "%s: it is not UTF-8", path);
    if (!fv__vocab_init(&t->model.vocab, &t->pool, lines + 1, lines + 1, f->size))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < f->size; id++) {
        const char *nl = memchr(f->data + i, '\n', f->size - i);
        size_t end = nl ? (size_t)(nl - f->data) : f->size, to = end;
        while (to > i && blank(f->data[to - 1])) to--;
        if (to > i && fv__vocab_put(&t->model.vocab, f->data + i, to - i, (int32_t)id) != FV__ADDED)
            return fv_fail(e, FV_EFORMAT, "%s: line %lld: \"%.*s\" is there twice", path,
                           (long long)id + 1, (int)(to - i < 60 ? to - i : 60), f->data + i);
        i = end + 1;
    }
    return FV_OK;
}

/* No config: a vocabulary with capitals in its words is a cased one.
 * Uncased vocabularies have capitals in special tokens only, which begin with a bracket. */
static bool has_capitals(const fv__vocab *v)
{
    for (int32_t id = 0; id < v->size; id++) {
        fv__str s = fv__vocab_str(v, id);
        if (!s.n || *s.s == '[' || *s.s == '<') continue;
        for (size_t i = 0; i < s.n; i++)
            if (s.s[i] >= 'A' && s.s[i] <= 'Z') return true;
    }
    return false;
}

/* EsmTokenizer: a text is cut wherever a token of the vocabulary stands, and a word between them is
 * unknown.  So every token is an added one, and the model only knows what is unknown. */
static fv_status load_esm(fv_tok *t, const char *path, fv_err *e)
{
    static const char *const specials[] = {"<cls>", "<pad>", "<eos>", "<unk>", "<mask>"};
    fv__model *m = &t->model;
    m->kind = FV__MODEL_WORDLEVEL;
    m->unk_token = (fv__str){"<unk>", 5};
    m->has_unk_token = true;
    fv_status st = FV_OK;
    for (int i = 0; i < 5 && st == FV_OK; i++)
        st = fv__need(t, (fv__str){specials[i], strlen(specials[i])}, path, e);
    if (st != FV_OK) return st;
    m->unk = fv__vocab_id(&m->vocab, m->unk_token.s, m->unk_token.n);
    fv_buf b = {.env = t->env};
    fv__buf_fmt(&b,
                "{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"post_processor\":{\"type\":"
                "\"BertProcessing\",\"cls\":[\"<cls>\",%d],\"sep\":[\"<eos>\",%d]},"
                "\"added_tokens\":[",
                fv__vocab_id(&m->vocab, "<cls>", 5), fv__vocab_id(&m->vocab, "<eos>", 5));
    for (int32_t id = 0; id < m->vocab.size; id++) {
        fv__str s = fv__vocab_str(&m->vocab, id);
        bool special = false;
        for (int i = 0; i < 5; i++) special = special || fv__str_is(s, specials[i]);
        if (s.n) put_token(&b, s, id, (added){.special = special});
    }
    fv__buf_str(&b, "]}");
    return load_sections(t, &b, path, e);
}

fv_status fv__load_vocab_txt(fv_tok *t, const char *path, fv_err *e)
{
    char dir[FV__MAX_PATH];
    fv__config c;
    fv_file f;
    fv__tok_directory(dir, path);
    fv_status st = fv__load_config(&c, t, dir, e);
    if (st == FV_OK) st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    st = read_lines(t, &f, path, e);
    fv__file_close(&f);
    /* An empty class means that there is no tokenizer_config.json, or none that names one. */
    static const char *const classes[] = {"", "BertTokenizer", "DistilBertTokenizer",
                                          "ElectraTokenizer", NULL};
    if (st == FV_OK && !c.class.n) st = fv__class_of_model(&c.class, t, dir, e);
    if (st == FV_OK && fv__str_is(c.class, "EsmTokenizer")) return load_esm(t, path, e);
    bool known = false;
    for (int i = 0; classes[i]; i++) known = known || fv__str_is(c.class, classes[i]);
    if (st == FV_OK && !known)
        return fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", path,
                       c.class.s);
    fv__model *m = &t->model;
    m->kind = FV__MODEL_WORDPIECE;
    m->prefix = (fv__str){"##", 2};
    m->max_chars = 100;
    m->unk_token = c.unk;
    m->has_unk_token = true;
    if (st == FV_OK) m->unk = fv__vocab_id(&m->vocab, c.unk.s, c.unk.n);
    if (st != FV_OK || (st = fv__need(t, c.cls, path, e)) != FV_OK ||
        (st = fv__need(t, c.sep, path, e)) != FV_OK)
        return st;
    /* do_lower_case of the config wins; without it the vocabulary tells. */
    bool lower = c.has_lower ? c.lower : !has_capitals(&m->vocab);
    fv_buf b = {.env = t->env};
    fv__buf_fmt(&b,
                "{\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_"
                "chars\":%s,\"strip_accents\":%s,"
                "\"lowercase\":%s},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":{"
                "\"type\":\"WordPiece\",\"prefix\":\"##"
                "\","
                "\"cleanup\":true},\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[",
                c.cjk ? "true" : "false",
                !c.has_accents ? "null"
                : c.accents    ? "true"
                               : "false",
                lower ? "true" : "false");
    put_json(&b, c.cls);
    fv__buf_fmt(&b, ",%d],\"sep\":[", fv__vocab_id(&m->vocab, c.cls.s, c.cls.n));
    put_json(&b, c.sep);
    fv__buf_fmt(&b, ",%d]},\"added_tokens\":[", fv__vocab_id(&m->vocab, c.sep.s, c.sep.n));
    const fv__str specials[] = {c.pad, c.unk, c.cls, c.sep, c.mask};
    for (int i = 0; i < 5; i++) put_added(&b, t, specials[i], false, false);
    fv__buf_str(&b, "]}");
    return load_sections(t, &b, path, e);
}

/* ---- vocab.json and merges.txt ---- */

fv_status fv__load_vocab_json(fv__vocab *out, fv_tok *t, const char *path, fv_err *e)
{
    fv_file f;
    fv__jval root = {0};
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    fv__json j = {.s = f.data, .n = f.size, .file = path};
    st = fv__json_open(&root, &j, e);
    if (st == FV_OK) st = fv__json_vocab(out, &t->pool, root, e);
    fv__file_close(&f);
    return st;
}

static fv_status read_merges(fv_tok *t, const fv_file *f, const char *path, fv_err *e)
{
    int64_t lines = 1, line = 0;
    int32_t n = 0;
    for (size_t i = 0; i < f->size; i++) lines += f->data[i] == '\n';
    if (lines > INT32_MAX / 4) return fv_fail(e, FV_EFORMAT, "%s: too many merges", path);
    char *joined = fv__alloc(t->env, f->size + 1);
    fv_status st = joined && fv__merge_table(&t->model, &t->pool, (int32_t)lines)
                       ? FV_OK
                       : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < f->size && st == FV_OK; line++) {
        const char *nl = memchr(f->data + i, '\n', f->size - i), *s = f->data + i;
        size_t end = nl ? (size_t)(nl - f->data) : f->size, len = end - i;
        if (len && s[len - 1] == '\r') len--;
        i = end + 1;
        /* Lines that say "#version" are skipped wherever they stand, and take no rank; "#" alone
         * is a token of many vocabularies and must stay. */
        if ((len >= 8 && !memcmp(s, "#version", 8)) || !len) continue;
        const char *space = memchr(s, ' ', len),
                   *why = "two tokens with a space between were expected";
        size_t first = space ? (size_t)(space - s) : 0;
        if (space && !memchr(space + 1, ' ', len - first - 1))
            why = fv__bpe_add(&t->model, n++, (fv__str){s, first},
                              (fv__str){space + 1, len - first - 1}, joined);
        if (why) st = fv_fail(e, FV_EFORMAT, "%s: line %lld: %s", path, (long long)line + 1, why);
    }
    fv__free(t->env, joined, f->size + 1);
    return st;
}

#define BYTE_LEVEL(trim)                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":" trim "}"

/* GPT-2 adds nothing around a text: its post_processor is there for offsets alone. */
static void put_gpt2(fv_buf *b, const fv_tok *t, const fv__config *c)
{
    const char *prefix = c->prefix_space ? "true" : "false";
    fv__buf_fmt(b,
                "{\"pre_tokenizer\":" BYTE_LEVEL("true") ",\"decoder\":" BYTE_LEVEL(
                    "true") ",\"post_processor\":" BYTE_LEVEL("false") ",\"added_tokens\":[",
                prefix, prefix, prefix);
    put_added(b, t, (fv__str){"<|endoftext|>", 13}, false, true);
    fv__buf_str(b, "]}");
}

/* <mask> takes the space before it along (lstrip), so that "a <mask>" is two words. */
static void put_roberta(fv_buf *b, const fv_tok *t, const fv__config *c)
{
    static const char *const specials[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"};
    const char *prefix = c->prefix_space ? "true" : "false";
    fv__buf_fmt(b,
                "{\"pre_tokenizer\":" BYTE_LEVEL("true") ",\"decoder\":" BYTE_LEVEL(
                    "true") ",\"post_processor\":"
                            "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",%d],\"sep\":[\"</"
                            "s>\",%d],\"trim_offsets\":true,\"add_prefix_space\":%s},"
                            "\"added_tokens\":[",
                prefix, prefix, fv__vocab_id(&t->model.vocab, "<s>", 3),
                fv__vocab_id(&t->model.vocab, "</s>", 4), prefix);
    for (int i = 0; i < 5; i++)
        put_added(b, t, (fv__str){specials[i], strlen(specials[i])}, i == 4, i != 4);
    fv__buf_str(b, "]}");
}

/* CLIP lowercases, squeezes white space and marks the end of words by </w>; its splitter has no
 * " ?" in front of words, since spaces are dropped. */
static void put_clip(fv_buf *b, const fv_tok *t)
{
    fv__str start = {"<|startoftext|>", 15}, end = {"<|endoftext|>", 13};
    fv__buf_fmt(b,
                "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{"
                "\"type\":\"Replace\",\"pattern\":{\"Regex\":"
                "\"\\\\s+\"},"
                "\"content\":\" "
                "\"},{\"type\":\"Lowercase\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
                "\"pretokenizers\":[{\"type\":\"Split\","
                "\"pattern\":{\"Regex\":\"<\\\\|startoftext\\\\|>|<\\\\|endoftext\\\\|>|'s|'t|'re|'"
                "ve|'m|'ll|'d|[\\\\p{L}]+|[\\\\p{N}]|"
                "[^\\\\s\\\\p{L}\\\\p{N}]+\"},\"behavior\":\"Removed\",\"invert\":true},{\"type\":"
                "\"ByteLevel\",\"add_prefix_space\":"
                "false,"
                "\"trim_offsets\":true}]},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                "true,\"trim_offsets\":true},\"post_"
                "processor\":"
                "{\"type\":\"RobertaProcessing\",\"cls\":[\"<|startoftext|>\",%d],\"sep\":[\"<|"
                "endoftext|>\",%d],\"trim_offsets\":false,"
                "\"add_prefix_space\":false},\"added_tokens\":[",
                fv__vocab_id(&t->model.vocab, start.s, start.n),
                fv__vocab_id(&t->model.vocab, end.s, end.n));
    put_added(b, t, start, false, false);
    put_added(b, t, end, false, false);
    fv__buf_str(b, "]}");
}

/* Without a class in tokenizer_config.json the special tokens tell: CLIP has <|startoftext|>,
 * RoBERTa and BART <s>, GPT-2 neither. */
/* ---- vocab.json alone: letters, of models that hear (wav2vec2) ---- */

/* Each character is a token, and a blank is the token "|".  Text is decoded as it stands: which
 * repeats and blanks of frames count is the recogniser's business. */
fv_status fv__load_letters(fv_tok *t, const char *dir, fv_err *e)
{
    static const char *const specials[] = {"<pad>", "<s>", "</s>", "<unk>", "[PAD]", "[UNK]"};
    char vocab[FV__MAX_PATH];
    fv__config c;
    fv_buf b = {.env = t->env};
    if (!fv__tok_join(vocab, dir, "vocab.json"))
        return fv_fail(e, FV_EARG, "%.200s: the path is too long", dir);
    fv_status st = fv__load_config(&c, t, dir, e);
    fv__model *m = &t->model;
    if (st == FV_OK) st = fv__load_vocab_json(&m->vocab, t, vocab, e);
    if (st == FV_OK && c.class.n && !fv__str_is(c.class, "Wav2Vec2CTCTokenizer"))
        st = fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", vocab,
                     c.class.s);
    if (st == FV_OK) st = fv__need(t, (fv__str){"|", 1}, vocab, e);
    if (st != FV_OK) return st;
    m->kind = FV__MODEL_WORDLEVEL;
    m->unk_token = c.unk.n ? c.unk : (fv__str){"<unk>", 5};
    m->has_unk_token = true;
    m->unk = fv__vocab_id(&m->vocab, m->unk_token.s, m->unk_token.n);
    fv__buf_str(&b, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                    "\"content\":\"|\"},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":"
                    "{\"Regex\":\".\"},\"behavior\":\"Isolated\",\"invert\":false},"
                    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                    "\"pattern\":{\"String\":\"|\"},\"content\":\" \"},{\"type\":\"Fuse\"}]},"
                    "\"added_tokens\":[");
    for (int i = 0; i < 6; i++)
        put_added(&b, t, (fv__str){specials[i], strlen(specials[i])}, false, false);
    fv__buf_str(&b, "]}");
    return load_sections(t, &b, vocab, e);
}

fv_status fv__load_bpe_files(fv_tok *t, const char *dir, fv_err *e)
{
    char vocab[FV__MAX_PATH], merges[FV__MAX_PATH];
    fv__config c;
    fv_file f;
    if (!fv__tok_join(vocab, dir, "vocab.json") || !fv__tok_join(merges, dir, "merges.txt"))
        return fv_fail(e, FV_EARG, "%.200s: the path is too long", dir);
    fv_status st = fv__load_config(&c, t, dir, e);
    fv__model *m = &t->model;
    if (st == FV_OK) st = fv__load_vocab_json(&m->vocab, t, vocab, e);
    if (st == FV_OK) st = fv__unpack(&f, t->env, merges, e);
    if (st != FV_OK) return st;
    bool named = c.class.n > 0, bart = fv__str_is(c.class, "BartTokenizer");
    bool clip = named ? fv__str_is(c.class, "CLIPTokenizer")
                      : fv__vocab_id(&m->vocab, "<|startoftext|>", 15) >= 0;
    bool roberta = named ? bart || fv__str_is(c.class, "RobertaTokenizer")
                         : !clip && fv__vocab_id(&m->vocab, "<s>", 3) >= 0;
    m->kind = FV__MODEL_BPE;
    /* CLIP has no unknown token of its own and uses the end of text for it. */
    if (clip) {
        m->suffix = (fv__str){"</w>", 4};
        m->unk_token = (fv__str){"<|endoftext|>", 13};
        m->has_unk_token = true;
        m->unk = fv__vocab_id(&m->vocab, m->unk_token.s, m->unk_token.n);
    }
    st = read_merges(t, &f, merges, e);
    fv__file_close(&f);
    if (st != FV_OK) return st;
    if (named && !clip && !roberta && !fv__str_is(c.class, "GPT2Tokenizer"))
        return fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", vocab,
                       c.class.s);
    fv__str first = clip ? (fv__str){"<|startoftext|>", 15} : (fv__str){"<s>", 3},
            last = clip ? (fv__str){"<|endoftext|>", 13} : (fv__str){"</s>", 4};
    if ((clip || roberta) && ((st = fv__need(t, first, vocab, e)) != FV_OK ||
                              (st = fv__need(t, last, vocab, e)) != FV_OK))
        return st;
    fv_buf b = {.env = t->env};
    if (clip)
        put_clip(&b, t);
    else if (roberta)
        put_roberta(&b, t, &c);
    else
        put_gpt2(&b, t, &c);
    return load_sections(t, &b, vocab, e);
}
