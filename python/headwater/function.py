"""A graph of TorchDynamo as a function of tensors, captured for the sizes of one call.

All tensors that the graph takes are inputs, parameters and buffers among them. The plan computes fresh tensors; what eager mode
makes as views of inputs, or as tensors that share memory, is made from these by `Recipe`s."""

import copy
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

import torch
from torch.export.graph_signature import InputKind
from torch.fx import traceback as fx_traceback

from headwater import _headwater
from headwater.capture import DTYPES, Described, first_line, lost, operand, to_json
from headwater.errors import Refusal, Unsupported
from headwater.precision import Policy
from headwater.references import Interpreter


@dataclass
class Constant:
    """A result that is no tensor."""

    value: Any


@dataclass
class Given:
    """A result that is an argument."""

    at: int


@dataclass
class Made:
    """A result that the plan computes."""

    index: int


@dataclass
class View:
    """A result that shares memory: with an argument, or with another result of the plan."""

    of: Union[Given, Made]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    #: First element, counted from that of the viewed tensor.
    offset: int
    #: False for a view that is detached.
    differentiable: bool


Recipe = Union[Constant, Given, Made, View]


@dataclass
class Function:
    """A captured graph."""

    program: _headwater.Program
    #: Name in the program of each argument that is a tensor, by its position.
    names: dict[int, str]
    #: Tensors that the graph itself holds, by name.
    constants: dict[str, torch.Tensor]
    recipes: list[Recipe]
    #: For each computed tensor, true if gradients flow through it.
    differentiable: list[bool]
    #: Positions of arguments that get gradients.
    wanted: list[int]
    #: Positions of arguments that the graph writes.
    written: list[int]


def capture(
    graph: torch.fx.GraphModule, args: Sequence[Any], names: Sequence[str], policy: Optional[Policy] = None
) -> Function:
    """Captures a graph for these arguments. `names`: of the arguments, for what is refused; `policy`: of mixed precision.

    Raises `Unsupported`, with all reasons that were found."""
    if found := lost(graph, policy is not None) + _operands(args, names):
        raise Unsupported(found)
    grad = torch.is_grad_enabled()
    traced = _Traced(graph, args, names, grad, policy)
    tensors = tuple(a for a in args if isinstance(a, torch.Tensor))
    with torch.autocast("cpu", enabled=False), torch.set_grad_enabled(True):
        try:
            exported = torch.export.export(traced, tensors, strict=False)
        except Unsupported:
            raise
        except Exception as e:
            raise Unsupported([Refusal(f"torch.export: {first_line(e)}")]) from e
    if traced.found.refusals:
        raise Unsupported(traced.found.refusals)
    constants, own = {}, []
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            own.append(spec.arg.name)
            continue
        tensor = exported.constants.get(spec.target, exported.state_dict.get(spec.target))
        if isinstance(tensor, torch.Tensor):
            constants[spec.target] = aligned(tensor)
    described = [Described.of(name, t) for name, t in constants.items()]
    program = _headwater.Program(to_json(exported, {}), described, set(), function=True)
    by_position = dict(zip((i for i, a in enumerate(args) if isinstance(a, torch.Tensor)), own))
    positions = {name: i for i, name in by_position.items()}
    wanted = [i for i, a in enumerate(args) if grad and isinstance(a, torch.Tensor) and a.requires_grad]
    written = [positions[name] for name in program.written if name in positions]
    if found := shared(args, written, names):
        raise Unsupported(found)
    return Function(program, by_position, constants, traced.found.recipes, traced.found.differentiable, wanted, written)


class _Found:
    """What tracing finds out about a graph. Export puts a module's own attributes back to what they were."""

    def __init__(self) -> None:
        self.recipes: list[Recipe] = []
        self.differentiable: list[bool] = []
        self.refusals: list[Refusal] = []


