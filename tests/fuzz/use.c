/* use.c - a directory opened and used as the commands do: the first failure is what one would
 * print.
 *
 * Once something is open, memory_mark tells it: what computing takes is another matter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/author/train.h"
#include "folder.h"
#include "memory.h"
#include "fovea/author/config.h"
#include "fovea/author/data.h"

static void encode(const fv_tok *t)
{
    static const char text[] =
        "Hello  w\xc3\xb6rld, the cat! 12<s>[MASK]\n\xe2\x96\x81 \xe6\xbc\xa2\xff";
    fv_encoding *enc;
    char *back;
    size_t n;
    if (fv_encoding_new(&enc, t, NULL)) return;
    fv_tok_opts how = {.specials = true, .offsets = FV_OFFSETS_CHARS, .pair = "a b", .pair_len = 3};
    for (int i = 0; i < 2; i++, how.pair = NULL)
        if (!fv_tok_encode(enc, text, sizeof text - 1, how, NULL) &&
            !fv_tok_decode(t, &back, &n, enc->ids, enc->n, i, NULL))
            fv_tok_free_text(t, back, n);
    fv_encoding_free(enc);
}

fv_status use_tokenizer(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_tok *t;
    (void)d;
    fv_status st = fv_tok_open(&t, env, "m", e);
    memory_mark();
    if (!st) encode(t);
    fv_tok_close(t);
    return st;
}

fv_status use_tensors(fv_device *d, const fv_env *env, fv_err *e)
{
    static double out[1 << 16];
    fv_st *s;
    (void)d;
    fv_status st = fv_st_open(&s, env, "m", e);
    memory_mark();
    for (int i = 0; !st && i < fv_st_count(s); i++) {
        fv_st_info t = fv_st_at(s, i);
        if (t.count <= 1 << 16) fv_st_read(s, &t, out, FV_F64, t.count, NULL);
    }
    fv_st_close(s);
    return st;
}

fv_status use_model(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_model *m;
    (void)env;
    fv_status st = fv_model_open(&m, d, "m", (fv_model_opt){.serve = true}, e);
    memory_mark();
    if (!st)
        fv_model_run(m, d, "m/in.safetensors", "m/out.safetensors", (fv_run_opt){.threads = 1},
                     NULL);
    fv_model_free(m);
    return st;
}

/* To be changed: its parameters are copies, with gradients. */
fv_status use_trained(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_model *m;
    (void)env;
    fv_status st = fv_model_open(&m, d, "m", (fv_model_opt){.train = true}, e);
    memory_mark();
    if (!st)
        fv_model_run(m, d, "m/in.safetensors", "m/out.safetensors",
                     (fv_run_opt){.threads = 1, .grad = true}, NULL);
    fv_model_free(m);
    return st;
}

fv_status use_task(fv_device *d, const fv_env *env, fv_err *e)
{
    static const struct {
        const char *head;
        fv_job job;
    } jobs[] = {{"ForSequenceClassification", FV_JOB_CLASSIFY},
                {"ForTokenClassification", FV_JOB_TAG},
                {"ForMaskedLM", FV_JOB_FILL},
                {"ForQuestionAnswering", FV_JOB_ANSWER}};
    fv_task *t = NULL;
    fv_dir *dir;
    fv_job job = FV_JOB_EMBED;
    fv_status st = fv_dir_open(&dir, env, "m", e);
    if (st) return st;
    const char *head = fv_json_text(fv_dir_config(dir), "architectures.0");
    for (size_t i = 0; head && i < sizeof jobs / sizeof *jobs; i++)
        if (strstr(head, jobs[i].head)) job = jobs[i].job;
    fv_dir_close(dir);
    st = fv_task_open(&t, d, "m", job, (fv_model_opt){0}, e);
    memory_mark();
    float *out = calloc(4096, sizeof *out);
    fv_text x = {.s = "The cat sat, so good!",
                 .n = 21,
                 .pair = job == FV_JOB_ANSWER ? "It was on the mat." : NULL,
                 .pair_n = 18};
    void *found;
    int64_t n;
    if (!st && job == FV_JOB_EMBED && fv_task_width(t) <= 4096)
        fv_task_embed(t, &x, 1, (fv_embed_opt){0}, out, NULL);
    if (!st && job == FV_JOB_CLASSIFY && fv_task_labels(t) <= 4096)
        fv_task_classify(t, &x, 1, out, NULL);
    if (!st && job == FV_JOB_TAG)
        fv_task_tag(t, &x, 1, FV_JOIN_FIRST, (fv_entity **)&found, &n, NULL);
    if (!st && job == FV_JOB_ANSWER)
        fv_task_answer(t, &x, 1, (fv_answer_opt){0}, (fv_answer **)&found, &n, NULL);
    free(out);
    fv_task_close(t);
    return st;
}

static bool no_more(void *user, const fv_translation *t) { return (void)user, (void)t, true; }

