/* store.h - models on disk: safetensors, configuration, model directories and checkpoints.
 *
 * Everything here reads files it does not trust: a file is checked as a whole before any of it is
 * used, sizes are computed without overflow, and every refusal names file, position and reason.
 * Everything written is written beside its name, synced and renamed: a crash leaves the old file or
 * the new one. */
#ifndef FOVEA_STORE_H
#define FOVEA_STORE_H

#include "fovea/tensor.h"

/* ---- safetensors: named arrays in one file, or in several with an index ---- */

typedef struct fv_st fv_st;

typedef struct fv_st_info {
    const char *name;       /* lives as long as the fv_st */
    const char *dtype_name; /* as stored: "f32", "bf16", "i64", ... */
    fv_shape shape;
    int64_t count;    /* elements */
    const void *data; /* as stored: little endian, of any alignment */
    uint64_t bytes;
} fv_st_info;

/* Maps x.safetensors, x.safetensors.index.json with its shards, or a directory that holds
 * model.safetensors or its index, and checks every rule of the format.  The fv_st may be shared by
 * threads. */
FV_API fv_status fv_st_open(fv_st **out, const fv_env *env, const char *path, fv_err *e);
FV_API void fv_st_close(fv_st *s); /* NULL is allowed */

FV_API int fv_st_count(const fv_st *s);
FV_API fv_st_info fv_st_at(const fv_st *s, int i); /* by name, shard after shard; i < fv_st_count */
/* The error names the nearest that is there. */
FV_API fv_status fv_st_find(const fv_st *s, const char *name, fv_st_info *out, fv_err *e);
/* an entry of __metadata__, or NULL */
FV_API const char *fv_st_meta(const fv_st *s, const char *key);

/* Converts to f32, f64, bf16, f16, i32 or u8; n must be t->count.  A finite number beyond the
 * range, and an integer that would be rounded, are refused (FV_ENUMERIC); so are floats as i32 or
 * u8 and dtypes that are not read (FV_EDTYPE). */
FV_API fv_status fv_st_read(const fv_st *s, const fv_st_info *t, void *out, fv_dtype to, int64_t n,
                            fv_err *e);

/* One array to write: name, shape, how it is stored, and where its numbers come from. */
typedef struct fv_st_item {
    const char *name;
    fv_dtype dtype; /* in the file: f32, f64, bf16, f16, i32 or u8 */
    fv_shape shape;
    fv_dtype from;    /* of data, or of what fetch gives */
    const void *data; /* host memory; NULL: fetch is asked */
} fv_st_item;

typedef struct fv_st_save_opt {
    /* split into model-00001-of-0000N.safetensors and an index beyond this; 0: never */
    uint64_t shard_bytes;
    const char *const (*meta)[2]; /* pairs ending in NULL; default {"format", "pt"} */
    /* Elements [at, at+n) of item, as item->from.  Called in order, for at most 65536 at a time. */
    fv_status (*fetch)(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e);
    void *user;
} fv_st_save_opt;

/* Writes path (x.safetensors).  The bytes depend on the items alone, not on their order, and are
 * those the reference implementation writes. */
FV_API fv_status fv_st_save(const fv_env *env, const char *path, const fv_st_item *items, int n,
                            fv_st_save_opt opt, fv_err *e);

/* ---- parameters ---- */

typedef struct fv_tie {
    const char *name, *same_as;
} fv_tie;

typedef struct fv_load_opt {
    /* names may have it in the file and not here, or the other way round: "bert." */
    const char *prefix;
    /* ending in NULL: a missing name is read from the other; a surplus one must equal it */
    const fv_tie *ties;
    /* likewise: a name that ends so may end in the other in the file: ".weight", ".gamma" */
    const fv_tie *endings;
    /* names in the file that may stay unread; '*' at an end stands for anything */
    const char *const *ignore;
    const char *const *fresh; /* parameters that may be missing and keep their values, likewise */
    /* Told of every such name: a parameter that keeps its value, else one in the file that stays
     * unread.  NULL: nobody. */
    void (*on_skipped)(void *user, const char *name, bool is_fresh);
    void *user;
    fv_dtype rows; /* fv_params_map: matrices may be in the file as rows of this quantised dtype */
    /* fv_params_map to f32: matrices stay bf16, or f16, where the file has all of them so */
    bool half;
} fv_load_opt;

