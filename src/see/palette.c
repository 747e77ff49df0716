/* palette.c - the colours of heads and of weights.
 *
 * The head colours were found by a search that keeps the least distance between any two of them as
 * large as it can, for normal vision and for simulated protanopia and deuteranopia (Machado,
 * Oliveira and Fernandes 2009), among colours that stand out from white and from the dark page.
 * tests/see/test_see_colors.c measures the distances.  The palette of Okabe and Ito, which was here
 * before, has only eight colours, so heads 0 and 8 of a model with twelve heads looked the same. */
#include "see/palette.h"

const uint32_t fv__head_colors[FV_HEAD_COLORS] = {0x0072b2, 0xd55e00, 0x6bcc9c, 0x931165,
                                                  0xf7a425, 0x814b07, 0xb169fa, 0x5cbdff,
                                                  0xa98fb0, 0x4433af, 0x840ef3, 0xd8226e};

const uint32_t fv__shades_light[FV_SHADES] = {0xf4f7fb, 0xd6e4f2, 0xabcae7, 0x74a8d8,
                                              0x3f7fbe, 0x1b5796, 0x08285a};
const uint32_t fv__shades_dark[FV_SHADES] = {0x18202a, 0x1d3450, 0x22507f, 0x2f74b5,
                                             0x58a0e0, 0x9accff, 0xe9f5ff};
