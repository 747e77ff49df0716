/* routes.c - what is served where.
 *
 * One table: the server dispatches by it and /openapi.json is written from it, so that neither can
 * know a path the other does not. */
#include <string.h>

#include "core.h"

/* Fields that all requests for text have. */
#define GENERATES                                                                                  \
    " model:model stream:bool stream_options:object max_tokens:int(1,16777216) "                   \
    "max_completion_tokens:int(1,16777216) temperature:real(0,100) top_p:real(0,1) "               \
    "top_k:int(-1,1073741824) min_p:real(0,1) n:int(1,128) stop:stop "                             \
    "seed:int(-9223372036854775808,9223372036854775807) presence_penalty:real(-2,2) "              \
    "frequency_penalty:real(-2,2) repetition_penalty:real(0.01,100) logit_bias:bias "              \
    "attention:weights priority:int(-1000,1000) min_tokens:int(0,16777216) "                       \
    "skip_special_tokens:bool user:any response_format:object metadata:any store:any "             \
    "service_tier:any parallel_tool_calls:any"

/* fields: what a body may hold and of what type, for /openapi.json; NULL: there is no body. */
static const sv_route routes[] = {
    {"GET", "/v1/models", sv_models, false, "The models that are served", NULL, NULL},
    {"GET", "/v1/models/*", sv_model_named, false, "One model", NULL, NULL},
    {"GET", "/v1/runs", sv_runs, false, "Trainings of the directory that is shown", NULL, NULL},
    {"GET", "/v1/runs/*", sv_run_named, false, "The log of one", NULL, NULL},
    {"POST", "/v1/completions", sv_completions, false, "Text that follows a prompt",
     "prompt:prompt! echo:bool best_of:int(1,1) suffix:text logprobs:int(0,20)" GENERATES,
     "text/event-stream"},
    {"POST", "/v1/chat/completions", sv_chat, false, "The reply to a conversation",
     "messages:messages! logprobs:bool top_logprobs:int(0,20) chat_template_kwargs:object "
     "tools:any tool_choice:any modalities:any" GENERATES,
     "text/event-stream"},
    {"POST", "/v1/embeddings", sv_embeddings, false, "A vector for each text",
     "input:texts! model:model encoding_format:one(float,base64) dimensions:int(1,1048576) "
     "user:any",
     NULL},
    {"POST", "/v1/attention", sv_attention, false,
     "Exact attention weights of a text, or of an image or a sound as a data: URI",
     "input:text! model:model target:text attention:weights rows:rows "
     "format:one(json,safetensors,html,view) kind:one(encoder,decoder,cross) "
     "through:one(rollout,flow) pool:int(1,1024)",
     "application/octet-stream text/html"},
    {"POST", "/v1/heads", sv_heads, false, "What each head does: entropy, and where it looks",
     "input:text! model:model target:text kind:one(encoder,decoder,cross)", NULL},
    {"POST", "/v1/ablate", sv_ablate, false, "The next token with some heads silenced",
     "input:text! heads:pairs! model:model top:int(1,32)", NULL},
    {"POST", "/v1/neurons", sv_neurons, false, "The query and the keys behind a row of weights",
     "input:text! model:model target:text kind:one(encoder,decoder,cross) layer:int(0,65535) "
     "head:int(0,65535) row:int(0,16777216)",
     NULL},
    {"POST", "/v1/classify", sv_classify, false, "Labels of texts, or of images as data: URIs",
     "input:texts! model:model top:int(1,1048576)", NULL},
    {"POST", "/v1/detect", sv_detect, false, "Objects in images, with their boxes",
     "input:texts! model:model", NULL},
    {"POST", "/v1/caption", sv_caption, false, "What images show, in words",
     "input:texts! model:model", NULL},
    {"POST", "/v1/audio/transcriptions", sv_transcriptions, false, "What is said in a sound",
     "file:file! model:model response_format:one(json,verbose_json)", NULL},
    {"POST", "/v1/tag", sv_tag, false, "Entities in texts",
     "input:texts! model:model join:one(first,simple)", NULL},
    {"POST", "/v1/answer", sv_answer_question, false, "The span of a context that answers",
     "question:text! context:text! model:model top:int(1,64) or_none:bool "
     "max_answer_tokens:int(1,512)",
     NULL},
    {"POST", "/v1/fill", sv_fill, false, "Words for the masks of texts",
     "input:texts! model:model top:int(1,100)", NULL},
    {"POST", "/v1/translate", sv_translate, false, "Translations of texts",
     "input:texts! model:model num_beams:int(1,64) n:int(1,64) max_tokens:int(1,1048576) "
     "attention:bool",
     NULL},
    {"POST", "/v1/rerank", sv_rerank, false, "Documents in the order of their relevance",
     "query:text! documents:texts! model:model top_n:int(1,1048576) return_documents:bool", NULL},
    {"POST", "/tokenize", sv_tokenize, false, "Token ids of a text",
     "text:text model:model prompt:text add_special_tokens:bool", NULL},
    {"POST", "/detokenize", sv_detokenize, false, "The text of token ids",
     "tokens:ids! model:model skip_special_tokens:bool", NULL},
    {"POST", "/apply-template", sv_apply_template, false, "A conversation as the model reads it",
     "messages:messages! model:model chat_template_kwargs:object add_generation_prompt:bool", NULL},
    {"GET", "/livez", sv_livez, true, "Whether the process answers", NULL, NULL},
    {"GET", "/readyz", sv_readyz, true, "Whether it takes requests", NULL, NULL},
    {"GET", "/metrics", sv_metrics, true, "Figures for Prometheus", NULL, NULL},
    {"GET", "/openapi.json", sv_openapi, true, "This document", NULL, NULL},
    {"GET", "/", sv_page, true, "The page that shows attention live", NULL, NULL},
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

/* HEAD is GET without its body, which libmicrohttpd leaves out. *allow is what a 405 must name;
 * NULL: no such path, a 404. */
const sv_route *sv_find_route(const char *method, const char *path, const char **allow)
{
    *allow = NULL;
    for (int i = 0; sv_route_at(i); i++) {
        if (!is_path(routes[i].path, path)) continue;
        bool get = !strcmp(routes[i].method, "GET"), head = get && !strcmp(method, "HEAD");
        if (head || !strcmp(method, routes[i].method)) return &routes[i];
        *allow = get ? "GET, HEAD" : routes[i].method;
    }
    return NULL;
}
