"""`compile_step`: forward pass, backward pass, clipping and the optimizer's update as plans on memory that torch shares.

The step is itself a backend of TorchDynamo and is called through it each time. Dynamo's guards thus see sizes, modes, hooks,
frozen parameters and Python state; each new combination becomes one more program on the same state."""

import contextlib
import functools
import json
import logging
import threading
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Optional, Sequence

import torch

from headwater import _headwater, eager, optim, precision
from headwater.capture import Capture, capture
from headwater.errors import Error, Mismatch, Refusal, Unsupported
from headwater.report import ProgramReport, StepReport
from headwater.state import State, addresses, groups, settings_of
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
    amp: precision.Amp = None,
    device: str = "cpu",
    threads: Optional[int] = None,
    check: bool = True,
) -> "Step":
    """Makes a whole training step of a model and its optimizer.

    `step(*args, **kwargs)` is `loss_fn(model(*args[:-1], **kwargs), args[-1])`, its backward pass, clipping of the gradients'
    global norm to `clip_norm` or of each element to `clip_value`, and `optimizer.step()`; it returns the loss, detached.
    Without `loss_fn` the loss is what the model returns, or its `.loss`, `["loss"]` or first element. Gradients need not be
    emptied: each step has its own.

    With `accumulate=n` each n-th call updates, with the mean of n gradients. A loop that counts itself calls
    `step.backward(*batch)` any number of times, whose gradients add up as `.grad` does, and then `step.update()`.

    Parameters, buffers and moments are in memory that torch and plans share. The module, its `state_dict`, the optimizer's and
    its groups go on as they were: schedulers and code that writes rates work.

    With `check`, the first step is also computed in eager mode, without dropout in both: the loss and each gradient must agree
    within bounds that are derived from the graph, else `Mismatch` is raised and the module stays as it was. It costs one eager
    step and memory for its gradients, and 18 runs in float64 where terms of a gradient cancel.

    `amp` is "O1", "O2" or a dict with these of the settings of `[amp]` in docs/mixed-precision.md: `level`, `dtype` (default
    "bf16"), `keep_batchnorm`, `loss_scale` and `scaler`. Parameters stay float32: they are the masters, which O2 casts once
    in a run. The first step is compared in float32, before casts come in. The loss scale moves by the settings' rule, and a
    step that overflows at the lowest scale raises HW-R006.

    An update whose gradients are not finite changes no parameter, moment or count, and warns; running statistics of batch norm
    have moved in the forward pass, as in eager mode.

    `device` is one of the command line's, such as "reference", "ascend-sim:910b1", "ascend:0" or "cuda:0"; tensors of torch's stay
    on the CPU. The state of training is then on the device: call `step.sync()` before the module is used or its weights are
    written in eager mode. `state_dict` and `load_state_dict` of module and optimizer do so by themselves. What is written to
    weights later goes to the device before the next step, except by way of `.data`, of which torch keeps no count; `Error` is
    raised if it was written over contents that the device had newer.

    `threads`: of the plans, by default as many as torch has. Calls from several threads of Python are whole steps, one
    at a time.

    Raises `Unsupported`, with all reasons, for what cannot be run right; some are found at the first call."""
    return Step(model, optimizer, loss_fn, clip_norm, clip_value, accumulate, amp, device, threads, check)


