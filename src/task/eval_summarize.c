/* eval_summarize.c - ROUGE of summaries, by a model or from a file.
 *
 * ROUGE counts words that the summary shares with its reference, whatever their meaning: it ranks
 * systems, it does not judge a text. Without a stemmer, since the published one knows English
 * only. */
#include "task_pipeline.h"

static fv_status report(fv_eval_run *r, const fv_eval_texts *texts, const fv_eval_texts *reference,
                        fv_err *e)
{
    fv_rouge x;
    fv_buf *b = &r->out;
    fv_status st = fv_rouge_score(&x, &r->env, (const char *const *)texts->at,
                                  (const char *const *)reference->at, texts->n, e);
    if (st) return st;
    if (!r->opt->json) {
        fv__buf_fmt(b, "ROUGE-1 %6.2f  of %lld records\nROUGE-2 %6.2f\nROUGE-L %6.2f\n", x.rouge1,
                    (long long)texts->n, x.rouge2, x.rougeL);
        return FV_OK;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "summarize", 9);
    fv__json_int_at(b, "records", texts->n);
    fv__json_number_at(b, "rouge1", x.rouge1);
    fv__json_number_at(b, "rouge2", x.rouge2);
    fv__json_number_at(b, "rougeL", x.rougeL);
    fv__buf_str(b, "}\n");
    return FV_OK;
}

/* The model is the pipeline's, so an evaluation and `fovea summarize` give the same texts. */
static fv_status run(fv_eval_run *r, fv_err *e)
{
    fv_eval_texts texts = {0}, reference = {0}, summary = {0};
    fv_setting prefix = {"prefix", r->opt->prefix};
    bool made = false;
    fv_status st = fv__eval_sides(r, &texts, &reference, &made, e);
    if (!st && !made)
        st = fv__eval_pipeline(r, "summarize", &prefix, r->opt->prefix != NULL, &texts, &summary,
                               e);
    if (!st) st = report(r, made ? &texts : &summary, &reference, e);
    fv__eval_texts_free(&texts);
    fv__eval_texts_free(&reference);
    fv__eval_texts_free(&summary);
    return st;
}

/* a model that translates has the same architecture: it is said by --task */
static const fv_head_job heads[] = {FV_HEAD_BASE};
const fv_task_eval fv__eval_summarize = {.name = "summarize", .heads = heads, .run = run};
