"""Cases: sums, statistics and norms."""

import torch

from .types import BOOL, F64, INF


def reductions(c):
    dims = [([1], False), ([1], True), ([0, -1], False), ([-2], True), ([0, 1, 2], True)]
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default"):
        for dim, keepdim in dims:
            c(name, c.d(2, 3, 4), dim, keepdim)
    for name in ("sum.dim_IntList", "mean.dim"):
        c(name, c.f(2, 3), None)
        c(name, c.f(2, 3), None, True)
        c(name, c.f(), [0])
        c(name, c.f(3, 0, 2), [0])
        c(name, c.i(5, 2, 3), [1], dtype=F64)
    c("sum.dim_IntList", c.f(2, 3), [])  # no dimension means all
    c("sum.dim_IntList", c.f(2, 0), [1])
    c("sum.dim_IntList", c.b(3, 4), [1])
    c("sum.dim_IntList", c.i(5, 3, 4), [0])
    for name in ("sum", "mean"):
        c(f"{name}.default", c.f(2, 3))
        c(f"{name}.default", c.f())
        c(f"{name}.default", c.i(5, 4), dtype=F64)
    c("sum.default", c.f(0))
    c("sum.default", c.b(5))
    ties = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], dtype=F64)
    for name in ("amax.default", "amin.default"):
        c(name, c.d(2, 3))
        c(name, ties, [1])  # equals share the gradient
    for name in ("max", "min"):
        c(f"{name}.default", c.d(2, 3))
        c(f"{name}.default", ties)  # equals share the gradient
        c(f"{name}.dim", c.d(2, 3, 4), 1)
        c(f"{name}.dim", c.d(2, 3, 4), -1, True)
        c(f"{name}.dim", ties, 1)  # the first of equals takes it
        c(f"{name}.dim", c.i(9, 2, 3), 0)
    c("prod.default", c.f(2, 3))
    c("prod.default", torch.tensor([2.0, 0.0, 3.0], dtype=F64))
    c("prod.default", torch.tensor([2.0, 0.0, 0.0], dtype=F64))
    c("prod.dim_int", c.f(2, 3), 1)
    c("prod.dim_int", torch.tensor([[0.0, 2.0], [3.0, 4.0]], dtype=F64), 0, True)
    c("prod.default", c.i(4, 3, low=1))
    for name in ("var", "std"):
        c(f"{name}.correction", c.f(2, 3, 4), [1])
        c(f"{name}.correction", c.f(2, 3, 4), [0, -1], correction=0, keepdim=True)
        c(f"{name}.correction", c.f(2, 3), None, correction=1)
        c(f"{name}.correction", c.f(2, 5), [1], correction=2)
        c(f"{name}.dim", c.f(2, 3), [1], False)
        c(f"{name}.default", c.f(2, 3))
        c(f"{name}_mean.correction", c.f(2, 3), [1], correction=0, keepdim=True)
    c("logsumexp.default", torch.tensor([[1000.0, 1000.0], [-INF, 0.0]], dtype=F64), [1])
    for order in (2, 1, INF, 0.5, 3):
        c("linalg_vector_norm.default", c.d(3, 4), order, [1])
    c("linalg_vector_norm.default", c.f(3, 4))
    c("linalg_vector_norm.default", c.f(2, 3, 4), 2, [0, -1], True)
    c("linalg_vector_norm.default", torch.zeros(2, 2, dtype=F64), 2, [1])  # the gradient at 0 is 0
    c("norm.ScalarOpt_dim", c.f(2, 3), 2, [1], True)
    c("norm.Scalar", c.f(2, 3), 2)
    for name in ("any", "all"):
        c(f"{name}.default", c.b(2, 3))
        c(f"{name}.default", torch.zeros(0, dtype=BOOL))
        c(f"{name}.dim", c.b(3, 2), 1)
        c(f"{name}.dim", c.i(2, 3, 2), 0, True)
    c("_is_all_true.default", c.b(3))
    c("count_nonzero.default", torch.tensor([0, 1, 2, 0]))


