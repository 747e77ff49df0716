/* media.c - images and sounds in requests: /v1/classify, /v1/detect and /v1/caption of models that
 * see, images in the messages of a chat, /v1/audio/transcriptions of models that hear.
 *
 * Images come as data: URIs of PNG or JPEG, sounds as files of a form, as OpenAI's clients send
 * them.  The library's pipelines read files, so what came is written into a folder of its own for
 * as long as the request runs.  A path is never taken from a request: what a model that sees is
 * given as text is refused unless it is a data: URI. */
#include "media.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fovea/model.h"

#define BAD "invalid_request_error"

/* By what the model takes and what its head computes; NULL: it reads text. */
const char *sv_media_task(const fv_model *m, fv_head_job job)
{
    bool sees = fv_model_takes(m, "pixel_values"),
         hears = fv_model_takes(m, "input_features") || fv_model_takes(m, "input_values");
    if (hears && job == FV_HEAD_SEQ2SEQ) return "transcribe";
    if (sees && job == FV_HEAD_SEQ2SEQ) return "caption";
    if ((sees || hears) && job == FV_HEAD_CLASSIFY) return "classify";
    return sees && job == FV_HEAD_DETECT ? "detect" : NULL;
}

/* ---- files of a request ---- */

/* Tasks read files, so what a request brings is written into a folder of its own and removed with
 * the answer. Decoding from memory would need a second way through every processor. */
static bool open_folder(sv_media *m)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(m->dir, sizeof m->dir, "%.200s/fovea-XXXXXX", temporary ? temporary : "/tmp");
    if (mkdtemp(m->dir)) return true;
    m->dir[0] = 0;
    sv_refuse(m->r, 503, "overloaded_error", NULL, "no file can be written: %s", strerror(errno));
    return false;
}

/* 0600 and never over something that is there: other users of the machine share the folder. */
static bool write_file(sv_media *m, const char *ending, const void *data, size_t n)
{
    char *path = m->path[m->n];
    snprintf(path, sizeof m->path[0], "%s/%d.%s", m->dir, m->n, ending);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t done = 0;
    for (ssize_t k; fd >= 0 && done < n; done += (size_t)k)
        if ((k = write(fd, (const char *)data + done, n - done)) <= 0) break;
    if (fd >= 0) close(fd);
    m->text[m->n++] = (fv_text){.s = path, .n = strlen(path)};
    if (done == n) return true;
    sv_refuse(m->r, 503, "overloaded_error", NULL, "no file can be written: %s", strerror(errno));
    return false;
}

void sv_media_close(sv_media *m)
{
    for (int i = 0; i < m->n; i++) unlink(m->path[i]);
    if (m->dir[0]) rmdir(m->dir);
    json_decref(m->results);
}

/* ---- data: URIs ---- */

