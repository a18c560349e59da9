"""Cases: indices, orders, embeddings and bags of them."""

import torch

from .types import BOOL, F64, I64


def indexing(c):
    one, two = torch.tensor([2, 0, -1]), torch.tensor([[0, 1], [3, -2]])
    c("index.Tensor", c.f(4, 5), [one])
    c("index.Tensor", c.f(4, 5), [None, two])
    c("index.Tensor", c.f(4, 5), [two, torch.tensor([4, 0])])
    c("index.Tensor", c.f(4, 5, 3), [one, None, torch.tensor([0, 1, 1])])  # separated by a slice: the indexed dimension comes first
    c("index.Tensor", c.f(2, 4, 5), [None, one, torch.tensor([0, 1, 1])])  # adjacent: it stays in place
    c("index.Tensor", c.f(4, 5), [torch.tensor(2)])
    c("index.Tensor", c.f(4, 5), [torch.zeros(0, dtype=I64)])
    c("index.Tensor", c.f(4, 3), [torch.tensor([True, False, True, True])])
    c("index.Tensor", c.f(2, 3), [torch.tensor([[True, False, True], [False, True, True]])])
    c("index.Tensor", c.i(9, 4), [two])
    for name in ("index_put", "index_put_"):
        c(f"{name}.default", c.f(4, 5), [one], c.f(3, 5))
        c(f"{name}.default", c.f(4, 5), [torch.tensor([1, 1, 3])], c.f(3, 5), True)
        c(f"{name}.default", c.f(4, 5), [None, torch.tensor([0, 4])], c.f())
        c(f"{name}.default", c.f(4, 5), [one, torch.tensor([1, 2, 1])], c.f(3))
        c(f"{name}.default", c.f(2, 3), [torch.tensor([[True, False, True], [False, True, True]])], c.f())
        c(f"{name}.default", c.i(9, 5), [torch.tensor([1, 2])], torch.tensor(7))
    c("index_select.default", c.f(4, 3), 0, torch.tensor([3, 1, 1]))
    c("index_select.default", c.f(4, 3), -1, torch.tensor([2]))
    c("index_select.default", c.f(4, 3), 0, torch.zeros(0, dtype=I64))
    for name in ("index_add", "index_add_"):
        c(f"{name}.default", c.f(4, 3), 0, torch.tensor([1, 1, 3]), c.f(3, 3))
    c("index_add.default", c.f(2, 4), -1, torch.tensor([0, 3]), c.f(2, 2), alpha=-2)
    c("index_copy.default", c.f(4, 3), 0, torch.tensor([3, 1]), c.f(2, 3))
    c("index_copy.default", c.f(2, 4), -1, torch.tensor([0, 3]), c.f(2, 2))
    c("index_fill.int_Scalar", c.f(4, 3), 0, torch.tensor([3, 1]), 2.0)
    c("gather.default", c.f(3, 4), 1, c.i(4, 3, 2))
    c("gather.default", c.f(3, 4), 0, c.i(3, 5, 4))
    c("gather.default", c.f(2, 3, 4), -2, c.i(3, 2, 1, 4))
    c("gather.default", c.f(3), 0, torch.tensor(1))
    c("take_along_dim.default", c.f(3, 4), c.i(4, 3, 2), 1)
    unique = torch.tensor([[0, 2], [3, 1], [1, 0]])
    for name in ("scatter", "scatter_"):
        c(f"{name}.src", c.f(3, 4), 1, unique, c.f(3, 2))
        c(f"{name}.value", c.f(3, 4), 1, unique, 2.5)
    c("scatter.src", c.f(3, 4), 1, unique, c.fixed(c.f(5, 4)))  # the source is larger than the index
    c("scatter.value", c.i(3, 3, 4), -1, unique, 1)
    c("scatter_add.default", c.f(3, 4), 1, c.i(4, 3, 5), c.f(3, 5))
    c("scatter_add.default", c.f(4, 2), 0, c.i(4, 6, 2), c.fixed(c.f(6, 3)))
    c("scatter_add_.default", c.f(4), 0, c.i(4, 6), c.f(6))
    c("scatter_reduce.two", c.f(3, 4), 1, c.i(4, 3, 5), c.f(3, 5), "sum")
    c("scatter_reduce.two", c.f(3, 4), 1, c.i(4, 3, 5), c.d(3, 5), "amax", include_self=False)
    c("scatter_reduce.two", c.f(3, 4), 1, c.i(4, 3, 5), c.f(3, 5), "mean")
    mask = torch.tensor([[True, False, True], [False, True, True]])
    c("masked_scatter.default", c.f(2, 3), mask, c.f(4))
    c("masked_scatter.default", c.f(2, 3), torch.tensor([True, False, True]), c.f(2, 4))
    c("masked_scatter.default", c.f(2, 3), torch.zeros(2, 3, dtype=BOOL), c.f(2))
    c("embedding.default", c.f(6, 3), torch.tensor([[0, 5], [2, 2]]))
    c("embedding.default", c.f(6, 3), torch.tensor([0, 5, 2, 2]), 2)  # row 2 gets no gradient
    c("embedding.default", c.f(6, 3), torch.tensor(4))
    c("embedding.default", c.f(6, 3), torch.tensor([1, 1, 1]), -1, True)  # divided by how often a row is used
    c("embedding.default", c.f(6, 3), torch.zeros(0, dtype=I64))


