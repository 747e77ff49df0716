/* tokenizer.c - the processor of text: a tokenizer with everything that stands beside it.
 *
 * What a directory has is kept and written back: tokenizer_config.json with its class, special
 * tokens, model_max_length and chat template, and the files that only other programs read.  A new
 * tokenizer gets a tokenizer_config.json that AutoTokenizer opens. */
#include <stdio.h>

#include "fovea/author/processor.h"
#include "fovea/author/tok.h"
#include "media/preprocessor.h"
#include "store/json.h"
#include "store/store.h"

/* Files that are copied as they are.  Those of Marian and M2M-100 stay because their classes do not
 * read tokenizer.json. */
static const char *const copied[] = {"tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "chat_template.jinja",
                                     "chat_template.json",
                                     "source.spm",
                                     "target.spm",
                                     "vocab.json",
                                     "target_vocab.json",
                                     "sentencepiece.bpe.model"};
enum { CONFIG = 0, COPIED = sizeof copied / sizeof *copied };

typedef struct tokenizer {
    const fv_env *env;
    fv_tok *tok;
    fv_json *config;     /* tokenizer_config.json; NULL: none, or one that cannot be read */
    fv_buf file[COPIED]; /* data NULL: there was none */
    int64_t max_len;
} tokenizer;

const fv_processor_type fv__processor_tokenizer;

static bool has(const fv_env *env, const char *path, const char *name)
{
    char at[FV_PATH];
    snprintf(at, sizeof at, "%s/%s", path, name);
    return fv__file_exists(env, at);
}

static bool recognise(const fv_env *env, const char *path, const fv_json *preprocessor)
{
    static const char *const files[] = {"tokenizer.json", "vocab.txt",       "vocab.json",
                                        "spiece.model",   "tokenizer.model", "source.spm",
                                        "spm_char.model"};
    for (size_t i = 0; !preprocessor && i < sizeof files / sizeof *files; i++)
        if (has(env, path, files[i])) return true;
    return false;
}

/* The content of a file, or an empty buffer where there is none. */
static fv_status copy_file(fv_buf *out, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    *out = (fv_buf){.env = env};
    if (!fv__file_exists(env, path)) return FV_OK;
    fv_status st = fv__file_open(&f, env, path, e);
    if (st) return st;
    fv__buf_add(out, f.data, f.size);
    fv__file_close(&f);
    return out->failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path) : FV_OK;
}

/* Does vocab.json number pieces of SentencePiece?  Else it is GPT-2's, which tokenizer.json
 * replaces. */
static bool vocab_numbers(const fv_env *env, const char *path)
{
    return has(env, path, "source.spm") ||
           (has(env, path, "sentencepiece.bpe.model") && !has(env, path, "tokenizer.json"));
}

/* path may be a file: then nothing stands beside it that belongs to it. */
static fv_status open_tokenizer(void *self, const fv_env *env, const char *path, fv_err *e)
{
    tokenizer *t = self;
    char at[FV_PATH];
    t->env = env;
    fv_status st = fv_tok_open(&t->tok, env, path, e);
    if (st || !fv__is_dir(env, path)) return st;
    snprintf(at, sizeof at, "%s/tokenizer_config.json", path);
    /* it is written back byte by byte; that a tokenizer works does not depend on it */
    if (fv__file_exists(env, at) && fv_json_open(&t->config, env, at, NULL)) t->config = NULL;
    bool numbered = vocab_numbers(env, path);
    for (int i = 0; !st && i < COPIED; i++) {
        if (!numbered && (strstr(copied[i], "vocab.json") || strstr(copied[i], ".bpe."))) continue;
        snprintf(at, sizeof at, "%s/%s", path, copied[i]);
        st = copy_file(&t->file[i], env, at, e);
    }
    return st;
}

static void close_tokenizer(void *self)
{
    tokenizer *t = self;
    fv_tok_close(t->tok);
    fv_json_close(t->config);
    for (int i = 0; i < COPIED; i++) fv__buf_free(&t->file[i]);
}

fv_status fv_processor_from_tok(fv_processor **out, const fv_env *env, fv_tok *tok, int64_t max_len,
                                fv_err *e)
{
    fv_status st = fv_processor_new(out, env, &fv__processor_tokenizer, e);
    if (st) {
        fv_tok_close(tok);
        return st;
    }
    tokenizer *t = fv_processor_self(*out, &fv__processor_tokenizer);
    t->env = env;
    t->tok = tok;
    t->max_len = max_len;
    return FV_OK;
}

const fv_tok *fv_processor_tok(const fv_processor *p)
{
    const tokenizer *t = fv_processor_self(p, &fv__processor_tokenizer);
    return t ? t->tok : NULL;
}

/* ---- special tokens ---- */

/* The token that tokenizer_config.json names, as a string or as an object with "content"; else the
 * first of the usual names that the vocabulary has. */
