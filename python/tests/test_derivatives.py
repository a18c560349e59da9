"""Functions with a derivative of their own, hooks on tensors and checkpoints: in whole steps and under torch.compile, beside eager
mode. Their derivatives are not those of their numbers, so that each would be seen if it were lost."""

import copy
from typing import Any

import pytest
import torch
from conftest import Pair, batches

import headwater
from headwater import derivatives, ops

F = torch.nn.functional


class Rounded(torch.autograd.Function):
    """Straight through, with a slope."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slope: float) -> torch.Tensor:
        ctx.slope = slope
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.slope, None


class Saved(torch.autograd.Function):
    """Saves operands, an intermediate and a result; has a result of integers, and one that is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
        h = x @ w
        y = h.sigmoid()
        peak = h.amax(-1)
        ctx.save_for_backward(x, w, y, h)
        ctx.mark_non_differentiable(peak)
        return y, h.argmax(-1), peak

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, *others: Any) -> Any:
        x, w, y, h = ctx.saved_tensors
        d = (g * y * (1 - y)).clamp(-0.01, 0.01) + 0.001 * h
        return d @ w.t(), 0.5 * x.t() @ d


class Two(torch.autograd.Function):
    """Two results, of which a model may use one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * a * x + 2 * b


class Reversed(torch.autograd.Function):
    """The identity, whose gradient has its sign flipped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -0.3 * g


class Model(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.kind = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3), kind
        self.w = torch.nn.Parameter(torch.randn(8, 8) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        match self.kind:
            case "rounded":
                h = Rounded.apply(h, 0.5) + Rounded.apply(h * 2, 0.7)
            case "saved":
                y, index, peak = Saved.apply(h, self.w)
                h = y * (1 + index.unsqueeze(-1)) + peak.unsqueeze(-1)
            case "two":
                a, b = Two.apply(h)
                h = a * self.w[0] + b
            case "one of two":
                h = Two.apply(h)[1]
            case "reversed":
                h = Reversed.apply(h).tanh()
            case "twice":
                h = Rounded.apply(Reversed.apply(Reversed.apply(h)), 2.0)
            case "hook":
                h.register_hook(lambda g: g.clamp(-0.01, 0.01))
                h = h.tanh()
            case "silent hook":
                h.register_hook(lambda g: None)
            case "checkpoint":
                h = torch.utils.checkpoint.checkpoint(lambda t: Rounded.apply(t @ self.w, 0.4).sin(), h, use_reentrant=False)
        return self.last(h)


KINDS = ["rounded", "saved", "two", "one of two", "reversed", "twice", "hook", "silent hook", "checkpoint"]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_steps(kind: str) -> None:
    pair = Pair(Model(kind), lambda m: torch.optim.SGD(m.parameters(), 0.1), F.cross_entropy)
    for batch in batches(3):
        pair.both(*batch)
    pair.agree()


def compiled_agrees(kind: str) -> None:
    model = Model(kind)
    twin = copy.deepcopy(model)
    f = torch.compile(model, backend="headwater", options={"unsupported": "error"})
    for x, _ in batches(2):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        out, want = f(a), twin(b)
        torch.testing.assert_close(out, want)
        out.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    for (name, p), q in zip(model.named_parameters(), twin.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind: str) -> None:
    compiled_agrees(kind)
    assert headwater.counters().plans > 0 and headwater.counters().refused == 0


@pytest.mark.parametrize("kind", ["rounded", "saved", "hook", "checkpoint"])
def test_a_derivative_that_is_lost_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the derivatives of their numbers instead, the comparison above fails, and so does a step's own."""
    monkeypatch.setattr(derivatives, "_derived", lambda results, *rest: results)
    with pytest.raises(AssertionError):
        compiled_agrees(kind)
    model = Model(kind)
    step = headwater.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), F.cross_entropy)
    with pytest.raises(headwater.Mismatch):
        step(*next(iter(batches(1))))


def test_without_gradients_there_is_the_forward_body_alone() -> None:
    model = Model("saved")
    with torch.no_grad():
        x = torch.randn(5, 6)
        torch.testing.assert_close(torch.compile(model, backend="headwater", options={"unsupported": "error"})(x), model(x))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * g


def test_gradcheck_in_float64() -> None:
    f = torch.compile(lambda x: Cube.apply(x).sin(), backend="headwater", options={"unsupported": "error"})
    assert torch.autograd.gradcheck(f, (torch.randn(3, 4, dtype=torch.float64).requires_grad_(),))


def test_in_mixed_precision_it_is_refused_by_name() -> None:
    model = Model("rounded")
    step = headwater.compile_step(model, torch.optim.SGD(model.parameters(), 0.1), F.cross_entropy, amp="O1")
    with pytest.raises(headwater.Unsupported, match="torch.autograd.Function.*in mixed precision"):
        step(*next(iter(batches(1))))


torch.library.define("headwater_tests_loop::rms_forward", "(Tensor x, Tensor weight) -> (Tensor, Tensor)")
torch.library.define("headwater_tests_loop::rms_backward", "(Tensor grad, Tensor x, Tensor w, Tensor rstd) -> (Tensor, Tensor)")


class RMSNormFunction(torch.autograd.Function):
    """As tutorials for NPUs have it: over two operators of an extension, which run on the device alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y, rstd = torch.ops.headwater_tests_loop.rms_forward(x, weight)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.ops.headwater_tests_loop.rms_backward(grad, *ctx.saved_tensors)


def test_the_loop_of_a_tutorial_is_a_whole_step() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(RMSNormFunction.apply(self.first(x), self.scale))

    with (
        ops.map("headwater_tests_loop::rms_forward", "rms_norm", eps=1e-6),
        ops.map("headwater_tests_loop::rms_backward", "rms_norm_backward"),
    ):
        pair = Pair(Net(), lambda m: torch.optim.AdamW(m.parameters(), 0.01), F.cross_entropy)
        for batch in batches(3):
            pair.both(*batch)
        pair.agree()
