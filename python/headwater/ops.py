"""Operators of Headwater's for PyTorch: `torch.ops.headwater.*`, which run as plans in eager mode, and are traced as operators by
`torch.compile` for any backend. In graphs that Headwater compiles, they are part of the plan.

Each is given by a reference, its formula in PyTorch's functions, of which the plan is made, once for each dtype and size."""

import contextlib
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F

from headwater import _headwater, backend
from headwater.errors import Error
from headwater.function import capture
from headwater.references import REFERENCES

__all__ = [
    "attention",
    "cross_entropy",
    "embedding",
    "embedding_dense_backward",
    "layer_norm",
    "map",
    "rms_norm",
    "rms_norm_backward",
]

Tensor = torch.Tensor

#: Plans of one operator at most: dtypes and sizes.
PLANS = 256

_LIBRARY = torch.library.Library("headwater", "DEF")
_SCHEMAS: dict[str, torch.FunctionSchema] = {}


class _Kernel:
    """An operator in eager mode, as plans."""

    def __init__(self, reference: Callable[..., Any]) -> None:
        self._reference = reference
        self._plans: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        key = tuple((a.dtype, a.shape) if isinstance(a, Tensor) else a for a in args)
        plans = self._plans.get(key)
        tensors = [a.contiguous() for a in args if isinstance(a, Tensor)]
        if plans is None:
            if len(self._plans) >= PLANS:
                self._plans.pop(next(iter(self._plans)))
            # In a thread of its own, where nothing of the caller's modes and dispatch keys is in the way of export.
            with ThreadPoolExecutor(1) as fresh:
                plans = self._plans[key] = fresh.submit(self._compile, args, tensors).result()
        try:
            with torch.no_grad():
                found = plans.run(tensors)
        except Error as e:
            if e.code == "HW-C005":
                # Data that no run can take, such as an index out of range: PyTorch says it in its own words.
                self._reference(*args)
            raise
        return found[0] if len(found) == 1 else found

    def _compile(self, args: Any, tensors: list[Tensor]) -> Any:
        def formula(*tensors: Tensor) -> tuple[Tensor, ...]:
            fed = iter(tensors)
            found = self._reference(*(next(fed) if isinstance(a, Tensor) else a for a in args))
            return found if isinstance(found, tuple) else (found,)

        graph = torch.fx.Graph()
        given = tuple(graph.placeholder(f"a{i}") for i in range(len(tensors)))
        graph.output(graph.call_function(formula, given))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        with torch.no_grad():
            function = capture(module, tensors, [f"argument {i}" for i in range(len(tensors))])
        return backend._Plans(function, _headwater.Context(torch.get_num_threads()))


def _define(schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, _Kernel(reference), "CPU")
    torch.library.register_fake(f"headwater::{name}", fake, lib=_LIBRARY)
    REFERENCES[f"headwater::{name}"] = reference
    _SCHEMAS[name] = getattr(torch.ops.headwater, name).default._schema


def _differentiable(name: str, setup: Callable[..., None], backward: Callable[..., Any]) -> None:
    torch.library.register_autograd(f"headwater::{name}", backward, setup_context=setup, lib=_LIBRARY)


def _keep(ctx: Any, *tensors: Optional[Tensor]) -> None:
    """Keeps tensors for the backward pass, some of which may be `None`."""
    ctx.none = [t is None for t in tensors]
    ctx.save_for_backward(*(t for t in tensors if t is not None))


def _kept(ctx: Any) -> list[Any]:
    saved = iter(ctx.saved_tensors)
    return [None if none else next(saved) for none in ctx.none]


# RMS norm (Zhang and Sennrich, 2019), over the last dimension.


def _rms_norm(x: Tensor, weight: Optional[Tensor], eps: float) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return F.rms_norm(x, (x.shape[-1],), weight, eps), rstd


def _rms_norm_backward(grad: Tensor, x: Tensor, weight: Optional[Tensor], rstd: Tensor) -> tuple[Tensor, Tensor]:
    normal = x * rstd
    through = grad if weight is None else grad * weight
    dx = rstd * (through - normal * (through * normal).mean(-1, keepdim=True))
    return dx, (grad * normal).flatten(0, -2).sum(0) if x.dim() > 1 else grad * normal


