"""`compile_step(amp=…)` and `torch.compile(options={"amp": …})`: casts beside eager mode's, the loss scale by
its rule, and what a step says of itself."""

import copy
from typing import Any

import pytest
import torch
from conftest import batches, mlp

import headwater

F = torch.nn.functional


def plain() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def data(count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(batches(count, 16))


def made(model: torch.nn.Module, amp: Any, **settings: Any) -> tuple[headwater.Step, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return headwater.compile_step(model, optimizer, F.cross_entropy, amp=amp, **settings), optimizer


def distance(model: torch.nn.Module, exact: torch.nn.Module, start: torch.nn.Module) -> float:
    """The distance of trained parameters from exact ones, relative to how far these went."""
    flat = lambda m: torch.cat([p.detach().double().flatten() for p in m.parameters()])  # noqa: E731
    return float((flat(model) - flat(exact)).norm() / (flat(exact) - flat(start)).norm())


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_casts_err_as_those_of_eager_mode(level: str, dtype: str) -> None:
    """Trained for five steps, parameters are as far from float64 as with autocast, at most three times."""
    steps = data()
    low = torch.bfloat16 if dtype == "bf16" else torch.float16
    start, exact, single, theirs, model = plain(), plain().double(), plain(), plain(), plain()
    for m, cast in ((exact, False), (single, False), (theirs, True)):
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        for x, y in steps:
            o.zero_grad()
            with torch.autocast("cpu", low, enabled=cast):
                loss = F.cross_entropy(m(x.double() if m is exact else x), y)
            loss.backward()
            o.step()
    step, _ = made(model, {"level": level, "dtype": dtype})
    for x, y in steps:
        step(x, y)
    want, got = distance(theirs, exact, start), distance(model, exact, start)
    assert 0.1 * want < got < 3 * want, (got, want)
    assert all(p.dtype is torch.float32 for p in model.parameters())
    assert step.explain().precision == f"{level} in {dtype}"
    # A tenth of what autocast errs by is more than what f32 does.
    assert distance(single, exact, start) < 0.01 * want and want > 1e-4


def test_accumulation_is_the_mean_at_any_scale() -> None:
    steps = data(4)
    a, b = plain(), plain()
    one, _ = made(a, {"level": "O2", "dtype": "f16"}, accumulate=2)
    two, _ = made(b, {"level": "O2", "dtype": "f16", "loss_scale": 1.0}, accumulate=2)
    for batch in steps:
        one(*batch), two(*batch)
    assert one.scale == 65536.0 and two.scale == 1.0
    assert distance(a, b, plain()) < 2.0**-9
    assert one.norm == pytest.approx(two.norm, rel=2.0**-9)


def test_the_scale_saves_small_gradients() -> None:
    norms = []
    for amp in (None, {"level": "O2", "dtype": "f16"}, {"level": "O2", "dtype": "f16", "loss_scale": 1.0}):
        model = plain()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = headwater.compile_step(model, optimizer, lambda out, y: F.cross_entropy(out, y) * 1e-6, amp=amp, check=False)
        step(*data(1)[0])
        norms.append(step.norm)
    exact, scaled, unscaled = norms
    # Elements of 1e-8 are below the least of f16, 6e-8.
    assert scaled == pytest.approx(exact, rel=2.0**-7) and unscaled != pytest.approx(exact, rel=2.0**-7)


def overflowing(step: headwater.Step) -> None:
    with pytest.warns(RuntimeWarning, match="not finite"):
        step(torch.full((16, 6), 1e30), torch.zeros(16, dtype=torch.long))


def test_the_scale_moves_by_its_rule_and_goes_on() -> None:
    model = plain()
    amp = {"level": "O1", "dtype": "f16", "scaler": {"interval": 2, "min": 16384.0}}
    step, _ = made(model, amp)
    good = data(1)[0]
    step(*good)
    assert step.scale == 65536.0 and step.state_dict() == {"scale": 65536.0, "growth_tracker": 1}
    step(*good)
    assert step.scale == 131072.0
    before = copy.deepcopy(model.state_dict())
    overflowing(step)
    assert step.scale == 65536.0 and step.skipped == 1
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    step(*good)
    assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])
    saved = step.state_dict()
    other, _ = made(plain(), amp)
    other.load_state_dict(saved)
    assert other.scale == 65536.0
    other(*good)
    assert other.scale == 131072.0
    other.load_state_dict({"scale": 16384.0, "growth_tracker": 0})
    with pytest.raises(headwater.Error, match="lowest loss scale, 16384") as e:
        other(torch.full((16, 6), 1e30), torch.zeros(16, dtype=torch.long))
    assert e.value.code == "HW-R006"


