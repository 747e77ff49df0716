/* see.c - fovea see: what attends to what in a model, as a picture, a page or numbers.
 *
 * Options are checked first (nothing is opened for a wrong command line), then the text is found,
 * and the model runs once with a tap: all that is written comes from that run.  Ablation alone runs
 * the model again, once for each head.
 *
 * Weights are not kept: fv_see holds queries, keys and the log-sum-exp of each row, and recomputes
 * the rows that a picture shows. Storing all maps lost: 144 heads of 512 tokens are 150 MB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/gen.h"
#include "see.h"

typedef struct values {
    const char *model, *source, *target, *text, *pair, *file, *image, *patch, *rows, *output,
        *title, *drawn;
    int kind, view, format;
    const char *device;
    int64_t layer, head, beams, threads, channel;
    bool rollout, flow, ablate, json, words;
    cli_list adapters;
    bool verbose;
} values;

static const values defaults = {.layer = -1, .head = -1};

static const char *const kinds[] = {"auto", "encoder", "decoder", "cross", NULL};
static const char *const formats[] = {"auto", "svg", "png", "pdf", "html", "json", "csv", NULL};
static const char *const views[] = {"auto", "heat", "grid", "lines", "alignment", "image", NULL};

static const cli_option options[] = {
    CLI_DIR(values, model, 'm', "model", "DIR", "the model, as Hugging Face lays it out"),
    CLI_LIST(values, adapters, 0, "adapter", "DIR[=WEIGHT]", CLI_ADAPTER_HELP),
    CLI_TEXT(values, source, 0, "source", "TEXT", "what a translator reads"),
    CLI_TEXT(values, target, 0, "target", "TEXT",
             "what it is to write; without it a translation is made first"),
    CLI_TEXT(values, text, 0, "text", "TEXT", "what a model of one text reads"),
    CLI_TEXT(values, pair, 0, "pair", "TEXT", "a second sentence beside --text"),
    CLI_FILE(values, file, 'f', "file", "FILE",
             "the text is that of a file; one line may hold two, with a tab between"),
    CLI_FILE(values, image, 0, "image", "FILE",
             "the image that a model looks at, the sound that it hears or the table of a time "
             "series; an argument that ends in .png, .jpg, .wav, .flac, .ogg, .mp3, .csv or "
             ".csv.gz is one, too"),
    CLI_INT(values, channel, 0, "channel", "N", 0, 65536, "of a series, from 1; 0: the last"),
    CLI_TEXT(values, patch, 0, "patch", "Y,X",
             "of an image: what the patch in row Y and column X of patches looks at"),
    CLI_TEXT(values, drawn, 0, "drawn", "SEED,N,CLASS",
             "of a GAN: image N of `fovea sample --seed SEED`, of the class with that number"),
    CLI_CHOICE(values, kind, 0, "kind", kinds,
               "which attention; auto: cross where there is one, else the only one"),
    CLI_INT(values, layer, 0, "layer", "N", -1, 1e6,
            "one layer, counted from 0; -1: all (of a page, what it holds)"),
    CLI_INT(values, head, 0, "head", "N", -1, 1e6, "one head, counted from 0; -1: all (likewise)"),
    CLI_FLAG(values, rollout, 0, "rollout",
             "through all layers (up to --layer), as Abnar and Zuidema combine them"),
    CLI_FLAG(values, flow, 0, "flow", "the same as the greatest flow, of at most 128 tokens"),
    CLI_FLAG(values, ablate, 'a', "ablate",
             "print what each head is worth: the change of a token's loss when it adds nothing"),
    CLI_FLAG(values, json, 0, "json", "with --ablate: one JSON object"),
    CLI_CHOICE(
        values, view, 'v', "view", views,
        "of a picture: one heat map, a grid of all layers and heads, lines between tokens, "
        "the alignment of a translation, or an image with what is looked at; auto: the image "
        "where there is one, a map for one head or a rollout, else the alignment or the "
        "grid"),
    CLI_TEXT(values, rows, 0, "rows", "A:B", "only rows A to B-1, counted from 0: for long texts"),
    CLI_FLAG(values, words, 0, "words", "of a picture: tokens of a word merged"),
    CLI_TEXT(values, title, 0, "title", "TEXT", "above the picture; else what it shows"),
    CLI_INT(values, beams, 0, "beam", "N", 0, 256,
            "beams, where a translation is made; 0: as the model says"),
    CLI_DEVICE(values, device),
    CLI_INT(values, threads, 0, "threads", "N", 0, 1024, "threads; 0: all cores"),
    CLI_VERBOSE(values, verbose),
    CLI_FILE(values, output, 'o', "output", "FILE",
             "written by its ending: .svg .png .pdf .html .json .csv; -: stdout, in the --format"),
    CLI_CHOICE(values, format, 0, "format", formats, "what is written; auto: as --output ends"),
    {0},
};

static const cli_example examples[] = {
    {"fovea see -m fovea-demo/model --source 'I like to eat apples.' -o apples.svg",
     "translate, and show which word comes from which"},
    {"fovea see -m fovea-demo/model --source 'I like to eat apples.' -o apples.html",
     "everything, as a page to explore"},
    {"fovea see -m fovea-demo/model --source 'I see you.' --target 'Je vous vois.' --kind decoder "
     "--layer 1 --head 0 -o d.png",
     "one head, of a translation given"},
    {"fovea see -m fovea-demo/model --source 'I like to eat apples.' --ablate",
     "which heads matter for this sentence"},
    {"fovea see -m bert-base-uncased --text 'The cat sat on the mat.' --rollout -o r.pdf",
     "a model of one text"},
    {"fovea see -m bert-base-uncased 'The cat sat.' 'It slept.' -o pair.html", "two sentences"},
    {"fovea see -m gpt2 --layer 5 -f article.txt -o layer5.html", "one layer of a long text"},
    {"fovea see -m vit-base-patch16-224 cat.jpg -o cat.png",
     "where the class token of an image model looks, by layer and head and through all layers"},
    {"fovea see -m vit-base-patch16-224 cat.jpg --patch 6,7 --rollout -o patch.svg",
     "where the content of one patch comes from"},
    {"fovea see -m vit-gpt2-image-captioning photo.jpg -o words.png",
     "caption, and show what each word looked at"},
    {"fovea see -m moonshine-tiny talk.wav -o talk.svg",
     "transcribe, and show which moments of the sound each word came from"},
    {"fovea see -m yolos-tiny street.jpg -o objects.png",
     "what each object that was found looks at"},
    {"fovea see -m runs/etth1/model ETTh1.csv.gz -o series.html",
     "which hours the patches of a time series attend to"},
    {"fovea see -m runs/beauty/model --text '12 830 41' -o items.svg", "a history of items"},
    {"echo 'The cat sat.' | fovea see -m gpt2 --layer 5 --head 1 --format svg -o - > cat.svg",
     "from and to a pipe"},
    {0},
};

typedef struct work {
    const cli *c;
    const values *v;
    fv_device *dev;
    fv_model *model;
    fv_tok *tok;
    fv_see *see;
    const char *image_path;
    int64_t patch[2];
    char *input;                /* of --file or standard input */
    const char *first, *second; /* the text, or source; the second sentence, or target; or NULL */
    int32_t *source, *target, *types;
    int64_t n_source, n_target;
    fv_adapter_list adapters;
    fv_gen_config *config;
    fv_gen_opt gen;
    fv_see_pick best; /* the head that aligns best */
    bool wrote;       /* the target was made here */
    char *written;    /* the target as text */
    size_t written_len;
    see_worth worth;
    fv_err e;
} work;

