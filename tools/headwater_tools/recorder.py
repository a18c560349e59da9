"""Writes golden files: what PyTorch computes with an exported model, for others to be compared with."""

import hashlib
import inspect
import json
import os
import warnings
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save as serialize
from torch.utils import _pytree as pytree

from . import data as samples
from .agreement import ExportWarning, agree
from .dropout import WithoutDropout
from .training import AdamW, Optimizer, loss_of, train
from .truth import ATEN, LiftedGraph, by_definition, evaluate

SUFFIX = ".golden.safetensors"
EMPTY = (ATEN.empty, ATEN.empty_like, ATEN.new_empty, ATEN.empty_strided, ATEN.new_empty_strided, ATEN.empty_permuted)


def record(
    module, args, path, steps=0, intermediates="modules", optimizer=None, batches=None, seed=0, extra=None, program=None,
    data=None, eval=None, batch=None, epochs=None, names=None, sequential=False, curve_steps=None, cast="exact",
):  # fmt: skip
    """Records the golden `<name>.golden.safetensors` of the archive `<name>.pt2` beside it.

    The archive is read back and evaluated on `args` with every floating-point dtype lifted to float64: outputs, the
    gradient of output 0 for every trainable parameter, and the new values of buffers that the graph writes. Dropout is the
    identity in all that is recorded, and random masks, such as those of stochastic depth, are their means.

    data: the file of samples that the job will train on. The module itself, in the dtype of its weights, is trained as
        Headwater will train it: `steps` or `epochs`, batches of `batch` samples (default: as many as `args` have) in the order
        of `seed` (or the file's, if `sequential`), with `optimizer`, which names its schedule too. `names` maps an input to a
        tensor that the file calls differently. `headwater migrate --new` takes all of this over.
    eval: a file of held-out samples; loss and accuracy on them at the end of the run are recorded too. A run of which `curve_steps`
        records the beginning has no end: a warning says so.
    curve_steps: so many steps are recorded of a longer run; 100 are compared.
    cast: "exact" refuses values that the dtype of an input does not hold; "round" rounds them, here and in the job.
    steps, without `data`: so many optimizer steps, each on `args`, or on `batches`, a sequence of argument tuples, of which
        each step takes as many as `optimizer` accumulates.

    The module is left as it was.

    intermediates: "all", "modules" (the last value that each module computes, views left out), "none", or a list of node names.
    seed: written to the file; without `data`, that with which `module` and `args` were made.
    extra: further tensors by name for the file.
    program: what `export` returned, for the archives that PyTorch writes and cannot read back.

    The module itself runs forward and backward in float64 too, and must compute what the archive computes: see `agreement`. The
    golden states that it does.

    Returns the float64 `Truth`. Raises ModuleDiffers, a ValueError, with cause and remedy, when module and archive differ, and
    ValueError when the model draws random numbers other than dropout's or a mask's, or has nothing to train.
    """
    args, optimizer = samples.arguments(args), optimizer or AdamW()
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(
            f"optimizer= takes settings, which the golden keeps: Optimizer(\"{kind}\", lr=…) of headwater_tools, and not a torch.optim.{kind}"
        )
    path = Path(path)
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"a golden file is called <name>{SUFFIX}, not {path.name}")
    archive = path.with_name(path.name.removesuffix(SUFFIX) + ".pt2")
    if not archive.exists():
        raise FileNotFoundError(f"{archive} does not exist: export(module, args, \"{archive}\") comes first")
    program = program or torch.export.load(archive)
    truth = evaluate(program, args, selection(program, intermediates))
    agreement = agree(module, program, args, truth, LiftedGraph)
    if truth.unreached and not truth.grads:
        raise ValueError(
            f"the loss depends on no trainable parameter, neither in the module nor in the archive ({', '.join(truth.unreached[:3])} …): "
            "was it computed under no_grad, or detached?"
        )

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
        "module": agreement.statement(module),
    }
    if truth.dropouts:
        metadata["dropout"] = "identity"
    if any(name.split(".")[0] == "transformers" for name in imported_by(module)):
        import transformers

        metadata["transformers"] = transformers.__version__
    run = None
    if data is not None:
        run = Run(module, args, path, data, eval, batch, steps, epochs, seed, names, sequential, optimizer.accumulate, cast)
        run.fits(program)
        batches, metadata = run.batches(curve_steps), metadata | run.metadata(optimizer)
        if run.eval and run.count < run.steps:
            warnings.warn(
                f"eval= is not recorded: it is measured at the run's end, and curve_steps={run.count} of {run.steps} steps end before. Leave "
                "curve_steps out, or take the comparison of the loss curve alone",
                ExportWarning,
                stacklevel=2,
            )
    elif batches is None:
        batches = [args] * (steps * optimizer.accumulate)
    if len(batches):
        with by_definition():
            curve = train(module, batches, optimizer, steps=run and run.steps)
        tensors |= {f"curve.{name}": torch.tensor(getattr(curve, name), dtype=torch.float64) for name in ("loss", "lr", "norm")}
        if run:
            tensors |= run.tensors(curve.module)
        metadata |= {
            "steps": str(len(curve.loss)),
            "curve_dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
            "optimizer": json.dumps(optimizer.metadata()),
            "no_decay": json.dumps([n for n, p in module.named_parameters() if not optimizer.decays(n, p)]),
        }
    save(tensors | (extra or {}), path, metadata)
    return truth


