"""Writes golden files: what PyTorch computes with an exported model, for others to be compared with."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save as serialize
from torch.utils import _pytree as pytree

from .training import AdamW, train
from .truth import ATEN, evaluate

SUFFIX = ".golden.safetensors"
EMPTY = (ATEN.empty, ATEN.empty_like, ATEN.new_empty, ATEN.empty_strided, ATEN.new_empty_strided, ATEN.empty_permuted)


def record(
    module, args, path, steps=0, intermediates="modules", optimizer=AdamW(), batches=None, seed=0, extra=None, program=None
):
    """Records the golden `<name>.golden.safetensors` of the archive `<name>.pt2` beside it.

    The archive is read back and evaluated on `args` with every floating-point dtype lifted to float64: outputs, the
    gradient of output 0 for every trainable parameter, and the new values of buffers that the graph writes.

    intermediates: "all", "modules" (the last value that each module computes, views left out), "none", or a list of node names.
    steps: so many optimizer steps of `module` itself, in the dtype of its weights, are recorded as a loss curve; each on
    `args`, or on `batches`, a sequence of argument tuples. The module is left as it was.
    seed: written to the file, with which `module` and `args` were made.
    extra: further tensors by name for the file.
    program: what `export` returned, for the archives that PyTorch writes and cannot read back.

    Returns the float64 `Truth`. Raises ValueError when the model draws random numbers.
    """
    path = Path(path)
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"a golden file is called <name>{SUFFIX}, not {path.name}")
    archive = path.with_name(path.name.removesuffix(SUFFIX) + ".pt2")
    if not archive.exists():
        raise FileNotFoundError(f"{archive} is not there: export the module to it first")
    program = program or torch.export.load(archive)
    truth = evaluate(program, args, selection(program, intermediates))

    leaves = [(i, leaf) for i, leaf in enumerate(pytree.tree_leaves(tuple(args))) if torch.is_tensor(leaf)]
    tensors = {f"input.{i}": leaf for i, leaf in leaves}
    tensors |= {f"output.{i}": value for i, value in enumerate(truth.outputs) if torch.is_tensor(value)}
    for kind, values in ("grad", truth.grads), ("buffer", truth.buffers), ("node", truth.nodes):
        tensors |= {f"{kind}.{name}": value for name, value in values.items()}
    metadata = {
        "format": "headwater-golden-1",
        "torch": torch.__version__.split("+")[0],
        "truth": "float64",
        "archive": archive.name,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "seed": str(seed),
        "unreached": json.dumps(truth.unreached),
        "tied": json.dumps(truth.tied),
    }
    if any(name.split(".")[0] == "transformers" for name in imported_by(module)):
        import transformers

        metadata["transformers"] = transformers.__version__
    if steps or batches:
        batches = batches if batches is not None else [args] * steps
        curve = train(module, batches, optimizer)
        tensors |= {f"curve.{name}": torch.tensor(getattr(curve, name), dtype=torch.float64) for name in ("loss", "lr", "norm")}
        metadata |= {
            "steps": str(len(batches)),
            "curve_dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
            "optimizer": json.dumps(optimizer.metadata()),
            "no_decay": json.dumps([n for n, p in module.named_parameters() if not optimizer.decays(p)]),
        }
    save(tensors | (extra or {}), path, metadata)
    return truth


def save(tensors, path, metadata):
    """Writes a safetensors file whose bytes depend on its content alone."""
    data = serialize({k: v.detach().contiguous().clone() for k, v in tensors.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(metadata.items()))  # which the library leaves in random order
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(end - 8)
    Path(path).write_bytes(data[:8] + text + data[end:])


def imported_by(module):
    return {type(m).__module__ for m in module.modules()}


def selection(program, intermediates):
    """The predicate of the nodes to keep. Values that say nothing, views and uninitialized memory, are left out."""
    if intermediates == "none":
        return lambda node, value: False
    if not isinstance(intermediates, str):
        return lambda node, value: node.name in intermediates

    def computes(node):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return bool(node.users)  # an item of an operator's results
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in target._schema.returns)
        return not view and target.overloadpacket not in (*EMPTY, ATEN.reshape, ATEN.contiguous, ATEN.to, ATEN.flatten)

    state = set(program.graph_signature.buffers_to_mutate)  # a batch norm's new statistics are no output of its module
    candidates = [n for n in program.graph.nodes if n.op == "call_function" and computes(n) and n.name not in state]
    if intermediates == "modules":
        last = {}
        for node in candidates:
            stack = node.meta.get("nn_module_stack") or {"": None}
            last[list(stack)[-1]] = node
        candidates = last.values()
    elif intermediates != "all":
        raise ValueError(f"intermediates are 'all', 'modules', 'none' or names, not {intermediates!r}")
    names = {n.name for n in candidates}
    return lambda node, value: node.name in names
