"""`rms_norm_backward`: gradients of an RMS norm over the last dimension."""

import torch

from ._library import NAMESPACE, autograd, define, fake

define("rms_norm_backward(Tensor grad_output, Tensor x, Tensor rstd, Tensor weight) -> (Tensor, Tensor)")


@fake("rms_norm_backward")
def _(grad_output, x, rstd, weight):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _no_second(ctx, *grads):
    raise NotImplementedError("rms_norm_backward has no derivative: an RMS norm can be differentiated once here")


autograd("rms_norm_backward", _no_second)


def rms_norm_backward(grad_output, x, rstd, weight):
    """Gradients of `x` and `weight` for `y = x * rstd * weight`.

    With `n = x * rstd` and `g = grad_output * weight` they are `rstd * (g - n * mean(g * n, dim=-1))`, as `x`, and the
    sum of `grad_output * n` over all rows, as `weight`. `grad_output` and `x` are [..., d], `weight` is [d], all
    float16 or all float32; `rstd` is float32 with one element for each row, such as `torch_npu.npu_rms_norm` returns.
    A shape that is not built raises a `RuntimeError` that lists those that are.
    """
    return getattr(torch.ops, NAMESPACE).rms_norm_backward(grad_output, x, rstd, weight)
