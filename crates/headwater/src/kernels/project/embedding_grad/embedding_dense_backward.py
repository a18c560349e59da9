"""`embedding_dense_backward`: the dense gradient of an embedding's table."""

import torch

from ._library import NAMESPACE, autograd, define, fake

define(
    "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx)"
    " -> (Tensor, Tensor)"
)


@fake("embedding_dense_backward")
def _(grad_output, indices, num_weights, padding_idx):
    table = grad_output.new_empty((num_weights, grad_output.shape[-1]))
    return table, grad_output.new_empty((8,), dtype=torch.int32)


def _setup(ctx, inputs, output):
    _, indices, _, padding_idx = inputs
    _, report = output
    ctx.mark_non_differentiable(report)
    ctx.save_for_backward(indices)
    ctx.padding_idx = padding_idx


def _backward(ctx, grad_table, _):
    # Sums by index; the derivative takes each row back to where it was read.
    (indices,) = ctx.saved_tensors
    grad = torch.nn.functional.embedding(indices, grad_table)
    return grad.masked_fill((indices == ctx.padding_idx).unsqueeze(-1), 0), None, None, None


autograd("embedding_dense_backward", _backward, _setup)


def embedding_dense_backward(grad_output, indices, num_weights, padding_idx=-1, check_indices=False):
    """The gradient of an embedding's table, [num_weights, d]: row i is the sum of the rows of `grad_output` whose
    index is i.

    `grad_output` is [*indices.shape, d], float16 or float32; `indices` are int32 or int64. Sums are float32, in the
    order of the indices, and rounded once at the end: the bits are the same in every run. Row `padding_idx` is zero;
    -1 is no row. Indices outside of 0 to num_weights - 1 add nothing; with `check_indices`, which waits for the NPU,
    they raise an `IndexError`. A shape that is not built raises a `RuntimeError` that lists those that are.
    """
    operator = getattr(torch.ops, NAMESPACE).embedding_dense_backward
    table, report = operator(grad_output, indices, num_weights, padding_idx)
    if check_indices:
        number, position, low, high, *_ = report.tolist()
        if number > 0:
            index = (high << 32) | (low & 0xFFFFFFFF)
            raise IndexError(
                f"{number} of {indices.numel()} indices are outside of 0 to {num_weights - 1};"
                f" the first is {index}, at position {position}"
            )
    return table
