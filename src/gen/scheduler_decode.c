/* scheduler_decode.c - the next token of the rows that decode, chosen by the device where it can.
 *
 * The device chooses where a rule needs neither all scores nor the tokens before: the likeliest
 * token, or one drawn with temperature, top_k, top_p and min_p, some tokens banned; then 4 bytes a
 * row come back instead of a row of logits.  For the others (penalties, biases, grammars,
 * probabilities that are told) the host reads theirs.  Both choose the same token: ties go to the
 * lower one, and a random number is a function of seed, sequence and position.
 *
 * A captured step is for one number of rows.  Sequences come and go at every step, so rows are
 * added up to a number that comes again; what they compute is dropped, and what they write behind
 * the last token of a row that is not in the batch is overwritten by that row's next token. */
#include "gen/scheduler.h"

/* ---- where the device chooses ---- */

static size_t settings_bytes(const fv_scheduler *s)
{
    return (size_t)s->opt.rows * sizeof(fv_sample_row);
}

static void free_block(fv_scheduler *s)
{
    fv_sched_choice *h = &s->choice;
    const fv_backend *b = s->ctx->dev->backend;
    size_t all = h->lists + h->bytes + h->weights;
    if (h->row) b->release(s->ctx->dev, (char *)h->row - h->lists, all);
    if (h->host) fv__free(&s->env, (char *)h->host - h->lists, h->lists + settings_bytes(s));
    h->row = h->host = NULL;
    h->token = NULL;
}

/* One block: lists, settings, tokens, scores, weights. */
static bool alloc_block(fv_scheduler *s, size_t lists, size_t weights)
{
    fv_sched_choice *h = &s->choice;
    free_block(s);
    char *device = s->ctx->dev->backend->alloc(s->ctx->dev, lists + h->bytes + weights),
         *host = fv__alloc(&s->env, lists + settings_bytes(s));
    h->lists = lists;
    h->weights = weights;
    h->row = device ? (fv_sample_row *)(device + lists) : NULL;
    h->host = host ? (fv_sample_row *)(host + lists) : NULL;
    h->token = device ? (int32_t *)((char *)h->row + settings_bytes(s)) : NULL;
    if (device && host) return true;
    free_block(s);
    return false;
}

bool fv__sched_choice_open(fv_scheduler *s)
{
    fv_sched_choice *h = &s->choice;
    const fv_kernels *k = s->ctx->dev->k[s->ctx->dtype];
    if (!s->beside || !k || !k->sample) return true;
    h->bytes = settings_bytes(s) + (size_t)s->opt.rows * (sizeof(int32_t) + sizeof(float));
    return alloc_block(s, 0, 0);
}

/* What asks for memory that captured steps have the address of gets more than it needs: where it
 * grows all of them are captured again. */
size_t fv__sched_capacity(size_t bytes)
{
    size_t least = (size_t)1 << 18;
    return bytes < least ? 2 * least : 2 * bytes;
}

bool fv__sched_choice_reserve(fv_scheduler *s, size_t lists, size_t weights)
{
    fv_sched_choice *h = &s->choice;
    fv_sched_tap *t = &s->tap;
    if (lists > h->lists || weights > h->weights) {
        size_t more_lists = lists > h->lists ? fv__sched_capacity(lists) : h->lists,
               more_weights = weights > h->weights ? fv__sched_capacity(weights) : h->weights;
        s->session->version++;
        if (!alloc_block(s, more_lists, more_weights)) {
            fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for %zu bytes of weights",
                     weights);
            return false;
        }
    }
    h->listed = lists;
    t->jobs = (fv_weights_job *)((char *)h->host - lists);
    t->device_jobs = (fv_weights_job *)((char *)h->row - lists);
    t->device = (float *)((char *)h->row + h->bytes);
    return true;
}

void fv__sched_choice_free(fv_scheduler *s)
{
    fv_sched_choice *h = &s->choice;
    const fv_backend *b = s->ctx->dev->backend;
    free_block(s);
    if (h->logits) b->release(s->ctx->dev, h->logits, (size_t)(s->opt.rows * s->V) * sizeof(float));
    *h = (fv_sched_choice){0};
}

/* Everything that may not come next, into the row; false: too much of it. */
static bool list_banned(fv_sample_row *to, const sequence *q)
{
    const fv_gen_opt *o = &q->opt;
    bool early = q->n < o->min_length || q->n - q->prompt < o->min_new_tokens;
    int ends = early ? o->n_ends + (o->eos >= 0) : 0;
    if (o->n_banned + ends > FV_SAMPLE_BANNED) return false;
    for (int i = 0; i < o->n_banned; i++) to->banned[to->n_banned++] = o->banned[i];
    for (int i = 0; early && i < o->n_ends; i++) to->banned[to->n_banned++] = o->ends[i];
    if (early && o->eos >= 0) to->banned[to->n_banned++] = o->eos;
    return true;
}

