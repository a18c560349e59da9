"""Finds why an archive differs from its module, by experiment: the module runs again without one thing that `torch.export` is known to
leave out. When that makes it agree with the archive, the cause is proved, and is named with its remedy; else nothing is guessed.
"""

import contextlib
import inspect
import os
import sys
from dataclasses import dataclass, field

import torch
from torch.export.graph_signature import InputKind
from torch.nn.functional import normalize
from torch.nn.modules import module as registered
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from . import lifting
from .truth import GivenGraph, LiftedGraph, evaluate

PACKAGES = os.path.dirname(torch.__file__), os.path.dirname(__file__)


class Notes:
    """Things that a module did while it ran: kind -> (module path and line of the call, name), each once."""

    def __init__(self, module):
        self.names = {id(m): name for name, m in module.named_modules()}
        self.seen = {}

    def note(self, kind, name=""):
        entry = (*self.place(), name)
        if entry not in self.seen.setdefault(kind, []):
            self.seen[kind].append(entry)

    def place(self):
        """Path of the innermost module that is running, file and line of the innermost call outside of PyTorch and these tools."""
        frame, path, line = sys._getframe(1), "", ""
        while frame:
            file = frame.f_code.co_filename
            if not line and not file.startswith((*PACKAGES, "<")) and os.path.basename(file) != "contextlib.py":
                line = f"{os.path.basename(file)}:{frame.f_lineno}"
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module) and id(owner) in self.names:
                return self.names[id(owner)], line
            frame = frame.f_back
        return path, line

    def said(self, kind, most=3):
        """Places and names in words."""
        entries = self.seen.get(kind, [])
        words = [f"{name or 'a call'} in {f'`{path}`' if path else 'the model'}{f' ({at})' if at else ''}" for path, at, name in entries]
        return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def functions(of=torch.autograd.Function):
    """All autograd functions that are defined in Python."""
    for cls in of.__subclasses__():
        yield cls
        yield from functions(cls)


def named(cls):
    return cls.__qualname__.split("<locals>.")[-1]


class Context:
    """Stands for `ctx` where an autograd function's forward pass is differentiated itself."""

    needs_input_grad = (True,) * 64

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@contextlib.contextmanager
def watching_functions(note, plain=False):
    """Calls `note(cls)` for each autograd function that is applied. With `plain`, its backward pass is the derivative of its forward
    pass, as torch.export records it."""
    kept = []
    for cls in set(functions()):
        if "forward" not in vars(cls) or cls is not CheckpointFunction and (cls.__module__ or "").startswith("torch."):
            continue
        kept.append((cls, {n: vars(cls)[n] for n in ("forward", "backward", "setup_context") if n in vars(cls)}))
        cls.forward = staticmethod(watched(cls, cls.forward, note, plain))
        if plain:
            cls.backward = staticmethod(derivative(cls, kept[-1][1]["forward"].__func__))
    try:
        yield
    finally:
        for cls, own in kept:
            for name in ("forward", "backward", "setup_context"):
                if name in own:
                    setattr(cls, name, own[name])
                elif name in vars(cls):
                    delattr(cls, name)


def separate(cls):
    """True if the class has a `setup_context` apart from its forward pass, which then takes no `ctx`."""
    return cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context


def watched(cls, forward, note, plain):
    def run(*args, **kwargs):
        note(cls)
        if plain and not separate(cls):
            args[0].given = args[1:]
        elif plain:
            cls.given = args
        return forward(*args, **kwargs)

    return run


def derivative(cls, forward):
    def backward(ctx, *grads):
        given = cls.given if separate(cls) else ctx.given
        with torch.enable_grad():
            floats = [x.detach().requires_grad_(x.is_floating_point()) if torch.is_tensor(x) else x for x in given]
            out = forward(*floats) if separate(cls) else forward(Context(), *floats)
            outs = [o for o in (out if isinstance(out, tuple) else (out,))]
            pairs = [(o, g) for o, g in zip(outs, grads) if torch.is_tensor(o) and o.requires_grad and g is not None]
            wanted = [x for x in floats if torch.is_tensor(x) and x.requires_grad]
            if not pairs:
                return (None,) * len(given)
            found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return tuple(next(found) if torch.is_tensor(x) and x.requires_grad else None for x in floats)

    return backward


