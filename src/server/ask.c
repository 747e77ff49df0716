/* ask.c - what a request for text asks: OpenAI's fields, their ranges and defaults.
 *
 * Names, ranges and defaults are OpenAI's, with what vLLM added to them (top_k, min_p,
 * repetition_penalty, min_tokens, priority), and what the model's generation_config.json says holds
 * where the request is silent.  Fields that would change the answer and are not supported are
 * refused; fields that change nothing here (user, metadata, store) are taken and ignored.
 *
 * The order matters: what the prompt does not decide is read before it is encoded, so that a wrong
 * request costs no encoding; what depends on its length is checked afterwards (sv_gen_check). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "generate.h"
#include "media.h"

#define BAD "invalid_request_error"

/* Fields of both kinds of request; the last line are names that change nothing here. */
static const char *const common[] = {"model",
                                     "stream",
                                     "stream_options",
                                     "max_tokens",
                                     "max_completion_tokens",
                                     "temperature",
                                     "top_p",
                                     "top_k",
                                     "min_p",
                                     "n",
                                     "stop",
                                     "seed",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "repetition_penalty",
                                     "logit_bias",
                                     "logprobs",
                                     "attention",
                                     "priority",
                                     "min_tokens",
                                     "skip_special_tokens",
                                     "response_format",
                                     "user",
                                     "metadata",
                                     "store",
                                     "service_tier",
                                     "parallel_tool_calls",
                                     NULL};
static const char *const of_completions[] = {"prompt", "echo", "best_of", "suffix", NULL};
static const char *const of_chat[] = {"messages", "top_logprobs", "chat_template_kwargs",
                                      "tools",    "tool_choice",  "modalities",
                                      NULL};

/* A model that describes images has no settings to take. */
static const char *const of_captions[] = {"model", "messages", "stream", "stream_options",
                                          "user",  "metadata", "store",  NULL};

/* The request's last owner calls this: strings of stops and prompts belong to r->json and are not
 * freed here. */
void sv_gen_free(void *gen)
{
    sv_gen *q = gen;
    if (!q) return;
    for (int i = 0; q->choice && i < q->n_choices; i++) {
        sv_choice *c = &q->choice[i];
        if (c->stream) fv_tok_stream_free(c->stream);
        sv_free(&c->text);
        sv_free(&c->attention);
        free(c->scored);
        fv_constraint_free(c->constraint);
    }
    fv_schema_free(q->schema);
    sv_free(&q->head);
    sv_free(&q->chunk);
    sv_free(&q->attention_head);
    free(q->choice);
    free(q->prompts);
    free(q->bias);
    free(q->layers);
    free(q->heads);
    free(q);
}

/* NULL: the request has been refused, or handed to a model of images, which answers a chat by its
 * caption. */
sv_gen *sv_gen_new(sv_request *r, bool chat)
{
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, common, chat ? of_chat : of_completions))
        return NULL;
    sv_engine *g = sv_find_engine(r);
    if (!g) return NULL;
    if (chat && g->media && !strcmp(g->media, "caption")) {
        if (sv_check_keys(r, r->json, of_captions, NULL)) sv_post(g, r, sv_caption_chat);
        return NULL;
    }
    if (!g->generates) {
        sv_refuse(r, 400, BAD, "model", "%s does not generate text", g->name);
        return NULL;
    }
    sv_gen *q = calloc(1, sizeof *q);
    if (!q) {
        sv_refuse(r, 503, "overloaded_error", NULL, "out of memory");
        return NULL;
    }
    *q = (sv_gen){.r = r, .g = g, .chat = chat, .logprobs = -1, .each = 1};
    q->opt = g->writer.gen;
    q->created = (int64_t)time(NULL);
    snprintf(q->id, sizeof q->id, "%s-%s", chat ? "chatcmpl" : "cmpl", r->id);
    r->job = q;
    r->free_job = sv_gen_free;
    return q;
}

/* ---- prompts ---- */

/* Prompts stand one after another in one array; prompt_at[i] is where the i-th begins, and the last
 * entry is where the next would. */