def certify(module, args, path):
    """Compares the module with a golden that was recorded before, and with its archive, and adds the statement that they agree to the
    golden, whose tensors stay as they are. Returns the `Agreement`; raises ModuleDiffers as `record` does.
    """
    path = Path(path)
    with safe_open(path, "pt") as golden:
        metadata, tensors = golden.metadata(), {n: golden.get_tensor(n) for n in golden.keys()}
    archive = path.with_name(metadata["archive"])
    if hashlib.sha256(archive.read_bytes()).hexdigest() != metadata["sha256"]:
        raise ValueError(f"{path} was recorded from another {archive.name}: record it again")
    for i, leaf in enumerate(pytree.tree_leaves(tuple(args))):
        if torch.is_tensor(leaf) and not torch.equal(pairs(leaf), tensors[f"input.{i}"]):
            raise ValueError(f"input {i} is not the golden's: give the arguments that it was recorded with")
    program = torch.export.load(archive)
    recorded = {n.replace("buffer.", "state.", 1): v for n, v in tensors.items() if n.startswith(("output.", "grad.", "buffer."))}
    agreement = agree(module, program, args, evaluate(program, args), LiftedGraph, recorded)
    save(tensors, path, metadata | {"module": agreement.statement(module)})
    return agreement


class Run:
    """The training run of a job, on a data file."""

    def __init__(self, module, args, path, file, eval, batch, steps, epochs, seed, names, sequential, accumulate, cast="exact"):
        if bool(steps) == bool(epochs):
            raise ValueError("give the length of the run, either steps or epochs")
        if cast not in ("exact", "round"):
            raise ValueError(f"cast is 'exact' or 'round', not {cast!r}")
        self.cast = cast
        self.path, self.file, self.eval, self.names = path, Path(file), eval and Path(eval), names or {}
        self.module, self.dtypes = module, [a.dtype for a in pytree.tree_leaves(tuple(args)) if torch.is_tensor(a)]
        self.samples = self.read(self.file)
        self.given = {"steps": steps} if steps else {"epochs": epochs}
        self.batch = batch or len(next(a for a in pytree.tree_leaves(tuple(args)) if torch.is_tensor(a)))
        per_epoch = len(self.samples[0]) // self.batch
        self.steps = steps or int(epochs * per_epoch / accumulate + 1e-9)
        self.seed, self.sequential, self.accumulate = seed, sequential, accumulate

    def read(self, file):
        """The inputs' samples in the dtypes that the module takes: files may hold others whose values fit."""
        found = samples.inputs(self.module, samples.load(file), self.names)
        names = [p.name for p in inspect.signature(self.module.forward).parameters.values()]
        dtypes = zip(found, self.dtypes, names, strict=False)
        return [samples.converted(t, d, n, self.cast == "round") for t, d, n in dtypes]

    def fits(self, program):
        """Raises ValueError for a batch that the archive does not take, which Headwater would refuse."""
        users = set(program.graph_signature.user_inputs)
        values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in users]
        fixed = next((v.shape[0] for v in values if torch.is_tensor(v) and v.ndim and isinstance(v.shape[0], int)), self.batch)
        if fixed != self.batch:
            raise ValueError(
                f"the archive takes batches of {fixed}, as it was exported, and not of {self.batch}: record with batch={fixed}, or export "
                'with a dynamic batch, dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}, ...}'
            )

    def batches(self, count):
        """Arguments of each batch of all steps, of the first `count` steps alone if that is not None."""
        self.count = min(self.steps, count or self.steps)
        batches = self.count * self.accumulate
        self.order = samples.batches(len(self.samples[0]), self.batch, batches, self.seed, self.sequential)
        return Gathered(self.samples, self.order, self.file)

    def relative(self, file):
        return os.path.relpath(file, self.path.parent)

    def metadata(self, optimizer):
        files = {"train": self.relative(self.file), "last": "drop"}
        files |= {"eval": self.relative(self.eval)} if self.eval else {}
        files |= {"sequential": True} if self.sequential else {}
        files |= {"names": self.names} if self.names else {}
        files |= {"cast": self.cast} if self.cast != "exact" else {}
        settings = {**self.given, "batch": self.batch, "seed": self.seed, **optimizer.settings(), "data": files}
        hashed = hashlib.sha256(self.file.read_bytes()).hexdigest()
        return {"train": json.dumps(settings), "data": self.file.name, "data_sha256": hashed}

    def tensors(self, trained):
        found = {"curve.order": self.order}
        if self.eval and self.count == self.steps:
            loss, accuracy = evaluate_on(trained, self.read(self.eval), self.batch)
            found["curve.eval_loss"] = torch.tensor(loss, dtype=torch.float64)
            if accuracy is not None:
                found["curve.eval_accuracy"] = torch.tensor(accuracy, dtype=torch.float64)
        return found