/* Fills every parameter from path (as fv_st_open).  Names that are missing, unexpected or of
 * another shape are all found before anything is changed, and listed: the first few and the
 * count. */
FV_API fv_status fv_params_load(fv_params *p, const fv_env *env, const char *path, fv_load_opt opt,
                                fv_err *e);
/* Instead of fv_params_alloc and fv_params_load, for parameters that will not change: those the
 * file holds as dtype are used where it is mapped, on a device whose memory is the host's, and the
 * file stays open as long as p. */
FV_API fv_status fv_params_map(fv_params *p, fv_device *d, fv_dtype dtype, const char *path,
                               fv_load_opt opt, fv_err *e);
/* Writes them all, as dtype, in files of at most shard_bytes (0: one file). */
FV_API fv_status fv_params_save(fv_params *p, const fv_env *env, const char *path, fv_dtype dtype,
                                uint64_t shard_bytes, fv_err *e);

/* ---- JSON documents: config.json and its like ---- */

/* an object, strictly parsed: no duplicate keys, at most 32 deep and 8 MiB */
typedef struct fv_json fv_json;

FV_API fv_status fv_json_open(fv_json **out, const fv_env *env, const char *path, fv_err *e);
FV_API fv_status fv_json_parse(fv_json **out, const fv_env *env, const char *text, const char *name,
                               fv_err *e); /* name: for messages */
FV_API void fv_json_close(fv_json *j);     /* NULL is allowed */

/* Places are keys and indices joined by dots: "architectures.0", "rope_scaling.type"; "" is the
 * whole. */
FV_API bool fv_json_has(const fv_json *j, const char *at); /* something other than null */
/* NULL if no string stands there */
FV_API const char *fv_json_text(const fv_json *j, const char *at);
/* false, *out as it was, if no number does */
FV_API bool fv_json_number(const fv_json *j, const char *at, double *out);
FV_API bool fv_json_bool(const fv_json *j, const char *at, bool *out);
/* members of an object or array, else -1 */
FV_API int fv_json_count(const fv_json *j, const char *at);
/* of the i-th member; NULL past the end */
FV_API const char *fv_json_key(const fv_json *j, const char *at, int i);
/* Puts the value written in JSON at a key of the object; what stands around it stays. */
FV_API fv_status fv_json_set(fv_json *j, const char *key, const char *value, fv_err *e);
FV_API fv_status fv_json_save(const fv_json *j, const char *path, fv_err *e);

/* ---- field tables: one table reads configurations and recipes, writes them back, and prints the
 * help ---- */

typedef enum fv_field_type {
    FV_END = 0,
    FV_FIELD_INT,
    FV_FIELD_FLOAT,
    FV_FIELD_BOOL,
    FV_FIELD_TEXT,
    FV_FIELD_CHOICE,
    FV_FIELD_WORDS
} fv_field_type;

typedef struct fv_field {
    const char *name; /* the key; "rope_scaling.factor" is a member of the object at rope_scaling */
    fv_field_type type;
    /* of the member: int or int64_t; float or double; bool; char[]; an enum; char[] */
    size_t offset, size;
    double least, normal, greatest;
    const char *text; /* what a text is by default */
    /* of a choice, ending in NULL; normal is the index of the default */
    const char *const *choices;
    const char *help;
    unsigned flags; /* of fv_field_flag; stands behind help, where the macros put it */
} fv_field;

typedef enum fv_field_flag {
    FV_ON_RESUME = 1 /* a key of a recipe that a resumed run may change */
} fv_field_flag;

/* FV_INT(gpt, n_layer, 1, 12, 96, "number of blocks"): member n_layer of struct type gpt.  A table
 * ends in {0}.  The _KEY forms take a key that differs from the member's name.  Flags may stand
 * behind the help: FV_INT(opt, keep, 1, 3, 9, "checkpoints kept", FV_ON_RESUME). */
