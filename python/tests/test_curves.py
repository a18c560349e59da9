"""Steps beside eager mode: losses, parameters, buffers and the optimizer's state."""

import copy
import io
import os

import pytest
import torch
from conftest import TOLERANCE, Pair, batches, mlp

import headwater

F = torch.nn.functional

OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.05, weight_decay=0.01),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 0.01, weight_decay=0.1),
    "adam_decoupled": lambda m: torch.optim.Adam(m.parameters(), 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.01, betas=(0.8, 0.99), eps=1e-6),
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), 0.01, amsgrad=True, maximize=True),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True),
    "adamax": lambda m: torch.optim.Adamax(m.parameters(), 0.01, weight_decay=0.01),
    "nadam": lambda m: torch.optim.NAdam(m.parameters(), 0.01, weight_decay=0.01, momentum_decay=0.1),
    "nadam_decoupled": lambda m: torch.optim.NAdam(m.parameters(), 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda m: torch.optim.RAdam(m.parameters(), 0.01, betas=(0.9, 0.95), weight_decay=0.01),
    "radam_decoupled": lambda m: torch.optim.RAdam(m.parameters(), 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 0.01, weight_decay=0.01, eps=1e-4),
    "rmsprop_centered": lambda m: torch.optim.RMSprop(m.parameters(), 0.01, momentum=0.5, centered=True, eps=1e-4),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters(), 1.0, rho=0.8, weight_decay=0.01, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_in_eager_mode(name: str) -> None:
    pair = Pair(mlp(), OPTIMIZERS[name], F.cross_entropy)
    for batch in batches(6):
        pair.both(*batch)
    pair.agree()


def test_a_wrong_rate_is_seen_by_these_comparisons() -> None:
    pair = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    pair.optimizer.param_groups[0]["lr"] *= 1.01
    for batch in batches(3):
        pair.step(*batch)
        pair.eager_step(*batch)
    pair.optimizer.param_groups[0]["lr"] = pair.eager_optimizer.param_groups[0]["lr"]
    with pytest.raises(AssertionError):
        pair.agree()


def test_clipping_accumulation_and_groups() -> None:
    def groups(m: torch.nn.Module) -> torch.optim.Optimizer:
        decay = [p for p in m.parameters() if p.dim() > 1]
        rest = [p for p in m.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0, "lr": 0.003}], 0.01)

    pair = Pair(mlp(), groups, F.cross_entropy, clip_norm=0.1, accumulate=3)
    for batch in batches(9):
        pair.both(*batch)
    pair.agree()
    assert pair.step.norm is not None and pair.step.norm > 0.1
    assert pair.optimizer.state_dict()["state"][0]["step"].item() == 3


def test_schedulers_and_rates_written_by_hand() -> None:
    pair = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    both = (pair.optimizer, pair.eager_optimizer)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.02, total_steps=12) for o in both]
    with pytest.warns() as said:
        import warnings

        warnings.warn("one, so that there is one")
        for i, batch in enumerate(batches(10)):
            pair.both(*batch)
            for schedule in schedules:
                schedule.step()
            if i == 5:
                for o in both:
                    o.param_groups[0]["weight_decay"] = 0.2
    assert not [w for w in said if "lr_scheduler.step()" in str(w.message)]
    assert pair.optimizer.param_groups[0]["betas"][0] != 0.8, "the schedule writes momentum too"
    pair.agree()


def test_the_loss_of_a_model_that_returns_it() -> None:
    class Own(torch.nn.Module):
        def __init__(self, form: str) -> None:
            super().__init__()
            self.net, self.form = torch.nn.Linear(6, 3), form

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> object:
            logits = self.net(x)
            loss = F.cross_entropy(logits, y)
            return {"plain": loss, "dict": {"loss": loss, "logits": logits}, "tuple": (loss, logits)}[self.form]

    for form in ("plain", "dict", "tuple"):
        model = Own(form)
        step = headwater.compile_step(model, OPTIMIZERS["sgd"](model))
        x, y = next(iter(batches(1)))
        want = F.cross_entropy(model.net(x), y)
        loss = step(x, y)
        assert loss.dim() == 0 and not loss.requires_grad
        torch.testing.assert_close(loss, want.detach(), rtol=TOLERANCE, atol=TOLERANCE)


def test_new_sizes_and_modes_are_programs_on_the_same_state() -> None:
    pair = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    for size in (5, 7, 5, 4, 7):
        pair.both(*next(iter(batches(1, size))))
    assert pair.step.programs == 3
    # Without the batch's statistics, and with them again.
    for mode in (False, True):
        pair.model.train(mode)
        pair.eager.train(mode)
        pair.both(*next(iter(batches(1))))
    assert pair.step.programs == 4
    pair.agree()


