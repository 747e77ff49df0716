/* work.h - what one call of fv_tok_encode writes to; it hangs from the fv_encoding and is used
 * again by the next call. */
#ifndef FV_TOK_WORK_H
#define FV_TOK_WORK_H

#include "tok.h"

typedef struct fv__token {
    int32_t id;
    uint32_t from, to;    /* in the clean text */
    uint32_t a, b;        /* in the text the model saw */
    uint16_t lead, trail; /* spaces to cut from the offsets */
    uint32_t word;        /* which piece of the split text it came from */
} fv__token;

typedef struct fv__tokens {
    fv__token *v;
    size_t n, cap; /* cap in bytes */
} fv__tokens;

typedef struct fv__symbol {
    int32_t id;
    uint32_t len; /* bytes of the piece */
} fv__symbol;

typedef struct fv__path {
    double score;
    int32_t id;           /* of the token that ends here; -1: unknown */
    uint32_t start, next; /* where it starts; where the token that starts here ends */
} fv__path;

struct fv__work {
    fv_encoding out; /* first: the public part */
    const fv_tok *t;
    const fv_tok *by; /* t, or Marian's target pieces */
    const fv_env *env;
    size_t cap_ids, cap_types, cap_special, cap_spans, cap_words;
    fv_span *spans; /* these two are kept when a call does not want them */
    int32_t *words;

    bool want; /* offsets are wanted */
    bool track;
    /* A tokenizer's file decides how much work a text is.  Stages count what they do (a step of a
     * trie, a byte that is passed on), matching is timed, and what goes beyond the limits is
     * refused: see fv__work_limits. */
    size_t most_text;              /* bytes that normalising may make of the text */
    uint64_t steps, most_steps;    /* so far, and at most */
    uint64_t matches;              /* searches by PCRE2 */
    double match_start, match_cpu; /* when the first was: on the clock, and of this thread's time */
    size_t match_calls;            /* callbacks of PCRE2 before the clock is read again */
    size_t bytes;                  /* of the text that is encoded or decoded */
    fv_err err;                    /* why a stage failed */

    fv__text clean;       /* the input, valid UTF-8 */
    fv__text norm[2];     /* normalised, by turns */
    fv__text shift[2];    /* changed again while splitting */
    const fv__text *text; /* the current one */
    fv__piece *pieces, *next_pieces;
    size_t n_pieces, cap_pieces, n_next, cap_next;

    fv__tokens tokens[2]; /* of the first text and of the second */
    /* training: gets the pieces instead of the model */
    bool (*on_piece)(void *self, const char *s, size_t n);
    void *on_piece_self;
    fv__tokens *sink;
    bool last_unknown; /* the last token emitted was the unknown one */
    uint32_t word;     /* pieces of this text that are done */

    fv__symbol *symbols;
    size_t cap_symbols;
    void *heap, *links;
    size_t cap_heap, cap_links;
    fv__path *path;
    size_t cap_path;
    struct fv__cached *cache;
    void *match; /* pcre2_match_data and its companions */
    void *match_context, *jit_stack;
};

/* Makes *p (of *cap bytes) hold n items of size; false fills w->err. */
bool fv__want(fv__work *w, void **p, size_t *cap, size_t n, size_t size);
/* A token for [a, b) of the current text. */
bool fv__emit(fv__work *w, int32_t id, uint32_t a, uint32_t b);
/* One for an added token, found at [a, b) of text. */
bool fv__emit_added(fv__work *w, const fv__added *added, const fv__text *text, size_t a, size_t b);
bool fv__no_memory(fv__work *w);
/* Limits for a text of n bytes, with nothing counted yet. */
void fv__work_limits(fv__work *w, size_t n);
/* false fills w->err: more steps than this text is worth. */
bool fv__within_limits(fv__work *w);
/* A text that a stage has made is whole; false fills w->err: beyond the limit, or out of memory. */
bool fv__text_made(fv__work *w, const fv__text *t);
bool fv__add_piece(fv__work *w, size_t a, size_t b);
/* The tokens of one text, into sink; false fills w->err. */
bool fv__encode_text(const fv_tok *t, fv__work *w, const char *s, size_t n, fv__tokens *sink);
void fv__pattern_release(fv__work *w);

/* Steps that a byte counts for which a stage reads or writes: such stages take some 10 ns for
 * it. */
#define FV__STEPS_PASS 3

#define FV__CACHE_SLOTS 4096
#define FV__CACHE_WORD 22
#define FV__CACHE_IDS 6

typedef struct fv__cached {
    uint32_t hash;
    uint8_t len, n;
    char word[FV__CACHE_WORD];
    fv__symbol sym[FV__CACHE_IDS];
} fv__cached;

#endif