static int32_t special(const tokenizer *t, const char *key, const char *const *usual)
{
    char content[64];
    snprintf(content, sizeof content, "%s.content", key);
    const char *name = t->config ? fv_json_text(t->config, key) : NULL;
    if (!name && t->config) name = fv_json_text(t->config, content);
    int32_t id = name ? fv_tok_id(t->tok, name) : -1;
    for (; id < 0 && *usual; usual++) id = fv_tok_id(t->tok, *usual);
    return id;
}

static fv_special_ids ids_of(const tokenizer *t)
{
    static const char *const pad[] = {"<pad>", "[PAD]", NULL}, *const bos[] = {"<s>", NULL},
                             *const eos[] = {"</s>", "<|endoftext|>", "[SEP]", NULL},
                             *const cls[] = {"[CLS]", "<s>", NULL},
                             *const sep[] = {"[SEP]", "</s>", NULL},
                             *const mask[] = {"[MASK]", "<mask>", NULL};
    fv_special_ids s = {.bos = special(t, "bos_token", bos),
                        .eos = special(t, "eos_token", eos),
                        .cls = special(t, "cls_token", cls),
                        .sep = special(t, "sep_token", sep),
                        .mask = special(t, "mask_token", mask),
                        .unk = fv_tok_unknown(t->tok)};
    s.pad = fv_tok_pad(t->tok) >= 0 ? fv_tok_pad(t->tok) : special(t, "pad_token", pad);
    return s;
}

fv_special_ids fv_processor_ids(const fv_processor *p)
{
    const tokenizer *t = fv_processor_self(p, &fv__processor_tokenizer);
    return t ? ids_of(t) : (fv_special_ids){-1, -1, -1, -1, -1, -1, -1};
}

/* ---- writing ---- */

static bool put_text(fv__jtree *to, const char *key, const char *text)
{
    return fv__jnode_put(to, to->root, key, fv__jnode_text(to, text, strlen(text)));
}

/* A token that the vocabulary does not have is left out. */
static bool put_token(const tokenizer *t, fv__jtree *to, const char *key, int32_t id)
{
    const char *token = id >= 0 ? fv_tok_token(t->tok, id) : NULL;
    return !token || put_text(to, key, token);
}

/* Whether a name stands in the vocabulary under exactly this name: <s> is a token of the frame, not
 * a [CLS], for those who read the file. */
static int32_t named(const tokenizer *t, const char *name) { return fv_tok_id(t->tok, name); }

/* The tokenizer_config.json of a tokenizer that was trained here; false: out of memory. */
static bool new_config(const tokenizer *t, fv__jtree *to)
{
    fv_special_ids s = ids_of(t);
    /* some token must pad a batch: the end token where there is no other */
    int32_t pad = s.pad >= 0 ? s.pad : s.eos;
    to->root = fv__jnode_new(to, FV__J_OBJECT);
    bool ok = to->root && put_text(to, "tokenizer_class", "PreTrainedTokenizerFast") &&
              put_token(t, to, "pad_token", pad >= 0 ? pad : 0) &&
              put_token(t, to, "eos_token", s.eos) && put_token(t, to, "unk_token", s.unk) &&
              put_token(t, to, "mask_token", s.mask) &&
              put_token(t, to, "cls_token", named(t, "[CLS]")) &&
              put_token(t, to, "sep_token", named(t, "[SEP]")) &&
              fv__jnode_put(to, to->root, "clean_up_tokenization_spaces",
                            fv__jnode_new(to, FV__J_FALSE));
    if (!ok || !t->max_len) return ok;
    return fv__jnode_put(to, to->root, "model_max_length", fv__jnode_int(to, t->max_len));
}

static fv_status write_config(const tokenizer *t, const char *path, fv_err *e)
{
    fv__jtree tree = {.pool = {.env = t->env}};
    fv_buf b = {.env = t->env, .failed = !new_config(t, &tree)};
    if (!b.failed) fv__jnode_print(&b, tree.root, 0);
    return fv__preprocessor_write(t->env, path, &b, &tree, e);
}

static fv_status save(const void *self, const char *dir, fv_err *e)
{
    const tokenizer *t = self;
    char path[FV_PATH];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    fv_status st = fv_tok_save(t->tok, path, e);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (!st && !t->file[CONFIG].data) st = write_config(t, path, e);
    for (int i = 0; !st && i < COPIED; i++) {
        if (!t->file[i].data) continue;
        snprintf(path, sizeof path, "%s/%s", dir, copied[i]);
        st = fv__file_write(t->env, path, t->file[i].data, t->file[i].len, e);
    }
    return st;
}

const fv_processor_type fv__processor_tokenizer = {
    .name = "tokenizer",
    .size = sizeof(tokenizer),
    .recognise = recognise,
    .open = open_tokenizer,
    .save = save,
    .close = close_tokenizer,
};
