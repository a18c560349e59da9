"""Steps on other devices than the CPU: the state is on the device, and `sync` brings it back."""

import copy

import pytest
import torch
from conftest import Pair, batches, mlp

import headwater

F = torch.nn.functional


def adamw(m: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(m.parameters(), 0.01)


def momentum(m: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in b)


@pytest.mark.parametrize("optimizer", [adamw, momentum])
@pytest.mark.parametrize("device", ["reference", "ascend-sim:910b1"])
def test_training_there_is_training_here(device: str, optimizer: "type[torch.optim.Optimizer]") -> None:
    pair = Pair(mlp(), optimizer, F.cross_entropy, clip_norm=1.0, accumulate=2, device=device)
    before = copy.deepcopy(dict(pair.model.named_parameters()))
    for batch in batches(4):
        pair.both(*batch)
    assert same(before, dict(pair.model.named_parameters())), "the device has the newer ones"
    pair.step.sync()
    assert not same(before, dict(pair.model.named_parameters()))
    pair.agree()
    for batch in batches(2):
        pair.both(*batch)
    # state_dict of the two, which `agree` takes, brings them back by itself.
    pair.agree()
    # What is written and loaded goes there.
    with torch.no_grad():
        for model in (pair.model, pair.eager):
            model[0].weight.mul_(0.5)
            model[3].bias.data = model[3].bias.data + 1
    for batch in batches(2):
        pair.both(*batch)
    saved = copy.deepcopy((pair.eager.state_dict(), pair.eager_optimizer.state_dict()))
    for batch in batches(2):
        pair.both(*batch)
    for model, own in ((pair.model, pair.optimizer), (pair.eager, pair.eager_optimizer)):
        model.load_state_dict(saved[0])
        own.load_state_dict(copy.deepcopy(saved[1]))
    for batch in batches(2, 7):
        pair.both(*batch)
    pair.agree()
    pair.step.close()
    pair.agree()


def test_what_is_written_over_old_contents_is_refused() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy, device="reference")
    batch = next(iter(batches(1)))
    pair.both(*batch)
    with torch.no_grad():
        pair.model[0].weight.mul_(0.5)
    with pytest.raises(headwater.Error, match=r"0\.weight was written while .* call step\.sync"):
        pair.step(*batch)
    with pytest.raises(headwater.Error, match=r"0\.weight was written while .* call step\.sync"):
        pair.model.state_dict()


def test_memory_is_planned_for_the_device() -> None:
    model = mlp()
    step = headwater.compile_step(model, adamw(model), F.cross_entropy, device="reference")
    x, y = next(iter(batches(1)))
    planned = step.memory(x, y)
    step(x, y)
    assert step.memory() == planned
    assert step.memory(x, y) == planned
    step(x, y)


def test_a_device_that_there_is_not() -> None:
    model = mlp()
    with pytest.raises(headwater.Error, match="there is no device `abacus`"):
        headwater.compile_step(model, adamw(model), F.cross_entropy, device="abacus")
