"""Records single operators: what PyTorch computes in float64, forward and backward.

    python -m headwater_tools.operators goldens/ops/             # all of them
    python -m headwater_tools.operators goldens/ops/ clamp qr    # the files named

The cases are in `operator_cases/`; `goldens/README.md` describes the files. An operator that the installed PyTorch
lacks is skipped with a message, and its file stays as another version recorded it.
"""

import hashlib
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import safe_open
from torch.utils import _pytree as pytree

from .recorder import save


PUBLIC = {"aten::embedding_bag": 1}  # results that users see, where others are for PyTorch's own backward operator


class Cases:
    """Collects cases. Calling it adds one; its other methods draw random arguments, the same in every run."""

    def __init__(self):
        self.generator = torch.Generator()
        self.files = defaultdict(list)  # operator -> [(overload, args, kwargs)]
        self.missing = defaultdict(set)  # operator -> overloads that this PyTorch lacks

    def __call__(self, target, *args, **kwargs):
        """Adds a case of the overload `target`, such as "gelu.default" (of aten) or "transformers::grouped_mm_fallback.default"."""
        space, name = target.split("::") if "::" in target else ("aten", target)
        packet, overload = name.split(".")
        file = packet if packet.startswith("__") else packet.rstrip("_")
        try:
            function = getattr(getattr(getattr(torch.ops, space), packet), overload)
        except AttributeError:
            self.missing[file].add(f"{space}.{name}")
        else:
            self.files[file].append((function, args, kwargs))

    def f(self, *shape):
        """Normal random numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def u(self, low, high, *shape):
        """Uniform random numbers."""
        return low + (high - low) * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def z(self, *shape):
        """Normal random complex numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.complex128)

    def d(self, *shape):
        """Distinct numbers in random order, with a spacing of at least a quarter: no ties, and no kink nearby but at 0."""
        count = math.prod(shape)
        return ((torch.randperm(count, generator=self.generator) - count // 2 + 0.5) / 4).double().view(shape)

    def fixed(self, tensor):
        """A tensor by which PyTorch does not differentiate here."""
        tensor.fixed = True
        return tensor

    def i(self, high, *shape, low=0):
        """Integers from low up to high, without high."""
        return torch.randint(low, high, shape, generator=self.generator)

    def b(self, *shape):
        """Booleans."""
        return torch.rand(shape, generator=self.generator) < 0.5


def describe(value, tensors):
    """A JSON value for an argument; tensors are put into the list `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, (list, tuple)):
        return [describe(v, tensors) for v in value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no inf
    return value


def run(number, function, args, kwargs, generator):
    """Evaluates a case. Returns its description and its tensors by name."""
    inputs = []
    described = describe(args, inputs), {name: describe(value, inputs) for name, value in kwargs.items()}
    wanted = [(x.is_floating_point() or x.is_complex()) and not hasattr(x, "fixed") for x in inputs]
    leaves = [x.clone().requires_grad_(w) for x, w in zip(inputs, wanted, strict=True)]
    clones = [x.clone() for x in leaves]  # so that in-place operators have something to write to
    remaining = iter(clones)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(remaining), (args, kwargs))
    outputs = pytree.tree_leaves(function(*args, **kwargs))
    outputs = {k: o for k, o in enumerate(outputs) if torch.is_tensor(o) and k < PUBLIC.get(function._schema.name, len(outputs))}
    tensors = {f"input.{k}": x for k, x in enumerate(inputs)} | {f"output.{k}": o for k, o in outputs.items()}
    for k, (before, after) in enumerate(zip(inputs, clones, strict=True)):
        if not torch.equal(before, after) and not any(after is o for o in outputs.values()) and not before.isnan().any():
            tensors[f"mutated.{k}"] = after

    reached = {k: o for k, o in outputs.items() if o.requires_grad}
    sources = {k: x for k, x in enumerate(leaves) if x.requires_grad}
    if reached and sources:
        cotangents = [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in reached.values()]
        grads = torch.autograd.grad(list(reached.values()), list(sources.values()), cotangents, allow_unused=True)
        tensors |= {f"cotangent.{k}": c for k, c in zip(reached, cotangents, strict=True)}
        tensors |= {f"grad.{k}": g for k, g in zip(sources, grads, strict=True) if g is not None}

    names = [argument.name for argument in function._schema.arguments][: len(args)]
    case = {
        "case": str(number),
        "target": f"torch.ops.{str(function)}",
        "args": described[0],
        "names": names,
        "kwargs": described[1],
    }
    return case, {f"{number}.{name}": tensor for name, tensor in tensors.items()}


def write(file, entries, folder):
    """Writes the cases of one operator and returns the path."""
    generator = torch.Generator().manual_seed(1)
    cases, tensors = [], {}
    for number, (function, args, kwargs) in enumerate(entries):
        try:
            case, values = run(number, function, args, kwargs, generator)
        except Exception as error:
            raise RuntimeError(f"case {number} of {function}") from error
        cases.append(case)
        tensors |= values
    path = Path(folder) / f"{file}.safetensors"
    metadata = {"format": "headwater-ops-1", "torch": torch.__version__.split("+")[0], "cases": json.dumps(cases)}
    save(tensors, path, metadata)
    return path


def main(folder, *only):
    from .operator_cases import collect

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # for the same result whatever the machine
    torch.set_default_dtype(torch.float64)
    collected = Cases()
    collect(collected)
    version = torch.__version__.split("+")[0]
    unknown = set(only) - set(collected.files) - set(collected.missing)
    if unknown:
        raise SystemExit(f"no cases of {', '.join(sorted(unknown))}")
    names = set(only or collected.files) - set(collected.missing)
    for file in sorted(collected.missing):
        if not only or file in only:
            kept = "stays as it is" if (folder / f"{file}.safetensors").exists() else "is not recorded"
            print(f"PyTorch {version} has no {', '.join(sorted(collected.missing[file]))}: {file}.safetensors {kept}")
    for file in sorted(names):
        write(file, collected.files[file], folder)
    present = {p.stem: p for p in sorted(folder.glob("*.safetensors"))}
    targets = {str(f) for file, entries in collected.files.items() if file in present for f, _, _ in entries}
    targets |= {t for file, missing in collected.missing.items() if file in present for t in missing}
    manifest = {
        "torch": sorted({recorded_by(p) for p in present.values()}),
        "targets": sorted(targets),
        "sha256": {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in present.values()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def recorded_by(path):
    """The version of PyTorch that recorded a file."""
    with safe_open(path, "pt") as file:
        return file.metadata()["torch"]


if __name__ == "__main__":
    main(*sys.argv[1:])