/* ---- what goes in ---- */

static int no_text(const work *w, const char *in, const char *where)
{
    return cli_usage(w->c,
                     "there is no text%s%s: give it as an argument, by --source (a translator) or "
                     "--text, by --file or on standard input",
                     in, where);
}

/* Where the text comes from: options, operands, else a file or standard input. */
static int take_text(work *w, int n, char **operand)
{
    const values *v = w->v;
    w->first = v->source ? v->source : v->text;
    w->second = v->target ? v->target : v->pair;
    if ((w->first || v->file) && n) return cli_usage(w->c, "the text is given twice: %s", *operand);
    if (w->first && v->file) return cli_usage(w->c, "the text is given twice: --file %s", v->file);
    if (n) w->first = operand[0];
    if (n > 1 && w->second) return cli_usage(w->c, "a second text is given twice: %s", operand[1]);
    if (n > 1) w->second = operand[1];
    if (w->first || w->image_path || v->drawn) return CLI_OK;
    bool piped = !v->file || !strcmp(v->file, "-");
    if (!v->file && isatty(STDIN_FILENO)) return no_text(w, "", "");
    int code = cli_read_text(w->c, piped ? NULL : v->file, &w->input);
    if (code != CLI_OK) return code;
    char *s = w->input;
    size_t len = strlen(s);
    while (len && (s[len - 1] == '\n' || s[len - 1] == '\r')) s[--len] = 0;
    char *tab = strchr(s, '\t');
    if (tab && !strchr(s, '\n') && !w->second) *tab = 0, w->second = tab + 1;
    w->first = s;
    return len ? CLI_OK : no_text(w, " in ", piped ? "standard input" : v->file);
}

