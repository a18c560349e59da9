"""`torch.compile(model, backend="headwater")`: each graph of TorchDynamo as a plan in two halves under autograd.

What cannot be run right runs in eager mode, with one warning that says what it is. Gradients, buffers and written inputs are
PyTorch's own tensors; its optimizer goes on as it was."""

import dataclasses
import warnings
from collections import OrderedDict
from typing import Any, Callable, Optional, Sequence

import torch

from headwater import _headwater, precision
from headwater.capture import DTYPES
from headwater.compare import compare
from headwater.errors import Error, Refusal, Unsupported, UnsupportedWarning
from headwater.function import Constant, Function, Given, Made, Recipe, aligned, capture, shared
from headwater.torch_version import check_version

check_version()

#: Plans of one graph at most: sizes. The least recently used goes.
PLANS = 64

#: PyTorch's words.
_TWICE = b"trying to differentiate twice a function that was marked with @once_differentiable"

_TORCH = {name: dtype for dtype, name in DTYPES.items()}


@dataclasses.dataclass
class Counters:
    """Since the last `headwater.reset()`: graphs that TorchDynamo gave, plans made for them, graphs refused."""

    graphs: int = 0
    plans: int = 0
    refused: int = 0


_COUNTERS = Counters()
#: Texts of warnings that were given.
_WARNED: set[str] = set()


def counters() -> Counters:
    """What was compiled since `reset()`."""
    return dataclasses.replace(_COUNTERS)


def reset() -> None:
    """Sets the counters to zero, and lets warnings be given again."""
    _COUNTERS.graphs = _COUNTERS.plans = _COUNTERS.refused = 0
    _WARNED.clear()


@dataclasses.dataclass
class Options:
    """`options` of `torch.compile`."""

    #: The way in which a refused graph runs: "eager", "error" (raises `Unsupported`), or "inductor".
    unsupported: str = "eager"
    #: True if the first run of each graph is compared with eager mode.
    check: bool = False
    #: Mixed precision: "O1", "O2" or settings of `[amp]`. Parameters stay f32, and so do results.
    amp: precision.Amp = None

    @classmethod
    def of(cls, options: Optional[dict[str, Any]]) -> "Options":
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := set(options or {}) - known:
            raise ValueError(f"headwater has no option {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}")
        made = cls(**(options or {}))
        if made.unsupported not in ("eager", "error", "inductor"):
            raise ValueError(f"unsupported={made.unsupported!r}: it is 'eager', 'error' or 'inductor'")
        made.amp = precision.settings(made.amp)
        if made.amp is not None and made.unsupported == "inductor":
            raise ValueError("unsupported='inductor': there is no amp then")
        return made


def headwater(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: Optional[dict[str, Any]] = None,
    mode: Optional[str] = None,
    dynamic: Optional[bool] = None,
) -> Callable[..., Any]:
    """The backend of `torch.compile`."""
    if mode is not None:
        raise ValueError(f"headwater has no mode {mode!r}")
    _COUNTERS.graphs += 1
    return torch._dynamo.disable(_Graph(graph, examples, Options.of(options)))


