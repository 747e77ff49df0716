/* kernels.h - kernels beside the reference kernels of the same table.
 *
 * A case runs on the reference table and, for each instruction level of this machine, on the fast
 * table with one to four threads.  The fast result must be near the reference, and the same bits
 * for every number of threads. */
#ifndef HELPER_KERNELS_H
#define HELPER_KERNELS_H

#include "fovea/author/op.h"

enum { MOST_LEVELS = 8, KINDS = 3, LENGTHS = 10 };

/* A device for each level, once open_levels has run, and the reference tables. */
extern fv_device *at_level[MOST_LEVELS];
extern int n_level;
extern fv_kernels reference[FV_FLOATS];
int open_levels(void **state);
int close_levels(void **state);

extern const fv_dtype kinds[KINDS];
extern const int64_t lengths[LENGTHS];

/* Numbers that are drawn, the same in every run; the caller frees. */
float uniform(void);        /* -1..1 */
void *memory(size_t bytes); /* zeros */
void *numbers(fv_dtype t, int64_t n, float low, float high);
int32_t *integers(int64_t n, int32_t below);
double number(const void *p, fv_dtype t, int64_t i); /* element i */

typedef struct out {
    fv_dtype t;
    int64_t n;
    bool add, absent;
} out;

/* Sink modes: absent, write, add, and the last two once more in f32. */
enum { MODES = 5 };
out sink_out(fv_dtype t, int64_t n, int mode);

/* What a case does with one table: it reads `in`, its own structure, and writes the sinks. */
typedef void (*action)(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y);

/* Fails unless all levels come within tol units in the last place of 1 plus tol of the number's
 * own. */
void compare(const char *what, fv_dtype t, action act, const void *in, const out *o, int n_out,
             double tol);
/* The same of one output of n elements, in every mode that a sink has. */
void compare_sinks(const char *what, fv_dtype t, action act, const void *in, int64_t n, double tol);

#endif
