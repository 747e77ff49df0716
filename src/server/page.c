/* page.c - the page at /: one file, embedded; its sources are in page/.
 *
 * It is compiled in, so that a server is one file and the page always fits its interface. */
#include "serve_page.h"

#include "core.h"

void sv_page(sv_request *r)
{
    sv_text t = {0};
    sv_add(&t, (const char *)serve_page, sizeof serve_page);
    sv_answer(r, 200, "text/html; charset=utf-8", &t);
}
