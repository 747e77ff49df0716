/* bottleneck.c - bottleneck adapters: a small MLP behind the parts of each layer.
 *
 *     y = part(x);   y + scaling (act(y D' + d) U' + u)
 *
 * Houlsby et al. 2019 put one behind the attention and one behind the MLP of each layer, before
 * what they give is added to the residual stream; Pfeiffer et al. 2021 the one behind the MLP alone
 * (mh_adapter = false).  PEFT has none, the library `adapters` has them with many more settings, so
 * the keys are named as there and the directory is formed as PEFT forms its own:
 *
 *     <module>.adapter_down.0.weight, .bias, <module>.adapter_up.weight, .bias
 *
 * A part ends with a linear map, on whose weight the adapter hangs (core/adapter.h); nn/mha and
 * nn/mlp mark it, so every family that is made of them has bottlenecks.  (A list of names by
 * model_type, as for LoRA, was the alternative: it would know only the families of today.)  Where
 * a family drops out behind its parts, the adapter stands before the dropout; in `adapters` it
 * stands behind it.  U begins as zero: the model computes what it did before. */
#include <math.h>

#include "core/core.h"
#include "model/adapter.h"

const char *const fv__bottleneck_acts[] = {"swish", "relu", "gelu", "tanh", NULL};

bool fv__bottleneck_by_part(const fv_adapter_opt *opt)
{
    return opt->peft_type == FV_PEFT_BOTTLENECK && !*opt->target_modules && !*opt->target_regex;
}

bool fv__bottleneck_behind(const fv_adapter_opt *opt, const fv_tensor *w)
{
    fv_part_end end = fv__param_end(w);
    return (end == FV_ENDS_ATTENTION && opt->mh_adapter) ||
           (end == FV_ENDS_MLP && opt->output_adapter);
}

void fv__bottleneck_declare(fv_adapter *a, fv_params *p, const fv_adapter_opt *opt,
                            const fv__target *t)
{
    static const fv_act acts[] = {FV_SILU, FV_RELU, FV_GELU, FV_TANH}; /* fv__bottleneck_acts */
    int64_t n = (int64_t)((double)t->out / (double)opt->reduction_factor);
    fv_init zero = {.kind = FV_INIT_ZERO},
            uniform = {.kind = FV_INIT_UNIFORM, .scale = (float)(1 / sqrt((double)t->out))};
    if (n < 1) n = 1;
    *a = (fv_adapter){.scale = opt->scaling, .act = acts[opt->non_linearity]};
    a->down = fv__adapter_param(p, uniform, FV_SHAPE(n, t->out), t->module,
                                "adapter_down.0.weight");
    a->down_b = fv__adapter_param(p, zero, FV_SHAPE(n), t->module, "adapter_down.0.bias");
    a->up = fv__adapter_param(p, zero, FV_SHAPE(t->out, n), t->module, "adapter_up.weight");
    a->up_b = fv__adapter_param(p, zero, FV_SHAPE(t->out), t->module, "adapter_up.bias");
}

bool fv__params_have_table_adapter(const fv_params *p)
{
    for (int i = 0; i < fv_params_count(p); i++)
        if (fv__param_table_adapter(fv_params_at(p, i))) return true;
    return false;
}

bool fv__params_have_bottleneck(const fv_params *p)
{
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_adapter *a = fv__param_adapter(fv_params_at(p, i));
        if (a && a->down) return true;
    }
    return false;
}