class _Traced(torch.nn.Module):
    """A graph of dynamo whose results are fresh tensors. It finds out how eager mode's results are made of them."""

    def __init__(
        self, graph: torch.fx.GraphModule, args: Sequence[Any], names: Sequence[str], grad: bool, policy: Optional[Policy]
    ) -> None:
        super().__init__()
        self.policy = policy
        # Dynamo's own graph must stay as it is.
        self.graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
        self.fixed = [None if isinstance(a, torch.Tensor) else a for a in args]
        self.names, self.grad = names, grad
        self.found = _Found()

    def forward(self, *tensors: torch.Tensor) -> Any:
        fed = iter(tensors)
        args = [next(fed) if value is None else value for value in self.fixed]
        before = [(t.requires_grad, t._version) for t in tensors]
        # Node by node, so that each operator keeps the module and the line of the model that it comes from.
        with fx_traceback.preserve_node_meta():
            run = Interpreter(self.graph).run
            outputs = run(*args) if self.policy is None else self.policy.run(run, args)
        self.found.__init__()  # type: ignore[misc]
        for (required, version), t in zip(before, tensors):
            if self.grad and t._version != version and (t.requires_grad or required):
                name = next(n for n, a in zip(self.names, args) if a is t)
                self.found.refusals.append(Refusal(f"{name} is written, and requires a gradient"))
        return tuple(self._made(outputs, args))

    def _made(self, outputs: Sequence[Any], args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that the plan computes; notes the recipes."""
        positions: dict[int, int] = {}
        for i, a in enumerate(args):
            if isinstance(a, torch.Tensor):
                positions.setdefault(_storage(a), i)
        groups: dict[int, list[torch.Tensor]] = {}
        for o in outputs:
            if isinstance(o, torch.Tensor) and all(o is not other for other in groups.setdefault(_storage(o), [])):
                groups[_storage(o)].append(o)
        made: list[torch.Tensor] = []

        def compute(t: torch.Tensor) -> Made:
            for i, other in enumerate(made):
                if other is t:
                    return Made(i)
            made.append(t)
            self.found.differentiable.append(self._requires(t))
            return Made(len(made) - 1)

        for o in outputs:
            if not isinstance(o, torch.Tensor):
                self.found.recipes.append(Constant(int(o) if isinstance(o, torch.SymInt) else o))
                continue
            if o.dtype not in DTYPES:
                self.found.refusals.append(Refusal(f"a result is of {o.dtype}"))
                continue
            same = next((i for i, a in enumerate(args) if a is o), None)
            at, group = positions.get(_storage(o)), groups[_storage(o)]
            if same is not None:
                self.found.recipes.append(Given(same))
            elif at is not None:
                self._view(o, args[at], Given(at))
            elif len(group) > 1:
                base = next((g if g._base is None else g._base for g in group if g._base is not None), group[0])
                if base.is_contiguous() and base.storage_offset() == 0:
                    self._view(o, base, compute(base))
                else:
                    self.found.refusals.append(Refusal("results that share memory, which is not contiguous"))
            elif o.is_contiguous():
                self.found.recipes.append(compute(o))
            else:
                # In the order in which eager mode has the elements, if there are no gaps.
                order = sorted(range(o.dim()), key=lambda d: -o.stride(d))
                dense = o.permute(order)
                if dense.is_contiguous():
                    self._view(o, dense, compute(dense), 0)
                else:
                    self.found.recipes.append(compute(o))
        return made

    def _view(self, o: torch.Tensor, base: torch.Tensor, of: Union[Given, Made], offset: Optional[int] = None) -> None:
        if o.dtype != base.dtype:
            self.found.refusals.append(Refusal(f"a result of {o.dtype} is a view of memory of {base.dtype}"))
            return
        first = int(o.storage_offset() - base.storage_offset()) if offset is None else offset
        sizes, strides = tuple(map(int, o.shape)), tuple(map(int, o.stride()))
        whole = sizes == tuple(base.shape) and strides == tuple(base.stride()) and first == 0
        if whole and isinstance(of, Made) and self._requires(o) == self._requires(base) and o._base is None:
            self.found.recipes.append(of)
            return
        # Without gradients views keep what their base requires, as in eager mode.
        requires = o.requires_grad if isinstance(of, Given) else self._requires(o)
        self.found.recipes.append(View(of, sizes, strides, first, requires))

    def _requires(self, t: torch.Tensor) -> bool:
        return self.grad and t.requires_grad


def aligned(t: torch.Tensor) -> torch.Tensor:
    """A tensor that plans can read where it is: contiguous, 64-byte aligned; a copy if it is not."""
    if t.is_contiguous() and not t.data_ptr() & 63:
        return t
    return torch.empty(t.shape, dtype=t.dtype).copy_(t.detach())


def _storage(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _operands(args: Sequence[Any], names: Sequence[str]) -> list[Refusal]:
    """Arguments that a plan cannot take."""
    found = []
    for name, a in zip(names, args):
        if isinstance(a, (int, bool)) and not isinstance(a, torch.SymInt):
            continue
        if refusal := operand(a, name):
            found.append(refusal)
    return found


def shared(args: Sequence[Any], written: Sequence[int], names: Sequence[str]) -> list[Refusal]:
    """Arguments that are written and share memory with others, which would not see it."""
    holders: dict[int, list[int]] = {}
    for i, a in enumerate(args):
        if isinstance(a, torch.Tensor) and (own := _memory(a)):
            holders.setdefault(own, []).append(i)
    found = []
    for i in written:
        other = next((j for j in holders.get(_memory(args[i]), ()) if j != i), None)
        if other is not None:
            found.append(Refusal(f"{names[i]} is written, and shares memory with {names[other]}"))
    return found


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()
