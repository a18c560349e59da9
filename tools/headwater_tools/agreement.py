"""Compares a module with its archive: outputs, gradients, and the buffers and parameters that the forward pass writes.

Both run in float64. A value agrees when it differs by no more than rounding can make: first by 16 roundings of its largest element,
and, where that does not do, by what rounding of every operator's result moves it, which is sampled. A lost gradient is an error as
large as the gradient. What differs is refused, with its cause (`causes`).
"""

import contextlib
import hashlib
import json
import re
import warnings
from dataclasses import dataclass, field

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from . import lifting
from .masks import RANDOM, refusal
from .training import loss_of
from .truth import CONTROL, GivenGraph, evaluate

EPSILON = 2.0**-53  # of float64: the largest relative error of a rounding
AT_ONCE = 16  # roundings of the largest element, up to which nothing is sampled
SAMPLES = 3  # runs in which every result is disturbed
DISTURBED = 2.0**-36  # by so much at most, relative; 2^17 roundings, so that those of the run itself do not show
# A sample disturbs each result by one rounding. The graph's own operators take several (a softmax written out, a sum of n terms has
# log2(n) or more), and three samples find the largest deviation only about: 256 for both. What a sample moves is some hundreds of
# roundings in a deep model, so that differences are seen down to about 1e-11 of a value.
FACTOR = 256
CLOSE = 2.0**-30  # of a value: up to here a hand-written derivative counts as right; a 64th of the rounding of float32
NEGLIGIBLE = 1e-6  # a value whose bound is above this share of the largest gradient cannot be compared


class ExportWarning(UserWarning):
    """Something that an archive lacks, or that a golden will not show."""


class ModuleDiffers(ValueError):
    """An archive does not compute what its module computes."""


@dataclass
class Agreement:
    """What was compared, and the largest difference in roundings of float64 relative to the value's largest element."""

    outputs: int = 0
    gradients: int = 0
    buffers: int = 0
    worst: float = 0.0  # relative to the largest element of the value
    bound: float = 0.0  # of the same value
    where: str = ""
    rounding: list = field(default_factory=list)  # gradients that consist of rounding in module and archive alike
    dtype: str = "float64"
    why: str = ""  # the reason why it was not float64
    close: str = ""  # the autograd functions whose own derivatives are right up to `CLOSE` alone

    def statement(self, module):
        """For the metadata of a golden, as JSON."""
        found = {"agrees": True, "torch": torch.__version__.split("+")[0], "dtype": self.dtype}
        found |= {"outputs": self.outputs, "gradients": self.gradients, "buffers": self.buffers}
        found |= {"worst": self.worst, "bound": self.bound, "where": self.where}
        found |= {"rounding": self.rounding} if self.rounding else {}
        found |= {key: getattr(self, key) for key in ("why", "close") if getattr(self, key)}
        return json.dumps(found | {"weights": fingerprint(module)})


def fingerprint(module):
    """SHA-256 over parameters, then buffers, in the module's order, tied ones under each name: of each the line
    `name dtype [shape]` and its elements, contiguous and little-endian."""
    found = hashlib.sha256()
    for name, tensor in lifting.state(module):
        found.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        found.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return found.hexdigest()


# ---------------------------------------------------------------------------------------------------- weights


def archived(program):
    """Parameters and buffers of an exported program by name."""
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            found[spec.target] = program.state_dict.get(spec.target, program.constants.get(spec.target))
    return found


def same_weights(module, program):
    """Raises ModuleDiffers unless the module has the parameters and buffers that the archive holds."""
    mine, theirs = dict(lifting.state(module)), archived(program)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, tensor in theirs.items():
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        own = mine.get(name)
        if own is None:
            raise ModuleDiffers(f"the archive has a {kind} `{name}`, and the module has none: export the module as it is now")
        if (own.shape, own.dtype) != (tensor.shape, tensor.dtype):
            raise ModuleDiffers(
                f"the {kind} `{name}` is {own.dtype} {list(own.shape)} in the module and {tensor.dtype} {list(tensor.shape)} in the "
                "archive: export the module as it is now"
            )
        if not torch.equal(bits(own), bits(tensor)):
            raise ModuleDiffers(
                f"the {kind} `{name}` is not the archive's: it has been changed since the export, by training, by loading weights or "
                f"by a forward pass{apart(own, tensor)}. Record right after the export, with the module as it was, or export it again"
            )
        if name in parameters and own.requires_grad != tensor.requires_grad:
            now, then = ("trainable", "frozen") if own.requires_grad else ("frozen", "trainable")
            raise ModuleDiffers(f"the parameter `{name}` is {now}, and was {then} when it was exported: export it again")
    if missing := [name for name in mine if name not in theirs]:
        raise ModuleDiffers(f"the module has {', '.join(f'`{n}`' for n in missing[:3])}, which the archive has not: export it again")
    for first, other in shared(module):
        raise ModuleDiffers(
            f"`{first}` and `{other}` are two parameters in one memory: PyTorch gives each a gradient of its own, and an archive holds "
            f"one parameter. Tie them: assign the Parameter of one to the other"
        )