/* Fills a row's settings; false: the host has to choose. */
static bool device_chooses(fv_sample_row *to, const sequence *q)
{
    const fv_gen_opt *o = &q->opt;
    const fv_sched_request *r = &q->ask;
    bool changed = r->logits || r->n_bias || r->frequency_penalty != 0 || r->presence_penalty != 0;
    bool forced = o->forced_bos >= 0 || o->forced_eos >= 0 || o->n_begin_banned > 0;
    bool scored = !r->unscored || r->top;
    *to = (fv_sample_row){.made = -1};
    if (changed || forced || scored || fv__looks_back(o) || o->renormalize_logits ||
        (o->do_sample && o->typical_p < 1) || !list_banned(to, q))
        return false;
    to->made = (int32_t)(q->n - q->prompt);
    to->do_sample = o->do_sample;
    to->temperature = o->temperature;
    to->top_p = o->top_p;
    to->min_p = o->min_p;
    to->top_k = (int32_t)(o->top_k < INT32_MAX ? o->top_k : 0);
    to->seed = (uint64_t)o->seed;
    to->number = q->number;
    return true;
}

static fv_sample_row *settings(const fv_scheduler *s, int64_t row) { return s->choice.host + row; }

/* Settings of a step's rows, and the lists that end where those of row 0 begin: in one piece, be it
 * with settings between them that nobody reads, since a short copy takes the time of a long one. */
static void upload_block(fv_scheduler *s, int64_t first, int64_t rows)
{
    const fv_sched_choice *h = &s->choice;
    const fv_backend *b = s->ctx->dev->backend;
    size_t from = h->listed ? 0 : (size_t)first * sizeof *h->row,
           end = rows ? (size_t)(first + rows) * sizeof *h->row : from;
    if (h->listed + end > from)
        b->upload(&s->ctx->stream, (char *)h->row + from - h->listed,
                  (const char *)h->host + from - h->listed, h->listed + end - from);
}

/* Rows of the step may be more than n: they choose as well, and nobody asks what. */
bool fv__sched_choice_prepare(fv_scheduler *s, int64_t first, int64_t n)
{
    fv_sched_choice *h = &s->choice;
    const fv_backend *b = s->ctx->dev->backend;
    int64_t rows = s->session->rows;
    h->any = h->draws = h->keeps = false;
    for (int64_t p = 0; h->row && p < rows; p++) {
        fv_sample_row *to = settings(s, first + p);
        *to = (fv_sample_row){0};
        if (p >= n) continue;
        bool chooses = device_chooses(to, s->row[first + p]);
        h->any |= chooses;
        h->draws |= chooses && to->do_sample;
        h->keeps |= !chooses;
    }
    h->keeps |= s->beside && !h->row;
    upload_block(s, first, h->any ? rows : 0);
    if (h->keeps && !h->logits) {
        h->logits = b->alloc(s->ctx->dev, (size_t)(s->opt.rows * s->V) * sizeof(float));
        if (!h->logits) fv_raise(s->ctx, FV_ENOMEM, "scheduler: out of memory for logits");
    }
    return !fv__failed(s->ctx);
}

/* Behind the model's kernels, and captured with them: it depends on `any`, `draws`, `keeps` and
 * the rows of the step alone. */
void fv__sched_choose(fv_ctx *c, void *user, fv_tensor *logits)
{
    fv_scheduler *s = user;
    const fv_sched_choice *h = &s->choice;
    const fv_kernels *k = c->dev->k[logits->dtype];
    int64_t rows = fv_dim(logits, 0), first = s->session->first;
    s->y = *logits;
    if (h->any) {
        fv_sample a = {.rows = rows, .V = s->V, .logits = logits->data, .row = h->row + first};
        a.forced_first = a.forced_last = -1;
        a.do_sample = h->draws;
        a.tokens = h->token + first;
        a.scores = (float *)(h->token + s->opt.rows) + first;
        if (!k->sample || !k->sample(&c->stream, &a))
            fv_raise(c, FV_EMISSING, "scheduler: no token is chosen from %s", fv_desc(logits).s);
    }
    if (h->keeps && fv_need(c, k->cast, "cast", logits->dtype))
        k->cast(&c->stream, (fv_sink){.data = h->logits + first * s->V, .dtype = FV_F32},
                logits->data, rows * s->V);
}

/* ---- tokens ---- */

