"""The gradient of an embedding beside PyTorch's `embedding_dense_backward`, alternating in one run.

    python -m headwater_tools.compare_embedding --binary target/release/headwater --threads 2

Each round times PyTorch, then `headwater bench embedding-grad --last`, on indices of the same distribution; medians of rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import numpy
import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def draw(kind: str, rows: int, positions: int) -> torch.Tensor:
    """Indices as `headwater bench embedding-grad` distributes them."""
    random = numpy.random.default_rng(0)
    uniform = random.integers(0, rows, positions)
    if kind == "zipf":
        ends = numpy.cumsum(1.0 / numpy.arange(1, rows + 1))
        uniform = numpy.searchsorted(ends, random.random(positions) * ends[-1], side="right")
    elif kind == "heavy":
        uniform = numpy.where(random.random(positions) < 0.5, rows // 3, uniform)
    return torch.from_numpy(uniform.astype(numpy.int64))


def pytorch(kind: str, rows: int, width: int, positions: int, dtype: torch.dtype, runs: int) -> list[float]:
    """Seconds of single runs."""
    index, grad = draw(kind, rows, positions), torch.randn(positions, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    times = []
    for run in range(runs + 1):
        start = time.perf_counter()
        torch.ops.aten.embedding_dense_backward(grad, index, rows, -1, False)
        if run > 0:
            times.append(time.perf_counter() - start)
    return times


def headwater(args: argparse.Namespace, kind: str, size: tuple[int, int, int], dtype: str) -> dict:
    """Results that the benchmark prints for one problem."""
    rows, width, positions = size
    command = [args.binary, "--json", "bench", "embedding-grad", "--last", "--shards", "1", "--distribution", kind]
    command += ["--dtype", dtype, "--rows", str(rows), "--width", str(width), "--indices", str(positions)]
    env = os.environ | {"HEADWATER_THREADS": str(args.threads)}
    return json.loads(subprocess.run(command, check=True, capture_output=True, env=env).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/headwater")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="PyTorch's runs in a round")
    parser.add_argument("--size", action="append", help="rows,width,positions (default 50000,768,16384)")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES))
    parser.add_argument("--indices", action="append", choices=["uniform", "zipf", "heavy"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}, {args.threads} threads, medians of {args.rounds} rounds\n")
    print("| table, positions | indices | rows read | dtype | PyTorch ms | dense ms | ratio | of the limit | sparse ms | ratio |")
    print("|---|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for size in [tuple(map(int, s.split(","))) for s in args.size or ["50000,768,16384"]]:
        for kind in args.indices or ["uniform", "zipf", "heavy"]:
            for dtype in args.dtype or list(DTYPES):
                theirs, ours = [], []
                for _ in range(args.rounds):
                    theirs += pytorch(kind, *size, DTYPES[dtype], args.runs)
                    ours.append(headwater(args, kind, size, dtype)["ladders"][0])
                rung = lambda i, key: statistics.median(ladder["rungs"][i][key] for ladder in ours)  # noqa: E731
                torch_s, dense, sparse = statistics.median(theirs), rung(0, "seconds"), rung(1, "seconds")
                cells = [f"{size[0]} × {size[1]}, {size[2]}", kind, ours[0]["distinct"], dtype, f"{torch_s * 1e3:.1f}"]
                cells += [f"{dense * 1e3:.2f}", f"{torch_s / dense:.1f}×", f"{rung(0, 'share') * 100:.0f} %"]
                cells += [f"{sparse * 1e3:.2f}", f"{torch_s / sparse:.1f}×"]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
