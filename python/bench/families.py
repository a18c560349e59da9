"""Models of Hugging Face's through `backend="headwater"` and `compile_step`, beside eager mode and Inductor: losses, time, memory.

    PYTHONPATH=tools python python/bench/families.py [--seconds 5] [--threads 2] [--inductor] [NAME …]

The models are those of `headwater_tools.workloads`, in f32 with fused AdamW and clipping to 1. The ways take turns, step by step; time
is the median of a step. Each way also runs alone, in a process of its own, for its peak of resident memory beyond that of a process
with PyTorch and the model. Losses of the first three steps beside eager mode's: largest relative distance."""

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, Callable

import torch

import headwater

WAYS = ("eager", "backend", "step", "inductor")


class Way:
    """A model and its step."""

    def __init__(self, name: str, model: Any, batch: tuple[Any, ...]) -> None:
        self.model, self.batch = model, batch
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.times: list[float] = []
        self.losses: list[float] = []
        if name == "step":
            whole = headwater.compile_step(model, optimizer, clip_norm=1.0, check=False)
            self.step: Callable[[], torch.Tensor] = lambda: whole(*batch)
            return
        run = model if name == "eager" else torch.compile(model, backend="headwater" if name == "backend" else "inductor")

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = run(*batch)[0]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()  # type: ignore[no-any-return]

        self.step = step

    def once(self) -> None:
        start = time.perf_counter()
        loss = self.step()
        self.times.append(time.perf_counter() - start)
        self.losses.append(float(loss))


def build(name: str) -> tuple[Any, tuple[Any, ...]]:
    from headwater_tools import workloads

    model, batch = workloads.build(name)
    return model, tuple(batch.values()) if isinstance(batch, dict) else tuple(batch)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(name: str, way: str, threads: int) -> None:
    """Prints the memory that a way takes beyond the model, MiB."""
    torch.set_num_threads(threads)
    model, batch = build(name)
    before = peak()
    one = Way(way, model, batch)
    for _ in range(3):
        one.once()
    print(json.dumps(peak() - before))


def memory(name: str, way: str, threads: int) -> float:
    done = subprocess.run(
        [sys.executable, __file__, name, "--alone", way, "--threads", str(threads)], capture_output=True, text=True
    )
    return float(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else float("nan")


def main() -> None:
    from headwater_tools.workloads import FURTHER, WORKLOADS

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*WORKLOADS, *FURTHER])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--alone", choices=WAYS)
    given = parser.parse_args()
    if given.alone:
        alone(given.names[0], given.alone, given.threads)
        return
    torch.set_num_threads(given.threads)
    ways = WAYS if given.inductor else WAYS[:-1]
    print(f"{'':16} " + " ".join(f"{way:>22}" for way in ways) + "   ms, × eager, MiB; distance of losses")
    for name in given.names:
        model, batch = build(name)
        headwater.reset()
        torch._dynamo.reset()
        runs = {way: Way(way, copy.deepcopy(model), batch) for way in ways}
        for run in runs.values():
            for _ in range(3):
                run.once()
        first = {way: run.losses[:3] for way, run in runs.items()}
        for run in runs.values():
            run.times.clear()
        until = time.perf_counter() + given.seconds
        while time.perf_counter() < until or len(runs["eager"].times) < 3:
            for run in runs.values():
                run.once()
        cells, eager = [], statistics.median(runs["eager"].times)
        for way, run in runs.items():
            t = statistics.median(run.times)
            mib = float("nan") if given.no_memory else memory(name, way, given.threads)
            cells.append(f"{t * 1e3:8.1f} {eager / t:5.2f}× {mib:6.0f}")
        off = {w: max(abs(a - b) / abs(b) for a, b in zip(first[w], first["eager"])) for w in ways if w != "eager"}
        refused = f"; {headwater.counters().refused} graphs refused" if headwater.counters().refused else ""
        distances = ", ".join(f"{w} {d:.0e}" for w, d in off.items())
        print(f"{name:16} " + " ".join(f"{c:>22}" for c in cells) + f"   {distances}{refused}", flush=True)


if __name__ == "__main__":
    main()
