/* pages.h - memory whose pages can be seen at several addresses, copied when one of them writes. */
#ifndef FV_PAGES_H
#define FV_PAGES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fv__pages {
    int fd;     /* of the anonymous file that holds them */
    char *data; /* all of them, to be written through; NULL: not open */
    size_t bytes;
} fv__pages;

size_t fv__page_size(void);

/* Addresses for `bytes` (whole pages); memory is taken by fv__pages_take.  False: the system has no
 * such memory, or none is left. */
bool fv__pages_open(fv__pages *p, size_t bytes);
void fv__pages_close(fv__pages *p); /* what is shown elsewhere stays */

/* Memory for a range of whole pages, which is kept until the pages are closed.  False: none is
 * left; without this call a write would end the process instead. */
bool fv__pages_take(fv__pages *p, size_t from, size_t bytes);

/* Shows a range at `at`, the beginning of a page of the caller's own memory, whose contents are
 * lost.  What is written at `at` is seen there alone; the range itself may not be written while it
 * is shown.  False: nothing has changed. */
bool fv__pages_show(const fv__pages *p, size_t from, size_t bytes, void *at);
/* Plain memory at `at` again, of undefined contents. */
void fv__pages_hide(void *at, size_t bytes);

#endif
