"""Cases: creation, views, and what moves elements or changes their type."""

import torch

from .types import BOOL, F64, I64, INF


def casts(c):
    mixed = torch.tensor([-2.7, -0.5, 0.0, 0.5, 2.7], dtype=F64)
    for name in ("to.dtype", "to.dtype_layout", "_to_copy.default"):
        for dtype in (F64, I64, torch.int32, torch.int8, BOOL):
            args = (dtype,) if name == "to.dtype" else ()
            c(name, mixed, *args, **({} if args else {"dtype": dtype}))
        args = (F64,) if name == "to.dtype" else ()
        c(name, c.b(4), *args, **({} if args else {"dtype": F64}))
        c(name, c.i(9, 4, low=-9), *args, **({} if args else {"dtype": F64}))
    c("to.dtype", torch.tensor([300, -300, 255]), torch.uint8)
    c("type_as.default", c.i(5, 3), c.f(1))
    c("type_as.default", c.f(3), c.f(1))
    for name in ("clone", "contiguous", "alias", "detach", "lift_fresh_copy"):
        c(f"{name}.default", c.f(2, 3))
    for name in ("copy", "copy_"):
        c(f"{name}.default", c.i(5, 2, 3), c.i(5, 3))
    c("copy_.default", c.f(2, 3), c.f(3))
    c("copy_.default", c.f(2, 3), c.i(5, 2, 1))


def creation(c):
    c("arange.default", 5)
    c("arange.default", 5, dtype=F64)
    c("arange.default", 0)
    c("arange.default", 2.5)
    c("arange.start", 2, 7)
    c("arange.start", -1, 3, dtype=F64)
    c("arange.start_step", 0, 10, 3)
    c("arange.start_step", 5, -2, -2)
    c("arange.start_step", 0.0, 1.0, 0.3)
    c("linspace.default", -1, 1, 5)
    c("linspace.default", 0.0, 3.0, 1)
    c("full.default", [2, 3], 1.5)
    c("full.default", [], 7)
    c("full.default", [2], -INF)
    c("full.default", [2], True)
    c("full.default", [2], 3, dtype=F64)
    for name in ("zeros", "ones"):
        c(f"{name}.default", [2, 3])
        c(f"{name}.default", [0, 2], dtype=I64)
        c(f"{name}.default", [2], dtype=BOOL)
        c(f"{name}_like.default", c.f(2, 3))
        c(f"{name}_like.default", c.f(2), dtype=I64)
        c(f"new_{name}.default", c.f(2), [3, 1])
        c(f"new_{name}.default", c.i(3, 2), [2], dtype=F64)
    c("full_like.default", c.f(2, 3), 2)
    c("full_like.default", c.i(3, 2), 2.5, dtype=F64)
    c("new_full.default", c.f(2), [2, 2], 3)
    c("eye.default", 3)
    c("eye.m", 2, 4)
    c("eye.m", 4, 2, dtype=I64)
    c("scalar_tensor.default", 2.5, dtype=F64)
    c("fill.Scalar", c.f(2, 3), 2.5)
    c("fill.Tensor", c.f(2, 3), c.f())
    c("fill_.Scalar", c.f(2, 3), 1)
    c("fill_.Tensor", c.f(2, 3), c.f())
    c("zero.default", c.f(2, 3))
    c("zero_.default", c.f(2, 3))
    for name in ("tril", "triu"):
        for diagonal in (0, 1, -2, 5):
            c(f"{name}.default", c.f(2, 3, 4), diagonal)
        c(f"{name}.default", c.f(4, 2))
    c("tril_indices.default", 3, 4, 1)
    c("one_hot.default", torch.tensor([[0, 2], [1, 1]]), 4)
    c("one_hot.default", torch.tensor([0, 2, 1]))