#define FV_INT(type_, member_, least_, normal_, greatest_, ...)                                    \
    FV_INT_KEY(#member_, type_, member_, least_, normal_, greatest_, __VA_ARGS__)
#define FV_FLOAT(type_, member_, least_, normal_, greatest_, ...)                                  \
    FV_FLOAT_KEY(#member_, type_, member_, least_, normal_, greatest_, __VA_ARGS__)
#define FV_BOOL(type_, member_, normal_, ...)                                                      \
    FV_BOOL_KEY(#member_, type_, member_, normal_, __VA_ARGS__)
#define FV_TEXT(type_, member_, text_, ...)                                                        \
    FV_TEXT_KEY(#member_, type_, member_, text_, __VA_ARGS__)
/* A list of words, which the member holds with blanks between them; none by default. */
#define FV_WORDS(type_, member_, ...) FV_WORDS_KEY(#member_, type_, member_, __VA_ARGS__)
#define FV_CHOICE(type_, member_, normal_, choices_, ...)                                          \
    FV_CHOICE_KEY(#member_, type_, member_, normal_, choices_, __VA_ARGS__)
#define FV_INT_KEY(key_, type_, member_, least_, normal_, greatest_, ...)                          \
    FV_FIELD(key_, FV_FIELD_INT, type_, member_, .least = least_, .normal = normal_,               \
             .greatest = greatest_, .help = __VA_ARGS__)
#define FV_FLOAT_KEY(key_, type_, member_, least_, normal_, greatest_, ...)                        \
    FV_FIELD(key_, FV_FIELD_FLOAT, type_, member_, .least = least_, .normal = normal_,             \
             .greatest = greatest_, .help = __VA_ARGS__)
#define FV_BOOL_KEY(key_, type_, member_, normal_, ...)                                            \
    FV_FIELD(key_, FV_FIELD_BOOL, type_, member_, .normal = normal_, .greatest = 1,                \
             .help = __VA_ARGS__)
#define FV_TEXT_KEY(key_, type_, member_, text_, ...)                                              \
    FV_FIELD(key_, FV_FIELD_TEXT, type_, member_, .text = text_, .help = __VA_ARGS__)
#define FV_WORDS_KEY(key_, type_, member_, ...)                                                    \
    FV_FIELD(key_, FV_FIELD_WORDS, type_, member_, .help = __VA_ARGS__)
#define FV_CHOICE_KEY(key_, type_, member_, normal_, choices_, ...)                                \
    FV_FIELD(key_, FV_FIELD_CHOICE, type_, member_, .normal = normal_, .choices = choices_,        \
             .help = __VA_ARGS__)
#define FV_FIELD(key_, kind_, type_, member_, ...)                                                 \
    {                                                                                              \
        .name = key_, .type = kind_, .offset = offsetof(type_, member_),                           \
        .size = sizeof(((type_ *)0)->member_), __VA_ARGS__                                         \
    }

/* What to do with a key that is in no table.  It is harmless if a rule of that name has its value:
 * JSON text; "=other", the value that the key `other` has; NULL, any value (several rules may name
 * one key).  A key that is named by no rule, but by a pattern that ends in '*', is ignored.
 * Everything else is an error, as it may change the result.  null is always harmless. */
typedef struct fv_key_rule {
    const char *key, *value;
} fv_key_rule;
FV_DATA const fv_key_rule fv_keys_common[]; /* keys every Hugging Face configuration may have */

FV_API void fv_fields_default(void *obj, const fv_field *table);
/* Reads the object at path `at` of j into *obj, defaults first.  rules: NULL, or lists of rules,
 * ending in NULL. */
FV_API fv_status fv_fields_read(void *obj, const fv_field *table, const fv_json *j, const char *at,
                                const fv_key_rule *const *rules, fv_err *e);
/* Calls each(user, key) for the keys of that object which fv_fields_read ignores: those that only a
 * pattern matches. */
FV_API void fv_fields_ignored(const fv_field *table, const fv_json *j, const char *at,
                              const fv_key_rule *const *rules,
                              void (*each)(void *user, const char *key), void *user);
/* Puts every field into j, changing only what differs.  A key that is absent stays so where the
 * field's default is a value that no file can hold (out of its range, the empty choice), which
 * stands for "not given". */
FV_API fv_status fv_fields_write(const void *obj, const fv_field *table, fv_json *j, fv_err *e);
/* One field from text, as in key=value. */
FV_API fv_status fv_fields_set(void *obj, const fv_field *table, const char *key, const char *value,
                               fv_err *e);
/* Writes the value as fv_fields_set would read it; returns its length, as snprintf, or -1 for an
 * unknown key. */
FV_API int fv_fields_get(const void *obj, const fv_field *table, const char *key, char *out,
                         size_t n);
/* One line for each field: key, range, default, help. */
FV_API void fv_fields_help(const fv_field *table, void (*line)(void *user, const char *text),
                           void *user);

/* ---- model directories ---- */

typedef struct fv_dir fv_dir;

/* A directory with a config.json (and perhaps generation_config.json), as Hugging Face lays them
 * out.  Where nothing is at `path` and it reads as the name of a model ("gpt2", "org/name",
 * "org/name@revision"), it is looked up in the cache that hf download fills; so do fv_st_open and
 * fv_tok_open. */
FV_API fv_status fv_dir_open(fv_dir **out, const fv_env *env, const char *path, fv_err *e);
FV_API void fv_dir_close(fv_dir *d);             /* NULL is allowed */
FV_API const char *fv_dir_path(const fv_dir *d); /* where it was found */
FV_API const fv_json *fv_dir_config(const fv_dir *d);
FV_API const fv_json *fv_dir_generation(const fv_dir *d); /* NULL if there is none */
/* Fills out with the path of a file of the directory ("vocab.txt"); false if it is not there. */
FV_API bool fv_dir_file(const fv_dir *d, const char *name, char *out, size_t n);
/* The weights, one file or shards.  Pickles (pytorch_model.bin) are refused, saying what to do. */
FV_API fv_status fv_dir_weights(const fv_dir *d, fv_st **out, fv_err *e);

/* ---- checkpoints: root/step-N, complete or not there ----
 *
 * A checkpoint is written as step-N.tmp; its MANIFEST.json lists every file with size and hash.
 * Only when all of it is on the disk is it renamed, then root/last is replaced, then older ones are
 * removed.  Without a manifest that verifies it does not exist. */

typedef struct fv_ckpt fv_ckpt;

/* config: any text that must be the same to resume (NULL: none); its hash is kept. */
FV_API fv_status fv_ckpt_begin(fv_ckpt **out, const fv_env *env, const char *root, int64_t step,
                               const char *config, fv_err *e);
FV_API const char *fv_ckpt_dir(const fv_ckpt *c); /* write files in here, then add them */
FV_API fv_status fv_ckpt_add_file(fv_ckpt *c, const char *name, fv_err *e);
/* writes and adds */
FV_API fv_status fv_ckpt_add(fv_ckpt *c, const char *name, const void *data, size_t n, fv_err *e);
/* Makes it exist and keeps the newest `keep` (0: all).  c is gone afterwards, whatever comes
 * back. */
FV_API fv_status fv_ckpt_commit(fv_ckpt *c, int keep, fv_err *e);
FV_API void fv_ckpt_abandon(fv_ckpt *c); /* NULL is allowed */

typedef struct fv_ckpt_found {
    int64_t step;
    char dir[1024];
} fv_ckpt_found; /* step -1: none */
/* The newest checkpoint under root whose files all verify.  Others that it meets on the way are
 * told to broken (or NULL) with the reason.  None at all is no error. */
FV_API fv_status fv_ckpt_find(fv_ckpt_found *out, const fv_env *env, const char *root,
                              const char *config,
                              void (*broken)(void *user, const char *dir, const char *why),
                              void *user, fv_err *e);

#endif
