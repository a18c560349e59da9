"""`headwater.ops` beside PyTorch's functions and formulas in float64; `opcheck` and `gradcheck`; operators of extensions."""

import copy
from typing import Any, Callable

import pytest
import torch

import headwater
from headwater import nn, ops

F = torch.nn.functional

IDS = torch.tensor([[1, 4, 1], [0, 2, 4]])
MASK = torch.tensor([[True, False, True, True], [True, True, False, True], [False, True, True, True]])


def r(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


#: Ours, PyTorch's, and floats that get gradients.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "rms_norm": (
        lambda x, w: ops.rms_norm(x, w, 1e-5),
        lambda x, w: F.rms_norm(x, (6,), w, 1e-5),
        lambda: [r(2, 3, 6), r(6)],
    ),
    "rms_norm plain": (lambda x: ops.rms_norm(x), lambda x: F.rms_norm(x, (6,), None, 1e-6), lambda: [r(4, 6)]),
    "rms_norm of a row": (lambda x, w: ops.rms_norm(x, w), lambda x, w: F.rms_norm(x, (6,), w, 1e-6), lambda: [r(6), r(6)]),
    "embedding": (lambda w: ops.embedding(IDS, w), lambda w: F.embedding(IDS, w), lambda: [r(5, 3)]),
    "embedding padded": (
        lambda w: ops.embedding(IDS, w, padding_idx=4),
        lambda w: F.embedding(IDS, w, padding_idx=4),
        lambda: [r(5, 3)],
    ),
    "embedding by frequency": (
        lambda w: ops.embedding(IDS, w, padding_idx=-1, scale_grad_by_freq=True),
        lambda w: F.embedding(IDS, w, padding_idx=-1, scale_grad_by_freq=True),
        lambda: [r(5, 3)],
    ),
    "layer_norm": (
        lambda x, w, b: ops.layer_norm(x, w, b),
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        lambda: [r(2, 3, 6), r(6), r(6)],
    ),
    "layer_norm plain": (lambda x: ops.layer_norm(x), lambda x: F.layer_norm(x, (6,)), lambda: [r(3, 6)]),
    "cross_entropy": (
        lambda x: ops.cross_entropy(x, torch.tensor([1, 0, 3])),
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3])),
        lambda: [r(3, 4)],
    ),
    "cross_entropy smoothed": (
        lambda x: ops.cross_entropy(x, torch.tensor([1, -100, 3]), label_smoothing=0.1),
        lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3]), label_smoothing=0.1),
        lambda: [r(3, 4)],
    ),
    "attention": (
        lambda q, k, v: ops.attention(q, k, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda: [r(2, 3, 4), r(2, 5, 4), r(2, 5, 6)],
    ),
    "attention causal": (
        lambda q, k, v: ops.attention(q, k, v, is_causal=True, scale=0.7),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
        lambda: [r(2, 2, 4, 3), r(2, 2, 4, 3), r(2, 2, 4, 3)],
    ),
    "attention masked": (
        lambda q, k, v: ops.attention(q, k, v, MASK),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, MASK),
        lambda: [r(2, 3, 4), r(2, 4, 4), r(2, 4, 4)],
    ),
}


def gradients(f: Callable[..., Any], given: list[torch.Tensor], dtype: torch.dtype) -> tuple[Any, Any]:
    own = [t.to(dtype).requires_grad_() for t in given]
    out = f(*own)
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=dtype).reshape(out.shape)
    return out.detach(), torch.autograd.grad((out * weights).sum(), own)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    ours, theirs, make = CASES[name]
    given = make()
    want, grads = gradients(theirs, given, torch.float64)
    for dtype, bound in ((torch.float32, 64 * 2.0**-24), (torch.float64, 64 * 2.0**-53)):
        out, found = gradients(ours, given, dtype)
        assert out.dtype is dtype
        for got, exact in zip((out, *found), (want, *grads)):
            assert (got.double() - exact).norm() <= bound * (exact.norm() + 1.0)
            with pytest.raises(AssertionError):
                assert (got.double() * 1.01 - exact).norm() <= bound * (exact.norm() + 1.0)


#: Rows of padding, and division by frequency, are no derivatives, by their definition.
@pytest.mark.parametrize("name", [name for name in CASES if "padded" not in name and "frequency" not in name])
def test_gradcheck(name: str) -> None:
    ours, _, make = CASES[name]
    assert torch.autograd.gradcheck(ours, [t.double().requires_grad_() for t in make()])


