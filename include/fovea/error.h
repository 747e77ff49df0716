/* error.h - how failure is reported.
 *
 * The library never prints, exits or aborts.  Functions that can fail outside of a context return
 * an fv_status and fill an optional fv_err (NULL is allowed).  Compute calls share one sticky error
 * in their fv_ctx instead: see tensor.h. */
#ifndef FOVEA_ERROR_H
#define FOVEA_ERROR_H

/* FV_API marks the functions and FV_DATA the constants that the library exports.  In C++ they also
 * give C linkage, so that no header needs a guard for that. */
#if defined(__cplusplus)
#define FV_API extern "C" __attribute__((visibility("default")))
#define FV_DATA FV_API
#elif defined(__GNUC__)
#define FV_API __attribute__((visibility("default")))
#define FV_DATA FV_API extern
#else
#define FV_API
#define FV_DATA extern
#endif

#if defined(__GNUC__)
#define FV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define FV_PRINTF(fmt, args)
#endif

typedef enum fv_status {
    FV_OK = 0,
    FV_ENOMEM,   /* an allocation failed, or a limit was reached */
    FV_EARG,     /* an argument is out of range */
    FV_ESHAPE,   /* shapes do not fit together; the text names them */
    FV_EDTYPE,   /* a dtype does not fit */
    FV_EIO,      /* the system refused to read or write; the text has file and reason */
    FV_EFORMAT,  /* a file's content is not what its format says; the text has file and position */
    FV_EDEVICE,  /* a device is missing, lost or refused */
    FV_EMISSING, /* this backend has no such kernel, or this build no such feature */
    FV_ENUMERIC, /* a number that must be finite is not */
    FV_ESTATE,   /* called in the wrong order: an op without gradient, a released tensor, ... */
    FV_EUSAGE    /* settings are missing or contradict each other; the text names them */
} fv_status;

typedef struct fv_err {
    fv_status code;
    char text[512]; /* one sentence, no trailing newline, UTF-8 */
} fv_err;

/* Fills *e (when not NULL) and returns code, so that it can end a function: return fv_fail(e,
 * FV_EIO, ...); */
FV_API fv_status fv_fail(fv_err *e, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);

/* "out of memory", "shape", ...: a word for a status, never NULL. */
FV_API const char *fv_status_name(fv_status code);

/* The entry of list (ending in NULL) nearest to word by edit distance, or NULL if none is near: for
 * "did you mean". */
FV_API const char *fv_closest(const char *word, const char *const *list);

#endif
