/* config.h - configurations: JSON documents, the field tables that read them, model directories. */
#ifndef FOVEA_AUTHOR_CONFIG_H
#define FOVEA_AUTHOR_CONFIG_H

#include "fovea/fields.h"
#include "fovea/store.h"

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

/* ---- field tables ---- */

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
/* One integer or a list of them: "image_size": 224 or [480, 640].  text_: the default, "224". */
#define FV_INTS(type_, member_, least_, text_, greatest_, ...)                                     \
    FV_INTS_KEY(#member_, type_, member_, least_, text_, greatest_, __VA_ARGS__)
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
#define FV_INTS_KEY(key_, type_, member_, least_, text_, greatest_, ...)                           \
    FV_FIELD(key_, FV_FIELD_INTS, type_, member_, .least = least_, .text = text_,                  \
             .greatest = greatest_, .help = __VA_ARGS__)
/* A list of numbers other than 0, with 0 behind the last in the member; none by default. */
#define FV_NUMBERS_KEY(key_, type_, member_, least_, greatest_, ...)                               \
    FV_FIELD(key_, FV_FIELD_NUMBERS, type_, member_, .least = least_, .greatest = greatest_,       \
             .help = __VA_ARGS__)
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
 * one key).  A key that is named by no rule, but by a pattern that ends in '*', is ignored.  "a.*"
 * says that the object at `a` is a configuration of its own, whose keys are judged like these.
 * Everything else is an error, as it may change the result.  null is always harmless. */
typedef struct fv_key_rule {
    const char *key, *value;
} fv_key_rule;
FV_DATA const fv_key_rule fv_keys_common[]; /* keys every Hugging Face configuration may have */

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

#endif
