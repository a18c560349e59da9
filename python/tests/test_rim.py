"""What long and crowded processes do to a step: many calls, many sizes, several threads."""

import copy
import threading
from pathlib import Path

import torch
from conftest import Pair, batches, close, mlp

import headwater

F = torch.nn.functional

PAGE = 4096


def adamw(m: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(m.parameters(), 1e-4)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_memory_is_flat_over_10_000_steps() -> None:
    model = mlp()
    step = headwater.compile_step(model, adamw(model), F.cross_entropy)
    data = list(batches(4))
    for i in range(2000):
        step(*data[i % 4])
    before = resident()
    for i in range(10_000):
        step(*data[i % 4])
    # A leak of 128 bytes a step, one small Python object, would be 1.28 MB.
    assert resident() - before < 1_000_000
    assert len(step.explain().programs) == 1


def test_20_sizes_in_turns_train_one_state() -> None:
    pair = Pair(mlp(), adamw, F.cross_entropy)
    for _ in range(2):
        for size in range(3, 23):
            pair.both(*next(iter(batches(1, size))))
    pair.agree()
    assert len(pair.step.explain().programs) == 20
    before = resident()
    for _ in range(20):
        for size in range(3, 23):
            pair.step(*next(iter(batches(1, size))))
    assert resident() - before < 1_000_000, "plans are kept, none is made anew"


def test_four_threads_train_a_model_each() -> None:
    models = [mlp() for _ in range(4)]
    alone = [copy.deepcopy(m) for m in models]
    data = [list(batches(30)) for _ in models]
    steps = [headwater.compile_step(m, adamw(m), F.cross_entropy) for m in models]
    # TorchDynamo compiles under a lock of its own; the first calls are made here.
    for step, own in zip(steps, data):
        step(*own[0])
    failures: list[BaseException] = []

    def work(at: int) -> None:
        try:
            for batch in data[at][1:]:
                steps[at](*batch)
        except BaseException as error:  # a thread's error would be lost
            failures.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(t.is_alive() for t in threads)
    # The same steps in one thread: the same bits.
    for model, other, own in zip(models, alone, data):
        step = headwater.compile_step(other, adamw(other), F.cross_entropy)
        for batch in own:
            step(*batch)
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name


def test_one_step_called_by_four_threads_makes_whole_steps() -> None:
    model = mlp()
    other = copy.deepcopy(model)
    x, y = next(iter(batches(1)))
    step = headwater.compile_step(model, adamw(model), F.cross_entropy)
    step(x, y)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                step(x, y)
        except BaseException as error:  # a thread's error would be lost
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(t.is_alive() for t in threads)
    # All calls have the same batch, so that their order is no matter: the bits of 41 calls in one thread.
    alone = headwater.compile_step(other, adamw(other), F.cross_entropy)
    for _ in range(41):
        alone(x, y)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
