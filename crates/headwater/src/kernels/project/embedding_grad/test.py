"""Compares `embedding_dense_backward` with PyTorch in float64, for every shape that is built.

    python test_embedding_grad.py [--device npu:0]
"""

import torch
from headwater_OPERATOR import KERNELS, embedding, embedding_dense_backward

from comparison import Comparison, gamma


def gradient(grad, indices, rows, padding=None):
    """PyTorch's gradient of the table."""
    table = torch.zeros(rows, grad.shape[-1], dtype=grad.dtype, requires_grad=True)
    torch.nn.functional.embedding(indices, table, padding).backward(grad)
    return table.grad


comparison = Comparison(KERNELS, "embedding_grad", __doc__)
for name, dtype, index, (number, rows, dim) in comparison.cases:
    # Every other index is one of the first four rows, so that some rows have many gradients.
    indices = torch.randint(rows, (number,), dtype=index)
    indices[::2] %= 4
    grad = comparison.random((number, dim), dtype)
    on_device = indices.to(comparison.device), grad.to(comparison.device)

    table = torch.zeros(rows, dim, dtype=dtype, device=comparison.device, requires_grad=True)
    embedding(on_device[0], table).backward(on_device[1])
    truth = gradient(grad.double(), indices, rows)
    # A sum of n terms in turn has n roundings at most.
    terms = torch.bincount(indices.long(), minlength=rows).double().unsqueeze(-1)
    bound = gamma(terms) * gradient(grad.double().abs(), indices, rows)
    comparison.check(f"{name}: gradient of the table", table.grad, truth, bound)

    padding = int(indices[0])
    padded = embedding_dense_backward(on_device[1], on_device[0], rows, padding, check_indices=True)
    comparison.check(f"{name}: with padding_idx {padding}", padded, gradient(grad.double(), indices, rows, padding), bound)

    indices[number // 2] = rows
    try:
        embedding_dense_backward(on_device[1], indices.to(comparison.device), rows, check_indices=True)
        comparison.expect(f"{name}: an index outside of the table is found", False)
    except IndexError as error:
        said = f"1 of {number} indices are outside of 0 to {rows - 1}; the first is {rows}, at position {number // 2}"
        comparison.expect(f"{name}: an index outside of the table is found", str(error) == said)
comparison.end()
