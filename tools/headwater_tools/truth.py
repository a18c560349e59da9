"""Values of an exported graph when every floating-point dtype in it is float64.

The casts that the model spells out are lifted too: a cast to float32 becomes a cast to float64. What remains of the
float32 model are its constants, such as weights and masks filled with the most negative float32, which are taken as they are.
"""

import contextlib
import re
from dataclasses import dataclass, field

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from .dropout import silenced
from .masks import Means, refusal
from .training import loss_of

LIFTED = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128}
ATEN = torch.ops.aten
SCATTERS = ATEN.slice_scatter.default, ATEN.select_scatter.default
HIGHER = torch.ops.higher_order
SET_GRAD = HIGHER.wrap_with_set_grad_enabled
CONTROL = HIGHER.cond, HIGHER.scan, HIGHER.map_impl


@dataclass
class Truth:
    """Float64 values by name. Gradients and buffers bear PyTorch's names, nodes those of the graph."""

    outputs: list = field(default_factory=list)
    grads: dict = field(default_factory=dict)
    buffers: dict = field(default_factory=dict)  # after the step, those that the graph writes
    parameters: dict = field(default_factory=dict)  # after the step, those that the graph writes
    nodes: dict = field(default_factory=dict)
    unreached: list = field(default_factory=list)  # trainable parameters that the loss does not depend on
    dropouts: int = 0  # operators in the graph that are the identity here, dropout, or random masks, which are their means
    tied: dict = field(default_factory=dict)  # other names of a parameter -> the name its gradient has


def lift(value):
    """The value with floating-point tensors and dtypes converted to float64. Tensors are copied, everything else is kept."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(LIFTED.get(value.dtype, value.dtype), copy=True)
    return LIFTED.get(value, value)


def view_or_copy(tensor, shape):
    try:
        return tensor.view(shape)
    except RuntimeError:
        return tensor.reshape(shape)


def by_definition():
    """Attention's operator is computed as it is defined: product, softmax, product. In the fused kernel for CPUs the gradient of a query
    whose keys are all masked by large numbers, such as finfo(float32).min, is too large by the number of keys, and with a causal mask
    and a scale of 0 or less the result is NaN.
    """
    return sdpa_kernel(SDPBackend.MATH)


def fused_attention(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """The fused kernel, where a graph names it, by its definition; its second result is read by its own gradient alone."""
    output, _ = ATEN._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    return output, None


def grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """`torch._grouped_mm`, which PyTorch has in no float64: products of groups of rows, of columns, or of terms, which end at `offs`."""
    if offs is None:
        return a @ b
    ends = offs.tolist()
    groups = [slice(begin, end) for begin, end in zip([0, *ends], ends)]
    rows, columns = a.dim() == 2, b.dim() == 2
    if rows and columns:
        return torch.stack([a[:, g] @ b[g] for g in groups])
    if columns:
        return torch.cat([a[i] @ b[:, g] for i, g in enumerate(groups)], 1)
    found = torch.cat([a[g] @ b[i] for i, g in enumerate(groups)])
    return torch.cat([found, found.new_zeros(len(a) - ends[-1], b.shape[-1])])  # rows of no group


WIDE = {ATEN._grouped_mm.default: grouped_mm}  # operators without a float64 kernel


RMS_NORMS = ATEN.rms_norm.default, ATEN._fused_rms_norm.default


def with_epsilon(dtype, args, kwargs):
    """Arguments of an RMS norm, of which a missing epsilon is that of the dtype in which PyTorch would compute: float32's, of 16 bits
    too. Lifted, it would be float64's."""
    eps = kwargs.get("eps", args[3] if len(args) > 3 else None)
    if eps is not None:
        return args, kwargs
    eps = torch.finfo(dtype if dtype is torch.float64 else torch.float32).eps
    return (*args[:3], eps) if len(args) > 3 else args, kwargs if len(args) > 3 else {**kwargs, "eps": eps}