class _Graph:
    """A graph of dynamo, callable with its arguments."""

    def __init__(self, graph: torch.fx.GraphModule, examples: Sequence[Any], options: Options) -> None:
        self._graph, self._options = graph, options
        self._names = names(graph)
        #: Positions of what the caller passes; other arguments are tensors of modules.
        self._passed = {i for i, source in enumerate(_sources(graph)) if "_buffers[" not in source}
        amp = options.amp
        buffers = set(range(len(examples))) - self._passed
        self._policy = None if amp is None else precision.Policy(graph, amp, buffers)  # type: ignore[arg-type]
        self._context = _headwater.Context(torch.get_num_threads())
        self._plans: OrderedDict[Any, _Plans] = OrderedDict()
        #: Positions of arguments whose sizes may change from call to call.
        self._changing: list[int] = []
        self._eager: Optional[Callable[..., Any]] = None
        self._inductor = _Inductor(graph)
        for i, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                if any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride())):
                    self._changing.append(i)
            elif not isinstance(examples[i], torch.Tensor):
                self._changing.append(i)
        if torch.is_autocast_enabled("cpu"):
            self._refuse([Refusal("torch.autocast around the call")])
        elif not self._changing:
            self._plan(examples)

    def __call__(self, *args: Any) -> Any:
        if self._eager is not None:
            return self._eager(*args)
        if found := _circumstances():
            return self._fallback(found)(*args)
        plans = self._plan(args)
        if plans is None:
            assert self._eager is not None
            return self._eager(*args)
        # No guard of dynamo's sees that arguments of a later call share memory.
        written = [i for i in plans.function.written if i in self._passed]
        if written and (found := shared(args, written, self._names)):
            return self._fallback(found)(*args)
        try:
            if self._options.check and not plans.checked:
                half_of = lambda function, cotangents: _Half(function, self._context, cotangents)  # noqa: E731
                compare(plans.exact, self._graph, args, self._names, half_of)
                plans.checked = True
            return plans.run(args)
        except Error as e:
            # Data that no run can take, such as an index out of range: nothing was written, and eager mode says it in
            # PyTorch's own words.
            if e.code == "HW-C005":
                self._graph(*args)
            raise

    def _plan(self, args: Sequence[Any]) -> Optional["_Plans"]:
        """The plans for the sizes of these arguments; none if they are refused."""
        key = tuple((a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in (args[i] for i in self._changing))
        plans = self._plans.get(key)
        if plans is None:
            values = [int(a) if isinstance(a, torch.SymInt) else a for a in args]
            try:
                plans = self._plans_of(values)
            except Unsupported as e:
                self._refuse(e.refusals)
                return None
            except Error as e:
                self._refuse([Refusal(str(e))])
                return None
            self._plans[key] = plans
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        elif self._changing:
            self._plans.move_to_end(key)
        return plans

    def _refuse(self, refusals: list[Refusal]) -> None:
        """From now on the graph runs elsewhere."""
        _COUNTERS.refused += 1
        self._eager = self._fallback(refusals)

    def _fallback(self, refusals: list[Refusal]) -> Callable[..., Any]:
        """Where a graph goes that is refused, with a warning the first time."""
        if self._options.unsupported == "error":

            def fail(*args: Any) -> Any:
                raise Unsupported(refusals)

            return fail
        where = "eager PyTorch" if self._options.unsupported == "eager" else "Inductor"
        text = f"headwater: a graph runs in {where}: {'; '.join(map(str, refusals))}"
        if text not in _WARNED:
            _WARNED.add(text)
            warnings.warn(text, UnsupportedWarning, stacklevel=2)
        if self._options.unsupported == "eager":
            return self._run_in_eager
        return self._inductor

    def _plans_of(self, args: Sequence[Any]) -> "_Plans":
        """Plans for the sizes of these arguments, in the precision of the options."""
        function = capture(self._graph, args, self._names, self._policy)
        exact = capture(self._graph, args, self._names) if self._policy and self._options.check else None
        return _Plans(function, self._context, exact)

    def _run_in_eager(self, *args: Any) -> Any:
        return self._graph.forward(*args) if self._policy is None else self._policy.run(self._graph.forward, args)


class _Inductor:
    """A graph compiled by Inductor at its first call, when its arguments are known."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._graph = graph
        self._compiled: Optional[Callable[..., Any]] = None

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            self._compiled = torch._dynamo.lookup_backend("inductor")(self._graph, list(args))
        return self._compiled(*args)


class _Plans:
    """The plans of a graph for some sizes: one for each set of results that have cotangents."""

    def __init__(self, function: Function, context: _headwater.Context, exact: Optional[Function] = None) -> None:
        self.function, self._context = function, context
        #: The function without casts of mixed precision, which is what eager mode is compared with.
        self.exact = exact or function
        #: True once a run was compared with eager mode.
        self.checked = False
        self._halves: dict[tuple[bool, ...], _Half] = {}
        #: Results that will have cotangents, as far as the backward passes so far tell.
        self.expected = tuple(function.differentiable)
        if not function.wanted:
            self.expected = tuple(False for _ in function.differentiable)
        #: The set that the last backward pass had, and for each set the one that came after it: loops alternate.
        self._last = self.expected
        self._next: dict[tuple[bool, ...], tuple[bool, ...]] = {}
        self.half(self.expected)

    def learn(self, cotangents: tuple[bool, ...]) -> None:
        """Notes which results had cotangents, to foresee those of the next pass."""
        self._next[self._last], self._last = cotangents, cotangents
        self.expected = self._next.get(cotangents, cotangents)

    def half(self, cotangents: tuple[bool, ...]) -> "_Half":
        """The plan whose backward pass takes the cotangents of these results alone."""
        half = self._halves.get(cotangents)
        if half is None:
            half = self._halves[cotangents] = _Half(self.function, self._context, cotangents)
            _COUNTERS.plans += 1
        return half

    def run(self, args: Sequence[Any]) -> Any:
        """The results of the graph, as eager mode has them."""
        made = self.made(args)
        return tuple([_result(recipe, args, made) for recipe in self.function.recipes])

    def made(self, args: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The results of the plan; writes what the graph writes."""
        half = self.half(self.expected)
        if half.backward and any(args[i].requires_grad for i in self.function.wanted):
            return _Apply.apply(self, half, *args)
        return half.forward(args)[0]


class _Half:
    """A plan: forward pass, and backward pass for some cotangents."""

    def __init__(self, function: Function, context: _headwater.Context, cotangents: tuple[bool, ...]) -> None:
        outputs = [f"output.{i}" for i, given in enumerate(cotangents) if given]
        wanted = [function.names[i] for i in function.wanted]
        self.halves = halves = _headwater.Halves(function.program, context, outputs, wanted)
        #: True if there is a backward pass.
        self.backward = bool(outputs and wanted)
        self.function, self.random = function, function.program.random
        positions = {name: i for i, name in function.names.items()}
        self._keys = [(role, positions.get(name, -1), function.constants.get(name)) for name, role, *_ in halves.inputs]
        #: Positions of arguments that the backward pass reads, and of results of the plan.
        crossing = [positions[name] for name, role, _, _, crosses in halves.inputs if crosses and role == "user"]
        self.crossing = [i for i in crossing if i not in function.written]
        self._results = [(tuple(sizes), _TORCH[dtype]) for _, _, dtype, sizes, _ in halves.results]
        self.count = sum(role == "result" for _, role, *_ in halves.results)
        self.written = [positions[name] for name, role, *_ in halves.results if role == "written"]
        self.crossing_results = [i for i, (*_, crosses) in enumerate(halves.results) if crosses]
        self.cotangents = [i for i, given in enumerate(cotangents) if given]
        self.keeps = bool(halves.activation_bytes[1] or self.crossing or self.crossing_results)
        self._buckets = [(_TORCH[dtype], count) for dtype, count in halves.buckets]
        self._gradients = [
            (positions[name], bucket, first, tuple(sizes), _row_major(sizes)) for name, bucket, first, sizes, _ in halves.gradients
        ]

    def addresses(self, tensor: Callable[[int], torch.Tensor], key: Optional[torch.Tensor]) -> tuple[list[int], list[Any]]:
        """Addresses of what goes in, and what must be held meanwhile. `tensor` gives an argument by its position."""
        addresses, held = [], []
        for role, at, constant in self._keys:
            t = constant if role == "constant" else key if role == "rng" else aligned(tensor(at))
            held.append(t)
            addresses.append(0 if t is None else t.data_ptr())
        return addresses, held

    def forward(self, args: Sequence[Any], key: Optional[torch.Tensor] = None) -> tuple[list[torch.Tensor], Any, Any]:
        """Runs the forward pass; gives the results, the new contents, and the activations."""
        if key is None and self.random:
            key = torch.randint(-(1 << 63), (1 << 63) - 1, (2,))
        results, new, activations = self.compute(lambda i: args[i], key)
        if self.written:
            with torch.no_grad():
                for i, content in zip(self.written, new):
                    args[i].detach().copy_(content)
        return results, new, activations

    def compute(self, tensor: Callable[[int], torch.Tensor], key: Optional[torch.Tensor]) -> tuple[list[torch.Tensor], Any, Any]:
        """As `forward`, but writes nothing."""
        addresses, held = self.addresses(tensor, key)
        results = [torch.empty(sizes, dtype=dtype) for sizes, dtype in self._results]
        activations = self.halves.forward(addresses, [t.data_ptr() for t in results])
        del held
        return results[: self.count], results[self.count :], activations

    def gradients(
        self,
        activations: Any,
        tensor: Callable[[int], torch.Tensor],
        key: Optional[torch.Tensor],
        results: Sequence[Optional[torch.Tensor]],
        cotangents: Sequence[torch.Tensor],
        count: int,
    ) -> list[Optional[torch.Tensor]]:
        """Runs the backward pass; gives the gradient of each of `count` arguments."""
        addresses, held = self.addresses(tensor, key)
        given = [aligned(cotangents[i]) for i in self.cotangents]
        buckets = [torch.empty(elements, dtype=dtype) for dtype, elements in self._buckets]
        self.halves.backward(
            activations,
            addresses,
            [0 if t is None else t.data_ptr() for t in results],
            [t.data_ptr() for t in given],
            [t.data_ptr() for t in buckets],
        )
        del held
        found: list[Optional[torch.Tensor]] = [None] * count
        for at, bucket, first, sizes, strides in self._gradients:
            found[at] = buckets[bucket].as_strided(sizes, strides, first)
        return found


class _Apply(torch.autograd.Function):
    """The passes of a plan as one function of autograd."""

    @staticmethod
    def forward(ctx: Any, plans: _Plans, half: _Half, *args: Any) -> Any:  # type: ignore[override]
        function = plans.function
        key = torch.randint(-(1 << 63), (1 << 63) - 1, (2,)) if half.random else None
        # The backward pass may read what the graph writes over.
        ctx.copies = {i: args[i].detach().clone() for i in function.written}
        results, new, activations = half.forward(args, key)
        ctx.plans, ctx.half, ctx.activations, ctx.key, ctx.count = plans, half, activations, key, len(args)
        ctx.new = [t if half.count + i in half.crossing_results else None for i, t in enumerate(new)]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[r for r, d in zip(results, function.differentiable) if not d])
        if half.keeps:
            # autograd frees them with the graph, and raises its own errors for what was modified or freed.
            kept = [args[i] for i in half.crossing] + [results[i] for i in half.crossing_results if i < half.count]
            ctx.save_for_backward(*kept, *([] if kept else [torch.empty(0)]))
        saved = set(half.crossing) | set(function.written)
        tensors = [(i, a) for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in saved]
        #: For a forward pass that runs again.
        ctx.others = {i: (a, a._version) for i, a in tensors}
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:  # type: ignore[override]
        with torch.no_grad():
            found = _Apply.gradients(ctx, cotangents)
        if torch.is_grad_enabled() and any(g is not None for g in found):
            # Readers of these gradients cannot be differentiated: `once_differentiable` sees that by the cotangents
            # alone, but they depend on the arguments too.
            tensors = [g.requires_grad_() for g in found if g is not None]
            refused = iter(torch._C._functions.DelayedError(_TWICE, len(tensors))(*tensors))
            found = [None if g is None else next(refused) for g in found]
        return (None, None, *found)

    @staticmethod
    def gradients(ctx: Any, cotangents: Sequence[Any]) -> list[Optional[torch.Tensor]]:
        """The gradient of each argument."""
        plans, half = ctx.plans, ctx.half
        given = tuple(c is not None and d for c, d in zip(cotangents, plans.function.differentiable))
        if not any(given):
            return [None] * ctx.count
        saved = ctx.saved_tensors if half.keeps else ()
        kept = dict(zip(half.crossing, saved))
        results: list[Optional[torch.Tensor]] = [*[None] * half.count, *ctx.new]
        for i, t in zip((i for i in half.crossing_results if i < half.count), saved[len(half.crossing) :]):
            results[i] = t

        def tensor(at: int) -> torch.Tensor:
            found = ctx.copies.get(at)
            if found is None:
                found = kept.get(at)
            return ctx.others[at][0] if found is None else found

        plans.learn(given)
        wanted = plans.half(given)
        activations, ctx.activations = ctx.activations, None
        if wanted is not half or activations is None:
            # Other cotangents than foreseen, or a second backward pass: the forward pass runs again.
            for t, version in ctx.others.values():
                if t._version != version:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace operation: "
                        f"[torch.{t.dtype} {list(t.shape)}] is at version {t._version}; expected version {version} instead"
                    )
            made, new, activations = wanted.compute(tensor, ctx.key)
            results = [*made, *new]
        return wanted.gradients(activations, tensor, ctx.key, results, cotangents, ctx.count)