bool sv_gen_add_prompt(sv_gen *q, const int32_t *ids, int64_t n)
{
    int64_t at = q->prompt_at[q->n_prompts];
    if (q->n_prompts == SV_MOST_CHOICES) {
        sv_refuse(q->r, 400, BAD, "prompt", "at most %d prompts", SV_MOST_CHOICES);
        return false;
    }
    int32_t *more = realloc(q->prompts, (size_t)(at + n + 1) * sizeof *more);
    if (!more) {
        sv_refuse(q->r, 503, "overloaded_error", NULL, "out of memory");
        return false;
    }
    q->prompts = more;
    if (n) memcpy(more + at, ids, (size_t)n * sizeof *ids);
    q->prompt_at[++q->n_prompts] = at + n;
    return true;
}

bool sv_gen_add_text(sv_gen *q, const char *text, size_t n, bool specials)
{
    fv_err e;
    fv_encoding *enc = sv_take_encoding(q->g, &e);
    fv_status st = enc ? fv_tok_encode(enc, text, n, (fv_tok_opts){.specials = specials}, &e)
                       : e.code;
    bool ok = !st;
    /* a text of no tokens is continued from the token that begins every text */
    if (!st && !enc->n && q->g->writer.begin >= 0)
        ok = sv_gen_add_prompt(q, &q->g->writer.begin, 1);
    else if (!st)
        ok = sv_gen_add_prompt(q, enc->ids, enc->n);
    if (st) sv_refuse_error(q->r, &e);
    if (enc) sv_give_encoding(q->g, enc);
    return ok;
}

/* ---- fields ---- */

/* OpenAI's default is to sample at temperature 1; what else the model's generation_config.json says
 * about sampling holds. */
