/* open.c - fv_tok_open: which file a path means, and the older formats that say less than a tokenizer.json.
 *
 * vocab.txt and vocab.json + merges.txt hold a vocabulary and leave the rest to a class in Python.  For the classes
 * known here that rest is written as the JSON it is everywhere else, and goes through the same reader. */
#include <stdio.h>

#include "json_load.h"
#include "unpack.h"

#define MAX_PATH 4096

static bool join(char out[MAX_PATH], const char *dir, const char *name)
{
    return (size_t)snprintf(out, MAX_PATH, "%s/%s", dir, name) < MAX_PATH;
}

static bool has_file(const fv_env *env, const char *dir, const char *name)
{
    char path[MAX_PATH];
    return join(path, dir, name) && fv__packed_exists(env, path);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* The directory of a path, "." if it names none. */
static void directory(char out[MAX_PATH], const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, MAX_PATH, "%.*s", slash ? (int)(slash > path ? slash - path : 1) : 1, slash ? path : ".");
}

/* ---- tokenizer_config.json ---- */

typedef struct config {
    fv__str class; /* without "Fast"; empty: not said */
    bool has_lower, lower, has_accents, accents, cjk;
    bool prefix_space, add_bos, add_eos;
    int64_t extra_ids;
    fv__str unk, cls, sep, pad, mask;
} config;

/* "name": "[CLS]" or "name": {"content": "[CLS]", ...} */
static fv_status read_name(fv__str *out, fv_tok *t, fv__jobj *o, const char *key, fv_err *e)
{
    fv__jval v, content;
    fv__jobj in;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return FV_OK;
    if (fv__json_kind(v) == '"') return fv__json_to_str(out, &t->pool, v, e);
    fv_status st = fv__json_object(&in, v, e);
    if (st == FV_OK && !fv__json_get(&content, &in, "content")) st = fv__json_bad(v, e, "\"content\" is missing");
    return st == FV_OK ? fv__json_to_str(out, &t->pool, content, e) : st;
}

static fv_status read_config(config *c, fv_tok *t, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    bool basic = true;
    fv_status st;
    if ((st = fv__json_str(&c->class, &t->pool, o, "tokenizer_class", false, e)) != FV_OK) return st;
    if (c->class.n > 4 && ends_with(c->class.s, "Fast")) c->class.n -= 4;
    c->has_lower = fv__json_get(&v, o, "do_lower_case") && !fv__json_null(v);
    c->has_accents = fv__json_get(&v, o, "strip_accents") && !fv__json_null(v);
    if ((st = fv__json_bool(&c->lower, o, "do_lower_case", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->accents, o, "strip_accents", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->cjk, o, "tokenize_chinese_chars", false, e)) != FV_OK ||
        (st = fv__json_bool(&basic, o, "do_basic_tokenize", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->prefix_space, o, "add_prefix_space", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->add_bos, o, "add_bos_token", false, e)) != FV_OK ||
        (st = fv__json_bool(&c->add_eos, o, "add_eos_token", false, e)) != FV_OK ||
        (st = fv__json_int(&c->extra_ids, o, "extra_ids", 0, 1000, false, e)) != FV_OK ||
        (st = read_name(&c->unk, t, o, "unk_token", e)) != FV_OK || (st = read_name(&c->cls, t, o, "cls_token", e)) != FV_OK ||
        (st = read_name(&c->sep, t, o, "sep_token", e)) != FV_OK || (st = read_name(&c->pad, t, o, "pad_token", e)) != FV_OK ||
        (st = read_name(&c->mask, t, o, "mask_token", e)) != FV_OK)
        return st;
    if (!basic) return fv__json_bad(o->self, e, "do_basic_tokenize = false is not implemented");
    if (fv__json_get(&v, o, "never_split") && !fv__json_null(v)) return fv__json_bad(v, e, "never_split is not implemented");
    return FV_OK;
}

