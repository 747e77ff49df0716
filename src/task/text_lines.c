/* text_lines.c - lines of a file or of standard input, as they come.
 *
 * Bytes are read in chunks, inflated where they begin like gzip, and cut at line ends.  A line that
 * is not UTF-8 carries an error, so that the others can go on.  Of FASTA, known by the name of the
 * file, a sequence is a line.  fv_textfile maps a file and knows
 * all of its lines at once; here memory stays flat and a pipe gives its lines when they arrive. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <zlib.h>

#include "data/idx.h"
#include "data/records.h"
#include "fovea/pipeline.h"

#define CHUNK 65536
/* Bytes of a line (/dev/zero is one without an end) and of a file that is read as one text:
 * encoding takes some 60 bytes of memory for each. */
#define LONGEST ((size_t)16 << 20)

/* text holds, in order: the last lines given out (taken), then whole lines, then an open one.
 * Views given out stay valid until the next fv_reader_next, which moves the rest to the front. */
struct fv_reader {
    const fv_env *env;
    const char *name;
    fv_reader_opt opt;
    int fd;
    z_stream z;
    enum { UNKNOWN, PLAIN, GZIP } format;
    bool fasta; /* by its name: lines are made of it */
    fv__fasta at;
    bool member;               /* inside a gzip member */
    uint64_t packed, unpacked; /* bytes of all members so far */
    bool ended;                /* no byte is left to read */
    bool started;              /* what a byte-order mark would be has been read */
    fv_buf raw;                /* the first bytes, until the format is clear */
    fv_buf text;               /* bytes that are in no line yet, behind those of the last lines */
    size_t open;               /* bytes of the line that has no end yet */
    size_t taken;              /* of text, in the last lines */
    size_t searched;           /* of text: no line ends before it */
    int64_t number;
    fv_line *lines;
    size_t line_bytes;
};

/* Files of many images or sounds, by their names.  As lines they would be a thousand errors. */
static bool names_archive(const char *path)
{
    static const char *const endings[] = {".tar", ".tar.gz", ".tgz", ".zip"};
    size_t n = strlen(path);
    for (int i = 0; i < 4; i++) {
        size_t m = strlen(endings[i]);
        if (n > m && !strcmp(path + n - m, endings[i])) return true;
    }
    return fv__idx_is(path);
}

fv_status fv_reader_open(fv_reader **out, const fv_env *env, const char *path, fv_reader_opt opt,
                         fv_err *e)
{
    const fv_io *io = fv__io(env);
    *out = NULL;
    if (path && names_archive(path))
        return fv_fail(
            e, FV_EFORMAT,
            "%s: an archive, not lines: unpack it and name files or their folder (train, "
            "eval and nearest --among read archives of images as they are)",
            path);
    fv_reader *r = *out = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "out of memory");
    r->env = env;
    r->name = path ? path : "standard input";
    r->fasta = path && fv__names_fasta(path);
    r->opt = opt;
    r->raw.env = r->text.env = env;
    /* Standard input is not closed by us. */
    r->fd = path ? io->open_read(io->self, path) : STDIN_FILENO;
    if (r->fd >= 0) return FV_OK;
    fv_fail(e, FV_EIO, "%s: %s", path, strerror(-r->fd));
    fv_reader_close(r);
    *out = NULL;
    return FV_EIO;
}

void fv_reader_close(fv_reader *r)
{
    if (!r) return;
    const fv_env *env = r->env;
    const fv_io *io = fv__io(env);
    if (r->fd > STDIN_FILENO) io->close(io->self, r->fd);
    if (r->format == GZIP) inflateEnd(&r->z);
    fv__buf_free(&r->raw);
    fv__buf_free(&r->text);
    fv__free(env, r->lines, r->line_bytes);
    fv__free(env, r, sizeof *r);
}

/* ---- bytes ---- */

static void add_text(fv_reader *r, const char *s, size_t n)
{
    if (r->fasta)
        fv__fasta_add(&r->at, &r->text, s, n);
    else
        fv__buf_add(&r->text, s, n);
}