def bits(tensor):
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.to(torch.uint8)


def apart(a, b):
    if not a.dtype.is_floating_point:
        return ""
    return f" (by {(a.detach().double() - b.detach().double()).abs().max().item():.3g})"


def shared(module):
    """Pairs of names of different parameters that are the same memory."""
    found = {}
    for name, p in module.named_parameters():
        key = p.untyped_storage().data_ptr(), p.storage_offset(), p.shape, p.stride()
        if p.numel() and key in found:
            yield found[key], name
        found[key] = name


# ---------------------------------------------------------------------------------------------------- values


@dataclass
class Run:
    """How a module is run: `change(lifted)` is applied to its copy, `around()` is the context of both passes."""

    disturb: object = None
    change: object = lambda lifted: lifted.hook()
    around: object = contextlib.nullcontext
    calls: type = lifting.Calls
    given: bool = False  # in the module's own dtypes


def values(module, args, run=None):
    """What a module computes, by name: `output.i`, `grad.name`, and `state.name`: parameters and buffers after the forward pass."""
    run = run or Run()
    lifted = lifting.Module(module, lift=not run.given)
    run.change(lifted)
    take = (lambda x: x.detach().clone()) if run.given else lifting.claim
    args, random_state = pytree.tree_map_only(torch.Tensor, take, tuple(args)), torch.get_rng_state()
    with run.around(), lifting.running(lifted, run.disturb, run.calls):
        outputs = pytree.tree_leaves(lifted.module(*args))
        loss = loss_of(outputs)
        if loss.requires_grad:
            loss.backward()
    if not torch.equal(random_state, torch.get_rng_state()):
        raise ValueError(refusal())
    found = {f"output.{i}": output for i, output in enumerate(outputs)}
    found |= {f"grad.{name}": p.grad for name, p in lifted.trainable() if p.grad is not None}
    found |= {f"state.{name}": tensor for name, tensor in lifting.state(lifted.module)}
    return {name: plain(lifting.held(value)) for name, value in found.items()}


def archive_values(program, args, truth, graph):
    """The same of an exported program that has been evaluated."""
    found = {f"output.{i}": value for i, value in enumerate(truth.outputs)}
    found |= {f"grad.{name}": value for name, value in truth.grads.items()}
    found |= {f"grad.{name}": truth.grads[first] for name, first in truth.tied.items() if first in truth.grads}
    written = truth.buffers | truth.parameters
    written |= {name: written[first] for name, first in truth.tied.items() if first in written}
    found |= {f"state.{name}": written.get(name, graph.lift(stored)) for name, stored in archived(program).items()}
    return {name: plain(value) for name, value in found.items()}


def plain(value):
    """A tensor as goldens hold it: dense, complex numbers as pairs."""
    if not torch.is_tensor(value):
        return value
    value = value if value.layout is torch.strided else value.to_dense()
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


@dataclass
class Difference:
    """Of a value of the module and the archive's: `error` and `size` are largest elements, `bound` is what rounding can make."""

    name: str
    error: float
    size: float
    bound: float = 0.0
    rounding: bool = False  # the value consists of rounding
    said: str = ""

    def __str__(self):
        kind, _, name = self.name.partition(".")
        kind = {"output": "output", "grad": "the gradient of", "state": "after the forward pass"}[kind]
        what = f"{kind} {name}" if kind == "output" else f"{kind} `{name}`"
        return f"{what} {self.said or f'differs by {amount(self.error, self.size)}'}"


def amount(error, size):
    return f"{100 * error / size:.3g} % of its size" if size else f"{error:.3g}, where the module has 0"


