/* generate_write.c - completions and chats as OpenAI writes them, whole and in chunks.
 *
 * Written by hand into a buffer, field by field in OpenAI's order: clients compare what they get
 * with recorded answers, and a chunk is made for every token of every sequence.
 *
 * Beside OpenAI's fields stand ids of tokens, since texts do not tell tokens apart, and
 * attention. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

/* ---- probabilities ---- */

/* The text of a token as it stands behind another: decoders leave out the blank before the first
 * token of a text. */
void sv_token_text(sv_text *out, const fv_tok *tok, int32_t before, int32_t token)
{
    int32_t both[] = {before, token};
    char *one = NULL, *two = NULL;
    size_t n_one = 0, n_two = 0;
    if (!fv_tok_decode(tok, &one, &n_one, both, 1, false, NULL) &&
        !fv_tok_decode(tok, &two, &n_two, both, 2, false, NULL) && n_two >= n_one &&
        !memcmp(one, two, n_one)) {
        sv_add(out, two + n_one, n_two - n_one);
    } else if (!fv_tok_decode(tok, &two, &n_two, &token, 1, false, NULL)) {
        sv_add(out, two, n_two);
    }
    fv_tok_free_text(tok, one, n_one);
    fv_tok_free_text(tok, two, n_two);
    if (!out->s) sv_put(out, "");
}

/* OpenAI gives the bytes too: a token may be a part of a character. */
static void write_bytes(sv_text *t, const sv_text *text)
{
    bool part = text->s && strstr(text->s, "\xef\xbf\xbd"); /* of a character: unknown */
    sv_key(t, "bytes");
    if (part) {
        sv_raw(t, "null");
        return;
    }
    sv_open(t, '[');
    for (size_t i = 0; i < text->n; i++) sv_int(t, (unsigned char)text->s[i]);
    sv_close(t, ']');
}

/* The token's bytes stand beside its text, because half a character is U+FFFD in JSON. `before`
 * decides whether a word's leading blank is shown. */
static void write_scored(sv_text *t, const sv_choice *c, int32_t before, int32_t token, float score)
{
    sv_text text = {0};
    sv_token_text(&text, c->gen->g->tok, before, token);
    sv_key(t, "token");
    sv_string(t, text.s ? text.s : "", text.n);
    sv_real_at(t, "logprob", (double)score);
    write_bytes(t, &text);
    sv_int_at(t, "id", token);
    sv_free(&text);
}

/* Chat's form, one object a token; completions have parallel lists (write_logprobs). */
static void write_chat_logprobs(sv_text *t, const sv_choice *c)
{
    sv_open(t, '{');
    sv_key(t, "content");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++) {
        const sv_scored *s = &c->scored[i];
        sv_open(t, '{');
        write_scored(t, c, s->before, s->token, s->score);
        sv_key(t, "top_logprobs");
        sv_open(t, '[');
        for (int k = 0; k < s->n_top; k++) {
            sv_open(t, '{');
            write_scored(t, c, s->before, s->top[k].token, s->top[k].score);
            sv_close(t, '}');
        }
        sv_close(t, ']');
        sv_close(t, '}');
    }
    sv_close(t, ']');
    sv_close(t, '}');
}

/* In completions' top_logprobs the token's text is a key: two tokens of the same text give it
 * twice, as at OpenAI. */
static void write_token_key(sv_text *t, const sv_choice *c, int32_t before, int32_t token,
                            bool is_key)
{
    sv_text text = {0};
    sv_token_text(&text, c->gen->g->tok, before, token);
    sv_string(t, text.s ? text.s : "", text.n);
    if (is_key) sv_add(t, ":", 1);
    sv_free(&text);
}

/* Beside OpenAI's lists: ids, which texts do not tell apart. */
static void put_ids(sv_text *t, const sv_choice *c)
{
    sv_key(t, "token_ids");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++) sv_int(t, c->scored[i].token);
    sv_close(t, ']');
    sv_key(t, "top_ids");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++) {
        sv_open(t, '[');
        for (int k = 0; k < c->scored[i].n_top; k++) sv_int(t, c->scored[i].top[k].token);
        sv_close(t, ']');
    }
    sv_close(t, ']');
}

