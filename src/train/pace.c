/* pace.c - how many updates a limited time is enough for, at the pace since half of it or less:
 * what shares the machine comes and goes.  The first tenth of the time decides nothing, as graphs
 * are captured in it. */
#include "train/pace.h"

#include <math.h>

int64_t fv__pace_fit(fv__pace *p, int64_t step, double t, double limit, int64_t most)
{
    if (t > 2 * p->newer.at) {
        p->older = p->newer;
        p->newer = (fv__mark){step, t};
    }
    if (t < 0.1 * limit) return most;
    double each = (t - p->older.at) / (double)(step - p->older.step),
           fit = (double)step + fmax(limit - t, 0) / each;
    return fit < (double)most ? (int64_t)fit : most;
}
