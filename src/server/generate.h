/* generate.h - one request that generates: its prompts, its choices, and what is told of them. */
#ifndef SV_GENERATE_H
#define SV_GENERATE_H

#include "core.h"

enum { SV_MOST_CHOICES = 128, SV_MOST_STOPS = 16, SV_MOST_TOP = 20, SV_MOST_ENDS = 64 };

/* A token with its probability and the likeliest in its position. */
typedef struct sv_scored {
    int32_t token, before; /* before: the token in front, which decides about its blank */
    float score;
    size_t offset; /* of its text in the choice's */
    int n_top;
    fv_scored top[SV_MOST_TOP];
} sv_scored;

typedef struct sv_gen sv_gen;

/* One sequence.  After it was submitted it belongs to the thread of outputs.c. */
typedef struct sv_choice {
    sv_gen *gen;
    int index;
    const int32_t *prompt;
    int64_t n_prompt;
    uint64_t id; /* of the scheduler; 0: not submitted */
    fv_tok_stream *stream;
    sv_text text;      /* all of it */
    size_t shown;      /* bytes of it that were sent */
    sv_scored *scored; /* tokens whose probabilities are still to be sent */
    int64_t n_scored, room;
    sv_text attention;  /* rows still to be sent, as JSON of packed numbers */
    int64_t n;          /* tokens generated */
    int32_t last;       /* the token before the next */
    const char *finish; /* NULL: it goes on */
    double last_time;
    fv_constraint *constraint; /* where it stands in a schema, or NULL */
    _Atomic bool stopped;      /* it has come to its end, which the scheduler may not know yet */
} sv_choice;

struct sv_gen {
    sv_request *r;
    sv_engine *g;
    bool chat, stream, usage, echo, special;
    char id[64];
    int64_t created;
    fv_gen_opt opt;
    int32_t ends[SV_MOST_ENDS];
    const char *stop[SV_MOST_STOPS];
    size_t stop_len[SV_MOST_STOPS];
    int n_stops;
    int64_t logprobs; /* likeliest tokens told beside each; -1: no probabilities */
    double frequency_penalty, presence_penalty;
    fv_logit_bias *bias;
    int n_bias;
    int64_t priority;
    int32_t *layers, *heads; /* whose attention is told; n_layers 0: none */
    int n_layers, n_heads;
    bool prompt_rows;
    fv_schema *schema; /* what the text must be, or NULL */
    int32_t *prompts;  /* all prompts, one behind the other */
    int64_t room;
    int64_t n_prompts, each; /* choices of each prompt */
    int64_t prompt_at[SV_MOST_CHOICES + 1];
    sv_choice *choice;
    int n_choices;
    int left; /* choices that go on */
    int64_t cached, new_tokens;
    bool failed;
    sv_text head, chunk;    /* what chunks begin with, and the one that is being written */
    sv_text attention_head; /* "attention":{..,"rows":[ */
};

/* ask.c: the request's fields.  NULL: refused. */
sv_gen *sv_gen_new(sv_request *r, bool chat);
bool sv_gen_read(sv_gen *q);
bool sv_gen_check(sv_gen *q); /* what depends on the prompts */
void sv_gen_free(void *gen);
/* Appends a prompt. */
bool sv_gen_add_prompt(sv_gen *q, const int32_t *ids, int64_t n);
bool sv_gen_add_text(sv_gen *q, const char *text, size_t n, bool specials);

/* attention_ask.c: {"layers": .., "heads": .., "rows": ..}; false: refused. */
typedef struct sv_attention_ask {
    int32_t *layers, *heads;
    int n_layers, n_heads;
    bool all_rows;
} sv_attention_ask;
bool sv_read_attention(sv_request *r, sv_attention_ask *out, int64_t layers, int64_t heads);

/* format.c: response_format; false: refused.  The constraint of a choice. */
bool sv_read_format(sv_gen *q);
fv_status sv_constrain(sv_gen *q, sv_choice *c, fv_err *e);

/* generate.c: submits every choice; the request is answered by and by. */
void sv_gen_start(sv_gen *q);

/* outputs.c: what the scheduler tells, and which of a choice's calls it is; the first is without an
 * event.  On the engine's thread; sv_take_told of generate.c gets it on the thread of outputs.c. */
typedef enum sv_told { SV_TOLD_BEGIN, SV_TOLD_MORE, SV_TOLD_LAST } sv_told;
void sv_tell(sv_choice *c, const fv_sched_event *ev, sv_told told);
void sv_take_told(sv_choice *c, const fv_sched_event *ev, sv_told told, bool short_of_memory);

/* generate_write.c */
void sv_write_chunk(sv_gen *q, sv_choice *c, size_t to);
void sv_write_usage_chunk(sv_gen *q);
void sv_write_whole(sv_gen *q);
void sv_write_weights(sv_text *t, const fv_sched_weights *w);
void sv_token_text(sv_text *out, const fv_tok *tok, int32_t before, int32_t token);

#endif