/* Copies what was encoded.  A sentence of a translation ends in the end token, whether or not the
 * tokenizer puts it there. */
static fv_status copy_ids(work *w, const fv_encoding *enc, bool ends, int32_t **ids, int64_t *n)
{
    *ids = malloc((size_t)(enc->n + 1) * sizeof **ids);
    if (!*ids) return fv_fail(&w->e, FV_ENOMEM, "out of memory");
    *n = enc->n;
    if (enc->n) memcpy(*ids, enc->ids, (size_t)enc->n * sizeof **ids);
    if (ends && (!*n || (*ids)[*n - 1] != w->gen.eos)) (*ids)[(*n)++] = w->gen.eos;
    if (see_is_sound(w->image_path) &&
        **ids == w->gen.start) /* Whisper's tokenizer puts it there */
        memmove(*ids, *ids + 1, (size_t)-- * n * sizeof **ids);
    return FV_OK;
}

/* Encodes one side and keeps its ids. A text that does not fit the context is refused, not cut: a
 * picture of half a sentence would look like one of the whole. */
static fv_status encode(work *w, const char *text, fv_tok_opts how, bool ends, int32_t **ids,
                        int64_t *n)
{
    fv_encoding *enc;
    int64_t most = fv_model_context(w->model);
    if (!*text) return fv_fail(&w->e, FV_EARG, "the text is empty: there is no token to look at");
    fv_status st = fv_encoding_new(&enc, w->tok, &w->e);
    if (st) return st;
    how.specials = true;
    st = fv_tok_encode(enc, text, strlen(text), how, &w->e);
    if (!st) st = copy_ids(w, enc, ends, ids, n);
    if (!st && most && *n > most)
        st = fv_fail(&w->e, FV_EARG, "the text has %lld tokens, this model takes at most %lld",
                     (long long)*n, (long long)most);
    if (!st && how.pair) {
        w->types = malloc((size_t)*n * sizeof *w->types);
        if (!w->types)
            st = fv_fail(&w->e, FV_ENOMEM, "out of memory");
        else
            memcpy(w->types, enc->token_types, (size_t)*n * sizeof *w->types);
    }
    fv_encoding_free(enc);
    return st;
}

/* One text, or two sentences that the model reads as one. */
static fv_status take_one(work *w)
{
    fv_tok_opts how = {.pair = w->second, .pair_len = w->second ? strlen(w->second) : 0};
    return encode(w, w->first, how, false, &w->source, &w->n_source);
}

/* Makes the target, where none was given. */
static fv_status translate(work *w)
{
    fv_generated g;
    if (w->v->beams) w->gen.num_beams = w->v->beams;
    w->gen.num_return_sequences = 1;
    const int32_t *one = w->source;
    fv_status st = fv_generate(&g, w->dev, w->model, &one, &w->n_source, 1, &w->gen, &w->e);
    if (st) return st;
    w->n_target = g.hyp[0].n;
    w->target = malloc((size_t)(w->n_target + 1) * sizeof *w->target);
    if (!w->target)
        st = fv_fail(&w->e, FV_ENOMEM, "out of memory");
    else if (w->n_target)
        memcpy(w->target, g.hyp[0].ids, (size_t)w->n_target * sizeof *w->target);
    fv_generated_free(&g);
    return st;
}