/* The older form: lists side by side. */
static void write_logprobs(sv_text *t, const sv_choice *c)
{
    sv_open(t, '{');
    sv_key(t, "tokens");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++)
        write_token_key(t, c, c->scored[i].before, c->scored[i].token, false);
    sv_close(t, ']');
    sv_key(t, "token_logprobs");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++) sv_real(t, (double)c->scored[i].score);
    sv_close(t, ']');
    sv_key(t, "top_logprobs");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++) {
        const sv_scored *s = &c->scored[i];
        sv_open(t, '{');
        for (int k = 0; k < s->n_top; k++) {
            write_token_key(t, c, s->before, s->top[k].token, true);
            sv_real(t, (double)s->top[k].score);
        }
        sv_close(t, '}');
    }
    sv_close(t, ']');
    put_ids(t, c);
    sv_key(t, "text_offset");
    sv_open(t, '[');
    for (int64_t i = 0; i < c->n_scored; i++) sv_int(t, (int64_t)c->scored[i].offset);
    sv_close(t, ']');
    sv_close(t, '}');
}

/* What has been written is dropped: in a stream each chunk has its own tokens. */
static void put_logprobs(sv_text *t, sv_choice *c)
{
    sv_key(t, "logprobs");
    if (c->gen->logprobs < 0)
        sv_raw(t, "null");
    else if (c->gen->chat)
        write_chat_logprobs(t, c);
    else
        write_logprobs(t, c);
    c->n_scored = 0;
}

/* ---- attention ---- */

static void write_list(sv_text *t, const char *key, const int32_t *list, int n)
{
    sv_key(t, key);
    sv_open(t, '[');
    for (int i = 0; i < n; i++) sv_int(t, list[i]);
    sv_close(t, ']');
}

/* Rows as {"row": position, "weights": [layer][head][column]}; a row sees columns up to its own. */
void sv_write_weights(sv_text *t, const fv_sched_weights *w)
{
    for (int64_t i = 0; i < w->rows; i++) {
        sv_open(t, '{');
        sv_int_at(t, "row", w->first + i);
        sv_key(t, "weights");
        sv_open(t, '[');
        for (int l = 0; l < w->n_layers; l++) {
            sv_open(t, '[');
            for (int h = 0; h < w->n_heads; h++) {
                const float *x = w->w + (((int64_t)l * w->n_heads + h) * w->rows + i) * w->cols;
                sv_packed_reals(t, x, w->first + i + 1);
            }
            sv_close(t, ']');
        }
        sv_close(t, ']');
        sv_close(t, '}');
    }
}

/* Rows were written as they came (sv_write_weights); what stands before them is the same in every
 * chunk. */
static void put_attention(sv_text *t, sv_choice *c)
{
    sv_gen *q = c->gen;
    sv_text *head = &q->attention_head;
    if (!q->n_layers) return;
    if (!head->n) {
        sv_put(head, ",\"attention\":{");
        write_list(head, "layers", q->layers, q->n_layers);
        write_list(head, "heads", q->heads, q->n_heads);
        sv_key(head, "rows");
        sv_open(head, '[');
        t->failed |= head->failed;
    }
    sv_add(t, head->s, head->n);
    sv_add(t, c->attention.s ? c->attention.s : "", c->attention.n);
    sv_close(t, ']');
    sv_close(t, '}');
    sv_empty(&c->attention);
}

/* ---- answers ---- */

/* What every answer and every chunk begins with. */
static void begin(sv_text *t, const sv_gen *q, const char *object)
{
    sv_open(t, '{');
    sv_string_at(t, "id", q->id);
    sv_string_at(t, "object", object);
    sv_int_at(t, "created", q->created);
    sv_string_at(t, "model", sv_asked_name(q->r));
}

