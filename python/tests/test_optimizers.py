"""Settings that change, states that go both ways, hooks, and loops that count themselves."""

import copy
from typing import Any, Callable

import pytest
import torch
from conftest import Pair, batches, close, mlp
from test_curves import OPTIMIZERS

import headwater

F = torch.nn.functional


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_go_both_ways(name: str) -> None:
    pair = Pair(mlp(), OPTIMIZERS[name], F.cross_entropy)
    for batch in batches(3):
        pair.both(*batch)
    # What ours saved is loaded by eager mode, and the other way round; both go on.
    ours, theirs = copy.deepcopy(pair.optimizer.state_dict()), copy.deepcopy(pair.eager_optimizer.state_dict())
    pair.optimizer.load_state_dict(theirs)
    pair.eager_optimizer.load_state_dict(ours)
    for batch in batches(3):
        pair.both(*batch)
    pair.agree()


#: A setting that a script changes while it trains, for optimizers that have it.
CHANGES: dict[str, dict[str, Any]] = {
    "adamax": {"betas": (0.8, 0.99), "weight_decay": 0.1},
    "radam": {"betas": (0.8, 0.9), "eps": 1e-6},
    "rmsprop": {"alpha": 0.9, "weight_decay": 0.1},
    "rmsprop_centered": {"momentum": 0.3},
    "adagrad": {"lr_decay": 0.5},
    "adadelta": {"rho": 0.9, "eps": 1e-5},
    "adamw": {"betas": (0.7, 0.9), "weight_decay": 0.1},
    "nadam": {"weight_decay": 0.1},
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_are_read_each_step(name: str) -> None:
    pair = Pair(mlp(), OPTIMIZERS[name], F.cross_entropy)
    for i, batch in enumerate(batches(5)):
        for optimizer in (pair.optimizer, pair.eager_optimizer):
            optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
            if i == 2:
                optimizer.param_groups[0].update(CHANGES[name])
        pair.both(*batch)
    pair.agree()


def smooth() -> torch.nn.Module:
    """A model of which rounding grows little in many steps."""
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


#: Optimizers whose update takes these settings as numbers of the step.
BY_STEP: dict[str, tuple[Callable[[torch.nn.Module], torch.optim.Optimizer], tuple[str, ...]]] = {
    "sgd": (lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, dampening=0.1), ("momentum", "dampening", "weight_decay")),
    "nesterov": (lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9, nesterov=True), ("momentum", "weight_decay")),
    "adam": (lambda m: torch.optim.Adam(m.parameters(), 0.01), ("betas", "weight_decay")),
    "adamw": (lambda m: torch.optim.AdamW(m.parameters(), 0.01), ("betas", "weight_decay")),
    "rmsprop": (
        lambda m: torch.optim.RMSprop(m.parameters(), 0.01, momentum=0.5, centered=True, eps=1e-4),
        ("alpha", "momentum", "weight_decay"),
    ),
}


@pytest.mark.parametrize("name", BY_STEP)
def test_rates_decay_momentum_and_betas_are_numbers_of_the_step(name: str) -> None:
    make, settings = BY_STEP[name]
    pair = Pair(smooth(), make, F.cross_entropy)
    for i, batch in enumerate(batches(12)):
        for optimizer in (pair.optimizer, pair.eager_optimizer):
            group = optimizer.param_groups[0]
            group["lr"] *= 0.95
            for setting in settings:
                # From 0.9 on to below a half, where torch's lerp counts from the other end.
                value = 0.9 - 0.05 * i
                changed = {"betas": (value, 0.9 + 0.005 * i), "weight_decay": 0.01 * (i % 3), "dampening": 0.02 * i}
                group[setting] = changed.get(setting, value)
        pair.both(*batch)
    pair.agree()
    assert pair.step.explain().update_plans == 1
    for optimizer in (pair.optimizer, pair.eager_optimizer):
        optimizer.param_groups[0]["maximize"] = True
    for batch in batches(2):
        pair.both(*batch)
    pair.agree()
    assert pair.step.explain().update_plans == 2
    assert "planned 2 times" in str(pair.step.explain())


def test_one_cycle_plans_the_update_once() -> None:
    pair = Pair(smooth(), lambda m: torch.optim.AdamW(m.parameters(), 0.001), F.cross_entropy)
    both = (pair.optimizer, pair.eager_optimizer)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=50) for o in both]
    betas = set()
    for batch in batches(50):
        pair.both(*batch)
        betas.add(pair.optimizer.param_groups[0]["betas"][0])
        for schedule in schedules:
            schedule.step()
    pair.agree()
    assert len(betas) > 40, "the schedule writes betas at each step"
    assert pair.step.explain().update_plans == 1


def test_momenta_of_nadam_that_change_are_refused() -> None:
    pair = Pair(mlp(), OPTIMIZERS["nadam"], F.cross_entropy)
    batch = next(iter(batches(1)))
    pair.both(*batch)
    before = copy.deepcopy(pair.model.state_dict())
    pair.optimizer.param_groups[0]["betas"] = (0.5, 0.999)
    with pytest.raises(headwater.Unsupported, match="betas or momentum_decay"):
        pair.step(*batch)
    assert torch.equal(before["0.weight"], pair.model[0].weight)


def test_clip_value() -> None:
    model = mlp()
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.5) for m in (model, eager))
    step = headwater.compile_step(model, ours, F.cross_entropy, clip_value=0.01)
    for x, y in batches(3):
        step(x, y)
        theirs.zero_grad()
        F.cross_entropy(eager(x), y).backward()
        torch.nn.utils.clip_grad_value_(eager.parameters(), 0.01)
        assert any((p.grad.abs() == 0.01).any() for p in eager.parameters())
        theirs.step()
    close(dict(model.named_parameters()), dict(eager.named_parameters()))


def test_loops_that_count_themselves() -> None:
    model = mlp()
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), 0.01) for m in (model, eager))
    step = headwater.compile_step(model, ours, F.cross_entropy, clip_norm=0.5)
    with pytest.raises(headwater.Error, match="step.backward first"):
        step.update()
    # A different number of batches for each update; gradients add up.
    for count in (1, 3, 2):
        theirs.zero_grad()
        for x, y in batches(count):
            want = F.cross_entropy(eager(x), y)
            want.backward()
            close({"loss": step.backward(x, y)}, {"loss": want.detach()})
        norm = torch.nn.utils.clip_grad_norm_(eager.parameters(), 0.5)
        assert step.update() is True
        close({"norm": torch.tensor(step.norm)}, {"norm": norm})
        theirs.step()
    close(dict(model.named_parameters()), dict(eager.named_parameters()))
    # And back to whole steps.
    x, y = next(iter(batches(1)))
    step.backward(x, y)
    with pytest.raises(headwater.Error, match="in the middle of an update"):
        step(x, y)
    assert step.update()
    step(x, y)
    with pytest.warns(RuntimeWarning, match="not finite"):
        step.backward(x * float("inf"), y)
        assert step.update() is False


def test_hooks_of_the_optimizers_step_are_called() -> None:
    pair = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    seen: list[str] = []
    for optimizer in (pair.optimizer, pair.eager_optimizer):

        def before(o: Any, args: Any, kwargs: Any) -> None:
            seen.append("before")
            o.param_groups[0]["lr"] *= 0.5

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    for batch in batches(3):
        pair.both(*batch)
    pair.agree()
    # Of both loops, in sequence.
    assert seen == ["before", "after"] * 6