def compare(name, mine, theirs):
    """The `Difference` of two values, or None if they are the same bits."""
    if not torch.is_tensor(mine) or not torch.is_tensor(theirs):
        same = type(mine) is type(theirs) and mine == theirs or torch.is_tensor(mine) == torch.is_tensor(theirs) and mine == theirs
        return None if same else Difference(name, 1.0, 0.0, said=f"is {short(mine)} in the module and {short(theirs)} in the archive")
    if mine.shape != theirs.shape:
        return Difference(name, 1.0, 0.0, said=f"is {list(mine.shape)} in the module and {list(theirs.shape)} in the archive")
    if torch.equal(mine, theirs) or not mine.numel():
        return None
    whole = not mine.is_floating_point()
    mine, theirs = mine.double(), theirs.double()
    finite = mine.isfinite()
    if not torch.equal(torch.where(finite, 0.0, mine).nan_to_num(7.0), torch.where(theirs.isfinite(), 0.0, theirs).nan_to_num(7.0)):
        return Difference(name, 1.0, 0.0, said="has NaN or infinities at other places")
    if not finite.any():
        return None
    mine, theirs = mine[finite], theirs[finite]
    error, size = (mine - theirs).abs().max().item(), mine.abs().max().item()
    if error == 0.0:
        return None
    if whole:
        return Difference(name, error, size, said=f"has other integers in {int((mine != theirs).sum())} of {mine.numel()} places")
    return Difference(name, error, size, bound=error + 1.0)  # to be judged


def short(value):
    return f"a tensor {list(value.shape)}" if torch.is_tensor(value) else repr(value)


class Judge:
    """Tells differences from rounding."""

    def __init__(self, module, args, program, run):
        self.module, self.args, self.run = module, args, run
        self.samples, self.length = None, sum(n.op == "call_function" for n in program.graph.nodes)

    def differences(self, mine, theirs):
        """Values that differ by more than rounding, and all others that are not the same bits."""
        found, near = [], []
        for name in [*mine, *(n for n in theirs if n not in mine)]:
            if name not in theirs or name not in mine:
                found.append(Difference(name, 1.0, 0.0, said=self.missing(name, name in mine)))
            elif difference := compare(name, mine[name], theirs[name]):
                (found if difference.said else near).append(difference)
        largest = max((v.abs().max().item() for n, v in mine.items() if n.startswith("grad.") and v.numel()), default=0.0)
        for difference in list(near):
            difference.bound = self.bound(difference, mine)
            share = 1.0 if self.run.given else NEGLIGIBLE
            limit = share * max(largest if difference.name.startswith("grad.") else 0.0, difference.size)
            difference.rounding = difference.bound >= difference.size
            if not difference.error <= difference.bound or not difference.bound <= limit:
                if difference.error <= difference.bound:
                    difference.said = (
                        f"cannot be compared: it differs by {amount(difference.error, difference.size)}, and rounding moves it as much"
                    )
                near.remove(difference)
                found.append(difference)
        return found, near

    def missing(self, name, in_module):
        if name.startswith("grad."):
            return "is missing: the archive's loss does not depend on it" if in_module else "is missing in the module, and the archive has one"
        return "is missing in the archive" if in_module else "is missing in the module"

    def bound(self, difference, mine):
        if self.run.given:
            low = [p.dtype for p in self.module.parameters() if p.is_floating_point()]
            return max((torch.finfo(t).eps for t in low), default=torch.finfo(torch.float32).eps) * self.length * difference.size
        at_once = AT_ONCE * EPSILON * difference.size
        if difference.error <= at_once:
            return at_once
        if self.samples is None:
            self.samples = [values(self.module, self.args, Run(disturb=Disturb(i))) for i in range(SAMPLES)]
        moved = [compare(difference.name, sample[difference.name], mine[difference.name]) for sample in self.samples]
        if any(m is not None and m.said for m in moved):
            return float("inf")
        return FACTOR * EPSILON / DISTURBED * max((m.error for m in moved if m), default=0.0)