def norms(c):
    for name in ("layer_norm.default", "native_layer_norm.default"):
        c(name, c.f(2, 3, 4), [4], c.f(4), c.f(4), 1e-5)
        c(name, c.f(2, 3, 4), [3, 4], c.f(3, 4), c.f(3, 4), 1e-3)
        c(name, c.f(5, 4), [4], None, None, 1e-12)
        c(name, c.f(5, 4), [4], c.f(4), None, 1e-5)
        c(name, c.f(0, 4), [4], c.f(4), c.f(4), 1e-5)
        c(name, c.f(3, 1), [1], c.f(1), c.f(1), 1e-5)
        c(name, 1000 + 1e-2 * c.f(2, 8), [8], c.f(8), c.f(8), 1e-5)
    c("layer_norm.default", c.f(2, 4), [4])
    c("rms_norm.default", c.f(2, 3, 4), [4], c.f(4), 1e-6)
    c("rms_norm.default", c.f(2, 3, 4), [3, 4], None, 1e-5)
    c("rms_norm.default", c.f(2, 4), [4], c.f(4))  # epsilon is the dtype's
    c("_fused_rms_norm.default", c.f(2, 4), [4], c.f(4), 1e-5)
    c("group_norm.default", c.f(2, 6, 3), 3, c.f(6), c.f(6))
    c("group_norm.default", c.f(2, 4, 2, 3), 2)
    c("group_norm.default", c.f(2, 4, 2), 4, c.f(4), None, 1e-3)
    c("group_norm.default", c.f(3, 4), 1, c.f(4), c.f(4))
    c("native_group_norm.default", c.f(2, 6, 5), c.f(6), c.f(6), 2, 6, 5, 3, 1e-5)
    c("instance_norm.default", c.f(2, 3, 5), c.f(3), c.f(3), None, None, True, 0.1, 1e-5, False)

    def statistics(count):  # as buffers: PyTorch gives them no gradient in training
        return c.fixed(c.f(count)), c.fixed(c.u(0.5, 2, count))

    for shape in ((2, 3, 4, 2), (5, 3), (2, 3, 4)):
        for training in (True, False):
            c("batch_norm.default", c.f(*shape), c.f(3), c.f(3), *statistics(3), training, 0.1, 1e-5, False)
    c("batch_norm.default", c.f(4, 3), None, None, *statistics(3), True, 0.3, 1e-3, False)
    c("batch_norm.default", c.f(4, 3), c.f(3), c.f(3), None, None, True, 0.1, 1e-5, False)
    for training in (True, False):
        c("native_batch_norm.default", c.f(2, 3, 4), c.f(3), c.f(3), *statistics(3), training, 0.1, 1e-5)
        c("_native_batch_norm_legit_functional.default", c.f(2, 3, 4), c.f(3), c.f(3), *statistics(3), training, 0.1, 1e-5)
    c("_native_batch_norm_legit.no_stats", c.f(2, 3, 4), c.f(3), c.f(3), True, 0.1, 1e-5)
    c("_native_batch_norm_legit_no_training.default", c.f(2, 3, 4), c.f(3), c.f(3), *statistics(3), 0.1, 1e-5)

    c("_weight_norm.default", c.f(3, 4, 2), c.f(3, 1, 1))
    c("_weight_norm.default", c.f(3, 4, 2), c.f(1, 1, 2), 2)

    extremes = torch.tensor([[1000.0, 999.0, -1000.0], [-INF, 0.0, 1.0]], dtype=F64)
    for plain, spelled in (("softmax.int", "_softmax.default"), ("log_softmax.int", "_log_softmax.default")):
        c(plain, c.f(2, 3, 4), -1)
        c(plain, c.f(2, 3, 4), 1)
        c(plain, c.f(3), 0)
        c(plain, extremes, 1)
        c(plain, c.f(2, 0), 1)
        c(plain, c.f(2, 1), 1)
        c(plain, c.f(2, 3), 1, F64)
        c(spelled, c.f(2, 3, 4), 0, False)
        c(spelled, extremes, -1, False)


