"""Cases: functions of single elements, and their broadcasting."""

import torch

from .types import F64, I64, INF

BROADCASTS = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 1, 3), (5, 1)), ((0, 3), (1, 3)), ((1,), (0,))]


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
