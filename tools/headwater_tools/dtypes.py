"""Records the dtype in which `torch.autocast` computes each node of an export: of the nine families, and of small models that
cast by hand.

    python -m headwater_tools.dtypes goldens/precision

The truth is the module, not its export. A module is exported twice: in float32, which gives the archive and the names of nodes, and
inside `torch.autocast`, where PyTorch's own rules give each call its dtype. The second has the same calls in the same order,
because autocast casts beneath the level at which an export records.
"""

import copy
import inspect
import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from . import casts
from .exporter import export
from .families import FAMILIES, build

ATEN = torch.ops.aten
SHORT = {torch.float32: "f32", torch.bfloat16: "low", torch.float64: "f64", torch.complex64: "c64"}


class Autocast(nn.Module):
    """A module under `torch.autocast` on the CPU."""

    def __init__(self, module, dtype):
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *args):
        with torch.autocast("cpu", dtype=self.dtype):
            return self.module(*args)


def calls(graph_module):
    """The calls of an exported graph in order, those of its sub-graphs in their places."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is ATEN._assert_tensor_metadata.default:
            continue
        inner = [a for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            for sub in inner:
                yield from calls(getattr(graph_module, sub.target))
        elif isinstance(node.target, torch._ops.OpOverload):
            yield node


def dtypes(module, args, dtype=torch.bfloat16):
    """Float dtype of the result of each node of the float32 export, by name: "low", "f32", …"""
    plain = list(calls(torch.export.export(module, args, strict=False).graph_module))
    cast = list(calls(torch.export.export(Autocast(module, dtype), args, strict=False).graph_module))
    if [n.target for n in plain] != [n.target for n in cast]:
        raise ValueError("autocast changes the calls of the model, not their dtypes alone")
    found = {}
    for node, other in zip(plain, cast):
        value = other.meta["val"]
        if isinstance(value, torch.Tensor) and value.dtype in SHORT:
            found[node.name] = SHORT[value.dtype]
    return found


def losses(module, args):
    """The loss in float32, and at O1 (autocast) and O2 (weights and inputs cast) in bf16 and f16; None where PyTorch refuses."""
    found = {"f32": module(*args).item()}
    for name, dtype in ("bf16", torch.bfloat16), ("f16", torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            found[f"O1.{name}"] = module(*args).item()
        low = copy.deepcopy(module).to(dtype)
        try:
            found[f"O2.{name}"] = low(*(a.to(dtype) if a.is_floating_point() else a for a in args)).float().item()
        except RuntimeError:
            found[f"O2.{name}"] = None
    return {name: x if x is None or math.isfinite(x) else str(x) for name, x in found.items()}


def main(folder):
    folder = Path(folder)
    (folder / "casts").mkdir(parents=True, exist_ok=True)
    found, lost = {}, {}
    for name, (module, args) in (casts.models() | casts.masks()).items():
        module.train()
        for form, decompose in ("train", False), ("core", True):
            export(module, args, folder / "casts" / f"{name}.{form}.pt2", decompose=decompose, compress=True)
        columns = dict(zip(inspect.signature(module.forward).parameters, args))
        save_file({n: a.contiguous() for n, a in columns.items()}, folder / "casts" / f"{name}.train.safetensors")
        found[f"casts/{name}"] = dtypes(module, args)
        lost[name] = losses(module, args)
    for name in FAMILIES:
        module, args = build(name)
        found[name] = dtypes(module, args)
    text = json.dumps({"torch": torch.__version__.split("+")[0], "losses": lost, "dtypes": found}, indent=0)
    (folder / "dtypes.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
