"""Mixed precision of a graph: casts around torch's functions by apex's rules, the same when the graph is captured and in eager
mode, where plans cannot take it."""

import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from headwater.errors import Refusal, Unsupported

#: `amp=` of `compile_step` and of `torch.compile`'s options: a level, or settings of `[amp]` in docs/mixed-precision.md.
Amp = Union[None, str, dict[str, Any]]

_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", "float16": "f16", "bfloat16": "bf16"}
_LEVELS = ("O0", "O1", "O2", "O3")


#: Settings of `[amp]` that concern casts, and those of the loss scale, which is a matter of whole steps.
CASTS = frozenset(["level", "dtype", "keep_batchnorm", "master_weights"])
SCALE = frozenset(["loss_scale", "scaler"])


def settings(amp: Amp, known: frozenset[str] = CASTS) -> Optional[dict[str, Any]]:
    """Settings of `[amp]`, or `None` where all stays as the model has it. O3 is a matter of the module: `module.bfloat16()`."""
    if amp is None:
        return None
    given = {"level": amp} if isinstance(amp, str) else dict(amp)
    if given.get("level") not in _LEVELS:
        raise ValueError(f"amp={amp!r}: the level is {', '.join(_LEVELS)}")
    if given["level"] == "O0":
        return None
    if given["level"] == "O3" or given.get("master_weights") is False:
        raise ValueError(f"amp={amp!r}: parameters are f32 masters here; for weights in low precision call module.bfloat16()")
    dtype = given.setdefault("dtype", "bf16")
    given["dtype"] = _NAMES.get(dtype, dtype)
    if given["dtype"] not in _DTYPES:
        raise ValueError(f"amp={amp!r}: the low precision is f16 or bf16")
    if unknown := given.keys() - known:
        raise ValueError(f"amp={amp!r}: there is no setting {sorted(unknown)[0]}; there are {', '.join(sorted(known))}")
    scale = given.get("loss_scale", 1.0)
    if scale not in ("dynamic", "predictive") and not isinstance(scale, (int, float)):
        raise ValueError(f"amp={amp!r}: loss_scale is a number, 'dynamic' or 'predictive'")
    return given


#: Functions by the class that NVIDIA apex's O1 gives them, by their names in torch, torch.nn.functional and torch.Tensor.
LOW = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc linear matmul __matmul__ __rmatmul__ mm "
    "addmm addmv mv addr bmm addbmm baddbmm prelu einsum scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell "
    "gru_cell rnn_tanh_cell rnn_relu_cell bilinear".split()
)
FULL = frozenset(
    "exp expm1 log log10 log2 pow __pow__ __rpow__ reciprocal rsqrt acos asin cosh sinh tan erfinv softplus softmax "
    "log_softmax softmin gelu layer_norm group_norm rms_norm norm sum prod cumsum cumprod std var dist cosine_similarity "
    "normalize interpolate renorm".split()
)
LOSSES = frozenset(
    "cross_entropy nll_loss mse_loss l1_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss "
    "huber_loss poisson_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multilabel_margin_loss "
    "multi_margin_loss soft_margin_loss triplet_margin_loss ctc_loss gaussian_nll_loss multilabel_soft_margin_loss".split()
)
#: Functions whose weights have the dtype of what they are applied to.
NORMS = frozenset("layer_norm group_norm rms_norm native_layer_norm native_group_norm".split())

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floats of at most 32 bits in another dtype, inside of lists and dicts too."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _FLOATS and value.dtype is not dtype else value
    if type(value) in (list, tuple):
        return type(value)(_cast(v, dtype) for v in value)
    if type(value) is dict:
        return {key: _cast(v, dtype) for key, v in value.items()}
    return value


