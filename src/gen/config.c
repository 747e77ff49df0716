/* config.c - generation options: the table of keys, and generation_config.json.
 *
 * One table gives names, ranges, defaults and help of the options, for files and command line
 * alike. A key of generation_config.json that is neither in the table nor harmless at its value
 * is refused: ignoring it would give other results than transformers.
 *
 * Defaults differ from those of the table on purpose where a file is read: max_length 20 and
 * one beam are transformers' own, and a model whose files leave them out was published with
 * these. The command line starts from the table.
 *
 * Lists (several end tokens, banned ids, bad words, biases) do not fit into a table of scalars
 * and are read apart, into one block; options point into it, so an fv_gen_config must outlive
 * all copies of its options. */
#include <stdio.h>

#include "fovea/author/gen.h"
#include "base/base.h"
#include "base/decimal.h"
#include "fovea/gen.h"
#include "fovea/author/config.h"

struct fv_gen_config {
    fv_env env;
    fv_gen_opt options;
    int32_t *lists; /* of the options, concatenated */
    size_t bytes;
    const char **stops;
    int n_stops;
    size_t stop_bytes; /* of the pointers and the texts behind them */
};

/* early_stopping is a boolean or the text "never" in transformers; the index is the value. */
static const char *const early_words[] = {"false", "true", "never", NULL};

const fv_field fv_gen_fields[] = {
    FV_INT(fv_gen_opt, num_beams, 1, 4, 256, "beams"),
    FV_INT(fv_gen_opt, num_return_sequences, 1, 1, 256, "hypotheses for each source"),
    FV_INT(fv_gen_opt, max_length, 1, 256, 1 << 20,
           "tokens at most, the start or the prompt included"),
    FV_INT(fv_gen_opt, min_length, 0, 0, 1 << 20, "no end before so many"),
    FV_INT(fv_gen_opt, max_new_tokens, 1, 0, 1 << 20, "tokens at most, without the prompt"),
    FV_INT(fv_gen_opt, min_new_tokens, 1, 0, 1 << 20, "no end before so many, without the prompt"),
    FV_FLOAT(fv_gen_opt, length_penalty, -10, 1, 10, "scores are divided by length to this power"),
    FV_CHOICE(fv_gen_opt, early_stopping, 0, early_words, "stop once enough beams have ended"),
    FV_BOOL(fv_gen_opt, do_sample, false, "draw tokens instead of taking the best"),
    FV_FLOAT(fv_gen_opt, temperature, 1e-4, 1, 100, "above 1 flattens, below sharpens"),
    FV_INT(fv_gen_opt, top_k, 0, 50, 1 << 24, "draw from so many best; 0: from all"),
    FV_FLOAT(fv_gen_opt, top_p, 1e-6, 1, 1, "draw from the best that hold this share"),
    FV_FLOAT(fv_gen_opt, min_p, 0, 0, 1,
             "draw from those with at least this share of the best one's probability"),
    FV_FLOAT(fv_gen_opt, typical_p, 1e-6, 1, 1, "draw from the most typical that hold this share"),
    FV_FLOAT(fv_gen_opt, repetition_penalty, 1e-3, 1, 100, "above 1 makes repeating less likely"),
    FV_INT(fv_gen_opt, no_repeat_ngram_size, 0, 0, 1 << 20,
           "no run of so many tokens comes twice; 0: any may"),
    FV_INT(fv_gen_opt, encoder_no_repeat_ngram_size, 0, 0, 1 << 20,
           "no run of so many tokens of the source comes in the text; 0: any may"),
    FV_BOOL(fv_gen_opt, renormalize_logits, false,
            "share out the probability of tokens that are ruled out"),
    FV_INT(fv_gen_opt, seed, 0, 1, 9e15, "of drawing"),
    FV_INT(fv_gen_opt, prompt_lookup_num_tokens, 0, 0, 64,
           "draft so many tokens from the text so far and verify them in one step; 0: none"),
    FV_INT(fv_gen_opt, max_matching_ngram_size, 1, 2, 64,
           "a draft follows the same tokens as the last ones, at most so many"),
    FV_INT(fv_gen_opt, num_assistant_tokens, 1, 4, 64, "tokens that an assistant drafts at most"),
    FV_INT_KEY("decoder_start_token_id", fv_gen_opt, start, 0, -1, 1 << 24,
               "what a decoder begins with"),
    FV_INT_KEY("eos_token_id", fv_gen_opt, eos, 0, -1, 1 << 24, "ends a sequence"),
    FV_INT_KEY("pad_token_id", fv_gen_opt, pad, 0, -1, 1 << 24, "padding"),
    FV_INT_KEY("forced_bos_token_id", fv_gen_opt, forced_bos, 0, -1, 1 << 24, "the first token"),
    FV_INT_KEY("forced_eos_token_id", fv_gen_opt, forced_eos, 0, -1, 1 << 24,
               "the last token where the length runs out"),
    {0},
};