static fv_status load_config(config *c, fv_tok *t, const char *dir, fv_err *e)
{
    char path[MAX_PATH];
    fv_file f;
    fv__jval root;
    fv__jobj *o;
    *c = (config){.class = {"", 0}, .lower = true, .cjk = true, .add_bos = true, .extra_ids = 100,
                  .unk = {"[UNK]", 5}, .cls = {"[CLS]", 5}, .sep = {"[SEP]", 5}, .pad = {"[PAD]", 5}, .mask = {"[MASK]", 6}};
    if (!has_file(t->env, dir, "tokenizer_config.json")) return FV_OK;
    join(path, dir, "tokenizer_config.json");
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    fv__json j = {f.data, f.size, path};
    o = fv__alloc(t->env, sizeof *o);
    st = o ? fv__json_open(&root, &j, e) : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (st == FV_OK) st = fv__json_object(o, root, e);
    if (st == FV_OK) st = read_config(c, t, o, e);
    fv__free(t->env, o, sizeof *o);
    fv__file_close(&f);
    return st;
}

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

/* An entry of added_tokens, if the vocabulary has it. */
static void put_added(fv_buf *b, const fv_tok *t, fv__str s, bool lstrip, bool normalized)
{
    int32_t id = fv__vocab_id(&t->model.vocab, s.s, s.n);
    if (id < 0) return;
    fv__buf_str(b, b->len && b->data[b->len - 1] == '}' ? ",{\"content\":" : "{\"content\":");
    put_json(b, s);
    fv__buf_fmt(b, ",\"id\":%d,\"single_word\":false,\"lstrip\":%s,\"rstrip\":false,\"normalized\":%s,\"special\":true}", id,
                lstrip ? "true" : "false", normalized ? "true" : "false");
}

static fv_status load_sections(fv_tok *t, fv_buf *b, const char *file, fv_err *e)
{
    fv_status st = b->failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", file) : fv__json_load(t, b->data, b->len, file, e);
    fv__buf_free(b);
    return st;
}

static fv_status need(const fv_tok *t, fv__str token, const char *file, fv_err *e)
{
    if (fv__vocab_id(&t->model.vocab, token.s, token.n) >= 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: the vocabulary lacks \"%.60s\"", file, token.s);
}

/* ---- vocab.txt ---- */

static bool blank(char c) { return c == ' ' || (c >= 9 && c <= 13); }

/* One token a line; its number is the line's. */
static fv_status read_lines(fv_tok *t, const fv_file *f, const char *path, fv_err *e)
{
    int64_t lines = 0, id = 0;
    for (size_t i = 0; i < f->size; i++) lines += f->data[i] == '\n';
    if (fv__utf8_check(f->data, f->size) != f->size) return fv_fail(e, FV_EFORMAT, "%s: it is not UTF-8", path);
    if (!fv__vocab_init(&t->model.vocab, &t->pool, lines + 1, lines + 1, f->size)) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < f->size; id++) {
        const char *nl = memchr(f->data + i, '\n', f->size - i);
        size_t end = nl ? (size_t)(nl - f->data) : f->size, to = end;
        while (to > i && blank(f->data[to - 1])) to--;
        if (to > i && fv__vocab_put(&t->model.vocab, f->data + i, to - i, (int32_t)id) != FV__ADDED)
            return fv_fail(e, FV_EFORMAT, "%s: line %lld: \"%.*s\" is there twice", path, (long long)id + 1, (int)(to - i < 60 ? to - i : 60), f->data + i);
        i = end + 1;
    }
    return FV_OK;
}

/* No config: a vocabulary with capitals in its words is a cased one. */
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

