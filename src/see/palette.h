/* palette.h - the colours of pages and pictures: one list for both, so that a head has the same
 * colour wherever it is drawn.  Colours are 0xRRGGBB. */
#ifndef FV_SEE_PALETTE_H
#define FV_SEE_PALETTE_H

#include <stdint.h>

enum { FV_HEAD_COLORS = 12, FV_SHADES = 7 };

/* Head h has colour h % FV_HEAD_COLORS; heads beyond that are told apart by their dashes. */
extern const uint32_t fv__head_colors[FV_HEAD_COLORS];
/* Weight 0 to 1: lightness changes evenly, so the scale also reads in grey. */
extern const uint32_t fv__shades_light[FV_SHADES], fv__shades_dark[FV_SHADES];

#endif