def test_state_of_python_is_watched() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.factor, self.seen = torch.nn.Linear(6, 3), 1.0, [0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.factor *= 1.5
            self.seen[0] += 1
            return self.net(x) * self.factor

    pair = Pair(Counts(), OPTIMIZERS["sgd"], F.cross_entropy)
    for batch in batches(3):
        pair.both(*batch)
    assert pair.model.factor == pair.eager.factor and pair.model.seen == pair.eager.seen == [3]
    pair.agree()


def test_frozen_parameters_stay_and_can_be_thawed() -> None:
    pair = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    for model in (pair.model, pair.eager):
        model[0].requires_grad_(False)
    before = pair.model[0].weight.detach().clone()
    for batch in batches(3):
        pair.both(*batch)
    assert torch.equal(pair.model[0].weight, before)
    assert len(pair.optimizer.state) == len(pair.eager_optimizer.state) == 4
    # Those that were thawed make their first step while the others make their fourth.
    for model in (pair.model, pair.eager):
        model[0].requires_grad_(True)
    for batch in batches(3):
        pair.both(*batch)
    for model in (pair.model, pair.eager):
        model[3].requires_grad_(False)
    for batch in batches(2):
        pair.both(*batch)
    pair.agree()
    steps = [s["step"].item() for s in pair.optimizer.state_dict()["state"].values()]
    assert set(steps) == {5, 6, 8}


def test_tied_weights_and_parameters_that_the_loss_does_not_need() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head, self.unused = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 9), torch.nn.Linear(2, 2)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids)).mean(1)

    pair = Pair(Tied(), OPTIMIZERS["adamw"], F.cross_entropy)
    for _ in range(4):
        pair.both(torch.randint(9, (4, 5)), torch.randint(9, (4,)))
    pair.agree()
    assert pair.model.head.weight is pair.model.table.weight
    assert len(pair.optimizer.state) == len(pair.eager_optimizer.state) == 2


def test_dropout_follows_torchs_generator() -> None:
    def run(seed: int) -> list[float]:
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3))
        step = headwater.compile_step(model, OPTIMIZERS["sgd"](model), F.cross_entropy)
        x, y = torch.ones(5, 6), torch.zeros(5, dtype=torch.int64)
        torch.manual_seed(seed)
        return [step(x, y).item() for _ in range(4)]

    first = run(1)
    assert first == run(1) and first != run(2)
    # A step without random numbers leaves the generator alone.
    model = torch.nn.Linear(6, 3)
    step = headwater.compile_step(model, OPTIMIZERS["sgd"](model), F.cross_entropy)
    x, y = next(iter(batches(1)))
    before = torch.get_rng_state()
    step(x, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_that_are_not_finite_change_nothing_and_it_is_said() -> None:
    model = torch.nn.Linear(6, 3)
    step = headwater.compile_step(model, OPTIMIZERS["adamw"](model), F.cross_entropy)
    x, y = next(iter(batches(1)))
    step(x, y)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(RuntimeWarning, match="not finite"):
        step(x * float("inf"), y)
    assert step.skipped == 1 and all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    step(x, y)
    assert not torch.equal(before["weight"], model.weight)


def test_an_index_out_of_range_is_an_error_and_the_next_step_runs() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 3))
    step = headwater.compile_step(model, OPTIMIZERS["sgd"](model), lambda out, _: out.square().mean())
    good = torch.tensor([1, 2])
    step(good, good)
    with pytest.raises(headwater.Error) as e:
        step(torch.tensor([1, 4]), good)
    assert e.value.code == "HW-C005"
    step(good, good)


def test_curves_of_a_transformer() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(40, 16)
            layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(16, 40)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(self.table(ids))).flatten(0, 1)

    pair = Pair(Block(), lambda m: torch.optim.AdamW(m.parameters(), 1e-3), F.cross_entropy, clip_norm=1.0)
    for _ in range(20):
        ids = torch.randint(40, (4, 12))
        pair.both(ids, ids.flatten().roll(1))


def test_checkpoints_go_both_ways(tmp_path: "os.PathLike[str]") -> None:
    pair = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    for batch in batches(3):
        pair.both(*batch)
    file = io.BytesIO()
    torch.save({"model": pair.model.state_dict(), "optimizer": pair.optimizer.state_dict()}, file)
    size = sum(t.numel() * t.element_size() for t in pair.model.state_dict().values())
    alone = io.BytesIO()
    torch.save(pair.model[0].bias, alone)
    assert len(file.getvalue()) < 3 * size + 30_000 and len(alone.getvalue()) < 4_000, "tensors are saved alone"
    later = list(batches(3))
    for batch in later:
        pair.both(*batch)
    final = copy.deepcopy(pair.model.state_dict())

    def load() -> dict[str, object]:
        file.seek(0)
        return torch.load(file, weights_only=True)

    # Into the same step, which goes on from there.
    pair.model.load_state_dict(load()["model"])
    pair.optimizer.load_state_dict(load()["optimizer"])
    for batch in later:
        pair.step(*batch)
    assert all(torch.equal(a, b) for a, b in zip(final.values(), pair.model.state_dict().values()))
    # Into a step of its own, and into eager mode.
    fresh = Pair(mlp(), OPTIMIZERS["adamw"], F.cross_entropy)
    for model, optimizer in ((fresh.model, fresh.optimizer), (fresh.eager, fresh.eager_optimizer)):
        model.load_state_dict(load()["model"])
        optimizer.load_state_dict(load()["optimizer"])
    for batch in later:
        fresh.both(*batch)
    assert all(torch.equal(a, b) for a, b in zip(final.values(), fresh.model.state_dict().values()))
    fresh.agree()


def test_a_checkpoint_of_sgd_with_momentum() -> None:
    pair = Pair(mlp(), OPTIMIZERS["momentum"], F.cross_entropy)
    for batch in batches(2):
        pair.both(*batch)
    saved = copy.deepcopy((pair.model.state_dict(), pair.optimizer.state_dict()))
    fresh = Pair(mlp(), OPTIMIZERS["momentum"], F.cross_entropy)
    for model, optimizer in ((fresh.model, fresh.optimizer), (fresh.eager, fresh.eager_optimizer)):
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    for batch in batches(3):
        fresh.both(*batch)
    fresh.agree()