/* Keys without effect on the result: at any value, or at the one value given.
 * What transformers uses for speed, logging or output shapes, and logits processors that do
 * nothing at the value given. */
static const fv_key_rule harmless[] = {
    {"_from_model_config", NULL},
    {"transformers_version", NULL},
    {"bos_token_id", NULL},
    {"bad_words_ids", NULL}, /* read below, as is suppress_tokens */
    {"suppress_tokens", NULL},
    {"begin_suppress_tokens", NULL},
    {"sequence_bias", NULL},
    {"stop_strings", NULL},
    {"use_cache", NULL},
    {"cache_implementation", NULL},
    {"output_attentions", NULL},
    {"output_hidden_states", NULL},
    {"output_logits", NULL},
    {"output_scores", NULL},
    {"return_dict_in_generate", NULL},
    {"remove_invalid_values", NULL},
    {"is_assistant", NULL},
    {"num_assistant_tokens_schedule", NULL},
    {"assistant_confidence_threshold", NULL},
    {"target_lookbehind", NULL},
    {"assistant_lookbehind", NULL},
    {"disable_compile", NULL},
    {"low_memory", NULL},
    {"trust_remote_code", NULL},
    {"chat_format", NULL},
    {"max_window_size", NULL},
    {"num_beam_groups", "1"},
    {"diversity_penalty", "0.0"},
    {"encoder_repetition_penalty", "1.0"},
    {"epsilon_cutoff", "0.0"},
    {"eta_cutoff", "0.0"},
    {"guidance_scale", "1.0"},
    {"token_healing", "false"},
    /* Whisper's, which the task of transcribing reads */
    {"alignment_heads", NULL},
    {"forced_decoder_ids", NULL},
    {"is_multilingual", NULL},
    {"lang_to_id", NULL},
    {"language", NULL},
    {"max_initial_timestamp_index", NULL},
    {"median_filter_width", NULL},
    {"no_timestamps_token_id", NULL},
    {"prev_sot_token_id", NULL},
    {"return_timestamps", NULL},
    {"task", NULL},
    {"task_to_id", NULL},
    {"use_scan", NULL},
    {NULL, NULL},
};

/* ---- lists ---- */

/* The ids at a path: one number, or a list of them.  Returns how many, or -1 where one is no id;
 * copies them unless out is NULL. */
static int64_t ids_at(const fv_json *j, const char *at, int32_t *out)
{
    char key_path[96];
    double x;
    if (fv_json_number(j, at, &x)) {
        if (out) out[0] = (int32_t)x;
        return 1;
    }
    int n = fv_json_count(j, at);
    for (int i = 0; i < n; i++) {
        snprintf(key_path, sizeof key_path, "%s.%d", at, i);
        if (!fv_json_number(j, key_path, &x) || !(x >= 0 && x <= INT32_MAX)) return -1;
        if (out) out[i] = (int32_t)x;
    }
    return n > 0 ? n : 0;
}

/* Compared by value: the list may hold more ends than one.
 * Whether a word is nothing but an end token: transformers leaves such a ban out, since with it no
 * sequence would end. */
static bool is_eos_alone(const fv_json *j, const char *word)
{
    char key_path[80];
    double x, eos;
    snprintf(key_path, sizeof key_path, "%s.0", word);
    if (!fv_json_number(j, key_path, &x)) return false;
    if (fv_json_number(j, "eos_token_id", &eos)) return x == eos;
    for (int i = 0, n = fv_json_count(j, "eos_token_id"); i < n; i++) {
        snprintf(key_path, sizeof key_path, "eos_token_id.%d", i);
        if (fv_json_number(j, key_path, &eos) && x == eos) return true;
    }
    return false;
}

/* Of bad_words_ids those of one id, or the longer ones with -1 behind each. */
static int64_t words_at(const fv_json *j, bool single, int32_t *out)
{
    char key_path[64];
    int64_t total = 0;
    for (int i = 0, n = fv_json_count(j, "bad_words_ids"); i < n; i++) {
        snprintf(key_path, sizeof key_path, "bad_words_ids.%d", i);
        int64_t len = ids_at(j, key_path, NULL);
        if (len < 1) return -1;
        if ((len == 1) != single || (single && is_eos_alone(j, key_path))) continue;
        if (out) ids_at(j, key_path, out + total);
        total += len;
        /* -1 ends a word: ids are never negative, so no lengths have to be stored. */
        if (out && !single) out[total] = -1;
        total += !single;
    }
    return total;
}

