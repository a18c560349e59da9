"""Warns, when a module is exported, of what can be seen beforehand: what the archive will lack, and what a golden will not show."""

import contextlib
import warnings

import torch
from torch.export.graph_signature import InputKind
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from .agreement import ExportWarning
from .causes import BACKWARD, Notes, hooked, named, parameter_hooks, patched, watching_contexts, watching_functions

SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


@contextlib.contextmanager
def watching(module):
    """The context of an export, and the `Notes` of what the module does in it."""
    notes = Notes(module)

    def function(cls):
        kind = "checkpoint" if cls is CheckpointFunction else "function"
        notes.note(kind, "`torch.utils.checkpoint`" if kind == "checkpoint" else named(cls))

    def noted(method):
        def register(self, *args, **kwargs):
            notes.note("tensor hooks", f"`{method.__name__}`")
            return method(self, *args, **kwargs)

        return register

    hooks = {name: noted(getattr(torch.Tensor, name)) for name in ("register_hook", "register_post_accumulate_grad_hook")}
    with watching_functions(function), watching_contexts(notes.note), patched(torch.Tensor, **hooks):
        yield notes


def warn(module, args, program, notes, decompose):
    """Gives the warnings. `program` is what was exported, before it is decomposed."""
    found = [*modes(module), *lost(module, notes, program, decompose), *inputs(args, program)]
    for text in found:
        warnings.warn(text, ExportWarning, stacklevel=3)


def modes(module):
    if not module.training:
        yield (
            "the module is in evaluation mode, and is exported so: without dropout, and with batch norm by its running statistics. For "
            "training, call module.train() before"
        )
        return
    still = [path for path, m in module.named_modules() if not m.training and isinstance(m, (_NormBase, _DropoutNd))]
    if still:
        yield f"{listed(still)} in evaluation mode, inside of a module in training mode: exported without dropout or new statistics"


def lost(module, notes, program, decompose):
    leaves_out = "torch.export leaves out, so that the archive has other gradients; record will refuse it where they differ"
    if notes.seen.get("checkpoint"):
        yield (
            f"{notes.said('checkpoint')} is reentrant: it is exported without gradients, and so is what comes after. Export with "
            "use_reentrant=False, or without checkpointing"
        )
    if notes.seen.get("function"):
        yield f"autograd functions have a backward pass that {leaves_out}: {notes.said('function')}"
    if notes.seen.get("tensor hooks"):
        yield f"hooks on tensors are what {leaves_out}: {notes.said('tensor hooks')}"
    if hooks := hooked(module, *BACKWARD):
        yield f"backward hooks of modules are what {leaves_out}: {', '.join(hooks[:3])}"
    if names := parameter_hooks(module):
        yield f"hooks on parameters are what {leaves_out}: {', '.join(names[:3])}"
    if notes.seen.get("inference_mode"):
        yield f"inference_mode is what {leaves_out}: {notes.said('inference_mode')}. Use torch.no_grad, with decompose=False"
    if notes.seen.get("saved tensors"):
        yield f"hooks on saved tensors are what {leaves_out}: {notes.said('saved tensors')}"
    if decompose and any(n.target is SET_GRAD for n in program.graph.nodes):
        node = next(n for n in program.graph.nodes if n.target is SET_GRAD)
        path = list((node.meta.get("nn_module_stack") or {"": ("",)}).values())[-1][0]
        yield (
            f"no_grad{f' in `{path}`' if path else ''} is lost by decompose=True, so that what is computed or written there has gradients: "
            "export with decompose=False"
        )


def inputs(args, program):
    specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    users = {n.name: n.users for n in program.graph.nodes if n.op == "placeholder"}
    leaves = list(pytree.tree_leaves(tuple(args)))
    names = [getattr(s.arg, "name", "") for s in specs]
    for name, leaf in zip(names, leaves):
        if torch.is_tensor(leaf) and not users.get(name):
            yield f"nothing reads the input `{name}`"
    tensors = [(n, x) for n, x in zip(names, leaves) if torch.is_tensor(x) and x.numel() > 1]
    for i, (first, x) in enumerate(tensors):
        for second, y in tensors[i + 1 :]:
            if x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y):
                yield (
                    f"the inputs `{first}` and `{second}` are equal: an archive or golden in which they are exchanged would look the same. "
                    "Give two different tensors"
                )


def listed(names, most=3):
    words = ", ".join(f"`{n}`" for n in names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
    return f"{words} {'is' if len(names) == 1 else 'are'}"
