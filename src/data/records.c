/* records.c - records of one or two texts: lines, two files side by side, tables, JSONL, a word and
 * the rest, or sequences of FASTA.
 *
 * Each format finds the texts of a record and gives them to the one function that checks them
 * (UTF-8, empty) and counts what is left out.  All formats but CSV and FASTA hold a record a line,
 * so a part of a file is a range of lines; rows of CSV, whose quoted fields may go over line ends,
 * and sequences are counted first. */
#include "data/records.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json/tree.h"

const char *const fv_formats[] = {"auto", "lines", "tsv", "jsonl", "word", "csv", "fasta", NULL};
const char *const fv_policies[] = {"drop", "cut", "refuse", NULL};

enum { DEFAULT_MAX_LEN = 512, JSON_DEPTH = 32 };

/* ---- checks: each counts what it leaves out and notes the first few lines ---- */

/* The first three are kept for the report: enough to see what is wrong with a file, however often
 * it is. */
void fv__records_note(fv__reading *r, const char *file, int64_t line, const char *why, ...)
{
    if (r->noted == 3) return;
    char *out = r->report->first[r->noted++];
    int n = snprintf(out, sizeof r->report->first[0], "%.90s:%lld: ", file, (long long)line);
    va_list ap;
    va_start(ap, why);
    if (n > 0 && (size_t)n < sizeof r->report->first[0])
        vsnprintf(out + n, sizeof r->report->first[0] - (size_t)n, why, ap);
    va_end(ap);
}

static bool blank(fv__span t)
{
    for (size_t i = 0; i < t.n; i++)
        if (!strchr(" \t", t.s[i])) return false;
    return true;
}

/* *skip: the record is left out. */
static fv_status check(fv__reading *r, const fv__record *rec, int i, bool *skip)
{
    const char *file = rec->file[i];
    size_t bad = fv__utf8_check(rec->text[i].s, rec->text[i].n);
    if (bad < rec->text[i].n) {
        if (r->from->malformed == FV_REFUSE)
            return fv_fail(r->e, FV_EFORMAT, "%s:%lld: not UTF-8 at byte %zu", file,
                           (long long)rec->line, bad + 1);
        r->report->malformed++;
        fv__records_note(r, file, rec->line, "not UTF-8 at byte %zu", bad + 1);
        *skip = true;
    } else if (blank(rec->text[i])) {
        if (r->from->empty == FV_REFUSE)
            return fv_fail(r->e, FV_EFORMAT, "%s:%lld: empty", file, (long long)rec->line);
        r->report->empty++;
        fv__records_note(r, file, rec->line, "empty");
        *skip = true;
    }
    return FV_OK;
}

/* Every record of every format comes through here: counted, its texts checked (UTF-8, not blank),
 * then handed on. */
fv_status fv__records_give(fv__reading *r, const fv__record *rec)
{
    bool skip = false;
    fv_status st = FV_OK;
    r->report->records++;
    for (int i = 0; !st && !skip && i < r->n_texts && i < FV__TEXTS; i++)
        st = check(r, rec, i, &skip);
    return st || skip ? st : r->each(r, rec);
}

int64_t fv__records_most(const fv__reading *r)
{
    return r->from->max_len ? r->from->max_len : DEFAULT_MAX_LEN;
}

/* What happens to a text of n tokens, more than fit: refused, dropped (*keep 0) or cut to *keep, as
 * the data's too_long says. */
fv_status fv__records_long(fv__reading *r, const fv__record *rec, int i, int64_t n, int64_t *keep)
{
    int64_t most = fv__records_most(r);
    *keep = r->from->too_long == FV_CUT ? most : 0;
    if (r->from->too_long == FV_REFUSE)
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: %lld tokens, at most %lld are allowed",
                       rec->file[i], (long long)rec->line, (long long)n, (long long)most);
    r->report->too_long += *keep == 0;
    r->report->cut += *keep != 0;
    fv__records_note(r, rec->file[i], rec->line,
                     *keep ? "cut: %lld tokens" : "too long: %lld tokens", (long long)n);
    return FV_OK;
}