class _Mode(TorchFunctionMode):
    """Casts around torch's functions."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low = low

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        to = self.dtype(name)
        if to is not None:
            if name == "scaled_dot_product_attention":
                args, kwargs = self._saturated(args, kwargs)
            return func(*_cast(args, to), **_cast(kwargs, to))
        if name in ("cat", "stack", "concat") and args:
            floats = {t.dtype for t in args[0] if t.dtype.is_floating_point}
            if len(floats) > 1:
                args = (_cast(list(args[0]), torch.float32), *args[1:])
        elif getattr(func, "__module__", None) == F.__name__ and name in _COMPOSED:
            with torch.autocast("cpu", self.low):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def dtype(self, name: str) -> Optional[torch.dtype]:
        """The dtype of a function's floats; `None` for those that take what they are given."""
        raise NotImplementedError

    def _saturated(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """A mask's most negative number becomes that of the low precision: −∞ would leave a row without any key."""

        def saturated(mask: Any) -> Any:
            if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.float32:
                return mask
            return torch.where(mask == -torch.inf, mask, mask.clamp(min=torch.finfo(self.low).min))

        if len(args) > 3:
            args = (*args[:3], saturated(args[3]), *args[4:])
        return args, {key: saturated(v) if key == "attn_mask" else v for key, v in kwargs.items()}


#: Functions of torch.nn.functional that are made of others on the lists.
_COMPOSED = frozenset(["multi_head_attention_forward"])


class _Lists(_Mode):
    """O1: by the lists. A function that is made of others on them runs under torch.autocast."""

    def dtype(self, name: str) -> Optional[torch.dtype]:
        if name in LOW:
            return self.low
        return torch.float32 if name in FULL or name in LOSSES else None


class _Low(_Mode):
    """O2: weights and what is fed are in low precision already, buffers are not. Products and norms compute in the weights' dtype,
    losses in f32."""

    def dtype(self, name: str) -> Optional[torch.dtype]:
        if name in LOSSES:
            return torch.float32
        return self.low if name in LOW or name in NORMS else None


class Policy:
    """A level for a graph of dynamo: as casts, when it is captured, and in eager mode."""

    def __init__(self, graph: torch.fx.GraphModule, amp: dict[str, Any], buffers: set[int]) -> None:
        """`buffers`: positions of arguments that are buffers of modules, which stay as they are."""
        self._low = _DTYPES[amp.get("dtype", "bf16")]
        self._lists = amp["level"] == "O1"
        output = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        values = [o.meta.get("example_value") if isinstance(o, torch.fx.Node) else None for o in output]
        self._dtypes = [v.dtype if isinstance(v, torch.Tensor) else None for v in values]
        kept = _batch_norm(graph) if amp.get("keep_batchnorm", True) else set()
        self._cast = set(range(sum(n.op == "placeholder" for n in graph.graph.nodes))) - buffers - kept

    def run(self, call: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """Calls the graph with these arguments. Results have the dtypes that they have in f32."""
        given = list(args)
        if not self._lists:
            given = [_float_only(a, self._low) if i in self._cast else a for i, a in enumerate(args)]
        with _Lists(self._low) if self._lists else _Low(self._low):
            results = call(*given)
        if any(b is not a and b._version for a, b in zip(args, given)):
            raise Unsupported([Refusal("an argument of the graph is written, of which O2 has a copy in low precision")])
        return tuple(
            r.to(d) if isinstance(r, torch.Tensor) and d is not None and r.dtype is not d else r
            for r, d in zip(results, self._dtypes)
        )


def _float_only(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value


def _batch_norm(graph: torch.fx.GraphModule) -> set[int]:
    """Positions of arguments that are batch norm's: its weights and statistics stay f32."""
    positions = {node: i for i, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    kept = set()
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") in ("batch_norm", "sync_batch_norm"):
            own = [*node.args[1:], *(v for key, v in node.kwargs.items() if key != "input")]
            kept |= {positions[v] for v in own if isinstance(v, torch.fx.Node) and v in positions}
    return kept


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Compiled modules run in eager mode, in f32."""
    with torch.compiler.set_stance("force_eager"):
        yield