/* cached_tokens: of the prompt, those that a kept prefix saved. */
static void put_usage(sv_text *t, const sv_gen *q)
{
    int64_t prompt = q->prompt_at[q->n_prompts];
    sv_key(t, "usage");
    sv_open(t, '{');
    sv_int_at(t, "prompt_tokens", prompt);
    sv_int_at(t, "completion_tokens", q->new_tokens);
    sv_int_at(t, "total_tokens", prompt + q->new_tokens);
    sv_key(t, "prompt_tokens_details");
    sv_open(t, '{');
    sv_int_at(t, "cached_tokens", q->cached);
    sv_close(t, '}');
    sv_close(t, '}');
}

/* null until the last chunk of a choice, as clients expect. */
static void put_finish(sv_text *t, const sv_choice *c)
{
    if (c->finish)
        sv_string_at(t, "finish_reason", c->finish);
    else
        sv_raw_at(t, "finish_reason", "null");
}

/* The text from what was sent on up to `to`; nothing where there is nothing to tell.  Chunks of a
 * request begin alike, and memory serves them all: the engine's thread, which every sequence waits
 * for, makes one for each token. */
void sv_write_chunk(sv_gen *q, sv_choice *c, size_t to)
{
    sv_text *t = &q->chunk;
    size_t n = to > c->shown ? to - c->shown : 0;
    bool first = c->n == 1;
    if (!n && !c->finish && q->logprobs < 0 && !q->n_layers && !first) return;
    if (!q->head.n) {
        begin(&q->head, q, q->chat ? "chat.completion.chunk" : "text_completion");
        sv_put(&q->head, ",\"choices\":[{\"index\":");
    }
    sv_empty(t);
    sv_add(t, q->head.s, q->head.n);
    sv_int(t, c->index);
    sv_key(t, q->chat ? "delta" : "text");
    if (q->chat) {
        sv_open(t, '{');
        if (first) sv_string_at(t, "role", "assistant");
        sv_key(t, "content");
    }
    sv_string(t, n ? c->text.s + c->shown : "", n);
    if (q->chat) sv_close(t, '}');
    put_logprobs(t, c);
    put_attention(t, c);
    put_finish(t, c);
    sv_put(t, "}]}");
    c->shown += n;
    sv_event(q->r, t->s, t->n);
}

/* OpenAI's last event before [DONE] where stream_options asked for it: no choices, only counts. */
void sv_write_usage_chunk(sv_gen *q)
{
    sv_text t = {0};
    begin(&t, q, q->chat ? "chat.completion.chunk" : "text_completion");
    sv_raw_at(&t, "choices", "[]");
    put_usage(&t, q);
    sv_close(&t, '}');
    sv_event(q->r, t.s, t.n);
    sv_free(&t);
}

/* A choice of a whole answer. */
static void write_choice(sv_text *t, sv_choice *c)
{
    sv_open(t, '{');
    sv_int_at(t, "index", c->index);
    if (c->gen->chat) {
        sv_key(t, "message");
        sv_open(t, '{');
        sv_string_at(t, "role", "assistant");
        sv_key(t, "content");
        sv_string(t, c->text.s ? c->text.s : "", c->text.n);
        sv_raw_at(t, "refusal", "null");
        sv_close(t, '}');
    } else {
        sv_key(t, "text");
        sv_string(t, c->text.s ? c->text.s : "", c->text.n);
    }
    put_logprobs(t, c);
    put_attention(t, c);
    put_finish(t, c);
    sv_close(t, '}');
}

void sv_write_whole(sv_gen *q)
{
    sv_text t = {0};
    begin(&t, q, q->chat ? "chat.completion" : "text_completion");
    sv_key(&t, "choices");
    sv_open(&t, '[');
    for (int i = 0; i < q->n_choices; i++) write_choice(&t, &q->choice[i]);
    sv_close(&t, ']');
    put_usage(&t, q);
    sv_put(&t, "}\n");
    sv_answer(q->r, 200, NULL, &t);
}