class Gathered:
    """Argument tuples of batches, made on demand."""

    def __init__(self, samples, order, file):
        self.samples, self.order, self.file = samples, order, file

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        return (tuple(t[indices] for t in self.samples) for indices in self.order)

    def blame(self, module, batch, error):
        """Names the samples of a batch that by themselves end in the same error, or else all of the batch."""

        def fails(sample):
            try:
                with torch.no_grad():
                    module(*(t[sample : sample + 1] for t in self.samples))
            except Exception as alone:
                return str(alone) == str(error)
            return False

        indices = sorted(self.order[batch].tolist())
        named = [i for i in indices if fails(i)] or indices
        text = ", ".join(map(str, named[:4])) + (", …" if len(named) > 4 else "")
        return f"sample {text} of {self.file}" if len(named) == 1 else f"samples {text} of {self.file}"


def evaluate_on(module, samples, batch):
    """Mean loss over held-out samples, in evaluation mode and with masks as their means, and the accuracy if there is one integer input [batch] and an output [batch, classes]."""
    training = module.training
    module.eval()
    labels = [i for i, t in enumerate(samples) if not t.is_floating_point() and t.ndim == 1]
    total, right, counted = 0.0, 0, False
    with torch.no_grad(), WithoutDropout():
        for begin in range(0, len(samples[0]), batch):
            args = tuple(t[begin : begin + batch] for t in samples)
            outputs, n = module(*args), len(args[0])
            total += loss_of(outputs).item() * n
            results = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            logits = next((o for o in results if torch.is_tensor(o) and o.ndim == 2 and o.shape[0] == n and o.shape[1] > 1), None)
            if len(labels) == 1 and logits is not None:
                right, counted = right + (logits.argmax(1) == args[labels[0]]).sum().item(), True
    module.train(training)
    return total / len(samples[0]), right / len(samples[0]) if counted else None


def pairs(tensor):
    """Complex numbers as pairs of real ones, in a last dimension of 2; other tensors as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def save(tensors, path, metadata):
    """Writes a safetensors file whose bytes depend on its content alone. Complex numbers become pairs."""
    data = serialize({k: pairs(v.detach()).contiguous().clone() for k, v in tensors.items()}, metadata)
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
