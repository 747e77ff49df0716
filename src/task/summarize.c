/* summarize.c - a short text for a long one, with models that were trained for it.
 *
 * The source is what the model's encoder reads; a prefix ("summarize: ") comes from config.json's
 * task_specific_params, as T5 has it, or from --prefix. Texts longer than the model reads are
 * cut, as the models were published. */
#include "task_pipeline.h"
#include "fovea/author/tok.h"

/* unless the model or the caller says otherwise */
enum { SUMMARY_TOKENS = 142, SUMMARY_BATCH = 8 };

typedef struct summarize_options {
    char prefix[1024];
} summarize_options;

static const fv_field options[] = {
    FV_TEXT(summarize_options, prefix, "",
            "put before every text; as config.json says if not given"),
    {0}};

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    return fv__open_writer(p, "summarization", SUMMARY_TOKENS, e);
}

/* What the model asks to have before a text: "summarize: " for T5. */
static const char *prefix_of(const fv_pipeline *p)
{
    const char *given = fv__setting(p->opt.settings, p->opt.n_settings, "prefix");
    if (given) return given;
    given = fv_json_text(fv_dir_config(p->writer.dir), "task_specific_params.summarization.prefix");
    return given ? given : "";
}

/* What does not fit into the model is cut off, as it is published. */
static fv_status encode(fv_pipeline *p, fv_buf *ids, const fv_text *text, fv_err *e)
{
    fv_writer *w = &p->writer;
    fv_buf all = {.env = &p->env};
    int64_t most = fv_model_context(w->model);
    if (!most) most = fv_tok_max_len(w->tok);
    fv__buf_str(&all, prefix_of(p));
    fv__buf_add(&all, text->s, text->n);
    fv_tok_opts o = {.specials = true, .max_len = w->encoder ? most : 0};
    fv_status st = all.failed ? fv_fail(e, FV_ENOMEM, "out of memory")
                              : fv_tok_encode(w->enc, all.data ? all.data : "", all.len, o, e);
    fv__buf_free(&all);
    return st ? st : fv__ids_add(ids, w->enc->ids, w->enc->n, e);
}

/* With several beams returned a record has several lines; with one it has one, so output stays
 * aligned with its input. */
static fv_status each(fv_pipeline *p, const fv_text *text, const fv_buf *source, int64_t i,
                      const fv_hyp *h, bool last, fv_err *e)
{
    fv_buf summary = {.env = &p->env}, *b = &p->out;
    (void)text, (void)i;
    fv_status st = fv__writer_decode(&p->writer, &summary, source, h->ids, h->n, e);
    if (!st && p->opt.json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "summary", summary.data ? summary.data : "", summary.len);
        fv__json_int_at(b, "source_tokens", fv__n_ids(source));
        fv__json_int_at(b, "tokens", h->n);
        fv__json_number_at(b, "score", h->score);
        fv__json_end(b, '}');
    } else if (!st) {
        /* one line, whatever the model wrote */
        fv__put_flat(b, summary.data ? summary.data : "", summary.len);
    }
    fv__buf_str(b, "\n");
    fv__buf_free(&summary);
    if (st) return st;
    return last ? fv__task_emit(p, e) : FV_OK;
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    static const fv_writer_job job = {.encode = encode, .each = each};
    return fv__write_all(p, &job, in, n, e);
}

static const fv_task_example examples[] = {{"fovea summarize -m bart-large-cnn --whole article.txt",
                                            "with the lengths and beams its config.json gives"},
                                           {"fovea summarize -m t5-small --json < articles.txt",
                                            "an article a line, a JSON object a line"},
                                           {0}};

const fv_task_kind fv__summarize_task = {
    .name = "summarize",
    .summary = "write short versions of long texts",
    .about = "Summarises each line of a file or of standard input, or the whole of it.  Beams, "
             "lengths and the words put before a text are those that the model's config.json gives "
             "for summarization (task_specific_params), unless the command line says otherwise.  "
             "What is longer than the model can read is cut off.",
    .examples = examples,
    .options = options,
    .size = sizeof(summarize_options),
    .generates = true,
    .aligned = true,
    .may_be_empty = true,
    .batch = SUMMARY_BATCH,
    .open = open_task,
    .run = run,
    .eval = &fv__eval_summarize};
