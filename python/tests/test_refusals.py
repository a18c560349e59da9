"""What cannot be run right is refused by its name and place; what is lost on the way is found by the first step's check."""

from typing import Any

import pytest
import torch
from conftest import batches, mlp

import headwater
from headwater import derivatives

F = torch.nn.functional


class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 5


@torch.library.custom_op("headwater_tests::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


triple.register_fake(torch.empty_like)
triple.register_autograd(lambda ctx, g: g * 3)


class Odd(torch.nn.Module):
    """A model with one awkward thing in the middle."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.first, self.last, self.odd, self.kept = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3), odd, None
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if self.odd == "function":
            h = Rounds.apply(h) + h
        elif self.odd == "inference_mode":
            with torch.inference_mode():
                factor = h.detach().clone()
            h = h * factor.clone()
        elif self.odd == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                h = self.first(x)
            h = h.float()
        elif self.odd == "saved":
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2):
                h = h * h.exp()
        elif self.odd == "kept":
            self.kept = h
        elif self.odd == "buffer":
            self.mean = self.mean + h.mean(0).detach()
            h = h + self.mean
        elif self.odd == "branch":
            h = h * 2 if h.sum() > 0 else h
        elif self.odd == "print":
            print(end="")
        elif self.odd == "operator":
            h = triple(h)
        return self.last(h)


REFUSED = {
    "inference_mode": "torch.inference_mode",
    "autocast": "an autocast region",
    "saved": "TorchDynamo",
    "kept": "keeps in an attribute",
    "buffer": "keeps in an attribute",
    "branch": "TorchDynamo",
    "print": "TorchDynamo",
    "operator": "headwater_tests.triple",
}


def step_of(model: torch.nn.Module, **settings: Any) -> headwater.Step:
    return headwater.compile_step(model, torch.optim.AdamW(model.parameters(), 0.01), F.cross_entropy, **settings)


@pytest.mark.parametrize("odd", REFUSED)
def test_refused_by_name_and_line(odd: str) -> None:
    model = Odd(odd)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(headwater.Unsupported, match=REFUSED[odd]) as e:
        step_of(model, check=False)(*next(iter(batches(1))))
    assert e.value.code == "HW-I015" and e.value.refusals
    if odd not in ("inference_mode", "autocast", "saved"):
        assert any("test_refusals.py:" in r.line for r in e.value.refusals), e.value.refusals
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())), "the model is as it was"


def test_the_same_model_without_the_odd_thing_runs() -> None:
    step_of(Odd(""))(*next(iter(batches(1))))


def test_hooks_of_modules_and_parameters() -> None:
    batch = next(iter(batches(1)))
    model = mlp()
    model[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(headwater.Unsupported, match="TorchDynamo"):
        step_of(model)(*batch)
    model = mlp()
    step = step_of(model)
    step(*batch)
    hook = model[0].weight.register_hook(lambda g: g * 2)
    with pytest.raises(headwater.Unsupported, match="a hook on the parameter 0.weight"):
        step(*batch)
    hook.remove()
    model[3].bias.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(headwater.Unsupported, match="3.bias"):
        step(*batch)


def test_a_forward_hook_added_later_is_seen() -> None:
    model = mlp()
    step = step_of(model)
    x, y = next(iter(batches(1)))
    step(x, y)
    model[3].register_forward_hook(lambda m, i, o: o * 3)
    with torch.no_grad():
        want = F.cross_entropy(model(x), y)
    torch.testing.assert_close(step(x, y), want, rtol=2e-5, atol=2e-5)


def test_optimizers_and_settings() -> None:
    class Own(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:
            return None

    model = mlp()
    for optimizer in (Own(model.parameters()), torch.optim.LBFGS(model.parameters()), torch.optim.Rprop(model.parameters())):
        with pytest.raises(headwater.Unsupported, match=type(optimizer).__name__):
            headwater.compile_step(model, optimizer)
    with pytest.raises(headwater.Error, match="ascend:x"):
        step_of(model, device="ascend:x")
    with pytest.raises(ValueError):
        step_of(model, accumulate=0)
    with pytest.raises(headwater.Error, match="clip_norm") as e:
        step_of(mlp(), clip_norm=-1.0)(*next(iter(batches(1))))
    assert e.value.code == "HW-R004"


def test_circumstances_of_a_call() -> None:
    step, batch = step_of(mlp()), next(iter(batches(1)))
    step(*batch)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(headwater.Unsupported, match="autocast around"):
        step(*batch)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with hooks, pytest.raises(headwater.Unsupported, match="saved-tensor hooks around"):
        step(*batch)
    step(*batch)


def test_tensors_that_a_program_cannot_take() -> None:
    batch = next(iter(batches(1)))
    model = mlp()
    model[1].bias.data = model[1].weight.data
    with pytest.raises(headwater.Unsupported, match="same memory"):
        step_of(model)(*batch)
    with pytest.raises(headwater.Unsupported, match="only float32 is trained"):
        step_of(mlp().double(), check=False)(batch[0].double(), batch[1])
    x = batch[0].clone().requires_grad_()
    with pytest.raises(headwater.Unsupported, match="requires a gradient"):
        step_of(mlp(), check=False)(x, batch[1])


def test_a_derivative_that_is_lost_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    # A function's own backward pass is missing.
    monkeypatch.setattr(derivatives, "_derived", lambda results, *rest: results)
    model = Odd("function")
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(headwater.Mismatch) as e:
        step_of(model)(*next(iter(batches(1))))
    assert {name for name, *_ in e.value.differences} == {"first.weight", "first.bias"}
    # The gradient through the function is 5 + 1 times what arrives; that of its numbers is 2 + 1 times.
    assert all(abs(error - 0.5) < 1e-3 and bound < 1e-3 for _, error, bound in e.value.differences), e.value.differences
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


@pytest.mark.parametrize("factor", [1.01, 1.0001])
def test_a_fault_in_a_gradient_is_found_by_the_check(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eager mode, with a factor in one gradient that the step's refusal of hooks would have named.
    monkeypatch.setattr(headwater.Step, "_refusals", lambda self: [])
    model = Odd("")
    model.last.weight.register_hook(lambda g: g * factor)
    with pytest.raises(headwater.Mismatch, match="last.weight") as e:
        step_of(model)(*next(iter(batches(1))))
    assert [name for name, *_ in e.value.differences] == ["last.weight"]


def test_gradients_that_cancel_are_no_fault() -> None:
    # A bias before batch norm has no influence: its gradient is rounding alone.
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    x, y = next(iter(batches(1, 64)))
    step_of(model)(x, y)


def test_random_numbers_that_no_check_can_follow() -> None:
    class Noise(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x + torch.rand_like(x))

    batch = next(iter(batches(1)))
    with pytest.raises(headwater.Unsupported, match="random numbers other than dropout"):
        step_of(Noise())(*batch)
    step_of(Noise(), check=False)(*batch)


def test_dropout_does_not_disturb_the_check() -> None:
    layer = torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True)
    model = torch.nn.Sequential(layer, torch.nn.Dropout(0.3), torch.nn.Flatten(), torch.nn.Linear(24, 3))
    before = torch.get_rng_state()
    step_of(model)(torch.randn(5, 4, 6), torch.randint(3, (5,)))
    assert not torch.equal(before, torch.get_rng_state()), "the step draws its masks from torch's generator"


def test_a_panic_is_a_runtime_error_and_errors_have_codes() -> None:
    with pytest.raises(RuntimeError, match="a fault of its own: on purpose. Please report it") as e:
        headwater._headwater._fail("on purpose")
    assert not isinstance(e.value, headwater.Error)
    with pytest.raises(headwater.Error, match="the model") as e:
        headwater._headwater.Program(b"{", [], set())
    assert e.value.code == "HW-I008"
