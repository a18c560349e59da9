"""The cases of the operators' goldens: the arguments at which an implementation goes wrong, if it goes wrong."""

import zlib

import torch

F64, I64, BOOL = torch.float64, torch.int64, torch.bool
INF = float("inf")


def collect(c):
    """Adds every case to `c`, a `Cases`."""
    for part in (
        unary, activations, binary, comparisons, selections, casts, creation, views, movement, indexing, ordering,
        reductions, norms, products, convolutions, pooling, volumes, losses, attention, embedding_gradients, recurrent,
        distances, order_statistics, matrices, sampling, bags, fourier, margins, matrix_norms, triangles, geometry, windows,
        volumes_resampled, turns, without_nan, alignments, ties, orthogonal, powers, variables,
        special, gammas, small_functions, divided, written, factors, conditions,
    ):
        c.generator.manual_seed(zlib.crc32(part.__name__.encode()))  # a new case changes its own part's numbers only
        part(c)


def unary(c):
    anywhere = "abs neg exp expm1 exp2 sin cos tanh sigmoid erf erfc square floor ceil round trunc frac sign atan sinh cosh asinh"
    positive = "log log2 log10 log1p sqrt rsqrt reciprocal lgamma"
    for name in anywhere.split():
        c(f"{name}.default", c.f(3, 4))
        c(f"{name}.default", c.f(2, 0))
        c(f"{name}.default", c.f())
    for name in positive.split():
        c(f"{name}.default", c.u(0.1, 4, 3, 4))
        c(f"{name}.default", c.u(0.1, 4, 0))
    for name in "asin acos atanh erfinv".split():
        c(f"{name}.default", c.u(-0.9, 0.9, 3, 4))
    c("tan.default", c.u(-1.2, 1.2, 3, 4))
    for name in "abs exp neg sin cos tanh sigmoid floor".split():
        c(f"{name}_.default", c.f(2, 3))
    for name in "sqrt rsqrt log reciprocal".split():
        c(f"{name}_.default", c.u(0.1, 4, 2, 3))
    c("abs.default", torch.tensor([-2, 0, 5]))
    c("abs.default", torch.tensor([-1.0, 0.0, 2.0], dtype=F64))  # the derivative at 0 is 0
    c("neg.default", torch.tensor([-2, 0, 5]))
    c("sign.default", torch.tensor([-2.0, 0.0, -0.0, 3.0], dtype=F64))
    c("round.default", torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4], dtype=F64))  # ties to even
    c("round.decimals", c.f(5), decimals=2)
    c("sqrt.default", torch.tensor([0.0, 1e-300, 4.0], dtype=F64))
    c("exp.default", torch.tensor([-800.0, 0.0, 700.0], dtype=F64))
    c("exp.default", torch.tensor([0, 1, 2]))  # integers become the default dtype
    c("sin.default", torch.tensor([1e4, -3e5], dtype=F64))
    c("tanh.default", torch.tensor([-30.0, 1e-9, -1e-9, 30.0], dtype=F64))
    c("sigmoid.default", torch.tensor([-800.0, -40.0, 40.0, 800.0], dtype=F64))
    c("erf.default", torch.tensor([-6.0, -1e-9, 1e-9, 6.0], dtype=F64))
    c("log1p.default", torch.tensor([1e-12, -1e-12, 1.0], dtype=F64))
    c("expm1.default", torch.tensor([1e-12, -1e-12, 1.0], dtype=F64))
    special = torch.tensor([0.0, INF, -INF, float("nan")], dtype=F64)
    for name in "isnan isinf isfinite".split():
        c(f"{name}.default", special)
    for name in "abs exp sigmoid tanh relu floor sign".split():
        c(f"{name}.default", special)
    c("logical_not.default", torch.tensor([0.0, 1.0, -2.0], dtype=F64))
    c("logical_not.default", c.b(4))
    c("bitwise_not.default", c.b(2, 3))
    c("bitwise_not.default", torch.tensor([0, 1, -7]))


def activations(c):
    edges = torch.tensor([-30.0, -3.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 3.0, 6.0, 30.0], dtype=F64)
    names = "relu relu6 silu mish hardswish hardsigmoid hardtanh elu leaky_relu log_sigmoid softplus selu celu gelu"
    for name in names.split():
        c(f"{name}.default", 2 * c.f(3, 5))
        c(f"{name}.default", edges)
        c(f"{name}.default", c.f(0, 3))
    for name in "relu relu6 silu mish hardswish hardsigmoid elu leaky_relu hardtanh".split():
        c(f"{name}_.default", c.f(2, 3))
    c("gelu.default", edges, approximate="tanh")
    c("gelu.default", c.f(2, 3), approximate="tanh")
    c("elu.default", c.f(6), 0.5)
    c("elu.default", c.f(6), 1.5, 0.7, 0.3)
    c("celu.default", c.f(6), 0.5)
    c("leaky_relu.default", c.f(6), 0.2)
    c("hardtanh.default", 3 * c.f(6), -2.0, 0.5)
    c("softplus.default", 20 * c.f(8), 2, 10)
    c("threshold.default", c.f(6), 0.1, -3.0)
    c("relu.default", torch.tensor([-2, 0, 5]))
    c("prelu.default", c.f(2, 3, 4), c.f(3))
    c("prelu.default", c.f(2, 3), c.f(1))
    c("glu.default", c.f(2, 6))
    c("glu.default", c.f(4, 3), 0)
    for train in (True, False):
        c("dropout.default", c.f(2, 3), 0.0, train)
    c("dropout.default", c.f(2, 3), 0.5, False)
    c("native_dropout.default", c.f(2, 3), 0.5, False)
    c("native_dropout.default", c.f(2, 3), 0.0, True)


BROADCASTS = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 3), (5, 1)), ((0, 3), (1, 3)), ((1,), (0,))]


