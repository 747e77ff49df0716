/* steps.c - the steps of an image processor, from and to preprocessor_config.json.
 *
 * What a file leaves out is what the class it names would take, so that files of any age read the
 * same here and in transformers. */
#include "media/steps.h"

#include <stdio.h>

#include "base/base.h"

#define IMAGENET_MEAN                                                                              \
    {                                                                                              \
        0.485, 0.456, 0.406                                                                        \
    }
#define IMAGENET_STD                                                                               \
    {                                                                                              \
        0.229, 0.224, 0.225                                                                        \
    }
#define CLIP_MEAN                                                                                  \
    {                                                                                              \
        0.48145466, 0.4578275, 0.40821073                                                          \
    }
#define CLIP_STD                                                                                   \
    {                                                                                              \
        0.26862954, 0.26130258, 0.27577711                                                         \
    }
#define HALVES                                                                                     \
    {                                                                                              \
        0.5, 0.5, 0.5                                                                              \
    }

/* A class of transformers: the beginning of its name, its defaults, and whether one number as size
 * means a square (else the shorter edge). */
typedef struct kind {
    const char *name;
    bool square;
    fv_image_steps steps;
} kind;

#define STEPS(...)                                                                                 \
    {                                                                                              \
        .channels = 3, .resize = true, .rescale = true, .normalise = true, .factor = 1 / 255.,     \
        __VA_ARGS__                                                                                \
    }

static const kind kinds[] = {
    {"DeiT", true,
     STEPS(.height = 256, .width = 256, .crop_height = 224, .crop_width = 224,
           .resample = FV_BICUBIC, .mean = IMAGENET_MEAN, .deviation = IMAGENET_STD)},
    {"CLIP", false,
     STEPS(.shortest = 224, .crop_height = 224, .crop_width = 224, .resample = FV_BICUBIC,
           .mean = CLIP_MEAN, .deviation = CLIP_STD)},
    {"Bit", false,
     STEPS(.shortest = 224, .crop_height = 224, .crop_width = 224, .resample = FV_BICUBIC,
           .mean = CLIP_MEAN, .deviation = CLIP_STD)},
    {"Siglip", true,
     STEPS(.height = 224, .width = 224, .resample = FV_BICUBIC, .mean = HALVES,
           .deviation = HALVES)},
    {"Segformer", true,
     STEPS(.height = 512, .width = 512, .resample = FV_BILINEAR, .mean = IMAGENET_MEAN,
           .deviation = IMAGENET_STD)},
    {"Yolos", false,
     STEPS(.shortest = 800, .longest = 1333, .multiple = 16, .pad = true, .resample = FV_BILINEAR,
           .mean = IMAGENET_MEAN, .deviation = IMAGENET_STD)},
    /* ViT, and whatever is not known: files of today name all they need */
    {"", true,
     STEPS(.height = 224, .width = 224, .resample = FV_BILINEAR, .mean = HALVES,
           .deviation = HALVES)},
};

typedef struct reading {
    const fv_json *j;
    const char *at, *path;
    fv_err *e;
} reading;

/* A place under the object that holds the steps; valid until the next call. */
static const char *place(const reading *r, const char *key, char out[128])
{
    snprintf(out, 128, "%s%s%s", r->at, *r->at ? "." : "", key);
    return out;
}

static bool number(const reading *r, const char *key, double *out)
{
    char at[128];
    return fv_json_number(r->j, place(r, key, at), out);
}

static void flag(const reading *r, const char *key, bool *out)
{
    char at[128];
    fv_json_bool(r->j, place(r, key, at), out);
}

static bool has(const reading *r, const char *key)
{
    char at[128];
    return fv_json_has(r->j, place(r, key, at));
}

static fv_status refuse(const reading *r, const char *key, const char *expected)
{
    return fv_fail(r->e, FV_EFORMAT, "%s: %s: expected %s", r->path, key, expected);
}

/* A number of pixels, or 0 where the key is not there. */
static fv_status edge(const reading *r, const char *key, int *out)
{
    double x = 0;
    *out = 0;
    if (!number(r, key, &x)) return FV_OK;
    if (!(x >= 1 && x <= 1 << 16) || x != (int)x) return refuse(r, key, "pixels, 1 to 65536");
    *out = (int)x;
    return FV_OK;
}

/* "size": one number, {height, width}, or {shortest_edge, longest_edge}; max_size is what
 * longest_edge was called. */
static fv_status read_size(const reading *r, fv_image_steps *s, bool square)
{
    int one, longest;
    if (!has(r, "size")) return FV_OK;
    fv_status st = edge(r, "size", &one);
    if (!st) st = edge(r, "max_size", &longest);
    if (!st && one) {
        s->height = s->width = square ? one : 0;
        s->shortest = square ? 0 : one;
        s->longest = longest ? longest : s->longest;
        return FV_OK;
    }
    if (!st) st = edge(r, "size.height", &s->height);
    if (!st) st = edge(r, "size.width", &s->width);
    if (!st) st = edge(r, "size.shortest_edge", &s->shortest);
    if (!st) st = edge(r, "size.longest_edge", &s->longest);
    if (!st && !s->shortest && !(s->height && s->width))
        st = refuse(r, "size", "a number, height and width, or shortest_edge");
    return st;
}

