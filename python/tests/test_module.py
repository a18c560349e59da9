"""The module, the optimizer and the process go on as they were."""

import copy
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import Pair, batches, mlp

import headwater

F = torch.nn.functional


def adamw(m: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(m.parameters(), 0.01)


def test_eager_mode_sees_the_new_weights_and_stale_graphs_are_refused() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    names = list(pair.model.state_dict())
    x, y = next(iter(batches(1)))
    stale = F.cross_entropy(pair.model(x), y)
    pair.eager(x)
    pair.both(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
    pair.model.eval()
    pair.eager.eval()
    torch.testing.assert_close(pair.model(x), pair.eager(x), rtol=2e-5, atol=2e-5)
    assert list(pair.model.state_dict()) == names
    assert all(torch.equal(a, b) for a, b in zip(copy.deepcopy(pair.model).parameters(), pair.model.parameters()))


def test_memory_is_known_before_the_first_call() -> None:
    model = mlp()
    optimizer = adamw(model)
    step = headwater.compile_step(model, optimizer, F.cross_entropy)
    weights = sum(p.nbytes for p in model.parameters())
    buffers = sum(b.nbytes for b in model.buffers())
    assert step.memory() == {"parameters": weights, "buffers": buffers, "gradients": weights, "moments": 2 * weights}
    before = copy.deepcopy(model.state_dict())
    x, y = next(iter(batches(1)))
    generator = torch.get_rng_state()
    planned = step.memory(x, y)
    assert planned["total"] == sum(size for kind, size in planned.items() if kind != "total")
    assert planned["parameters"] >= weights and planned["moments"] >= 2 * weights and planned["arena"] > 0
    # Nothing has run.
    assert torch.equal(generator, torch.get_rng_state()) and not optimizer.state
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    # A larger batch takes more, and neither is another than what is then held.
    assert step.memory(torch.randn(500, 6), torch.randint(3, (500,)))["arena"] > planned["arena"]
    step(x, y)
    assert step.memory() == planned
    assert step.programs == 2, "what was planned is not captured again"
    step.close()
    with pytest.raises(headwater.Error, match="closed"):
        step.memory()


def test_weights_that_are_written_or_moved_are_taken() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    for batch in batches(2):
        pair.both(*batch)
    for model in (pair.model, pair.eager):
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        model[3].bias.data = model[3].bias.data + 1
        model[1].running_mean = model[1].running_mean * 2
    for batch in batches(2):
        pair.both(*batch)
    pair.agree()


def test_eager_steps_between_ours() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    for i, (x, y) in enumerate(batches(6)):
        if i % 2 == 0:
            pair.both(x, y)
            continue
        for model, optimizer in ((pair.model, pair.optimizer), (pair.eager, pair.eager_optimizer)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    pair.agree()


def test_groups_that_are_added_later() -> None:
    pair = Pair(mlp(), lambda m: torch.optim.AdamW(m[3].parameters(), 0.01), F.cross_entropy)
    for batch in batches(2):
        pair.both(*batch)
    for model, optimizer in ((pair.model, pair.optimizer), (pair.eager, pair.eager_optimizer)):
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.002})
    for batch in batches(3):
        pair.both(*batch)
    pair.agree()


def test_close_gives_everything_back() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    for batch in batches(2):
        pair.both(*batch)
    places = [p.data_ptr() for p in pair.model.parameters()]
    pair.step.close()
    assert all(p.data_ptr() != at for p, at in zip(pair.model.parameters(), places))
    x, y = next(iter(batches(1)))
    for model, optimizer in ((pair.model, pair.optimizer), (pair.eager, pair.eager_optimizer)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    pair.agree()
    with pytest.raises(headwater.Error, match="closed"):
        pair.step(x, y)


def test_another_step_on_the_same_model() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    x, y = next(iter(batches(1)))
    pair.both(x, y)
    pair.step = headwater.compile_step(pair.model, pair.optimizer, F.cross_entropy)
    for batch in batches(2):
        pair.both(*batch)
    pair.agree()


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((6,), i / 24), i % 3


def test_forked_workers_of_a_data_loader() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=6, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for x, y in loader:
            pair.both(x, y)
    pair.agree()


@pytest.mark.parametrize("what", ["leaves", "steps", "drops"])
def test_a_forked_child(what: str) -> None:
    model = mlp()
    step = headwater.compile_step(model, adamw(model), F.cross_entropy, threads=2)
    x, y = next(iter(batches(1)))
    step(x, y)
    before = copy.deepcopy(model.state_dict())
    child = os.fork()
    if child == 0:
        try:
            if what == "steps":
                step(x, y)
            if what == "drops":
                step.close()
                del step
            os._exit(0)
        except BaseException:
            os._exit(1)
    deadline = time.time() + 60
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.time() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(status) == 0
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values())), "its memory is its own"
    step(x, y)


def test_import_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import headwater; assert 'numpy' not in sys.modules\n"
        "try: headwater.compile_step\nexcept ImportError: print('refused', headwater.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("refused"), done.stderr
