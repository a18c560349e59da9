"""Formulas of operators that PyTorch's exporter does not know: `headwater.ops`, and what is mapped to them."""

from typing import Any, Callable, Optional

import torch

from headwater import derivatives

#: Formulas in PyTorch's functions by the names of operators, such as "headwater::rms_norm".
REFERENCES: dict[str, Callable[..., Any]] = {}


def reference(target: Any) -> Optional[Callable[..., Any]]:
    """The formula of an operator; `None` for others."""
    if isinstance(target, torch._ops.OpOverload):
        return REFERENCES.get(target._schema.name)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return REFERENCES.get(target._qualified_op_name)
    return None


class Interpreter(torch.fx.Interpreter):
    """Runs a graph of dynamo, with the formulas in place of operators, and functions with a derivative of their own as
    `derivatives` writes them."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.HigherOrderOperator):
            if target.name() in derivatives.HIGHER_ORDER:
                return derivatives.call(target.name(), args, kwargs, lambda body, *own: _Body(body).run(*own))
            if target.name() == derivatives.CHECKPOINT:
                return type(self)(args[0]).run(*args[1:])
        formula = reference(target)
        if formula is None:
            return super().call_function(target, args, kwargs)
        # Arguments that the call leaves out have the schema's defaults.
        schema = (target.default if isinstance(target, torch._ops.OpOverloadPacket) else target)._schema
        given = [*args]
        for argument in schema.arguments[len(args) :]:
            given.append(kwargs.get(argument.name, argument.default_value))
        return formula(*given)


class _Body(Interpreter):
    """A body of such a function. Gradients do not flow through it, so whether they are on is of no account."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return None if target is torch._C._set_grad_enabled else super().call_function(target, args, kwargs)
