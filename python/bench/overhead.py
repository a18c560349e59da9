"""Cost of `torch.compile(backend="headwater")` around its plans, beside eager mode and AOTAutograd's eager backend, in turns.

A model of 200 small parameters, whose arithmetic is next to nothing. Prints medians and minima in µs."""

import statistics
import time
from typing import Any, Callable

import torch

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


def main() -> None:
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


if __name__ == "__main__":
    main()
