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
    if any(group.get("differentiable") for group in optimizer.param_groups):
        found.append(Refusal("the optimizer's setting differentiable=True"))
    return found


def before_step(optimizer: torch.optim.Optimizer) -> None:
    """Calls the hooks that torch calls before a step. Gradients are not in `.grad`."""
    for hook in (*_global_optimizer_pre_hooks.values(), *optimizer._optimizer_step_pre_hooks.values()):
        hook(optimizer, (), {})


def after_step(optimizer: torch.optim.Optimizer) -> None:
    """Calls the hooks that torch calls after a step."""
    for hook in (*optimizer._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values()):
        hook(optimizer, (), {})


class Rule:
    """An optimizer of torch's by its settings and its state."""

    #: Keys of a group that go into the settings, without the rate.
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


class ByName(Rule):
    """An optimizer whose settings have the same names here and there."""

    def __init__(self, name: str, settings: tuple[str, ...], moments: tuple[str, ...]) -> None:
        self.name, self.settings, self._moments = name, settings, moments

    def json(self, group: dict[str, Any]) -> str:
        return json.dumps({"name": self.name, **{name: _plain(group[name]) for name in self.settings}})

    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self._moments

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return ()

    def done(self, state: Optional[dict[str, Any]]) -> int:
        return int(state["step"]) if state and "step" in state else 0


class Adam(ByName):
    def __init__(self) -> None:
        super().__init__(
            "adam",
            ("betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay"),
            ("exp_avg", "exp_avg_sq"),
        )

    def json(self, group: dict[str, Any]) -> str:
        values = {name: _plain(group[name]) for name in self.settings[:-1]}
        return json.dumps({"name": "adamw" if group["decoupled_weight_decay"] else "adam", **values})

    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self._moments + (("max_exp_avg_sq",) if group["amsgrad"] else ())

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return group["amsgrad"], group["decoupled_weight_decay"]


class NAdam(ByName):
    """torch keeps the product of the momenta so far. Here it follows from the number of the step and the settings."""

    def factor(self, group: dict[str, Any], step: int) -> float:
        beta = float(_plain(group["betas"])[0])
        return beta * (1.0 - 0.5 * 0.96 ** (step * float(_plain(group["momentum_decay"]))))

    def contradiction(self, group: dict[str, Any], state: Optional[dict[str, Any]]) -> Optional[str]:
        """Why a parameter's state is not what these settings make of so many steps."""
        if not state or "mu_product" not in state:
            return None
        product = 1.0
        for step in range(1, self.done(state) + 1):
            product *= self.factor(group, step)
            if product < 1e-30:
                break
        if abs(product - float(state["mu_product"])) <= 1e-4 * product + 1e-30:
            return None
        return "betas or momentum_decay of NAdam that have changed since the first step"


class RMSprop(ByName):
    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return self._moments + momentum + (("grad_avg",) if group["centered"] else ())

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return group["momentum"] > 0, group["centered"]


class SGD(Rule):
    settings = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")

    def json(self, group: dict[str, Any]) -> str:
        return json.dumps({"name": "sgd", **{name: _plain(group[name]) for name in self.settings}})

    def moments(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def form(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (group["momentum"] != 0,)

    def done(self, state: Optional[dict[str, Any]]) -> int:
        # torch tells the first step by the missing buffer.
        return int(bool(state) and state.get("momentum_buffer") is not None)


_DECAY = ("eps", "weight_decay", "maximize")

RULES: dict[type, Rule] = {
    torch.optim.SGD: SGD(),
    torch.optim.Adam: Adam(),
    torch.optim.AdamW: Adam(),
    torch.optim.Adamax: ByName("adamax", ("betas", *_DECAY), ("exp_avg", "exp_inf")),
    torch.optim.NAdam: NAdam(
        "nadam", ("betas", "momentum_decay", "decoupled_weight_decay", *_DECAY), ("exp_avg", "exp_avg_sq")
    ),
    torch.optim.RAdam: ByName("radam", ("betas", "decoupled_weight_decay", *_DECAY), ("exp_avg", "exp_avg_sq")),
    torch.optim.RMSprop: RMSprop("rmsprop", ("alpha", "momentum", "centered", *_DECAY), ("square_avg",)),
    torch.optim.Adagrad: ByName("adagrad", ("lr_decay", "initial_accumulator_value", *_DECAY), ("sum",)),
    torch.optim.Adadelta: ByName("adadelta", ("rho", *_DECAY), ("square_avg", "acc_delta")),
}


def rule(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule of an optimizer.

    Raises `Unsupported`, with all reasons."""
    if found := refusals(optimizer):
        raise Unsupported(found)
    return RULES[type(optimizer)]
