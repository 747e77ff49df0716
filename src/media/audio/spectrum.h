/* spectrum.h - frames of a clip through a window, an FFT and a bank of mel filters. */
#ifndef FV_MEDIA_SPECTRUM_H
#define FV_MEDIA_SPECTRUM_H

#include "base/base.h"

/* What differs between the extractors.  Lengths in samples. */
typedef struct fv__spectrum_opt {
    int rate, window, hop, fft, mels;
    double low, high; /* Hz */
    bool symmetric;   /* the Hann window ends in 0; else it is one period */
    bool centre;      /* frame i is centred at i * hop, the clip being reflected at both ends */
    bool remove_mean; /* of each frame */
    double preemphasis;
    bool magnitude; /* |X|, else |X|^2 */
    bool slaney;    /* Slaney's scale and areas of 1, else Kaldi's, triangles over mel */
} fv__spectrum_opt;

typedef struct fv__spectrum {
    const fv_env *env;
    fv__spectrum_opt o;
    int bins;       /* fft / 2 + 1 */
    double *window; /* (window) */
    float *bank;    /* (mels,bins) */
    int *from, *to; /* bins where a filter is not 0 */
    void *memory, *plan;
    size_t bytes, plan_bytes;
} fv__spectrum;

/* Close it whatever comes back. */
fv_status fv__spectrum_open(fv__spectrum *s, const fv_env *env, fv__spectrum_opt o, fv_err *e);
void fv__spectrum_close(fv__spectrum *s);
/* Frames of n samples. */
int64_t fv__spectrum_frames(const fv__spectrum_opt *o, int64_t n);
/* Memory for transforms, one thread's: its bytes, and once it is allocated, its contents. */
size_t fv__transform_bytes(const fv__spectrum *s);
void fv__transform_open(const fv__spectrum *s, void *memory);
/* The transform of x (fft): real and imaginary parts of its bins in turn, (bins,2), in memory. */
const float *fv__transform(const fv__spectrum *s, void *memory, const float *x);

/* out (frames,mels): the filters' sums of frames 0 .. frames - 1 of x (n). */
fv_status fv__spectrum_run(const fv__spectrum *s, float *out, int64_t frames, const float *x,
                           int64_t n, fv_err *e);

#endif