def _result(recipe: Recipe, args: Sequence[Any], made: Sequence[torch.Tensor]) -> Any:
    if isinstance(recipe, Made):
        return made[recipe.index]
    if isinstance(recipe, Constant):
        return recipe.value
    if isinstance(recipe, Given):
        return args[recipe.at]
    base = args[recipe.of.at] if isinstance(recipe.of, Given) else made[recipe.of.index]
    if not recipe.differentiable:
        base = base.detach()
    return base.as_strided(recipe.sizes, recipe.strides, base.storage_offset() + recipe.offset)


def _row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _circumstances() -> list[Refusal]:
    """What is around a call in which a plan would not be what eager mode is."""
    found = []
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        found.append(Refusal("saved-tensor hooks around the call"))
    if torch._C._functorch.peek_interpreter_stack() is not None:
        found.append(Refusal("a transform of torch.func around the call"))
    if torch.autograd.forward_ad._current_level >= 0:
        found.append(Refusal("forward-mode differentiation around the call"))
    return found


def names(graph: torch.fx.GraphModule) -> list[str]:
    """Names of a graph's arguments, as the model has them."""
    found = []
    for name in _sources(graph):
        for part in ("L['self'].", "_modules['", "_parameters['", "_buffers['", "']", "L['"):
            name = name.replace(part, "")
        found.append(name)
    return found


def _sources(graph: torch.fx.GraphModule) -> list[str]:
    """Where a graph's arguments come from, as dynamo spells it, such as L['self']._parameters['weight']."""
    found = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node.meta.get("grapharg"), "source", None)
            name = getattr(source, "name", node.name)
            found.append(str(name() if callable(name) else name))
    return found