/* ---- ISO-8859-1: every byte is the code point of its number ---- */

/* ISO-8859-1: its bytes are the first 256 code points. */
static fv_status to_utf8(fv__reading *r, fv__span *text, fv_buf *b)
{
    b->len = 0;
    for (size_t i = 0; i < text->n; i++) {
        char c[4];
        fv__buf_add(b, c, (size_t)fv__utf8_put(c, (unsigned char)text->s[i]));
    }
    if (b->failed) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->from->file);
    *text = (fv__span){b->data ? b->data : "", b->len};
    return FV_OK;
}

/* One record of a file: converted where the file is ISO-8859-1, then checked and passed on. */
static fv_status give(fv__reading *r, fv__span a, fv__span b, int64_t line)
{
    const char *second = r->from->beside ? r->from->beside : r->from->file;
    fv__record rec = {.text = {a, b}, .file = {r->from->file, second}, .line = line};
    fv_status st = FV_OK;
    for (int i = 0; r->from->latin1 && !st && i < r->n_texts; i++)
        st = to_utf8(r, &rec.text[i], &r->utf8[i]);
    return st ? st : fv__records_give(r, &rec);
}

/* ---- the part of a file that is wanted ---- */

/* A share [part0, part1) of n records, rounded alike at both ends: parts that meet leave no record
 * out and take none twice. */
void fv__records_part(const fv_records *from, int64_t n, int64_t *first, int64_t *last)
{
    *first = (int64_t)(from->part[0] * (double)n + 0.5);
    *last = from->part[1] > 0 ? (int64_t)(from->part[1] * (double)n + 0.5) : n;
}

/* Lines of a file that holds a record a line, `header` lines in front aside. */
static void lines_wanted(const fv__reading *r, const fv_textfile *t, bool header, int64_t *first,
                         int64_t *last)
{
    int64_t n = fv_textfile_count(t) - header;
    fv__records_part(r->from, n > 0 ? n : 0, first, last);
    *first += header;
    *last += header;
}

/* ---- formats ---- */

static bool enough(const fv__reading *r)
{
    return r->from->most && r->report->kept >= r->from->most;
}

static fv__span line_of(const fv_textfile *t, int64_t i)
{
    fv__span s;
    s.s = fv_textfile_line(t, i, &s.n);
    return s;
}

/* A text a line; the second text of a record in the same line of the other file. */
static fv_status read_lines(fv__reading *r, const fv_textfile *a, const fv_textfile *b)
{
    if (b && fv_textfile_count(a) != fv_textfile_count(b))
        return fv_fail(r->e, FV_EFORMAT, "%s has %lld lines and %s has %lld: they must be parallel",
                       r->from->file, (long long)fv_textfile_count(a), r->from->beside,
                       (long long)fv_textfile_count(b));
    fv_status st = FV_OK;
    int64_t i, last;
    for (lines_wanted(r, a, false, &i, &last); !st && i < last && !enough(r); i++)
        st = give(r, line_of(a, i), b ? line_of(b, i) : (fv__span){"", 0}, i + 1);
    return st;
}

/* "LABEL the text": the first word is the second text. */
static fv_status read_words(fv__reading *r, const fv_textfile *t)
{
    fv_status st = FV_OK;
    int64_t i, last;
    for (lines_wanted(r, t, false, &i, &last); !st && i < last && !enough(r); i++) {
        fv__span line = line_of(t, i);
        const char *gap = memchr(line.s, ' ', line.n), *tab = memchr(line.s, '\t', line.n);
        if (!gap || (tab && tab < gap)) gap = tab;
        if (!gap)
            return fv_fail(r->e, FV_EFORMAT, "%s:%lld: expected a word, a blank and a text",
                           r->from->file, (long long)i + 1);
        size_t n = (size_t)(gap - line.s);
        st = give(r, (fv__span){gap + 1, line.n - n - 1}, (fv__span){line.s, n}, i + 1);
    }
    return st;
}