static bool by_device(const fv_scheduler *s, int64_t row)
{
    return s->choice.any && settings(s, row)->made >= 0;
}

/* Logits of rows [from, end) of the step: where they were kept, or where the step has left them. */
static bool read_logits(fv_scheduler *s, int64_t first, int64_t from, int64_t end)
{
    fv_tensor part = s->y;
    part.shape = FV_SHAPE(end - from, s->V);
    if (s->choice.keeps) {
        part = (fv_tensor){.data = s->choice.logits + (first + from) * s->V, .dtype = FV_F32};
        part.shape = FV_SHAPE(end - from, s->V);
    } else {
        part.data = (char *)part.data + fv__tensor_bytes(part.dtype, from * s->V);
    }
    return !fv_read(s->ctx, &part, s->logits + from * s->V, (end - from) * s->V);
}

bool fv__sched_take_tokens(fv_scheduler *s, int64_t first, int64_t n)
{
    const fv_sched_choice *h = &s->choice;
    fv_sched_weights w;
    int32_t *token = s->from; /* of no use before rows move */
    int64_t from = fv__sched_now();
    if (s->follows) return fv__sched_follow_tokens(s, first, n);
    if (h->any && s->tap.tokens)
        memcpy(token, s->tap.tokens + first, (size_t)n * sizeof *token);
    else if (h->any)
        s->ctx->dev->backend->download(&s->ctx->stream, token, h->token + first,
                                       (size_t)n * sizeof *token);
    if (fv__failed(s->ctx)) return false;
    for (int64_t p = 0, end; p < n; p = end) { /* runs of rows for which the host chooses */
        for (end = p; end < n && !by_device(s, first + end);) end++;
        if (end > p && !read_logits(s, first, p, end)) return false;
        if (end == p) end++;
    }
    fv__sched_inner(s, &s->times.wait, from);
    for (int64_t p = 0; p < n; p++) {
        sequence *q = s->row[first + p];
        if (q->done) continue; /* its callback has ended it while this step was under way */
        if (by_device(s, first + p))
            fv__sched_accept(s, q, token[p], p);
        else
            fv__sched_take_token(s, q, s->logits + p * s->V, fv__sched_weights(s, &w, p, -1, 1));
    }
    return fv__sched_send_tokens(s, first, n);
}

/* ---- steps ---- */

/* Rows that a step of n has: few different numbers, each a little more than n at most. */
static int64_t pad_rows(const fv_scheduler *s, int64_t first, int64_t n)
{
    int64_t each = n <= 2 ? 1 : n <= 16 ? 4 : n <= 64 ? 8 : n <= 256 ? 16 : 64;
    int64_t rows = (n + each - 1) / each * each, most = s->opt.rows - first;
    if (!s->beside || s->session->virtual) return n;
    return rows < most ? rows : most;
}

/* The next token of rows [first, first + n), which have one model. */
static bool decode_group(fv_scheduler *s, int64_t first, int64_t n)
{
    const fv_sched_choice *h = &s->choice;
    int64_t rows = pad_rows(s, first, n);
    for (int64_t p = 0; p < rows; p++) {
        const sequence *q = p < n ? s->row[first + p] : NULL;
        s->token[p] = q ? q->ids[q->n - 1] : 0;
    }
    fv_ctx_reset(s->ctx, 0);
    if (!fv__session_narrow(s->ctx, s->session, first, rows, 1)) return false;
    fv__session_use(s->session, s->models[s->row[first]->ask.model]);
    s->tap.prompt = false;
    bool ok = fv__sched_watch(s, first, n, 1) && fv__sched_choice_prepare(s, first, n);
    uint64_t kind = FV_STEP_CHOOSE + (uint64_t)(h->any + 2 * h->draws + 4 * h->keeps);
    ok = ok && fv__session_replay(s->ctx, s->session, s->token, kind, fv__sched_choose, s);
    fv__session_restore(s->session);
    for (int64_t p = n; ok && p < rows; p++) s->session->len[first + p]--;
    fv__sched_tell(s);
    if (!fv__sched_collect(s) || !ok) return false;
    for (int64_t p = 0; p < n; p++) s->row[first + p]->cached++;
    return fv__sched_take_tokens(s, first, n);
}

bool fv__sched_decode(fv_scheduler *s)
{
    for (int64_t first = 0, end; first < s->decoding; first = end) {
        int model = s->row[first]->ask.model;
        for (end = first + 1; end < s->decoding && s->row[end]->ask.model == model;) end++;
        if (!decode_group(s, first, end - first)) return false;
    }
    fv__sched_count(s, 0, 0);
    return true;
}