/* What writes text: how it generates, how it talks, and a few tokens. */
fv_status use_writer(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_gen_config *how;
    fv_chat_template *chat;
    fv_translator *t;
    const char *line = "the cat sat";
    size_t len = 11;
    fv_status st = fv_gen_config_open(&how, env, "m", "summarization", e);
    fv_gen_config_close(how);
    if (!st && !fv_chat_template_open(&chat, env, "m", NULL)) {
        char *text;
        fv_message say = {"user", "hello"};
        if (!fv_chat_template_render(chat, &text, &say, 1, NULL, NULL))
            fv_chat_template_free_text(chat, text);
        fv_chat_template_close(chat);
    }
    if (st) return st;
    st = fv_translator_open(&t, d, "m", (fv_translate_opt){0}, e);
    memory_mark();
    /* it continues a text */
    if (st && strstr(e->text, "does not translate")) return use_tokenizer(d, env, e);
    if (st) return st;
    fv_translator_gen(t)->max_new_tokens = 3;
    fv_translator_gen(t)->num_beams = 2;
    fv_translator_gen(t)->num_return_sequences = 1;
    fv_translate(t, (fv_lines){.text = &line, .len = &len, .n = 1}, no_more, NULL, NULL);
    fv_translator_close(t);
    return st;
}

fv_status use_recipe(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_recipe *r;
    (void)d;
    fv_status st = fv_recipe_open(&r, env, "m/recipe.ini", e);
    memory_mark();
    if (!st) st = fv_recipe_check(r, e);
    if (!st && !fv_recipe_text(r, e)) st = FV_ENOMEM;
    fv_recipe_close(r);
    return st;
}

fv_status use_array(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_array a;
    (void)d;
    fv_status st = fv_array_open(&a, env, "m/x", (fv_array_opt){.nonfinite = true}, e);
    memory_mark();
    fv_array_close(&a);
    return st;
}

/* Labelled texts in every form; the file says which by its name. */
fv_status use_data(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_data_report report = {0};
    const char *name = ((const folder *)env->io->self)->s->file[0];
    char path[80];
    fv_table *table = NULL;
    fv_tagged *tagged = NULL;
    fv_questions *asked = NULL;
    (void)d;
    snprintf(path, sizeof path, "m/%s", name);
    fv_records from = {.file = path};
    if (strstr(name, ".jsonl")) from.field[0] = "article", from.field[1] = "highlights";
    if (strstr(name, ".label")) from.latin1 = true;
    fv_status st = strstr(name, ".conll")        ? fv_tagged_open(&tagged, env, &from, &report, e)
                   : !strcmp(name, "squad.json") ? fv_questions_open(&asked, env, path, e)
                                                 : fv_table_open(&table, env, &from, 2, &report, e);
    memory_mark();
    fv_table_close(table);
    fv_tagged_close(tagged);
    fv_questions_close(asked);
    return st;
}

/* The file's name without the path. */
static const char *only_file(const fv_env *env)
{
    return ((const folder *)env->io->self)->s->file[0];
}

/* An image through a processor, as a classifier sees it. */
fv_status use_image(fv_device *d, const fv_env *env, fv_err *e)
{
    static float out[3 * 32 * 32];
    fv_image im = {0}, fit = {0};
    fv_processor *p = NULL;
    char path[80];
    fv_image_steps steps = {.channels = 3,
                            .resize = true,
                            .width = 32,
                            .height = 32,
                            .resample = FV_BICUBIC,
                            .rescale = true};
    (void)d;
    snprintf(path, sizeof path, "m/%s", only_file(env));
    fv_status st = fv_image_open(&im, env, path, e);
    memory_mark();
    if (!st) st = fv_processor_from_steps(&p, env, &steps, NULL, e);
    if (!st) st = fv_processor_image_fit(p, &fit, &im, e);
    if (!st) fv_processor_image_floats(p, &fit, out, 0, 0);
    fv_processor_close(p);
    fv_image_free(&im);
    fv_image_free(&fit);
    return st;
}

/* Labelled images: an IDX file or an archive. */
fv_status use_images(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_images *m;
    fv_labels labels = {.env = env};
    fv_data_report report = {0};
    fv_image im = {0};
    char path[80];
    (void)d;
    snprintf(path, sizeof path, "m/%s", only_file(env));
    fv_images_opt o = {.from = {.file = path}, .labels = &labels};
    fv_status st = fv_images_open(&m, env, &o, &report, e);
    memory_mark();
    for (int64_t i = 0; !st && i < fv_images_count(m); i++) st = fv_images_get(m, i, &im, e);
    fv_image_free(&im);
    fv_images_close(m);
    fv_labels_free(&labels);
    return st;
}

/* Boxes of Pascal VOC or COCO. */
fv_status use_boxes(fv_device *d, const fv_env *env, fv_err *e)
{
    fv_boxed *b;
    fv_labels labels = {.env = env};
    fv_image im = {0};
    char path[80];
    (void)d;
    snprintf(path, sizeof path, "m/%s", only_file(env));
    fv_boxed_opt o = {.path = path, .labels = &labels};
    if (strstr(path, "coco")) o.split = "boxes.json";
    fv_status st = fv_boxed_open(&b, env, &o, e);
    memory_mark();
    for (int64_t i = 0; !st && i < fv_boxed_count(b); i++) st = fv_boxed_get(b, i, &im, e);
    fv_image_free(&im);
    fv_boxed_close(b);
    fv_labels_free(&labels);
    return st;
}
