/* project.c - words in the plane: principal components, or t-SNE (van der Maaten and Hinton 2008),
 * and the picture of them.
 *
 * t-SNE is the exact one, O(n^2) a step: pictures show some hundreds of words.  Every sum has
 * one order, and first positions come from a counter, so a picture is the same each time. */
#include <math.h>
#include <stdio.h>

#include "vectors/vectors.h"

const char *const fv_projections[] = {"pca", "tsne", NULL};

/* ---- principal components, by power iteration ---- */

enum { ROUNDS = 200 };

/* x (n,D), centred: y = x' x a, without what lies along `other` (D) where there is one. */
static void power(const double *x, int64_t n, int64_t D, double *a, const double *other)
{
    double y[4096] = {0}, size = 0, along = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < D; k++) sum += x[i * D + k] * a[k];
        for (int64_t k = 0; k < D; k++) y[k] += sum * x[i * D + k];
    }
    for (int64_t k = 0; other && k < D; k++) along += y[k] * other[k];
    for (int64_t k = 0; k < D; k++) {
        y[k] -= other ? along * other[k] : 0;
        size += y[k] * y[k];
    }
    for (int64_t k = 0; k < D; k++) a[k] = size > 0 ? y[k] / sqrt(size) : 0;
}

/* The two directions of greatest variance, by power iteration; the second on what the first
 * leaves. */
static void pca(const double *x, int64_t n, int64_t D, double *axes, double *xy)
{
    for (int axis = 0; axis < 2; axis++) {
        double *a = axes + axis * D;
        for (int64_t k = 0; k < D; k++)
            a[k] = fv__vectors_unit(fv__vectors_random(5 + (uint64_t)axis, (uint64_t)k)) - 0.5;
        for (int r = 0; r < ROUNDS; r++) power(x, n, D, a, axis ? axes : NULL);
        for (int64_t i = 0; i < n; i++) {
            xy[2 * i + axis] = 0;
            for (int64_t k = 0; k < D; k++) xy[2 * i + axis] += x[i * D + k] * a[k];
        }
    }
}

/* ---- t-SNE ---- */

enum { STEPS = 750, EARLY = 100 };

/* p (n) of row i: exp(-beta d^2), beta such that the entropy is log(perplexity). */
static void row_of(const double *d, int64_t n, int64_t i, double perplexity, double *p)
{
    double low = 0, high = INFINITY, beta = 1;
    for (int round = 0; round < 60; round++) {
        double sum = 0, mean = 0;
        for (int64_t j = 0; j < n; j++) {
            p[j] = j == i ? 0 : exp(-beta * d[i * n + j]);
            sum += p[j];
            mean += p[j] * d[i * n + j];
        }
        double entropy = sum > 0 ? log(sum) + beta * mean / sum : 0;
        for (int64_t j = 0; j < n; j++) p[j] = sum > 0 ? p[j] / sum : 0;
        if (entropy > log(perplexity)) {
            low = beta;
            beta = isinf(high) ? 2 * beta : (beta + high) / 2;
        } else {
            high = beta;
            beta = (low + beta) / 2;
        }
    }
}

/* d becomes the symmetric p of both directions. */
static void affinities(double *d, int64_t n, double *row, double *all)
{
    double perplexity = n > 91 ? 30 : fmax(2, (double)(n - 1) / 3);
    for (int64_t i = 0; i < n; i++) {
        row_of(d, n, i, perplexity, row);
        for (int64_t j = 0; j < n; j++) all[i * n + j] = row[j];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            d[i * n + j] = fmax((all[i * n + j] + all[j * n + i]) / (2 * (double)n), 1e-12);
}

/* dy_i = 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2) */
static void descend(const double *p, int64_t n, double *xy, double *q, double *speed)
{
    for (int step = 0; step < STEPS; step++) {
        double more = step < EARLY ? 4 : 1, momentum = step < 250 ? 0.5 : 0.8, sum = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                double dx = xy[2 * i] - xy[2 * j], dy = xy[2 * i + 1] - xy[2 * j + 1];
                q[i * n + j] = i == j ? 0 : 1 / (1 + dx * dx + dy * dy);
                sum += q[i * n + j];
            }
        double rate = fmax((double)n / 12, 10);
        for (int64_t i = 0; i < n; i++)
            for (int axis = 0; axis < 2; axis++) {
                double grad = 0;
                for (int64_t j = 0; j < n; j++)
                    grad += 4 * (more * p[i * n + j] - q[i * n + j] / sum) * q[i * n + j] *
                            (xy[2 * i + axis] - xy[2 * j + axis]);
                speed[2 * i + axis] = momentum * speed[2 * i + axis] - rate * grad;
            }
        for (int64_t i = 0; i < 2 * n; i++) xy[i] += speed[i];
    }
}