/* Members one after another, as gzip allows. */
static fv_status inflate_some(fv_reader *r, const char *bytes, size_t n, fv_err *e)
{
    char chunk[CHUNK];
    r->z.next_in = (Bytef *)(uintptr_t)bytes;
    r->z.avail_in = (uInt)n;
    r->packed += n;
    while (r->z.avail_in) {
        r->z.next_out = (Bytef *)chunk;
        r->z.avail_out = sizeof chunk;
        r->member = true;
        int rc = inflate(&r->z, Z_NO_FLUSH);
        add_text(r, chunk, sizeof chunk - r->z.avail_out);
        r->unpacked += sizeof chunk - r->z.avail_out;
        if (!fv__may_inflate(r->packed, r->unpacked))
            return fv_fail(e, FV_EFORMAT,
                           "%s: %llu bytes unpack to more than %llu, which is refused", r->name,
                           (unsigned long long)r->packed, (unsigned long long)r->unpacked);
        if (rc == Z_STREAM_END) {
            r->member = false;
            rc = inflateReset(&r->z);
        }
        if (rc != Z_OK && rc != Z_BUF_ERROR)
            return fv_fail(e, FV_EFORMAT, "%s: gzip data is damaged", r->name);
        /* All input was used and nothing came out: the rest of the block is in the next chunk. */
        if (rc == Z_BUF_ERROR && r->z.avail_out) break; /* needs more input */
    }
    return FV_OK;
}

/* Finds out what the input is once two bytes are there, or there are no more. */
static fv_status begin(fv_reader *r, fv_err *e)
{
    const unsigned char *s = (const unsigned char *)r->raw.data;
    if (r->raw.len < 2 && !r->ended) return FV_OK;
    r->format = r->raw.len >= 2 && s[0] == 0x1f && s[1] == 0x8b ? GZIP : PLAIN;
    /* 15 + 16: the largest window, gzip header expected. */
    if (r->format == GZIP && inflateInit2(&r->z, 15 + 16) != Z_OK) {
        r->format = PLAIN;
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", r->name);
    }
    if (r->format == GZIP) return inflate_some(r, r->raw.data, r->raw.len, e);
    add_text(r, r->raw.data ? r->raw.data : "", r->raw.len);
    return FV_OK;
}

/* A line, or all of it, that goes on for too long; `before` bytes were there before. */
static fv_status check_length(fv_reader *r, size_t before, fv_err *e)
{
    size_t more = r->text.len - before;
    const char *added = more ? r->text.data + before : "", *end = memrchr(added, '\n', more);
    r->open = end ? more - (size_t)(end + 1 - added) : r->open + more;
    if (r->opt.whole && r->text.len > LONGEST)
        return fv_fail(e, FV_EFORMAT, "%s: more than %zu bytes, which are too many for one text",
                       r->name, LONGEST);
    if (r->opt.whole || r->open <= LONGEST) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: a line behind line %lld has more than %zu bytes", r->name,
                   (long long)r->number, LONGEST);
}

/* As much as is there: a pipe is not waited for until a buffer is full. */
static fv_status read_some(fv_reader *r, fv_err *e)
{
    size_t before = r->text.len;
    char chunk[CHUNK];
    const fv_io *io = fv__io(r->env);
    int64_t got;
    do got = io->read(io->self, r->fd, chunk, sizeof chunk);
    while (got == -EINTR);
    if (got < 0) return fv_fail(e, FV_EIO, "%s: cannot read: %s", r->name, strerror((int)-got));
    fv_status st = FV_OK;
    r->ended = got == 0;
    if (r->format == GZIP && got) {
        st = inflate_some(r, chunk, (size_t)got, e);
    } else if (r->format == PLAIN) {
        add_text(r, chunk, (size_t)got);
    } else if (r->format == UNKNOWN) {
        fv__buf_add(&r->raw, chunk, (size_t)got);
        st = begin(r, e);
    }
    if (!st && r->ended && r->member)
        st = fv_fail(e, FV_EFORMAT, "%s: gzip data ends early", r->name);
    if (!st) st = check_length(r, before, e);
    if (!st && (r->text.failed || r->raw.failed))
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory after line %lld", r->name,
                     (long long)r->number);
    return st;
}