static fv_status load_vocab_txt(fv_tok *t, const char *path, fv_err *e)
{
    char dir[MAX_PATH];
    config c;
    fv_file f;
    directory(dir, path);
    fv_status st = load_config(&c, t, dir, e);
    if (st == FV_OK) st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    st = read_lines(t, &f, path, e);
    fv__file_close(&f);
    static const char *const classes[] = {"", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", NULL};
    bool known = false;
    for (int i = 0; classes[i]; i++) known = known || fv__str_is(c.class, classes[i]);
    if (st == FV_OK && !known)
        return fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", path, c.class.s);
    fv__model *m = &t->model;
    m->kind = FV__MODEL_WORDPIECE;
    m->prefix = (fv__str){"##", 2};
    m->max_chars = 100;
    m->unk_token = c.unk;
    m->has_unk_token = true;
    if (st == FV_OK) m->unk = fv__vocab_id(&m->vocab, c.unk.s, c.unk.n);
    if (st != FV_OK || (st = need(t, c.cls, path, e)) != FV_OK || (st = need(t, c.sep, path, e)) != FV_OK) return st;
    bool lower = c.has_lower ? c.lower : !has_capitals(&m->vocab);
    fv_buf b = {.env = t->env};
    fv__buf_fmt(&b, "{\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":%s,\"strip_accents\":%s,"
                    "\"lowercase\":%s},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\","
                    "\"cleanup\":true},\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[",
                c.cjk ? "true" : "false", !c.has_accents ? "null" : c.accents ? "true" : "false", lower ? "true" : "false");
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

static fv_status read_vocab_json(fv__vocab *out, fv_tok *t, const char *path, fv_err *e)
{
    fv_file f;
    fv__jval root;
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    fv__json j = {f.data, f.size, path};
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
    fv_status st = joined && fv__merge_table(&t->model, &t->pool, (int32_t)lines) ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < f->size && st == FV_OK; line++) {
        const char *nl = memchr(f->data + i, '\n', f->size - i), *s = f->data + i;
        size_t end = nl ? (size_t)(nl - f->data) : f->size, len = end - i;
        if (len && s[len - 1] == '\r') len--;
        i = end + 1;
        if ((len >= 8 && !memcmp(s, "#version", 8)) || !len) continue;
        const char *space = memchr(s, ' ', len), *why = "two tokens with a space between were expected";
        size_t first = space ? (size_t)(space - s) : 0;
        if (space && !memchr(space + 1, ' ', len - first - 1))
            why = fv__bpe_add(&t->model, n++, (fv__str){s, first}, (fv__str){space + 1, len - first - 1}, joined);
        if (why) st = fv_fail(e, FV_EFORMAT, "%s: line %lld: %s", path, (long long)line + 1, why);
    }
    fv__free(t->env, joined, f->size + 1);
    return st;
}

#define BYTE_LEVEL(trim) "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":" trim "}"

static void put_gpt2(fv_buf *b, const fv_tok *t, const config *c)
{
    const char *prefix = c->prefix_space ? "true" : "false";
    fv__buf_fmt(b, "{\"pre_tokenizer\":" BYTE_LEVEL("true") ",\"decoder\":" BYTE_LEVEL("true") ",\"post_processor\":" BYTE_LEVEL("false")
                   ",\"added_tokens\":[", prefix, prefix, prefix);
    put_added(b, t, (fv__str){"<|endoftext|>", 13}, false, true);
    fv__buf_str(b, "]}");
}

static void put_roberta(fv_buf *b, const fv_tok *t, const config *c)
{
    static const char *const specials[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"};
    const char *prefix = c->prefix_space ? "true" : "false";
    fv__buf_fmt(b, "{\"pre_tokenizer\":" BYTE_LEVEL("true") ",\"decoder\":" BYTE_LEVEL("true") ",\"post_processor\":"
                   "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",%d],\"sep\":[\"</s>\",%d],\"trim_offsets\":true,\"add_prefix_space\":%s},"
                   "\"added_tokens\":[", prefix, prefix, fv__vocab_id(&t->model.vocab, "<s>", 3), fv__vocab_id(&t->model.vocab, "</s>", 4), prefix);
    for (int i = 0; i < 5; i++) put_added(b, t, (fv__str){specials[i], strlen(specials[i])}, i == 4, i != 4);
    fv__buf_str(b, "]}");
}

static void put_clip(fv_buf *b, const fv_tok *t)
{
    fv__str start = {"<|startoftext|>", 15}, end = {"<|endoftext|>", 13};
    fv__buf_fmt(b, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},"
                   "\"content\":\" \"},{\"type\":\"Lowercase\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                   "\"pattern\":{\"Regex\":\"<\\\\|startoftext\\\\|>|<\\\\|endoftext\\\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\\\p{L}]+|[\\\\p{N}]|"
                   "[^\\\\s\\\\p{L}\\\\p{N}]+\"},\"behavior\":\"Removed\",\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                   "\"trim_offsets\":true}]},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true},\"post_processor\":"
                   "{\"type\":\"RobertaProcessing\",\"cls\":[\"<|startoftext|>\",%d],\"sep\":[\"<|endoftext|>\",%d],\"trim_offsets\":false,"
                   "\"add_prefix_space\":false},\"added_tokens\":[",
                fv__vocab_id(&t->model.vocab, start.s, start.n), fv__vocab_id(&t->model.vocab, end.s, end.n));
    put_added(b, t, start, false, false);
    put_added(b, t, end, false, false);
    fv__buf_str(b, "]}");
}

