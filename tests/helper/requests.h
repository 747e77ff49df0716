/* requests.h - random requests to a scheduler, and what each gets when it is alone. */
#ifndef HELPER_REQUESTS_H
#define HELPER_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#include "fovea/author/gen.h"
#include "fovea/fovea.h"

enum { REQUEST_TOKENS = 40, REQUEST_POSITIONS = 128, REQUEST_VOCABULARY = 211 };

/* Two small models that write, of two layers and four heads: Llama and GPT-2. */
extern const char *const request_configs[2];

typedef struct request {
    int32_t prompt[80];
    int64_t n;
    fv_gen_opt opt;
    int64_t number;
    int32_t ends[2], banned[3];
    fv_sched_request ask; /* its layers and heads: one of each, if any */
    /* what came */
    uint64_t id;
    int32_t token[REQUEST_TOKENS];
    float score[REQUEST_TOKENS];
    float w[REQUEST_TOKENS][REQUEST_POSITIONS];
    int64_t got;
    int calls;
    fv_finish finish;
    int64_t stop_at; /* the callback ends it there; 0: never */
} request;

/* A prompt and settings by the dice; every third is greedy. */
void request_make(request *r, int i);
/* Its callback, which checks the order of events. */
bool request_take(void *user, const fv_sched_event *ev);
void request_submit(fv_scheduler *s, request *r);
/* The same request alone in a scheduler on d gives the same tokens, scores and weights; the one
 * that was alone is written into *alone. */
void request_compare_alone(fv_device *d, const fv_model *m, const request *r, request *alone);
/* Steps until all n have come and gone: at most `rush` come before a step, and some are cancelled
 * on their way. */
void request_run_all(fv_scheduler *s, request *all, int n, uint32_t rush);
/* Fails where one has neither ended nor been stopped by its callback. */
void request_all_ended(const request *all, int n);

#endif