/* van der Maaten and Hinton 2008, exact: n is at most a few thousand. */
static void tsne(const double *x, int64_t n, int64_t D, uint64_t seed, double *work, double *xy)
{
    double *d = work, *q = d + n * n, *row = q + n * n, *speed = row + n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < D; k++) {
                double apart = x[i * D + k] - x[j * D + k];
                sum += apart * apart;
            }
            d[i * n + j] = sum;
        }
    affinities(d, n, row, q);
    for (int64_t i = 0; i < 2 * n; i++) {
        xy[i] = 1e-2 * (fv__vectors_unit(fv__vectors_random(seed, (uint64_t)i)) - 0.5);
        speed[i] = 0;
    }
    descend(d, n, xy, q, speed);
}

/* Unit vectors, centred: what is near by its cosine is near. */
static void fill(const fv_vectors *v, const int64_t *words, int64_t n, double *x)
{
    int64_t D = v->width;
    for (int64_t i = 0; i < n; i++) {
        const float *row = fv_vectors_row(v, words[i]);
        double by = v->length[words[i]] > 0 ? 1 / (double)v->length[words[i]] : 0;
        for (int64_t k = 0; k < D; k++) x[i * D + k] = by * (double)row[k];
    }
    for (int64_t k = 0; k < D; k++) {
        double mean = 0;
        for (int64_t i = 0; i < n; i++) mean += x[i * D + k] / (double)n;
        for (int64_t i = 0; i < n; i++) x[i * D + k] -= mean;
    }
}

fv_status fv_vectors_project(const fv_vectors *v, const int64_t *words, int64_t n,
                             fv_projection how, uint64_t seed, double *xy, fv_err *e)
{
    int64_t D = v->width;
    if (n < 2 || n > 5000 || D > 4096)
        return fv_fail(e, FV_EARG, "vectors: 2 to 5000 words of width up to 4096 can be drawn");
    size_t bytes = (size_t)(n * D + 2 * n * n + 3 * n + 2 * D) * sizeof(double);
    double *x = fv__alloc(&v->env, bytes), *work = x + n * D;
    if (!x) return fv_fail(e, FV_ENOMEM, "vectors: out of memory");
    fill(v, words, n, x);
    if (how == FV_PCA)
        pca(x, n, D, work, xy);
    else
        tsne(x, n, D, seed, work, xy);
    fv__free(&v->env, x, bytes);
    return FV_OK;
}

/* ---- the picture ---- */

enum { SIDE = 900, EDGE = 50 };

/* Words as XML text. */
static void put_escaped(fv_buf *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '<' || *s == '&')
            fv__buf_str(b, *s == '<' ? "&lt;" : "&amp;");
        else
            fv__buf_add(b, s, 1);
    }
}

fv_status fv_vectors_plot(const fv_vectors *v, const int64_t *words, int64_t n, const double *xy,
                          const char *path, fv_err *e)
{
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (int64_t i = 0; i < 2 * n; i++) {
        low[i % 2] = fmin(low[i % 2], xy[i]);
        high[i % 2] = fmax(high[i % 2], xy[i]);
    }
    fv_buf b = {.env = &v->env};
    fv__buf_fmt(&b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "font-family=\"sans-serif\" font-size=\"11\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                SIDE, SIDE);
    for (int64_t i = 0; i < n; i++) {
        double at[2];
        for (int a = 0; a < 2; a++) {
            double wide = high[a] > low[a] ? high[a] - low[a] : 1;
            at[a] = EDGE + (xy[2 * i + a] - low[a]) / wide * (SIDE - 2 * EDGE);
        }
        fv__buf_fmt(&b,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"#1f77b4\"/>"
                    "<text x=\"%.1f\" y=\"%.1f\">",
                    at[0], SIDE - at[1], at[0] + 4, SIDE - at[1] + 3);
        put_escaped(&b, fv_vectors_word(v, words[i]));
        fv__buf_str(&b, "</text>\n");
    }
    fv__buf_str(&b, "</svg>\n");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(&v->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