/* Source and target of a translator. Its own settings decide how a missing target is made, as they
 * do in fovea translate, so both show the same translation. */
static fv_status take_pair(work *w)
{
    fv_status st = fv_gen_config_open(&w->config, NULL, w->v->model, NULL, &w->e);
    if (!st) w->gen = *fv_gen_config_options(w->config);
    if (!st && (w->gen.start < 0 || w->gen.eos < 0))
        st = fv_fail(&w->e, FV_EFORMAT,
                     "%s: its configuration lacks decoder_start_token_id or eos_token_id",
                     w->v->model);
    if (!st && w->image_path && !w->second) {
        st = see_caption(&w->input, w->dev, w->v->model, w->image_path, w->v->beams, &w->e);
        w->second = w->input;
        w->wrote = !st;
    }
    if (!st && !w->image_path)
        st = encode(w, w->first, (fv_tok_opts){0}, true, &w->source, &w->n_source);
    if (!st && w->second)
        st = encode(w, w->second, (fv_tok_opts){.as_target = true}, true, &w->target, &w->n_target);
    else if (!st)
        st = translate(w);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): w still holds the target, and it is freed with
     * w */
    return st ? st
              : fv_tok_decode(w->tok, &w->written, &w->written_len, w->target, w->n_target, true,
                              &w->e);
}

/* ---- what comes out ---- */

/* --rows A:B */
static fv_status rows_of(work *w, fv_see_opt *o)
{
    long long from, to;
    char end;
    if (w->v->patch) {
        if (sscanf(w->v->patch, "%lld,%lld%c", &from, &to, &end) != 2)
            return fv_fail(&w->e, FV_EARG, "--patch %s: Y,X is wanted, two numbers", w->v->patch);
        w->patch[0] = from, w->patch[1] = to;
        o->patch = w->patch;
        return FV_OK;
    }
    if (!w->v->rows) return FV_OK;
    if (sscanf(w->v->rows, "%lld:%lld%c", &from, &to, &end) != 2 || from < 0 || to <= from)
        return fv_fail(&w->e, FV_EARG, "--rows %s: A:B is wanted, two numbers with A < B",
                       w->v->rows);
    o->from = from, o->to = to;
    return FV_OK;
}

/* The ending of the output, which is its format: "svg", "html", ...; "" if it has none. */
static const char *format_of(const values *v)
{
    const char *dot = strrchr(v->output, '.');
    if (v->format) return formats[v->format];
    return dot ? dot + 1 : "";
}

/* Where nothing narrower is asked, a translation is shown by the head that aligns best. */
static fv_status choose(work *w, fv_see_opt *o, char *note, size_t capacity)
{
    const values *v = w->v;
    const char *format = format_of(v);
    bool sound = see_is_sound(w->image_path), page = !strcmp(format, "html"),
         cross = o->pick.kind == FV_SEE_CROSS && (!w->image_path || sound),
         free_choice = v->layer < 0 && v->head < 0 && !v->rollout && !v->flow;
    bool picture = !strcmp(format, "svg") || !strcmp(format, "png") || !strcmp(format, "pdf");
    bool aligned = o->view == FV_VIEW_ALIGNMENT || (o->view == FV_VIEW_AUTO && picture);
    if (!cross || !free_choice || !(aligned || page)) return FV_OK;
    double score;
    fv_status st = fv_see_alignment(w->see, &w->best, &score, &w->e);
    o->start = &w->best; /* a page holds all heads and begins with this one */
    if (st || !aligned) return st;
    o->pick = w->best;
    o->view = sound ? FV_VIEW_IMAGE : FV_VIEW_ALIGNMENT;
    o->words |= sound;
    snprintf(note, capacity,
             "Cross-attention, layer %lld, head %lld: the head that aligns best (score %.2f).",
             (long long)o->pick.layer, (long long)o->pick.head, score);
    o->note = note;
    return FV_OK;
}