@contextlib.contextmanager
def patched(owner, **methods):
    kept = {name: vars(owner)[name] for name in methods}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(owner, name, method)


HOOKS = torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook
SET_GRAD = torch._C._set_grad_enabled


class NoHandle:
    def remove(self):
        pass


def calls(note, ignore=(), dark=lambda: False):
    """The class of a function mode that notes calls which decide about gradients, and ignores those of the kinds given. While
    `dark()`, nothing has a gradient."""

    class Watched(lifting.Calls):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in HOOKS:
                note("tensor hooks", f"`{func.__name__}`")
                if "tensor hooks" in ignore:
                    return NoHandle()
            elif func is SET_GRAD and not args[0]:
                note("no_grad", "`no_grad`")
                if "no_grad" in ignore:
                    return None
            elif func is torch.Tensor.detach:
                note("detach", "`detach`")
                if "detach" in ignore:
                    return args[0]
            if dark() and func is not torch.Tensor.backward:
                with torch.no_grad():
                    return super().__torch_function__(func, types, args, kwargs)
            return super().__torch_function__(func, types, args, kwargs)

    return Watched


def within_torch(frame):
    """True if the code that enters a context, or that calls a function which has it as a decorator, is PyTorch's own."""
    while frame and os.path.basename(frame.f_code.co_filename) in ("_contextlib.py", "contextlib.py"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(PACKAGES[0])


@contextlib.contextmanager
def watching_contexts(note, ignore=()):
    """Notes `inference_mode` and hooks of saved tensors, and makes those without effect that are ignored."""
    with contextlib.ExitStack() as stack:
        for owner, kind, name in (
            (torch.inference_mode, "inference_mode", "`inference_mode`"),
            (torch.autograd.graph.saved_tensors_hooks, "saved tensors", "`saved_tensors_hooks`"),
        ):
            enter, leave = owner.__enter__, owner.__exit__

            def entered(self, enter=enter, kind=kind, name=name):
                if not within_torch(sys._getframe(1)):
                    note(kind, name)
                return None if kind in ignore else enter(self)

            def left(self, *error, leave=leave, kind=kind):
                return None if kind in ignore else leave(self, *error)

            stack.enter_context(patched(owner, __enter__=entered, __exit__=left))
        yield


@contextlib.contextmanager
def as_exported():
    """torch.compiler says that the module is being exported."""
    flags = {n: getattr(torch.compiler, n) for n in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, n)}
    for name in flags:
        setattr(torch.compiler, name, True)
    try:
        yield
    finally:
        for name, value in flags.items():
            setattr(torch.compiler, name, value)


# ---------------------------------------------------------------------------------------------------- experiments


@dataclass
class Suspect:
    """Something that an export leaves out, and how to run the module without it."""

    kind: str
    found: str  # the places in the model, in words
    cause: str
    remedy: str
    ignore: tuple = ()
    functions: bool = False
    change: object = None
    parameter_hooks: bool = True
    around: list = field(default_factory=list)
    dark: bool = False  # nothing has a gradient after the checkpoint


DETACH = (
    "with `detach`, which an archive keeps: a gradient g scaled by k is `k * x + ((1 - k) * x).detach()`, a straight-through estimator "
    "of q(x) is `x + (q(x) - x).detach()`"
)