def views(c):
    for name in ("view.default", "reshape.default", "_unsafe_view.default"):
        c(name, c.f(2, 6), [3, 4])
        c(name, c.f(2, 6), [-1])
        c(name, c.f(2, 3, 4), [2, -1, 2, 2])
        c(name, c.f(1), [])
        c(name, c.f(0, 3), [3, 0])
    c("view_as.default", c.f(2, 6), c.f(4, 3))
    c("reshape_as.default", c.f(2, 6), c.f(4, 3))
    c("flatten.using_ints", c.f(2, 3, 4))
    c("flatten.using_ints", c.f(2, 3, 4), 1)
    c("flatten.using_ints", c.f(2, 3, 4), -3, -2)
    c("flatten.using_ints", c.f())
    c("unflatten.int", c.f(2, 6), -1, [2, -1])
    c("expand.default", c.f(3, 1), [3, 4])
    c("expand.default", c.f(3, 1), [2, -1, 4])
    c("expand.default", c.f(), [2, 3])
    c("expand.default", c.f(1, 3), [0, 3])
    c("expand_as.default", c.f(3, 1), c.f(2, 3, 4))
    c("broadcast_tensors.default", [c.f(3, 1), c.f(4), c.f()])
    c("permute.default", c.f(2, 3, 4), [2, 0, 1])
    c("permute.default", c.f(2, 3, 4), [0, -1, 1])
    c("transpose.int", c.f(2, 3, 4), 1, 2)
    c("transpose.int", c.f(2, 3, 4), -1, 0)
    c("transpose.int", c.f(2, 3), 1, 1)
    c("t.default", c.f(2, 3))
    c("t.default", c.f(3))
    c("numpy_T.default", c.f(2, 3, 4))
    c("mT.default", c.f(2, 3, 4))
    c("movedim.int", c.f(2, 3, 4), 0, -1)
    c("movedim.intlist", c.f(2, 3, 4), [0, 1], [2, 0])
    c("swapaxes.default", c.f(2, 3, 4), 0, 2)
    for dim in (0, 1, -1, 2):
        c("unsqueeze.default", c.f(2, 3), dim)
    c("unsqueeze.default", c.f(), 0)
    c("squeeze.default", c.f(1, 3, 1))
    c("squeeze.dim", c.f(1, 3, 1), 0)
    c("squeeze.dim", c.f(1, 3, 1), 1)
    c("squeeze.dim", c.f(1, 3, 1), -1)
    c("squeeze.dims", c.f(1, 3, 1, 1), [0, -1])
    c("select.int", c.f(2, 3, 4), 1, 2)
    c("select.int", c.f(2, 3, 4), -1, -1)
    c("select.int", c.f(3), 0, 1)
    big = 9223372036854775807
    for start, end, step in ((0, big, 1), (1, 3, 1), (None, None, 2), (-2, big, 1), (1, -1, 1), (3, 2, 1), (0, 100, 3), (-100, 2, 1)):
        c("slice.Tensor", c.f(2, 5), 1, start, end, step)
    c("slice.Tensor", c.f(4, 2))
    c("slice.Tensor", c.f(4, 2), -2, 1)
    c("narrow.default", c.f(2, 5), 1, 1, 3)
    c("narrow.default", c.f(2, 5), -1, -3, 2)
    c("split.Tensor", c.f(5, 2), 2)
    c("split.Tensor", c.f(2, 6), 3, -1)
    c("split_with_sizes.default", c.f(2, 6), [1, 0, 5], 1)
    c("chunk.default", c.f(5, 2), 3)  # sizes 2, 2, 1
    c("chunk.default", c.f(2, 4), 3, -1)  # two chunks, not three
    c("chunk.default", c.f(2, 2), 4, 1)
    c("unbind.int", c.f(3, 2))
    c("unbind.int", c.f(2, 3, 2), -2)
    c("diagonal.default", c.f(3, 4))
    c("diagonal.default", c.f(2, 3, 4), 1, 1, 2)
    c("diagonal.default", c.f(3, 4), -1)
    c("unfold.default", c.f(2, 7), 1, 3, 2)
    c("as_strided.default", c.f(3, 4), [2, 2], [4, 1], 1)