def ordering(c):
    c("sort.default", c.d(3, 5))
    c("sort.default", c.d(3, 5), 0, True)
    c("sort.stable", c.i(3, 8), stable=True)
    c("sort.stable", c.i(3, 8), stable=True, descending=True)
    c("argsort.default", c.d(3, 5), 1)
    c("argsort.stable", c.i(3, 8), stable=True)
    c("topk.default", c.d(3, 5), 2)
    c("topk.default", c.d(5, 3), 2, 0, False)
    c("topk.default", c.d(4), 4)
    c("topk.default", c.d(4), 0)
    for name in ("argmax", "argmin"):
        c(f"{name}.default", c.d(3, 4))
        c(f"{name}.default", c.d(3, 4), 1)
        c(f"{name}.default", c.d(3, 4), -2, True)
        c(f"{name}.default", torch.tensor([[1, 0, 1, 0], [2, 2, 2, 2]]), 1)  # the first of equals
    for dim in (0, 1, -1):
        c("cumsum.default", c.f(3, 4), dim)
    c("cumsum.default", c.b(5), 0)
    c("cumsum.default", c.i(5, 2, 3), 1)
    c("cumsum.default", c.f(0, 3), 0)
    c("cumsum.default", c.f(), 0)
    c("cumsum.default", c.i(5, 4), 0, dtype=F64)
    c("cumprod.default", c.f(3, 4), 1)
    c("logcumsumexp.default", c.f(3, 4), 1)
    c("cummax.default", c.d(3, 4), 1)
    c("diff.default", c.f(2, 5))
    c("diff.default", c.f(5, 2), 2, 0)
    c("diff.default", c.i(9, 2, 5), 1, -1, c.i(9, 2, 1))
    c("diff.default", c.f(2, 3), 1, -1, None, c.f(2, 1))
    c("histc.default", torch.tensor([0.0, 1.0, 1.0, 3.0, 7.0], dtype=F64), 8, 0, 7)
    c("histc.default", torch.tensor([-1.0, 0.2, 0.9, 1.0, 2.0], dtype=F64), 4, 0.0, 1.0)
    edges = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    values = torch.tensor([0.5, 1.0, 2.5, 3.0, 9.0], dtype=F64)
    for right in (False, True):
        c("bucketize.Tensor", values, edges, right=right)
        c("searchsorted.Tensor", edges, values, right=right)


def embedding_gradients(c):
    """Cases that others test of the gradient of an embedding, by sizes and attributes.

    CANN's table: the unit tests of aclnnEmbeddingDenseBackward in its `ops-nn` repository, and the limits that the operator's page
    states (gradients of 2 to 8 dimensions, indices of 1 to 8, joined dimensions). PyTorch's: `test/nn/test_embedding.py` and the samples
    of `nn.functional.embedding` in `common_methods_invocations.py`.
    """

    def case(shape, index, rows, padding=-1, by_frequency=False):
        index = torch.as_tensor(index)
        c("embedding_dense_backward.default", c.fixed(c.f(*shape)), index, rows, padding, by_frequency)

    case((4, 3), torch.tensor([1, 2, 3, 4], dtype=torch.int32), 10, 0)  # CANN
    case((4, 3), [0, 1, 0, 4], 10, 0)
    case((2, 3), [1, 2], 4, 0)
    case((4, 3), [4, 4, 4, 4], 10, 0, True)
    case((2, 2, 3), [[0, 9], [9, 9]], 10, -1, True)
    case((4, 3), [[0, 1], [1, 0]], 2)  # joined dimensions
    case((2, 1, 2, 1, 1, 1, 2, 3), c.i(5, 2, 1, 2, 1, 1, 1, 2), 5, 2)  # eight dimensions
    case((5, 5), c.i(5, 5), 5)  # PyTorch
    case((5, 5, 5), c.i(5, 5, 5), 5)
    case((5, 5, 5), c.i(5, 5, 5), 5, 2)
    case((5, 5, 5), c.i(5, 5, 5), 5, -1, True)
    case((2, 4, 20), [[0, 2, 4, 5], [4, 3, 0, 9]], 10, 0)
    case((2, 4, 20), [[0, 2, 4, 5], [4, 3, 0, 9]], 10, 9)
    case((6, 3), [7, 2, 7, 2, 7, 7], 10, 2, True)
    case((300, 2), [3] * 300, 4)  # one row alone, longer than what is summed at once
    case((0, 3), torch.zeros(0, dtype=I64), 4)
    case((2, 0), [1, 0], 4)
    case((3, 3), torch.tensor([0, 999, 0], dtype=torch.int32), 1000)