/* sequence_bias, [[[1, 2], -0.5], ...]: the ids with -1 behind each run, and the biases.  Returns
 * the length of the whole list, or -1; *n is the number of runs. */
static int64_t biases_at(const fv_json *j, int *n, int32_t *out, float *bias)
{
    char key_path[64];
    int64_t total = 0;
    *n = fv_json_count(j, "sequence_bias");
    for (int i = 0; i < *n; i++) {
        double x;
        snprintf(key_path, sizeof key_path, "sequence_bias.%d.1", i);
        if (!fv_json_number(j, key_path, &x)) return -1;
        if (bias) bias[i] = (float)x;
        snprintf(key_path, sizeof key_path, "sequence_bias.%d.0", i);
        int64_t len = ids_at(j, key_path, out ? out + total : NULL);
        if (len < 1) return -1;
        total += len;
        if (out) out[total] = -1;
        total++;
    }
    /* Absent: the count of a missing key is negative. */
    if (*n < 0) *n = 0;
    return total;
}

/* stop_strings: one text, or a list of them, copied behind an array of pointers. */
static fv_status read_stops(fv_gen_config *c, const fv_json *j, const char *path, fv_err *e)
{
    char at[64] = "stop_strings";
    const char *one = fv_json_text(j, at);
    int n = one ? 1 : fv_json_count(j, at);
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        if (!one) snprintf(at, sizeof at, "stop_strings.%d", i);
        const char *text = fv_json_text(j, at);
        if (!text || !*text) return fv_fail(e, FV_EFORMAT, "%s: stop_strings must be texts", path);
        bytes += sizeof *c->stops + strlen(text) + 1;
    }
    if (n < 1) return FV_OK;
    c->stops = fv__alloc(&c->env, bytes);
    if (!c->stops) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    c->stop_bytes = bytes;
    char *to = (char *)(c->stops + n);
    for (; c->n_stops < n; c->n_stops++) {
        if (!one) snprintf(at, sizeof at, "stop_strings.%d", c->n_stops);
        size_t len = strlen(fv_json_text(j, at)) + 1;
        memcpy(to, fv_json_text(j, at), len);
        c->stops[c->n_stops] = to;
        to += len;
    }
    return FV_OK;
}

/* Of a list of end tokens the first goes into eos and the others into ends.  All lists share one
 * allocation. */
static fv_status read_lists(fv_gen_config *c, const fv_json *j, const char *path, fv_err *e)
{
    fv_gen_opt *o = &c->options;
    int64_t ends = ids_at(j, "eos_token_id", NULL), out = ids_at(j, "suppress_tokens", NULL);
    int64_t words = words_at(j, false, NULL), single = words_at(j, true, NULL),
            banned = out + single, begin = ids_at(j, "begin_suppress_tokens", NULL);
    int n_bias = 0;
    int64_t biased = biases_at(j, &n_bias, NULL, NULL);
    /* Bounds on what a file can ask for; 256 end tokens are already more than any model has. */
    if (ends < 0 || ends > 256 || out < 0 || out > 1 << 20 || words < 0 || single < 0 || begin < 0)
        return fv_fail(e, FV_EFORMAT,
                       "%s: eos_token_id, suppress_tokens, begin_suppress_tokens and bad_words_ids "
                       "must be lists of ids",
                       path);
    if (biased < 0)
        return fv_fail(e, FV_EFORMAT, "%s: sequence_bias must be a list of [[ids], number]", path);
    c->bytes = (size_t)(ends + banned + words + begin + biased + n_bias) * sizeof(int32_t);
    if (!c->bytes) return FV_OK;
    int32_t *own = c->lists = fv__alloc(&c->env, c->bytes);
    if (!own) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    ids_at(j, "eos_token_id", own);
    ids_at(j, "suppress_tokens", own + ends);
    /* A word of one id is banned at every step, so it joins suppress_tokens; longer ones depend
     * on what was written before. */
    words_at(j, true, own + ends + out); /* never chosen, which is cheaper to obey */
    words_at(j, false, own + ends + banned);
    int32_t *first = own + ends + banned + words, *runs = first + begin;
    float *bias = (float *)(void *)(runs + biased);
    ids_at(j, "begin_suppress_tokens", first);
    biases_at(j, &n_bias, runs, bias);
    if (begin) o->begin_banned = first, o->n_begin_banned = (int)begin;
    if (biased) o->biased = runs, o->n_biased = biased, o->bias = bias;
    if (ends) o->eos = own[0];
    if (ends > 1) o->ends = own + 1, o->n_ends = (int)ends - 1;
    if (banned) o->banned = own + ends, o->n_banned = (int)banned;
    if (words) o->bad_words = own + ends + banned, o->n_bad_words = words;
    return FV_OK;
}

