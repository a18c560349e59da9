"""The tensors that a step trains, in memory that torch and the plans share."""

from collections.abc import Mapping
from typing import Any, Callable, Optional, Sequence

import torch

from headwater import _headwater, optim
from headwater.capture import Capture
from headwater.errors import Refusal, Unsupported
from headwater.memory import Segments, mapping, tensor
from headwater.mirror import Mirror


class State:
    """Parameters, buffers and moments in memory that torch and the plans share.

    torch's own tensors are the truth: a state is made from them, and made anew when they tell something else
    than it can follow, such as a loaded optimizer or parameters that were unfrozen. On another device than the CPU the state is on
    the device, and torch's tensors are copies of it (`Mirror`)."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: optim.Rule,
        parameters: dict[str, torch.nn.Parameter],
        made: Capture,
        args: Sequence[Any],
        **settings: Any,
    ) -> None:
        """`parameters`: the optimizer's, by name; `args`: those of the captured graph; `settings`: of the
        compiled step."""
        self._rule = rule
        tensors: dict[str, torch.Tensor] = {name: args[i] for i, name in made.state}
        in_graph = set(made.program.trained)
        if not in_graph:
            raise Unsupported([Refusal("no parameter of the optimizer gets a gradient in this graph")])
        #: Each group of ours: position of torch's group, and names of its parameters, all at the same step.
        self._groups = groups(optimizer, rule, parameters, in_graph)
        self._keys = [rule.key(optimizer.param_groups[at]) for at, _ in self._groups]
        # Held until their contents are copied.
        contents = {name: t.detach().contiguous() for name, t in tensors.items()}
        contents |= {name: t.contiguous() for name, t in made.constants.items()}
        segments = Segments()
        self.step = _headwater.Step(
            made.program,
            addresses(contents),
            settings_of(optimizer, rule, self._groups),
            memory=segments.lend,
            **settings,
        )
        #: True if gradients are of the loss times a scale.
        self.scaled = bool(settings["scaled"])
        self._mirror = None if settings["device"] == "cpu" else Mirror(self.step)
        trained = set(self.step.trained)
        self._groups = [(at, [n for n in members if n in trained]) for at, members in self._groups]
        #: Parameters that get a gradient, as the graph says.
        self._in_graph = in_graph

        def place(role: str, name: str, like: torch.Tensor) -> torch.Tensor:
            if self._mirror is not None:
                own = torch.zeros(like.shape, dtype=like.dtype)
                self._mirror.add(role, name, own, False)
                return own
            segment, byte = self.step.places[(role, name)]
            return segments.tensor(self.step.segments[segment], like.dtype, like.shape, byte)

        #: Tensors of torch's in our memory, by name, with their views of it.
        self._held: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, t in tensors.items():
            role = "parameter" if isinstance(t, torch.nn.Parameter) else "buffer"
            if (role, name) not in self.step.places:
                continue
            if self._mirror is not None:
                self._mirror.add(role, name, t, True)
                self._held[name] = (t, t)
                continue
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
        """Moves the optimizer's moments to our memory, and gives its counts of steps adjacent places."""
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
            # SGD's buffers exist from the first step on.
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

    def holds(self, made: Capture, args: Sequence[Any]) -> bool:
        """True if the graph's tensors are in our memory. Those that were moved elsewhere are taken back."""
        for i, name in made.state:
            t = args[i]
            held = self._held.get(name)
            if held is not None and self._mirror is not None:
                if held[0] is not t and (held[1].shape != t.shape or held[1].dtype != t.dtype):
                    return False
                if held[0] is not t:
                    self._mirror.add("parameter" if isinstance(t, torch.nn.Parameter) else "buffer", name, t, False)
                    self._held[name] = (t, t)
                continue
            if t.data_ptr() == self._addresses.get(name):
                continue
            if held is None or held[1].shape != t.shape or held[1].dtype != t.dtype:
                if t.numel() == 0:
                    continue
                return False
            held[1].copy_(t.detach())
            t.data = held[1]
            self._held[name] = (t, held[1])
        return True

    def push(self) -> None:
        """Gives another device what was written to torch's tensors."""
        if self._mirror is not None:
            self._mirror.push()

    def pull(self) -> None:
        """Brings torch's tensors up to what another device has."""
        if self._mirror is not None:
            self._mirror.pull()

    def restore(self, names: set[str]) -> None:
        """Takes back what a run wrote to these buffers: torch's tensors have their contents from before."""
        if self._mirror is not None:
            self._mirror.restore(names)

    def wrote(self, tensors: Sequence[torch.Tensor]) -> None:
        """Notes that a plan wrote these."""
        if self._mirror is None:
            torch.autograd.graph.increment_version(tensors)
        else:
            self._mirror.stepped()

    def trained_by(self, made: Capture) -> bool:
        """True if a capture trains the parameters that this state trains."""
        return set(made.program.trained) == self._in_graph

    def follow_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """Hands over settings other than rates that have changed. Some are constants of the update, which is then planned
        anew."""
        own = [optimizer.param_groups[at] for at, _ in self._groups]
        keys = [self._rule.key(g) for g in own]
        if keys != self._keys:
            if isinstance(self._rule, optim.NAdam):
                for group, (_, members) in zip(own, self._groups):
                    state = optimizer.state.get(self._held[members[0]][0]) if members else None
                    if what := self._rule.contradiction(group, state):
                        raise Unsupported([Refusal(what)])
            self.step.set_groups([self._rule.json(g) for g in own])
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
        if self._mirror is not None:
            self._mirror.pull()
            return
        for t, view in self._held.values():
            if t.data_ptr() == view.data_ptr():
                t.data = view.clone()
        for state, moments in zip(self._states, self._moments):
            for key, view in moments.items():
                if state is not None and state.get(key) is view:
                    state[key] = view.clone()


def groups(
    optimizer: torch.optim.Optimizer, rule: optim.Rule, parameters: dict[str, torch.nn.Parameter], in_graph: set[str]
) -> list[tuple[int, list[str]]]:
    """The optimizer's groups as a step has them: position of torch's group, and names of parameters, all at the same step."""
    numbers: dict[tuple[int, int], list[str]] = {}
    names = {id(p): name for name, p in parameters.items()}
    for at, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            name = names.get(id(p))
            if name in in_graph:
                numbers.setdefault((at, rule.done(optimizer.state.get(p))), []).append(name)
    return [(at, members) for (at, _), members in numbers.items()]


def settings_of(
    optimizer: torch.optim.Optimizer, rule: optim.Rule, own: Sequence[tuple[int, list[str]]]
) -> list[tuple[str, list[str]]]:
    """Settings of such groups, with their parameters."""
    return [(rule.json(optimizer.param_groups[at]), members) for at, members in own]


def addresses(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    return {name: (t.data_ptr(), t.numel() * t.element_size()) for name, t in tensors.items()}
