/* media.h - images and sounds that come with requests. */
#ifndef SV_MEDIA_H
#define SV_MEDIA_H

#include <sys/types.h>

#include "core.h"

enum { SV_MOST_FILES = 32 };

/* What came with a request, as files in a folder of its own. */
typedef struct sv_media {
    sv_engine *g;
    sv_request *r;
    char dir[256];
    char path[SV_MOST_FILES][300];
    fv_text text[SV_MOST_FILES];
    int n;
    json_t *results; /* one for each file */
    fv_err failed;   /* of the first file that failed */
} sv_media;

/* The task of a model that sees or hears: "classify", "detect", "caption" or "transcribe";
 * NULL: it reads text. */
const char *sv_media_task(const fv_model *m, fv_head_job job);

/* One field of a body of multipart/form-data: n bytes of the body; NULL: there is none. */
typedef struct sv_part {
    const char *data;
    size_t n;
    char file[128]; /* the name of a file, empty where it is none */
} sv_part;
/* multipart.c.  type: of the request's Content-Type.  False: the body is not of that form, or has
 * no such field. */
bool sv_multipart(const char *type, const sv_text *body, const char *name, sv_part *out);

/* What the model sees in the images of "input", each a data: URI. */
void sv_see_images(sv_engine *g, sv_request *r);
/* The image or sound of "input" as the one file of *m, and the token ids of what a model writes
 * about it, which the caller frees; false: refused.  sv_media_close in any case. */
bool sv_media_open(sv_media *m, sv_engine *g, sv_request *r);
bool sv_media_caption(sv_media *m, int32_t **ids, int64_t *n);
/* What is said in the sound that is the one file of *m, appended to `said`; false: refused. */
bool sv_media_transcript(sv_media *m, sv_text *said);
void sv_media_close(sv_media *m);
/* A conversation with a model that describes images: the captions of those in its messages. */
void sv_caption_chat(sv_engine *g, sv_request *r);

#endif