def binary(c):
    for name in "add sub mul div".split():
        for left, right in BROADCASTS:
            c(f"{name}.Tensor", c.f(*left), c.d(*right))
        c(f"{name}.Tensor", c.f(2, 3), 2.5)
        c(f"{name}.Tensor", c.f(2, 3), 3)
        c(f"{name}.Tensor", c.f(2, 3), torch.tensor(3))
        c(f"{name}.Tensor", c.i(9, 2, 3, low=1), torch.tensor(2.5, dtype=F64))  # integers are promoted
        c(f"{name}.Tensor", c.i(9, 2, 3, low=1), c.i(9, 3, low=1))
        c(f"{name}.Scalar", c.f(2, 3), 2.5)
        c(f"{name}_.Tensor", c.f(2, 3), c.d(3))
        c(f"{name}_.Scalar", c.f(2, 3), 2)
    c("add.Tensor", c.f(2, 3), c.f(3), alpha=2)
    c("add.Tensor", c.i(5, 3), c.i(5, 3), alpha=3)
    c("add.Scalar", c.f(2), 1, 3)
    c("add_.Tensor", c.f(2, 3), c.f(2, 1), alpha=-0.5)
    c("sub.Tensor", c.f(2, 3), c.f(3), alpha=0.25)
    c("mul.Tensor", c.b(4), c.f(4))
    c("multiply.Tensor", c.f(2, 3), c.f(3))
    c("add.Tensor", c.b(4), c.i(4, 4))
    c("rsub.Scalar", c.f(3), 1.0)
    c("rsub.Scalar", c.f(3), 1, 2)
    c("rsub.Tensor", c.f(3), c.f(2, 1))
    for mode in (None, "trunc", "floor"):
        c("div.Tensor_mode", c.d(3, 4), c.d(4), rounding_mode=mode)
        c("div.Tensor_mode", torch.tensor([7, -7, 6]), torch.tensor([2, 2, -3]), rounding_mode=mode)
    c("div.Tensor", torch.tensor([1.0, -1.0, 0.0], dtype=F64), torch.zeros(3, dtype=F64))
    for name in "floor_divide remainder fmod".split():
        overloads = ("default", None) if name == "floor_divide" else ("Tensor", "Scalar")
        c(f"{name}.{overloads[0]}", c.fixed(c.d(3, 4)), c.fixed(c.d(4)))
        c(f"{name}.{overloads[0]}", torch.tensor([7, -7, 6, -6]), torch.tensor([2, 2, -4, -4]))
        if overloads[1]:
            c(f"{name}.{overloads[1]}", torch.tensor([7, -7, 6, -6]), 4)
            c(f"{name}.{overloads[1]}", c.d(5), -1.5)
    c("floor_divide.default", torch.tensor([7, -7, 6, -6]), 4)
    for exponent in (0, 1, 2, 3, -1, 2.0, 4.0):
        c("pow.Tensor_Scalar", c.f(2, 3), exponent)
    for exponent in (0.5, -0.5, 1.7):
        c("pow.Tensor_Scalar", c.u(0.1, 3, 2, 3), exponent)
    for exponent in (0, 1, 2, 2.0):
        c("pow.Tensor_Scalar", torch.tensor([0.0, -1.0], dtype=F64), exponent)
    c("pow.Tensor_Scalar", torch.tensor([2, 3]), 2)
    c("pow_.Scalar", c.f(3), 2)
    c("pow.Tensor_Tensor", c.u(0.1, 3, 2, 3), c.f(3))
    c("pow.Tensor_Tensor", torch.tensor([0.0, 0.0, -2.0], dtype=F64), torch.tensor([0.0, 2.0, 3.0], dtype=F64))
    c("pow.Scalar", 2.0, c.f(4))
    c("pow.Scalar", 10000.0, c.u(0, 1, 4))
    ties = torch.tensor([1.0, 2.0, 3.0], dtype=F64), torch.tensor([1.0, 3.0, 2.0], dtype=F64)  # a tie halves the gradient
    for name in ("maximum.default", "minimum.default", "max.other", "min.other"):
        c(name, c.d(2, 3), c.d(3))
        c(name, *ties)
        c(name, torch.tensor([float("nan"), 1.0], dtype=F64), torch.tensor([1.0, float("nan")], dtype=F64))
        c(name, c.i(5, 4), c.i(5, 4))
    c("atan2.default", c.f(2, 3), c.f(3))
    c("addcmul.default", c.f(2, 3), c.f(3), c.f(2, 1), value=0.5)
    c("addcdiv.default", c.f(2, 3), c.f(3), c.d(2, 1), value=-2)
    c("lerp.Scalar", c.f(2, 3), c.f(3), 0.3)
    c("lerp.Tensor", c.f(2, 3), c.f(3), c.u(0, 1, 2, 1))


def comparisons(c):
    for name in "eq ne lt le gt ge".split():
        c(f"{name}.Tensor", c.i(3, 2, 4), c.i(3, 4))
        c(f"{name}.Tensor", c.f(2, 3), c.f(3))
        c(f"{name}.Tensor", c.i(3, 4), torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=F64))
        c(f"{name}.Scalar", c.i(3, 2, 4), 1)
        c(f"{name}.Scalar", torch.tensor([0.0, float("nan"), INF], dtype=F64), 0.0)
        c(f"{name}.Scalar", c.b(4), True)
    for name in "__and__.Tensor __or__.Tensor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor".split():
        c(name, c.b(2, 1, 3), c.b(4, 1))
        c(name, c.i(16, 4), c.i(16, 4))
    for name in "logical_and logical_or logical_xor".split():
        c(f"{name}.default", c.b(2, 3), c.b(3))
        c(f"{name}.default", torch.tensor([0, 2, 3]), torch.tensor([1.0, 0.0, -1.0], dtype=F64))


def selections(c):
    c("where.self", c.b(2, 3), c.f(2, 3), c.f(2, 3))
    c("where.self", c.b(3, 1), c.f(4), c.f())
    c("where.self", c.b(2, 3), c.f(2, 3), torch.tensor(0))
    c("where.self", c.b(3), c.i(5, 3), c.i(5, 3))
    c("where.ScalarOther", c.b(2, 3), c.f(2, 3), 0.0)
    c("where.ScalarSelf", c.b(2, 3), -INF, c.f(2, 3))
    c("where.Scalar", c.b(2, 3), 1.0, 0.0)
    for name in "masked_fill masked_fill_".split():
        c(f"{name}.Scalar", c.f(2, 3), c.b(2, 3), -INF)
        c(f"{name}.Scalar", c.f(2, 3), c.b(3), 2)
        c(f"{name}.Tensor", c.f(2, 3), c.b(2, 1), c.f())
    c("masked_fill.Scalar", c.i(5, 4), c.b(4), -100)
    edges = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0, float("nan")], dtype=F64)  # at a bound the gradient passes
    for low, high in ((-0.5, 0.5), (None, 0.5), (-0.5, None), (0.5, -0.5), (0, 1)):
        c("clamp.default", edges, low, high)
    c("clamp.default", c.i(9, 5), 2, 5)
    c("clamp.Tensor", c.f(2, 3), c.f(3) - 1, c.f(2, 1) + 1)
    c("clamp_.default", c.f(5), -0.5, 0.5)
    c("clamp_min.default", edges, 0.0)
    c("clamp_max.default", edges, 0.5)
    c("clamp_min.Tensor", c.f(2, 3), c.f(3))


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


def indexing(c):
    one, two = torch.tensor([2, 0, -1]), torch.tensor([[0, 1], [3, -2]])
    c("index.Tensor", c.f(4, 5), [one])
    c("index.Tensor", c.f(4, 5), [None, two])
    c("index.Tensor", c.f(4, 5), [two, torch.tensor([4, 0])])
    c("index.Tensor", c.f(4, 5, 3), [one, None, torch.tensor([0, 1, 1])])  # apart: the indexed dimension comes first
    c("index.Tensor", c.f(2, 4, 5), [None, one, torch.tensor([0, 1, 1])])  # together: it stays in place
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


