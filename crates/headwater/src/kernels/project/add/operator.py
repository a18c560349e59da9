"""`add`: the sum of two tensors."""

import torch

from ._library import NAMESPACE, autograd, define, fake

define("add(Tensor x, Tensor y) -> Tensor")


@fake("add")
def _(x, y):
    return x.new_empty(x.shape)


def _backward(ctx, grad):
    return grad, grad


autograd("add", _backward)


def add(x, y):
    """`x + y`, elementwise.

    Both are float16 or float32, of one shape, without broadcasting; so is the result. Shapes whose number of elements
    is not built raise a `RuntimeError` that lists those that are.
    """
    return getattr(torch.ops, NAMESPACE).add(x, y)