/* The texts of a list, joined, where a list may stand. */
static fv_status join(fv__reading *r, const fv__jnode *list, fv_buf *b, fv__span *out,
                      int64_t number, const char *field)
{
    b->env = r->env;
    b->len = 0;
    for (int i = 0; i < list->n; i++) {
        const fv__jnode *v = list->kid[i];
        if (!fv__jnode_is(v, FV__J_TEXT))
            return fv_fail(r->e, FV_EFORMAT, "%s:%lld: %s[%d] is no text", r->from->file,
                           (long long)number, field, i);
        if (i) fv__buf_str(b, FV_NEXT_TEXT);
        fv__buf_str(b, v->text);
    }
    if (b->failed) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->from->file);
    *out = (fv__span){b->data ? b->data : "", b->len};
    return FV_OK;
}

/* Fields must be strings: a number or a list is more likely a wrong field than a text. */
static fv_status read_json_field(fv__reading *r, const fv__jnode *root, int i, fv__span *out,
                                 int64_t number)
{
    const char *field = r->from->field[i];
    const fv__jnode *v = fv__json_field(root, field);
    bool list = fv__jnode_is(v, FV__J_ARRAY);
    if (fv__jnode_is(v, FV__J_TEXT)) {
        *out = (fv__span){v->text, strlen(v->text)};
        return FV_OK;
    }
    if (list && i == 1 && r->from->lists) return join(r, v, &r->made[i], out, number, field);
    if (list)
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: \"%s\" is a list; \"%s[0]\" is its first text",
                       r->from->file, (long long)number, field, field);
    return fv_fail(r->e, FV_EFORMAT, "%s:%lld: no text called \"%s\"", r->from->file,
                   (long long)number, field);
}

/* JSON Lines: each line is parsed by itself and freed, so memory does not grow with the file. */
static fv_status read_json_line(fv__reading *r, fv__span line, int64_t number)
{
    fv__jtree tree = {.pool = {.env = r->env}};
    fv_err why = {0};
    fv_status st = fv__jtree_parse(&tree, line.s, line.n, "the line", JSON_DEPTH, &why);
    if (st)
        st = fv_fail(r->e, st, "%s:%lld: not JSON: %s", r->from->file, (long long)number, why.text);
    fv__span text[2] = {{"", 0}, {"", 0}};
    for (int i = 0; !st && i < r->n_texts; i++)
        st = read_json_field(r, tree.root, i, &text[i], number);
    if (!st) st = give(r, text[0], text[1], number);
    fv__jtree_free(&tree);
    return st;
}

/* Unlike columns, fields have no order: they must be named. */
static fv_status read_json(fv__reading *r, const fv_textfile *t)
{
    fv_status st = FV_OK;
    for (int i = 0; i < r->n_texts; i++)
        if (!r->from->field[i] || !*r->from->field[i])
            return fv_fail(r->e, FV_EARG, "%s: JSONL needs the names of its fields", r->from->file);
    int64_t i, last;
    for (lines_wanted(r, t, false, &i, &last); !st && i < last && !enough(r); i++)
        st = read_json_line(r, line_of(t, i), i + 1);
    return st;
}

/* ---- tables ---- */

/* The row that begins at line i; *next: where the next one does. */
static fv_status row_at(const fv__reading *r, const fv_textfile *t, char separator, int64_t i,
                        fv__span *row, int64_t *next)
{
    *next = i + 1;
    *row = separator == ',' ? fv__csv_row(t, i, next) : line_of(t, i);
    if (*next > i) return FV_OK;
    return fv_fail(r->e, FV_EFORMAT, "%s:%lld: a quote is never closed", r->from->file,
                   (long long)i + 1);
}