_define(
    "rms_norm(Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
    _rms_norm,
    lambda x, weight, eps: (torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty((*x.shape[:-1], 1))),
)
_define(
    "rms_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor rstd) -> (Tensor, Tensor)",
    _rms_norm_backward,
    lambda grad, x, weight, rstd: (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        x.new_empty((x.shape[-1],)),
    ),
)


def _rms_norm_vjp(ctx: Any, grad: Tensor, _: Any) -> Any:
    x, weight, rstd = _kept(ctx)
    dx, dw = torch.ops.headwater.rms_norm_backward(grad, x, weight, rstd)
    return dx, None if weight is None else dw, None


def _rms_norm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _keep(ctx, inputs[0], inputs[1], output[1])
    ctx.mark_non_differentiable(output[1])


_differentiable("rms_norm", _rms_norm_setup, _rms_norm_vjp)


def rms_norm(x: Tensor, weight: Optional[Tensor] = None, eps: float = 1e-6) -> Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension (Zhang and Sennrich, 2019). `x` is float of any shape, `weight` as long
    as its last dimension. Differentiable once."""
    return torch.ops.headwater.rms_norm(x, weight, eps)[0]  # type: ignore[no-any-return]


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Optional[Tensor], rstd: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `rms_norm` for `x` and for the weight. `rstd`, 1 / √(mean(x²) + eps), has a last dimension of 1."""
    return torch.ops.headwater.rms_norm_backward(grad, x, weight, rstd)  # type: ignore[no-any-return]


# Embedding.