def hooked(module, *kinds):
    """Paths of the modules that have hooks of these kinds, and the hooks' names; hooks of all modules first."""
    found = [f"all modules: {hook_name(h)}" for kind in kinds for h in getattr(registered, GLOBAL.get(kind, ""), {}).values()]
    for path, m in module.named_modules():
        for kind in kinds:
            for hook in getattr(m, kind, {}).values():
                found.append(f"`{path}`: {hook_name(hook)}" if path else f"the model: {hook_name(hook)}")
    return found


def hook_name(hook):
    return getattr(hook, "__qualname__", type(hook).__name__).replace(".<locals>", "")


BACKWARD = "_backward_hooks", "_backward_pre_hooks"
FORWARD = "_forward_hooks", "_forward_pre_hooks"
GLOBAL = {"_backward_hooks": "_global_backward_hooks", "_backward_pre_hooks": "_global_backward_pre_hooks"}


def without(*kinds):
    def change(lifted):
        for m in lifted.module.modules():
            for kind in kinds:
                getattr(m, kind).clear()

    return change


@contextlib.contextmanager
def without_global_hooks():
    kept = {name: getattr(registered, name).copy() for name in GLOBAL.values()}
    for name in kept:
        getattr(registered, name).clear()
    try:
        yield
    finally:
        for name, hooks in kept.items():
            getattr(registered, name).update(hooks)


def parameter_hooks(module):
    return [
        f"`{name}`"
        for name, p in module.named_parameters()
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
    ]