/* ---- files ---- */

/* Reads the keys of the table below a path, and leaves all others alone. */
static fv_status read_known(fv_gen_opt *o, const fv_json *j, const char *below, fv_err *e)
{
    fv_status st = FV_OK;
    for (const fv_field *f = fv_gen_fields; f->name && !st; f++) {
        char at[128], value[64] = "";
        double x;
        bool yes;
        snprintf(at, sizeof at, "%s%s", below, f->name);
        const char *text = fv_json_text(j, at);
        if (text) snprintf(value, sizeof value, "%s", text);
        /* Nine digits bring every float back exactly. */
        if (fv_json_number(j, at, &x)) fv__format(value, sizeof value, "%.9g", x);
        if (fv_json_bool(j, at, &yes)) snprintf(value, sizeof value, "%s", yes ? "true" : "false");
        if (*value) st = fv_fields_set(o, fv_gen_fields, f->name, value, e);
    }
    return st;
}

/* eos_token_id may be a list, and the table knows one number: the lists come first and the table
 * reads the first id. */
static fv_status read_file(fv_gen_config *c, fv_json *j, const char *path, bool generation,
                           fv_err *e)
{
    const fv_key_rule *rules[] = {harmless, NULL};
    fv_gen_opt *o = &c->options;
    char first[16];
    fv_status st = read_lists(c, j, path, e);
    if (!st) st = read_stops(c, j, path, e);
    snprintf(first, sizeof first, "%d", o->eos);
    /* The document is changed in memory only. */
    if (!st && o->n_ends) st = fv_json_set(j, "eos_token_id", first, e);
    if (!st && generation) st = fv_fields_read(o, fv_gen_fields, j, "", rules, e);
    if (!st && !generation) {
        fv_fields_default(o, fv_gen_fields);
        st = read_known(o, j, "", e);
    }
    /* where transformers' defaults are others than ours */
    if (!fv_json_has(j, "num_beams")) o->num_beams = 1;
    if (!fv_json_has(j, "max_length")) o->max_length = 20;
    return st;
}

/* Three sources, the later ones first: the task's parameters, generation_config.json (or without
 * one config.json, where older models keep these keys), transformers' defaults. */
fv_status fv_gen_config_open(fv_gen_config **out, const fv_env *env, const char *dir,
                             const char *task, fv_err *e)
{
    char path[4096], below[128];
    fv_dir *files = NULL;
    fv_json *j = NULL;
    *out = NULL;
    fv_status st = fv_dir_open(&files, env, dir, e);
    if (st) return st;
    fv_gen_config *c = fv__alloc(env, sizeof *c);
    if (!c) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    if (c && env) c->env = *env;
    bool generation = fv_dir_file(files, "generation_config.json", path, sizeof path);
    if (!st && !generation && !fv_dir_file(files, "config.json", path, sizeof path))
        st = fv_fail(e, FV_EIO, "%s: has no config.json", dir);
    if (!st) st = fv_json_open(&j, env, path, e);
    if (!st) st = read_file(c, j, path, generation, e);
    snprintf(below, sizeof below, "task_specific_params.%s.", task ? task : "");
    if (!st && task) st = read_known(&c->options, fv_dir_config(files), below, e);
    if (st)
        fv_gen_config_close(c);
    else
        *out = c;
    fv_json_close(j);
    fv_dir_close(files);
    return st;
}

/* Frees the lists, which copies of the options may no longer use. */
void fv_gen_config_close(fv_gen_config *c)
{
    if (!c) return;
    fv_env env = c->env;
    fv__free(&env, c->lists, c->bytes);
    fv__free(&env, c->stops, c->stop_bytes);
    fv__free(&env, c, sizeof *c);
}

const fv_gen_opt *fv_gen_config_options(const fv_gen_config *c) { return &c->options; }

const char *const *fv_gen_config_stops(const fv_gen_config *c, int *n)
{
    *n = c->n_stops;
    return c->stops;
}
