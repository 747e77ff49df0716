/* open.c - fv_tok_open: which file a path means. */
#include "base/hub.h"
#include "open.h"
#include "fovea/author/tok.h"

static bool blank(char c) { return c == ' ' || (c >= 9 && c <= 13); }

static fv_status load_bytes(fv_tok *t, const char *data, size_t n, const char *name, fv_err *e)
{
    size_t i = 0;
    if (fv__is_lfs_pointer(data, n)) return fv_fail(e, FV_EFORMAT, "%s: " FV_LFS_SENTENCE, name);
    while (i < n && blank(data[i])) i++;
    /* A SentencePiece model starts with the tag of its first piece, 0x0A, which is a line feed too;
     * JSON goes on with {. */
    if (i < n && data[i] == '{' && i < 2) return fv__json_load(t, data, n, name, e);
    if (n && data[0] == 0x0A) return fv__spm_load(t, data, n, name, e);
    if (i < n && data[i] == '{') return fv__json_load(t, data, n, name, e);
    return fv_fail(e, FV_EFORMAT, "%s: it is neither a tokenizer.json nor a SentencePiece model",
                   name);
}

static fv_status load_file(fv_tok *t, const char *path, fv_err *e)
{
    char dir[FV__MAX_PATH];
    fv_file f;
    fv__tok_directory(dir, path);
    if (fv__tok_ends_with(path, "merges.txt") || fv__tok_ends_with(path, "vocab.json"))
        return fv__load_bpe_files(t, dir, e);
    if (fv__tok_ends_with(path, ".txt") || fv__tok_ends_with(path, ".txt.gz"))
        return fv__load_vocab_txt(t, path, e);
    fv_status st = fv__unpack(&f, t->env, path, e);
    if (st != FV_OK) return st;
    st = load_bytes(t, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

static fv_status load_path(fv_tok *t, const char *path, fv_err *e)
{
    static const char *const pieces[] = {"spiece.model", "tokenizer.model",
                                         "sentencepiece.bpe.model", "spm_char.model", NULL};
    char inner[FV__MAX_PATH];
    if (fv__tok_has_file(t->env, path, "tokenizer.json"))
        return fv__tok_join(inner, path, "tokenizer.json") ? load_file(t, inner, e) : FV_EARG;
    if (fv__tok_has_file(t->env, path, "source.spm")) return fv__load_marian(t, path, e);
    if (fv__tok_has_file(t->env, path, "sentencepiece.bpe.model") &&
        fv__tok_has_file(t->env, path, "vocab.json"))
        return fv__load_m2m_100(t, path, e);
    for (int i = 0; pieces[i]; i++) {
        if (!fv__tok_has_file(t->env, path, pieces[i])) continue;
        return fv__tok_join(inner, path, pieces[i]) ? fv__load_pieces(t, path, inner, e) : FV_EARG;
    }
    if (fv__tok_has_file(t->env, path, "merges.txt")) return fv__load_bpe_files(t, path, e);
    if (fv__tok_has_file(t->env, path, "vocab.txt"))
        return fv__tok_join(inner, path, "vocab.txt") ? fv__load_vocab_txt(t, inner, e) : FV_EARG;
    if (fv__tok_has_file(t->env, path, "vocab.json")) return fv__load_letters(t, path, e);
    if (fv__file_exists(t->env, fv__tok_join(inner, path, ".") ? inner : path)) /* a directory */
        return fv_fail(
            e, FV_EIO,
            "%s: it holds no tokenizer.json, vocab.txt, vocab.json, merges.txt, spiece.model, "
            "tokenizer.model or source.spm",
            path);
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

/* A file that is there only as path.gz is found when it is opened. */
static fv_status find(char found[FV_PATH], const fv_env *env, const char *path, fv_err *e)
{
    if (!fv__packed_exists(env, path)) return fv__hub_find(found, env, path, e);
    memcpy(found, path, strlen(path) + 1);
    return fv__hub_current(found, env, e);
}

fv_status fv_tok_open(fv_tok **out, const fv_env *env, const char *path, fv_err *e)
{
    *out = NULL;
    char found[FV_PATH];
    if (!path || strlen(path) > FV__MAX_PATH - 64)
        return fv_fail(e, FV_EARG, "no path, or one that is too long");
    fv_status st = find(found, env, path, e);
    if (st != FV_OK) return st;
    fv_tok *t = fv__tok_new(env, e);
    return t ? finish(out, t, load_path(t, found, e), found, e) : FV_ENOMEM;
}

fv_status fv_tok_read(fv_tok **out, const fv_env *env, const void *data, size_t n, const char *name,
                      fv_err *e)
{
    *out = NULL;
    fv_tok *t = fv__tok_new(env, e);
    return t ? finish(out, t, load_bytes(t, data, n, name, e), name, e) : FV_ENOMEM;
}
