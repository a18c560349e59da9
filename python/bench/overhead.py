"""Cost around plans.

    python python/bench/overhead.py [compile] [step] [first] [turns]

* `compile`: `torch.compile(backend="headwater")` beside eager mode and AOTAutograd's eager backend, alternately: a model of 200 small
  parameters, whose arithmetic is next to nothing.
* `step`: the whole step of that model beyond its plan, guards of TorchDynamo included. Bar: 100 µs.
* `first`: the first call of a 12-layer BERT beyond TorchDynamo's own time. Bar: 2.5 s.
* `turns`: steps of a 4-layer BERT that alternate with eager mode's, beside each alone. Bar: neither is more than 15 % slower."""

import statistics
import sys
import time
from typing import Any, Callable

import torch

import headwater

nn = torch.nn

ROUNDS = 200


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(100) for layer in (nn.Linear(8, 8), nn.Tanh())])


def both(f: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> None:
    m.zero_grad()
    f(x).sum().backward()


def forward(f: Callable[..., Any], m: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        f(x)


def compiled() -> None:
    torch.set_num_threads(1)
    models = {name: model() for name in ("headwater", "eager", "aot_eager")}
    runs = {name: m if name == "eager" else torch.compile(m, backend=name) for name, m in models.items()}
    x = torch.randn(4, 8)
    for title, run in (("forward and backward", both), ("forward without gradients", forward)):
        times: dict[str, list[float]] = {name: [] for name in runs}
        for i in range(ROUNDS + 5):
            for name, f in runs.items():
                start = time.perf_counter()
                run(f, models[name], x)
                if i >= 5:
                    times[name].append((time.perf_counter() - start) * 1e6)
        print(title)
        for name, t in times.items():
            print(f"  {name:10} {statistics.median(t):8.0f} µs, at best {min(t):8.0f}")



class Timed:
    """The plans of a step, with the time that they take."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.seconds = inner, 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("gradients", "update"):
            return found

        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return found(*args)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def whole_step() -> None:
    torch.set_num_threads(1)
    m = model()
    step = headwater.compile_step(
        m, torch.optim.AdamW(m.parameters(), 1e-3), lambda out, y: (out - y).square().mean(), check=False
    )
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    for _ in range(5):
        step(x, y)
    plan = step._state.step = Timed(step._state.step)  # type: ignore[union-attr, assignment]
    beyond, whole = [], []
    for _ in range(ROUNDS):
        plan.seconds = 0.0
        start = time.perf_counter()
        step(x, y)
        seconds = time.perf_counter() - start
        beyond.append((seconds - plan.seconds) * 1e6)
        whole.append(seconds * 1e6)
    print("whole step of 200 parameters")
    print(f"  in all     {statistics.median(whole):8.0f} µs, at best {min(whole):8.0f}")
    print(f"  beyond     {statistics.median(beyond):8.0f} µs, at best {min(beyond):8.0f}   (its plans' calls taken off)")


def bert(layers: int, size: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.BertConfig(
        hidden_size=size,
        num_hidden_layers=layers,
        num_attention_heads=size // 64,
        intermediate_size=4 * size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=4,
    )
    ids = torch.randint(30000, (8, 64))
    return tf.BertForSequenceClassification(config).train(), {"input_ids": ids, "labels": ids[:, 0] % 4}


def first_call() -> None:
    m, batch = bert(12, 768)
    # The backend does nothing: what is left is TorchDynamo's, and a forward pass.
    start = time.perf_counter()
    torch.compile(lambda **b: m(**b).loss, backend="eager", fullgraph=True)(**batch)
    dynamo = time.perf_counter() - start
    torch._dynamo.reset()
    step = headwater.compile_step(m, torch.optim.AdamW(m.parameters(), 1e-4), check=False)
    start = time.perf_counter()
    step(**batch)
    ours = time.perf_counter() - start
    start = time.perf_counter()
    step(**batch)
    second = time.perf_counter() - start
    print("first call of a 12-layer BERT")
    print(f"  TorchDynamo {dynamo:6.2f} s, ours {ours:6.2f} s, beyond {ours - dynamo:6.2f} s; the second call {second:6.2f} s")


def turns() -> None:
    m, batch = bert(4, 256)
    twin, _ = bert(4, 256)
    step = headwater.compile_step(m, torch.optim.AdamW(m.parameters(), 1e-4), clip_norm=1.0, check=False)
    optimizer = torch.optim.AdamW(twin.parameters(), 1e-4, fused=True)

    def eager() -> None:
        optimizer.zero_grad()
        twin(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()

    runs: dict[str, Callable[[], Any]] = {"headwater": lambda: step(**batch), "eager": eager}
    times: dict[tuple[str, str], list[float]] = {(how, name): [] for how in ("alone", "in turns") for name in runs}

    def timed(how: str, name: str) -> None:
        start = time.perf_counter()
        runs[name]()
        times[how, name].append(time.perf_counter() - start)

    for _ in range(3):
        for run in runs.values():
            run()
    for _ in range(4):
        for name in runs:
            for _ in range(8):
                timed("alone", name)
        for _ in range(8):
            for name in runs:
                timed("in turns", name)
    print(f"4-layer BERT, {torch.get_num_threads()} threads")
    for name in runs:
        alone, turn = (statistics.median(times[how, name]) * 1e3 for how in ("alone", "in turns"))
        print(f"  {name:10} alone {alone:7.1f} ms, in turns {turn:7.1f} ms: {100 * (turn / alone - 1):+.0f} %")


PARTS: dict[str, Callable[[], None]] = {"compile": compiled, "step": whole_step, "first": first_call, "turns": turns}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