def test_a_loss_scale_is_loaded_between_updates_alone() -> None:
    """Gradients of one update have one scale: they are summed with it, and divided by it once."""
    twin = plain()
    step, _ = made(plain(), {"level": "O1", "dtype": "f16"})
    other, _ = made(twin, {"level": "O1", "dtype": "f16"})
    first, second = data(2)
    lower = {"scale": 256.0, "growth_tracker": 3}
    for s in (step, other):
        s.backward(*first)
    with pytest.raises(headwater.Error, match=r"behind 1 batch of an update.*65536.*after step\.update\(\)"):
        step.load_state_dict(lower)
    assert step.state_dict() == {"scale": 65536.0, "growth_tracker": 0}
    for s in (step, other):
        s.backward(*second)
        assert s.update()
    assert step.norm == other.norm
    step.load_state_dict(lower)
    assert step.state_dict() == lower
    counted, _ = made(plain(), {"level": "O1", "dtype": "f16"}, accumulate=3)
    counted(*first), counted(*second)
    with pytest.raises(headwater.Error, match="behind 2 batches of an update.*after the last of 3 calls"):
        counted.load_state_dict(lower)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), 0.0, -65536.0])
def test_a_loss_scale_that_is_none_is_refused(scale: float) -> None:
    step, _ = made(plain(), {"level": "O1", "dtype": "f16"})
    with pytest.raises(headwater.Error, match="a finite number above 0") as e:
        step.load_state_dict({"scale": scale, "growth_tracker": 0})
    assert e.value.code == "HW-R004" and step.scale == 65536.0


def test_a_skipped_step_changes_no_moment_and_no_count() -> None:
    model = plain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = headwater.compile_step(model, optimizer, F.cross_entropy, amp={"level": "O2", "dtype": "f16"})
    good = data(1)[0]
    step.backward(*good)
    assert step.update()
    before, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    step.backward(*good)
    step.backward(torch.full((16, 6), 1e30), torch.zeros(16, dtype=torch.long))
    with pytest.warns(RuntimeWarning, match="not finite"):
        assert not step.update()
    assert step.skipped == 1 and step.scale == 32768.0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    now = optimizer.state_dict()["state"]
    assert all(torch.equal(v, state["state"][i][k]) for i in now for k, v in now[i].items())
    step.backward(*good)
    assert step.update() and int(optimizer.state_dict()["state"][0]["step"]) == 2


def test_bf16_has_no_scale() -> None:
    step, _ = made(plain(), "O2")
    step(*data(1)[0])
    assert step.scale == 1.0 and step.explain().precision == "O2 in bf16"


def test_what_amp_cannot_be_is_said() -> None:
    for amp, match in (("O4", "level is O0"), ("O3", "module.bfloat16"), ({"dtype": "f16"}, "level is O0")):
        with pytest.raises(ValueError, match=match):
            made(plain(), amp)
    with pytest.raises(ValueError, match="no setting losscale"):
        made(plain(), {"level": "O1", "losscale": 2})
    with pytest.raises(ValueError, match="loss_scale is a number"):
        made(plain(), {"level": "O1", "dtype": "f16", "loss_scale": "high"})
    with pytest.raises(headwater.Error, match="grow") as e:
        made(plain(), {"level": "O1", "dtype": "f16", "scaler": {"grow": 2.0}})
    assert e.value.code == "HW-R004"


def test_batch_norm_stays_in_f32_and_its_statistics_are_written() -> None:
    model, twin = mlp(), mlp()
    twin.load_state_dict(model.state_dict())
    step, _ = made(model, {"level": "O2", "dtype": "bf16"})
    x, y = data(1)[0]
    want = F.cross_entropy(twin(x), y).detach()
    loss = step(x, y)
    assert loss.dtype is torch.float32 and 2.0**-14 < float((loss - want).abs() / want) < 2.0**-5
    assert model[1].running_mean.dtype is torch.float32 and int(model[1].num_batches_tracked) == 1
    apart = float((model[1].running_var - twin[1].running_var).norm() / twin[1].running_var.norm())
    # A tenth of a variance, of what bf16 makes of the linear layer; bf16 statistics would be off by 2⁻⁹.
    assert 2.0**-18 < apart < 2.0**-11
    assert any(v != v.bfloat16().float() for v in model[1].running_var)


def test_the_check_compares_in_f32_before_the_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong derivative is found in mixed precision too."""
    from headwater import eager

    right = eager.gradients

    def wrong(*args: Any) -> Any:
        loss, found = right(*args)
        return loss, {name: g if g is None else g * 1.01 for name, g in found.items()}

    monkeypatch.setattr(eager, "gradients", wrong)
    step, _ = made(plain(), "O2")
    with pytest.raises(headwater.Mismatch):
        step(*data(1)[0])


class Biased(torch.nn.Module):
    """A bias before batch norm, whose gradient is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


def test_a_gradient_that_cancels_is_not_proved() -> None:
    step, _ = made(Biased(), None)
    assert "not compared" in str(step.explain())
    step(*data(1)[0])
    report = step.explain()
    assert [name for name, *_ in report.unproved or []] == ["first.bias"]
    assert all(bound > 1.0 for _, _, bound in report.unproved or [])
    assert "not proved" in str(report) and "first.bias" in report._repr_html_()
    step, _ = made(mlp(), None)
    step(*data(1)[0])
    step(*next(iter(batches(1, 3))))
    report = step.explain()
    assert "smaller than each value that is not 0" in str(report)
    assert report.unproved == [] and len(report.programs) == 2 and "float32[16, 6]" in report.programs[0].sizes
    assert "2 programs, f32" in str(report) and "bytes" in str(report)
