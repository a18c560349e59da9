"""Single operators beside PyTorch's, eager and `torch.compile`, alternating in one run.

    python -m headwater_tools.compare_ops --binary target/release/headwater --threads 2 rms_norm attention

Each round times PyTorch, then `headwater bench ops`, on the same shapes; medians of rounds. PyTorch's figures include its
allocation of results and its autograd, as its users have them.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch
from torch.nn import functional

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ROWS, COLUMNS = 4096, 2048
HEADS = (8, 12, 512, 64)
TARGETS = torch.arange(1024) * 31 % 32_000
pairs = torch.view_as_real


def rfft(x):
    return pairs(torch.fft.rfft(x))


# Name: a function, the shapes of its arguments, and how `bench ops` calls it: family and shape.
OPERATORS = {
    "rms_norm": (lambda x, w: functional.rms_norm(x, (COLUMNS,), w), [(ROWS, COLUMNS), (COLUMNS,)], f"rms_norm {ROWS}×{COLUMNS}"),
    "layer_norm": (
        lambda x, w, b: functional.layer_norm(x, (COLUMNS,), w, b),
        [(ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)],
        f"layer_norm {ROWS}×{COLUMNS}",
    ),
    "softmax": (lambda x: functional.softmax(x, -1), [(ROWS, COLUMNS)], f"softmax {ROWS}×{COLUMNS}"),
    "gelu": (functional.gelu, [(ROWS, COLUMNS)], f"gelu {ROWS}×{COLUMNS}"),
    "cross_entropy": (lambda x: functional.cross_entropy(x, TARGETS), [(1024, 32_000)], "cross_entropy 1024×32000"),
    "matmul": (torch.matmul, [(1024, 1024), (1024, 1024)], "matmul 1024×1024×1024"),
    "attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [HEADS] * 3,
        "attention 8×12×512×64 causal",
    ),
    # Frames of 25 ms and of 64 ms at 16 kHz, whole signals, and images; complex numbers are pairs.
    "rfft_400": (rfft, [(16_000, 400)], "rfft 16000×400"),
    "rfft_1024": (rfft, [(4096, 1024)], "rfft 4096×1024"),
    "rfft_65536": (rfft, [(16, 65_536)], "rfft 16×65536"),
    "fft_512": (lambda x: pairs(torch.fft.fft(torch.view_as_complex(x))), [(8192, 512, 2)], "fft 8192×512"),
    "fft_images": (lambda x: pairs(torch.fft.fft2(torch.view_as_complex(x))), [(64, 128, 128, 2)], "fft 64×128×128"),
}


class PyTorch:
    """One operator in one dtype, compiled or not."""

    def __init__(self, name: str, dtype: torch.dtype, compiled: bool):
        function, shapes, _ = OPERATORS[name]
        self.function = torch.compile(function) if compiled else function
        generator = torch.Generator().manual_seed(0)
        draw = lambda shape: torch.randn(shape, generator=generator).to(dtype)  # noqa: E731
        self.args = [draw(shape).requires_grad_() for shape in shapes]
        self.grad = draw(self.function(*self.args).shape)
        self.forward, self.both = [], []
        self.run(1)
        self.forward, self.both = [], []

    def run(self, times: int) -> None:
        """Times forward, and forward with backward."""
        for _ in range(times):
            for a in self.args:
                a.grad = None
            start = time.perf_counter()
            result = self.function(*self.args)
            self.forward.append(time.perf_counter() - start)
            result.backward(self.grad)
            self.both.append(time.perf_counter() - start)


def headwater(args: argparse.Namespace, name: str, dtype: str) -> dict[str, dict]:
    """Lines of `bench ops`, by direction."""
    label = OPERATORS[name][2]
    command = [args.binary, "bench", "ops", "--filter", label, "--dtypes", dtype, "--threads", str(args.threads), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    lines = [o for o in found["operators"] if f"{o['family']} {o['shape']}" == label]
    return {o["direction"]: o for o in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", choices=list(OPERATORS), help="default: all")
    parser.add_argument("--binary", default="target/release/headwater")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5, help="PyTorch's runs in a round")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}, {args.threads} threads, medians of {args.rounds} rounds\n")
    print("| operator | shape | dtype | direction | eager ms | compiled ms | headwater ms | ratio to the better | of the limit |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|")
    for name in args.operators or OPERATORS:
        for dtype in args.dtype or (["f32"] if "fft" in name else DTYPES):  # PyTorch has no others of complex numbers
            theirs = [PyTorch(name, DTYPES[dtype], compiled) for compiled in ((False,) if args.eager else (False, True))]
            ours = []
            for _ in range(args.rounds):
                for one in theirs:
                    one.run(args.runs)
                ours.append(headwater(args, name, dtype))
            for direction in ours[0]:
                times = [statistics.median(t.forward if direction == "forward" else t.both) for t in theirs]
                seconds = statistics.median(o[direction]["seconds"] for o in ours)
                share = statistics.median(o[direction]["share"] for o in ours)
                shown = [*(f"{t * 1e3:.2f}" for t in times), "–"][:2]
                cells = [*OPERATORS[name][2].split(" ", 1), dtype, direction, *shown, f"{seconds * 1e3:.2f}"]
                cells += [f"{min(times) / seconds:.1f}×", f"{share * 100:.0f} %"]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
