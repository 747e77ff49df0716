/* fuzz_multipart.c - libFuzzer target: a type and a body as the server gets them; make
 * fuzz-multipart.
 *
 * The first line is the Content-Type, the rest the body of an upload.  A part that is found lies
 * within the body.  (Request lines and headers are libmicrohttpd's, covered by
 * tests/server/test_http_malformed.c; JSON bodies by fuzz_json.) */
#include <stdlib.h>
#include <string.h>

#include "server/media.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = memchr(data, '\n', size);
    size_t n = line ? (size_t)(line - data) : 0;
    char *type = line ? malloc(n + 1) : NULL, *copy = line ? malloc(size - n) : NULL;
    if (!type || !copy) {
        free(type), free(copy);
        return 0;
    }
    memcpy(type, data, n);
    type[n] = 0;
    sv_text body = {.s = copy, .n = size - n - 1};
    memcpy(copy, line + 1, body.n); /* of its own, so that a byte behind it is a fault */
    sv_part part;
    if (sv_multipart(type, &body, "file", &part) &&
        (part.data < copy || part.n > body.n || part.data + part.n > copy + body.n))
        abort();
    free(type), free(copy);
    return 0;
}
