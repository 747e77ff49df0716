/* completions.c - /v1/completions and /v1/chat/completions: the prompt, then generate.c.
 *
 * A completion's prompt is a text, ids, or a list of either; a chat's is its messages through the
 * model's template, encoded without the special tokens that a tokenizer puts around a text, since
 * the template writes them itself. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

#define BAD "invalid_request_error"

static bool add_ids(sv_gen *q, const json_t *list)
{
    size_t n = json_array_size(list);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    bool ok = ids != NULL;
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *j = json_array_get(list, i);
        int64_t x = json_integer_value(j);
        ok = json_is_integer(j) && x >= 0 && x < fv_tok_size(q->g->tok);
        ids[i] = (int32_t)x;
    }
    if (!ok)
        sv_refuse(q->r, 400, BAD, "prompt", "prompt: an id is not one of the vocabulary's %d",
                  fv_tok_size(q->g->tok));
    ok = ok && sv_gen_add_prompt(q, ids, (int64_t)n);
    free(ids);
    return ok;
}

/* A string, token ids, or a list of either. */
static bool add_prompts(sv_gen *q, const json_t *j, bool nested)
{
    if (json_is_string(j))
        return sv_gen_add_text(q, json_string_value(j), json_string_length(j), true);
    if (json_is_array(j) && json_is_integer(json_array_get(j, 0))) return add_ids(q, j);
    bool ok = json_is_array(j) && json_array_size(j) && !nested;
    if (!ok)
        sv_refuse(q->r, 400, BAD, "prompt",
                  "prompt: a string, a list of token ids, or a list of those was expected");
    for (size_t i = 0; ok && i < json_array_size(j); i++)
        ok = add_prompts(q, json_array_get(j, i), true);
    return ok;
}

void sv_completions(sv_request *r)
{
    sv_gen *q = sv_gen_new(r, false);
    if (q && sv_gen_read(q) && add_prompts(q, json_object_get(r->json, "prompt"), false) &&
        sv_gen_check(q))
        sv_gen_start(q);
}

/* ---- conversations ---- */

/* Parts of a message that are text become one string, which every template understands. */
static json_t *join_parts(sv_request *r, json_t *parts)
{
    sv_text all = {0};
    json_t *joined = NULL;
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        ok = json_is_string(text) && type && !strcmp(type, "text");
        if (ok) sv_add(&all, json_string_value(text), json_string_length(text));
    }
    if (ok) joined = json_stringn(all.s ? all.s : "", all.n);
    if (!joined)
        sv_refuse(r, 400, BAD, "messages", "messages: only parts of type text are understood");
    sv_free(&all);
    return joined;
}

static bool check_message(sv_request *r, json_t *m)
{
    json_t *content = json_object_get(m, "content"), *joined;
    if (!json_is_object(m) || !json_is_string(json_object_get(m, "role"))) {
        sv_refuse(r, 400, BAD, "messages", "messages: each is an object with a role and a content");
        return false;
    }
    if (json_is_array(content)) {
        joined = join_parts(r, content);
        return joined && !json_object_set_new(m, "content", joined);
    }
    if (json_is_string(content)) return true;
    sv_refuse(r, 400, BAD, "messages", "messages: a content is a string or a list of parts");
    return false;
}

static bool check_messages(sv_request *r)
{
    const json_t *all = json_object_get(r->json, "messages");
    if (!json_is_array(all) || !json_array_size(all)) {
        sv_refuse(r, 400, BAD, "messages", "messages: a list of at least one was expected");
        return false;
    }
    for (size_t i = 0; i < json_array_size(all); i++)
        if (!check_message(r, json_array_get(all, i))) return false;
    return true;
}

/* The conversation as the template writes it; NULL: refused. */
static char *render(sv_request *r, sv_engine *g, bool closed)
{
    fv_err e;
    char *text = NULL;
    if (!g->template) {
        sv_refuse(r, 400, BAD, "model", "%s does not chat: %s", g->name, g->no_template);
        return NULL;
    }
    const json_t *extra = json_object_get(r->json, "chat_template_kwargs");
    if (extra && !json_is_object(extra) && !json_is_null(extra)) {
        sv_refuse(r, 400, BAD, "chat_template_kwargs",
                  "chat_template_kwargs: an object was expected");
        return NULL;
    }
    char *messages = json_dumps(json_object_get(r->json, "messages"), 0);
    char *variables = json_is_object(extra) ? json_dumps(extra, 0) : NULL;
    fv_chat_render how = {.variables = variables, .closed = closed};
    if (!messages || fv_chat_template_render_json(g->template, &text, messages, &how, &e)) {
        if (!messages) fv_fail(&e, FV_ENOMEM, "out of memory");
        sv_refuse_error(r, &e);
        text = NULL;
    }
    free(messages);
    free(variables);
    return text;
}

/* The token that ends a turn in the template ends a reply. */
static bool add_end_of_turn(sv_gen *q)
{
    fv_err e;
    fv_encoding *enc = sv_take_encoding(q->g, &e);
    if (!enc) {
        sv_refuse_error(q->r, &e);
        return false;
    }
    int32_t end = fv_chat_end_of_turn(q->g->template, q->g->tok, enc);
    sv_give_encoding(q->g, enc);
    int n = q->opt.n_ends < SV_MOST_ENDS - 1 ? q->opt.n_ends : SV_MOST_ENDS - 1;
    if (n) memcpy(q->ends, q->opt.ends, (size_t)n * sizeof *q->ends);
    if (end >= 0) q->ends[n++] = end;
    q->opt.ends = q->ends;
    q->opt.n_ends = n;
    return true;
}

void sv_chat(sv_request *r)
{
    sv_gen *q = sv_gen_new(r, true);
    if (!q || !sv_gen_read(q) || !check_messages(r)) return;
    char *text = render(r, q->g, false);
    if (!text) return;
    bool ok = sv_gen_add_text(q, text, strlen(text), false);
    fv_chat_template_free_text(q->g->template, text);
    if (ok && add_end_of_turn(q) && sv_gen_check(q)) sv_gen_start(q);
}

void sv_apply_template(sv_request *r)
{
    static const char *const keys[] = {"model", "messages", "chat_template_kwargs",
                                       "add_generation_prompt", NULL};
    bool open = true;
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL) ||
        !sv_get_bool(r, "add_generation_prompt", &open) || !check_messages(r))
        return;
    sv_engine *g = sv_find_engine(r);
    char *text = g ? render(r, g, !open) : NULL;
    if (!text) return;
    sv_text t = {0};
    sv_open(&t, '{');
    sv_string_at(&t, "prompt", text);
    sv_put(&t, "}\n");
    fv_chat_template_free_text(g->template, text);
    sv_answer(r, 200, NULL, &t);
}
