"""The first run of a graph beside eager mode: results and gradients within bounds that are derived from the graph."""

import dataclasses
from typing import Any, Sequence

import torch

from headwater import _headwater
from headwater.eager import WithoutDropout
from headwater.errors import Mismatch, Refusal, Unsupported
from headwater.function import Function, Made, aligned


def compare(function: Function, graph: torch.fx.GraphModule, args: Sequence[Any], names: Sequence[str], half_of: Any) -> None:
    """Runs a graph here and in eager mode, without dropout in both, and compares. Nothing is written but copies.

    `half_of(function, cotangents)` makes a plan. Raises `Mismatch`, and `Unsupported` for what cannot be compared."""
    still = dataclasses.replace(function, program=function.program.still())
    if still.program.random:
        raise Unsupported([Refusal("check: random numbers other than dropout, of which eager mode draws others")])
    floats = [a for a in args if isinstance(a, torch.Tensor) and a.dtype.is_floating_point]
    if any(a.dtype is not torch.float32 for a in floats):
        raise Unsupported([Refusal("check: only graphs of float32 are compared with eager mode")])

    def copied() -> list[Any]:
        # Fresh tensors with the arguments' strides; those that get gradients are leaves.
        own = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
        for i in function.wanted:
            own[i].requires_grad_()
        return own

    theirs = copied()
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(bool(function.wanted)), WithoutDropout():
        outputs = graph(*theirs)
    # Results that the plan computes as they are: others are views of these.
    seen = {r.index: o for r, o in zip(function.recipes, outputs) if isinstance(r, Made) and o.dtype is torch.float32}
    cotangents = tuple(d and i in seen and seen[i].requires_grad for i, d in enumerate(function.differentiable))
    half = half_of(still, cotangents)
    ours = copied()
    with torch.no_grad():
        results, new, activations = half.compute(lambda i: ours[i], None)
    got = {f"output.{i}": results[i] for i in seen}
    want = {f"output.{i}": o for i, o in seen.items()}
    tensors = dict(function.constants)
    if half.backward:
        generator = torch.Generator().manual_seed(0)
        given = [torch.randn(r.shape, generator=generator) for r in results]
        found = torch.autograd.grad(
            [seen[i] for i in half.cotangents],
            [theirs[i] for i in function.wanted],
            [given[i] for i in half.cotangents],
            allow_unused=True,
        )
        want |= {f"grad.{function.names[i]}": g for i, g in zip(function.wanted, found) if g is not None}
        with torch.no_grad():
            gradients = half.gradients(activations, lambda i: ours[i], None, [*results, *new], given, len(args))
        got |= {f"grad.{function.names[i]}": g for i, g in enumerate(gradients) if g is not None}
        tensors |= {f"cotangent.output.{i}": given[i] for i in half.cotangents}
    inputs = [aligned(ours[i].detach()) for i in function.names]
    lost = [name for name in want if name not in got]
    held: list[torch.Tensor] = []
    differences, _ = _headwater.compare(
        still.program,
        [f"output.{i}" for i in half.cotangents] if half.backward else [],
        [function.names[i] for i in function.wanted] if half.backward else [],
        [t.data_ptr() for t in inputs],
        _addresses(tensors, held),
        _addresses(got, held),
        _addresses(want, held),
    )
    own = {f"grad.{inner}": f"the gradient of {names[at]}" for at, inner in function.names.items()}
    found = [(own.get(name, name), error, bound) for name, error, bound in differences]
    found += [(f"{own.get(name, name)} is not there", float("inf"), 0.0) for name in lost]
    if found:
        raise Mismatch(found)


def _addresses(tensors: dict[str, torch.Tensor], held: list[torch.Tensor]) -> dict[str, tuple[int, int]]:
    own = {name: t.detach().contiguous() for name, t in tensors.items()}
    held.extend(own.values())
    return {name: (t.data_ptr(), t.numel() * t.element_size()) for name, t in own.items()}
