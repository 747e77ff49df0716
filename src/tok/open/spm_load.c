/* spm_load.c - SentencePiece .model files: protocol buffers, read by hand and checked field by
 * field.
 *
 * Such a tokenizer encodes as SentencePiece itself does (float scores, its own normaliser), not as
 * the components of a tokenizer.json made from it would; the two differ on a few texts.
 * tok/json/save.c writes the latter.
 *
 * Reading is two passes over the mapped file: the first takes the two specs and counts pieces
 * and their bytes, the second fills tables of exactly that size. Nothing refers to the file
 * afterwards: strings are copied into the tokenizer's pool. libprotobuf is not needed for five
 * fields, and the wire format is stable.
 *
 * Every length is checked against the bytes that are left before it is used, so that a damaged
 * file ends in a sentence. Fields from 200 on are extensions of the message and skipped; an
 * unknown field of the normaliser is refused, since it would change the text. */
#include <math.h>
#include <stdlib.h>

#include "tok/tok.h"

#define META "\xE2\x96\x81"

/* ---- protocol buffers ---- */

/*    message := { tag = number << 3 | type, value } ...      type 0 varint, 2 length and bytes, ..
 *    ModelProto: 1 pieces (repeated), 2 trainer_spec, 3 normalizer_spec, 5 denormalizer_spec
 *    SentencePiece: 1 piece (text), 2 score (f32), 3 type */
typedef struct wire {
    const unsigned char *s;
    size_t n, at;
    bool bad;
} wire;

typedef struct field {
    uint64_t number;
    int type;       /* 0 varint, 1 fixed 64, 2 bytes, 5 fixed 32 */
    uint64_t value; /* of a varint or fixed number */
    fv__str bytes;
} field;

static uint64_t varint(wire *w)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64 && w->at < w->n; shift += 7) {
        unsigned char c = w->s[w->at++];
        x |= (uint64_t)(c & 127) << shift;
        if (!(c & 128)) return x;
    }
    w->bad = true;
    return 0;
}

/* Little-endian, as the format has it and as every machine that is supported is. */
static uint64_t fixed(wire *w, size_t n)
{
    uint64_t x = 0;
    if (w->n - w->at < n) {
        w->bad = true;
        return 0;
    }
    memcpy(&x, w->s + w->at, n);
    w->at += n;
    return x;
}

/* The next field; false at the end or when the bytes make no sense (then bad is set).
 * A cursor over one message; nested messages are bytes with a cursor of their own.  Unknown
 * fields are returned like the rest, and the callers decide which of them matter. */
static bool next(wire *w, field *f)
{
    if (w->bad || w->at == w->n) return false;
    uint64_t tag = varint(w);
    *f = (field){.number = tag >> 3, .type = (int)(tag & 7)};
    if (!f->number) w->bad = true;
    switch (f->type) {
    case 0: f->value = varint(w); break;
    case 1: f->value = fixed(w, 8); break;
    case 5: f->value = fixed(w, 4); break;
    case 2: {
        uint64_t n = varint(w);
        if (w->bad || n > w->n - w->at) {
            w->bad = true;
            break;
        }
        f->bytes = (fv__str){(const char *)w->s + w->at, (size_t)n};
        w->at += (size_t)n;
        break;
    }
    default: w->bad = true;
    }
    return !w->bad;
}

static wire open_wire(fv__str s) { return (wire){.s = (const unsigned char *)s.s, .n = s.n}; }