enum { LARGE_PAGE = 32000000 };

static fv_status write_output(work *w, fv_see_opt o)
{
    struct stat s;
    if (!strcmp(w->v->output, "-")) return see_save_stdout(w->see, o, &w->e);
    fv_status st = fv_see_save(w->see, NULL, w->v->output, o, &w->e);
    if (!st && !stat(w->v->output, &s) && s.st_size > LARGE_PAGE &&
        !strcmp(format_of(w->v), "html"))
        fprintf(stderr, "%s: %.0f MB; --layer, --head and --rows make a page smaller\n",
                w->v->output, (double)s.st_size / 1e6);
    return st;
}

/* Which attention is shown where nobody said: that of a translation is between its languages; a
 * model of one text has one kind only. */
static fv_see_kind kind_shown(const work *w, bool pair)
{
    if (w->v->kind) return (fv_see_kind)(w->v->kind - 1);
    if (pair) return FV_SEE_CROSS;
    return fv_see_shape_of(w->see, FV_SEE_ENCODER).layers ? FV_SEE_ENCODER : FV_SEE_DECODER;
}

/* What one -o writes.  The caption has both texts: a picture is seen without its command line. */
static fv_status save(work *w)
{
    const values *v = w->v;
    char *text = NULL, note[160];
    fv_see_opt o = {.view = (fv_see_view)v->view, .words = v->words, .every_kind = !v->kind};
    o.pick = (fv_see_pick){0, v->layer, v->head, v->rollout, v->flow};
    o.title = v->title;
    bool pair = w->written != NULL;
    const char *second = pair ? w->written : w->second;
    if (second && asprintf(&text, "%s %s %s", w->first ? w->first : w->image_path,
                           pair ? "\u2192" : "|", second) < 0)
        return fv_fail(&w->e, FV_ENOMEM, "out of memory");
    o.text = text ? text : w->first ? w->first : w->image_path ? w->image_path : "drawn";
    o.format = v->format ? formats[v->format] : NULL;
    o.pick.kind = kind_shown(w, pair);
    fv_status st = rows_of(w, &o);
    if (!st) st = choose(w, &o, note, sizeof note);
    if (!st) st = write_output(w, o);
    free(text);
    return st;
}

/* What needs a device, in order; a failure stops the rest; free_work() releases what there is. */
static fv_status all(work *w)
{
    const values *v = w->v;
    fv_status st = fv_device_open(&w->dev, v->device,
                                  (fv_device_opt){.threads = cli_threads(v->threads)}, &w->e);
    /* to serve: quantised weights are only run; an image by a text needs the way back */
    bool guided = w->image_path && w->first && !w->second;
    fv_model_opt how = {.serve = !guided, .widen = true, .adapters = w->adapters};
    if (!st) st = fv_model_open(&w->model, w->dev, v->model, how, &w->e);
    if (st) return st;
    if (fv_model_job(w->model) == FV_HEAD_SPEECH)
        return fv_fail(&w->e, FV_EARG, "%s speaks: see speak --alignment FILE", v->model);
    bool pair = fv_model_has_cross(w->model), image = w->image_path || v->drawn;
    bool items = fv_model_job(w->model) == FV_HEAD_NEXT_ITEM;
    if (!items && (w->first || !image || pair)) st = fv_tok_open(&w->tok, NULL, v->model, &w->e);
    if (st) return st;
    if (pair && (v->text || v->pair))
        return fv_fail(&w->e, FV_EARG, "%s reads a source and a target: give --source", v->model);
    if (!pair && v->source)
        return fv_fail(&w->e, FV_EARG, "%s reads one text: give --text", v->model);
    if (pair)
        st = take_pair(w);
    else if (w->first && !items) /* an image can do without */
        st = take_one(w);
    fv_see_in in = {.tok = w->tok,
                    .source = w->source,
                    .n_source = w->n_source,
                    .types = w->types,
                    .target = w->target,
                    .n_target = w->n_target,
                    .image = w->image_path,
                    .dir = v->model,
                    .channel = (int)v->channel,
                    .history = items ? w->first : NULL,
                    .guided = guided && !pair,
                    .start = w->gen.start};
    if (!st && v->drawn) st = see_take_drawn(v->drawn, &in, &w->e);
    if (!st) st = fv_see_run(&w->see, w->dev, w->model, in, &w->e);
    if (!st && v->ablate) st = see_ablate(&w->worth, w->dev, w->model, w->see, in, &w->e);
    return st || !v->output ? st : save(w);
}

