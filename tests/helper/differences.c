/* differences.c - gradients of an objective's loss against differences of that loss. */
#include "helper/differences.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "helper/device.h"

void gradients_match_differences(const fv_feed *f, fv_model *m, loss_fn loss, float step,
                                 double close)
{
    fv_params *p = fv_model_params(m);
    fv_err e;
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        int64_t n = fv_len(t), at = (37 * i + 5) % n;
        float *x = malloc((size_t)n * sizeof *x), *g = malloc((size_t)n * sizeof *g);
        assert_true(x && g);
        loss(f, m, true);
        check(fv_params_get_grad(p, t, g, n, &e), &e);
        check(fv_params_get(p, t, x, n, &e), &e);
        float was = x[at];
        double side[2], width = (double)(was + step) - (double)(was - step);
        for (int s = 0; s < 2; s++) {
            x[at] = s ? was - step : was + step;
            check(fv_params_set(p, t, x, n, &e), &e);
            side[s] = loss(f, m, false);
        }
        x[at] = was;
        check(fv_params_set(p, t, x, n, &e), &e);
        double slope = (side[0] - side[1]) / width;
        if (!(fabs(slope - (double)g[at]) <= close + 1e-3 * fabs(slope)))
            fail_msg("%s[%lld]: %g, by differences %g", t->name, (long long)at, (double)g[at],
                     slope);
        free(x), free(g);
    }
}