def bags(c):
    indices, offsets = torch.tensor([4, 0, 1, 1, 3, 0, 2]), torch.tensor([0, 3, 3, 5])  # the second bag is empty
    for mode in (0, 1, 2):
        c("embedding_bag.default", c.d(5, 3), indices, offsets, False, mode)
        c("embedding_bag.default", c.d(5, 3), indices, torch.tensor([0, 2, 7]), False, mode, False, None, True)
        c("embedding_bag.padding_idx", c.d(5, 3), indices, offsets, False, mode, False, None, False, 1)
    c("embedding_bag.default", c.d(5, 3), indices, offsets, True, 0)  # divided by how often a row is used
    c("embedding_bag.default", c.d(5, 3), indices, offsets, False, 0, False, c.f(7))
    c("embedding_bag.padding_idx", c.d(5, 3), indices, offsets, False, 0, False, c.f(7), False, 0)


def without_nan(c):
    holes = torch.tensor([[1.0, float("nan"), -2.0], [0.5, 3.0, float("nan")]], dtype=F64)
    for name in ("nansum.default", "nanmean.default"):
        c(name, c.f(2, 3))
        c(name, holes)
        c(name, holes, [1], True)
        c(name, c.f(2, 3, 4), [0, 2])
    c("nanmean.default", c.fixed(torch.full((2, 2), float("nan"), dtype=F64)), [0])  # PyTorch's gradient is 0 · inf
    c("aminmax.default", c.d(2, 3))
    c("aminmax.default", c.d(2, 3), dim=1, keepdim=True)


def ties(c):
    """Numbers on a bound, or beside an equal one."""
    at = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0, float("nan")], dtype=F64)
    low, high = torch.full((6,), -0.5, dtype=F64), torch.full((6,), 0.5, dtype=F64)
    c("clamp.Tensor", at, low, high)
    c("clamp.Tensor", at, high, low)  # crossed
    c("clamp.Tensor", at, low, low)
    c("clamp.Tensor", at, low, c.fixed(torch.full((6,), float("nan"), dtype=F64)))
    c("clamp.Tensor", at, low)
    c("clamp.Tensor", at, None, high)
    c("clamp.default", at, 0.5, 0.5)
    c("clamp_min.Tensor", at, low)
    c("clamp_max.Tensor", at, high)
    c("clamp_max.Tensor", c.f(2, 3), c.f(3))
    for name in ("relu", "relu6"):
        c(f"{name}.default", torch.tensor([-3.0, 0.0, 3.0, 6.0], dtype=F64))
    c("hardtanh.default", torch.tensor([-1.0, 0.0, 1.0], dtype=F64))
    c("hardswish.default", torch.tensor([-3.0, 0.0, 3.0], dtype=F64))
    c("threshold.default", at, 0.5, 2.0)
    c("leaky_relu.default", torch.tensor([-1.0, 0.0, 1.0], dtype=F64), 0.1)
    c("hardshrink.default", at, 0.5)
    c("softshrink.default", at, 0.5)
    for name in ("fmax", "fmin"):
        c(f"{name}.default", c.d(2, 3), c.d(3))
        c(f"{name}.default", at, high)
        c(f"{name}.default", high, at)
        c(f"{name}.default", c.i(5, 4), c.i(5, 4))
    one = torch.ones(3, dtype=F64)
    zero = torch.zeros(3, dtype=F64)
    signs = torch.tensor([1, -1, -1])
    c("hinge_embedding_loss.default", one, signs, 1.0, 0)
    c("margin_ranking_loss.default", one, zero, torch.tensor([1, -1, 1]), 1.0, 0)
    c("multi_margin_loss.default", torch.tensor([[1.0, 0.0, 2.0]], dtype=F64), torch.tensor([0]))
    c("triplet_margin_loss.default", zero[None], one[None], one[None], 0.0)
