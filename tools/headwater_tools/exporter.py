"""Writes a module as a `.pt2` archive."""

import re
import site
import sysconfig
import zipfile
from pathlib import Path

import torch
from torch._subclasses import fake_impls
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from . import data, foresight
from .training import WRAPPER, loss_of
from .weightless import write_entry

# A stack trace names the line of the model first and its callers above it. The innermost calls are what a reader needs.
FRAMES = 2


def export(module, args, path, dynamic_shapes=None, decompose=False, compress=False):
    """Exports `module(*args)` to the archive `path` and returns the exported program.

    The module is exported in the mode it is in: call `module.train()` before. Dropout stays in the archive, for training;
    what is compared with PyTorch takes it as the identity. `decompose=False` keeps the training form, with in-place operators and views;
    `decompose=True` writes the functional form, after `run_decompositions({})`. `dynamic_shapes` is torch.export's.
    `compress` deflates the graph to about a tenth of its size and leaves the weights as they are.

    Stack traces are shortened to the two innermost calls, with paths relative to the place where packages are installed
    or to the working directory, so that an archive does not tell where its author keeps files.

    Warns (`ExportWarning`) of evaluation mode, of what the archive will lack (hooks, autograd functions, reentrant checkpointing,
    no_grad when decomposed), of inputs that nothing reads and of equal ones.
    """
    args = apart(data.arguments(args))
    fake_impls.op_implementations_dict[torch.ops.aten._ctc_loss.Tensor] = fake_ctc_loss
    try:
        with foresight.watching(module) as notes:
            program = torch.export.export(module, tuple(args), strict=False, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        if advice := advise(str(error)):
            raise ValueError(f"torch.export refuses the model. {advice}") from error
        raise
    returns_loss(program)
    foresight.warn(module, args, program, notes, decompose)
    if decompose:
        program = program.run_decompositions({})
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("from_node", None)  # holds addresses of Python objects: no two exports would be the same
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = shorten(trace)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, path)
    if compress:
        deflate_graph(path)
    return program


def apart(args):
    """The arguments, of which no two are one tensor: torch.export makes one input of such, which the archive reads for both."""
    seen = set()

    def own(leaf):
        if not torch.is_tensor(leaf) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.clone()

    return pytree.tree_map(own, tuple(args))


ADVICE = {
    "Cache": "It returns a cache of keys and values, which is for generating text: set use_cache=False in its config, and " + WRAPPER,
    "data-dependent": "Its control flow depends on values of tensors, as `if x.sum() > 0` does: compute both sides and choose with "
    "torch.where, or take the decision out of forward.",
    "GuardOnDataDependent": "Its control flow or a size depends on values of tensors: choose with torch.where, and keep sizes fixed.",
    "Constraints violated": "A size that dynamic_shapes names is fixed by the model or by the example: give an example batch of 2 "
    "or more, and name sizes alone that forward does not fix.",
    "fake tensor in the exported program": "Its forward pass uses `.data` of a tensor, which cannot be traced: use `detach()`, or write to the "
    "tensor itself under torch.no_grad().",
    "too many positional arguments": "The example has more tensors than forward has arguments.",
    "missing a required argument": "The example does not fit forward: it must have a tensor for each argument, in order.",
}


def fake_ctc_loss(mode, function, log_probs, targets, *rest, **named):
    """Types of the losses and of PyTorch's intermediate sums, which PyTorch 2.15 refuses to tell: of padded targets."""
    sequences = log_probs.shape[1:-1]
    with mode:
        return log_probs.new_empty(sequences), log_probs.new_empty(*sequences, log_probs.shape[0], 2 * targets.shape[-1] + 1)


def advise(message):
    """The way out of an error of torch.export that is known, or None."""
    return next((text for sign, text in ADVICE.items() if sign in message), None)


def returns_loss(program):
    """Raises ValueError, with the way out, unless the first output is a loss."""
    nodes = list(program.graph.nodes)
    values = {n.name: n.meta.get("val") for n in nodes}
    outputs = [s.arg for s in program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    loss_of(tuple(values.get(getattr(o, "name", None)) for o in outputs))


def shorten(trace):
    """The innermost frames of a stack trace, with relative paths."""
    frames = re.split(r'(?m)^(?=\s*File ")', trace)
    trace = "".join(frames[-FRAMES:])
    for root in (*site.getsitepackages(), sysconfig.get_paths()["purelib"], str(Path.cwd())):
        trace = trace.replace(f'File "{root}/', 'File "')
    return re.sub(r'File "/[^"]*/', 'File "', trace)  # elsewhere: the file's name alone


def deflate_graph(path):
    """Deflates the JSON entries of an archive. All others stay stored and start at multiples of 64, to be memory-mapped."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            write_entry(archive, name, data)
