/* routes.c - what is served where. */
#include <string.h>

#include "core.h"

/* Fields that all requests for text have. */
#define GENERATES                                                                                  \
    " model:text stream:bool stream_options:object max_tokens:count max_completion_tokens:count "  \
    "temperature:real top_p:real top_k:int min_p:real n:count stop:stop seed:int "                 \
    "presence_penalty:real frequency_penalty:real repetition_penalty:real logit_bias:object "      \
    "attention:object priority:int min_tokens:count skip_special_tokens:bool user:text "           \
    "response_format:object metadata:object store:bool service_tier:text parallel_tool_calls:bool"

/* fields: what a body may hold and of what type, for /openapi.json; NULL: there is no body. */
static const sv_route routes[] = {
    {"GET", "/v1/models", sv_models, false, "The models that are served", NULL},
    {"GET", "/v1/models/*", sv_model_named, false, "One model", NULL},
    {"POST", "/v1/completions", sv_completions, false, "Text that follows a prompt",
     "prompt:prompt! echo:bool best_of:count suffix:text logprobs:count" GENERATES},
    {"POST", "/v1/chat/completions", sv_chat, false, "The reply to a conversation",
     "messages:messages! logprobs:bool top_logprobs:count chat_template_kwargs:object tools:any "
     "tool_choice:any modalities:any" GENERATES},
    {"POST", "/v1/embeddings", sv_embeddings, false, "A vector for each text",
     "input:texts! model:text encoding_format:text dimensions:count user:text"},
    {"POST", "/v1/attention", sv_attention, false, "Exact attention weights of a text",
     "input:text! model:text target:text attention:object rows:rows format:text kind:text"},
    {"POST", "/v1/classify", sv_classify, false, "Labels of texts",
     "input:texts! model:text top:count"},
    {"POST", "/v1/tag", sv_tag, false, "Entities in texts", "input:texts! model:text join:text"},
    {"POST", "/v1/answer", sv_answer_question, false, "The span of a context that answers",
     "question:text! context:text! model:text top:count or_none:bool max_answer_tokens:count"},
    {"POST", "/v1/fill", sv_fill, false, "Words for the masks of texts",
     "input:texts! model:text top:count"},
    {"POST", "/v1/translate", sv_translate, false, "Translations of texts",
     "input:texts! model:text num_beams:count n:count max_tokens:count attention:bool"},
    {"POST", "/v1/rerank", sv_rerank, false, "Documents in the order of their relevance",
     "query:text! documents:texts! model:text top_n:count return_documents:bool"},
    {"POST", "/tokenize", sv_tokenize, false, "Token ids of a text",
     "text:text! model:text prompt:text add_special_tokens:bool"},
    {"POST", "/detokenize", sv_detokenize, false, "The text of token ids",
     "tokens:ids! model:text skip_special_tokens:bool"},
    {"POST", "/apply-template", sv_apply_template, false, "A conversation as the model reads it",
     "messages:messages! model:text chat_template_kwargs:object add_generation_prompt:bool"},
    {"GET", "/livez", sv_livez, true, "Whether the process answers", NULL},
    {"GET", "/readyz", sv_readyz, true, "Whether it takes requests", NULL},
    {"GET", "/metrics", sv_metrics, true, "Figures for Prometheus", NULL},
    {"GET", "/openapi.json", sv_openapi, true, "This document", NULL},
    {"GET", "/", sv_page, true, "The page that shows attention live", NULL},
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