/* Options that contradict each other are an error of usage, before a model is opened. */
static int check_usage(const cli *c, const values *v)
{
    if (!v->model) return cli_usage(c, "--model is missing: the directory of a model");
    if (!v->output && !v->ablate)
        return cli_usage(c, "--output is missing: a file whose ending says what is written");
    if (v->output && !strcmp(v->output, "-") && !v->format)
        return cli_usage(c, "-o - goes with --format: svg, png, pdf, html, json or csv");
    if (v->source && v->text)
        return cli_usage(c, "give --source (a translator) or --text (a model of one text)");
    if (v->json && !v->ablate)
        return cli_usage(c, "--json goes with --ablate; weights are written by -o FILE.json");
    if (v->target && (v->text || v->pair)) return cli_usage(c, "--target goes with --source");
    if (v->pair && v->source) return cli_usage(c, "--pair goes with --text");
    return CLI_OK;
}

static void free_work(work *w)
{
    free(w->worth.change);
    if (w->written) fv_tok_free_text(w->tok, w->written, w->written_len);
    free(w->source);
    free(w->target);
    free(w->types);
    free(w->input);
    fv_gen_config_close(w->config);
    fv_see_free(w->see);
    fv_tok_close(w->tok);
    fv_model_free(w->model);
    fv_device_close(w->dev);
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    work w = {.c = c, .v = v, .worth.kind = v->kind - 1};
    cli_adapters adapters;
    int code = check_usage(c, v);
    if (code == CLI_OK) code = cli_take_adapters(c, &v->adapters, &adapters, &w.adapters);
    w.image_path = see_take_image(v->image, &n, &operand);
    if (code == CLI_OK) code = take_text(&w, n, operand);
    if (code == CLI_OK) cli_name_ignored(c, v->verbose, v->model);
    if (code == CLI_OK) {
        fv_status st = all(&w);
        /* where standard output is a picture, the translation does not go into it */
        FILE *to = v->output && !strcmp(v->output, "-") ? stderr : stdout;
        if (!st && w.written && (w.wrote || !w.second) && !v->json) fprintf(to, "%s\n", w.written);
        code = st ? cli_error(c, &w.e) : CLI_OK;
        if (!st && v->ablate) see_print_worth(&w.worth, w.see, v->json);
    }
    free_work(&w);
    return code;
}

const cli_command see_command = {
    .name = "see",
    .summary = "show what attends to what, as a picture, a page or numbers",
    .about = "Runs a model once on a text and writes what its attention does: pictures (.svg, "
             ".png, .pdf), a page to explore in a browser (.html), or all numbers (.json, .csv).  "
             "The weights are exact: they are recomputed from what the tiled operator keeps, only "
             "for the layers, heads and rows that are shown.\n\n"
             "The text is an argument, a file or standard input.  A model of one text takes a "
             "second one too: two sentences.  A page, as JSON and CSV, holds the layer, head and "
             "rows that are named, or all.\n\n"
             "A translator reads --source; without --target it translates first, prints the "
             "translation and shows how it came about.  A row of its cross-attention belongs to a "
             "token of the translation and shows what the decoder attended to when it chose it.  "
             "A sound is transcribed likewise, and shown as a spectrogram for each word.\n\n"
             "Of a model of images an image is shown, dark where nothing attends: for the class "
             "token or --patch by layer and head and through all layers, for a detector what each "
             "object that it found attends to, and with a --text beside it, of a model that says "
             "how well they agree, what counts for the text.",
    .operands = "[TEXT [SECOND]]",
    .max_operands = 2,
    CLI_OWN(values),
    .defaults = &defaults,
};