def suspects(module, notes, decomposed):
    """Suspects that are present in a module, by what it has and what its run noted."""
    found = []
    applied = [e for e in notes.seen.get("function", ()) if not e[2].endswith("CheckpointFunction")]
    if len(applied) < len(notes.seen.get("function", ())):
        found.append(Suspect(
            "reentrant checkpointing", notes.said("checkpoint"),
            "is checkpointed with use_reentrant=True, whose forward pass runs under no_grad: it is exported without gradients, and so is "
            "what comes after",
            "export with use_reentrant=False (`gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": False})` in "
            "transformers), or without checkpointing: Headwater recomputes by itself", dark=True,
        ))  # fmt: skip
    if applied:
        names = ", ".join(dict.fromkeys(name for _, _, name in applied))
        found.append(Suspect(
            "autograd.Function", notes.said("function"),
            f"applies the autograd function {names}, whose backward pass torch.export leaves out: the archive differentiates its forward pass",
            f"write it {DETACH}; or as an operator of torch.library, which Headwater then needs as well (CONTRIBUTING.md, From outside)",
            functions=True,
        ))  # fmt: skip
    if hooks := hooked(module, *BACKWARD):
        found.append(Suspect(
            "module backward hooks", ", ".join(hooks[:3]), "has backward hooks, which torch.export leaves out",
            f"remove them, or change the gradient in forward, {DETACH}", change=without(*BACKWARD), around=[without_global_hooks],
        ))  # fmt: skip
    if notes.seen.get("tensor hooks"):
        found.append(Suspect(
            "tensor hooks", notes.said("tensor hooks"), "registers hooks on tensors, which torch.export leaves out",
            f"remove them, or change the gradient in forward, {DETACH}", ignore=("tensor hooks",),
        ))  # fmt: skip
    if names := parameter_hooks(module):
        found.append(Suspect(
            "parameter hooks", ", ".join(names[:3]), "has hooks on parameters, which torch.export leaves out",
            f"remove them, or change the gradient in forward, {DETACH}; clipping and scaling are settings of the training run",
            parameter_hooks=False,
        ))  # fmt: skip
    if notes.seen.get("inference_mode"):
        found.append(Suspect(
            "inference_mode", notes.said("inference_mode"),
            "computes under `torch.inference_mode`, which torch.export leaves out: the archive has gradients there",
            "use `torch.no_grad` in its place, and export with decompose=False", ignore=("inference_mode",),
        ))  # fmt: skip
    if norms := spectral_norms(module):
        found.append(Suspect(
            "spectral norm", ", ".join(f"`{path}`" for path in norms[:3]),
            "has a spectral norm, which iterates under `no_grad` in the forward pass; run_decompositions leaves the `no_grad` out",
            "export with decompose=False", around=[differentiated_spectral_norms],
        ))  # fmt: skip
    if notes.seen.get("no_grad"):
        remedy = "export with decompose=False, which keeps it, or `detach` the results"
        found.append(Suspect(
            "no_grad", notes.said("no_grad"),
            "computes under `no_grad`, which run_decompositions leaves out: the archive has gradients there" if decomposed else
            "computes under `no_grad`, which the archive has not", remedy, ignore=("no_grad",),
        ))  # fmt: skip
    if notes.seen.get("detach"):
        found.append(Suspect(
            "detach", notes.said("detach"), "detaches tensors, and the archive does not",
            "export with decompose=False", ignore=("detach",),
        ))  # fmt: skip
    if notes.seen.get("saved tensors"):
        found.append(Suspect(
            "saved_tensors_hooks", notes.said("saved tensors"), "changes saved tensors by hooks, which torch.export leaves out",
            "leave the hooks out: Headwater decides itself what it saves", ignore=("saved tensors",),
        ))  # fmt: skip
    if hooks := hooked(module, *FORWARD):
        found.append(Suspect(
            "forward hooks", ", ".join(hooks[:3]), "has forward hooks that were not there when it was exported",
            "export the module as it is now", change=without(*FORWARD),
        ))  # fmt: skip
    found.append(Suspect(
        "mode", "the model", f"is in {'training' if module.training else 'evaluation'} mode, and was exported in the other one",
        f"call module.{'eval' if not module.training else 'train'}() before both, and export again", change=other_mode,
    ))  # fmt: skip
    found.append(Suspect(
        "exporting", "the model", "takes another way while it is exported: its code asks torch.compiler.is_exporting() or is_compiling()",
        "make both ways compute the same, or export the way that trains", around=[as_exported],
    ))  # fmt: skip
    return found


def spectral_norms(module):
    """Paths of the modules with a spectral norm, the old one of a hook or the new one of a parametrization."""
    return [
        path
        for path, m in module.named_modules()
        if isinstance(m, _SpectralNorm) or any(isinstance(h, SpectralNorm) for h in m._forward_pre_hooks.values())
    ]


def differentiated_spectral_norms():
    """Spectral norms with gradients through their iterations, as they are decomposed."""

    def old(self, module, do_power_iteration):
        weight, u, v = (getattr(module, self.name + part) for part in ("_orig", "_u", "_v"))
        rows, a, b = self.reshape_weight_to_matrix(weight), u.clone(), v.clone()
        for _ in range(self.n_power_iterations if do_power_iteration else 0):
            b = normalize(rows.t() @ a, dim=0, eps=self.eps)
            a = normalize(rows @ b, dim=0, eps=self.eps)
        u.data, v.data = a, b
        return weight / torch.dot(a, rows @ b)

    def new(self, weight):
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        rows, a, b = self._reshape_weight_to_matrix(weight), self._u.clone(), self._v.clone()
        for _ in range(self.n_power_iterations if self.training else 0):
            a = normalize(rows @ b, dim=0, eps=self.eps)
            b = normalize(rows.t() @ a, dim=0, eps=self.eps)
        self._u.data, self._v.data = a, b
        return weight / torch.vdot(a, rows @ b)

    stack = contextlib.ExitStack()
    stack.enter_context(patched(SpectralNorm, compute_weight=old))
    stack.enter_context(patched(_SpectralNorm, forward=new))
    return stack


def other_mode(lifted):
    lifted.module.train(not lifted.module.training)


ALWAYS = "mode", "exporting"
LOOKED_FOR = (
    "other weights, autograd functions, reentrant checkpointing, hooks of modules, parameters, tensors and saved tensors, no_grad, "
    "inference_mode, detach, spectral norm, the mode of training, torch.compiler.is_exporting, parameters kept as constants, "
    "state in Python that a call changes, equal elements"
)


def refuse(module, program, args, judge, theirs, different, run):
    """Raises ModuleDiffers with the cause of these differences. Returns it in words where an autograd function has the derivative of
    its forward pass but for constants that are rounded otherwise: differences of at most `CLOSE`."""
    from .agreement import CLOSE, ModuleDiffers, archive_values

    head = "the archive does not compute what the module computes: " + "; ".join(str(d) for d in different[:3])
    head += f"; and {len(different) - 3} more" if len(different) > 3 else ""
    notes = Notes(module)
    try:
        attempt(module, args, run, [], notes)
    except Exception:  # it ran before; being watched, it does not
        pass
    decomposed = not any(n.target is torch.ops.higher_order.wrap_with_set_grad_enabled for n in program.graph.nodes)
    found = suspects(module, notes, decomposed)
    present = [s for s in found if s.kind not in ALWAYS]
    trials = [[s] for s in found] + ([present] if len(present) > 1 else [])
    for trial in trials:
        try:
            mine = attempt(module, args, run, trial)
        except Exception:  # a module that cannot run without it
            continue
        if not judge.differences(mine, theirs)[0]:
            if [s.kind for s in trial] == ["autograd.Function"] and all(d.size and d.error <= CLOSE * d.size for d in different):
                return f"{trial[0].found}: an autograd function, whose backward pass differs from the derivative of its forward pass"
            causes = " And it ".join(f"{s.cause}: {s.found}. Remedy: {s.remedy}." for s in trial)
            raise ModuleDiffers(f"{head}. The cause, proved by running the module without it: it {causes}")
    if baked := parameters_as_constants(module, program):
        graph = GivenGraph if run.given else LiftedGraph
        try:
            truth = evaluate(program, args, graph=graph, known=baked.items())
            same = not judge.differences(attempt(module, args, run, []), archive_values(program, args, truth, graph))[0]
        except Exception:
            same = False
        if same:
            names = ", ".join(f"`{name}`" for name in dict.fromkeys(baked.values()))
            raise ModuleDiffers(
                f"{head}. The cause, proved by running the archive otherwise: it holds the values of {names} as constants, because forward "
                "reads these parameters by another way than the attribute of the module that has them, such as a list, a dict or a "
                "function. Remedy: read `self.name`, or register them in a ParameterList or ModuleList"
            )
    if changed := unsteady(module, args, run):
        raise ModuleDiffers(
            f"{head}. The cause: each call of the module changes what the next one computes, by state in Python{changed}, which an "
            "archive does not have. Remedy: keep it in a buffer, or give it as an input"
        )
    if exported_again(module, args, judge, run):
        places = f" ({notes.said('no_grad')})" if notes.seen.get("no_grad") else ""
        raise ModuleDiffers(
            f"{head}. The cause, proved by exporting the module once more without decompose=True, which agrees with it: run_decompositions "
            f"loses gradients where forward computes or writes under `no_grad`{places}; or the module has been changed since the export, "
            "in something that is neither parameter nor buffer. Remedy: export it as it is now, with decompose=False"
        )
    if ties(module, program, args, judge, run):
        raise ModuleDiffers(
            f"{head}. The difference is gone when equal numbers of the inputs are made unequal: the model chooses among equal elements "
            "(sort, topk, quantile, max), and PyTorch leaves open which. Remedy: record with inputs without equal elements"
        )
    if present:
        head += ". What the module has of the things that torch.export is known to leave out, none of which explains all of it: "
        head += "; ".join(f"{s.kind} ({s.found})" for s in present)
    raise ModuleDiffers(f"{head}. The cause was not found. Looked for were: {LOOKED_FOR}")


def ties(module, program, args, judge, run):
    """True if module and archive agree on inputs of which each element is moved by up to a thousandth."""
    from .agreement import archive_values

    random = torch.Generator().manual_seed(0)

    def move(x):
        return x * (1 + 1e-3 * torch.rand(x.shape, generator=random).to(x.dtype)) + 1e-6 if x.is_floating_point() else x

    moved, graph = pytree.tree_map_only(torch.Tensor, move, tuple(args)), GivenGraph if run.given else LiftedGraph
    try:
        theirs = archive_values(program, moved, evaluate(program, moved, graph=graph), graph)
        return not judge.differences(attempt(module, moved, run, []), theirs)[0]
    except Exception:
        return False


def exported_again(module, args, judge, run):
    """True if the training form of the module, exported now, agrees with it."""
    from .agreement import archive_values

    graph = GivenGraph if run.given else LiftedGraph
    try:
        copied = lifting.Module(module, lift=False).module  # an export counts as a call of the module
        program = torch.export.export(copied, tuple(args), strict=False)
        theirs = archive_values(program, args, evaluate(program, args, graph=graph), graph)
        return not judge.differences(attempt(module, args, run, []), theirs)[0]
    except Exception:
        return False


def parameters_as_constants(module, program):
    """Constants of an archive that have the bits of a trainable parameter, with its name."""
    from .agreement import bits

    constants = {s.target for s in program.graph_signature.input_specs if s.kind is InputKind.CONSTANT_TENSOR}
    return {
        target: name
        for target in constants
        for name, p in module.named_parameters()
        if p.requires_grad and (value := program.constants[target]).shape == p.shape and value.dtype == p.dtype
        and p.numel() > 0 and torch.equal(bits(value), bits(p))
    }  # fmt: skip


def attempt(module, args, run, trial, notes=None):
    """What the module computes without the suspects of a trial."""
    from .agreement import Run, values

    ignore = tuple(kind for s in trial for kind in s.ignore)
    hooks = all(s.parameter_hooks for s in trial)

    def note(kind, name=""):
        if notes is not None:
            notes.note(kind, name)

    after = []

    def function(cls):
        note("function", named(cls))
        if cls is CheckpointFunction:
            note("checkpoint", "`torch.utils.checkpoint`")
            after.append(any(s.dark for s in trial))

    def change(lifted):
        if notes is not None:
            notes.names = {id(m): name for name, m in lifted.module.named_modules()}
        if hooks:
            lifted.hook()
        for suspect in trial:
            if suspect.change:
                suspect.change(lifted)

    @contextlib.contextmanager
    def around():
        with contextlib.ExitStack() as stack:
            for context in [c for s in trial for c in s.around]:
                stack.enter_context(context())
            stack.enter_context(watching_functions(function, plain=any(s.functions for s in trial)))
            stack.enter_context(watching_contexts(note, ignore))
            yield

    return values(module, args, Run(change=change, around=around, calls=calls(note, ignore, lambda: any(after)), given=run.given))


def unsteady(module, args, run):
    """Says whether a second call with the same weights computes something else, and which attributes of Python changed."""
    from .agreement import Run, compare, values

    copies = []

    def twice(lifted):
        lifted.hook()
        copies.append(lifted.module)
        if len(copies) == 2:  # the second run takes up the first one's attributes
            for mine, before in zip(copies[1].modules(), copies[0].modules()):
                for name, value in vars(before).items():
                    if isinstance(value, (bool, int, float, str)):
                        setattr(mine, name, value)

    try:
        first, second = (values(module, args, Run(change=twice, given=run.given)) for _ in range(2))
    except Exception:
        return None
    if all(compare(name, first[name], second.get(name)) is None for name in first):
        return None
    changed = [
        f"`{path}.{name}`".replace("`.", "`")
        for (path, m), before in zip(copies[0].named_modules(), module.modules())
        for name, value in vars(m).items()
        if isinstance(value, (bool, int, float, str)) and vars(before).get(name) != value
    ]
    return f" ({', '.join(changed[:3])})" if changed else " (not found among its attributes)"
