/* beside.h - a CPU that plays a GPU for the scheduler: it works beside the host, chooses tokens,
 * writes listed weights, copies lists and moves rows at once, and its memory may come in pages that
 * are given by name. */
#ifndef HELPER_BESIDE_H
#define HELPER_BESIDE_H

#include "fovea/author/op.h"

/* What its kernels have done. */
typedef struct beside_counts {
    int64_t chosen, listed, of_prompts, copied, moved;
} beside_counts;
extern beside_counts beside_done;

/* A copy of the CPU that plays a GPU; one at a time. */
fv_device beside_dress(const fv_device *d);

/* Of any device, a copy with pages: on the CPU of so many bytes, elsewhere its own.  Pages without
 * memory of their own hold noise, as a GPU's filler does, and so does a page that is given back. */
enum { BESIDE_PAGE = 128 << 10 };
typedef struct beside_memory {
    int64_t now, most, left; /* pages that have memory, and most at a time; left: those there are */
    int64_t commits, discards, asked; /* asked: for the size of a page */
} beside_memory;
extern beside_memory beside_pages;
fv_device beside_page(const fv_device *d);

#endif