def movement(c):
    c("cat.default", [c.f(2, 3), c.f(1, 3)])
    c("cat.default", [c.f(2, 3), c.f(2, 1), c.f(2, 2)], -1)
    c("cat.default", [c.f(0), c.f(2, 3)], 0)  # the one-dimensional empty tensor that PyTorch lets through
    c("cat.default", [c.f(2, 0), c.f(2, 3)], 1)
    c("cat.default", [c.i(4, 2), c.f(3)])
    c("stack.default", [c.f(2, 3), c.f(2, 3)])
    c("stack.default", [c.f(2), c.f(2), c.f(2)], -1)
    c("pad.default", c.f(2, 3), [1, 2])
    c("pad.default", c.f(2, 3), [1, 0, 0, 2], "constant", 1.5)
    c("pad.default", c.f(2, 4), [-1, 2])
    c("pad.default", c.i(4, 2, 3), [1, 0], "constant", 1.0)
    c("constant_pad_nd.default", c.f(2, 3), [1, -1, 0, 1], 0.5)
    for mode in ("reflect", "replicate", "circular"):
        c("pad.default", c.f(1, 2, 4), [2, 1], mode)
        c("pad.default", c.f(1, 2, 3, 4), [1, 2, 2, 1], mode)
    c("reflection_pad1d.default", c.f(2, 4), [2, 3])
    c("reflection_pad2d.default", c.f(2, 3, 4), [2, 1, 1, 2])
    c("replication_pad2d.default", c.f(2, 3, 4), [2, 1, 1, 2])
    c("roll.default", c.f(2, 5), [2], [1])
    c("roll.default", c.f(3, 4), [-1, 6], [0, 1])
    c("roll.default", c.f(3, 4), [3])
    c("flip.default", c.f(2, 3, 4), [0, -1])
    c("flip.default", c.f(3), [])
    c("repeat.default", c.f(2, 3), [2, 2])
    c("repeat.default", c.f(3), [2, 1, 2])
    c("repeat.default", c.f(2), [0])
    c("tile.default", c.f(2, 3), [2])
    c("repeat_interleave.self_int", c.f(2, 3), 2, 1)
    c("repeat_interleave.self_int", c.f(2, 3), 3)
    c("select_scatter.default", c.f(3, 4), c.f(3), 1, -1)
    c("slice_scatter.default", c.f(3, 5), c.f(3, 2), 1, 1, 5, 2)
    c("slice_scatter.default", c.f(4, 2), c.f(2, 2), 0, 2)
    c("diagonal_scatter.default", c.f(3, 4), c.f(3))
    c("diagonal_scatter.default", c.f(3, 4), c.f(3), 1)
    c("im2col.default", c.f(2, 3, 5, 5), [3, 2], [1, 1], [1, 0], [2, 1])
    c("im2col.default", c.f(1, 2, 4, 4), [2, 2], [1, 1], [0, 0], [2, 2])
    c("col2im.default", c.f(2, 3 * 4, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])
    c("col2im.default", c.f(1, 2 * 6, 12), [5, 5], [3, 2], [1, 1], [1, 0], [2, 1])
    c("pixel_shuffle.default", c.f(2, 8, 2, 3), 2)
    c("pixel_unshuffle.default", c.f(1, 2, 4, 6), 2)
    c("meshgrid.indexing", [c.f(2), c.f(3)], indexing="ij")
    c("meshgrid.indexing", [c.f(2), c.f(3)], indexing="xy")


def windows(c):
    for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window"):
        for n in (0, 1, 2, 5, 8):
            c(f"{name}.default", n, dtype=F64)
            for periodic in (True, False):
                c(f"{name}.periodic", n, periodic, dtype=F64)
    c("hamming_window.periodic_alpha", 6, True, 0.6, dtype=F64)
    c("hamming_window.periodic_alpha_beta", 6, False, 0.6, 0.3, dtype=F64)


