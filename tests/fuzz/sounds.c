/* sounds.c - spoiled sound files by the ten thousand under AddressSanitizer: make fuzz-sounds-asan.
 *
 * A WAV, FLAC, OGG or MP3 file of tests/golden/audio loses its end, gets bytes changed, moved or
 * set to extremes (a header that claims ten hours, samples that are no numbers), and goes through
 * the checks of fuzz_audio.c: a sentence or finite samples, nothing leaked.  What is drawn follows
 * from the case's number, so one can be run again: fuzz_sounds_asan FROM TO.  Leaks are counted
 * by our own allocator: libsndfile loses 6 KB of its own for an OGG file that it refuses. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 18 };

static uint64_t state;
static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

/* One change; headers, which say how much is to come, are hit as often as all the rest. */
static size_t spoil(uint8_t *x, size_t n)
{
    static const uint32_t extreme[] = {0,          1,          0x7fffffff, 0xffffffff,
                                       0x7fc00000, 0x7f800000, 576000000};
    if (n < 8) return n;
    size_t at = draw((uint32_t)(draw(2) ? (n < 80 ? n : 80) : n));
    switch (draw(6)) {
    case 0: return draw((uint32_t)n + 1); /* the end is lost; perhaps all of it */
    case 1: x[at] ^= (uint8_t)(1u << draw(8)); return n;
    case 2: x[at] = (uint8_t)draw(256); return n;
    case 3:
        if (at + 4 <= n) memcpy(x + at, &extreme[draw(7)], 4);
        return n;
    case 4: memmove(x + at, x + draw((uint32_t)(n - at) + 1), n - at > 64 ? 64 : 0); return n;
    default: memset(x + at, draw(2) ? 0xff : 0, n - at < 32 ? n - at : 32); return n;
    }
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"sweep.wav", "sweep.flac", "sweep.ogg", "sweep.mp3"};
    static uint8_t seed[4][MOST], x[MOST];
    size_t size[4];
    long from = argc > 2 ? atol(argv[1]) : 0, to = atol(argv[argc > 1 ? argc - 1 : 0]);
    for (int i = 0; i < 4; i++) {
        char path[1000];
        snprintf(path, sizeof path, FOVEA_TESTS "/golden/audio/%s", names[i]);
        FILE *f = fopen(path, "rb");
        if (!f) return perror(path), 1;
        size[i] = fread(seed[i], 1, MOST, f);
        fclose(f);
    }
    for (long i = from; i < to; i++) {
        state = (uint64_t)i * 2654435761u + 12345;
        draw(2);
        int k = i % 20 == 19 ? 3 : (int)(i % 3); /* MP3 less often: its decoder warns on stderr */
        size_t n = size[k];
        memcpy(x, seed[k], n);
        for (uint32_t times = 1 + draw(8); times; times--) n = spoil(x, n);
        LLVMFuzzerTestOneInput(x, n);
    }
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("%ld spoiled sound files, no fault; at most %ld MiB\n", to - from, use.ru_maxrss / 1024);
    return 0;
}