static fv_status load_bpe_files(fv_tok *t, const char *dir, fv_err *e)
{
    char vocab[MAX_PATH], merges[MAX_PATH];
    config c;
    fv_file f;
    if (!join(vocab, dir, "vocab.json") || !join(merges, dir, "merges.txt")) return fv_fail(e, FV_EARG, "%.200s: the path is too long", dir);
    fv_status st = load_config(&c, t, dir, e);
    fv__model *m = &t->model;
    if (st == FV_OK) st = read_vocab_json(&m->vocab, t, vocab, e);
    if (st == FV_OK) st = fv__unpack(&f, t->env, merges, e);
    if (st != FV_OK) return st;
    bool named = c.class.n > 0, bart = fv__str_is(c.class, "BartTokenizer");
    bool clip = named ? fv__str_is(c.class, "CLIPTokenizer") : fv__vocab_id(&m->vocab, "<|startoftext|>", 15) >= 0;
    bool roberta = named ? bart || fv__str_is(c.class, "RobertaTokenizer") : !clip && fv__vocab_id(&m->vocab, "<s>", 3) >= 0;
    m->kind = FV__MODEL_BPE;
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
        return fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", vocab, c.class.s);
    fv__str first = clip ? (fv__str){"<|startoftext|>", 15} : (fv__str){"<s>", 3}, last = clip ? (fv__str){"<|endoftext|>", 13} : (fv__str){"</s>", 4};
    if ((clip || roberta) && ((st = need(t, first, vocab, e)) != FV_OK || (st = need(t, last, vocab, e)) != FV_OK)) return st;
    fv_buf b = {.env = t->env};
    if (clip)
        put_clip(&b, t);
    else if (roberta)
        put_roberta(&b, t, &c);
    else
        put_gpt2(&b, t, &c);
    return load_sections(t, &b, vocab, e);
}

/* ---- SentencePiece in a model directory ---- */