class Step:
    """A training step; see `compile_step`.

    Attributes: `norm`, the global norm of the last update's gradients before clipping; `skipped`, the updates that were left
    out because a gradient was not finite; `programs`, how many were compiled: one for each combination of sizes, modes and
    Python state."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Optional[Callable[..., Any]],
        clip_norm: Optional[float],
        clip_value: Optional[float],
        accumulate: int,
        amp: precision.Amp,
        device: str,
        threads: Optional[int],
        check: bool,
        loss_of: Optional[Callable[..., Any]] = None,
    ) -> None:
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, it is {accumulate}")
        self._model, self._optimizer, self._rule = model, optimizer, optim.rule(optimizer)
        self._modules = [model] + ([loss_fn] if isinstance(loss_fn, torch.nn.Module) else [])
        self._clip_norm, self._clip_value, self._accumulate = clip_norm, clip_value, accumulate
        #: True if `backward` and `update` are called instead of the step itself.
        self._by_hand = False
        self._threads = threads or torch.get_num_threads()
        _headwater.open_device(device, self._threads)
        self._device = device
        self._amp = precision.settings(amp, precision.CASTS | precision.SCALE)
        self._precision = "f32" if self._amp is None else f"{self._amp['level']} in {self._amp['dtype']}"
        self._scaler = None if self._amp is None else _headwater.Scaler(json.dumps(self._amp))
        self._check = check
        #: Values of the first step that were compared, but not proved: name, relative error, bound.
        self._unproved: Optional[list[tuple[str, float, float]]] = None
        self._reports: list[ProgramReport] = []
        #: Loss and gradients of the first batch in eager mode, until they are compared.
        self._expected: Optional[tuple[float, dict[str, Optional[torch.Tensor]]]] = None
        self._state: Optional[State] = None
        self._closed = False
        #: Where the bytes of a plan go, while a batch is planned and not run.
        self._planned: Optional[dict[str, int]] = None
        self._micro = 0
        #: Held by a call from its gradients to its update, so that calls of several threads are whole steps, one at a time.
        self._lock = threading.RLock()
        self.norm: Optional[float] = None
        self.skipped = 0
        self.programs = 0

        def own(*args: Any, **kwargs: Any) -> Any:
            if loss_fn is None:
                return _loss(model(*args, **kwargs))
            return _loss(loss_fn(model(*args[:-1], **kwargs), args[-1]))

        #: Hooks by which states that are saved and loaded are the device's.
        self._hooks: list[Any] = []
        if device != "cpu":
            for module in self._modules:
                self._hooks.append(module.register_state_dict_pre_hook(lambda *args, **kwargs: self.sync()))
                self._hooks.append(module.register_load_state_dict_pre_hook(lambda *args, **kwargs: self.sync()))
            self._hooks.append(optimizer.register_state_dict_pre_hook(lambda optimizer: self.sync()))

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
        with self._lock:
            return self._call(False, args, kwargs)

    def backward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs forward and backward on a batch, and returns its loss. Gradients add up until `update`."""
        with self._lock:
            return self._call(True, args, kwargs)

    def update(self) -> bool:
        """Updates with the sum of the gradients since the last update; false if they were not finite, and nothing was
        changed."""
        with self._lock:
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
            self.sync()
            self._by_hand, self._state = by_hand, None
        if self._closed:
            raise Error("this step is closed: make another with compile_step")
        if found := self._refusals():
            raise Unsupported(found)
        if self._check:
            trained = {name: p for name, p in self._parameters().items() if p.requires_grad}
            self._expected = eager.gradients(self._loss_of, self._modules, trained, args, kwargs)
        try:
            loss = self._dispatch(args, kwargs)
        finally:
            self._expected = None
        self._check = False
        return loss

    def _dispatch(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls the compiled function, which captures the batch if it is the first of its kind."""
        try:
            with _capturing(), torch.enable_grad():
                return self._compiled(*args, **kwargs)
        except torch._dynamo.exc.Unsupported as e:
            raise Unsupported([_dynamo_refusal(e)]) from e
        except torch._dynamo.exc.FailOnRecompileLimitHit as e:
            what = f"more than {PROGRAMS} combinations of sizes, modes and Python state in one step"
            raise Unsupported([Refusal(what)]) from e
        except torch._dynamo.exc.BackendCompilerFailed as e:
            # Our own refusal, as dynamo wraps it.
            raise e.inner_exception from None

    def close(self) -> None:
        """Ends the step: parameters, buffers and moments get memory of their own."""
        with self._lock:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self._closed = True
            if self._state is not None:
                self._state.give_back()
                self._state = None

    def sync(self) -> None:
        """Brings the module's tensors and the optimizer's moments up to those of another device than the CPU, as `state_dict`
        of both does by itself. Nothing is to be done on the CPU."""
        with self._lock:
            if self._state is not None:
                self._state.pull()

    def memory(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Bytes that the step holds, by kind: `parameters`, `buffers`, `gradients`, `moments`, `arena` (activations, temporary
        gradients and workspaces at their peak), `inputs_outputs`, and their `total`.

        With a batch, what a step on it alone will hold: the batch is captured and planned, as the first call would do, and
        nothing is run or changed. Without one, before the first call, parameters, buffers, gradients and moments: the rest is
        the plan's."""
        with self._lock:
            if self._closed:
                raise Error("this step is closed: make another with compile_step")
            if args or kwargs:
                return _with_total(self._plan(args, kwargs))
            if self._state is not None:
                return _with_total(dict(self._state.step.memory()))
            tensors = {id(t): t for m in self._modules for t in m.parameters()}
            buffers = {id(t): t for m in self._modules for t in m.buffers()}
            trained = [(g, p) for g in self._optimizer.param_groups for p in g["params"] if p.requires_grad and id(p) in tensors]
            return {
                "parameters": sum(t.nbytes for t in tensors.values()),
                "buffers": sum(t.nbytes for t in buffers.values()),
                "gradients": sum(p.nbytes for _, p in trained),
                "moments": sum(p.nbytes * len(self._rule.moments(g)) for g, p in trained),
            }

    def _plan(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, int]:
        """Bytes by kind of a step on a batch, which is not run."""
        if found := self._refusals():
            raise Unsupported(found)
        self.sync()
        self._planned = planned = {}
        try:
            with eager.traceless(self._modules):
                self._dispatch(args, kwargs)
        finally:
            self._planned = None
        return planned

    @property
    def scale(self) -> float:
        """What the loss of the next step is multiplied by before it is differentiated; gradients are divided by it."""
        return 1.0 if self._scaler is None else self._scaler.state[0]

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, and the steps without overflow that count towards its growth."""
        scale, counter = (1.0, 0) if self._scaler is None else self._scaler.state
        return {"scale": scale, "growth_tracker": counter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with the loss scale of a `state_dict`. Raises `Error` in the middle of an update, whose gradients have the scale
        of their own batches, and HW-R004 for a scale that is not finite or not above 0."""
        if self._scaler is None:
            return
        with self._lock:
            self._load_scale(state)

    def _load_scale(self, state: Mapping[str, Any]) -> None:
        assert self._scaler is not None
        if self._micro:
            what = f"{self._micro} batch{'es' * (self._micro != 1)} of an update, whose gradients have the scale {self.scale:g}"
            after = "step.update()" if self._by_hand else f"the last of {self._accumulate} calls of the step"
            raise Error(f"the loss scale cannot change behind {what}: load it before the first of them, or after {after}")
        self._scaler.resume(float(state["scale"]), int(state["growth_tracker"]))

    def explain(self) -> StepReport:
        """The programs that were compiled, their precision, what was checked, and what the step holds."""
        plans = 0 if self._state is None else self._state.step.update_plans()
        memory = {} if self._closed else self.memory()
        return StepReport(list(self._reports), self._precision, plans, self._unproved, memory)

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
        made = exact = capture(graph, examples, names, trained, self._amp)
        if self._amp is not None and self._check:
            exact = capture(graph, examples, names, trained)
        entry = _Entry(made, exact)
        self.programs += 1
        sizes = [f"{e.dtype}{list(e.shape)}".removeprefix("torch.") for i, e in enumerate(examples) if i in entry.capture.users]
        calls = sum(node.op.startswith("call") for node in graph.graph.nodes)
        self._reports.append(ProgramReport(sizes, calls, self._model.training, entry.capture.program.notes))

        def run(*args: Any) -> tuple[torch.Tensor]:
            return (self._run(entry, args),)

        return torch._dynamo.disable(run)

    def _run(self, entry: "_Entry", args: Sequence[Any]) -> torch.Tensor:
        if self._planned is not None:
            entry.capture.train(self._trained())
            program = entry.capture.program
            own = groups(self._optimizer, self._rule, self._parameters(), set(program.trained))
            memory = _headwater.planned_memory(program, settings_of(self._optimizer, self._rule, own), **self._settings())
            self._planned.update(memory)
            return torch.zeros(())
        state = self._enter(entry, args)
        program = entry.capture.program
        # Row-major copies of what is not; they live until the plans are done.
        batch = [args[i] if args[i].is_contiguous() else args[i].contiguous() for i in entry.capture.users]
        feeds = [t.data_ptr() for t in batch]
        if self._expected is not None:
            self._compare(entry, state, args, feeds)
        # Dropout follows torch's generator, which moves only where there is some.
        key = tuple(torch.randint(1 << 62, (2,)).tolist()) if program.random else (0, 0)
        if state.scaled:
            state.step.set_loss_scale(self.scale)
        loss = state.step.gradients(entry.number, feeds, key, self._micro == 0)
        if written := [args[i] for i, name in entry.capture.state if name in entry.written]:
            state.wrote(written)
        self._micro += 1
        if not self._by_hand and self._micro == self._accumulate:
            self._micro = 0
            self._update(state)
        return torch.tensor(loss, dtype=torch.float32)

    def _update(self, state: State) -> bool:
        optim.before_step(self._optimizer)
        state.follow_settings(self._optimizer)
        self.norm, largest, applied = state.step.update(state.rates(self._optimizer))
        scale = self.scale
        goes_on = self._scaler is None or self._scaler.next(not applied, largest)
        # Schedulers look at this, to warn those who never step.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        if applied:
            state.wrote(state.parameters)
            state.count(self._optimizer)
            optim.after_step(self._optimizer)
            return True
        self.skipped += 1
        if not goes_on:
            raise Error(f"a gradient is not finite at the lowest loss scale, {scale:g}: nothing was changed", "HW-R006")
        message = f"headwater: a gradient is not finite (update {self.skipped} left out): nothing was changed"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False

    def _enter(self, entry: "_Entry", args: Sequence[Any]) -> State:
        """The state that a capture's program belongs to: the one there is, or one made anew from torch's tensors."""
        state = self._state
        if state is not None and state.is_current(self._optimizer) and state.holds(entry.capture, args):
            state.push()
            if entry.state is state:
                return state
            entry.capture.train(self._trained())
            if state.trained_by(entry.capture):
                with contextlib.suppress(Error):
                    entry.number, entry.state = state.step.add(entry.capture.program), state
                    return state
        if self._micro:
            what = "other parameters are trained, or the optimizer's state was replaced, between two batches of one update"
            raise Unsupported([Refusal(what)])
        if state is not None:
            # torch's tensors are what the next state is made from.
            state.pull()
        entry.capture.train(self._trained())
        self._state = state = State(
            self._optimizer,
            self._rule,
            self._parameters(),
            entry.capture,
            args,
            **self._settings(),
        )
        state.push()
        entry.number, entry.state = 0, state
        return state

    def _settings(self) -> dict[str, Any]:
        """Settings of the compiled step."""
        return {
            "clip_norm": self._clip_norm,
            "clip_value": self._clip_value,
            "accumulate": self._accumulate,
            "sum": self._by_hand,
            "scaled": self._scaler is not None and self._scaler.scales,
            "device": self._device,
            "threads": self._threads,
        }

    def _compare(self, entry: "_Entry", state: State, args: Sequence[Any], feeds: list[int]) -> None:
        """Raises `Mismatch` if the batch's loss and gradients are not those of eager mode."""
        assert self._expected is not None
        loss, expected = self._expected
        exact = entry.exact
        exact.train(self._trained())
        before = {name: args[i].detach().clone() for i, name in exact.state if name in entry.written}
        tensors = {name: args[i].detach() for i, name in exact.state} | before
        tensors |= {name: t.contiguous() for name, t in exact.constants.items()}
        given = {name: g.detach().contiguous() for name, g in expected.items() if g is not None}
        # In mixed precision no plan of the state is of the program that is compared.
        number = entry.number if self._amp is None else None
        if state.scaled:
            state.step.set_loss_scale(1.0)
        found, unproved = state.step.check(number, exact.program, feeds, addresses(tensors), loss, addresses(given))
        self._unproved = unproved
        for i, name in entry.capture.state:
            if name in before:
                args[i].detach().copy_(before[name])
        state.restore(set(before))
        absent = set(given) - set(state.step.trained)
        reasons = dict(state.step.missing)
        found += [(f"{name} has no gradient: {reasons.get(name, 'not in the graph')}", float("inf"), 0.0) for name in sorted(absent)]
        if found:
            self.close()
            raise Mismatch(found)


class _Entry:
    """A capture, and the number of its program in the state that it was last run on."""

    def __init__(self, made: Capture, exact: Capture) -> None:
        self.capture = made
        #: The same without casts of mixed precision, which is what eager mode is compared with.
        self.exact = exact
        self.number = 0
        self.state: Optional[State] = None
        #: Names of tensors that the forward pass writes.
        self.written = set(made.program.written)


def _with_total(memory: dict[str, int]) -> dict[str, int]:
    return {**memory, "total": sum(memory.values())}


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


def _capturing() -> "contextlib.AbstractContextManager[None]":
    """Dynamo's settings while it may capture: hooks of modules are guarded, and lines for a log do not end a graph."""
    once = {f for name in ("warning_once", "info_once") if (f := getattr(logging.Logger, name, None))}
    return _settings(frozenset(torch._dynamo.config.ignore_logging_functions | once))


@functools.lru_cache(8)
def _settings(ignored: frozenset[Any]) -> "contextlib.AbstractContextManager[None]":
    """A patch of dynamo's settings, one for all steps: each has a `ContextVar`, which Python's context keeps for good."""
    return torch._dynamo.config.patch(
        skip_nnmodule_hook_guards=False,
        ignore_logging_functions=set(ignored),
        fail_on_recompile_limit_hit=True,
    )
