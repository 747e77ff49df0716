/* fasta.c - FASTA as lines: every sequence on one, without its header.
 *
 *     >name and description
 *     MKTAYIAKQR
 *     QISFVKSHFS
 *
 * becomes MKTAYIAKQRQISFVKSHFS.  Bytes come in pieces of any size, so that a pipe or a gzip file
 * need not be read as a whole: what a byte is depends on the line it stands in alone. */
#include "data/records.h"

/* By name, since FASTA has no signature: a plain text may begin with '>' too. */
bool fv__names_fasta(const char *path)
{
    static const char *const endings[] = {".fasta", ".fa", ".faa", NULL};
    size_t n = strlen(path);
    if (n > 3 && !strcmp(path + n - 3, ".gz")) n -= 3;
    for (int i = 0; endings[i]; i++) {
        size_t k = strlen(endings[i]);
        if (n > k && !memcmp(path + n - k, endings[i], k)) return true;
    }
    return false;
}

/* A line that begins with ; is a comment, as in the first files of the format. */
void fv__fasta_add(fv__fasta *f, fv_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool first = !f->inside;
        f->inside = c != '\n';
        if (first) f->skip = c == '>' || c == ';';
        if (first && c == '>' && f->any) fv__buf_add(out, "\n", 1);
        if (first && c == '>') f->any = true;
        if (f->skip || strchr(" \t\r\n", c)) continue;
        f->any = true;
        fv__buf_add(out, &c, 1);
    }
}
