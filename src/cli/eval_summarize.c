/* eval_summarize.c - ROUGE of summaries, by a model or from a file. */
#include "eval.h"
#include "summarize.h"

#include <stdlib.h>

typedef struct work {
    const eval_values *v;
    eval_texts *out;
} work;

static int encode(writer *w, const void *user, ids *out, const fv_text *text)
{
    return summarize_encode(w, ((const work *)user)->v->prefix, out, text);
}

static int take(writer *w, const void *user, const fv_text *text, const ids *source,
                const fv_hyp *h)
{
    char *summary;
    size_t len;
    (void)text;
    int code = writer_decode(w, &summary, &len, source, h->ids, h->n);
    if (code == CLI_OK && !eval_add_text(((const work *)user)->out, summary, len))
        code = cli_fail(w->c, "out of memory");
    free(summary);
    return code;
}

static int summarize(const cli *c, const eval_values *v, const eval_texts *texts, eval_texts *out)
{
    writer w;
    work user = {.v = v, .out = out};
    writer_job job = {.encode = encode,
                      .print = take,
                      .user = &user,
                      .together = v->batch ? v->batch : SUMMARY_BATCH};
    fv_text *in = calloc((size_t)texts->n, sizeof *in);
    int code = writer_open(&w, c, &v->model, &v->settings, "summarization", SUMMARY_TOKENS);
    if (code == CLI_OK && !in) code = cli_fail(c, "out of memory");
    if (code == CLI_OK) code = eval_new_texts(c, out, texts->n);
    for (int64_t i = 0; code == CLI_OK && i < texts->n; i++)
        in[i] = (fv_text){.s = texts->at[i], .n = texts->len[i]};
    if (code == CLI_OK && v->beam) w.gen.num_beams = v->beam;
    w.gen.num_return_sequences = 1;
    if (code == CLI_OK) code = writer_run(&w, &job, in, texts->n);
    writer_close(&w);
    free(in);
    return code;
}

static int report(const cli *c, const eval_values *v, const eval_texts *texts,
                  const eval_texts *reference)
{
    fv_rouge r;
    fv_err e;
    if (fv_rouge_score(&r, NULL, (const char *const *)texts->at, (const char *const *)reference->at,
                       texts->n, &e))
        return cli_error(c, &e);
    if (v->json)
        return cli_print_json(c, json_pack("{s:s, s:I, s:f, s:f, s:f}", "task", "summarize",
                                           "records", (json_int_t)texts->n, "rouge1", r.rouge1,
                                           "rouge2", r.rouge2, "rougeL", r.rougeL));
    printf("ROUGE-1 %6.2f  of %lld records\nROUGE-2 %6.2f\nROUGE-L %6.2f\n", r.rouge1,
           (long long)texts->n, r.rouge2, r.rougeL);
    return CLI_OK;
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    eval_texts texts = {0}, reference = {0}, summary = {0};
    bool made;
    int code = eval_read_sides(c, v, file, &texts, &reference, &made);
    if (code == CLI_OK && !made) code = summarize(c, v, &texts, &summary);
    if (code == CLI_OK) code = eval_write_texts(c, v, &summary);
    if (code == CLI_OK) code = report(c, v, made ? &texts : &summary, &reference);
    eval_free_texts(&texts);
    eval_free_texts(&reference);
    eval_free_texts(&summary);
    return code;
}

/* a model that translates has the same architecture: it is said by --task */
static const char *const heads[] = {NULL};
const eval_kind eval_summarize = {.name = "summarize", .heads = heads, .run = run};
