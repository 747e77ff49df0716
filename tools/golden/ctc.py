"""Golden numbers of the CTC loss for tests/ops/test_ctc.c, from torch.nn.functional.ctc_loss in f64.

Run: python3 tools/golden/ctc.py tests/golden/ctc.safetensors   (made with torch 2.15.0)"""
import sys

import torch
from safetensors.torch import save_file

torch.manual_seed(3)
B, T, U, V = 5, 40, 9, 12
x = (2 * torch.randn(B, T, V)).float().double().requires_grad_(True)
labels = torch.randint(1, V, (B, U))
labels[0, 3:6] = labels[0, 3]  # a label three times in a row needs blanks between
tlen, ulen = torch.tensor([40, 33, 12, 40, 5]), torch.tensor([9, 9, 5, 0, 5])
dy = torch.tensor([1.0, -0.5, 2.0, 1.5, 1.0]).double()
y = torch.nn.functional.ctc_loss(x.log_softmax(-1).transpose(0, 1), labels, tlen, ulen, blank=0, reduction="none")
(y * dy).sum().backward()
save_file({"ctc.x": x.detach().float(), "ctc.labels": labels.int(), "ctc.tlen": tlen.int(), "ctc.ulen": ulen.int(),
           "ctc.dy": dy.float(), "ctc.y": y.detach().float(), "ctc.dx": x.grad.float()}, sys.argv[1])
print(y.tolist())
