"""`embedding`: PyTorch's own operator forward, `embedding_dense_backward` for the gradient."""

import torch

from ._embedding_dense_backward import embedding_dense_backward


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, indices, weight, padding_idx):
        ctx.save_for_backward(indices)
        ctx.num_weights = weight.shape[0]
        ctx.padding_idx = -1 if padding_idx is None else padding_idx % weight.shape[0]
        return torch.nn.functional.embedding(indices, weight, padding_idx)

    @staticmethod
    def backward(ctx, grad_output):
        (indices,) = ctx.saved_tensors
        return None, embedding_dense_backward(grad_output, indices, ctx.num_weights, ctx.padding_idx), None


def embedding(indices, weight, padding_idx=None):
    """Rows of a table: `torch.nn.functional.embedding`, with the gradient by `embedding_dense_backward`.

    `indices` are int32 or int64 of any shape, `weight` is [r, d], float16 or float32; the result is
    [*indices.shape, d]. The row `padding_idx`, which may count from the end, gets no gradient.
    """
    return _Embedding.apply(indices, weight, padding_idx)
