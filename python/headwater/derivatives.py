"""Functions with a derivative of their own: `torch.autograd.Function` and hooks on tensors, as TorchDynamo has them in graphs.

Both bodies of a function become ordinary nodes of the graph that is exported. The backward body is written down for stand-ins of
the cotangents, and an operator names which gradient belongs to which operand: see `custom_vjp` in crates/core."""

from typing import Any, Callable, Sequence

import torch

_LIBRARY = torch.library.Library("headwater", "FRAGMENT")
_LIBRARY.define("custom_vjp(Tensor[] values, int outputs) -> Tensor[]")
_LIBRARY.define("cotangent_of(Tensor self) -> Tensor")


@torch.library.register_fake("headwater::custom_vjp", lib=_LIBRARY)
def _custom_vjp(values: Sequence[torch.Tensor], outputs: int) -> list[torch.Tensor]:
    return [torch.empty(v.shape, dtype=v.dtype) for v in values[:outputs]]


@torch.library.register_fake("headwater::cotangent_of", lib=_LIBRARY)
def _cotangent_of(this: torch.Tensor) -> torch.Tensor:
    return torch.empty(this.shape, dtype=this.dtype)


def _none(*args: Any) -> Any:
    raise NotImplementedError("this operator is for captured graphs alone")


# What depends on operands with gradients has one; it is never computed here.
torch.library.register_autograd("headwater::custom_vjp", _none, lib=_LIBRARY)

#: Higher-order operators of dynamo's graphs that state a derivative.
HIGHER_ORDER = frozenset(["autograd_function_apply", "register_hook"])
#: Checkpoints: their bodies are part of the graph here, and what is recomputed is the compiler's choice.
CHECKPOINT = "tag_activation_checkpoint"


def bodies(graph: torch.fx.GraphModule, node: torch.fx.Node, mixed: bool) -> list[torch.fx.GraphModule]:
    """The graphs of a call that is written out here, those of functions with derivatives not in mixed precision; else none."""
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return []
    name = node.target.name()
    if name != CHECKPOINT and (mixed or name not in HIGHER_ORDER):
        return []
    own = [a for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
    found = [graph.get_submodule(str(a.target)) for a in own]
    return [body for body in found if isinstance(body, torch.fx.GraphModule)]


def call(name: str, args: Sequence[Any], kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
    """The results of such a call. `run(body, *args)` runs a body."""
    if name == "register_hook":
        tensor, hook = args
        seen = torch.ops.headwater.cotangent_of(tensor)
        gradient = run(hook, seen)
        return _derived([tensor], [seen], [tensor], [seen if gradient is None else gradient])[0]
    forward, backward, *operands = args
    results, saved = run(forward, *operands)
    results = list(results)
    fixed = kwargs.get("non_differentiable_idx") or ()
    differentiable = [
        i for i, r in enumerate(results) if isinstance(r, torch.Tensor) and r.is_floating_point() and i not in fixed
    ]
    cotangents = [torch.zeros_like(r) if isinstance(r, torch.Tensor) else None for r in results]
    for i in differentiable:
        cotangents[i] = torch.ops.headwater.cotangent_of(results[i])
    gradients = run(backward, *cotangents, *saved)
    made = _derived([results[i] for i in differentiable], [cotangents[i] for i in differentiable], operands, gradients)
    given = dict(zip(differentiable, made))
    return tuple(given.get(i, r.detach() if isinstance(r, torch.Tensor) else r) for i, r in enumerate(results))


def _derived(
    results: list[torch.Tensor], cotangents: Sequence[Any], operands: Sequence[Any], gradients: Any
) -> Sequence[torch.Tensor]:
    """The results, whose gradients are these."""
    if not results:
        return []
    gradients = gradients if isinstance(gradients, (tuple, list)) else [gradients]
    if len(gradients) != len(operands):
        raise ValueError(f"a backward pass gives {len(gradients)} gradients for {len(operands)} operands")
    pairs = [
        (x, _like(g, x))
        for x, g in zip(operands, gradients)
        if isinstance(x, torch.Tensor) and isinstance(g, torch.Tensor) and x.is_floating_point()
    ]
    values = [*results, *cotangents, *(x for x, _ in pairs), *(g for _, g in pairs)]
    made: Sequence[torch.Tensor] = torch.ops.headwater.custom_vjp(values, len(results))
    return made


def _like(gradient: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """As autograd does: a gradient in the shape and dtype of its operand."""
    if gradient.shape != operand.shape:
        gradient = gradient.sum_to_size(operand.shape)
    return gradient if gradient.dtype is operand.dtype else gradient.to(operand.dtype)