def turns(c):
    for k in (-1, 0, 1, 2, 3):
        c("rot90.default", c.f(2, 3), k)
        c("rot90.default", c.f(2, 3, 4), k, [2, 0])
    c("fliplr.default", c.f(2, 3))
    c("flipud.default", c.f(2, 3))
    c("moveaxis.int", c.f(2, 3, 4), 0, 2)
    c("moveaxis.intlist", c.f(2, 3, 4), [0, 1], [2, 0])
    c("unsafe_chunk.default", c.f(7, 2), 3)
    c("unsafe_split.Tensor", c.f(7, 2), 3)
    c("unsafe_split_with_sizes.default", c.f(2, 5), [1, 4], 1)
    for name in ("special_softmax.default", "special_log_softmax.default"):
        c(name, c.f(2, 3), 1)
    c("special_logsumexp.default", c.f(2, 3), [1])


def alignments(c):
    targets = torch.tensor([[1, 1, 2], [3, 0, 0], [2, 1, 3]])  # repeated, short, all different
    frames, lengths = torch.tensor([6, 4, 5]), torch.tensor([3, 1, 3])

    def x():
        return c.fixed(torch.log_softmax(c.f(6, 3, 4), 2))  # PyTorch's gradient is that after a log_softmax

    for reduction in (0, 1, 2):
        c("ctc_loss.Tensor", x(), targets, frames, lengths, 0, reduction)
        c("ctc_loss.IntList", x(), targets, [6, 4, 5], [3, 1, 3], 0, reduction)
    c("ctc_loss.Tensor", x(), torch.tensor([[0, 1], [2, 2], [1, 0]]), frames, torch.tensor([2, 2, 0]), 3, 0)
    for zero in (False, True):
        c("ctc_loss.Tensor", x(), targets, torch.tensor([3, 1, 2]), lengths, 0, 0, zero)  # too few frames
    c("ctc_loss.IntList", c.fixed(torch.log_softmax(c.f(5, 4), 1)), torch.tensor([1, 2]), [5], [2])
    joined = torch.tensor([1, 1, 2, 3, 2, 1])  # concatenated over the sequences
    for reduction in (0, 1):
        c("ctc_loss.IntList", x(), joined, [6, 4, 5], [3, 1, 2], 0, reduction)
        c("ctc_loss.Tensor", x(), joined, frames, torch.tensor([3, 0, 3]), 0, reduction)


def written(c):
    c("put.default", c.f(2, 3), torch.tensor([[4, -6], [2, 1]]), c.f(4))
    c("put.default", c.f(2, 3), torch.tensor([4, 4, -6, 1]), c.f(2, 2), True)
    holes = torch.tensor([[1.0, float("nan"), -2.0, 0.5], [3.0, float("nan"), float("nan"), float("nan")]], dtype=F64)
    c("nanmedian.default", c.d(2, 3))
    c("nanmedian.default", holes)
    c("nanmedian.dim", c.d(3, 4), 1)
    c("nanmedian.dim", holes, 1, True)
    c("nanmedian.dim", holes, 0)
    c("nonzero_static.default", torch.tensor([[0.0, 1.5, 0.0], [-2.0, 0.5, 0.0]], dtype=F64), size=4)
    c("nonzero_static.default", torch.tensor([0, 1, 2]), size=1, fill_value=7)
    c("embedding_renorm_.default", c.fixed(c.f(4, 3)), c.i(4, 2, 2), 1.0, 2.0)
    index = torch.tensor([0, 2, 0, 1])
    for reduce in "prod mean amax amin".split():
        for include_self in (True, False):
            c("index_reduce.default", c.d(3, 2), 0, index, c.d(4, 2) + 0.1, reduce, include_self=include_self)
    products = torch.tensor([2.0, -1.5, 0.0, 3.0, 0.0, 0.0], dtype=F64)
    for include_self in (True, False):
        c("scatter_reduce.two", torch.tensor([0.5, 2.0, -1.0, 0.5], dtype=F64), 0, torch.tensor([0, 0, 1, 1, 2, 2]), products, "prod", include_self=include_self)