def products(c):
    c("linear.default", c.f(2, 3, 4), c.f(5, 4), c.f(5))
    c("linear.default", c.f(2, 4), c.f(5, 4))
    c("linear.default", c.f(4), c.f(5, 4), c.f(5))
    c("linear.default", c.f(0, 4), c.f(5, 4), c.f(5))
    c("linear.default", c.f(2, 0), c.f(3, 0), c.f(3))
    shapes = [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (4, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
    ]
    for left, right in shapes:
        c("matmul.default", c.f(*left), c.f(*right))
    c("mm.default", c.f(2, 3), c.f(3, 4))
    c("bmm.default", c.f(2, 3, 4), c.f(2, 4, 5))
    c("bmm.default", c.f(0, 3, 4), c.f(0, 4, 5))
    c("mv.default", c.f(3, 4), c.f(4))
    c("dot.default", c.f(4), c.f(4))
    c("outer.default", c.f(3), c.f(2))
    c("addmm.default", c.f(5), c.f(3, 4), c.f(4, 5))
    c("addmm.default", c.f(3, 1), c.f(3, 4), c.f(4, 5), beta=0.5, alpha=2)
    c("addmm.default", c.f(3, 5), c.f(3, 4), c.f(4, 5), beta=0)
    c("addmv.default", c.f(3), c.f(3, 4), c.f(4))
    c("baddbmm.default", c.f(2, 3, 5), c.f(2, 3, 4), c.f(2, 4, 5))
    c("baddbmm.default", c.f(1, 5), c.f(2, 3, 4), c.f(2, 4, 5), beta=0.5, alpha=0.25)
    c("baddbmm.default", c.f(2, 1, 1), c.f(2, 3, 4), c.f(2, 4, 5), beta=0)
    for equation, *shapes in (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("i,j->ij", (3,), (2,)),
        ("ii->i", (3, 3)),
        ("ij->", (2, 3)),
        ("...ij,jk", (2, 2, 3), (3, 4)),
        ("bnd,d->bn", (2, 3, 4), (4,)),
        ("ijk,kl,lm->ijm", (2, 2, 3), (3, 2), (2, 4)),
    ):
        c("einsum.default", equation, [c.f(*s) for s in shapes])
    c("cosine_similarity.default", c.f(3, 4), c.f(3, 4))
    c("cosine_similarity.default", c.f(3, 4), c.f(1, 4), -1, 1e-6)
    import transformers.integrations.moe  # noqa: F401  registers the operator

    grouped = "transformers::grouped_mm_fallback.default"
    c(grouped, c.f(6, 3), c.f(3, 3, 4), torch.tensor([2, 5, 6], dtype=torch.int32))
    c(grouped, c.f(6, 3), c.f(4, 3, 2), torch.tensor([0, 4, 4, 6], dtype=torch.int32))  # experts without rows
    c(grouped, c.f(6, 3), c.f(2, 3, 2), torch.tensor([1, 4], dtype=torch.int32))  # rows without an expert are 0


def convolutions(c):
    c("conv1d.default", c.f(2, 3, 7), c.f(4, 3, 3), c.f(4))
    c("conv1d.default", c.f(2, 4, 8), c.f(4, 1, 3), None, [1], [2], [1], 4)  # depthwise
    c("conv1d.default", c.f(3, 7), c.f(2, 3, 2), c.f(2), [2], [1], [2])  # without batch
    c("conv1d.padding", c.f(1, 2, 5), c.f(3, 2, 4), None, [1], "same")  # more padding on the right
    c("conv2d.default", c.f(2, 3, 5, 6), c.f(4, 3, 3, 2), c.f(4))
    c("conv2d.default", c.f(2, 3, 6, 6), c.f(4, 3, 3, 3), None, [2, 2], [1, 1])
    c("conv2d.default", c.f(1, 4, 5, 5), c.f(6, 2, 3, 3), c.f(6), [1, 2], [2, 1], [2, 1], 2)
    c("conv2d.default", c.f(2, 4, 5, 5), c.f(8, 1, 3, 3), c.f(8), [1], [1], [1], 4)  # depthwise, two outputs a channel
    c("conv2d.default", c.f(2, 3, 4, 4), c.f(5, 3, 1, 1), c.f(5))
    c("conv2d.default", c.f(1, 3, 8, 8), c.f(5, 3, 4, 4), c.f(5), [4, 4])  # patches
    c("conv2d.default", c.f(1, 2, 5, 5), c.f(3, 2, 2, 2), None, [3, 3])  # the last rows and columns are not read
    c("conv2d.default", c.f(3, 5, 5), c.f(2, 3, 3, 3), c.f(2))
    c("conv2d.default", c.f(0, 3, 5, 5), c.f(2, 3, 3, 3), c.f(2))
    for padding in ("same", "valid"):
        c("conv2d.padding", c.f(1, 2, 5, 6), c.f(3, 2, 2, 3), c.f(3), [1, 1], padding)
        c("conv2d.padding", c.f(1, 2, 6, 6), c.f(2, 1, 3, 3), None, [1, 1], padding, [2, 1], 2)
    c("conv3d.default", c.f(1, 2, 3, 4, 4), c.f(3, 2, 2, 3, 2), c.f(3), [1, 2, 1], [1, 0, 1])
    c("conv_transpose1d.default", c.f(2, 3, 4), c.f(3, 2, 3), c.f(2), [2], [1], [1])
    c("conv_transpose2d.input", c.f(1, 4, 3, 3), c.f(4, 2, 3, 3), c.f(4), [2, 2], [1, 1], [1, 1], 2, [1, 2])
    c("conv_transpose2d.input", c.f(1, 2, 3, 3), c.f(2, 3, 2, 2), None, [2, 2])
    c("convolution.default", c.f(2, 3, 5, 5), c.f(4, 3, 3, 3), c.f(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    c("convolution.default", c.f(1, 4, 3, 3), c.f(4, 2, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    c("convolution.default", c.f(1, 4, 6), c.f(4, 2, 3), c.f(4), [1], [1], [2], False, [0], 2)


def volumes(c):
    for name in ("max_pool3d.default", "max_pool3d_with_indices.default"):
        c(name, c.d(1, 2, 2, 4, 6), [2, 2, 3])
        c(name, c.d(2, 4, 5, 5), [3, 3, 2], [2, 1, 2], [1, 1, 0])
        c(name, c.d(1, 1, 6, 5, 5), [2, 2, 2], [1, 2, 1], [1, 0, 1], [3, 2, 2])
        c(name, c.d(1, 2, 5, 3, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], True)
    c("avg_pool3d.default", c.f(1, 2, 4, 4, 3), [2, 2, 2])
    c("avg_pool3d.default", c.f(2, 5, 4, 4), [3, 3, 2], [2, 1, 2], [1, 1, 0])
    c("avg_pool3d.default", c.f(1, 1, 5, 4, 4), [3, 2, 3], [2, 2, 2], [1, 1, 1], False, False)  # padding is not counted
    c("avg_pool3d.default", c.f(1, 1, 5, 6, 4), [2, 3, 3], [2, 2, 2], [1, 0, 1], True, True)
    c("avg_pool3d.default", c.f(1, 1, 3, 4, 4), [2, 2, 2], [1, 2, 2], [0, 0, 0], True, True, 5)
    for size in ([1, 1, 1], [3, 2, 2], [2, 5, 3]):
        c("adaptive_avg_pool3d.default", c.f(1, 2, 4, 5, 3), size)
    c("_adaptive_avg_pool3d.default", c.f(1, 2, 3, 4, 5), [2, 3, 2])


def pooling(c):
    for name in ("max_pool2d.default", "max_pool2d_with_indices.default"):
        c(name, c.d(2, 2, 4, 6), [2, 2])
        c(name, c.d(1, 2, 5, 5), [3, 3], [2, 2], [1, 1])
        c(name, c.d(1, 1, 5, 5), [2, 2], [2, 2], [0, 0], [1, 1], True)  # ceil_mode
        c(name, c.d(1, 1, 6, 6), [2, 3], [1, 2], [1, 0], [2, 1])
        c(name, torch.zeros(1, 1, 3, 3, dtype=F64), [2, 2], [1, 1])  # the first of equals takes the gradient
        c(name, c.d(2, 4, 4), [2, 2])
    c("max_pool1d.default", c.d(2, 3, 7), [3], [2], [1])
    c("avg_pool2d.default", c.f(2, 2, 4, 6), [2, 2])
    c("avg_pool2d.default", c.f(1, 2, 5, 5), [3, 3], [2, 2], [1, 1])
    c("avg_pool2d.default", c.f(1, 2, 5, 5), [3, 3], [2, 2], [1, 1], False, False)  # padding is not counted
    c("avg_pool2d.default", c.f(1, 1, 6, 6), [3, 3], [2, 2], [1, 1], True, True)
    c("avg_pool2d.default", c.f(1, 1, 5, 5), [2, 2], [2, 2], [0, 0], True, True, 3)
    c("avg_pool1d.default", c.f(2, 3, 7), [3], [2], [1])
    for size in ([1, 1], [2, 3], [3, 2]):  # windows overlap when the sizes do not divide
        c("adaptive_avg_pool2d.default", c.f(2, 2, 4, 5), size)
    c("_adaptive_avg_pool2d.default", c.f(1, 2, 4, 5), [2, 2])
    c("adaptive_avg_pool1d.default", c.f(2, 3, 7), [3])
    c("adaptive_avg_pool1d.default", c.f(2, 3, 4), [1])
    c("adaptive_max_pool2d.default", c.d(1, 2, 5, 5), [2, 3])
    c("upsample_nearest2d.vec", c.f(1, 2, 3, 4), None, [2.0, 2.0])
    c("upsample_nearest2d.vec", c.f(1, 2, 3, 4), [5, 3], None)
    c("upsample_nearest2d.default", c.f(1, 2, 3, 4), [5, 7])
    c("upsample_nearest1d.vec", c.f(1, 2, 5), None, [2.0])
    for corners in (False, True):
        c("upsample_bilinear2d.vec", c.f(1, 2, 3, 4), [5, 7], corners, None)
        c("upsample_bilinear2d.vec", c.f(1, 1, 6, 4), [3, 2], corners, None)
        c("upsample_bilinear2d.vec", c.f(1, 1, 3, 3), None, corners, [2.0, 1.5])
        c("upsample_bilinear2d.default", c.f(1, 1, 3, 3), [1, 4], corners)
        c("upsample_bicubic2d.vec", c.f(1, 1, 4, 4), [6, 3], corners, None)


def losses(c):
    targets = torch.tensor([0, 2, -100, 1])
    for reduction in (0, 1, 2):
        c("cross_entropy_loss.default", c.f(4, 3), torch.tensor([0, 2, 1, 1]), None, reduction)
        c("cross_entropy_loss.default", c.f(4, 3), targets, c.fixed(c.u(0.5, 2, 3)), reduction, -100, 0.1)
        c("cross_entropy_loss.default", c.f(4, 3), torch.softmax(c.f(4, 3), 1), None, reduction)
        c("nll_loss_nd.default", c.f(4, 3), targets, None, reduction)
        c("nll_loss.default", c.f(4, 3), targets, c.fixed(c.u(0.5, 2, 3)), reduction)
        c("nll_loss_forward.default", c.f(4, 3), targets, None, reduction, -100)
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            c(f"{name}.default", c.f(2, 3), c.f(2, 3), reduction)
        c("binary_cross_entropy_with_logits.default", 3 * c.f(2, 3), c.u(0, 1, 2, 3), None, None, reduction)
        c("binary_cross_entropy.default", c.u(0.05, 0.95, 2, 3), c.u(0, 1, 2, 3), None, reduction)
        c("kl_div.default", torch.log_softmax(c.f(2, 3), 1), torch.softmax(c.f(2, 3), 1), reduction)
    c("cross_entropy_loss.default", c.f(4, 3), targets)
    c("cross_entropy_loss.default", c.f(2, 3, 4), c.i(3, 2, 4))  # classes are dimension 1
    c("cross_entropy_loss.default", c.f(2, 3, 2, 2), c.i(3, 2, 2, 2), None, 1, 1)
    c("cross_entropy_loss.default", c.f(3), torch.tensor(2))
    c("cross_entropy_loss.default", c.f(4, 3), torch.softmax(c.f(4, 3), 1), c.u(0.5, 2, 3), 1, -100, 0.2)
    c("cross_entropy_loss.default", c.f(4, 3), torch.full((4,), -100))  # nothing is left: 0 / 0
    c("cross_entropy_loss.default", torch.tensor([[1000.0, -1000.0, 0.0]], dtype=F64), torch.tensor([2]))
    c("nll_loss_nd.default", c.f(2, 3, 4), c.i(3, 2, 4))
    c("smooth_l1_loss.default", c.f(6), c.f(6), 1, 0.5)
    c("huber_loss.default", c.f(6), c.f(6), 1, 0.5)
    c("mse_loss.default", torch.zeros(0, 2, dtype=F64), torch.zeros(0, 2, dtype=F64), 2)
    c("binary_cross_entropy_with_logits.default", c.f(2, 3), c.u(0, 1, 2, 3), c.fixed(c.u(0.5, 2, 3)), c.fixed(c.u(0.5, 2, 3)))
    extreme = torch.tensor([-800.0, 800.0], dtype=F64)
    c("binary_cross_entropy_with_logits.default", extreme, torch.tensor([1.0, 0.0], dtype=F64))
    c("kl_div.default", torch.log_softmax(c.f(2, 3), 1), torch.log_softmax(c.f(2, 3), 1), 1, log_target=True)


def attention(c):
    name = "scaled_dot_product_attention.default"

    def qkv(batch=(2, 2), queries=3, keys=4, width=4, values=4, key_batch=None):
        key_batch = key_batch or batch
        return c.f(*batch, queries, width), c.f(*key_batch, keys, width), c.f(*key_batch, keys, values)

    c(name, *qkv())
    c(name, *qkv(batch=(2,), values=3))
    c(name, *qkv(batch=()))
    c(name, *qkv(keys=3), None, 0.0, True)
    c(name, *qkv(queries=3, keys=5), None, 0.0, True)  # the causal mask is aligned at the upper left
    c(name, *qkv(queries=5, keys=3), None, 0.0, True)
    c(name, *qkv(), c.f(2, 2, 3, 4))
    c(name, *qkv(), c.f(3, 4))
    c(name, *qkv(), torch.tensor([[True, False, True, True]] * 3))
    c(name, *qkv(), torch.tensor([True, False, True, True]).view(1, 1, 1, 4).expand(2, 1, 3, 4))
    c(name, *qkv(), torch.tensor([[True] * 4, [False] * 4, [True, False, True, False]]))  # a query that sees nothing
    c(name, *qkv(), None, 0.0, False, scale=0.3)
    c(name, *qkv(batch=(2, 4), key_batch=(2, 2)), None, 0.0, False, enable_gqa=True)
    c(name, *qkv(batch=(1, 4), key_batch=(1, 1), keys=3), None, 0.0, True, scale=1.0, enable_gqa=True)
    c(name, *qkv(queries=1, keys=1))


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


def recurrent(c):
    def parameters(gates, inputs, hidden, layers, directions, biases):
        for layer in range(layers):
            for _ in range(directions):
                yield c.f(gates * hidden, inputs if layer == 0 else hidden * directions)
                yield c.f(gates * hidden, hidden)
                yield from (c.f(gates * hidden) for _ in range(2 * biases))

    for name, gates in ("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1):
        for layers, directions, biases, batch_first, train in (
            (1, 1, True, False, True),
            (2, 1, True, True, True),
            (1, 2, False, False, True),
            (2, 2, True, True, False),
        ):
            steps, batch, inputs, hidden = 4, 3, 5, 2
            states = [c.f(layers * directions, batch, hidden) for _ in range(2 if name == "lstm" else 1)]
            weights = list(parameters(gates, inputs, hidden, layers, directions, biases))
            x = c.f(batch, steps, inputs) if batch_first else c.f(steps, batch, inputs)
            state = states if name == "lstm" else states[0]
            dropout = 0.0 if train else 0.3  # random numbers differ, so that dropout is active in no case
            c(f"{name}.input", x, state, weights, biases, layers, dropout, train, directions == 2, batch_first)
        one = list(parameters(gates, 3, 4, 1, 1, True))
        states = [c.f(1, 2, 4) for _ in range(2 if name == "lstm" else 1)]
        c(f"{name}.input", c.f(1, 2, 3), states if name == "lstm" else states[0], one, True, 1, 0.0, True, False, False)
        states = [c.f(3, 2) for _ in range(2 if name == "lstm" else 1)]
        state = states if name == "lstm" else states[0]
        w = (c.f(2 * gates, 4), c.f(2 * gates, 2))
        c(f"{name}_cell.default", c.f(3, 4), state, *w, c.f(2 * gates), c.f(2 * gates))
        c(f"{name}_cell.default", c.f(3, 4), state, *w)


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


def matrices(c):
    def definite(*shape):
        x = c.f(*shape)
        return x @ x.mT + 0.5 * torch.eye(shape[-1], dtype=F64)

    c("linalg_inv.default", c.f(3, 3) + 2 * torch.eye(3, dtype=F64))
    c("inverse.default", c.f(2, 2, 2) + 2 * torch.eye(2, dtype=F64))
    for name in ("linalg_det.default", "det.default", "linalg_slogdet.default", "slogdet.default"):
        c(name, c.f(3, 3))
        c(name, c.f(2, 2, 2))
    c("logdet.default", definite(3, 3))
    c("linalg_solve.default", definite(3, 3), c.f(3, 2))
    c("linalg_solve.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), c.f(2, 3))
    c("linalg_solve.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), c.f(3, 2))
    c("linalg_solve.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), c.f(2, 2, 3), left=False)
    for name in ("linalg_cholesky.default", "cholesky.default"):
        c(name, definite(3, 3))
        c(name, definite(2, 2, 2), upper=True)
    c("linalg_svdvals.default", c.f(4, 3))
    c("linalg_svdvals.default", c.f(2, 2, 3))


def sampling(c):
    for name in ("grid_sampler.default", "grid_sampler_2d.default"):
        for padding in range(3):
            for corners in (False, True):
                c(name, c.f(2, 2, 3, 4), c.u(-1.6, 1.6, 2, 3, 2, 2), 0, padding, corners)
    edges = torch.tensor([-3.5, -1.0, -0.5, 0.0, 0.5, 1.0, 3.5], dtype=F64)  # borders and pixels' centres exactly
    edges = torch.stack(torch.meshgrid(edges, edges, indexing="xy"), -1)[None]
    for padding in range(3):
        for corners in (False, True):
            c("grid_sampler_2d.default", c.f(1, 1, 3, 3), c.fixed(edges), 0, padding, corners)
            c("grid_sampler_2d.default", c.f(1, 2, 3, 4), c.fixed(c.u(-1.6, 1.6, 1, 2, 3, 2)), 1, padding, corners)
            c("grid_sampler_3d.default", c.f(1, 2, 2, 3, 4), c.u(-1.6, 1.6, 1, 2, 1, 3, 3), 0, padding, corners)
            c("grid_sampler_3d.default", c.f(1, 1, 2, 3, 4), c.fixed(c.u(-1.6, 1.6, 1, 2, 2, 2, 3)), 1, padding, corners)
    for padding in (1, 2):  # a place at the border gets no gradient
        c("grid_sampler_2d.default", c.f(1, 1, 3, 3), edges[:, ::6, ::6], 0, padding, True)


def bags(c):
    indices, offsets = torch.tensor([4, 0, 1, 1, 3, 0, 2]), torch.tensor([0, 3, 3, 5])  # the second bag is empty
    for mode in (0, 1, 2):
        c("embedding_bag.default", c.d(5, 3), indices, offsets, False, mode)
        c("embedding_bag.default", c.d(5, 3), indices, torch.tensor([0, 2, 7]), False, mode, False, None, True)
        c("embedding_bag.padding_idx", c.d(5, 3), indices, offsets, False, mode, False, None, False, 1)
    c("embedding_bag.default", c.d(5, 3), indices, offsets, True, 0)  # divided by how often a row is used
    c("embedding_bag.default", c.d(5, 3), indices, offsets, False, 0, False, c.f(7))
    c("embedding_bag.padding_idx", c.d(5, 3), indices, offsets, False, 0, False, c.f(7), False, 0)


def fourier(c):
    for n in (1, 2, 3, 4, 7, 12, 30):
        for mode in range(3):
            c("_fft_c2c.default", c.z(2, n), [1], mode, mode != 1)
            c("_fft_r2c.default", c.f(2, n), [1], mode, True)
            c("_fft_c2r.default", c.z(2, n // 2 + 1), [1], mode, n)
        c("_fft_r2c.default", c.f(n, 2), [0], 0, False)
    for dims in ([0], [0, 1], [2, 0], [1, 2], [0, 1, 2]):
        for forward in (True, False):
            c("_fft_c2c.default", c.z(3, 4, 5), dims, 1, forward)
        c("_fft_r2c.default", c.f(3, 4, 5), dims, 2, True)
        c("_fft_r2c.default", c.f(3, 4, 5), dims, 1, False)
    for dims, n in (([0], 4), ([0, 2], 9), ([2, 0], 5), ([1, 0, 2], 8)):  # frequencies that are no real signal's
        shape = [3, 4, 5]
        shape[dims[-1]] = n // 2 + 1
        c("_fft_c2r.default", c.z(*shape), dims, 1, n)
    c("_fft_c2c.default", c.z(0, 4), [1], 0, True)
    c("_fft_r2c.default", c.f(0, 4), [1], 0, True)
    for n in (1, 4, 5):
        c("fft_fftfreq.default", n, 0.5, dtype=F64)
        c("fft_rfftfreq.default", n, 0.5, dtype=F64)
    for name in ("fft_fftshift", "fft_ifftshift"):
        c(f"{name}.default", c.f(3, 4))
        c(f"{name}.default", c.f(5, 2), [0])


def margins(c):
    signs = torch.tensor([1, -1, -1, 1])
    for reduction in (0, 1, 2):
        c("cosine_embedding_loss.default", c.f(4, 3), c.f(4, 3), signs, -0.5, reduction)
        c("hinge_embedding_loss.default", c.d(4, 3), signs.view(4, 1), 1.3, reduction)
        c("margin_ranking_loss.default", c.d(4), c.d(4), signs, 0.3, reduction)
        c("soft_margin_loss.default", 5 * c.f(4, 3), c.fixed(signs.view(4, 1).double()), reduction)
        c("multi_margin_loss.default", c.d(4, 3), torch.tensor([0, 2, 1, 1]), 1, 1.1, None, reduction)
        for full in (False, True):
            c("poisson_nll_loss.default", c.f(2, 3), c.fixed(c.i(6, 2, 3).double()), True, full, 1e-8, reduction)
            c("poisson_nll_loss.default", c.u(0.1, 3, 2, 3), c.fixed(c.i(6, 2, 3).double()), False, full, 1e-8, reduction)
    c("cosine_embedding_loss.default", c.f(3), c.f(3), torch.tensor(1))
    c("cosine_embedding_loss.default", torch.zeros(2, 3, dtype=F64), c.f(2, 3), torch.tensor([1, -1]), -0.5)
    c("multi_margin_loss.default", c.d(4, 3), torch.tensor([0, 2, 1, 1]), 2, 1.1, c.fixed(c.u(0.5, 2, 3)))
    c("multi_margin_loss.default", c.d(3), torch.tensor(2))
    for p in (2.0, 1.0, 3.0, INF):
        c("pairwise_distance.default", c.f(4, 3), c.f(4, 3), p)
        c("dist.default", c.f(4, 3), c.f(3), p)
    c("pairwise_distance.default", c.f(4, 1, 3), c.f(2, 3), 2.0, 0.0, True)


def matrix_norms(c):
    for order in ("fro", "nuc"):
        c("linalg_matrix_norm.str_ord", c.f(2, 3, 4), order)
        c("linalg_matrix_norm.str_ord", c.f(3, 2, 4), order, [2, 0], True)
        c("linalg_norm.ord_str", c.f(3, 4), order)
    for order in (1, -1, 2, -2, INF, -INF):
        c("linalg_matrix_norm.default", c.f(2, 3, 4), order)
        c("linalg_matrix_norm.default", c.f(3, 2, 4), order, [2, 0], True)
        c("linalg_norm.default", c.f(3, 4), order)
    for order in (None, 1, 2, 0.5, INF):
        c("linalg_norm.default", c.f(5), order)
        c("linalg_norm.default", c.f(2, 3, 4), order, [-1])
        c("linalg_norm.default", c.f(3, 4), order, [0], True)
    c("linalg_norm.default", c.f(2, 3, 4))
    c("linalg_norm.default", c.f(2, 3, 4), None, [0, 2])
    c("trace.default", c.f(3, 4))
    c("trace.default", c.i(9, 3, 2))


def triangles(c):
    def regular(*shape):
        return c.f(*shape) + 2 * torch.eye(shape[-1], dtype=F64)

    for upper in (True, False):
        for unit in (True, False):
            c("linalg_solve_triangular.default", regular(3, 3), c.f(3, 2), upper=upper, unitriangular=unit)
        c("linalg_solve_triangular.default", regular(2, 1, 3, 3), c.f(4, 2, 3), upper=upper, left=False)
        for transpose in (True, False):
            c("triangular_solve.default", c.f(2, 3, 2), regular(2, 3, 3), upper, transpose)
        c("cholesky_solve.default", c.f(2, 3, 2), c.fixed(regular(2, 3, 3)), upper)


def geometry(c):
    c("cross.default", c.f(2, 3), c.f(2, 3))
    c("cross.default", c.f(3, 2, 3), c.f(3, 1, 3))  # the first dimension of size 3
    c("linalg_cross.default", c.f(2, 1, 3), c.f(1, 4, 3))
    c("linalg_cross.default", c.f(3, 2), c.f(3, 2), dim=0)
    c("tensordot.default", c.f(2, 3, 4), c.f(4, 3, 5), [1, 2], [1, 0])
    c("tensordot.default", c.f(2, 3), c.f(1, 2), [1], [0])
    c("tensordot.default", c.f(2), c.f(3), [], [])
    c("inner.default", c.f(2, 3), c.f(2, 4, 3))
    c("inner.default", c.f(3), c.f(3))
    c("inner.default", c.f(), c.f(2, 3))
    c("linalg_matmul.default", c.f(2, 3), c.f(3, 4))
    for corners in (False, True):
        c("affine_grid_generator.default", c.f(2, 2, 3), [2, 1, 3, 4], corners)
        c("affine_grid_generator.default", c.f(1, 2, 3), [1, 3, 1, 2], corners)
        c("affine_grid_generator.default", c.f(2, 3, 4), [2, 1, 2, 3, 4], corners)
    for offset in (0, 2, -1):
        c("diag_embed.default", c.f(2, 3), offset)
        c("diag_embed.default", c.f(2, 3), offset, 2, 0)
        c("diag.default", c.f(3), offset)
        c("diag.default", c.f(3, 4), offset)
    c("hypot.default", c.f(2, 3), c.f(3))
    c("hypot.default", torch.tensor([3e200, 0.0, INF], dtype=F64), c.fixed(torch.tensor([4e200, 2.0, 1.0], dtype=F64)))
    c("deg2rad.default", c.f(3))
    c("rad2deg.default", c.f(3))
    c("sinc.default", c.f(3, 4))
    c("sinc.default", torch.tensor([0.0, 1e-9, 1.0, -2.5], dtype=F64))


def windows(c):
    for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window"):
        for n in (0, 1, 2, 5, 8):
            c(f"{name}.default", n, dtype=F64)
            for periodic in (True, False):
                c(f"{name}.periodic", n, periodic, dtype=F64)
    c("hamming_window.periodic_alpha", 6, True, 0.6, dtype=F64)
    c("hamming_window.periodic_alpha_beta", 6, False, 0.6, 0.3, dtype=F64)


def volumes_resampled(c):
    for name in ("upsample_nearest3d", "_upsample_nearest_exact3d"):
        c(f"{name}.vec", c.f(1, 2, 2, 3, 4), None, [2.0, 2.0, 1.5])
        c(f"{name}.vec", c.f(1, 2, 2, 3, 4), [5, 2, 7], None)
        c(f"{name}.default", c.f(2, 1, 3, 2, 2), [2, 5, 3])
    for corners in (False, True):
        c("upsample_trilinear3d.vec", c.f(1, 2, 2, 3, 4), [3, 5, 2], corners, None)
        c("upsample_trilinear3d.vec", c.f(1, 1, 3, 2, 3), None, corners, [2.0, 1.5, 1.0])
        c("upsample_trilinear3d.default", c.f(1, 1, 2, 3, 3), [1, 4, 6], corners)


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


def alignments(c):
    targets = torch.tensor([[1, 1, 2], [3, 0, 0], [2, 1, 3]])  # repeated, short, all different
    frames, lengths = torch.tensor([6, 4, 5]), torch.tensor([3, 1, 3])

    def x():
        return c.fixed(torch.log_softmax(c.f(6, 3, 4), 2))  # PyTorch's gradient is that behind a log_softmax

    for reduction in (0, 1, 2):
        c("ctc_loss.Tensor", x(), targets, frames, lengths, 0, reduction)
        c("ctc_loss.IntList", x(), targets, [6, 4, 5], [3, 1, 3], 0, reduction)
    c("ctc_loss.Tensor", x(), torch.tensor([[0, 1], [2, 2], [1, 0]]), frames, torch.tensor([2, 2, 0]), 3, 0)
    for zero in (False, True):
        c("ctc_loss.Tensor", x(), targets, torch.tensor([3, 1, 2]), lengths, 0, 0, zero)  # too few frames
    c("ctc_loss.IntList", c.fixed(torch.log_softmax(c.f(5, 4), 1)), torch.tensor([1, 2]), [5], [2])
    joined = torch.tensor([1, 1, 2, 3, 2, 1])  # one sequence's behind the other's
    for reduction in (0, 1):
        c("ctc_loss.IntList", x(), joined, [6, 4, 5], [3, 1, 2], 0, reduction)
        c("ctc_loss.Tensor", x(), joined, frames, torch.tensor([3, 0, 3]), 0, reduction)


def ties(c):
    """Numbers that lie on a bound, or beside an equal one."""
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


def orthogonal(c):
    """Factorizations by orthogonal matrices. Of vectors that have a sign by choice only the values are compared."""

    def even(*shape):
        x = c.f(*shape)
        return x + x.mT

    for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 3), (2, 4, 2)):
        c("linalg_qr.default", c.f(*shape))
    c("linalg_qr.default", c.f(2, 4), "complete")
    c("linalg_qr.default", c.fixed(c.f(4, 2)), "complete")
    c("linalg_qr.default", c.fixed(c.f(3, 2)), "r")
    c("linalg_qr.default", torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=F64))  # nothing to reflect
    for side in ("L", "U"):
        c("linalg_eigvalsh.default", even(3, 3), side)
        c("linalg_eigvalsh.default", even(2, 4, 4), side)
    for shape in ((3, 3), (4, 2), (2, 2, 3)):
        c("linalg_pinv.default", c.f(*shape), 1e-12)
        c("linalg_pinv.atol_rtol_float", c.f(*shape))
        c("linalg_lstsq.default", c.f(*shape), c.f(*shape[:-1], 2))
    c("linalg_pinv.atol_rtol_float", c.f(3, 1) @ c.f(1, 4), rtol=1e-10)  # of rank 1
    c("linalg_pinv.atol_rtol_float", even(3, 3), atol=0.01, hermitian=True)
    c("pinverse.default", c.f(3, 2))
    c("linalg_householder_product.default", c.f(4, 3), c.u(0.2, 1.5, 3))
    c("linalg_householder_product.default", c.f(2, 4, 3), c.u(0.2, 1.5, 2, 2))


def powers(c):
    c("linalg_vecdot.default", c.f(2, 3), c.f(2, 3))
    c("linalg_vecdot.default", c.f(2, 3, 1), c.f(3, 4), dim=1)
    c("linalg_diagonal.default", c.f(2, 3, 4), offset=1)
    for upper in (False, True):
        c("cholesky_inverse.default", c.fixed(c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64)), upper)
    for name in ("linalg_matrix_exp.default", "matrix_exp.default"):
        c(name, c.f(3, 3))
        c(name, 5 * c.f(2, 2, 2))
    c("linalg_matrix_exp.default", torch.zeros(2, 2, dtype=F64))
    for n in (0, 1, 3, 6, -2):
        c("linalg_matrix_power.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), n)
    c("linalg_multi_dot.default", [c.f(2, 5), c.f(5, 1), c.f(1, 4), c.f(4, 3)])
    c("linalg_multi_dot.default", [c.f(3), c.f(3, 4), c.f(4)])


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


def special(c):
    signs = torch.tensor([-2.0, -0.0, 0.0, 3.0], dtype=F64)
    c("copysign.Tensor", c.f(2, 4), c.fixed(signs))
    c("copysign.Tensor", signs, c.fixed(signs.flip(0)))
    c("copysign.Scalar", c.f(3), -1.0)
    c("signbit.default", signs)
    c("special_entr.default", c.u(0.1, 3, 2, 3))
    c("special_entr.default", c.fixed(torch.tensor([0.0, -1.0, 1.0, float("nan")], dtype=F64)))
    c("special_ndtr.default", c.f(3, 4))
    c("special_xlog1py.default", c.u(0.1, 2, 2, 3), c.u(-0.8, 2, 3))
    c("special_xlog1py.default", c.fixed(torch.zeros(3, dtype=F64)), c.fixed(torch.tensor([-1.0, 0.5, float("nan")], dtype=F64)))
    c("heaviside.default", c.fixed(torch.tensor([-1.0, 0.0, 2.0], dtype=F64)), c.fixed(torch.tensor(0.5, dtype=F64)))


def gammas(c):
    c("digamma.default", c.u(0.2, 8, 3, 4))
    c("digamma.default", torch.tensor([-0.5, -1.25, 1e-3, 40.0], dtype=F64))
    for n in (0, 1, 2, 5):
        c("polygamma.default", n, c.u(0.2, 8, 2, 3))
    c("polygamma.default", 1, torch.tensor([-0.5, -2.75, 1e-2, 30.0], dtype=F64))
    c("mvlgamma.default", c.u(1.5, 8, 2, 3), 3)
    c("special_zeta.default", c.fixed(c.u(1.5, 6, 2, 3)), c.u(0.3, 8, 2, 3))
    c("special_zeta.default", c.fixed(torch.tensor([1.0, 0.5, 2.0, 3.0], dtype=F64)), c.fixed(torch.tensor([2.0, 2.0, -0.5, -1.5], dtype=F64)))
    c("special_zeta.other_scalar", c.fixed(c.u(1.5, 6, 3)), 2.0)


def small_functions(c):
    wide = torch.tensor([-45.0, -31.0, -3.0, 0.0, 0.5, 29.0, 60.0], dtype=F64)
    for name in "i0 special_i0e special_i1 special_i1e".split():
        c(f"{name}.default", c.f(3, 4))
        c(f"{name}.default", wide if name.endswith("e") else wide / 4)
    c("special_erfcx.default", c.f(3, 4))
    c("special_erfcx.default", torch.tensor([-3.0, 1.9, 2.1, 10.0, 300.0], dtype=F64))
    c("special_log_ndtr.default", c.f(3, 4))
    c("special_log_ndtr.default", torch.tensor([-40.0, -1.5, 0.0, 6.0], dtype=F64))
    c("special_ndtri.default", c.u(0.02, 0.98, 3, 4))
    c("special_ndtri.default", c.fixed(torch.tensor([0.0, 1e-12, 0.5, 1.0, -1.0], dtype=F64)))
    c("logaddexp2.default", c.f(2, 3), c.f(3))
    c("ldexp.Tensor", c.f(2, 3), c.i(6, 3))
    c("float_power.Tensor_Tensor", c.u(0.3, 2, 2, 3), c.f(3))
    c("float_power.Tensor_Scalar", c.f(4), 2)
    c("float_power.Scalar", 2, c.f(4))
    c("angle.default", c.f(4))
    inf, nan = INF, float("nan")
    numbers = [torch.tensor([1.0, 2.0, inf, inf, nan, 3.0], dtype=F64), torch.tensor([1.0, 2.001, inf, -inf, nan, inf], dtype=F64)]
    for equal_nan in (False, True):
        c("isclose.default", *numbers, rtol=0.01, atol=0.001, equal_nan=equal_nan)
    for name in "isposinf isneginf".split():
        c(f"{name}.default", numbers[1])
    for name in "gcd lcm".split():
        c(f"{name}.default", torch.tensor([12, -18, 0, 0, 7]), torch.tensor([-8, 27, -5, 0, 1]))
    for name in "bitwise_left_shift bitwise_right_shift".split():
        c(f"{name}.Tensor", torch.tensor([5, -5, 1, -1, 7]), torch.tensor([2, 1, 62, 63, 0]))
        c(f"{name}.Tensor_Scalar", torch.tensor([5, -5, 1], dtype=torch.int32), 3)
    c("__lshift__.Scalar", torch.tensor([5, -5, 1]), 3)
    c("__rshift__.Scalar", torch.tensor([5, -5, 1]), 1)
    c("rrelu.default", c.f(3, 4), 0.1, 0.4, False)


def divided(c):
    c("vsplit.int", c.f(4, 2), 2)
    c("vsplit.array", c.f(4, 2), [1, 3])
    c("hsplit.int", c.f(2, 6), 3)
    c("hsplit.array", c.f(5), [1, 3])
    c("dsplit.int", c.f(1, 2, 4), 2)
    c("column_stack.default", [c.f(2), c.f(2, 3)])
    for name in "atleast_1d atleast_2d atleast_3d".split():
        c(f"{name}.default", c.f(3))
        c(f"{name}.Sequence", [c.f(), c.f(2, 3)])
    c("diagflat.default", c.f(2, 2), 1)
    c("combinations.default", c.f(4))
    c("combinations.default", c.f(3), 3, True)
    c("sum_to_size.default", c.f(2, 3, 4), [3, 1])
    for dtype in (F64, I64):
        c("logspace.default", 0.0, 3.0, 5, dtype=dtype)
    c("logspace.default", -1.0, 2.0, 4, 2.0, dtype=F64)
    c("linalg_vander.default", c.f(2, 3))
    c("linalg_vander.default", c.i(4, 3), N=4)
    c("vander.default", c.fixed(c.f(3)))  # PyTorch multiplies in place, and then cannot differentiate
    c("vander.default", c.fixed(c.f(3)), 2, True)
    c("msort.default", c.d(3, 2))
    c("isin.Tensor_Tensor", c.i(6, 2, 3), c.i(6, 4))
    c("isin.Tensor_Scalar", c.i(3, 5), 1, invert=True)
    c("conv_tbc.default", c.f(4, 2, 3), c.f(3, 3, 2), c.f(2), 1)
    c("adaptive_max_pool3d.default", c.d(1, 2, 4, 5, 3), [2, 3, 2])


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


def factors(c):
    for shape in (3, 3), (2, 3, 3), (4, 2), (2, 4):
        c("linalg_lu.default", c.f(*shape))
        c("linalg_lu_factor.default", c.f(*shape))
    c("linalg_lu_factor_ex.default", c.f(3, 3))
    lu = lambda n: torch.eye(n, dtype=F64) * 2 + torch.arange(n * n, dtype=F64).view(n, n) / 20
    pivots = torch.tensor([3, 2, 3], dtype=torch.int32)
    c("lu_unpack.default", lu(3), pivots)
    for left in (True, False):
        for adjoint in (False, True):
            c("linalg_lu_solve.default", lu(3), pivots, c.f(3, 2) if left else c.f(2, 3), left=left, adjoint=adjoint)
    c("lu_solve.default", c.f(3, 2), lu(3), pivots)
    even = lambda n: (lambda a: a @ a.mT + n * torch.eye(n, dtype=F64))(c.f(n, n))
    c("linalg_cholesky_ex.default", even(3))
    c("linalg_cholesky_ex.default", even(3), upper=True)
    c("linalg_inv_ex.default", even(3))
    c("linalg_solve_ex.default", even(3), c.f(3, 2))
    c("geqrf.default", c.fixed(c.f(4, 3)))
    c("geqrf.default", c.fixed(c.f(2, 2, 3)))
    for left in (True, False):
        for transpose in (False, True):
            c("ormqr.default", c.f(4, 3), c.u(0.2, 1.5, 3), c.f(4, 2) if left else c.f(2, 4), left, transpose)
    c("linalg_tensorinv.default", c.f(2, 2, 4))
    c("linalg_tensorsolve.default", c.f(2, 2, 4), c.f(2, 2))
    c("linalg_tensorsolve.default", c.f(2, 4, 2), c.f(4), [0])


def conditions(c):
    for p in (None, 2, -2):
        c("linalg_cond.default", c.f(2, 3, 3), p)
    for p in (1, INF):  # PyTorch writes over the inverse, and then cannot differentiate
        c("linalg_cond.default", c.fixed(c.f(2, 3, 3)), p)
    c("linalg_cond.p_str", c.fixed(c.f(3, 3)), "fro")
    c("linalg_cond.default", c.f(2, 4))
    flat = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=F64)
    c("linalg_matrix_rank.default", c.f(2, 3, 3), 0.1)
    c("linalg_matrix_rank.atol_rtol_float", torch.stack([flat, flat + torch.eye(2, dtype=F64)]))
    c("linalg_matrix_rank.atol_rtol_float", flat, atol=6.0)
    c("linalg_matrix_rank.atol_rtol_tensor", torch.stack([flat, flat]), atol=torch.tensor([0.1, 9.0], dtype=F64))
    c("linalg_matrix_rank.tol_tensor", flat, torch.tensor(0.1, dtype=F64))