/* Base64's alphabet (RFC 4648); '=' is no digit and ends the text. */
static int digit(unsigned char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Base 64 with its padding; -1: it is none. */
static ssize_t from_base64(const char *s, size_t n, unsigned char *out)
{
    size_t k = 0;
    while (n && s[n - 1] == '=') n--;
    if (n % 4 == 1) return -1;
    unsigned bits = 0;
    for (size_t i = 0; i < n; i++) {
        int d = digit((unsigned char)s[i]);
        if (d < 0) return -1;
        bits = bits << 6 | (unsigned)d;
        if (i % 4) out[k++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    return (ssize_t)k;
}

/* field: what the client knows it as. */
static bool take_image(sv_media *m, const json_t *j, const char *field)
{
    static const char *const heads[][2] = {{"data:image/png;base64,", "png"},
                                           {"data:image/jpeg;base64,", "jpg"},
                                           {"data:audio/wav;base64,", "wav"}};
    const char *s = json_string_value(j);
    size_t n = json_string_length(j);
    for (int i = 0; s && i < 3; i++) {
        size_t head = strlen(heads[i][0]);
        if (n < head || memcmp(s, heads[i][0], head)) continue;
        unsigned char *bytes = malloc(n);
        ssize_t got = bytes ? from_base64(s + head, n - head, bytes) : -1;
        bool ok = got >= 0 && write_file(m, heads[i][1], bytes, (size_t)got);
        free(bytes);
        if (got >= 0) return ok;
    }
    sv_refuse(m->r, 400, BAD, field,
              "%s: %s reads no text: a data: URI of image/png, image/jpeg or audio/wav in base64, "
              "or a list of up to %d, was expected",
              field, m->g->name, SV_MOST_FILES);
    return false;
}

/* ---- the pipeline ---- */

/* A result tells which file it is of; the client does not know our names. */
static bool take_result(void *user, const fv_task_result *x)
{
    sv_media *m = user;
    json_t *j = x->error ? NULL : json_loadb(x->text, x->n, 0, NULL);
    if (x->error && !m->failed.code) {
        const char *path = m->path[x->record > 0 ? x->record - 1 : 0], *text = x->error->text;
        size_t n = strlen(path);
        bool named = !strncmp(text, path, n) && !strncmp(text + n, ": ", 2);
        fv_fail(&m->failed, x->error->code, "%s", named ? text + n + 2 : text);
    }
    if (!j) return !x->error;
    json_object_del(j, "image");
    json_object_del(j, "sound");
    json_array_append_new(m->results, j);
    return true;
}

/* A file that cannot be decoded is the client's fault although the library calls it an I/O error.
 */
static bool run_pipeline(sv_media *m)
{
    fv_err e;
    m->results = json_array();
    fv_status st = fv_pipeline_run(m->g->pipeline, m->text, m->n, 1, take_result, m, &e);
    const fv_err *why = m->failed.code ? &m->failed : &e;
    if (!st && !m->failed.code && (int)json_array_size(m->results) == m->n) return true;
    if (!st && !m->failed.code) fv_fail(&e, FV_ESTATE, "a file has no result");
    if (why->code == FV_EIO || why->code == FV_EFORMAT || why->code == FV_EARG)
        sv_refuse(m->r, 400, BAD, "input", "%s", why->text);
    else
        sv_refuse_error(m->r, why);
    return false;
}

bool sv_media_open(sv_media *m, sv_engine *g, sv_request *r)
{
    *m = (sv_media){.g = g, .r = r};
    return open_folder(m) && take_image(m, json_object_get(r->json, "input"), "input");
}

/* The ids of what the model writes about the image, which `see` then shows the attention of. */
bool sv_media_caption(sv_media *m, int32_t **ids, int64_t *n)
{
    if (!run_pipeline(m)) return false;
    const json_t *list = json_object_get(json_array_get(m->results, 0), "ids");
    *n = (int64_t)json_array_size(list);
    *ids = malloc((size_t)(*n + 1) * sizeof **ids);
    for (int64_t i = 0; *ids && i < *n; i++)
        (*ids)[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    if (!*ids) sv_refuse(m->r, 503, "overloaded_error", NULL, "out of memory");
    return *ids != NULL;
}

void sv_see_images(sv_engine *g, sv_request *r)
{
    sv_media m = {.g = g, .r = r};
    const json_t *in = json_object_get(r->json, "input");
    size_t n = json_is_array(in) ? json_array_size(in) : 1;
    bool ok = n >= 1 && n <= SV_MOST_FILES;
    if (!ok) sv_refuse(r, 400, BAD, "input", "input: 1 to %d images were expected", SV_MOST_FILES);
    ok = ok && open_folder(&m);
    for (size_t i = 0; i < n && ok; i++)
        ok = take_image(&m, json_is_array(in) ? json_array_get(in, i) : in, "input");
    if (ok && run_pipeline(&m)) {
        sv_text t = {0};
        char *data = json_dumps(m.results, JSON_REAL_PRECISION(9));
        sv_open(&t, '{');
        sv_string_at(&t, "object", "list");
        sv_string_at(&t, "model", g->name);
        sv_raw_at(&t, "data", data ? data : "null");
        sv_put(&t, "}\n");
        t.failed |= !data;
        free(data);
        sv_answer(r, 200, NULL, &t);
    }
    sv_media_close(&m);
}

/* What a path asks of a model, on the engine's thread, as everything that uses a model. */
static void see_for(sv_engine *g, sv_request *r, const char *task, const char *lacks)
{
    if (g->media && !strcmp(g->media, task))
        sv_see_images(g, r);
    else
        sv_refuse(r, 400, BAD, "model", "%s %s", g->name, lacks);
}
static void detect(sv_engine *g, sv_request *r)
{
    see_for(g, r, "detect", "does not detect objects");
}
static void caption(sv_engine *g, sv_request *r)
{
    see_for(g, r, "caption", "does not describe images");
}

static void post_images(sv_request *r, sv_work_fn *fn)
{
    static const char *const keys[] = {"model", "input", NULL};
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, fn);
}
void sv_detect(sv_request *r) { post_images(r, detect); }
void sv_caption(sv_request *r) { post_images(r, caption); }

/* ---- images in a chat ---- */

/* Every part {"type":"image_url","image_url":{"url":..}} of the messages, in their order. */
static bool take_parts(sv_media *m)
{
    const json_t *messages = json_object_get(m->r->json, "messages"), *message, *part;
    size_t i, k;
    json_array_foreach(messages, i, message)
    {
        json_array_foreach(json_object_get(message, "content"), k, part)
        {
            const json_t *image = json_object_get(part, "image_url");
            if (!image) continue;
            if (m->n == SV_MOST_FILES) {
                sv_refuse(m->r, 400, BAD, "messages", "messages: at most %d images", SV_MOST_FILES);
                return false;
            }
            if (json_is_object(image)) image = json_object_get(image, "url");
            if (!take_image(m, image, "messages")) return false;
        }
    }
    if (!m->n)
        sv_refuse(m->r, 400, BAD, "messages",
                  "messages: %s describes images: a part of type image_url was expected",
                  m->g->name);
    return m->n > 0;
}

/* One answer, or one chunk that has all of it: a caption is a few words. */
static void write_reply(sv_media *m, bool stream, const sv_text *reply, int64_t tokens)
{
    sv_text t = {0};
    char id[96];
    snprintf(id, sizeof id, "chatcmpl-%s", m->r->id);
    sv_open(&t, '{');
    sv_string_at(&t, "id", id);
    sv_string_at(&t, "object", stream ? "chat.completion.chunk" : "chat.completion");
    sv_int_at(&t, "created", (int64_t)time(NULL));
    sv_string_at(&t, "model", m->g->name);
    sv_key(&t, "choices");
    sv_open(&t, '[');
    sv_open(&t, '{');
    sv_int_at(&t, "index", 0);
    sv_key(&t, stream ? "delta" : "message");
    sv_open(&t, '{');
    sv_string_at(&t, "role", "assistant");
    sv_key(&t, "content");
    sv_string(&t, reply->s ? reply->s : "", reply->n);
    sv_close(&t, '}');
    sv_string_at(&t, "finish_reason", "stop");
    sv_put(&t, "}]");
    sv_key(&t, "usage");
    sv_open(&t, '{');
    sv_int_at(&t, "prompt_tokens", 0);
    sv_int_at(&t, "completion_tokens", tokens);
    sv_int_at(&t, "total_tokens", tokens);
    sv_put(&t, stream ? "}}" : "}}\n");
    if (!stream) {
        sv_answer(m->r, 200, NULL, &t);
        return;
    }
    sv_stream(m->r);
    sv_event(m->r, t.s, t.n);
    sv_event(m->r, "[DONE]", 6);
    sv_end(m->r);
    sv_free(&t);
}

/* Images of a chat are captioned one by one; the reply has a line for each, and words beside the
 * images are not read. */
void sv_caption_chat(sv_engine *g, sv_request *r)
{
    sv_media m = {.g = g, .r = r};
    sv_text reply = {0};
    bool stream = false;
    int64_t tokens = 0;
    if (sv_get_bool(r, "stream", &stream) && open_folder(&m) && take_parts(&m) &&
        run_pipeline(&m)) {
        for (int i = 0; i < m.n; i++) {
            const json_t *x = json_array_get(m.results, (size_t)i),
                         *text = json_object_get(x, "caption");
            if (i) sv_add(&reply, "\n", 1);
            sv_add(&reply, json_string_value(text), json_string_length(text));
            tokens += (int64_t)json_array_size(json_object_get(x, "ids"));
        }
        write_reply(&m, stream, &reply, tokens);
    }
    sv_free(&reply);
    sv_media_close(&m);
}

/* ---- /v1/audio/transcriptions ---- */

/* Of the request, for the boundary of its form. */
static const char *content_type(const sv_request *r)
{
    const char *type = MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, "Content-Type");
    return type ? type : "";
}

/* OpenAI's answer has one text; pieces of a long sound are joined by a blank. */
static void join_pieces(sv_text *t, const json_t *pieces)
{
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *text = json_object_get(json_array_get(pieces, i), "text");
        if (i) sv_add(t, " ", 1);
        sv_add(t, json_string_value(text), json_string_length(text));
    }
}

bool sv_media_transcript(sv_media *m, sv_text *said)
{
    if (!run_pipeline(m)) return false;
    join_pieces(said, json_object_get(json_array_get(m->results, 0), "pieces"));
    return !said->failed;
}

static void put_text(sv_text *t, const json_t *pieces)
{
    sv_text all = {0};
    join_pieces(&all, pieces);
    sv_key(t, "text");
    sv_string(t, all.s ? all.s : "", all.n);
    t->failed |= all.failed;
    sv_free(&all);
}

/* verbose_json adds duration and segments, times in seconds. */
static void write_transcript(sv_media *m, const char *format)
{
    const json_t *x = json_array_get(m->results, 0), *pieces = json_object_get(x, "pieces");
    sv_text t = {0};
    sv_open(&t, '{');
    put_text(&t, pieces);
    if (!strcmp(format, "verbose_json")) {
        sv_real_at(&t, "duration", json_number_value(json_object_get(x, "seconds")));
        sv_key(&t, "segments");
        sv_open(&t, '[');
        for (size_t i = 0; i < json_array_size(pieces); i++) {
            const json_t *p = json_array_get(pieces, i), *text = json_object_get(p, "text");
            sv_open(&t, '{');
            sv_int_at(&t, "id", (int64_t)i);
            sv_real_at(&t, "start", json_number_value(json_object_get(p, "from")));
            sv_real_at(&t, "end", json_number_value(json_object_get(p, "to")));
            sv_key(&t, "text");
            sv_string(&t, json_string_value(text), json_string_length(text));
            sv_close(&t, '}');
        }
        sv_close(&t, ']');
    }
    sv_put(&t, "}\n");
    sv_answer(m->r, 200, NULL, &t);
}

/* multipart/form-data, as OpenAI's clients send it: the sound is a part called "file", the others
 * are small texts. */
static void transcribe(sv_engine *g, sv_request *r)
{
    sv_media m = {.g = g, .r = r};
    sv_part file, format;
    char word[32] = "json";
    if (!g->media || strcmp(g->media, "transcribe")) {
        sv_refuse(r, 400, BAD, "model", "%s does not transcribe sound", g->name);
        return;
    }
    if (sv_multipart(content_type(r), &r->body, "response_format", &format))
        snprintf(word, sizeof word, "%.*s", (int)(format.n < 31 ? format.n : 31), format.data);
    sv_multipart(content_type(r), &r->body, "file", &file);
    if (strcmp(word, "json") && strcmp(word, "verbose_json"))
        sv_refuse(r, 400, BAD, "response_format", "response_format: json or verbose_json");
    else if (open_folder(&m) && write_file(&m, "sound", file.data, file.n) && run_pipeline(&m))
        write_transcript(&m, word);
    sv_media_close(&m);
}

/* The form's "model" goes where sv_find_engine looks for it. */
void sv_transcriptions(sv_request *r)
{
    sv_part file, model;
    if (!sv_multipart(content_type(r), &r->body, "file", &file) || !file.n) {
        sv_refuse(r, 400, BAD, "file",
                  "a form (multipart/form-data) with a sound in its field file is needed");
        return;
    }
    r->json = json_object();
    if (sv_multipart(content_type(r), &r->body, "model", &model) && model.n)
        json_object_set_new(r->json, "model", json_stringn(model.data, model.n));
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, transcribe);
}