/* Whether reading would return at once: a full batch is preferred where it costs no waiting. */
static bool more_waits(const fv_reader *r)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* ---- lines ---- */

static void drop_mark(fv_reader *r)
{
    /* Three bytes are needed to know; a shorter file has no byte-order mark. */
    if (r->started || (r->text.len < 3 && !r->ended)) return;
    r->started = true;
    if (r->text.len >= 3 && !memcmp(r->text.data, "\xEF\xBB\xBF", 3)) r->taken = 3;
}

/* A line that is not UTF-8 is a line with an error, not the end of the file. */
fv_line fv_line_of(const char *s, size_t n, int64_t number, fv_reader_opt opt)
{
    fv_line x = {.number = number, .text = {.s = s, .n = n}};
    if (!opt.whole && n && s[n - 1] == '\r') x.text.n = --n;
    size_t bad = fv__utf8_check(s, n);
    if (bad < n) fv_fail(&x.error, FV_EFORMAT, "not UTF-8 at byte %zu", bad + 1);
    const char *tab = opt.pairs ? memchr(s, '\t', n) : NULL;
    if (!tab) return x;
    x.text.n = (size_t)(tab - s);
    x.text.pair = tab + 1;
    x.text.pair_n = (size_t)(s + n - tab - 1);
    return x;
}

/* How many whole lines lie behind `taken`, up to most. */
static int64_t count_lines(const fv_reader *r, int64_t most)
{
    int64_t n = 0;
    const char *s = r->text.data + r->taken, *end = r->text.data + r->text.len;
    if (r->opt.whole) return r->ended && r->number == 0 ? 1 : 0;
    /* a line that comes in many chunks is searched once */
    if (s && r->searched > r->taken &&
        !memchr(r->text.data + r->searched, '\n', r->text.len - r->searched))
        return r->ended && s < end ? 1 : 0;
    for (; n < most && s && s < end; n++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        /* The last line needs no line end. */
        if (!stop) return n + r->ended;
        s = stop + 1;
    }
    return n;
}

static void cut_lines(fv_reader *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const char *s = r->text.data ? r->text.data + r->taken : ""; /* a NUL stands at its end */
        size_t left = r->text.len - r->taken;
        const char *stop = r->opt.whole ? NULL : memchr(s, '\n', left);
        size_t len = stop ? (size_t)(stop - s) : left;
        r->lines[i] = fv_line_of(s, len, ++r->number, r->opt);
        r->taken += len + (stop != NULL);
    }
}

fv_status fv_reader_next(fv_reader *r, int64_t most, const fv_line **lines, int64_t *n, fv_err *e)
{
    fv_status st = FV_OK;
    void *grown = r->lines;
    *n = 0;
    *lines = NULL;
    if (r->taken) {
        memmove(r->text.data, r->text.data + r->taken, r->text.len - r->taken);
        r->text.len -= r->taken;
        r->taken = 0;
    }
    for (;;) {
        if (r->format != UNKNOWN) drop_mark(r);
        *n = r->started ? count_lines(r, most) : 0;
        r->searched = *n ? 0 : r->text.len;
        /* Lines that are there are handed on rather than kept until a batch is full: an
         * interactive pipe answers line by line. */
        if (r->ended || *n >= most || (*n && !more_waits(r))) break;
        st = read_some(r, e);
        if (st) return st;
    }
    if (!fv__grow(r->env, &grown, &r->line_bytes, (size_t)(*n + 1) * sizeof *r->lines))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory for %lld lines", r->name, (long long)*n);
    r->lines = grown;
    cut_lines(r, *n);
    *lines = r->lines;
    return FV_OK;
}
