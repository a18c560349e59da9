"""`compile_step`: forward pass, backward pass, clipping and the optimizer's update as plans on memory that torch shares.

The step is itself a backend of TorchDynamo and is called through it each time. Dynamo's guards thus see sizes, modes, hooks,
frozen parameters and Python state; each new combination becomes one more program on the same state."""

import contextlib
import logging
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from headwater import _headwater, eager, optim
from headwater.capture import Capture, capture
from headwater.errors import Error, Mismatch, Refusal, Unsupported
from headwater.memory import Segments, mapping, tensor
from headwater.torch_version import check_version

check_version()

#: Programs of one step at most: sizes, modes and Python states.
PROGRAMS = 64


def compile_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Optional[Callable[..., Any]] = None,
    *,
    clip_norm: Optional[float] = None,
    clip_value: Optional[float] = None,
    accumulate: int = 1,
    device: str = "cpu",
    threads: Optional[int] = None,
    check: bool = True,
) -> "Step":
    """Makes a whole training step of a model and its optimizer.

    `step(*args, **kwargs)` is `loss_fn(model(*args[:-1], **kwargs), args[-1])`, its backward pass, clipping of the gradients'
    global norm to `clip_norm` or of each element to `clip_value`, and `optimizer.step()`; it returns the loss, detached. Without `loss_fn` the loss is what the
    model returns, or its `.loss`, `["loss"]` or first element. Gradients need not be emptied: each step has its own.

    With `accumulate=n` each n-th call updates, with the mean of n gradients. A loop that counts itself calls
    `step.backward(*batch)` any number of times, whose gradients add up as `.grad` does, and then `step.update()`.

    Parameters, buffers and moments lie where torch and plans both see them. The module, its `state_dict`, the optimizer's and
    its groups go on as they were: schedulers and code that writes rates work.

    With `check`, the first step is also computed in eager mode, without dropout in both: the loss and each gradient must agree
    within bounds that are derived from the graph, else `Mismatch` is raised and the module stays as it was. It costs one eager
    step and memory for its gradients, and 18 runs in float64 where terms of a gradient cancel.

    `threads`: of the plans, by default as many as torch has.

    Raises `Unsupported`, with all reasons, for what cannot be run right; some are found at the first call."""
    return Step(model, optimizer, loss_fn, clip_norm, clip_value, accumulate, device, threads, check)


