"""torch's optimizers as settings of Headwater's, and their state."""

import json
from typing import Any, Optional

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from headwater.errors import Refusal, Unsupported

#: Settings that change how torch computes, and no number.
INDIFFERENT = ("foreach", "fused", "capturable")


def refusals(optimizer: torch.optim.Optimizer) -> list[Refusal]:
    """What of an optimizer is not supported. Cheap: it is asked before each update."""
    kind = type(optimizer)
    if kind not in RULES:
        known = ", ".join(k.__name__ for k in RULES)
        return [Refusal(f"the optimizer {kind.__module__}.{kind.__qualname__}; there are {known}, and no subclasses of them")]
    found = []
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    if any(hooks):
        found.append(Refusal("a hook on the optimizer's step"))
    if any(group.get("differentiable") for group in optimizer.param_groups):
        found.append(Refusal("the optimizer's setting differentiable=True"))
    return found


class Rule:
    """An optimizer of torch's by its settings and its state."""

    #: Keys of a group that go into the settings, the rate apart.
    settings: tuple[str, ...]

    def key(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """The settings, to see whether they have changed."""
        return tuple(group[name] for name in self.settings)

    def json(self, group: dict[str, Any]) -> str:
        """The settings as Headwater takes them."""
        raise NotImplementedError

    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Keys of a parameter's state that are tensors of its size."""
        raise NotImplementedError

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Settings that decide which moments there are, and how they enter the step."""
        raise NotImplementedError

    def done(self, state: Optional[dict[str, Any]]) -> int:
        """Steps that a parameter has made."""
        raise NotImplementedError


def _plain(value: Any) -> Any:
    """A setting as a number of Python's: torch takes tensors for some."""
    if isinstance(value, torch.Tensor):
        return value.item()
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


class Adam(Rule):
    settings = ("betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")

    def json(self, group: dict[str, Any]) -> str:
        values = {name: _plain(group[name]) for name in self.settings[:-1]}
        return json.dumps({"name": "adamw" if group["decoupled_weight_decay"] else "adam", **values})

    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return group["amsgrad"], group["decoupled_weight_decay"]

    def done(self, state: Optional[dict[str, Any]]) -> int:
        return int(state["step"]) if state and "step" in state else 0


class SGD(Rule):
    settings = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")

    def json(self, group: dict[str, Any]) -> str:
        return json.dumps({"name": "sgd", **{name: _plain(group[name]) for name in self.settings}})

    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (group["momentum"] != 0,)

    def done(self, state: Optional[dict[str, Any]]) -> int:
        # torch tells the first step by the buffer that is not there yet.
        return int(bool(state) and state.get("momentum_buffer") is not None)


RULES: dict[type, Rule] = {torch.optim.SGD: SGD(), torch.optim.Adam: Adam(), torch.optim.AdamW: Adam()}


def rule(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule of an optimizer.

    Raises `Unsupported`, with all that stands in the way."""
    if found := refusals(optimizer):
        raise Unsupported(found)
    return RULES[type(optimizer)]
