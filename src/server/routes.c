/* routes.c - what is served where. */
#include <string.h>

#include "core.h"

static const sv_route routes[] = {
    {"GET", "/v1/models", sv_models, false, "The models that are served"},
    {"GET", "/v1/models/*", sv_model_named, false, "One model"},
    {"POST", "/v1/completions", sv_completions, false, "Text that follows a prompt"},
    {"POST", "/v1/chat/completions", sv_chat, false, "The reply to a conversation"},
    {"POST", "/v1/embeddings", sv_embeddings, false, "A vector for each text"},
    {"POST", "/v1/attention", sv_attention, false, "Exact attention weights of a text"},
    {"POST", "/v1/classify", sv_classify, false, "Labels of texts"},
    {"POST", "/v1/tag", sv_tag, false, "Entities in texts"},
    {"POST", "/v1/answer", sv_answer_question, false, "The span of a context that answers"},
    {"POST", "/v1/fill", sv_fill, false, "Words for the masks of texts"},
    {"POST", "/v1/translate", sv_translate, false, "Translations of texts"},
    {"POST", "/v1/rerank", sv_rerank, false, "Documents in the order of their relevance"},
    {"POST", "/tokenize", sv_tokenize, false, "Token ids of a text"},
    {"POST", "/detokenize", sv_detokenize, false, "The text of token ids"},
    {"POST", "/apply-template", sv_apply_template, false, "A conversation as the model reads it"},
    {"GET", "/livez", sv_livez, true, "Whether the process answers"},
    {"GET", "/readyz", sv_readyz, true, "Whether it takes requests"},
    {"GET", "/metrics", sv_metrics, true, "Figures for Prometheus"},
};

const sv_route *sv_route_at(int i)
{
    return i < (int)(sizeof routes / sizeof *routes) ? &routes[i] : NULL;
}

/* A path that ends in a star stands for all that begin so. */
static bool is_path(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (pattern[n - 1] != '*') return !strcmp(pattern, path);
    return !strncmp(pattern, path, n - 1) && path[n - 1];
}

const sv_route *sv_find_route(const char *method, const char *path, bool *other_method)
{
    *other_method = false;
    for (int i = 0; sv_route_at(i); i++) {
        if (!is_path(routes[i].path, path)) continue;
        bool head = !strcmp(method, "HEAD") && !strcmp(routes[i].method, "GET");
        if (head || !strcmp(method, routes[i].method)) return &routes[i];
        *other_method = true;
    }
    return NULL;
}