/* A row of CSV may span lines; one of a tab-separated table never does. */
static fv_status count_rows(const fv__reading *r, const fv_textfile *t, char separator, int64_t *n)
{
    fv_status st = FV_OK;
    int64_t lines = fv_textfile_count(t), next;
    fv__span row;
    *n = separator == ',' ? 0 : lines;
    for (int64_t i = 0; separator == ',' && !st && i < lines; i = next, ++*n)
        st = row_at(r, t, separator, i, &row, &next);
    return st;
}

/* The column of that name in the first line, or -1. */
static int column_called(const fv__reading *r, const char *name, const fv__span *cell, int n)
{
    fv_buf b = {.env = r->env};
    int found = -1;
    for (int i = 0; i < n && found < 0; i++) {
        fv__span x = fv__field_unquoted(cell[i], &b);
        if (x.n == strlen(name) && !memcmp(x.s, name, x.n)) found = i;
    }
    fv__buf_free(&b);
    return found;
}

/* Which columns hold the texts, from 0.  *header: the first line only names them. */
static fv_status find_columns(const fv__reading *r, fv__span first, char separator, int column[2],
                              bool *header)
{
    fv__span cell[FV__MAX_COLUMNS];
    int n = fv__fields_split(first, separator, cell);
    *header = r->from->header;
    for (int i = 0; i < r->n_texts; i++) {
        const char *name = r->from->field[i];
        column[i] = i;
        if (!name || !*name) continue;
        char *end;
        long number = strtol(name, &end, 10);
        if (!*end && number >= 1 && number <= FV__MAX_COLUMNS) {
            column[i] = (int)number - 1;
            continue;
        }
        *header = true;
        column[i] = column_called(r, name, cell, n);
        if (column[i] < 0)
            return fv_fail(r->e, FV_EFORMAT, "%s:1: no column is called \"%s\"", r->from->file,
                           name);
    }
    return FV_OK;
}

/* Without named fields a table must have exactly as many columns as there are texts: a column too
 * many is more likely a mistake than a column to ignore. */
static fv_status give_row(fv__reading *r, fv__span row, char separator, const int column[2],
                          int64_t line)
{
    fv__span cell[FV__MAX_COLUMNS], text[2] = {{"", 0}, {"", 0}};
    bool chosen = r->from->field[0] && *r->from->field[0];
    int n = fv__fields_split(row, separator, cell);
    int most = r->n_texts > 1 && column[1] > column[0] ? column[1] : column[0];
    if (n <= most || (!chosen && n != r->n_texts))
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: %d fields, expected %s%d", r->from->file,
                       (long long)line, n, chosen ? "at least " : "", most + 1);
    for (int i = 0; i < r->n_texts; i++) {
        text[i] = cell[column[i]];
        r->made[i].env = r->env;
        if (separator == ',') text[i] = fv__field_unquoted(text[i], &r->made[i]);
        if (r->made[i].failed) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->from->file);
    }
    return give(r, text[0], text[1], line);
}

/* The share of a split is taken of the rows without the header, which has the number -1. */
static fv_status read_table(fv__reading *r, const fv_textfile *t, char separator)
{
    int column[2] = {0, 1};
    bool header = false;
    fv__span row = {"", 0};
    int64_t n, first, last, lines = fv_textfile_count(t), next;
    fv_status st = count_rows(r, t, separator, &n);
    if (!st && lines) st = row_at(r, t, separator, 0, &row, &next);
    if (!st) st = find_columns(r, row, separator, column, &header);
    if (st) return st;
    fv__records_part(r->from, n > header ? n - header : 0, &first, &last);
    int64_t number = -(int64_t)header; /* of the row, the header not counted */
    for (int64_t i = 0; !st && i < lines && number < last && !enough(r); i = next, number++) {
        st = row_at(r, t, separator, i, &row, &next);
        if (!st && number >= first) st = give_row(r, row, separator, column, i + 1);
    }
    return st;
}

/* ---- FASTA ---- */

static bool is_header(fv__span line) { return line.n && line.s[0] == '>'; }