def distances(c):
    for p in (2.0, 1.0, 3.0, INF):
        c("cdist.default", c.f(3, 4), c.f(5, 4), p)
    c("cdist.default", c.f(2, 1, 3, 4), c.f(5, 2, 4), 2.0, None)
    c("cdist.default", c.f(0, 4), c.f(5, 4))
    for name in ("trapezoid.dx", "cumulative_trapezoid.dx"):
        c(name, c.f(2, 5))
        c(name, c.f(4, 3), dx=0.5, dim=0)
        c(name, c.f(3, 1))
    for name in ("trapezoid.x", "cumulative_trapezoid.x"):
        c(name, c.f(2, 5), c.f(5))
        c(name, c.f(4, 3), c.f(4, 3), dim=0)
        c(name, c.f(4, 3), c.f(4), dim=0)
    c("kron.default", c.f(2, 3), c.f(3, 2))
    c("kron.default", c.f(2, 2, 2), c.f(3))
    c("kron.default", c.f(3), c.f(2, 2))
    c("kron.default", c.i(9, 2), c.i(9, 3))
    c("bilinear.default", c.f(3, 4), c.f(3, 5), c.f(2, 4, 5), c.f(2))
    c("bilinear.default", c.f(2, 3, 4), c.f(2, 3, 5), c.f(2, 4, 5))
    for reduction in (0, 1, 2):
        c("triplet_margin_loss.default", c.f(4, 3), c.f(4, 3), c.f(4, 3), 2.0, 2.0, 1e-6, False, reduction)
        c("triplet_margin_loss.default", c.f(4, 3), c.f(4, 3), c.f(4, 3), 3.0, 3.0, 1e-6, True, reduction)
    c("triplet_margin_loss.default", c.f(4, 3), c.f(1, 3), c.f(4, 3))
    c("div.out", c.fixed(c.f(2, 3)), c.fixed(c.u(0.5, 2, 3)), out=c.fixed(c.f(2, 3)))


def order_statistics(c):
    c("median.dim", c.d(3, 4), 1)
    c("median.dim", c.d(3, 5), 0, True)
    c("median.dim", c.d(2, 3, 2), -1)
    c("median.dim", torch.tensor([[1.0, float("nan"), 3.0], [3.0, 1.0, 2.0]], dtype=F64), 1)
    c("median.dim", torch.tensor([3, 1, 2]), 0)
    c("median.default", c.d(3, 4))
    c("median.default", c.f())
    for how in ("linear", "lower", "higher", "nearest", "midpoint"):
        c("quantile.scalar", c.d(3, 6), 0.3, 1, interpolation=how)
        c("quantile.default", c.d(5, 2), c.fixed(torch.tensor([0.0, 0.45, 1.0], dtype=F64)), 0, True, interpolation=how)
    c("quantile.scalar", c.d(3, 4), 0.5)
    c("quantile.default", c.d(3, 4), c.fixed(torch.tensor(0.25, dtype=F64)))
    c("quantile.scalar", torch.tensor([1.0, float("nan"), 3.0], dtype=F64), 0.5)


def variables(c):
    for p in (2.0, 1.0, 3.0):
        c("pdist.default", c.f(4, 3), p)
    c("block_diag.default", [c.f(2, 3), c.f(2), c.f(), c.f(1, 2)])
    c("cartesian_prod.default", [c.f(2), c.f(3), c.f(2)])
    c("cov.default", c.f(3, 5))
    c("cov.default", c.f(5), correction=0)
    c("cov.default", c.f(3, 2), correction=2)  # divided by 0
    c("cov.default", c.f(2, 4), fweights=torch.tensor([1, 3, 2, 1]))
    c("cov.default", c.f(2, 4), correction=0, fweights=torch.tensor([1, 3, 2, 1]), aweights=c.fixed(c.u(0.5, 2, 4)))
    c("cov.default", c.f(2, 4), aweights=c.fixed(c.u(0.5, 2, 4)))
    c("corrcoef.default", c.f(3, 5))
    c("corrcoef.default", c.f(5))
    for dim in (0, 1):
        for k in (1, 3):
            c("kthvalue.default", c.d(3, 4), k, dim, k == 3)
    c("kthvalue.default", c.i(99, 5), 2)
    labels = torch.tensor([[2, 0, -1, 1], [1, 1, 3, -1], [-1, 2, 0, 0]])
    for reduction in (0, 1, 2):
        c("multilabel_margin_loss.default", c.d(3, 4), labels, reduction)
        c("multilabel_margin_loss_forward.default", c.d(3, 4), labels, reduction)
    c("multilabel_margin_loss.default", c.d(4), labels[0])
    c("multilabel_margin_loss.default", torch.tensor([1.0, 0.0, 2.0], dtype=F64), torch.tensor([0, -1, 1]))  # at a tie
    for dim in (0, 1):
        c("renorm.default", c.f(3, 4), 2, dim, 1.5)
    c("renorm.default", c.f(2, 3, 2), 1.0, 1, 3.0)
    c("max_unpool2d.default", c.f(1, 2, 2, 2), torch.tensor([[0, 3, 5, 7], [1, 2, 4, 6]]).view(1, 2, 2, 2), [2, 4])
    c("max_unpool3d.default", c.f(1, 2, 1, 2), torch.tensor([0, 7, 5, 2]).view(1, 2, 1, 2), [2, 2, 2], [1, 2, 1], [0, 0, 0])
