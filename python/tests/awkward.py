"""Awkward programs: small modules and loops, each run in eager mode and under `torch.compile(backend="headwater")`."""

import contextlib
import copy
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F

nn = torch.nn
Run = Callable[..., Any]


class M(nn.Module):
    """A module of a few tensors and a function."""

    def __init__(self, fn: Run, dtype: torch.dtype = torch.float32, **modules: nn.Module) -> None:
        super().__init__()
        self.fn, self.count = fn, 0
        self.w, self.v, self.u = (nn.Parameter(torch.randn(s, dtype=dtype) * 0.5) for s in ((4, 4), (4,), (4,)))
        self.register_buffer("b", torch.zeros(4, dtype=dtype))
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
        for name, module in modules.items():
            self.add_module(name, module.to(dtype))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self, *args, **kwargs)


def x(*sizes: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(sizes or (5, 4), dtype=dtype).requires_grad_(grad)


def flat(value: Any) -> list[torch.Tensor]:
    """Tensors with a gradient in a result."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else []


def backward(value: Any, **kwargs: Any) -> None:
    """A backward pass from all results."""
    loss = sum((t.double() * torch.arange(1, t.numel() + 1).view(t.shape).double().cos()).sum() for t in flat(value))
    if isinstance(loss, torch.Tensor):
        loss.backward(**kwargs)


def plain(m: nn.Module, f: Run, inputs: Callable[[], tuple[Any, ...]], calls: int = 2) -> Any:
    """Calls with gradients; what came out, and the inputs afterwards."""
    seen = []
    for _ in range(calls):
        args = inputs()
        out = f(*args)
        backward(out)
        seen += [out, [a.grad if isinstance(a, torch.Tensor) and a.is_leaf else None for a in args], args]
    return seen


@dataclass
class Case:
    """A program. `scenario(module, compiled or eager module)` gives what is compared, beside gradients and buffers."""

    name: str
    module: Callable[[], nn.Module]
    scenario: Callable[[nn.Module, Run], Any]
    #: False if it may be refused, and then runs in eager mode.
    must: bool = True
    #: True if no result comes out of a plan's arithmetic, so that no factor is seen.
    blind: bool = False


CASES: list[Case] = []


def case(name: str, fn: Run, inputs: Optional[Callable[[], tuple[Any, ...]]] = None, **kwargs: Any) -> None:
    """A module's function on fresh inputs, twice, with backward passes."""
    modules = {k: kwargs.pop(k) for k in list(kwargs) if k not in ("must", "blind", "dtype", "mode", "calls")}
    mode, calls, dtype = kwargs.pop("mode", None), kwargs.pop("calls", 2), kwargs.pop("dtype", torch.float32)

    def build() -> nn.Module:
        made = M(fn, dtype, **{k: make() for k, make in modules.items()})
        return made if mode is None else mode(made)

    take = inputs or (lambda: (x(dtype=dtype),))
    CASES.append(Case(name, build, lambda m, f: plain(m, f, take, calls), **kwargs))


def loop(name: str, fn: Run, **kwargs: Any) -> Callable[[Callable[[nn.Module, Run], Any]], None]:
    """A loop of its own around a module's function."""
    modules = {k: kwargs.pop(k) for k in list(kwargs) if k not in ("must", "blind", "dtype")}
    dtype = kwargs.pop("dtype", torch.float32)

    def add(scenario: Callable[[nn.Module, Run], Any]) -> None:
        CASES.append(Case(name, lambda: M(fn, dtype, **{k: make() for k, make in modules.items()}), scenario, **kwargs))

    return add


def linear(m: M, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ m.w + m.v)


# Results.
case("linear", linear)
case("several", lambda m, x: (x @ m.w, (x @ m.w).sum(), (x * m.v).exp()))
case("integers", lambda m, x: ((x @ m.w).argmax(1), x @ m.w, (x > 0).sum(), x > 0))
case("none_and_python", lambda m, x: (x @ m.w, None, 3, "text", [1.5]))
case("dictionary", lambda m, x: {"a": x @ m.w, "b": {"c": x * m.v}})
case("input", lambda m, x: (x, x @ m.w), lambda: (x(grad=True),))
case("input_alone", lambda m, x: x, lambda: (x(grad=True),), must=False, blind=True)
case("view_of_input", lambda m, x: (x.t(), x[1:], x @ m.w), lambda: (x(grad=True),))
case("view_of_inner_input", lambda m, x: (x[0], x @ m.w), lambda: (x(6, 4, grad=True)[2:],))
case("detached_view_of_input", lambda m, x: (x.detach()[0], x @ m.w), lambda: (x(grad=True),))
case("chunks", lambda m, x: (x @ m.w).chunk(2, 1))
case("unbound", lambda m, x: (x @ m.w).unbind(0))
case("result_and_view", lambda m, x: (lambda h: (h, h.view(-1), h.detach()))(x @ m.w))
case("result_twice", lambda m, x: (lambda h: (h, h))(x @ m.w))
case("transposed", lambda m, x: (x @ m.w).t())
case("expanded", lambda m, x: (x @ m.w).sum(0, keepdim=True).expand(3, 4))
case("every_second", lambda m, x: (x @ m.w)[:, ::2])
case("scalar", lambda m, x: (x @ m.w).mean())
case("empty_result", lambda m, x: ((x @ m.w)[:0], x * m.v))
case("empty_input", lambda m, x: x @ m.w + m.v, lambda: (x(0, 4, grad=True),))
case("one_row", lambda m, x: x @ m.w + m.v, lambda: (x(1, 4, grad=True),))
case("constant_result", lambda m, x: (torch.arange(4.0), x @ m.w))
case("held_tensor", lambda m, x: x @ m.w + torch.tensor([1.0, 2.0, 3.0, 4.0]))

# Existing and missing gradients.
case("unused_parameter", lambda m, x: x @ m.w)
case("input_gradient", linear, lambda: (x(grad=True),))
case("input_gradient_alone", linear, lambda: (x(grad=True),), mode=lambda m: m.requires_grad_(False))
case("nothing_requires_a_gradient", linear, mode=lambda m: m.requires_grad_(False))
case("detach", lambda m, x: x @ m.w.detach() + m.v)
case("stops_at_indices", lambda m, x: ((x * m.u).argmax(1), x @ m.w))
case("bool_through", lambda m, x: torch.where((x @ m.w) > 0, x * m.v, 0.0))


def inside_no_grad(m: M, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = (x * m.v).exp()
    return x @ m.w * scale


case("inside_no_grad", inside_no_grad)


def enabled_inside(m: M, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h = x @ m.w
        with torch.enable_grad():
            g = x * m.v
    return h + g


case("enabled_inside", enabled_inside)

# Buffers, written inputs, parameters.
case("batch_norm", lambda m, x: m.norm(x @ m.w), norm=lambda: nn.BatchNorm1d(4), calls=3)
case("batch_norm_evaluated", lambda m, x: m.norm(x @ m.w), norm=lambda: nn.BatchNorm1d(4), mode=lambda m: m.eval())
case("batch_norm_cumulative", lambda m, x: m.norm(x @ m.w), norm=lambda: nn.BatchNorm1d(4, momentum=None), must=False)


def average(m: M, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.w
    with torch.no_grad():
        m.b.mul_(0.9).add_(h.mean(0))
    return h + m.b


case("buffer_in_place", average, calls=3)


def assigned(m: M, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.w
    m.b = m.b * 0.9 + h.detach().mean(0)
    return h * m.b


case("buffer_assigned", assigned, calls=3)


def counted(m: M, x: torch.Tensor) -> torch.Tensor:
    m.n += 1
    return x @ m.w / m.n


case("counter", counted, calls=3)


def carried(m: M, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.w
    m.b.copy_(h.mean(0))
    return h * m.b


case("buffer_with_gradient", carried, calls=1, must=False)
case("written_input", lambda m, x, y: (y.add_(1), x @ m.w)[1], lambda: (x(), x()))
case("written_input_returned", lambda m, x, y: (y.mul_(x @ m.w.detach()), x @ m.w), lambda: (x(), x()))
case("written_and_used", lambda m, x, y: (x * y).sum(0) + y.add_(1) @ m.w, lambda: (x(), x()))
case("written_part", lambda m, x, y: (y[0].zero_(), x @ m.w + y)[1], lambda: (x(), x()))
case("written_integers", lambda m, x, y: (y.add_(2), x @ m.w * y)[1], lambda: (x(), torch.arange(4)))
case("written_with_gradient", lambda m, x: (x * 2).mul_(m.v) @ m.w, lambda: (x(grad=True),))
case("written_input_with_gradient", lambda m, x: x.mul_(m.v) @ m.w, lambda: (x(grad=True) * 1,), must=False)


def momentum_encoder(m: M, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.u.mul_(0.9).add_(m.v, alpha=0.1)
    return x @ m.w * m.u.detach()


case("written_parameter", momentum_encoder, must=False)
case("in_place_hidden", lambda m, x: F.relu(x @ m.w, inplace=True) * m.v)
case("in_place_slice", lambda m, x: (lambda h: (h[:, 0].mul_(2), h * m.v)[1])(x @ m.w))

# Operators.
case("layer_norm", lambda m, x: F.layer_norm(x @ m.w, (4,), m.v, m.u))
case("rms_norm", lambda m, x: F.rms_norm(x @ m.w, (4,), m.v, 1e-6))
case("softmax", lambda m, x: (x @ m.w).softmax(1).log_softmax(0) * m.v)
case("cross_entropy", lambda m, x, y: F.cross_entropy(x @ m.w, y), lambda: (x(), torch.randint(4, (5,))))
case("embedding", lambda m, i: F.embedding(i, m.w) * m.v, lambda: (torch.randint(4, (3, 5)),))
case("attention", lambda m, x: F.scaled_dot_product_attention(x @ m.w, x * m.v, x, is_causal=True), lambda: (x(2, 5, 4),))
case("multi_head", lambda m, x: m.a(x, x, x)[0], lambda: (x(2, 5, 4, grad=True),), a=lambda: nn.MultiheadAttention(4, 2, batch_first=True))
case("convolution", lambda m, x: F.max_pool2d(m.c(x), 2), lambda: (x(2, 3, 6, 6, grad=True),), c=lambda: nn.Conv2d(3, 4, 3, padding=1))
case("channels_last", lambda m, x: m.c(x), lambda: (x(2, 3, 6, 6).to(memory_format=torch.channels_last),), c=lambda: nn.Conv2d(3, 4, 3))
case("gru", lambda m, x: m.r(x)[0] * m.v, lambda: (x(5, 2, 4),), r=lambda: nn.GRU(4, 4), must=False)
case("cumulative", lambda m, x: (x @ m.w).cumsum(0) + (x * m.v).cumsum(1))
case("sorted", lambda m, x: (x @ m.w).sort(1)[0] * m.v)
case("topk", lambda m, x: (x @ m.w).topk(2, 1))
case("maximum", lambda m, x: (x @ m.w).max(1))
case("extremes", lambda m, x: (x @ m.w).clamp(-0.5, 0.5) + torch.maximum(x, m.v))
case("masked", lambda m, x, k: (x @ m.w).masked_fill(k, -1.0), lambda: (x(), torch.rand(5, 4) > 0.5))
case("gathered", lambda m, x, i: (x @ m.w).gather(1, i), lambda: (x(), torch.randint(4, (5, 2))))
case("scattered", lambda m, x, i: torch.zeros(5, 4).scatter_add(1, i, x @ m.w), lambda: (x(), torch.randint(4, (5, 4))))
case("indexed", lambda m, x, i: (x @ m.w)[i] + m.w[i], lambda: (x(), torch.randint(4, (3,))))
case("put", lambda m, x, i: (x @ m.w).index_put((i,), m.v), lambda: (x(), torch.tensor([0, 3])))
case("einsum", lambda m, x: torch.einsum("ij,jk,k->ik", x, m.w, m.v))
case("batched", lambda m, x: torch.bmm(x, x.transpose(1, 2)) @ (x @ m.w), lambda: (x(2, 3, 4, grad=True),))
case("vectors", lambda m, x: x @ m.v + m.u @ m.v)
case("statistics", lambda m, x: (x @ m.w).std(0) + (x * m.v).var(1, keepdim=True).sum() + (x @ m.w).norm())
case("sums", lambda m, x: (x @ m.w).logsumexp(1).sum() + (x * m.v).prod(0))
case("interpolated", lambda m, x: F.interpolate(x, scale_factor=2.0, mode="bilinear") * m.v[0], lambda: (x(1, 2, 3, 3, grad=True),))
case("fourier", lambda m, x: torch.fft.rfft(x @ m.w).abs(), must=False)
case("complex_input", lambda m, z: (z.abs() @ m.w), lambda: (torch.randn(5, 4, dtype=torch.complex64),), must=False)
case("vmapped", lambda m, x: torch.vmap(lambda r: r @ m.w)(x), must=False)
case("weight_normed", lambda m, x: m.l(x), l=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
case("shared_module", lambda m, x: m.l(m.l(x)), l=lambda: nn.Linear(4, 4))

# Dtypes and layouts of inputs.
case("double", linear, dtype=torch.float64)
case("bfloat16", linear, dtype=torch.bfloat16)
case("double_inside", lambda m, x: (x.double() @ m.w.double()).float() * m.v)
case("integer_input", lambda m, i: i * m.v, lambda: (torch.randint(9, (5, 4)),))
case("flags", lambda m, x, k: x * m.v * k, lambda: (x(), torch.rand(4) > 0.5))
case("transposed_input", linear, lambda: (x(4, 5).t(),))
case("unaligned_input", linear, lambda: (torch.randn(21)[1:].view(5, 4),))
case("expanded_input", linear, lambda: (x(1, 4).expand(5, 4),))
case("input_twice", lambda m, x, y: x @ m.w * y, lambda: (lambda a: (a, a))(x(grad=True)))
case("overlapping_inputs", lambda m, x, y: x @ m.w * y, lambda: (lambda a: (a[:3], a[2:]))(x()))
case("overlapping_written", lambda m, x, y: (y.add_(1), x @ m.w)[1], lambda: (lambda a: (a[:3], a[2:]))(x()), must=False)
case("keywords", lambda m, x, *, scale=None: x @ m.w if scale is None else x @ m.w * scale)

# Python and graph breaks.
case("print", lambda m, x: (lambda h: (print(end=""), h * m.v)[1])(x @ m.w))


def branch(m: M, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.w
    return h * m.v if h.sum() > 0 else h * m.u


case("branch", branch, calls=4)
case("item", lambda m, x: x @ m.w * (x * m.v).sum().item(), must=False)


def python_state(m: M, x: torch.Tensor) -> torch.Tensor:
    m.count += 1
    return x @ m.w * m.count


case("python_state", python_state, calls=3)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        return t * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 5


case("own_function", lambda m, x: Doubled.apply(x @ m.w) * m.v)


def hooked(m: M, x: torch.Tensor) -> torch.Tensor:
    h = x @ m.w
    h.register_hook(lambda g: g * 3)
    return h * m.v


case("tensor_hook", hooked)
case("checkpoint", lambda m, x: torch.utils.checkpoint.checkpoint(lambda t: (t @ m.w).sin(), x, use_reentrant=False) * m.v)


def autocast_inside(m: M, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = x @ m.w
    return h.float() * m.v


case("autocast_inside", autocast_inside, must=False)


def inference_inside(m: M, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        scale = (x * 2).clone()
    return x @ m.w * scale.clone()


case("inference_inside", inference_inside, must=False)


# Loops around a module.
@loop("sizes", linear)
def _(m: nn.Module, f: Run) -> Any:
    return [plain(m, f, lambda: (x(size, 4, grad=True),), 1) for size in (3, 4, 5, 3, 1)]


@loop("sizes_of_views", lambda m, x: ((x @ m.w).t(), x[1:], (x @ m.w).chunk(2)))
def _(m: nn.Module, f: Run) -> Any:
    return [plain(m, f, lambda: (x(size, 4, grad=True),), 1) for size in (4, 6, 8)]


@loop("memory_shared_later", lambda m, x, y: (y.add_(1), x @ m.w)[1], must=False)
def _(m: nn.Module, f: Run) -> Any:
    whole = x()
    return [(f(a, b), a, b) for a, b in ((x(3, 4), x(3, 4)), (whole[:3], whole[2:]))]


@loop("integer_argument", lambda m, x, k: (x @ m.w).repeat(k, 1), must=False)
def _(m: nn.Module, f: Run) -> Any:
    return [plain(m, f, lambda: (x(), k), 1) for k in (2, 3, 4)]


@loop("float_argument", lambda m, x, t: x @ m.w / t, must=False)
def _(m: nn.Module, f: Run) -> Any:
    return [plain(m, f, lambda: (x(), t), 1) for t in (1.5, 2.5, 3.5)]


@loop("no_grad", linear)
def _(m: nn.Module, f: Run) -> Any:
    with torch.no_grad():
        return f(x()), f(x())


@loop("no_grad_view_of_parameter", lambda m, x: (m.w.t(), x @ m.w))
def _(m: nn.Module, f: Run) -> Any:
    with torch.no_grad():
        out = f(x())
    return out, out[0].requires_grad


@loop("inference_mode", linear, must=False)
def _(m: nn.Module, f: Run) -> Any:
    with torch.inference_mode():
        return [t.clone() for t in (f(x()), f(x()))]


@loop("frozen_and_thawed", linear)
def _(m: nn.Module, f: Run) -> Any:
    seen = []
    for flag in (False, True, False):
        m.w.requires_grad_(flag)
        m.zero_grad()
        backward(f(x()))
        seen.append([None if p.grad is None else p.grad.clone() for p in m.parameters()])
    return seen


@loop("one_result_alone", lambda m, x: (x @ m.w, x * m.v, (x * m.u).exp()))
def _(m: nn.Module, f: Run) -> Any:
    seen = []
    for at in (0, 1, 1, 2):
        m.zero_grad()
        f(x())[at].sum().backward()
        seen.append([None if p.grad is None else p.grad.clone() for p in m.parameters()])
    return seen


@loop("infinite_derivative_of_an_unused_result", lambda m, x: ((m.v * x).sum(), (m.v * 0).log()))
def _(m: nn.Module, f: Run) -> Any:
    f(x())[0].backward()
    return m.v.grad


@loop("forwards_then_backwards", linear)
def _(m: nn.Module, f: Run) -> Any:
    outs = [f(x()) for _ in range(3)]
    for out in outs:
        backward(out)
    return outs


@loop("forwards_then_backwards_reversed", lambda m, x: m.norm(linear(m, x)), norm=lambda: nn.BatchNorm1d(4))
def _(m: nn.Module, f: Run) -> Any:
    outs = [f(x()) for _ in range(3)]
    for out in reversed(outs):
        backward(out)
    return outs


@loop("retained", lambda m, x: m.norm(linear(m, x)), norm=lambda: nn.BatchNorm1d(4))
def _(m: nn.Module, f: Run) -> Any:
    out = f(x())
    backward(out, retain_graph=True)
    first = m.w.grad.clone()
    backward(out, retain_graph=True)
    backward(out)
    return first, out


@loop("retained_input_modified", linear)
def _(m: nn.Module, f: Run) -> Any:
    a = x()
    out = f(a)
    backward(out, retain_graph=True)
    a.add_(1)
    backward(out)


@loop("backward_twice", linear)
def _(m: nn.Module, f: Run) -> Any:
    out = f(x())
    out.sum().backward()
    out.sum().backward()


@loop("parameter_modified_before_backward", lambda m, x: (x @ m.w) @ m.w)
def _(m: nn.Module, f: Run) -> Any:
    out = f(x())
    with torch.no_grad():
        m.w.mul_(2)
    out.sum().backward()


@loop("accumulated", linear)
def _(m: nn.Module, f: Run) -> Any:
    kept = []
    for _ in range(3):
        backward(f(x()))
        kept.append(m.w.grad)
    return [k.clone() for k in kept]


@loop("kept_gradients", linear)
def _(m: nn.Module, f: Run) -> Any:
    kept = []
    for _ in range(3):
        m.zero_grad(set_to_none=True)
        backward(f(x()))
        kept.append(m.w.grad)
    return kept


@loop("gradients_asked_for", linear)
def _(m: nn.Module, f: Run) -> Any:
    a = x(grad=True)
    return torch.autograd.grad(f(a).sum(), [a, m.w, m.u], allow_unused=True), m.w.grad


@loop("result_modified_afterwards", lambda m, x: (x @ m.w + m.v, x * m.u))
def _(m: nn.Module, f: Run) -> Any:
    out, other = f(x())
    out.mul_(2)
    other[0].zero_()
    backward((out, other))
    return out, other


@loop("view_result_modified_afterwards", lambda m, x: ((x @ m.w + m.v).t(), x * m.u))
def _(m: nn.Module, f: Run) -> Any:
    out = f(x())[0]
    out.mul_(2)
    backward(out)
    return out


@loop("saved_result_modified_afterwards", lambda m, x: (x @ m.w).sigmoid())
def _(m: nn.Module, f: Run) -> Any:
    out = f(x())
    out.mul_(2)
    out.sum().backward()


@loop("hooks_on_parameters", linear)
def _(m: nn.Module, f: Run) -> Any:
    seen = []
    m.w.register_hook(lambda g: g * 2)
    m.v.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for _ in range(2):
        backward(f(x()))
    return seen


@loop("forward_hook", lambda m, x: m.l(x), l=lambda: nn.Linear(4, 3))
def _(m: nn.Module, f: Run) -> Any:
    m.l.register_forward_hook(lambda module, args, out: out * 3)
    out = f(x())
    backward(out)
    return out


@loop("backward_hook_of_a_module", lambda m, x: m.l(x) * m.v[:3], l=lambda: nn.Linear(4, 3), must=False)
def _(m: nn.Module, f: Run) -> Any:
    m.l.register_full_backward_hook(lambda module, gi, go: (gi[0] * 2 if gi[0] is not None else None,))
    a = x(grad=True)
    backward(f(a))
    return a.grad


@loop("saved_tensor_hooks_around", linear, must=False)
def _(m: nn.Module, f: Run) -> Any:
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(1), t)[1], lambda t: t * 2):
        out = f(x())
    backward(out)
    return bool(packed)


@loop("autocast_around", linear, must=False)
def _(m: nn.Module, f: Run) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        out = f(x())
    backward(out)
    return out


@loop("index_out_of_range", lambda m, i: F.embedding(i, m.w) @ m.w)
def _(m: nn.Module, f: Run) -> Any:
    seen = []
    for bad in (False, True, False):
        try:
            seen.append(f(torch.tensor([0, 9 if bad else 1])))
        except IndexError as e:
            seen.append(str(e))
    return seen


@loop("two_models", linear)
def _(m: nn.Module, f: Run) -> Any:
    a = x(grad=True)
    backward(f(f(a)))
    return a.grad


@loop("adversary", linear)
def _(m: nn.Module, f: Run) -> Any:
    # A generator's result goes twice through the other network, once detached.
    weight = torch.ones(4, 4, requires_grad=True)
    fake = x() @ weight
    f(fake.detach()).sum().backward()
    first = m.w.grad.clone()
    m.zero_grad()
    f(fake).mean().backward()
    return first, weight.grad


@loop("optimizer", lambda m, x: m.norm(linear(m, x)).sigmoid().mean(), norm=lambda: nn.LayerNorm(4))
def _(m: nn.Module, f: Run) -> Any:
    # The optimizer's epsilon is above rounding, by which gradients that cancel differ.
    optimizer, losses = torch.optim.AdamW(m.parameters(), 0.01, eps=1e-3), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = f(x())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        optimizer.step()
        losses.append(loss)
    return losses, list(m.parameters())


@loop("grad_scaler", lambda m, x: (linear(m, x) ** 2).mean())
def _(m: nn.Module, f: Run) -> Any:
    optimizer, scaler = torch.optim.SGD(m.parameters(), 0.1), torch.amp.GradScaler("cpu")
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(f(x())).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale(), list(m.parameters())


@loop("tied_weights", lambda m, i: F.embedding(i, m.w) @ m.w.t())
def _(m: nn.Module, f: Run) -> Any:
    backward(f(torch.tensor([1, 1, 3])))
    return m.w.grad


@loop("weights_replaced", linear)
def _(m: nn.Module, f: Run) -> Any:
    seen = [f(x())]
    m.w.data = m.w.data * 2
    seen.append(f(x()))
    m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})
    seen.append(f(x()))
    return seen


@loop("strided_weights", linear)
def _(m: nn.Module, f: Run) -> Any:
    m.w = nn.Parameter(m.w.data.t())
    out = f(x())
    backward(out)
    return out, m.w.grad.contiguous()


@loop("train_and_eval", lambda m, x: m.norm(x @ m.w), norm=lambda: nn.BatchNorm1d(4))
def _(m: nn.Module, f: Run) -> Any:
    seen = []
    for train in (True, False, True):
        m.train(train)
        seen.append(f(x()))
        backward(seen[-1])
    return seen


def observed(made: Case, compiled: Optional[Callable[[nn.Module], Run]] = None, seed: int = 0) -> Any:
    """What a case shows: its own results, or its error, and the module's gradients and buffers."""
    torch.manual_seed(seed)
    module = made.module()
    run = module if compiled is None else compiled(module)
    torch.manual_seed(seed + 1)
    try:
        shown: Any = made.scenario(module, run)
    except Exception as e:
        # Gradients of an unfinished step are not compared.
        return e
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return shown, gradients, dict(module.named_buffers()), {name: p.detach() for name, p in module.named_parameters()}


#: Relative to the largest element: some hundred units of rounding. A wrong formula is off by far more.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 4e-2}


def compare(got: Any, want: Any, path: str = "") -> None:
    """Raises `AssertionError` where the two differ."""
    if isinstance(got, BaseException) and not isinstance(want, BaseException):
        raise AssertionError(f"{path}: {got!r}") from got
    assert isinstance(got, type(want)) or isinstance(want, type(got)), f"{path}: {type(got)}, expected {type(want)}"
    if isinstance(want, BaseException):
        return
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{path}: {got.dtype} {tuple(got.shape)}"
        assert got.requires_grad == want.requires_grad, f"{path}: requires_grad is {got.requires_grad}"
        if not want.dtype.is_floating_point:
            assert torch.equal(got, want), path
            return
        a, b = got.detach().double(), want.detach().double()
        assert torch.equal(a.isfinite(), b.isfinite()), f"{path}: not finite"
        size = torch.where(b.isfinite(), b.abs(), 0.0).max().item() if b.numel() else 0.0
        off = torch.where(b.isfinite(), (a - b).abs(), 0.0).max().item() if b.numel() else 0.0
        assert off <= TOLERANCE[want.dtype] * size, f"{path}: off by {off:.2e} of {size:.2e}"
    elif isinstance(want, dict):
        assert got.keys() == want.keys(), path
        for key in want:
            compare(got[key], want[key], f"{path}.{key}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), path
        for i, (a, b) in enumerate(zip(got, want)):
            compare(a, b, f"{path}[{i}]")
    else:
        assert got == want, f"{path}: {got}, expected {want}"