/* crop_size is one number, or height and width. */
static fv_status read_crop(const reading *r, fv_image_steps *s)
{
    bool crop = s->crop_height > 0;
    int one;
    flag(r, "do_center_crop", &crop);
    fv_status st = edge(r, "crop_size", &one);
    if (!st && one) s->crop_height = s->crop_width = one;
    if (!st && has(r, "crop_size.height")) st = edge(r, "crop_size.height", &s->crop_height);
    if (!st && has(r, "crop_size.width")) st = edge(r, "crop_size.width", &s->crop_width);
    if (!st && crop && !(s->crop_height && s->crop_width))
        st = refuse(r, "crop_size", "a number, or height and width");
    if (!crop) s->crop_height = s->crop_width = 0;
    return st;
}

/* Their number says how many channels the model reads. */
static fv_status read_channels(const reading *r, fv_image_steps *s)
{
    char at[128], key[32];
    int means = fv_json_count(r->j, place(r, "image_mean", at)),
        deviations = fv_json_count(r->j, place(r, "image_std", at));
    if (means < 0 && deviations < 0) return FV_OK;
    if (means != deviations || (means != 1 && means != 3))
        return refuse(r, "image_mean, image_std", "one number each, or three");
    s->channels = means;
    for (int i = 0; i < means; i++) {
        snprintf(key, sizeof key, "image_mean.%d", i);
        bool ok = number(r, key, &s->mean[i]);
        snprintf(key, sizeof key, "image_std.%d", i);
        if (!ok || !number(r, key, &s->deviation[i]) || !(s->deviation[i] > 0))
            return refuse(r, "image_mean, image_std", "numbers, those of image_std above 0");
    }
    return FV_OK;
}

/* Names of classes that are older end in FeatureExtractor. */
static const kind *kind_of(const reading *r)
{
    char at[128];
    const char *name = fv_json_text(r->j, place(r, "image_processor_type", at));
    const kind *k = kinds;
    if (!name) name = fv_json_text(r->j, place(r, "feature_extractor_type", at));
    while (*k->name && (!name || strncmp(name, k->name, strlen(k->name)))) k++;
    return k;
}

/* Defaults are those of the processor class that the file names, because transformers writes only
 * what differs from them; keys that are there overrule. */
fv_status fv__steps_read(fv_image_steps *out, const fv_json *j, const char *at, const char *path,
                         fv_err *e)
{
    const reading r = {j, at, path, e};
    const kind *k = kind_of(&r);
    double resample = k->steps.resample;
    *out = k->steps;
    flag(&r, "do_resize", &out->resize);
    flag(&r, "do_rescale", &out->rescale);
    flag(&r, "do_normalize", &out->normalise);
    flag(&r, "do_pad", &out->pad);
    number(&r, "rescale_factor", &out->factor);
    number(&r, "resample", &resample);
    if (!(resample >= FV_NEAREST && resample <= FV_HAMMING) || resample != (int)resample)
        return refuse(&r, "resample", "a filter of PIL, 0 to 5");
    out->resample = (fv_resample)resample;
    fv_status st = read_size(&r, out, k->square);
    if (!st) st = read_crop(&r, out);
    return st ? st : read_channels(&r, out);
}

/* ---- writing ---- */

static void put_list(fv_buf *b, const char *key, const double *x, int n)
{
    fv__buf_fmt(b, ", \"%s\": [", key);
    for (int i = 0; i < n; i++) fv__buf_fmt(b, "%s%.17g", i ? ", " : "", x[i]);
    fv__buf_str(b, "]");
}

static const char *word(bool x) { return x ? "true" : "false"; }

/* Written under the class of transformers whose steps these are, so that AutoImageProcessor opens
 * it. */
fv_status fv__steps_json(fv_json **out, const fv_env *env, const fv_image_steps *s, fv_err *e)
{
    fv_buf b = {.env = env};
    const char *class = "ViT";
    if (s->crop_height) class = "CLIP";
    if (s->multiple) class = "Yolos";
    fv__buf_fmt(&b, "{\"image_processor_type\": \"%sImageProcessor\", \"do_resize\": %s", class,
                word(s->resize));
    if (s->shortest && s->longest)
        fv__buf_fmt(&b, ", \"size\": {\"longest_edge\": %d, \"shortest_edge\": %d}", s->longest,
                    s->shortest);
    else if (s->shortest)
        fv__buf_fmt(&b, ", \"size\": {\"shortest_edge\": %d}", s->shortest);
    else if (s->height)
        fv__buf_fmt(&b, ", \"size\": {\"height\": %d, \"width\": %d}", s->height, s->width);
    fv__buf_fmt(&b, ", \"resample\": %d, \"do_center_crop\": %s", (int)s->resample,
                word(s->crop_height > 0));
    if (s->crop_height)
        fv__buf_fmt(&b, ", \"crop_size\": {\"height\": %d, \"width\": %d}", s->crop_height,
                    s->crop_width);
    fv__buf_fmt(&b, ", \"do_rescale\": %s, \"rescale_factor\": %.17g, \"do_normalize\": %s",
                word(s->rescale), s->factor, word(s->normalise));
    put_list(&b, "image_mean", s->mean, s->channels);
    put_list(&b, "image_std", s->deviation, s->channels);
    if (s->multiple) fv__buf_fmt(&b, ", \"do_pad\": %s", word(s->pad));
    fv__buf_fmt(&b, ", \"do_convert_rgb\": %s}", word(s->channels == 3));
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "preprocessor_config.json: out of memory")
                            : fv_json_parse(out, env, b.data, "preprocessor_config.json", e);
    fv__buf_free(&b);
    return st;
}