static float to_float(const field *f)
{
    uint32_t bits = (uint32_t)f->value;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* ---- the parts ---- */

/* What trainer_spec and normalizer_spec say about encoding; strings are views into the file. */
typedef struct spec {
    int model; /* 1 unigram, 2 bpe, 3 word, 4 char */
    bool suffix, byte_fallback;
    fv__str unk_surface;
    bool prefix, squeeze, escape;
    fv__str charsmap;
} spec;

typedef struct loader {
    fv_tok *t;
    const char *file;
    fv_err *e;
} loader;

static fv_status bad(loader *l, const char *where, const char *what)
{
    return fv_fail(l->e, FV_EFORMAT, "%s: %s: %s", l->file, where, what);
}
static fv_status no_memory(loader *l)
{
    return fv_fail(l->e, FV_ENOMEM, "%s: out of memory", l->file);
}

/* Most of this message says how the model was trained; only what changes encoding is read. */
static fv_status read_trainer(loader *l, spec *s, fv__str bytes)
{
    wire w = open_wire(bytes);
    for (field f; next(&w, &f);) {
        int want = f.number == 44 ? 2 : 0;
        bool used = f.number == 3 || f.number == 24 || f.number == 35 || f.number == 44;
        if (used && f.type != want) return bad(l, "trainer_spec", "a field has the wrong type");
        /* TrainerSpec: 3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 44
         * unk_surface. */
        if (f.number == 3) s->model = f.value > 4 ? 0 : (int)f.value;
        if (f.number == 24) s->suffix = f.value != 0;
        if (f.number == 35) s->byte_fallback = f.value != 0;
        if (f.number == 44) s->unk_surface = f.bytes;
    }
    if (w.bad) return bad(l, "trainer_spec", "the message is damaged");
    return s->model ? FV_OK : bad(l, "trainer_spec.model_type", "the value is not known");
}

static fv_status read_normaliser(loader *l, spec *s, fv__str bytes)
{
    wire w = open_wire(bytes);
    for (field f; next(&w, &f);) {
        if (f.number >= 200) continue; /* extensions */
        int want = f.number >= 3 && f.number <= 5 ? 0 : 2;
        if (f.number > 6) return bad(l, "normalizer_spec", "it has a field that is not known");
        if (f.type != want) return bad(l, "normalizer_spec", "a field has the wrong type");
        /* NormalizerSpec: 2 precompiled_charsmap, 3 add_dummy_prefix, 4
         * remove_extra_whitespaces, 5 escape_whitespaces. */
        if (f.number == 2) s->charsmap = f.bytes;
        if (f.number == 3) s->prefix = f.value != 0;
        if (f.number == 4) s->squeeze = f.value != 0;
        if (f.number == 5) s->escape = f.value != 0;
    }
    return w.bad ? bad(l, "normalizer_spec", "the message is damaged") : FV_OK;
}

static fv_status check_denormaliser(loader *l, fv__str bytes)
{
    wire w = open_wire(bytes);
    for (field f; next(&w, &f);)
        if (f.number == 2 && f.bytes.n)
            return bad(l, "denormalizer_spec", "a map applied after decoding is not implemented");
    return w.bad ? bad(l, "denormalizer_spec", "the message is damaged") : FV_OK;
}

static fv_status read_piece(loader *l, int32_t id, fv__str bytes)
{
    fv_tok *t = l->t;
    wire w = open_wire(bytes);
    fv__str piece = {0};
    uint64_t type = FV__SPM_NORMAL;
    float score = 0;
    for (field f; next(&w, &f);) {
        if (f.number == 1 && f.type == 2) piece = f.bytes;
        if (f.number == 2 && f.type == 5) score = to_float(&f);
        if (f.number == 3 && f.type == 0) type = f.value;
    }
    /* NUL would end the text in C and UTF-8 is what every later stage relies on: a piece that
     * has neither form is not one. */
    bool ok = !w.bad && piece.n && type >= FV__SPM_NORMAL && type <= FV__SPM_BYTE &&
              isfinite(score) && fv__utf8_check(piece.s, piece.n) == piece.n &&
              !memchr(piece.s, 0, piece.n);
    if (!ok) return fv_fail(l->e, FV_EFORMAT, "%s: pieces[%d]: the piece is damaged", l->file, id);
    if (fv__vocab_put(&t->model.vocab, piece.s, piece.n, id) != FV__ADDED)
        return fv_fail(l->e, FV_EFORMAT, "%s: pieces[%d]: \"%.*s\" is there twice", l->file, id,
                       (int)(piece.n < 60 ? piece.n : 60), piece.s);
    t->model.scores[id] = score;
    t->spm->types[id] = (uint8_t)type;
    if (type != FV__SPM_UNKNOWN) return FV_OK;
    if (t->model.unk >= 0)
        return fv_fail(l->e, FV_EFORMAT, "%s: pieces[%d]: a second unknown piece", l->file, id);
    t->model.unk = id;
    return FV_OK;
}

static fv_status read_pieces(loader *l, fv__str file, int32_t n, size_t text)
{
    fv_tok *t = l->t;
    fv_status st = FV_OK;
    t->spm = fv__pool_alloc(&t->pool, sizeof *t->spm);
    t->model.scores = fv__pool_array(&t->pool, (size_t)n, sizeof *t->model.scores);
    if (!t->spm || !t->model.scores || !fv__vocab_init(&t->model.vocab, &t->pool, n, n, text))
        return no_memory(l);
    t->spm->types = fv__pool_alloc(&t->pool, (size_t)n);
    if (!t->spm->types) return no_memory(l);
    wire w = open_wire(file);
    int32_t id = 0;
    for (field f; st == FV_OK && next(&w, &f);)
        if (f.number == 1) st = read_piece(l, id++, f.bytes);
    if (st == FV_OK && t->model.unk < 0) st = bad(l, "pieces", "there is no unknown piece");
    return st;
}

/* ---- BPE: merges from scores ---- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1)
                                : (x->id > y->id) - (x->id < y->id);
}

/* Control, unknown and byte pieces take part in no merge, even where their letters are in the
 * text. */
static bool mergeable(const fv_tok *t, int32_t id)
{
    return id >= 0 && (t->spm->types[id] == FV__SPM_NORMAL || t->spm->types[id] == FV__SPM_USER);
}

/* All ways to make a piece of two others; each counts or, with rank >= 0, is stored.
 * Called twice, to count and to store: the table is allocated once, at its final size. */
static int32_t add_merges(fv_tok *t, int32_t id, int32_t rank, int32_t at)
{
    fv__model *m = &t->model;
    fv__str s = fv__vocab_str(&m->vocab, id);
    int32_t n = 0;
    for (size_t i = 1; i < s.n; i++) {
        /* Cuts between characters only: no piece is half of one. */
        if ((s.s[i] & 0xC0) == 0x80) continue;
        int32_t a = fv__vocab_id(&m->vocab, s.s, i), b = fv__vocab_id(&m->vocab, s.s + i, s.n - i);
        if (!mergeable(t, a) || !mergeable(t, b)) continue;
        if (rank >= 0) {
            m->pairs[at + n][0] = a;
            m->pairs[at + n][1] = b;
            fv__merge_put(m, a, b, rank, id);
        }
        n++;
    }
    return n;
}

/* A merge's rank is the rank of its result's score; equal scores share one, and then the leftmost
 * pair wins.
 * SentencePiece stores no merges: it joins the pair whose result has the best score.  Listing
 * every split of every piece into two pieces, ranked by that score, gives the same joins with
 * bpe.c's loop. */
static fv_status make_merges(loader *l)
{
    fv_tok *t = l->t;
    fv__model *m = &t->model;
    size_t bytes = (size_t)m->vocab.n * sizeof(scored);
    scored *order = fv__alloc(t->env, bytes);
    if (!order) return no_memory(l);
    int64_t total = 0;
    int32_t n = 0, rank = 0;
    for (int32_t id = 0; id < m->vocab.size; id++) {
        if (!mergeable(t, id)) continue;
        order[n++] = (scored){(float)m->scores[id], id};
        total += add_merges(t, id, -1, 0);
    }
    qsort(order, (size_t)n, sizeof *order, by_score);
    /* A piece of n characters has n - 1 splits, so the total is bounded by the bytes of the
     * file; the test keeps the hash table's size in an int. */
    bool ok = total < INT32_MAX / 4 && fv__merge_table(m, &t->pool, (int32_t)total);
    for (int32_t i = 0; i < n && ok; i++) {
        if (i && order[i].score != order[i - 1].score) rank++;
        m->n_pairs += add_merges(t, order[i].id, rank, m->n_pairs);
    }
    fv__free(t->env, order, bytes);
    return ok ? FV_OK : no_memory(l);
}

/* ---- putting it together ---- */

/* single: scores are added in float and runs of unknown pieces become one, as SentencePiece
 * does. */
static fv_status set_model(loader *l, const spec *s)
{
    fv_tok *t = l->t;
    fv__model *m = &t->model;
    static const fv__model_kind kinds[] = {0, FV__MODEL_UNIGRAM, FV__MODEL_BPE, FV__MODEL_WORDLEVEL,
                                           FV__MODEL_CHAR};
    m->kind = kinds[s->model];
    if (m->vocab.longest > FV__LONGEST_TOKEN)
        return bad(l, "pieces", "a piece of more than 1024 bytes is not implemented");
    m->single = m->fuse_unk = true;
    m->byte_fallback = s->byte_fallback;
    m->unk_token = fv__vocab_str(&m->vocab, m->unk);
    m->has_unk_token = true;
    fv__byte_ids(m);
    /* <0x00> to <0xFF> must all be there, or some text would have no encoding at all. */
    for (int b = 0; b < 256; b++) {
        int32_t id = m->byte_ids[b];
        if (s->byte_fallback && (id < 0 || t->spm->types[id] != FV__SPM_BYTE))
            return bad(l, "pieces", "byte_fallback is set, but byte pieces are missing");
    }
    for (int32_t id = 0; id < m->vocab.size; id++)
        if (t->spm->types[id] == FV__SPM_UNUSED && m->kind == FV__MODEL_BPE)
            return bad(l, "pieces", "unused pieces in a BPE model are not implemented");
    if (m->kind == FV__MODEL_BPE) return make_merges(l);
    if (m->kind != FV__MODEL_WORDLEVEL) return FV_OK;
    /* A word model: one piece for each word with its meta character, cut before it, or behind it
     * where spaces are suffixes. */
    t->split = fv__pool_alloc(&t->pool, sizeof *t->split);
    if (!t->split) return no_memory(l);
    t->n_split = 1;
    *t->split = (fv__split){.kind = FV__SPLIT,
                            .behaviour = s->suffix ? FV__MERGED_PREVIOUS : FV__MERGED_NEXT,
                            .pattern = {.text = {META, 3}}};
    return FV_OK;
}

/* User-defined pieces are found before normalising and never changed by it. */
static fv_status set_symbols(loader *l)
{
    fv_tok *t = l->t;
    int32_t n = 0, size = t->model.vocab.size;
    for (int32_t id = 0; id < size; id++) n += t->spm->types[id] == FV__SPM_USER;
    if (!n) return FV_OK;
    fv__str *keys = fv__alloc(t->env, (size_t)n * sizeof *keys);
    int32_t *ids = fv__alloc(t->env, (size_t)n * sizeof *ids), k = 0;
    bool ok = keys && ids;
    for (int32_t id = 0; id < size && ok; id++)
        if (t->spm->types[id] == FV__SPM_USER)
            keys[k] = fv__vocab_str(&t->model.vocab, id), ids[k++] = id;
    ok = ok && fv__trie_build(&t->spm->symbols, &t->pool, keys, ids, n);
    fv__free(t->env, keys, (size_t)n * sizeof *keys);
    fv__free(t->env, ids, (size_t)n * sizeof *ids);
    t->norm->symbols = t->model.frozen = &t->spm->symbols;
    return ok ? FV_OK : no_memory(l);
}

static fv_status set_normaliser(loader *l, const spec *s)
{
    fv_tok *t = l->t;
    fv__str blob;
    t->norm = fv__pool_alloc(&t->pool, sizeof *t->norm);
    if (!t->norm) return no_memory(l);
    t->n_norm = 1;
    *t->norm = (fv__norm){.kind = FV__SPM_NORM,
                          .prefix = s->prefix,
                          .squeeze = s->squeeze,
                          .escape = s->escape,
                          .suffix = s->suffix};
    t->spm->prefix = s->prefix;
    t->spm->squeeze = s->squeeze;
    if (!fv__pool_str(&t->pool, &t->spm->unk_surface, s->unk_surface.s, s->unk_surface.n))
        return no_memory(l);
    if (fv__utf8_check(s->unk_surface.s, s->unk_surface.n) != s->unk_surface.n)
        return bad(l, "trainer_spec.unk_surface", "it is not UTF-8");
    if (!s->charsmap.n) return FV_OK;
    if (!fv__pool_str(&t->pool, &blob, s->charsmap.s, s->charsmap.n)) return no_memory(l);
    if (!fv__charsmap_init(&t->norm->map, blob))
        return bad(l, "normalizer_spec.precompiled_charsmap", "the map is damaged");
    return FV_OK;
}

fv_status fv__spm_load(fv_tok *t, const char *data, size_t n, const char *file, fv_err *e)
{
    loader l = {t, file, e};
    /* Defaults of the messages in sentencepiece_model.proto: fields that have them are not in
     * the file. */
    spec s = {.model = 1,
              .unk_surface = {" \xE2\x81\x87 ", 5},
              .prefix = true,
              .squeeze = true,
              .escape = true};
    wire w = open_wire((fv__str){data, n});
    fv_status st = FV_OK;
    int64_t pieces = 0;
    size_t text = 0;
    for (field f; st == FV_OK && next(&w, &f);) {
        if (f.number >= 200) continue;
        if (f.number > 5 || f.type != 2) return bad(&l, "the file", "it is no SentencePiece model");
        if (f.number == 1) pieces++, text += f.bytes.n;
        if (f.number == 2) st = read_trainer(&l, &s, f.bytes);
        if (f.number == 3) st = read_normaliser(&l, &s, f.bytes);
        if (f.number == 5) st = check_denormaliser(&l, f.bytes);
    }
    if (st != FV_OK) return st;
    if (w.bad || !pieces || pieces > INT32_MAX / 4)
        return bad(&l, "the file", "it is no SentencePiece model");
    st = read_pieces(&l, (fv__str){data, n}, (int32_t)pieces, text);
    if (st == FV_OK) st = set_normaliser(&l, &s);
    if (st == FV_OK) st = set_symbols(&l);
    return st == FV_OK ? set_model(&l, &s) : st;
}
