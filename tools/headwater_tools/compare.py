"""Training steps beside PyTorch's: the same model, batch, optimizer and threads, in one run, taking turns.

    python -m headwater_tools.workloads DIR
    python -m headwater_tools.compare DIR --headwater target/release/headwater --prepare   # compiles, measures nothing
    python -m headwater_tools.compare DIR --headwater target/release/headwater

PyTorch runs in a process of its own for each way of running it (eager, `torch.compile`; f32, autocast to bf16, all of
it in bf16), kept alive from round to round; it compiles before measuring starts. Every step is forward, backward,
`clip_grad_norm_(1.0)` and fused AdamW. A round measures a few steps of each side after the other; ratios are of the
medians over all rounds. `--prepare` fills the cache of `torch.compile` so that the measuring run is short.

Resident sizes are the most that was resident while steps ran: for PyTorch counted from after compilation, for Headwater
from the start of its process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

MODES = {  # name: (compiled, precision)
    "eager f32": (False, "f32"),
    "compiled f32": (True, "f32"),
    "eager autocast": (False, "autocast"),
    "compiled autocast": (True, "autocast"),
    "eager bf16": (False, "bf16"),
    "compiled bf16": (True, "bf16"),
}
OURS = {"f32": "f32", "bf16": "bf16"}


def resident(field):
    """`VmRSS` or `VmHWM` of this process in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def forget_peak():
    """Starts the count of the most that is resident anew."""
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def worker(name, mode, threads):
    """Runs one way of PyTorch: prints a line when ready, then for every line `n` read measures `n` steps."""
    import torch

    from .workloads import build

    torch.set_num_threads(threads)
    compiled, precision = MODES[mode]
    module, batch = build(name)
    if precision == "bf16":
        module = module.to(torch.bfloat16)
        batch = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(module) if compiled else module
    losses = []

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
            loss = forward(*batch)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    begin = time.perf_counter()
    step()
    first = time.perf_counter() - begin
    step()
    forget_peak()
    print(json.dumps({"first": first}), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"seconds": seconds, "resident": resident("VmHWM"), "losses": losses[:8]}), flush=True)


class PyTorch:
    """A worker process."""

    def __init__(self, name, mode, threads):
        command = [sys.executable, "-m", "headwater_tools.compare", "--worker", name, mode, str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.seconds = []
        self.first = self.read()["first"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read()[-2000:])
        return json.loads(line)

    def measure(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.read()
        self.seconds += answer["seconds"]
        self.resident, self.losses = answer["resident"], answer["losses"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Headwater:
    """`headwater bench step`, started anew for every round."""

    def __init__(self, binary, directory, name, precision, threads):
        self.command = [
            binary, "bench", "step", f"{directory}/{name}.core.pt2", "--inputs", f"{directory}/{name}.batch.safetensors",
            "--precision", precision, "--threads", str(threads), "--json",
        ]  # fmt: skip
        self.seconds = []

    def measure(self, steps):
        run = subprocess.run([*self.command, "--steps", str(steps)], capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(run.stderr)
        found = json.loads(run.stdout)
        self.seconds.append(found["step"]["step"]["seconds"])
        self.resident = found["step"]["memory"]["resident_peak"]
        self.first = found["step"]["start"]["total"]
        self.losses = found["step"]["losses"]
        self.found = found


def compare(name, args):
    """Rows of the table for one workload."""
    modes = [m for m in MODES if args.modes is None or any(w in m for w in args.modes)]
    theirs = {m: PyTorch(name, m, args.threads) for m in modes}
    wanted = [p for p in OURS if args.precisions is None or p in args.precisions]
    ours = {} if args.prepare else {p: Headwater(args.headwater, args.dir, name, OURS[p], args.threads) for p in wanted}
    for _ in range(0 if args.prepare else args.rounds):
        for one in (*ours.values(), *theirs.values()):
            one.measure(args.steps)
    for one in theirs.values():
        one.close()
    rows = []
    if args.prepare:
        return rows
    for precision, our in ours.items():
        rivals = [m for m in theirs if (MODES[m][1] == "f32") == (precision == "f32")]
        best = min(rivals, key=lambda m: statistics.median(theirs[m].seconds))
        seconds = statistics.median(our.seconds)
        rows.append((f"headwater {precision}", seconds, our.resident, our.first, our.losses))
        for m in rivals:
            t = theirs[m]
            rows.append((f"PyTorch {m}" + (" (its best)" if m == best else ""), statistics.median(t.seconds), t.resident, t.first, t.losses))
        rival = theirs[best]
        ratio = statistics.median(rival.seconds) / seconds
        rows.append((f"ratio to its best, {precision}", ratio, our.resident / rival.resident, None, None))
    return rows


def table(name, rows):
    """The rows as Markdown."""
    lines = [f"| {name} | median step | resident | to first step | loss of steps 1, 3 |", "|---|---:|---:|---:|---|"]
    for label, seconds, size, first, losses in rows:
        if first is None:
            lines.append(f"| **{label}** | **{seconds:.2f}×** | {size:.2f}× | | |")
        else:
            shown = ", ".join(f"{x:.4f}" for x in (losses[0], losses[min(2, len(losses) - 1)]))
            lines.append(f"| {label} | {seconds * 1e3:.0f} ms | {size / 2**20:.0f} MiB | {first:.1f} s | {shown} |")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="where the workloads were exported to")
    parser.add_argument("names", nargs="*", help="workloads, or further models (default: the four workloads)")
    parser.add_argument("--headwater", default="target/release/headwater", help="the program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="steps of each in a round")
    parser.add_argument("--modes", nargs="*", help="ways of PyTorch whose names contain one of these words")
    parser.add_argument("--precisions", nargs="*", choices=list(OURS))
    parser.add_argument("--prepare", action="store_true", help="compile only")
    args = parser.parse_args()
    from .workloads import WORKLOADS

    for name in args.names or WORKLOADS:
        rows = compare(name, args)
        if rows:
            print(table(name, rows), "\n", flush=True)


if __name__ == "__main__":
    main()
