"""Compares `rms_norm` and its gradients with PyTorch in float64, for every shape that is built.

    python test_rms_norm.py [--device npu:0]
"""

import torch
from headwater_OPERATOR import EPS, KERNELS, rms_norm

from comparison import Comparison, gamma

comparison = Comparison(KERNELS, "rms_norm", __doc__)
# The kernels have eps as float32.
eps = torch.tensor(EPS, dtype=torch.float32).item()
for name, dtype, _, (rows, dim) in comparison.cases:
    x, weight, grad = (comparison.random(shape, dtype) for shape in ((rows, dim), (dim,), (rows, dim)))

    on_device = [t.to(comparison.device, copy=True).requires_grad_() for t in (x, weight)]
    y = rms_norm(*on_device, EPS)
    y.backward(grad.to(comparison.device))

    x, weight, grad = (t.double() for t in (x, weight, grad))
    truth = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    wanted = torch.nn.functional.rms_norm(truth[0], (dim,), truth[1], eps)
    wanted.backward(grad)

    # rstd: a square, 12 levels of a tree, quotient, sum, root and reciprocal. y: two products more.
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    comparison.check(f"{name}: y", y, wanted.detach(), gamma(19) * wanted.detach().abs())
    # rstd (17 roundings) stands once in the first term of the gradient, and three times in the second.
    first = (rstd * grad * weight).abs()
    second = x.abs() * rstd**3 / dim * (grad * x * weight).abs().sum(-1, keepdim=True)
    bound = gamma(3 + 17) * first + gamma(20 + 3 * 17) * second
    comparison.check(f"{name}: gradient of x", on_device[0].grad, truth[0].grad, bound)
    # A product, rstd, the sum over a range of rows, and 6 levels of a tree over 64 ranges.
    bound = gamma(2 + 17 + -(-rows // 64) - 1 + 6) * (grad * x * rstd).abs().sum(0)
    comparison.check(f"{name}: gradient of weight", on_device[1].grad, truth[1].grad, bound)
comparison.end()
