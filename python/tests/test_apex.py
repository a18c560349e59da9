"""`headwater.apex`: twenty loops of scripts unchanged, beside a float64 in which nothing is scaled or cast; scales, skipped steps
and checkpoints by apex's rules; optimizers by their papers' formulas."""

import copy
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import warnings
from typing import Any, Callable, Iterator

import pytest
import torch
from apex_loops import LOOPS

import headwater
from headwater import apex, precision
from headwater.apex import amp, fp16_utils, optimizers, parallel
from headwater.apex.contrib.gradient_fusion import GradientFusion
from headwater.apex.state import LossScaler

F = torch.nn.functional
nn = torch.nn

TESTS = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    amp._reset()
    yield
    amp._reset()


def command(*args: str, **settings: Any) -> str:
    """What `python -m headwater.apex` prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "headwater.apex", *args], cwd=TESTS, env=environment, text=True, capture_output=True, **settings
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def loops(kind: str) -> dict[str, Any]:
    printed = command("--devices", "npu,cuda", "apex_loops.py", kind)
    (line,) = [line for line in printed.splitlines() if line.startswith("RESULTS ")]
    assert "the device names npu, cuda mean the CPU" in printed
    return json.loads(line.removeprefix("RESULTS "))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    return {kind: loops(kind) for kind in ("headwater", "f32", "float64")}


def apart(got: list[float], want: list[float]) -> float:
    assert len(got) == len(want) >= 8
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(got, want))


#: Losses of size 1 to 2 after at most 24 batches, of models some ten operators deep: some hundred units of rounding.
F32 = 200 * 2.0**-24
#: The same in f16; a loss comes of some ten roundings, and steps add to them.
F16 = 40 * 2.0**-11


@pytest.mark.parametrize("name", LOOPS)
def test_loop(name: str, runs: dict[str, dict[str, Any]]) -> None:
    want = runs["float64"][name]["losses"]
    # Scales, accumulation, clipping and optimizers: without casts, which would hide small faults.
    assert apart(runs["f32"][name]["losses"], want) < F32
    got = runs["headwater"][name]
    assert apart(got["losses"], want) < F16
    assert got["refused"] == 0
    compiled = name not in ("o0", "torch_scaler_with_a_fused_optimizer", "fp16_optimizer")
    assert (got["plans"] > 0) == compiled
    casts = compiled or name == "fp16_optimizer"
    assert (got["losses"] == runs["f32"][name]["losses"]) != casts, "it was computed in f32"


def test_there_are_twenty_loops() -> None:
    assert len(LOOPS) >= 20
    text = "".join(LOOPS.values())
    for level in ("O0", "O1", "O2", "O3"):
        assert f"opt_level='{level}'" in text


def test_a_wrong_rule_is_seen_by_the_loops(runs: dict[str, dict[str, Any]]) -> None:
    # A step that is left out: the loss of the next batch as it was before.
    want = runs["float64"]["o1_dynamic_adam"]["losses"]
    assert apart([want[0], *want[:-1]], want) > F16


# Loss scales, by the rules of apex's LossScaler.


def scales(found: list[bool], **settings: Any) -> list[tuple[float, int, bool]]:
    scaler, seen = LossScaler(settings.pop("loss_scale", "dynamic"), **settings), []
    for overflow in found:
        scaler.clear_overflow_state()
        scaler._has_overflow = overflow
        skipped = scaler.update_scale()
        seen.append((scaler.loss_scale(), scaler._unskipped, skipped))
    return seen


def test_a_dynamic_scale_starts_at_2_16_and_is_halved_at_overflow() -> None:
    assert scales([False, True, True, False]) == [
        (65536.0, 1, False),
        (32768.0, 0, True),
        (16384.0, 0, True),
        (16384.0, 1, False),
    ]


def test_it_doubles_after_2000_steps_up_to_2_24() -> None:
    seen = scales([False] * 2000)
    assert seen[1998] == (65536.0, 1999, False) and seen[1999] == (131072.0, 0, False)
    assert scales([False] * 2000 * 10)[-1][0] == 2.0**24


def test_limits_of_the_scale() -> None:
    assert scales([True] * 3, min_loss_scale=20000.0)[-1][0] == 20000.0
    assert LossScaler("dynamic", max_loss_scale=1024.0).loss_scale() == 1024.0


def test_a_scale_that_is_a_number_stays_and_skips_nothing() -> None:
    assert scales([True, False], loss_scale=128.0) == [(128.0, 1, False), (128.0, 2, False)]


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))


def prepared(level: str, capsys: Any = None, **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    m = model()
    return amp.initialize(m, torch.optim.SGD(m.parameters(), lr=0.1), opt_level=level, **settings)  # type: ignore[no-any-return]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 6)
    return x, x[:, :3].argmax(1)


def backward(m: nn.Module, o: torch.optim.Optimizer, factor: float = 1.0, **settings: Any) -> None:
    x, y = batch()
    with amp.scale_loss(F.cross_entropy(m(x), y) * factor, o, **settings) as scaled:
        scaled.backward()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_step_that_overflows_is_skipped(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    m, o = prepared(level)
    before = copy.deepcopy(m.state_dict())
    backward(m, o, 1e38)
    o.step()
    assert all(torch.equal(v, before[k]) for k, v in m.state_dict().items())
    said = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0"
    assert said in capsys.readouterr().out
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 32768.0, "unskipped": 0}}
    # One step alone is left out.
    o.zero_grad()
    backward(m, o)
    o.step()
    assert not torch.equal(m.state_dict()["0.weight"], before["0.weight"])
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 32768.0, "unskipped": 1}}
    assert amp._amp_state.loss_scalers[0].loss_scale() == 32768.0


def test_verbosity_0_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    m, o = prepared("O1", verbosity=0)
    backward(m, o, 1e38)
    o.step()
    assert capsys.readouterr().out == ""


def test_each_loss_has_a_scale_of_its_own() -> None:
    m, o = prepared("O1", num_losses=2)
    backward(m, o, 1e38, loss_id=1)
    o.step()
    assert [s["loss_scale"] for s in amp.state_dict().values()] == [65536.0, 32768.0]


def test_scales_go_on_from_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    m, o = prepared("O2")
    backward(m, o, 1e38)
    backward(m, o)
    saved = amp.state_dict()
    assert saved == {"loss_scaler0": {"loss_scale": 32768.0, "unskipped": 1}}
    amp._reset()
    prepared("O2", num_losses=2)
    amp.load_state_dict(saved)
    assert amp.state_dict()["loss_scaler0"] == saved["loss_scaler0"]
    assert "Warning: state_dict contains 1 entries, while 2 loss_scalers are used" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="Unexpected key.*other"):
        amp.load_state_dict({"other": {}})


def test_gradients_are_unscaled_and_add_up() -> None:
    """Two batches with `scale_loss` each have the gradient of both, and so do two with delayed unscaling."""
    for delayed in (False, True):
        amp._reset()
        m, o = prepared("O1", loss_scale=4096.0)
        twin = model()
        for last in (False, True):
            x, y = batch()
            F.cross_entropy(twin(x), y).backward()
            with amp.scale_loss(F.cross_entropy(m(x), y), o, delay_unscale=delayed and not last) as scaled:
                scaled.backward()
        for p, q in zip(m.parameters(), twin.parameters()):
            assert p.grad is not None and q.grad is not None
            assert (p.grad - q.grad).norm() < 8 * 2.0**-11 * q.grad.norm()


def test_what_apex_refuses_is_refused() -> None:
    def refused(match: str, level: str, **settings: Any) -> None:
        amp._reset()
        with pytest.raises(RuntimeError, match=match):
            prepared(level, **settings)

    refused("letter O, not the number zero", "01")
    refused("cast_model_type was", "O1", cast_model_type=torch.float16)
    refused("keep_batchnorm_fp32", "O1", keep_batchnorm_fp32=True)
    refused("patch_torch_functions=True", "O2", patch_torch_functions=True)
    m = model()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    amp.initialize(m, o)
    with pytest.raises(RuntimeError, match="only be passed through amp.initialize once"):
        amp.initialize(model(), o)
    with pytest.raises(RuntimeError, match="0.weight is of torch.float16"):
        amp.initialize(model().half(), opt_level="O2")
    with pytest.raises(RuntimeError, match="was not given to amp.initialize"):
        with amp.scale_loss(torch.ones(()), torch.optim.SGD(m.parameters(), lr=1.0)):
            pass


def test_disabled_it_does_nothing() -> None:
    m = model()
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    assert amp.initialize(m, o, enabled=False) == (m, o)
    loss = torch.ones((), requires_grad=True)
    with amp.scale_loss(loss, o) as scaled:
        assert scaled is loss


def test_shapes_of_what_comes_back() -> None:
    m, o = model(), None
    assert amp.initialize(m, opt_level="O0") is m
    assert amp.initialize([m], opt_level="O0") == [m]
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    assert amp.initialize([m], o, opt_level="O0") == ([m], o)


# Casts.


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casts_err_as_eager_mode_does(level: str, dtype: torch.dtype) -> None:
    """Gradients are as far from float64 as those of a module that is cast by hand, at most three times."""
    x, y = torch.randn(32, 6), torch.randint(3, (32,))

    def error(m: nn.Module, loss: torch.Tensor) -> float:
        exact = model().double()
        F.cross_entropy(exact(x.double()), y).backward()
        own = torch.autograd.grad(loss, list(m.parameters()))
        pairs = [(g.double(), p.grad) for g, p in zip(own, exact.parameters())]
        return max(float((g - e).norm() / e.norm()) for g, e in pairs)  # type: ignore[operator, union-attr]

    settings: dict[str, Any] = {"dtype": dtype} if level == "O1" else {"cast_model_type": dtype}
    m = amp.initialize(model(), opt_level=level, **settings)
    out = m(x)
    assert out.dtype is torch.float32
    low = model().to(dtype)
    theirs = error(low, F.cross_entropy(low(x.to(dtype)).float(), y))
    got = error(m, F.cross_entropy(out, y))
    assert 0.05 * theirs < got < 3 * theirs, (got, theirs)
    assert headwater.counters().refused == 0
    want = dtype if level == "O3" else torch.float32
    assert all(p.dtype is want for p in m.parameters())


class Hooked(nn.Module):
    """What no plan takes: a hook on a tensor that changes gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.a(x))
        h.register_hook(lambda g: g * 2)
        return self.b(F.gelu(h))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_refused_model_runs_in_eager_mode_under_the_same_policy(level: str) -> None:
    torch.manual_seed(2)
    m, exact = Hooked(), None
    exact = copy.deepcopy(m).double()
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    m, o = amp.initialize(m, o, opt_level=level, loss_scale=128.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            o.zero_grad()
            out = m(x)
            with amp.scale_loss(F.cross_entropy(out, y), o) as scaled:
                scaled.backward()
    said = [w for w in caught if issubclass(w.category, headwater.UnsupportedWarning)]
    assert len(said) == 1 and "hook on a tensor" in str(said[0].message)
    assert out.dtype is torch.float32
    reference = exact(x.double())
    F.cross_entropy(reference, y).backward()
    off = float(((out.double() - reference).norm() / reference.norm()).detach())
    # In f16, not in f32: off by its rounding, and by no more than some of them.
    assert 2.0**-15 < off < 2.0**-8
    for p, q in zip(m.parameters(), exact.parameters()):
        if q.grad is not None and q.grad.norm() > 1e-3:
            assert p.grad is not None and (p.grad - q.grad).norm() < 2.0**-6 * q.grad.norm()


def test_the_lists_of_eager_mode() -> None:
    m = model()
    x = torch.randn(4, 6)
    with precision._Lists(torch.float16):
        h = m[0](x)
        assert h.dtype is torch.float16
        assert F.gelu(h).dtype is torch.float32
        assert torch.relu(h).dtype is torch.float16
        assert torch.softmax(h, -1).dtype is torch.float32
        assert (h @ h.t()).dtype is torch.float16
        assert torch.cat([h, h.float()]).dtype is torch.float32
        assert F.cross_entropy(h, torch.zeros(4, dtype=torch.long)).dtype is torch.float32
        attention, _ = F.multi_head_attention_forward(
            *[torch.randn(3, 2, 4) for _ in range(3)],
            embed_dim_to_check=4,
            num_heads=2,
            in_proj_weight=torch.randn(12, 4),
            in_proj_bias=torch.zeros(12),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=torch.randn(4, 4),
            out_proj_bias=torch.zeros(4),
        )
        assert attention.dtype is torch.float16


def test_without_casts_models_compute_in_f32() -> None:
    m = amp.initialize(model(), opt_level="O1")
    x = torch.randn(4, 6)
    low = m(x)
    with amp.disable_casts():
        assert torch.equal(m(x), model()(x))
    assert not torch.equal(low, model()(x)) and torch.equal(m(x), low)


def test_registered_functions_are_patched_at_o1_and_put_back() -> None:
    seen = []

    class Module:
        @staticmethod
        def scale(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, y.dtype))
            return x * y

    own = Module.scale
    amp.register_half_function(Module, "scale")
    amp.initialize(model(), opt_level="O2")
    Module.scale(torch.ones(1), torch.ones(1))
    amp.initialize(model(), opt_level="O1")
    Module.scale(torch.ones(1), torch.ones(1))
    amp.register_promote_function(Module, "scale")
    assert seen == [(torch.float32,) * 2, (torch.float16,) * 2]
    amp._reset()
    assert Module.scale is own
    with pytest.raises(ValueError, match="No function named other"):
        amp.register_half_function(Module, "other")
    with pytest.raises(ValueError, match="method of torch.Tensor"):
        amp.register_half_function(torch.Tensor, "exp")