def place(node):
    """Where a node of an exported graph comes from: the module and the line of Python, as far as the graph knows them."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").strip().splitlines()]
    line = next((line for line in reversed(lines) if line.startswith("File ")), "")
    found = re.match(r'File "(.*)", line (\d+)', line)
    at = f"{found[1].rsplit('/', 1)[-1]}:{found[2]}" if found else ""
    return "".join([f" in `{path}`" if path else "", f" ({at})" if at else ""])


class GivenGraph(torch.fx.Interpreter):
    """Runs a graph as it is and keeps the values of the nodes that `keep` selects."""

    context = contextlib.nullcontext  # in which it runs

    @staticmethod
    def lift(value):
        return value.detach().clone() if torch.is_tensor(value) else value

    def __init__(self, graph_module, keep=lambda node, value: False):
        super().__init__(graph_module)
        self.keep = keep
        self.kept = {}
        self.dropouts, self.means, self.node = 0, Means(), None

    def run_node(self, node):
        self.node = node
        value = super().run_node(node)
        number = torch.is_tensor(value) and (value.is_floating_point() or value.is_complex())
        if node.op == "call_function" and number and self.keep(node, value) and not self.means.unknown(value):
            self.kept[node.name] = value.detach().clone()
        return value

    def call_function(self, target, args, kwargs):
        if target is ATEN._assert_tensor_metadata.default:  # asserts the dtypes that the exporter saw
            return None
        if target is SET_GRAD:
            enabled, graph_module, *inputs = args
            with torch.set_grad_enabled(enabled):
                return self.inner(graph_module, inputs)
        if target is HIGHER.cond:
            predicate, yes, no, operands = args
            return self.inner(yes if predicate else no, operands)
        if target is HIGHER.scan:
            return self.loop(*args)
        if target is HIGHER.map_impl:
            graph_module, sequences, others = args
            return self.loop(graph_module, (), sequences, others)
        if target is ATEN.copy.default:  # the functional form of copy_, to which PyTorch gives no derivative
            return args[1].to(args[0].dtype).expand_as(args[0]).clone()
        if target in SCATTERS and args[0].is_complex():  # to which PyTorch gives no derivative either
            base, source = (torch.view_as_real(x.resolve_conj()) for x in args[:2])
            dim, *rest = args[2:] or (0,)
            return torch.view_as_complex(target(base, source, dim % args[0].dim(), *rest).contiguous())
        if target is ATEN.view.default:  # PyTorch lays out the results of some operators otherwise in other dtypes
            return view_or_copy(*args)
        args, kwargs, drops = silenced(target, args, kwargs)
        self.dropouts += drops
        if target is ATEN._scaled_dot_product_flash_attention_for_cpu.default:
            return fused_attention(*args, **kwargs)
        if isinstance(target, torch._ops.OpOverload):
            name = target._schema.name.split("::")[-1]
            found = self.means.call(target, name, args, kwargs, place(self.node))
            if found is not NotImplemented:
                return found
            if torch.Tag.nondeterministic_seeded in target.tags and not drops and "dropout" not in name and "attention" not in name:
                self.means.others.append(f"`{name}`{place(self.node)}")
        return super().call_function(target, args, kwargs)

    def inner(self, graph_module, inputs):
        """Results of a sub-graph."""
        inner = type(self)(graph_module)
        inner.means = self.means
        results = inner.run(*inputs)
        self.dropouts += inner.dropouts
        return results

    def loop(self, graph_module, carry, sequences, others):
        """Results of a sub-graph for each row of the sequences; the first ones are handed on, the others stacked."""
        count, made = len(carry), []
        for rows in zip(*sequences, strict=True):
            results = self.inner(graph_module, [*carry, *rows, *others])
            carry = results[:count]
            made.append(results[count:])
        return [*carry, *(torch.stack(values) for values in zip(*made, strict=True))]


@contextlib.contextmanager
def default_float64():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


class LiftedGraph(GivenGraph):
    """Runs a graph in float64."""

    context, lift = default_float64, staticmethod(lift)

    def run_node(self, node):
        value = super().run_node(node)
        # A cast between two floating-point dtypes makes a new tensor. Lifted it is none and returns its source, and an
        # in-place operator on one would write to the other.
        if getattr(node.target, "overloadpacket", None) in (ATEN.to, ATEN.type_as) and value is self.env[node.args[0]]:
            if node.meta["val"].dtype != node.args[0].meta["val"].dtype:
                value = value.clone()
        return value

    def fetch_args_kwargs_from_env(self, node):
        args, kwargs = super().fetch_args_kwargs_from_env(node)
        if node.target in RMS_NORMS and (val := node.args[0].meta.get("val")) is not None:
            args, kwargs = with_epsilon(val.dtype, args, kwargs)
        return args, kwargs

    def call_function(self, target, args, kwargs):
        if target is HIGHER.wrap_with_autocast:
            raise ValueError("forward uses torch.autocast: leave it out, mixed precision is a setting of the training run (--amp)")
        if isinstance(target, torch._ops.HigherOrderOperator) and target not in (SET_GRAD, *CONTROL):
            raise NotImplementedError(f"{target} holds a sub-graph that float64 is not defined for here")
        if target is ATEN.view.dtype:
            raise NotImplementedError(f"{target} reads the bits of a value, which have no float64 counterpart")
        args, kwargs = pytree.tree_map_only(torch.dtype, lift, (args, kwargs))
        return super().call_function(WIDE.get(target, target), args, kwargs)

    def get_attr(self, target, args, kwargs):
        value = super().get_attr(target, args, kwargs)
        return lift(value) if torch.is_tensor(value) else value


def evaluate(program, args, keep=lambda node, value: False, graph=LiftedGraph, known=()):
    """Runs an exported program forward and backward in float64, or as another `graph` class does.

    `args` are the inputs of the exported module; `keep(node, value)` selects the intermediate values to return. `known` are pairs of
    a constant and the parameter that takes its place.
    Dropout is the identity, and a random mask is its mean. Raises ValueError when the program draws other random numbers: what it
    computes then is not one truth.
    """
    truth, values, parameters, buffers, storages = Truth(), [], {}, {}, {}
    inputs = iter(pytree.tree_leaves(tuple(args)))
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            values.append(graph.lift(next(inputs)))
            continue
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise NotImplementedError(f"input {spec.arg.name} is a {spec.kind.name}")
        stored = program.state_dict.get(spec.target, program.constants.get(spec.target))
        key = (stored.untyped_storage().data_ptr(), stored.storage_offset(), stored.shape, stored.stride())
        if spec.target in dict(known):
            value = parameters[dict(known)[spec.target]]
        elif spec.kind is InputKind.PARAMETER and key in storages:
            truth.tied[spec.target], value = storages[key]
        else:
            value = graph.lift(stored)
            if spec.kind is InputKind.PARAMETER:
                storages[key] = spec.target, value
                parameters[spec.target] = value.requires_grad_(stored.requires_grad)
            elif spec.kind is InputKind.BUFFER:
                buffers[spec.target] = value
        values.append(value)

    before = {name: (b._version, b.clone()) for name, b in buffers.items()}
    versions = {name: p._version for name, p in parameters.items()}
    interpreter, random_state = graph(program.graph_module, keep), torch.get_rng_state()
    with graph.context(), by_definition():
        results = interpreter.run(*values)
    if not torch.equal(random_state, torch.get_rng_state()):
        raise ValueError(refusal(", ".join(dict.fromkeys(interpreter.means.others))))
    truth.dropouts = interpreter.dropouts + interpreter.means.count

    # The training form writes to a buffer in place (batch_norm without counting the version up), the functional form
    # returns its new value.
    for name, buffer in buffers.items():
        version, value = before[name]
        if buffer._version != version or not torch.equal(buffer, value):
            truth.buffers[name] = buffer.detach()
    truth.parameters = {n: p.detach() for n, p in parameters.items() if p._version != versions[n]}
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            truth.buffers[spec.target] = result.detach()
        elif spec.kind is OutputKind.USER_OUTPUT:
            truth.outputs.append(result)
        elif spec.kind is OutputKind.PARAMETER_MUTATION:
            raise ValueError(
                f"the forward pass writes the parameter `{spec.target}`, as momentum encoders do, and decomposed PyTorch makes it a result "
                "of the graph, on which nothing depends any more: export with decompose=False"
            )
        else:
            raise NotImplementedError(f"output {spec.arg.name} is a {spec.kind.name}")

    loss, trainable = loss_of(truth.outputs), {name: p for name, p in parameters.items() if p.requires_grad}
    if trainable and loss.requires_grad:
        grads = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        # Gradients of sparse embeddings are recorded dense: zero in the rows that no index reads.
        truth.grads = {n: g if g.layout is torch.strided else g.to_dense() for n, g in zip(trainable, grads, strict=True) if g is not None}
    truth.unreached = [name for name in trainable if name not in truth.grads]
    truth.outputs = [o.detach() if torch.is_tensor(o) else o for o in truth.outputs]
    truth.nodes = interpreter.kept
    return truth
