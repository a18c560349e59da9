"""Capture: from a graph of TorchDynamo to a program, or to all reasons why there is none.

TorchDynamo's graph is exported once more by `torch.export`, which turns calls of torch's functions into ATen's operators, and
written as PyTorch's own JSON, without weights. The model itself is never run for it."""

import copy
import json
from dataclasses import dataclass
from typing import Any, Optional, Sequence
from unittest import mock

import torch
from torch._export.serde import serialize
from torch.export.graph_signature import InputKind
from torch.fx import traceback as fx_traceback

from headwater import _headwater
from headwater.derivatives import bodies
from headwater.errors import Refusal, Unsupported
from headwater.precision import Policy
from headwater.references import Interpreter

DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}

#: Functions of dynamo's graphs that export would drop or take for something else, and what they are.
LOST = {
    "_enter_autocast": "an autocast region inside the model",
    "_exit_autocast": "an autocast region inside the model",
    "_enter_inference_mode": "torch.inference_mode inside the model",
    "_exit_inference_mode": "torch.inference_mode inside the model",
    "_saved_tensors_hooks_disable": "saved-tensor hooks inside the model",
}

#: Higher-order operators, by what a user calls them; others go by their own name.
HIGHER_ORDER = {
    "autograd_function_apply": "a torch.autograd.Function with a backward pass of its own, in mixed precision",
    "register_hook": "a hook on a tensor, in mixed precision",
    "wrap_with_autocast": "an autocast region inside the model",
}


@dataclass
class Described:
    """A tensor of the model, for `_headwater.Program`."""

    name: str
    dtype: str
    sizes: list[int]
    strides: list[int]
    offset: int
    storage: int
    storage_bytes: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "Described":
        storage = tensor.untyped_storage()
        return cls(
            name,
            DTYPES[tensor.dtype],
            list(tensor.shape),
            list(tensor.stride()),
            tensor.storage_offset(),
            # Empty storages have no address: none of them is shared.
            storage.data_ptr() or id(tensor),
            storage.nbytes(),
        )


@dataclass
class Capture:
    """A captured forward pass whose result is the loss."""

    program: _headwater.Program
    #: PyTorch's JSON and the model's tensors, from which the program is made.
    source: tuple[bytes, list[Described]]
    #: Parameters that the optimizer has: those of the graph among them get gradients.
    asked: frozenset[str]
    #: Arguments of the graph that are state: position and name.
    state: list[tuple[int, str]]
    #: Positions of the others, in the order in which the program is fed.
    users: list[int]
    #: Tensors that the graph itself holds, by name.
    constants: dict[str, torch.Tensor]

    def train(self, asked: set[str]) -> None:
        """Lets other parameters get gradients, where the optimizer has others than before."""
        if asked != self.asked:
            self.program = _headwater.Program(*self.source, asked)
            self.asked = frozenset(asked)


