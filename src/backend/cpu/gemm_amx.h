/* gemm_amx.h - tile registers of AMX, as products of bf16 and of int8 use them.
 *
 * Tiles are state of the thread: enter configures them, leave lets them go, which keeps context
 * switches of the thread as cheap as they were.  The compiler's functions for loads do not tell it
 * that memory is read; `published` says so where it has just been written. */
#ifndef FV_GEMM_AMX_H
#define FV_GEMM_AMX_H

#include "gemm.h"

#define TILE 16 /* rows, and columns of 32 bits, of one */

ALWAYS_INLINE void published(void) { __asm__ volatile("" ::: "memory"); }

typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

/* All eight tiles have 16 rows of 64 bytes; more rows than there are in C are computed and not
 * stored. */
static void enter(void)
{
    static const amx_config config = {.palette = 1,
                                      .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                      .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};
    _tile_loadconfig(&config);
}

static void leave(void) { _tile_release(); }

/* The next panel, a part of it in each step of k. */
ALWAYS_INLINE const char *prefetch_part(const char *ahead, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
    return ahead + bytes;
}

#endif