# Optimizers, beside formulas in float64.

Rule = Callable[[int, torch.Tensor, torch.Tensor, dict[str, Any]], torch.Tensor]


def adam(decoupled: bool, corrected: bool = True, decay: float = 0.1) -> Rule:
    def step(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
        g = g if decoupled else g + decay * p
        s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.999 * s.get("v", 0) + 0.001 * g * g
        a, b = (1 - 0.9**t, 1 - 0.999**t) if corrected else (1, 1)
        u = (s["m"] / a) / ((s["v"] / b).sqrt() + 1e-8)
        return p - 0.01 * (u + (decay * p if decoupled else 0))

    return step


def novograd(inside: bool) -> Rule:
    def step(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
        n = g.norm()
        s["v"] = n if "v" not in s else (0.98 * s["v"] ** 2 + 0.02 * n**2).sqrt()
        scale = s["v"] / math.sqrt(1 - 0.98**t) + 1e-8
        if inside:
            s["m"] = 0.95 * s.get("m", 0) + 0.05 * (g / scale + 0.1 * p)
            return p - 0.01 * s["m"] / (1 - 0.95**t)
        s["m"] = 0.95 * s.get("m", 0) + 0.05 * g
        return p - 0.01 * (s["m"] / (1 - 0.95**t) / scale + 0.1 * p)

    return step


def rmsprop_tf(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
    s["v"] = 0.9 * s.get("v", 1.0) + 0.1 * g * g
    s["b"] = 0.5 * s.get("b", 0) + 0.01 * g / (s["v"] + 1e-10).sqrt()
    return p - s["b"]


def bert_adam(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
    g = g * min(1.0, 0.5 / float(g.norm() + 1e-6))
    s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.99 * s.get("v", 0) + 0.01 * g * g
    x = (t - 1) / 10
    factor = x / 0.2 if x < 0.2 else (1 - x) / 0.8
    return p - 0.01 * factor * (s["m"] / (s["v"].sqrt() + 1e-6) + 0.1 * p)


def lamb(limit: float, corrected: bool) -> Rule:
    def step(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
        s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.999 * s.get("v", 0) + 0.001 * g * g
        a, b = (1 - 0.9**t, 1 - 0.999**t) if corrected else (1, 1)
        u = (s["m"] / a) / ((s["v"] / b).sqrt() + 1e-6) + 0.1 * p
        return p - 0.01 * min(float(p.norm()), limit) / u.norm() * u

    return step


def adagrad(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
    s["v"] = s.get("v", 0) + g * g
    return p - 0.01 * (g / (s["v"].sqrt() + 1e-10) + 0.1 * p)


def sgd_after(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
    s["b"] = g if "b" not in s else 0.9 * s["b"] + g
    return p - 0.01 * (s["b"] + 0.1 * p)


def adamp(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
    s["m"], s["v"] = 0.9 * s.get("m", 0) + 0.1 * g, 0.999 * s.get("v", 0) + 0.001 * g * g
    u = s["m"] / ((s["v"] / (1 - 0.999**t)).sqrt() + 1e-8)
    decay = 0.1
    for rows in (p.shape[0], 1) if p.dim() > 1 else ():
        w, d = p.reshape(rows, -1), g.reshape(rows, -1)
        cosine = ((w * d).sum(1) / (w.norm(dim=1) * d.norm(dim=1))).abs()
        if cosine.max() < 0.9 / math.sqrt(w.shape[1]):
            unit, flat = w / w.norm(dim=1, keepdim=True), u.reshape(rows, -1)
            u, decay = (flat - unit * (unit * flat).sum(1, keepdim=True)).reshape(u.shape), 0.01
            break
    return p * (1 - 0.01 * decay) - 0.01 / (1 - 0.9**t) * u


def torch_rule(kind: Any, **settings: Any) -> Rule:
    """A rule of PyTorch's own, in float64."""

    def step(t: int, p: torch.Tensor, g: torch.Tensor, s: dict[str, Any]) -> torch.Tensor:
        if "o" not in s:
            s["p"] = nn.Parameter(p.clone())
            s["o"] = kind([s["p"]], foreach=False, **settings)
        s["p"].grad = g
        s["o"].step()
        return s["p"].detach().clone()

    return step


RULES: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Rule]] = {
    "FusedAdam": (lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1), adam(True)),
    "FusedAdam L2": (lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1, adam_w_mode=False), adam(False)),
    "FusedAdam plain": (
        lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1, bias_correction=False),
        adam(True, corrected=False),
    ),
    "FusedAdam plain L2": (
        lambda p: optimizers.FusedAdam(p, lr=0.01, weight_decay=0.1, bias_correction=False, adam_w_mode=False),
        adam(False, corrected=False),
    ),
    "FusedSGD": (
        lambda p: optimizers.FusedSGD(p, lr=0.01, momentum=0.9, dampening=0.2, weight_decay=0.1),
        torch_rule(torch.optim.SGD, lr=0.01, momentum=0.9, dampening=0.2, weight_decay=0.1),
    ),
    "FusedSGD nesterov": (
        lambda p: optimizers.FusedSGD(p, lr=0.01, momentum=0.9, nesterov=True),
        torch_rule(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    ),
    "FusedSGD decay after": (
        lambda p: optimizers.FusedSGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, wd_after_momentum=True),
        sgd_after,
    ),
    "FusedLAMB": (lambda p: optimizers.FusedLAMB(p, lr=0.01, weight_decay=0.1, max_grad_norm=0.0), lamb(math.inf, True)),
    "FusedNovoGrad": (
        lambda p: optimizers.FusedNovoGrad(p, lr=0.01, betas=(0.95, 0.98), weight_decay=0.1),
        novograd(False),
    ),
    "FusedNovoGrad inside": (
        lambda p: optimizers.FusedNovoGrad(p, lr=0.01, betas=(0.95, 0.98), weight_decay=0.1, reg_inside_moment=True),
        novograd(True),
    ),
    "FusedAdagrad": (lambda p: optimizers.FusedAdagrad(p, lr=0.01, weight_decay=0.1, adagrad_w_mode=True), adagrad),
    "FusedAdagrad L2": (
        lambda p: optimizers.FusedAdagrad(p, lr=0.01, weight_decay=0.1),
        torch_rule(torch.optim.Adagrad, lr=0.01, weight_decay=0.1),
    ),
    "NpuFusedAdam": (lambda p: optimizers.NpuFusedAdam(p, lr=0.01, weight_decay=0.1), adam(False)),
    "NpuFusedAdamW": (lambda p: optimizers.NpuFusedAdamW(p, lr=0.01, weight_decay=0.1), adam(True)),
    "NpuFusedLamb": (lambda p: optimizers.NpuFusedLamb(p, lr=0.01, weight_decay=0.1), lamb(10.0, False)),
    "NpuFusedAdadelta": (
        lambda p: optimizers.NpuFusedAdadelta(p, lr=0.5, weight_decay=0.1),
        torch_rule(torch.optim.Adadelta, lr=0.5, weight_decay=0.1),
    ),
    "NpuFusedRMSprop": (
        lambda p: optimizers.NpuFusedRMSprop(p, lr=0.01, momentum=0.5, centered=True, weight_decay=0.1),
        torch_rule(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True, weight_decay=0.1),
    ),
    "NpuFusedRMSpropTF": (lambda p: optimizers.NpuFusedRMSpropTF(p, lr=0.01, momentum=0.5), rmsprop_tf),
    "NpuFusedBertAdam": (
        lambda p: optimizers.NpuFusedBertAdam(p, lr=0.01, warmup=0.2, t_total=10, weight_decay=0.1, max_grad_norm=0.5),
        bert_adam,
    ),
    "NpuFusedAdamP": (lambda p: optimizers.NpuFusedAdamP(p, lr=0.01, weight_decay=0.1, delta=0.9), adamp),
    "NpuFusedSGD": (
        lambda p: optimizers.NpuFusedSGD(p, lr=0.01, momentum=0.9),
        torch_rule(torch.optim.SGD, lr=0.01, momentum=0.9),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_optimizer(name: str) -> None:
    make, rule = RULES[name]
    params = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(3, 2, 2))]
    exact, states = [p.detach().double() for p in params], [{} for _ in params]  # type: ignore[var-annotated]
    o = make(params)
    for t in range(1, 7):
        if t == 4:
            # State of a checkpoint goes on.
            saved = copy.deepcopy(o.state_dict())
            o = make(params)
            o.load_state_dict(saved)
        for i, p in enumerate(params):
            p.grad = torch.randn_like(p)
            exact[i] = rule(t, exact[i], p.grad.double(), states[i])
        o.step()
    for p, e in zip(params, exact):
        # Numbers of size 1 after six steps of some ten roundings each.
        assert (p.double() - e).norm() < 100 * 2.0**-24 * e.norm(), (p.double() - e).norm() / e.norm()
    with pytest.raises(AssertionError):
        off = exact[0] + 0.001 * (exact[0] - params[0].detach().double() + 0.01)
        assert (params[0].double() - off).norm() < 100 * 2.0**-24 * off.norm()


def test_global_clipping_and_the_scalers_protocol() -> None:
    def made(**settings: Any) -> tuple[nn.Parameter, Any]:
        p = nn.Parameter(torch.ones(4))
        p.grad = torch.full((4,), 8.0)
        return p, optimizers.FusedSGD([p], lr=1.0, **settings)

    p, o = made(max_grad_norm=2.0)
    o.step()
    torch.testing.assert_close(p.detach(), torch.zeros(4), atol=1e-6, rtol=0)
    p, o = made()
    assert float(o.clip_optimizer_grad_norm_fused(4.0)) == 16.0
    torch.testing.assert_close(p.grad, torch.full((4,), 2.0), atol=1e-5, rtol=0)
    p, o = made()
    o.step(grad_scale=torch.tensor(16.0))
    torch.testing.assert_close(p.detach(), torch.full((4,), 0.5))
    p, o = made()
    o.step(found_inf=torch.tensor(1.0))
    assert torch.equal(p.detach(), torch.ones(4))
    p, o = made()
    p.grad = p.grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        o.step()


# Names and the command line.


def test_other_parts() -> None:
    m = model()
    assert GradientFusion(m, fusion_size=8) is m
    assert isinstance(parallel.convert_syncbn_model(nn.Sequential(nn.BatchNorm1d(2)))[0], nn.SyncBatchNorm)
    half = fp16_utils.network_to_half(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    assert half[1][0].weight.dtype is torch.float16 and half[1][1].weight.dtype is torch.float32
    with pytest.raises(RuntimeError, match="gradient_average"):
        parallel.DistributedDataParallel(m, gradient_average=False)


SCRIPT = """
import sys, argparse
import apex, importlib.util
from apex import amp
import torch
assert importlib.util.find_spec("apex.amp") is not None
parser = argparse.ArgumentParser()
parser.add_argument("--amp-opt-level", default="O1")
args = parser.parse_args()
N, D_in, D_out = 8, 16, 4
x, y = torch.randn(N, D_in, device="cuda"), torch.randn(N, D_out, device="cuda")
model = torch.nn.Linear(D_in, D_out).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer = amp.initialize(model, optimizer, opt_level=args.amp_opt_level)
first = None
for t in range(20):
    loss = torch.nn.functional.mse_loss(model(x), y)
    first = first or loss.item()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
print("version", apex.__version__, args.amp_opt_level, loss.item() < first)
"""


def test_the_snippet_of_apexs_documentation_on_the_command_line(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    printed = command("--devices", "cuda", str(script), "--amp-opt-level", "O2")
    assert "headwater.apex: the device name cuda means the CPU" in printed
    assert f"version {apex.__version__} O2 True" in printed
    assert "Selected optimization level O2" in printed


def test_without_devices_calls_for_them_fail_as_before(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntry:\n    torch.ones(2).cuda()\nexcept Exception as e:\n    print('failed', type(e).__name__)\n")
    assert "failed" in command(str(script))
    script.write_text("import torch\ntry:\n    torch.npu.nothing_of_ours\nexcept AttributeError as e:\n    print(e)\n")
    assert "torch.npu.nothing_of_ours: headwater.apex has" in command("--devices", "npu", str(script))
    with pytest.raises(ValueError, match="'tpu' is none of npu, cuda"):
        apex.install(["tpu"])


def test_importing_it_puts_nothing_under_the_name_apex() -> None:
    code = "import sys, headwater.apex; assert 'apex' not in sys.modules; headwater.apex.install(); import apex.amp; print('ok')"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.stdout == "ok\n", done.stderr
    assert importlib.util.find_spec("apex") is None