def capture(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    names: dict[int, str],
    trained: set[str],
    amp: Optional[dict[str, Any]] = None,
) -> Capture:
    """Captures a graph of dynamo. `names`: of parameters and buffers by identity; `trained`: parameters that
    get gradients; `amp`: settings of mixed precision."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    refusals = lost(graph, amp is not None) + _operands(placeholders, examples, names)
    outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    refusals += _results(outputs)
    if refusals:
        raise Unsupported(refusals)
    state = [(i, names[id(e)]) for i, e in enumerate(examples) if id(e) in names]
    users = [i for i, e in enumerate(examples) if id(e) not in names]
    held = {f"p{i}": examples[i] for i, _ in state}
    buffers = {i for i, _ in state if not isinstance(examples[i], torch.nn.Parameter)}
    module = _Exported(graph, len(examples), held, None if amp is None else Policy(graph, amp, buffers))
    # Ambient settings are not the model's: `_headwater` applies none.
    with torch.autocast("cpu", enabled=False), torch.enable_grad():
        try:
            exported = torch.export.export(module, tuple(examples[i] for i in users), strict=False)
        except Unsupported:
            raise
        except Exception as e:
            raise Unsupported([Refusal(f"torch.export: {first_line(e)}")]) from e
    renamed = {f"p{i}": name for i, name in state}
    constants = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT and spec.target not in renamed:
            tensor = exported.constants.get(spec.target, exported.state_dict.get(spec.target))
            if isinstance(tensor, torch.Tensor):
                constants[spec.target] = tensor
    described = [Described.of(name, examples[i]) for i, name in state]
    described += [Described.of(name, tensor) for name, tensor in constants.items()]
    source = (to_json(exported, renamed), described)
    program = _headwater.Program(*source, trained)
    return Capture(program, source, frozenset(trained), state, users, constants)


class _Exported(torch.nn.Module):
    """A graph of dynamo as a module: state under names, the rest as arguments."""

    def __init__(
        self, graph: torch.fx.GraphModule, count: int, held: dict[str, torch.Tensor], policy: Optional[Policy]
    ) -> None:
        super().__init__()
        self.policy = policy
        for name, tensor in held.items():
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        self.order = [f"p{i}" if f"p{i}" in held else None for i in range(count)]
        # Dynamo's own graph must stay as it is.
        self.graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))

    def forward(self, *users: Any) -> Any:
        fed = iter(users)
        args = [next(fed) if name is None else getattr(self, name) for name in self.order]
        # Node by node, so that each operator keeps the module and the line of the model that it comes from.
        with fx_traceback.preserve_node_meta():
            run = Interpreter(self.graph).run
            return (run(*args) if self.policy is None else self.policy.run(run, args))[0]


def to_json(exported: torch.export.ExportedProgram, renamed: dict[str, str]) -> bytes:
    """The program as `torch.export.save` writes it, without weights; parameters and buffers under their names in the model."""
    serializer = serialize.ExportedProgramSerializer()
    # PyTorch makes a canonical form of the whole program here, to see that it can, and throws it away: most of the time.
    with mock.patch.object(serialize, "canonicalize", lambda program, *_: program):
        made = serializer.serialize(
            exported, serialize_state_dict=False, serialize_constants=False, serialize_example_inputs=False
        )
    program = serialize._dataclass_to_dict(made.exported_program)
    for node in program["graph_module"]["graph"]["nodes"]:
        if stack := node["metadata"].get("nn_module_stack"):
            node["metadata"]["nn_module_stack"] = _path(stack)
    signature = program["graph_module"]["signature"]
    for spec in signature["input_specs"] + signature["output_specs"]:
        for entry in spec.values():
            for key in ("parameter_name", "buffer_name"):
                if isinstance(entry, dict) and entry.get(key) in renamed:
                    entry[key] = renamed[entry[key]]
    return json.dumps(program, cls=serialize.EnumEncoder).encode()


def lost(graph: torch.fx.GraphModule, mixed: bool = False) -> list[Refusal]:
    """What export would lose, or take for something else; `mixed`: in mixed precision."""
    found: list[Refusal] = []
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        if own := bodies(graph, node, mixed):
            found += [r for body in own for r in lost(body, mixed)]
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            name = node.target.name()
            what = HIGHER_ORDER.get(name, f"the higher-order operator {name}")
        else:
            what = LOST.get(getattr(node.target, "__name__", ""), "")
        if what and all(what != r.what for r in found):
            found.append(Refusal(what, module_of(node), line_of(node)))
    return found


def operand(value: Any, name: str) -> Optional[Refusal]:
    """The reason why a plan cannot take an argument, if there is one."""
    if not isinstance(value, torch.Tensor):
        return Refusal(f"{name}, an argument of the graph, is of type {type(value).__name__}, not a tensor")
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return Refusal(f"{name} is a {type(value).__name__}, a subclass of torch.Tensor")
    if value.device.type != "cpu" or value.layout is not torch.strided or value.is_quantized:
        return Refusal(f"{name} is not a dense tensor on the CPU ({value.layout}, {value.device})")
    if value.dtype not in DTYPES or value.is_conj() or value.is_neg():
        return Refusal(f"{name} is of {value.dtype}")
    return None


def _operands(nodes: Sequence[torch.fx.Node], examples: Sequence[Any], names: dict[int, str]) -> list[Refusal]:
    """Arguments that a program cannot take."""
    found = []
    for node, e in zip(nodes, examples):
        name = names.get(id(e), node.name)
        if refusal := operand(e, name):
            found.append(refusal)
        elif id(e) not in names and e.requires_grad:
            found.append(Refusal(f"{name} requires a gradient, and is no parameter of the model or the loss function"))
        elif isinstance(e, torch.nn.Parameter) and e.dtype is not torch.float32:
            found.append(Refusal(f"the parameter {name} is of {e.dtype}: only float32 is trained"))
    return found


def _results(outputs: Sequence[Any]) -> list[Refusal]:
    """The graph must give the loss alone."""
    first = outputs[0] if outputs else None
    loss = first.meta.get("example_value") if isinstance(first, torch.fx.Node) else None
    if not isinstance(loss, torch.Tensor):
        return [Refusal("the loss is not a tensor that the model computes")]
    if loss.dim() != 0 or loss.dtype is not torch.float32:
        return [Refusal(f"the loss is {loss.dtype} of shape {tuple(loss.shape)}: a float32 scalar is expected")]
    kept = [o for o in outputs[1:] if isinstance(o, torch.fx.Node) and o is not first]
    what = "a tensor that the model keeps in an attribute or a list"
    return [Refusal(what, module_of(node), line_of(node)) for node in kept]


def module_of(node: torch.fx.Node) -> str:
    """Path of a node's module, as `named_modules` has it; a loss function's begins with `loss_fn`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return _path(stack[-1][0]) if stack else ""


def _path(path: str) -> str:
    """Dynamo begins with the local variable: L['model'].encoder.0"""
    return path.replace("L['model'].", "").replace("L['model']", "").replace("L['loss_fn']", "loss_fn")


def line_of(node: torch.fx.Node) -> str:
    frames = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith("File ")]
    if not frames:
        return ""
    file, line = frames[-1].split(", ")[:2]
    return f"{file[6:-1]}:{line.removeprefix('line ')}"


def first_line(e: BaseException) -> str:
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return lines[0] if lines else type(e).__name__
