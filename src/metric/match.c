/* match.c - precision, recall and F1, and accuracy and macro-F1 from a confusion matrix whose
 * rows are the gold labels and whose columns the predicted ones. */
#include "fovea/author/metric.h"

static double share(double part, double of) { return of > 0 ? 100 * part / of : 0; }

double fv_precision(fv_match m) { return share((double)m.right, (double)m.given); }
double fv_recall(fv_match m) { return share((double)m.right, (double)m.gold); }
/* 2 P R / (P + R) without dividing twice: 2 right / (given + gold). */
double fv_f1(fv_match m) { return share(2 * (double)m.right, (double)(m.given + m.gold)); }

double fv_accuracy(const int64_t *table, int labels)
{
    int64_t right = 0, all = 0;
    for (int i = 0; i < labels * labels; i++) all += table[i];
    for (int i = 0; i < labels; i++) right += table[i * labels + i];
    return share((double)right, (double)all);
}

fv_match fv_label_match(const int64_t *table, int labels, int label)
{
    fv_match m = {.right = table[label * labels + label]};
    for (int i = 0; i < labels; i++) {
        m.given += table[i * labels + label];
        m.gold += table[label * labels + i];
    }
    return m;
}

/* Labels that occur on neither side have no F1 and do not count. */
double fv_macro_f1(const int64_t *table, int labels)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < labels; i++) {
        fv_match m = fv_label_match(table, labels, i);
        if (!m.given && !m.gold) continue;
        sum += fv_f1(m);
        n++;
    }
    return n ? sum / n : 0;
}
