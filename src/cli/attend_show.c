/* attend_show.c - an attention as a lesson, and as JSON. */
#include <stdio.h>
#include <string.h>

#include "attend.h"

enum { ROWS = 12, COLS = 12 }; /* more are cut: what does not fit a screen is not read */

/* Cells of equal width; those whose mask is 0 are shown as "hidden". */
static void print_table(const char *row, const char *column, const float *x, const uint8_t *mask,
                        int64_t rows, int64_t cols, int digits)
{
    int64_t shown_rows = rows < ROWS ? rows : ROWS, shown = cols < COLS ? cols : COLS;
    int width = (int)strlen(column) + 3, label = (int)strlen(row) + 4;
    for (int64_t i = 0; i < shown_rows * shown; i++) {
        int w = snprintf(NULL, 0, "%.*f", digits, (double)x[i / shown * cols + i % shown]);
        if (w > width) width = w;
    }

    printf("   %*s", label, "");
    for (int64_t j = 0; j < shown; j++) {
        char head[32];
        snprintf(head, sizeof head, "%s %lld", column, (long long)(j + 1));
        printf(" %*s", width, head);
    }
    for (int64_t i = 0; i < shown_rows; i++) {
        printf("\n   %s %-*lld", row, label - (int)strlen(row) - 1, (long long)(i + 1));
        for (int64_t j = 0; j < shown; j++) {
            if (mask && !mask[i * cols + j])
                printf(" %*s", width, "hidden");
            else
                printf(" %*.*f", width, digits, (double)x[i * cols + j]);
        }
        if (shown < cols) printf("  ...");
    }
    putchar('\n');
    if (shown < cols) printf("   (%lld columns more)\n", (long long)(cols - shown));
    if (shown_rows < rows) printf("   (%lld rows more)\n", (long long)(rows - shown_rows));
}

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

/* The first row in words: where it looks most, or that it sees nothing. */
static void print_first_row(const float *w, int64_t n, int digits)
{
    int64_t most = 0;
    float sum = 0;
    for (int64_t j = 0; j < n; j++) {
        if (w[j] > w[most]) most = j;
        sum += w[j];
    }
    if (sum == 0)
        puts("   Row 1 sees no key at all: its weights and its output are zero.");
    else
        printf("   Row 1 looks most at key %lld (%.*f).\n", (long long)(most + 1), digits,
               (double)w[most]);
}

/* The three steps of one head, each with the sentence that explains it. */
static void print_head(const attention *a, int64_t h, int digits)
{
    int64_t at = h * a->Tq * a->Tk;
    if (a->H > 1)
        printf("\nHead %lld: columns %lld to %lld of Q and K\n", (long long)(h + 1),
               (long long)(h * a->Wk + 1), (long long)((h + 1) * a->Wk));

    printf("\n1. Scores, Q K': how well each query fits each key, the product of their rows.\n\n");
    print_table("row", "key", a->scores + at, NULL, a->Tq, a->Tk, digits);

    printf("\n2. Scaled by 1 / sqrt(%lld) = %.*f, so that scores do not grow with the width",
           (long long)a->Wk, digits, (double)a->scale);
    if (a->biased) printf("; the mask is added");
    if (a->causal) printf(";\n   keys after a row's own position are hidden");
    if (a->masked) printf("; keys that the mask leaves out are hidden");
    printf(".\n\n");
    print_table("row", "key", a->scaled + at, a->mask + at, a->Tq, a->Tk, digits);

    printf("\n3. Weights, softmax of each row: exp(score) divided by the sum of the row's, so that "
           "they add up to 1.\n\n");
    print_table("row", "key", a->weights + at, NULL, a->Tq, a->Tk, digits);
    print_first_row(a->weights + at, a->Tk, digits);
}

/* The first number of the output, term by term. */
static void print_first_output(const attention *a, int digits)
{
    if (a->Tk > 6) return;
    printf("   Row 1, column 1:");
    for (int64_t j = 0; j < a->Tk; j++)
        printf("%s %.*f x %.*f", j ? " +" : "", digits, (double)a->weights[j], digits,
               (double)a->v[j * a->H * a->Wv]);
    printf(" = %.*f\n", digits, (double)a->output[0]);
}

void attend_print(const attention *a, int digits)
{
    printf("Attention of %lld quer%s on %lld key%s, in %lld head%s: softmax(Q K' / sqrt(d)) V\n",
           (long long)a->Tq, a->Tq == 1 ? "y" : "ies", (long long)a->Tk, plural(a->Tk),
           (long long)a->H, plural(a->H));
    for (int64_t h = 0; h < a->H; h++) print_head(a, h, digits);
    printf("\n4. Output, weights times V: each row is the values, mixed by its weights%s.\n\n",
           a->H > 1 ? "; the heads stand side by side" : "");
    print_table("row", "col", a->output, NULL, a->Tq, a->H * a->Wv, digits);
    print_first_output(a, digits);
}

/* (H,Tq,Tk), null where the mask is 0. */
static void put_heads(cli_json *j, const char *key, const attention *a, const float *x,
                      const uint8_t *mask)
{
    cli_json_put(j, "s:[", key);
    for (int64_t h = 0; h < a->H; h++) {
        int64_t at = h * a->Tq * a->Tk;
        cli_json_matrix(j, x + at, mask ? mask + at : NULL, a->Tq, a->Tk);
    }
    cli_json_put(j, "]");
}

void attend_json(const attention *a)
{
    cli_json j = {0};
    cli_json_put(&j, "{s:I, s:I, s:I, s:b, s:f", "queries", a->Tq, "keys", a->Tk, "heads", a->H,
                 "causal", a->causal, "scale", (double)a->scale);
    put_heads(&j, "scores", a, a->scores, NULL);
    put_heads(&j, "scaled", a, a->scaled, a->mask);
    put_heads(&j, "weights", a, a->weights, NULL);
    cli_json_put(&j, "s:", "output");
    cli_json_matrix(&j, a->output, NULL, a->Tq, a->H * a->Wv);
    cli_json_put(&j, "}");
    cli_json_end();
}