def _embedding(weight: Tensor, indices: Tensor, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
    return F.embedding(indices, weight)


def _embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    rows, flat = grad.reshape(-1, grad.shape[-1]), indices.reshape(-1)
    if padding_idx >= 0:
        rows = rows * (flat != padding_idx).unsqueeze(1).to(rows.dtype)
    if scale_grad_by_freq:
        counts = torch.zeros(num_weights, dtype=rows.dtype).index_add(0, flat, torch.ones_like(flat, dtype=rows.dtype))
        rows = rows / counts[flat].unsqueeze(1)
    return torch.zeros(num_weights, grad.shape[-1], dtype=grad.dtype).index_add(0, flat, rows)


_define(
    "embedding(Tensor weight, Tensor indices, int padding_idx, bool scale_grad_by_freq) -> Tensor",
    _embedding,
    lambda weight, indices, padding_idx, scale_grad_by_freq: weight.new_empty((*indices.shape, weight.shape[1])),
)
_define(
    "embedding_dense_backward(Tensor grad, Tensor indices, SymInt num_weights, int padding_idx, bool scale_grad_by_freq) -> Tensor",
    _embedding_dense_backward,
    lambda grad, indices, num_weights, padding_idx, scale: grad.new_empty((num_weights, grad.shape[-1])),
)


def _embedding_setup(ctx: Any, inputs: Any, output: Any) -> None:
    weight, indices, ctx.padding_idx, ctx.scale = inputs
    ctx.num_weights = weight.shape[0]
    ctx.save_for_backward(indices)


def _embedding_vjp(ctx: Any, grad: Tensor) -> Any:
    (indices,) = ctx.saved_tensors
    found = torch.ops.headwater.embedding_dense_backward(grad, indices, ctx.num_weights, ctx.padding_idx, ctx.scale)
    return found, None, None, None


_differentiable("embedding", _embedding_setup, _embedding_vjp)


def embedding(
    indices: Tensor, weight: Tensor, padding_idx: Optional[int] = None, scale_grad_by_freq: bool = False
) -> Tensor:
    """The rows of `weight` (2-D) at `indices` (integers of any shape), as `torch.nn.functional.embedding`; an index out of range
    raises `IndexError`. The row at `padding_idx` gets no gradient; with `scale_grad_by_freq` others are divided by how often
    their index occurs."""
    row = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return torch.ops.headwater.embedding(weight, indices, row, scale_grad_by_freq)  # type: ignore[no-any-return]


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Tensor:
    """The gradient of an embedding's weight, `[num_weights, grad.shape[-1]]`: rows of `grad` added up at their indices."""
    return torch.ops.headwater.embedding_dense_backward(  # type: ignore[no-any-return]
        grad, indices, num_weights, padding_idx, scale_grad_by_freq
    )


# Layer norm (Ba and others, 2016), over the last dimension.


def _layer_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _layer_norm_backward(grad: Tensor, x: Tensor, weight: Optional[Tensor], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    normal = (x - mean) * rstd
    through = grad if weight is None else grad * weight
    dx = rstd * (through - through.mean(-1, keepdim=True) - normal * (through * normal).mean(-1, keepdim=True))
    rows = (grad * normal).reshape(-1, x.shape[-1])
    return dx, rows.sum(0), grad.reshape(-1, x.shape[-1]).sum(0)


_define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    _layer_norm,
    lambda x, weight, bias, eps: torch.empty_like(x, memory_format=torch.contiguous_format),
)
_define(
    "layer_norm_backward(Tensor grad, Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor, Tensor)",
    _layer_norm_backward,
    lambda grad, x, weight, eps: (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        x.new_empty((x.shape[-1],)),
        x.new_empty((x.shape[-1],)),
    ),
)


def _layer_norm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _keep(ctx, *inputs[:2])
    ctx.bias, ctx.eps = inputs[2] is not None, inputs[3]


def _layer_norm_vjp(ctx: Any, grad: Tensor) -> Any:
    x, weight = _kept(ctx)
    dx, dw, db = torch.ops.headwater.layer_norm_backward(grad, x, weight, ctx.eps)
    return dx, None if weight is None else dw, db if ctx.bias else None, None


_differentiable("layer_norm", _layer_norm_setup, _layer_norm_vjp)


def layer_norm(x: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None, eps: float = 1e-5) -> Tensor:
    """(x − mean) / √(variance + eps) · weight + bias over the last dimension (Ba and others, 2016), as
    `torch.nn.functional.layer_norm`. Differentiable once."""
    return torch.ops.headwater.layer_norm(x, weight, bias, eps)  # type: ignore[no-any-return]


# Cross entropy.


def _cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    return F.cross_entropy(logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing)


def _cross_entropy_backward(
    grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    classes = logits.shape[1]
    valid = (target != ignore_index).to(logits.dtype)
    hot = (target.unsqueeze(1) == torch.arange(classes)).to(logits.dtype)
    want = hot * (1.0 - label_smoothing) + label_smoothing / classes
    return (torch.softmax(logits, 1) - want) * valid.unsqueeze(1) * (grad / valid.sum())


_define(
    "cross_entropy(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> Tensor",
    _cross_entropy,
    lambda logits, target, ignore_index, label_smoothing: logits.new_empty(()),
)
_define(
    "cross_entropy_backward(Tensor grad, Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> Tensor",
    _cross_entropy_backward,
    lambda grad, logits, target, ignore_index, label_smoothing: torch.empty_like(
        logits, memory_format=torch.contiguous_format
    ),
)


def _cross_entropy_setup(ctx: Any, inputs: Any, output: Any) -> None:
    logits, target, ctx.ignore_index, ctx.label_smoothing = inputs
    ctx.save_for_backward(logits, target)


def _cross_entropy_vjp(ctx: Any, grad: Tensor) -> Any:
    logits, target = ctx.saved_tensors
    found = torch.ops.headwater.cross_entropy_backward(grad, logits, target, ctx.ignore_index, ctx.label_smoothing)
    return found, None, None, None


_differentiable("cross_entropy", _cross_entropy_setup, _cross_entropy_vjp)


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0) -> Tensor:
    """The mean of −log softmax(logits)[target], as `torch.nn.functional.cross_entropy`: `logits` [N, classes], `target` [N] of i64.
    Rows whose target is `ignore_index` do not count. Differentiable once."""
    return torch.ops.headwater.cross_entropy(logits, target, ignore_index, label_smoothing)  # type: ignore[no-any-return]


# Attention.


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], is_causal: bool, scale: Optional[float]) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], is_causal: bool, scale: Optional[float]
) -> tuple[Tensor, Tensor, Tensor]:
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * factor
    if is_causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    p = torch.softmax(scores, -1)
    dp = grad @ v.transpose(-2, -1)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    return ds @ k * factor, ds.transpose(-2, -1) @ q * factor, p.transpose(-2, -1) @ grad


