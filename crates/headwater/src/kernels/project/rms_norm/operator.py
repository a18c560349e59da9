"""`rms_norm`: RMS norm over the last dimension, with gradients by `rms_norm_backward`."""

import torch

from ._kernels import EPS
from ._library import NAMESPACE, autograd, define, fake
from ._rms_norm_backward import rms_norm_backward

define("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)")


@fake("rms_norm")
def _(x, weight, eps):
    statistics = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=statistics)


def _setup(ctx, inputs, output):
    x, weight, _ = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.save_for_backward(x, rstd, weight)


def _backward(ctx, grad_output, _):
    x, rstd, weight = ctx.saved_tensors
    grad_x, grad_weight = rms_norm_backward(grad_output, x, rstd, weight)
    return grad_x, grad_weight, None


autograd("rms_norm", _backward, _setup)


def rms_norm(x, weight, eps=EPS):
    """`x * rstd * weight` with `rstd = 1 / sqrt(mean(x**2, dim=-1) + eps)`.

    `x` is [..., d], float16 or float32, and `weight` is [d] of the same dtype; the result is as `x`. Sums are float32,
    and rounded once at the end. `eps` is the one that the kernels are built for. Gradients of `x` and `weight` use the
    `rstd` of the forward pass; there are no second derivatives. A shape that is not built raises a `RuntimeError` that
    lists those that are.
    """
    return getattr(torch.ops, NAMESPACE).rms_norm(x, weight, eps)[0]