class Disturb:
    """Multiplies what an operator has computed by 1 plus a number of at most `DISTURBED`, which follows from the element's own bits:
    equal elements stay equal, so that ties stay ties. Elements with 8 trailing zeros, such as 0, 1 and whole numbers, are taken as
    exact."""

    def __init__(self, seed):
        self.seed = 0x243F6A8885A308D3 * (2 * seed + 1) % 2**62

    def __call__(self, tensor):
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if not tensor.numel() or any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape)):
            return
        found = tensor.view(torch.int64)
        mixed = (found ^ self.seed) * -0x61C8864680B583EB
        mixed = (mixed ^ (mixed >> 29)) * -0x40A7B892E31B1A47
        share = (mixed >> 11).double() * 2.0**-52  # in [-1, 1)
        tensor.mul_(torch.where(found & 0xFF == 0, 0.0, share * DISTURBED) + 1.0)


# ---------------------------------------------------------------------------------------------------- the whole


def agree(module, program, args, truth, graph, recorded=None):
    """Returns the `Agreement` of a module with its archive, which has been evaluated to `truth` by `graph`; and with values that were
    `recorded` before, if they are given by name.

    Raises ModuleDiffers, with what differs, the cause and the remedy.
    """
    from .causes import refuse

    same_weights(module, program)
    run, found = Run(), Agreement()
    theirs = archive_values(program, args, truth, graph)
    try:
        mine = values(module, args, run)
    except Exception as error:  # the module's Python may do anything, and float64 has fewer operators
        if RANDOM in str(error) or "`__deepcopy__`" in str(error):
            raise
        run, found.dtype = Run(given=True), "as given"
        found.why = reason(program, error)
        mine = values(module, args, run)
        theirs = archive_values(program, args, evaluate(program, args, graph=GivenGraph), GivenGraph)
    judge = Judge(module, args, program, run)
    different, near = judge.differences(mine, theirs)
    if different:
        found.close, near = refuse(module, program, args, judge, theirs, different, run), near + different
        warnings.warn(f"module and archive agree up to {CLOSE:.1e} only. The cause: {found.close}", ExportWarning, stacklevel=3)
    if recorded is not None:
        older, more = judge.differences({n: v for n, v in mine.items() if n in recorded}, recorded)
        if older:
            raise ModuleDiffers(f"the golden does not hold what the module computes: {'; '.join(map(str, older[:3]))}: record it again")
        near = near + more
    twins(module, program, args, graph, run)
    found.outputs = sum(n.startswith("output.") and torch.is_tensor(v) for n, v in mine.items())
    found.gradients, found.buffers = len(truth.grads), len(truth.buffers)
    for difference in near:
        if difference.rounding:
            found.rounding += [difference.name] * (difference.name not in found.rounding)
        elif difference.error / difference.size > found.worst:
            found.worst, found.where = difference.error / difference.size, difference.name
            found.bound = difference.bound / difference.size
    return found


def reason(program, error):
    """The reason why a module does not run in float64."""
    control = sorted({n.target._name for n in program.graph.nodes if n.target in CONTROL})
    if control:
        return f"{' and '.join(control)} of PyTorch compiles what it runs, in the dtypes that the module has"
    text = re.sub(r" at 0x\w+", "", str(error).strip()).splitlines()
    return ": ".join([type(error).__name__, *text[:1]])[:200]


def twins(module, program, args, graph, run):
    """Refuses an archive that reads one input for two, where they were the same tensor when it was exported: with two equal ones
    that cannot be seen, so that the second one is changed."""
    leaves, tree = pytree.tree_flatten(tuple(args))
    for i, first in enumerate(leaves):
        for j in range(i + 1, len(leaves)):
            if not equal(first, leaves[j]):
                continue
            other = leaves[j].flip(tuple(range(leaves[j].dim())))
            if equal(other, first):
                if not first.is_floating_point():
                    continue
                other = first * 0.75
            changed = pytree.tree_unflatten([*leaves[:j], other, *leaves[j + 1 :]], tree)
            try:
                mine = values(module, changed, run)
                truth = evaluate(program, changed, graph=GivenGraph if run.given else graph)
            except Exception:  # the changed input is none that the model takes
                continue
            theirs = archive_values(program, changed, truth, GivenGraph if run.given else graph)
            if Judge(module, changed, program, run).differences(mine, theirs)[0]:
                raise ModuleDiffers(
                    f"inputs {i} and {j} were the same tensor when the module was exported, and the archive reads one of them in place "
                    "of both: export with two different tensors"
                )


def equal(a, b):
    return torch.is_tensor(a) and torch.is_tensor(b) and a.dtype == b.dtype and a.shape == b.shape and a.numel() > 0 and torch.equal(a, b)
