"""Formulas of operators that PyTorch's exporter does not know: `headwater.ops`, and what is mapped to them."""

from typing import Any, Callable, Optional

import torch

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
    """Runs a graph of dynamo, with the formulas in place of operators."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        formula = reference(target)
        if formula is None:
            return super().call_function(target, args, kwargs)
        # Arguments that the call leaves out have the schema's defaults.
        schema = (target.default if isinstance(target, torch._ops.OpOverloadPacket) else target)._schema
        given = [*args]
        for argument in schema.arguments[len(args) :]:
            given.append(kwargs.get(argument.name, argument.default_value))
        return formula(*given)