/* Sequences go over lines: each is given where the next begins, with the line of its header. */
static fv_status read_fasta(fv__reading *r, const fv_textfile *t)
{
    fv_status st = FV_OK;
    int64_t n = 0, first, last, lines = fv_textfile_count(t), number = -1, line = 1;
    fv__fasta state = {0};
    if (r->n_texts != 1)
        return fv_fail(r->e, FV_EARG, "%s: FASTA holds one text each, and two are wanted",
                       r->from->file);
    for (int64_t i = 0; i < lines; i++) n += is_header(line_of(t, i));
    if (lines && !n)
        return fv_fail(r->e, FV_EFORMAT, "%s: no line begins with >, so it is not FASTA",
                       r->from->file);
    fv__records_part(r->from, n, &first, &last);
    r->made[0].env = r->env;
    for (int64_t i = 0; !st && i <= lines && number < last && !enough(r); i++) {
        bool next = i == lines || is_header(line_of(t, i));
        if (r->made[0].failed) st = fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->from->file);
        if (!st && next && number >= first)
            st = give(r, (fv__span){r->made[0].len ? r->made[0].data : "", r->made[0].len},
                      (fv__span){"", 0}, line);
        if (next) {
            r->made[0].len = 0;
            state = (fv__fasta){0};
            line = i + 1;
            number++;
        } else {
            fv__span s = line_of(t, i);
            fv__fasta_add(&state, &r->made[0], s.s, s.n);
            state.inside = false;
        }
    }
    return st;
}

static bool ends(const char *s, size_t n, const char *with)
{
    size_t m = strlen(with);
    return n >= m && !memcmp(s + n - m, with, m);
}

/* By the name of the file, .gz aside, where the format is not given. */
fv_format fv__records_format(const fv_records *from)
{
    if (from->format != FV_FORMAT_AUTO) return from->format;
    size_t n = strlen(from->file);
    if (ends(from->file, n, ".gz")) n -= 3;
    if (from->beside) return FV_FORMAT_LINES;
    if (ends(from->file, n, ".tsv")) return FV_FORMAT_TSV;
    if (ends(from->file, n, ".csv")) return FV_FORMAT_CSV;
    if (ends(from->file, n, ".label")) return FV_FORMAT_WORD;
    if (fv__names_fasta(from->file)) return FV_FORMAT_FASTA;
    return ends(from->file, n, ".jsonl") || ends(from->file, n, ".ndjson") ? FV_FORMAT_JSONL
                                                                           : FV_FORMAT_LINES;
}

/* Formats differ in how a record is found; what a record must be is the same for all
 * (fv__records_give). */
fv_status fv__records_read(fv__reading *r)
{
    fv_textfile *a = NULL, *b = NULL;
    fv_format format = fv__records_format(r->from);
    fv_status st = FV_OK;
    if (format == FV_FORMAT_LINES && r->n_texts == 2 && !r->from->beside)
        return fv_fail(
            r->e, FV_EARG,
            "%s: lines hold one text each, and two are wanted: name a second file, or the format",
            r->from->file);
    if (format != FV_FORMAT_LINES && r->from->beside)
        return fv_fail(r->e, FV_EARG, "%s: only lines can stand beside another file",
                       r->from->file);
    st = fv_textfile_open(&a, r->env, r->from->file, r->e);
    if (!st && r->from->beside) st = fv_textfile_open(&b, r->env, r->from->beside, r->e);
    if (!st)
        st = format == FV_FORMAT_TSV     ? read_table(r, a, '\t')
             : format == FV_FORMAT_CSV   ? read_table(r, a, ',')
             : format == FV_FORMAT_JSONL ? read_json(r, a)
             : format == FV_FORMAT_WORD  ? read_words(r, a)
             : format == FV_FORMAT_FASTA ? read_fasta(r, a)
                                         : read_lines(r, a, b);
    fv_textfile_close(a);
    fv_textfile_close(b);
    for (int i = 0; i < FV__TEXTS; i++) fv__buf_free(&r->utf8[i]), fv__buf_free(&r->made[i]);
    return st;
}
