"""Golden cases of PatchTST.  Run: python3 tools/golden/patchtst.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (PatchTSTConfig, PatchTSTForClassification, PatchTSTForPrediction, PatchTSTForPretraining,
                          PatchTSTForRegression, PatchTSTModel)

from families import build, case, pixels, tokens

SMALL = dict(num_input_channels=2, context_length=22, prediction_length=5, patch_length=4, patch_stride=3, d_model=12,
             num_hidden_layers=2, num_attention_heads=3, ffn_dim=16)
past, future = 2 * pixels(3, 22, 2) + 1, pixels(3, 5, 2, seed=2)
observed = (torch.arange(3 * 22 * 2).reshape(3, 22, 2) % 5 != 2)
labels = torch.tensor([2, 0, 1])


def stats(model):
    """Running statistics that are no zeros and ones."""
    torch.manual_seed(3)
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(0.3 * torch.randn_like(b))
        if name.endswith("running_var"):
            b.copy_(0.5 + torch.rand_like(b))
    return model


def per_channel(self, x):
    """transformers' loop overwrites what it reads, so a head for each channel never ran there; this is what it means."""
    y = [self.projections[i](x[:, i].flatten(1)) for i in range(self.num_input_channels)]
    return torch.stack(y, dim=1).transpose(1, 2)


def make(cls, **changes):
    return stats(build(cls, PatchTSTConfig(**dict(SMALL, **changes))))


case("patchtst", make(PatchTSTModel), past_values=past)
case("patchtst-cls", make(PatchTSTModel, use_cls_token=True, norm_type="layernorm", positional_encoding_type="random",
                          scaling="mean"), past_values=past, past_observed_mask=observed,
     instead=dict(past_observed_mask=observed.float()))
case("patchtst-forecast", make(PatchTSTForPrediction, pooling_type=None), past_values=past, future_values=future)
case("patchtst-forecast-post", make(PatchTSTForPrediction, pre_norm=False, bias=False, activation_function="relu",
                                    share_embedding=False, pooling_type="max"),
     past_values=past, past_observed_mask=observed, future_values=future,
     instead=dict(past_observed_mask=observed.float()))
case("patchtst-forecast-plain", make(PatchTSTForPrediction, scaling=None, use_cls_token=True, norm_type="layernorm",
                                     pre_norm=False), past_values=past, future_values=future)
apart = make(PatchTSTForPrediction, share_projection=False, pooling_type=None)
apart.head.forward = per_channel.__get__(apart.head)
case("patchtst-forecast-apart", apart, past_values=past, future_values=future)
case("patchtst-classify", make(PatchTSTForClassification, num_targets=3), past_values=past, labels=labels,
     instead=dict(target_values=labels))
numbers = pixels(3, 2, seed=4)
case("patchtst-regress", make(PatchTSTForRegression, num_targets=2, output_range=[0.0, 3.0], use_cls_token=True),
     past_values=past, labels=numbers, instead=dict(target_values=numbers))
hidden = torch.arange(3 * 2 * 7).reshape(3, 2, 7) % 3 == 1
masked = make(PatchTSTForPretraining, mask_value=1, use_cls_token=True)
masked.model.masking.forward = lambda x: (x.masked_fill(hidden[..., None], 1), hidden)
case("patchtst-masked", masked, past_values=past, bool_masked_pos=hidden)
spread = dict(loss="nll", pooling_type=None)
case("patchtst-forecast-student", make(PatchTSTForPrediction, **spread), past_values=past, future_values=future)
case("patchtst-forecast-normal", make(PatchTSTForPrediction, distribution_output="normal", **spread), past_values=past,
     past_observed_mask=observed, future_values=future, instead=dict(past_observed_mask=observed.float()))
counts = tokens(12, 3, 22, 2, low=0).float()
later = tokens(12, 3, 5, 2, seed=2, low=0).float()
case("patchtst-forecast-counts", make(PatchTSTForPrediction, distribution_output="negative_binomial", scaling="mean", **spread),
     past_values=counts, future_values=later)
case("patchtst-regress-student", make(PatchTSTForRegression, num_targets=2, loss="nll"), past_values=past, labels=numbers,
     instead=dict(target_values=numbers))
# of one target transformers drops the axis of the distributions, but not that of target_values, and would pair all with all
case("patchtst-regress-normal", make(PatchTSTForRegression, loss="nll", distribution_output="normal"), past_values=past,
     labels=numbers[:, :1], instead=dict(target_values=numbers[:, 0]))
