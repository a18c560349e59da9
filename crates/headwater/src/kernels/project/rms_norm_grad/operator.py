"""`rms_norm`: PyTorch's own operators forward, `rms_norm_backward` for the gradients."""

import torch

from ._rms_norm_backward import rms_norm_backward


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, rstd, weight)
        return (wide * rstd * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        x, rstd, weight = ctx.saved_tensors
        return *rms_norm_backward(grad_output, x, rstd, weight), None


def rms_norm(x, weight, eps=1e-6):
    """`x * rstd * weight` with `rstd = 1 / sqrt(mean(x**2, dim=-1) + eps)`, by PyTorch's operators.

    `x` is [..., d], float16 or float32, and `weight` is [d] of the same dtype; the result is as `x`. Its gradients are
    those of `rms_norm_backward`, with its shapes; there are no second derivatives.
    """
    return _RmsNorm.apply(x, weight, eps)
