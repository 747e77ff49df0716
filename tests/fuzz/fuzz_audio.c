/* fuzz_audio.c - libFuzzer target: any bytes as a sound file; make fuzz-audio.
 *
 * Beyond memory errors: a refusal has a sentence, nothing is leaked, every sample that is returned
 * is finite, and the beginning of a clip can be resampled (all of it would take most of a run, and
 * no byte of the file decides what happens there).  Only our side is instrumented: libsndfile is
 * the system's. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/audio.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fv_mem_counter mem;
    fv_err e = {0};
    fv_clip clip = {0}, other = {0};
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_status st = fv_clip_decode(&clip, &env, data, size, "x", &e);
    if (st && !e.text[0]) abort();
    for (int64_t i = 0; !st && i < clip.n; i++)
        if (!isfinite(clip.data[i])) abort();
    fv_clip begin = clip;
    if (begin.n > 4) begin.n = 4;
    /* 1 Hz to 16 kHz makes much of little */
    if (!st && clip.rate >= 4000 && fv_clip_resample(&other, &begin, 16000, &e)) abort();
    fv_clip_free(&clip);
    fv_clip_free(&other);
    if (mem.live) abort();
    return 0;
}