class Step:
    """A training step; see `compile_step`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Optional[Callable[..., Any]],
        clip_norm: Optional[float],
        clip_value: Optional[float],
        accumulate: int,
        device: str,
        threads: Optional[int],
        check: bool,
        loss_of: Optional[Callable[..., Any]] = None,
    ) -> None:
        if device != "cpu":
            raise Unsupported([Refusal(f"device={device!r}: from Python there is the CPU alone so far")])
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, it is {accumulate}")
        self._model, self._optimizer, self._rule = model, optimizer, optim.rule(optimizer)
        self._modules = [model] + ([loss_fn] if isinstance(loss_fn, torch.nn.Module) else [])
        self._clip_norm, self._clip_value, self._accumulate = clip_norm, clip_value, accumulate
        #: True if `backward` and `update` are called instead of the step itself.
        self._by_hand = False
        self._threads = threads or torch.get_num_threads()
        self._check = check
        #: Loss and gradients of the first batch in eager mode, until they are compared.
        self._expected: Optional[tuple[float, dict[str, Optional[torch.Tensor]]]] = None
        self._state: Optional[_State] = None
        self._closed = False
        self._micro = 0
        #: Global norm of the last update's gradients, before clipping.
        self.norm: Optional[float] = None
        #: Updates that were left out because a gradient was not finite.
        self.skipped = 0
        #: Programs compiled so far: one for each combination of sizes, modes and Python state.
        self.programs = 0

        def own(*args: Any, **kwargs: Any) -> Any:
            if loss_fn is None:
                return _loss(model(*args, **kwargs))
            return _loss(loss_fn(model(*args[:-1], **kwargs), args[-1]))

        #: The loss of a batch, as it is called.
        self._loss_of = loss_of or own
        self._compiled = torch.compile(
            self._loss_of,
            backend=self._backend,
            fullgraph=True,
            dynamic=False,
            recompile_limit=PROGRAMS,
            isolate_recompiles=True,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the step on a batch, and returns its loss."""
        return self._call(False, args, kwargs)

    def backward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs forward and backward on a batch, and returns its loss. Gradients add up until `update`."""
        return self._call(True, args, kwargs)

    def update(self) -> bool:
        """Updates with the sum of the gradients since the last update; false if they were not finite, and nothing was
        changed."""
        if self._state is None or not self._by_hand or self._micro == 0:
            raise Error("there is no gradient to update with: call step.backward first")
        if found := self._refusals():
            raise Unsupported(found)
        self._micro = 0
        return self._update(self._state)

    def _call(self, by_hand: bool, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        if by_hand != self._by_hand:
            if self._micro:
                raise Error("the step is in the middle of an update: end it before it is called in the other way")
            # Sums are kept otherwise than means of a number that is known.
            self._by_hand, self._state = by_hand, None
        if self._closed:
            raise Error("this step is closed: make another with compile_step")
        if found := self._refusals():
            raise Unsupported(found)
        if self._check:
            trained = {name: p for name, p in self._parameters().items() if p.requires_grad}
            self._expected = eager.gradients(self._loss_of, self._modules, trained, args, kwargs)
        try:
            with _capturing(), torch.enable_grad():
                loss = self._compiled(*args, **kwargs)
        except torch._dynamo.exc.Unsupported as e:
            raise Unsupported([_dynamo_refusal(e)]) from e
        except torch._dynamo.exc.FailOnRecompileLimitHit as e:
            what = f"more than {PROGRAMS} combinations of sizes, modes and Python state in one step"
            raise Unsupported([Refusal(what)]) from e
        except torch._dynamo.exc.BackendCompilerFailed as e:
            # Our own refusal, as dynamo wraps it.
            raise e.inner_exception from None
        finally:
            self._expected = None
        self._check = False
        return loss

    def close(self) -> None:
        """Ends the step: parameters, buffers and moments get memory of their own."""
        self._closed = True
        if self._state is not None:
            self._state.give_back()
            self._state = None

    def memory(self) -> dict[str, int]:
        """Bytes that the step holds: `planned` for state, activations and what plans are fed and return. Empty before the
        first call."""
        return {} if self._state is None else {"planned": self._state.step.planned_bytes}

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """The optimizer's parameters by their names in the model."""
        names = self._names()
        return {names[id(p)]: p for g in self._optimizer.param_groups for p in g["params"] if id(p) in names}

    def _trained(self) -> set[str]:
        return {name for name, p in self._parameters().items() if p.requires_grad}

    def _names(self) -> dict[int, str]:
        """Names of the model's tensors, and of the loss function's, by identity."""
        names: dict[int, str] = {}
        for prefix, module in zip(("", "loss_fn."), self._modules):
            for name, t in [*module.named_parameters(), *module.named_buffers()]:
                names.setdefault(id(t), prefix + name)
        return names

    def _refusals(self) -> list[Refusal]:
        """Circumstances of this call in which a step would not be what eager mode is."""
        found = optim.refusals(self._optimizer)
        if torch.is_autocast_enabled("cpu"):
            found.append(Refusal("torch.autocast around the step"))
        if torch.is_inference_mode_enabled():
            found.append(Refusal("torch.inference_mode around the step"))
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            found.append(Refusal("saved-tensor hooks around the step"))
        names = None
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                if p._backward_hooks or p._post_accumulate_grad_hooks:
                    names = names or self._names()
                    found.append(Refusal(f"a hook on the parameter {names.get(id(p), 'outside of the model')}"))
        return found

    def _backend(self, graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        """Dynamo's backend: captures its graph. What it returns runs the step."""
        names, trained = self._names(), self._trained()
        if found := _shared(examples, names, trained):
            raise Unsupported(found)
        entry = _Entry(capture(graph, examples, names, trained))
        self.programs += 1

        def run(*args: Any) -> tuple[torch.Tensor]:
            return (self._run(entry, args),)

        return torch._dynamo.disable(run)

    def _run(self, entry: "_Entry", args: Sequence[Any]) -> torch.Tensor:
        state = self._enter(entry, args)
        program = entry.capture.program
        # Row-major copies of what is not; they live until the plans are done.
        batch = [args[i] if args[i].is_contiguous() else args[i].contiguous() for i in entry.capture.users]
        feeds = [t.data_ptr() for t in batch]
        if self._expected is not None:
            self._compare(entry, state, args, feeds)
        # Dropout follows torch's generator, which moves only where there is some.
        key = tuple(torch.randint(1 << 62, (2,)).tolist()) if program.random else (0, 0)
        loss = state.step.gradients(entry.number, feeds, key, self._micro == 0)
        torch.autograd.graph.increment_version([args[i] for i, name in entry.capture.state if name in entry.written])
        self._micro += 1
        if not self._by_hand and self._micro == self._accumulate:
            self._micro = 0
            self._update(state)
        return torch.tensor(loss, dtype=torch.float32)

    def _update(self, state: "_State") -> bool:
        optim.before_step(self._optimizer)
        state.follow_settings(self._optimizer)
        self.norm, applied = state.step.update(state.rates(self._optimizer))
        # Schedulers look at this, to warn those who never step.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        if applied:
            torch.autograd.graph.increment_version(state.parameters)
            state.count(self._optimizer)
            optim.after_step(self._optimizer)
            return True
        self.skipped += 1
        message = f"headwater: a gradient is not finite (update {self.skipped} left out): nothing was changed"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False

    def _enter(self, entry: "_Entry", args: Sequence[Any]) -> "_State":
        """The state that a capture's program belongs to: the one there is, or one made anew from torch's tensors."""
        state = self._state
        if state is not None and state.is_current(self._optimizer) and state.holds(entry, args):
            if entry.state is state:
                return state
            entry.capture.train(self._trained())
            if state.trained_by(entry):
                with contextlib.suppress(Error):
                    entry.number, entry.state = state.step.add(entry.capture.program), state
                    return state
        if self._micro:
            what = "other parameters are trained, or the optimizer's state was replaced, between two batches of one update"
            raise Unsupported([Refusal(what)])
        entry.capture.train(self._trained())
        self._state = state = _State(self, entry, args)
        entry.number, entry.state = 0, state
        return state

    def _compare(self, entry: "_Entry", state: "_State", args: Sequence[Any], feeds: list[int]) -> None:
        """Raises `Mismatch` if the batch's loss and gradients are not those of eager mode."""
        assert self._expected is not None
        loss, expected = self._expected
        before = {name: args[i].detach().clone() for i, name in entry.capture.state if name in entry.written}
        tensors = {name: args[i].detach() for i, name in entry.capture.state} | before
        tensors |= {name: t.contiguous() for name, t in entry.capture.constants.items()}
        given = {name: g.detach().contiguous() for name, g in expected.items() if g is not None}
        program = entry.capture.program
        found = state.step.check(entry.number, program, feeds, _addresses(tensors), loss, _addresses(given))
        for i, name in entry.capture.state:
            if name in before:
                args[i].detach().copy_(before[name])
        absent = set(given) - set(state.step.trained)
        reasons = dict(state.step.missing)
        found += [(f"{name} has no gradient: {reasons.get(name, 'not in the graph')}", float("inf"), 0.0) for name in sorted(absent)]
        if found:
            self.close()
            raise Mismatch(found)


class _Entry:
    """A capture, and the number of its program in the state that it was last run on."""

    def __init__(self, made: Capture) -> None:
        self.capture = made
        self.number = 0
        self.state: Optional[_State] = None
        #: Names of tensors that the forward pass writes.
        self.written = set(made.program.written)


class _State:
    """Parameters, buffers and moments in memory that torch and the plans share.

    torch's own tensors are the truth: a state is made from them, and made anew when they tell something else than it can
    follow, such as a loaded optimizer or parameters that were unfrozen."""

    def __init__(self, owner: Step, entry: _Entry, args: Sequence[Any]) -> None:
        optimizer, rule = owner._optimizer, owner._rule
        self._rule = rule
        tensors: dict[str, torch.Tensor] = {name: args[i] for i, name in entry.capture.state}
        parameters = owner._parameters()
        in_graph = set(entry.capture.program.trained)
        if not in_graph:
            raise Unsupported([Refusal("no parameter of the optimizer gets a gradient in this graph")])
        #: For each group of ours: position of torch's group, names of its parameters. Those of one have made as many steps.
        self._groups: list[tuple[int, list[str]]] = []
        numbers: dict[tuple[int, int], list[str]] = {}
        names = {id(p): name for name, p in parameters.items()}
        for at, group in enumerate(optimizer.param_groups):
            for p in group["params"]:
                name = names.get(id(p))
                if name in in_graph:
                    numbers.setdefault((at, rule.done(optimizer.state.get(p))), []).append(name)
        for (at, _), members in numbers.items():
            self._groups.append((at, members))
        self._keys = [rule.key(optimizer.param_groups[at]) for at, _ in self._groups]
        settings = [rule.json(optimizer.param_groups[at]) for at, _ in self._groups]
        # Held until their contents are copied.
        contents = {name: t.detach().contiguous() for name, t in tensors.items()}
        contents |= {name: t.contiguous() for name, t in entry.capture.constants.items()}
        segments = Segments()
        self.step = _headwater.Step(
            entry.capture.program,
            _addresses(contents),
            [(s, members) for s, (_, members) in zip(settings, self._groups)],
            clip_norm=owner._clip_norm,
            clip_value=owner._clip_value,
            accumulate=owner._accumulate,
            sum=owner._by_hand,
            threads=owner._threads,
            memory=segments.lend,
        )
        trained = set(self.step.trained)
        self._groups = [(at, [n for n in members if n in trained]) for at, members in self._groups]
        #: Parameters that get a gradient, as the graph says.
        self._in_graph = in_graph

        def place(role: str, name: str, like: torch.Tensor) -> torch.Tensor:
            segment, byte = self.step.places[(role, name)]
            return segments.tensor(self.step.segments[segment], like.dtype, like.shape, byte)

        #: Tensors of torch's that lie in our memory, by name, with their views of it.
        self._held: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, t in tensors.items():
            role = "parameter" if isinstance(t, torch.nn.Parameter) else "buffer"
            if (role, name) in self.step.places:
                view = place(role, name, t)
                t.data = view
                self._held[name] = (t, view)
        self._addresses = {name: view.data_ptr() for name, (_, view) in self._held.items()}
        self.parameters = [parameters[n] for _, members in self._groups for n in members]
        self._take_moments(optimizer, parameters, place)

    def _take_moments(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: dict[str, torch.nn.Parameter],
        place: Callable[[str, str, torch.Tensor], torch.Tensor],
    ) -> None:
        """Moves the optimizer's moments to our memory, and gives its counts of steps places side by side."""
        self._moments: list[dict[str, torch.Tensor]] = []
        self._counts: Optional[torch.Tensor] = None
        #: NAdam's products of momenta, contiguous.
        self._products: Optional[torch.Tensor] = None
        if not isinstance(self._rule, optim.SGD):
            memory = mapping(4 * max(1, len(self.parameters)))
            self._counts = tensor(memory, torch.float32, [len(self.parameters)], 0)
        if isinstance(self._rule, optim.NAdam):
            factors = mapping(4 * max(1, len(self.parameters)))
            self._products = tensor(factors, torch.float32, [len(self.parameters)], 0)
        for at, members in self._groups:
            for name in members:
                p = parameters[name]
                moments = {m: place(m, name, p) for m in self._rule.moments(optimizer.param_groups[at])}
                before = optimizer.state.get(p) or {}
                for key, view in moments.items():
                    if isinstance(before.get(key), torch.Tensor):
                        view.copy_(before[key])
                if isinstance(self._rule, optim.NAdam):
                    group = optimizer.param_groups[at]
                    if what := self._rule.contradiction(group, before):
                        raise Unsupported([Refusal(what)])
                    product = tensor(factors, torch.float32, [], 4 * len(self._moments))
                    product.fill_(before.get("mu_product", 1.0))
                    moments = {"mu_product": product, **moments}
                if self._counts is not None:
                    step = tensor(memory, torch.float32, [], 4 * len(self._moments))
                    step.fill_(self._rule.done(before))
                    moments = {"step": step, **moments}
                self._moments.append(moments)
        if self._counts is not None:
            for p, moments in zip(self.parameters, self._moments):
                optimizer.state[p].update(moments)
        else:
            # SGD's buffers are there from the first step on.
            for p, moments in zip(self.parameters, self._moments):
                if self._rule.done(optimizer.state.get(p)):
                    optimizer.state[p].update(moments)
        self._remember(optimizer)

    def _remember(self, optimizer: torch.optim.Optimizer) -> None:
        self._states = [optimizer.state.get(p) for p in self.parameters]
        self._forms = [self._rule.form(g) for g in optimizer.param_groups]
        self._members = [list(g["params"]) for g in optimizer.param_groups]

    def is_current(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if the optimizer's state and groups are those that were taken."""
        states = optimizer.state
        same = all(states.get(p) is s for p, s in zip(self.parameters, self._states))
        groups = optimizer.param_groups
        return (
            same
            and [self._rule.form(g) for g in groups] == self._forms
            and len(groups) == len(self._members)
            and all(
                len(g["params"]) == len(m) and all(a is b for a, b in zip(g["params"], m))
                for g, m in zip(groups, self._members)
            )
            and self._steps(optimizer) is not None
        )

    def holds(self, entry: _Entry, args: Sequence[Any]) -> bool:
        """True if the graph's tensors lie in our memory. Those that were moved elsewhere are taken back."""
        for i, name in entry.capture.state:
            t = args[i]
            if t.data_ptr() == self._addresses.get(name):
                continue
            held = self._held.get(name)
            if held is None or held[1].shape != t.shape or held[1].dtype != t.dtype:
                if t.numel() == 0:
                    continue
                return False
            held[1].copy_(t.detach())
            t.data = held[1]
            self._held[name] = (t, held[1])
        return True

    def trained_by(self, entry: _Entry) -> bool:
        """True if a capture trains the parameters that this state trains."""
        return set(entry.capture.program.trained) == self._in_graph

    def follow_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """Plans the update anew if settings other than rates have changed."""
        groups = [optimizer.param_groups[at] for at, _ in self._groups]
        keys = [self._rule.key(g) for g in groups]
        if keys != self._keys:
            if isinstance(self._rule, optim.NAdam):
                for group, (_, members) in zip(groups, self._groups):
                    state = optimizer.state.get(self._held[members[0]][0]) if members else None
                    if what := self._rule.contradiction(group, state):
                        raise Unsupported([Refusal(what)])
            self.step.set_groups([self._rule.json(g) for g in groups])
            self._keys = keys

    def _steps(self, optimizer: torch.optim.Optimizer) -> Optional[list[int]]:
        """Steps that each group has made, or `None` if parameters of one have made different numbers."""
        if self._counts is None:
            counts = [self._rule.done(s) for s in self._states]
        else:
            counts = [int(c) for c in self._counts.tolist()]
        steps, at = [], 0
        for _, members in self._groups:
            own = set(counts[at : at + len(members)])
            at += len(members)
            if len(own) > 1:
                return None
            steps.append(own.pop() if own else 0)
        return steps

    def rates(self, optimizer: torch.optim.Optimizer) -> list[tuple[float, int]]:
        """Rate and number of the step of each group."""
        steps = self._steps(optimizer)
        assert steps is not None
        rates = [float(optimizer.param_groups[at]["lr"]) for at, _ in self._groups]
        return [(rate, done + 1) for rate, done in zip(rates, steps)]

    def count(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes a step that was made."""
        if self._products is not None and isinstance(self._rule, optim.NAdam):
            steps, at = self._steps(optimizer) or [], 0
            for (group, members), done in zip(self._groups, steps):
                factor = self._rule.factor(optimizer.param_groups[group], done + 1)
                self._products[at : at + len(members)] *= factor
                at += len(members)
        if self._counts is not None:
            self._counts.add_(1)
            return
        begun = [bool(moments) and not self._rule.done(s) for s, moments in zip(self._states, self._moments)]
        if any(begun):
            for p, moments in zip(self.parameters, self._moments):
                optimizer.state[p].update(moments)
            self._remember(optimizer)

    def give_back(self) -> None:
        """Gives torch's tensors memory of their own."""
        for t, view in self._held.values():
            if t.data_ptr() == view.data_ptr():
                t.data = view.clone()
        for state, moments in zip(self._states, self._moments):
            for key, view in moments.items():
                if state is not None and state.get(key) is view:
                    state[key] = view.clone()


def _addresses(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    return {name: (t.data_ptr(), t.numel() * t.element_size()) for name, t in tensors.items()}


def _loss(result: Any) -> Any:
    """The loss among what a model returns."""
    if isinstance(result, torch.Tensor):
        return result
    if getattr(result, "loss", None) is not None:
        return result.loss
    if isinstance(result, Mapping):
        return result["loss"]
    return result[0]


def _shared(examples: Sequence[Any], names: dict[int, str], trained: set[str]) -> list[Refusal]:
    """Trained parameters that are different objects on one memory: torch would step it twice."""
    found, seen = [], {}
    for e in examples:
        name = names.get(id(e))
        if name is None or e.numel() == 0:
            continue
        other = seen.setdefault(e.untyped_storage().data_ptr(), name)
        if other != name and (name in trained or other in trained):
            found.append(Refusal(f"{other} and {name} are two tensors on the same memory; tie them by using one parameter"))
    return found


def _dynamo_refusal(e: Exception) -> Refusal:
    """What dynamo refused, in its own words, with the line of the model."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    frames = [line for line in lines if line.startswith("File ")]
    place = ""
    if frames:
        file, line = frames[-1].split(", ")[:2]
        place = f"{file[6:-1]}:{line.removeprefix('line ')}"
    return Refusal(f"TorchDynamo: {lines[0] if lines else type(e).__name__}", "", place)


@contextlib.contextmanager
def _capturing() -> Iterator[None]:
    """Dynamo's settings while it may capture: hooks of modules are guarded, and lines for a log do not end a graph."""
    once = {f for name in ("warning_once", "info_once") if (f := getattr(logging.Logger, name, None))}
    ignored = torch._dynamo.config.ignore_logging_functions | once
    with torch._dynamo.config.patch(
        skip_nnmodule_hook_guards=False,
        ignore_logging_functions=ignored,
        fail_on_recompile_limit_hit=True,
    ):
        yield
