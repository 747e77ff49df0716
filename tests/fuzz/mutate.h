/* mutate.h - spoiling a file: one to four small changes, a function of a number. */
#ifndef FUZZ_MUTATE_H
#define FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* A sequence of random numbers: begin with any seed. */
typedef struct dice {
    uint64_t state;
} dice;
uint64_t throw(dice * d);
size_t below(dice *d, size_t n); /* 0 .. n-1; 0 where n is 0 */

typedef struct bytes {
    char *s;
    size_t n;
} bytes;

/* Writes the sum over a header of tar's into it. */
void repair_tar_header(char h[512]);

/* A spoiled copy, to be freed; other: a file to take pieces from, or empty.  A safetensors file
 * keeps, most of the time, a header of the length it says, so that what is behind the first check
 * is met too; so do the sums of PNG's chunks and tar's headers. */
bytes spoil(dice *d, const char *name, bytes file, bytes other);

#endif