static fv_status load_spm_file(fv_tok *t, const char *path, fv_err *e)
{
    fv_file f;
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    st = fv__spm_load(t, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

static fv_status add_special(fv_tok *t, const char *text, const char *file, fv_err *e)
{
    fv__added *a = t->added.all + t->added.n;
    if (!fv__pool_str(&t->pool, &a->content, text, strlen(text))) return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    a->special = true;
    a->id = fv__added_number(t, a->content);
    t->added.n++;
    return FV_OK;
}

/* The classes that only add a token at an end: T5 (</s>, and 100 sentinels), Llama (<s>). */
static fv_status add_class(fv_tok *t, const char *dir, const char *file, fv_err *e)
{
    config c;
    char name[32];
    fv_status st = load_config(&c, t, dir, e);
    bool t5 = fv__str_is(c.class, "T5Tokenizer"), llama = fv__str_is(c.class, "LlamaTokenizer");
    if (st != FV_OK || !c.class.n) return st;
    if (!t5 && !llama) return fv_fail(e, FV_EFORMAT, "%s: tokenizer_class \"%.60s\" needs a tokenizer.json", file, c.class.s);
    fv__str ends[] = {{"<s>", 3}, {"</s>", 4}};
    t->added.all = fv__pool_array(&t->pool, (size_t)c.extra_ids + 4, sizeof *t->added.all);
    t->post.specials = fv__pool_array(&t->pool, 2, sizeof *t->post.specials);
    if (!t->added.all || !t->post.specials) return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    static const char *const marks[] = {"<unk>", "<s>", "</s>", "<pad>"};
    for (int i = 0; i < 4 && st == FV_OK; i++)
        if (fv__vocab_id(&t->model.vocab, marks[i], strlen(marks[i])) >= 0) st = add_special(t, marks[i], file, e);
    for (int64_t i = t5 ? c.extra_ids - 1 : -1; i >= 0 && st == FV_OK; i--) {
        snprintf(name, sizeof name, "<extra_id_%d>", (int)i);
        st = add_special(t, name, file, e);
    }
    bool bos = llama && c.add_bos, eos = t5 || c.add_eos;
    if (st != FV_OK || (bos && (st = need(t, ends[0], file, e)) != FV_OK) || (eos && (st = need(t, ends[1], file, e)) != FV_OK)) return st;
    t->post.kind = FV__POST_TEMPLATE;
    t->post.n_specials = 2;
    bool ok = true;
    for (int i = 0; i < 2; i++) ok = ok && fv__post_special(t, t->post.specials + i, ends[i], fv__vocab_id(&t->model.vocab, ends[i].s, ends[i].n));
    const char *single = bos ? eos ? "00A010" : "00A0" : eos ? "A010" : "A0";
    const char *pair = bos ? eos ? "00A01000B010" : "00A000B0" : eos ? "A010B010" : "A0B0";
    return ok && fv__post_layout(t, single, pair) ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
}

/* source.spm and target.spm cut into pieces, vocab.json numbers them, </s> ends. */
static fv_status load_marian(fv_tok *t, const char *dir, fv_err *e)
{
    char source[MAX_PATH], target[MAX_PATH], vocab[MAX_PATH];
    if (!join(source, dir, "source.spm") || !join(target, dir, "target.spm") || !join(vocab, dir, "vocab.json"))
        return fv_fail(e, FV_EARG, "%.200s: the path is too long", dir);
    fv_status st = load_spm_file(t, source, e);
    if (st == FV_OK && !(t->target = fv__tok_new(t->env, e))) return FV_ENOMEM;
    if (st == FV_OK) st = load_spm_file(t->target, target, e);
    if (st == FV_OK) st = fv__tok_finish(t->target, target, e);
    if (st != FV_OK) return st;
    t->pieces = fv__pool_alloc(&t->pool, sizeof *t->pieces);
    t->post.specials = fv__pool_array(&t->pool, 1, sizeof *t->post.specials);
    if (!t->pieces || !t->post.specials) return fv_fail(e, FV_ENOMEM, "%s: out of memory", vocab);
    if ((st = read_vocab_json(t->pieces, t, vocab, e)) != FV_OK) return st;
    int32_t end = fv__vocab_id(t->pieces, "</s>", 4);
    t->pieces_unk = fv__vocab_id(t->pieces, "<unk>", 5);
    if (end < 0 || t->pieces_unk < 0) return fv_fail(e, FV_EFORMAT, "%s: the vocabulary lacks </s> or <unk>", vocab);
    t->post.kind = FV__POST_TEMPLATE;
    t->post.n_specials = 1;
    bool ok = fv__post_special(t, t->post.specials, (fv__str){"</s>", 4}, end) && fv__post_layout(t, "A000", "A0B000");
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", vocab);
}

/* ---- one file, or a directory ---- */

static fv_status load_bytes(fv_tok *t, const char *data, size_t n, const char *name, fv_err *e)
{
    size_t i = 0;
    while (i < n && blank(data[i])) i++;
    /* A SentencePiece model starts with the tag of its first piece, 0x0A, which is also a line feed; a JSON object goes on with {. */
    if (i < n && data[i] == '{' && i < 2) return fv__json_load(t, data, n, name, e);
    if (n && data[0] == 0x0A) return fv__spm_load(t, data, n, name, e);
    if (i < n && data[i] == '{') return fv__json_load(t, data, n, name, e);
    return fv_fail(e, FV_EFORMAT, "%s: it is neither a tokenizer.json nor a SentencePiece model", name);
}

static fv_status load_file(fv_tok *t, const char *path, fv_err *e)
{
    char dir[MAX_PATH];
    fv_file f;
    directory(dir, path);
    if (ends_with(path, "merges.txt") || ends_with(path, "vocab.json")) return load_bpe_files(t, dir, e);
    if (ends_with(path, ".txt") || ends_with(path, ".txt.gz")) return load_vocab_txt(t, path, e);
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    st = load_bytes(t, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

static fv_status load_path(fv_tok *t, const char *path, fv_err *e)
{
    static const char *const pieces[] = {"spiece.model", "tokenizer.model", "sentencepiece.bpe.model", NULL};
    char inner[MAX_PATH];
    if (has_file(t->env, path, "tokenizer.json")) return join(inner, path, "tokenizer.json") ? load_file(t, inner, e) : FV_EARG;
    if (has_file(t->env, path, "source.spm")) return load_marian(t, path, e);
    for (int i = 0; pieces[i]; i++) {
        if (!has_file(t->env, path, pieces[i])) continue;
        join(inner, path, pieces[i]);
        fv_status st = load_spm_file(t, inner, e);
        return st == FV_OK ? add_class(t, path, inner, e) : st;
    }
    if (has_file(t->env, path, "merges.txt")) return load_bpe_files(t, path, e);
    if (has_file(t->env, path, "vocab.txt")) return join(inner, path, "vocab.txt") ? load_vocab_txt(t, inner, e) : FV_EARG;
    if (fv__file_exists(t->env, join(inner, path, ".") ? inner : path)) /* a directory */
        return fv_fail(e, FV_EIO, "%s: it holds no tokenizer.json, vocab.txt, merges.txt, spiece.model, tokenizer.model or source.spm", path);
    return load_file(t, path, e);
}

static fv_status finish(fv_tok **out, fv_tok *t, fv_status st, const char *name, fv_err *e)
{
    if (st == FV_OK) st = fv__tok_finish(t, name, e);
    if (st == FV_OK)
        *out = t;
    else
        fv_tok_close(t);
    return st;
}

fv_status fv_tok_open(fv_tok **out, const fv_env *env, const char *path, fv_err *e)
{
    *out = NULL;
    if (!path || strlen(path) > MAX_PATH - 64) return fv_fail(e, FV_EARG, "no path, or one that is too long");
    fv_tok *t = fv__tok_new(env, e);
    return t ? finish(out, t, load_path(t, path, e), path, e) : FV_ENOMEM;
}

fv_status fv_tok_read(fv_tok **out, const fv_env *env, const void *data, size_t n, const char *name, fv_err *e)
{
    *out = NULL;
    fv_tok *t = fv__tok_new(env, e);
    return t ? finish(out, t, load_bytes(t, data, n, name, e), name, e) : FV_ENOMEM;
}
