/* peer_blas.c - times sgemm of OpenBLAS or BLIS on a product that `fovea bench` also times.
 *
 *   cc -O2 bench/peer_blas.c -o peer_blas -ldl
 *   ./peer_blas openblas|blis M N K THREADS [SECONDS]
 *
 * C (M,N) = A (M,K) times a weight stored (N,K), as linear layers have it.  Prints one line of
 * JSON: the median of the single calls and the distance between their quartiles. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MOST_CALLS 10000
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *numbers(size_t n)
{
    size_t page = (size_t)2 << 20, bytes = (n * sizeof(float) + page - 1) / page * page;
    float *p = aligned_alloc(page, bytes);
    if (!p) {
        fprintf(stderr, "peer_blas: out of memory\n");
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE); /* as fovea's own memory */
    for (size_t i = 0; i < n; i++) p[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return p;
}

static sgemm_fn *load(const char *name, const char *threads)
{
    setenv("OPENBLAS_NUM_THREADS", threads, 1);
    setenv("BLIS_NUM_THREADS", threads, 1);
    setenv("OMP_NUM_THREADS", threads, 1);
    const char *const files[] = {!strcmp(name, "blis") ? "libblis.so.4" : "libopenblas.so.0",
                                 !strcmp(name, "blis") ? "libblis.so" : "libopenblas.so"};
    void *lib = NULL;
    for (int i = 0; i < 2 && !lib; i++) lib = dlopen(files[i], RTLD_NOW);
    sgemm_fn *f = lib ? (sgemm_fn *)dlsym(lib, "cblas_sgemm") : NULL;
    if (!f) {
        fprintf(stderr, "peer_blas: %s: %s\n", files[0], dlerror());
        exit(1);
    }
    return f;
}

int main(int argc, char **argv)
{
    if (argc < 6 || (strcmp(argv[1], "openblas") && strcmp(argv[1], "blis"))) {
        fprintf(stderr, "usage: %s openblas|blis M N K THREADS [SECONDS]\n", argv[0]);
        return 2;
    }
    int m = atoi(argv[2]), n = atoi(argv[3]), k = atoi(argv[4]);
    double seconds = argc > 6 ? atof(argv[6]) : 1.0;
    if (m < 1 || n < 1 || k < 1 || atoi(argv[5]) < 1) {
        fprintf(stderr, "peer_blas: sizes and threads are at least 1\n");
        return 2;
    }
    sgemm_fn *sgemm = load(argv[1], argv[5]);
    float *a = numbers((size_t)m * (size_t)k), *b = numbers((size_t)n * (size_t)k),
          *c = numbers((size_t)m * (size_t)n);

    static double t[MOST_CALLS];
    int calls = 0;
    for (int i = 0; i < 3; i++)
        sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, m, n, k, 1, a, k, b, k, 0, c, n);
    for (double end = now() + seconds; calls < MOST_CALLS && (calls < 5 || now() < end); calls++) {
        double start = now();
        sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, m, n, k, 1, a, k, b, k, 0, c, n);
        t[calls] = now() - start;
    }
    qsort(t, (size_t)calls, sizeof *t, by_size);
    double median = t[calls / 2];
    printf("{\"name\": \"%s sgemm\", \"m\": %d, \"n\": %d, \"k\": %d, \"threads\": %s, "
           "\"median_s\": %.9f, \"spread_s\": %.9f, "
           "\"gflops\": %.2f}\n",
           argv[1], m, n, k, argv[5], median, t[calls * 3 / 4] - t[calls / 4],
           2.0 * m * n * k / median * 1e-9);
    free(a);
    free(b);
    free(c);
    return 0;
}
