/* latents.c - the noise that a generator makes an image from: a function of the seed and the number
 * of the image alone, so that an image can be drawn again without those before it. */
#include <math.h>

#include "fovea/author/backend.h"
#include "fovea/author/image.h"

enum { SITE = 31 }; /* a stream of Philox of its own */

/* Normal numbers, by Box and Muller; one beyond the truncation is drawn again. */
void fv_latents_draw(float *z, int64_t n, uint64_t seed, uint64_t image, double truncation)
{
    uint32_t word[4];
    uint64_t at = 0;
    for (int64_t i = 0; i < n;) {
        fv_philox(word, seed, SITE, image, at++);
        for (int k = 0; k < 4 && i < n; k += 2) {
            double r = sqrt(-2 * log((word[k] + 0.5) / 4294967296.0)),
                   a = 6.283185307179586 * (word[k + 1] / 4294967296.0);
            double x = r * cos(a);
            if (truncation > 0 && fabs(x) > truncation) continue;
            z[i++] = (float)x;
        }
    }
}