H = torch.ops.headwater
CHECKED: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "rms_norm": (H.rms_norm, lambda: (r(3, 6).requires_grad_(), r(6).requires_grad_(), 1e-6)),
    "rms_norm_backward": (H.rms_norm_backward, lambda: (r(3, 6), r(3, 6), r(6), r(3, 1))),
    "embedding": (H.embedding, lambda: (r(5, 3).requires_grad_(), IDS, -1, False)),
    "embedding_dense_backward": (H.embedding_dense_backward, lambda: (r(2, 3, 4), IDS, 5, 4, True)),
    "layer_norm": (H.layer_norm, lambda: (r(3, 6).requires_grad_(), r(6).requires_grad_(), None, 1e-5)),
    "cross_entropy": (H.cross_entropy, lambda: (r(3, 4).requires_grad_(), torch.tensor([1, 0, 3]), -100, 0.1)),
    "attention": (
        H.attention,
        lambda: (r(2, 3, 4).requires_grad_(), r(2, 5, 4).requires_grad_(), r(2, 5, 4).requires_grad_(), None, False, None),
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_opcheck(name: str) -> None:
    operator, make = CHECKED[name]
    found = torch.library.opcheck(operator.default, make())
    assert set(found.values()) == {"SUCCESS"}


def test_gradients_by_themselves() -> None:
    x, w, g = r(3, 6), r(6), r(3, 6)
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    a, b = x.double().requires_grad_(), w.double().requires_grad_()
    want = torch.autograd.grad(F.rms_norm(a, (6,), b, 1e-6), (a, b), g.double())
    for got, exact in zip(ops.rms_norm_backward(g, x, w, rstd), want):
        assert (got - exact).norm() < 64 * 2.0**-24 * exact.norm()
    grad = r(2, 3, 4)
    for settings in ((-1, False), (4, False), (1, True)):
        got = ops.embedding_dense_backward(grad, IDS, 5, *settings)
        torch.testing.assert_close(got, torch.ops.aten.embedding_dense_backward(grad, IDS, 5, *settings))


def test_indices_are_checked_and_the_next_call_is_right() -> None:
    w = r(5, 3)
    with pytest.raises(IndexError):
        ops.embedding(torch.tensor([5]), w)
    assert torch.equal(ops.embedding(torch.tensor([4]), w), w[4:])


def test_modules() -> None:
    norm, table = nn.RMSNorm(6), nn.Embedding(5, 6, padding_idx=0)
    theirs, rows = torch.nn.RMSNorm(6), torch.nn.Embedding(5, 6, padding_idx=0)
    rows.load_state_dict(table.state_dict())
    norm.load_state_dict(theirs.state_dict())
    got, want = norm(table(IDS)), theirs(rows(IDS))
    torch.testing.assert_close(got, want)
    got.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(table.weight.grad, rows.weight.grad, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="the last dimension"):
        nn.RMSNorm((2, 3))(r(2, 3))
    with pytest.raises(ValueError, match="max_norm"):
        nn.Embedding(5, 3, max_norm=1.0)(IDS)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(5, 6), nn.RMSNorm(6), torch.nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.table(ids)))


@pytest.mark.parametrize("compiler", ["headwater", "aot_eager"])
def test_compiled(compiler: str) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=compiler, fullgraph=True)
    model(IDS).square().sum().backward()
    compiled(IDS).square().sum().backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-5)
    assert headwater.counters().refused == 0
    assert (headwater.counters().plans > 0) == (compiler == "headwater")


# An extension as tutorials for NPUs have it: operators of C++ that run on the device alone, and a function over them.

torch.library.define("headwater_tests_npu::npu_rms_norm_forward", "(Tensor x, Tensor weight) -> (Tensor, Tensor)")
torch.library.define("headwater_tests_npu::npu_rms_norm_backward", "(Tensor grad, Tensor x, Tensor w, Tensor rstd) -> (Tensor, Tensor)")
torch.library.define("headwater_tests_npu::other", "(Tensor x, int n) -> Tensor")


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y, rstd = torch.ops.headwater_tests_npu.npu_rms_norm_forward(x, weight)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.ops.headwater_tests_npu.npu_rms_norm_backward(grad, *ctx.saved_tensors)


def test_operators_of_an_extension_are_ours() -> None:
    x, w = r(3, 6), r(6)

    def both() -> tuple[torch.Tensor, ...]:
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        out = RMSNormFunction.apply(a, b)
        return (out, *torch.autograd.grad(out.square().sum(), (a, b)))

    with pytest.raises(NotImplementedError):
        both()
    with ops.map("headwater_tests_npu::npu_rms_norm_forward", "rms_norm", eps=1e-6):
        with ops.map("headwater_tests_npu::npu_rms_norm_backward", "rms_norm_backward"):
            found = both()
            compiled = torch.compile(
                lambda x, w: torch.ops.headwater_tests_npu.npu_rms_norm_forward(x, w)[0] * 2, backend="headwater", fullgraph=True
            )
            torch.testing.assert_close(compiled(x, w), 2 * F.rms_norm(x, (6,), w, 1e-6))
            assert headwater.counters().plans > 0 and headwater.counters().refused == 0
    a, b = x.double().requires_grad_(), w.double().requires_grad_()
    want = F.rms_norm(a, (6,), b, 1e-6)
    for got, exact in zip(found, (want, *torch.autograd.grad(want.square().sum(), (a, b)))):
        assert (got - exact).norm() < 64 * 2.0**-24 * exact.norm()
    with pytest.raises(NotImplementedError):
        both()


def test_a_wrong_mapping_is_refused_with_both_schemas() -> None:
    with pytest.raises(ValueError, match=r"headwater_tests_npu::other\(.*is not headwater::rms_norm\("):
        ops.map("headwater_tests_npu::other", "rms_norm", eps=1e-6)
    with pytest.raises(ValueError, match="is not headwater::rms_norm"):
        ops.map("headwater_tests_npu::npu_rms_norm_forward", "rms_norm")
    with pytest.raises(ValueError, match="there is no operator headwater_tests_npu::missing"):
        ops.map("headwater_tests_npu::missing", "rms_norm")
    with pytest.raises(ValueError, match="has no argument epsilon"):
        ops.map("headwater_tests_npu::npu_rms_norm_forward", "rms_norm", epsilon=1e-6)
