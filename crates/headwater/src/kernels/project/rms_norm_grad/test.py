"""Compares `rms_norm_backward` with PyTorch in float64, for every shape that is built.

    python test_rms_norm_grad.py [--device npu:0]
"""

import torch
from headwater_OPERATOR import KERNELS, rms_norm_backward

from comparison import Comparison, gamma

EPS = 1e-6

comparison = Comparison(KERNELS, "rms_norm_grad", __doc__)
for name, dtype, _, (rows, dim) in comparison.cases:
    x, weight, grad = (comparison.random(shape, dtype) for shape in ((rows, dim), (dim,), (rows, dim)))
    rstd = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPS)
    operands = (t.to(comparison.device) for t in (grad, x, rstd.float(), weight))
    grad_x, grad_weight = rms_norm_backward(*operands)

    x, weight, grad = (t.double() for t in (x, weight, grad))
    truth = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    torch.nn.functional.rms_norm(truth[0], (dim,), truth[1], EPS).backward(grad)

    # rstd (rounded once) stands once in the first term of the gradient, and three times in the second.
    first = (rstd * grad * weight).abs()
    second = x.abs() * rstd**3 / dim * (grad * x * weight).abs().sum(-1, keepdim=True)
    bound = gamma(3 + 1) * first + gamma(20 + 3) * second
    comparison.check(f"{name}: gradient of x", grad_x, truth[0].grad, bound)
    # A product, rstd, the sum over a range of rows, and 6 levels of a tree over 64 ranges.
    bound = gamma(2 + 1 + -(-rows // 64) - 1 + 6) * (grad * x * rstd).abs().sum(0)
    comparison.check(f"{name}: gradient of weight", grad_weight, truth[1].grad, bound)
comparison.end()