static bool read_sampling(sv_gen *q)
{
    sv_request *r = q->r;
    fv_gen_opt *o = &q->opt;
    double temperature = o->do_sample ? (double)o->temperature : 1, top_p = (double)o->top_p,
           min_p = (double)o->min_p, repetition = (double)o->repetition_penalty;
    int64_t seed = -1;
    if (!sv_get_real(r, "temperature", 0, 100, &temperature) ||
        !sv_get_real(r, "top_p", 0, 1, &top_p) || !sv_get_real(r, "min_p", 0, 1, &min_p) ||
        !sv_get_int(r, "top_k", -1, 1 << 30, &o->top_k) ||
        !sv_get_real(r, "repetition_penalty", 0.01, 100, &repetition) ||
        !sv_get_real(r, "presence_penalty", -2, 2, &q->presence_penalty) ||
        !sv_get_real(r, "frequency_penalty", -2, 2, &q->frequency_penalty) ||
        !sv_get_int(r, "seed", INT64_MIN, INT64_MAX, &seed))
        return false;
    if (!json_is_integer(json_object_get(r->json, "seed")) &&
        getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (int64_t)(sv_now() * 1e9);
    if (o->top_k < 0) o->top_k = 0;
    o->do_sample = temperature > 0;
    o->temperature = temperature > 0 ? (float)temperature : 1;
    if (top_p <= 0) o->top_k = 1; /* the likeliest alone */
    o->top_p = top_p > 0 ? (float)top_p : 1;
    o->min_p = (float)min_p;
    o->repetition_penalty = (float)repetition;
    o->seed = seed;
    o->num_beams = o->num_return_sequences = 1;
    return true;
}

/* 0 stands for as much as fits, which is known once the prompt is encoded; OpenAI gives completions
 * 16 tokens. */
static bool read_lengths(sv_gen *q)
{
    int64_t most = q->chat ? 0 : 16, least = 0;
    if (!sv_get_int(q->r, "max_tokens", 1, 1 << 24, &most) ||
        !sv_get_int(q->r, "max_completion_tokens", 1, 1 << 24, &most) ||
        !sv_get_int(q->r, "min_tokens", 0, 1 << 24, &least) ||
        !sv_get_int(q->r, "n", 1, SV_MOST_CHOICES, &q->each) ||
        !sv_get_int(q->r, "priority", -1000, 1000, &q->priority))
        return false;
    q->opt.max_new_tokens = most;
    q->opt.min_new_tokens = least;
    q->opt.min_length = 0;
    return true;
}

/* Kept by pointer into the JSON, which lives as long as the request. An empty string would stop
 * before the first token. */
static bool add_stop(sv_gen *q, const json_t *j)
{
    if (!json_is_string(j) || !json_string_length(j) || q->n_stops == SV_MOST_STOPS) {
        sv_refuse(q->r, 400, BAD, "stop", "stop: a string that is not empty, or up to %d of them",
                  SV_MOST_STOPS);
        return false;
    }
    q->stop[q->n_stops] = json_string_value(j);
    q->stop_len[q->n_stops++] = json_string_length(j);
    return true;
}

static bool read_stops(sv_gen *q)
{
    const json_t *j = json_object_get(q->r->json, "stop");
    if (!j || json_is_null(j)) return true;
    if (!json_is_array(j)) return add_stop(q, j);
    for (size_t i = 0; i < json_array_size(j); i++)
        if (!add_stop(q, json_array_get(j, i))) return false;
    return true;
}

/* Keys of JSON are strings: an id that is no whole number is refused rather than read up to its
 * first letter. OpenAI's bounds are -100 and 100, where the token is banned or certain. */
static bool read_bias(sv_gen *q)
{
    json_t *j = json_object_get(q->r->json, "logit_bias"), *value;
    const char *key;
    if (!j || json_is_null(j)) return true;
    q->bias = calloc(json_object_size(j) + 1, sizeof *q->bias);
    bool ok = json_is_object(j) && q->bias;
    json_object_foreach(j, key, value)
    {
        char *end;
        long id = strtol(key, &end, 10);
        double add = json_number_value(value);
        ok = ok && *key && !*end && id >= 0 && id < INT32_MAX && json_is_number(value) &&
             fabs(add) <= 100;
        if (ok) q->bias[q->n_bias++] = (fv_logit_bias){(int32_t)id, (float)add};
    }
    if (!ok)
        sv_refuse(q->r, 400, BAD, "logit_bias",
                  "logit_bias: an object of token ids and numbers from -100 to 100 was expected");
    return ok;
}

/* A chat says whether and how many in two fields, a completion in one. */
static bool read_logprobs(sv_gen *q)
{
    bool asked = false;
    int64_t top = 0;
    if (!q->chat) return sv_get_int(q->r, "logprobs", 0, SV_MOST_TOP, &q->logprobs);
    if (!sv_get_bool(q->r, "logprobs", &asked) ||
        !sv_get_int(q->r, "top_logprobs", 0, SV_MOST_TOP, &top))
        return false;
    if (asked) q->logprobs = top;
    if (asked || !top) return true;
    sv_refuse(q->r, 400, BAD, "top_logprobs", "top_logprobs needs logprobs to be true");
    return false;
}

/* stream_options without stream is an error of OpenAI's, too: whoever sends it expects usage, and
 * would wait for it in vain. */
static bool read_streaming(sv_gen *q)
{
    const json_t *j = json_object_get(q->r->json, "stream_options");
    bool skip = true;
    if (!sv_get_bool(q->r, "stream", &q->stream) || !sv_get_bool(q->r, "echo", &q->echo) ||
        !sv_get_bool(q->r, "skip_special_tokens", &skip))
        return false;
    q->special = !skip;
    q->usage = json_is_true(json_object_get(j, "include_usage"));
    if (!j || json_is_null(j) || (json_is_object(j) && q->stream)) return true;
    sv_refuse(q->r, 400, BAD, "stream_options", "stream_options: an object, beside stream: true");
    return false;
}

/* Fields that would change the answer and are not there. */
static bool refuse_others(sv_gen *q)
{
    const json_t *tools = json_object_get(q->r->json, "tools");
    const char *suffix = "";
    int64_t best_of = 1;
    if (!sv_get_int(q->r, "best_of", 1, 1, &best_of) || !sv_get_text(q->r, "suffix", &suffix, NULL))
        return false;
    if (json_array_size(tools))
        sv_refuse(q->r, 400, BAD, "tools", "tools: calls of tools are not supported");
    else if (*suffix)
        sv_refuse(q->r, 400, BAD, "suffix", "suffix: text is only continued, not filled in");
    else if (q->echo && q->logprobs >= 0)
        sv_refuse(q->r, 400, BAD, "echo", "echo: not together with logprobs");
    else
        return true;
    return false;
}

/* Checked against the model now: the scheduler would refuse it only when all choices are made. */
static bool read_attention(sv_gen *q)
{
    fv_sched_stats s = fv_scheduler_stats(q->g->scheduler);
    sv_attention_ask a = {0};
    if (!json_object_get(q->r->json, "attention")) return true;
    bool ok = sv_read_attention(q->r, &a, s.layers, s.heads);
    q->layers = a.layers;
    q->heads = a.heads;
    q->n_layers = ok ? a.n_layers : 0;
    q->n_heads = a.n_heads;
    q->prompt_rows = a.all_rows;
    return ok;
}

/* In the order of the fields' documentation; the first that is wrong is named. */
bool sv_gen_read(sv_gen *q)
{
    return read_sampling(q) && read_lengths(q) && read_stops(q) && read_bias(q) &&
           read_logprobs(q) && read_streaming(q) && refuse_others(q) && read_attention(q) &&
           sv_read_format(q);
}

/* ---- what depends on the prompts ---- */

/* Weights that an answer may hold: rows x columns of every choice, layer and head. */
static bool check_attention(sv_gen *q)
{
    double floats = 0;
    for (int64_t i = 0; i < q->n_prompts; i++) {
        double n = (double)(q->prompt_at[i + 1] - q->prompt_at[i]);
        double made = (double)q->opt.max_new_tokens, rows = made + (q->prompt_rows ? n : 0);
        floats += rows * (n + made) * (double)q->each * q->n_layers * q->n_heads;
    }
    if (floats <= (double)q->r->server->opt.attention_floats) return true;
    sv_refuse(q->r, 400, BAD, "attention",
              "attention: up to %.0f weights were asked for, an answer holds %lld; ask for fewer "
              "layers, heads or tokens",
              floats, (long long)q->r->server->opt.attention_floats);
    return false;
}

/* What can only be said with all prompts encoded: choices in all, and whether the longest prompt
 * and what follows it fit the KV cache. A length that was not given is what is left of the context.
 */
bool sv_gen_check(sv_gen *q)
{
    int64_t room = fv_scheduler_stats(q->g->scheduler).capacity, longest = 0;
    if (q->n_prompts * q->each > SV_MOST_CHOICES) {
        sv_refuse(q->r, 400, BAD, "n", "at most %d choices in all", SV_MOST_CHOICES);
        return false;
    }
    for (int64_t i = 0; i < q->n_prompts; i++) {
        int64_t n = q->prompt_at[i + 1] - q->prompt_at[i];
        longest = n > longest ? n : longest;
        if (n) continue;
        sv_refuse(q->r, 400, BAD, q->chat ? "messages" : "prompt", "the prompt is empty");
        return false;
    }
    bool given = q->opt.max_new_tokens > 0 &&
                 json_object_get(q->r->json, q->chat ? "max_tokens" : "prompt");
    if (longest >= room || (given && longest + q->opt.max_new_tokens > room)) {
        sv_refuse(
            q->r, 400, BAD, q->chat ? "messages" : "prompt",
            "the context holds %lld tokens; the prompt has %lld, and %lld more were asked for",
            (long long)room, (long long)longest, (long long)q->opt.max_new_tokens);
        return false;
    }
    if (!q->opt.max_new_tokens) q->opt.max_new_tokens = room - longest;
    q->r->prompt_tokens = q->prompt_at[q->n_prompts];
    return !q->n_layers || check_attention(q);
}