_define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, float? scale) -> Tensor",
    _attention,
    lambda q, k, v, mask, is_causal, scale: q.new_empty((*q.shape[:-1], v.shape[-1])),
)
_define(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, float? scale) "
    "-> (Tensor, Tensor, Tensor)",
    _attention_backward,
    lambda grad, q, k, v, mask, is_causal, scale: tuple(
        torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)
    ),
)


def _attention_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _keep(ctx, *inputs[:4])
    ctx.is_causal, ctx.scale = inputs[4:]


def _attention_vjp(ctx: Any, grad: Tensor) -> Any:
    q, k, v, mask = _kept(ctx)
    dq, dk, dv = torch.ops.headwater.attention_backward(grad, q, k, v, mask, ctx.is_causal, ctx.scale)
    return dq, dk, dv, None, None, None


_differentiable("attention", _attention_setup, _attention_vjp)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor] = None,
    is_causal: bool = False,
    scale: Optional[float] = None,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, as `torch.nn.functional.scaled_dot_product_attention` without dropout: [..., length, features],
    `mask` bool (true: takes part) or float. The mask gets no gradient. Differentiable once."""
    if mask is not None and mask.requires_grad:
        raise ValueError("attention: the mask gets no gradient here, and it requires one")
    return torch.ops.headwater.attention(q, k, v, mask, is_causal, scale)  # type: ignore[no-any-return]


# Operators of others.


class Mapping:
    """An operator of an extension's that is ours, until it is closed; a context manager."""

    def __init__(self, name: str, library: torch.library.Library) -> None:
        self._name, self._library = name, library

    def close(self) -> None:
        """The operator is its extension's again."""
        if REFERENCES.pop(self._name, None) is not None:
            self._library._destroy()

    def __enter__(self) -> "Mapping":
        return self

    def __exit__(self, *args: Any) -> None:
        self.close()


def map(name: str, ours: str, **constants: Any) -> Mapping:
    """Lets an operator of an extension, such as "myops::npu_rms_norm_forward", be ours on the CPU, in eager mode and in plans:
    `ours` is a name in `torch.ops.headwater`, and `constants` are arguments of it that theirs does not have. It may have fewer
    results: the first ones.

    Its schema must be registered: load the extension first, or `torch.library.define` it. Raises `ValueError` for operators that
    do not exist, and for a signature that is not ours, with both schemas."""
    namespace, _, short = name.partition("::")
    try:
        theirs = getattr(getattr(torch.ops, namespace), short).default._schema
    except AttributeError:
        raise ValueError(f"there is no operator {name}: load its extension, or torch.library.define its schema") from None
    if ours not in _SCHEMAS:
        raise ValueError(f"there is no operator headwater::{ours}; there are {', '.join(_SCHEMAS)}")
    own = _SCHEMAS[ours]
    if unknown := constants.keys() - {a.name for a in own.arguments}:
        raise ValueError(f"headwater::{ours} has no argument {sorted(unknown)[0]}: {own}")
    left = [a for a in own.arguments if a.name not in constants]
    same = len(left) == len(theirs.arguments) and all(_fits(t, o) for t, o in zip(theirs.arguments, left))
    if not same or not 1 <= len(theirs.returns) <= len(own.returns):
        said = "".join(f", {key}={value}" for key, value in constants.items())
        raise ValueError(f"{theirs} is not {own}{said}")
    inner, count = REFERENCES[f"headwater::{ours}"], len(theirs.returns)

    def reference(*args: Any) -> Any:
        given = iter(args)
        found = inner(*(constants[a.name] if a.name in constants else next(given) for a in own.arguments))
        if not isinstance(found, tuple):
            return found
        return found[0] if count == 1 else found[:count]

    library = torch.library.Library(namespace, "FRAGMENT")
    library.impl(short, _Kernel(reference), "CPU", allow_override=True)
    with contextlib.suppress(RuntimeError):
        # An extension may have a fake of its own.
        torch.library.register_fake(name, reference, lib=library)
    REFERENCES[name] = reference
    return Mapping(name, library)


def _fits(theirs: Any, ours: Any) -> bool:
    """True if what is given for their argument can be given for ours."""
    a, b = str(theirs.type), str(ours.type)
    return a == b or b == f"Optional[{a}]" or {a, b} == {"int", "SymInt"}

