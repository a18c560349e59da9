"""Records what PyTorch computes in mixed precision: three of the families' models under `torch.autocast` and with low-precision
weights beside float32 masters, the choices of autocast operator by operator, and sequences of loss scales.

    python -m headwater_tools.precision goldens/precision
"""

import copy
import functools
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from .families import build
from .operator_cases import collect
from .operators import Cases
from .recorder import save, selection
from .truth import GivenGraph, evaluate

FAMILIES = ("vit", "llama", "resnet")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
STEPS = 20
GROWTH_INTERVAL = 5  # of the recorded runs, so that growth is seen in 20 steps
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def autocast_graph(dtype):
    """An exported graph's operators run one by one under `torch.autocast`."""

    class AutocastGraph(GivenGraph):
        context = functools.partial(torch.autocast, "cpu", dtype=dtype)

    return AutocastGraph


def steps(module, args, dtype, level, scale, keep_batchnorm=True):
    """Trains a copy of `module` on `args`. Returns the curves and the float32 weights at the end.

    level: "O1", float32 weights under autocast; or "O2", low-precision weights with float32 masters: the masters take the
    gradients widened, and are rounded to the weights after each step.
    """
    module = copy.deepcopy(module)
    names = [n for n, p in module.named_parameters() if p.requires_grad]
    masters = [p.detach().clone().requires_grad_() for p in module.parameters() if p.requires_grad]
    if level == "O2":
        module.to(dtype)
        for m in module.modules():
            if keep_batchnorm and isinstance(m, nn.modules.batchnorm._BatchNorm):
                m.float()
        args = [a.to(dtype) if a.is_floating_point() else a for a in args]
    weights = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(masters, **ADAMW)
    scaler = torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL)
    scaler.scale(torch.zeros(()))  # which makes its state
    curve = {name: [] for name in ("loss", "scale", "norm", "skipped")}
    for _ in range(STEPS):
        for m, p in zip(masters, weights):
            p.data.copy_(m.data)
            p.grad = None
        used = scaler.get_scale() if scale == "dynamic" else float(scale)
        with torch.autocast("cpu", dtype=dtype, enabled=level == "O1"):
            loss = module(*args)[0]
        (loss.float() * used).backward()
        for m, p in zip(masters, weights):
            m.grad = None if p.grad is None else p.grad.float() / used
        grads = [m.grad for m in masters if m.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in grads]))
        finite = bool(norm.isfinite())
        if finite:
            optimizer.step()
        scale_after(scaler, not finite)
        for name, value in ("loss", loss.item()), ("scale", used), ("norm", norm.item()), ("skipped", float(not finite)):
            curve[name].append(value)
    curve = {f"curve.{name}": torch.tensor(values, dtype=torch.float64) for name, values in curve.items()}
    return curve, {name: m.detach() for name, m in zip(names, masters)}


def scale_after(scaler, found_inf):
    """One update of a `GradScaler` by its own public steps: an optimizer whose gradient is what was found."""
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.tensor([float("inf") if found_inf else 0.0])
    optimizer = torch.optim.SGD([p], lr=0.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def family(name, folder):
    module, args = build(name)
    program = torch.export.load(Path(folder).parent / name / f"{name}.train.pt2")
    tensors = {}
    for short, dtype in DTYPES.items():
        truth = evaluate(program, args, selection(program, "all"), autocast_graph(dtype))
        prefix = f"{short}.O1"
        tensors[f"{prefix}.loss"] = truth.outputs[0]
        tensors |= {f"{prefix}.node.{n}": v for n, v in truth.nodes.items()}
        tensors |= {f"{prefix}.grad.{n}": v for n, v in truth.grads.items()}
        runs = [("O1", 1, True), ("O1", "dynamic", True)] + [("O2", s, True) for s in (1, 128, "dynamic")]
        if name == "resnet":
            runs.append(("O2", 128, False))
        for level, scale, keep in runs:
            curve, weights = steps(module, args, dtype, level, scale, keep)
            run = f"{short}.{level}.{scale}" + ("" if keep else ".low_batchnorm")
            tensors |= {f"{run}.{n}": v for n, v in curve.items()}
            if scale == 128:
                tensors |= {f"{run}.weight.{n}": v for n, v in weights.items()}
    metadata = {
        "format": "headwater-precision-1",
        "torch": torch.__version__.split("+")[0],
        "archive": f"{name}.train.pt2",
        "optimizer": json.dumps({"name": "AdamW", **ADAMW}),
        "growth_interval": str(GROWTH_INTERVAL),
    }
    save(tensors, Path(folder) / f"{name}.safetensors", metadata)


def patterns():
    """Overflow patterns of 10,000 steps, and the settings of the scaler they are for."""
    g = torch.Generator().manual_seed(0)
    count = 10_000
    draw = lambda share: torch.rand(count, generator=g) < share
    rare, often, never = draw(2e-4), draw(0.1), draw(-1.0)
    burst = never.clone()
    burst[2_100:2_300] = True  # sinks to 0 in float32, unless there is a floor
    grown = never.clone()
    grown[[1_999, 2_000, 4_000, 6_001, 8_002]] = True  # at and beside the moments of growth
    return {
        "rare": (rare, {}),
        "often": (often, {"growth_interval": 7}),
        "never": (never, {"growth_interval": 40}),  # grows until the next scale would be infinite
        "burst": (burst, {}),
        "grown": (grown, {}),
        "factors": (often, {"growth_factor": 1.5, "backoff_factor": 0.3, "growth_interval": 11, "init_scale": 1000.0}),
    }


def by_torch(found, settings):
    """(scale, growth tracker) after each step of `torch.amp.GradScaler`."""
    scaler = torch.amp.GradScaler("cpu", **settings)
    scaler.scale(torch.zeros(()))
    for inf in found:
        scale_after(scaler, bool(inf))
        state = scaler.state_dict()
        yield state["scale"], state["_growth_tracker"]


def by_apex(found, settings):
    """(scale, unskipped) after each step of apex's LossScaler: halved at an overflow, doubled after `scale_window` steps without
    one, between `min_loss_scale` (none: no floor) and `max_loss_scale`."""
    largest = settings.get("max_loss_scale", 2.0**24)
    smallest = settings.get("min_loss_scale")
    window = settings.get("scale_window", 2000)
    scale, unskipped = min(largest, settings.get("init_scale", 2.0**16)), 0
    for inf in found:
        if inf:
            scale = scale / 2.0 if smallest is None else max(smallest, scale / 2.0)
            unskipped = 0
        else:
            unskipped += 1
        if unskipped == window:
            scale = min(largest, scale * 2.0)
            unskipped = 0
        yield scale, unskipped


def scales(path):
    tensors, cases = {}, []
    for name, (found, settings) in patterns().items():
        apex = {"scale_window": settings["growth_interval"]} if "growth_interval" in settings else {}
        if name == "burst":
            apex["min_loss_scale"] = 1.0
        tensors[f"{name}.found_inf"] = found.to(torch.uint8)
        for rule, run, given in ("torch", by_torch, settings), ("apex", by_apex, apex):
            if rule == "apex" and name == "factors":
                continue
            after = list(run(found, given))
            case = f"{rule}.{name}"
            cases.append({"case": case, "rule": rule, "pattern": name, "settings": given})
            tensors[f"{case}.scale"] = torch.tensor([s for s, _ in after], dtype=torch.float32)  # exact
            tensors[f"{case}.counter"] = torch.tensor([c for _, c in after], dtype=torch.int16)
    metadata = {"format": "headwater-scales-1", "torch": torch.__version__.split("+")[0], "cases": json.dumps(cases)}
    save(tensors, path, metadata)


def choices(device, dtype=torch.bfloat16):
    """Treatment of each overload of the recorded operators by autocast on a device: "low", "full", "widest", "refused". Those
    that it leaves alone are left out. Nothing is computed: the tensors are fake, so no such device is needed."""
    found, cases = {}, Cases()
    collect(cases)
    torch.set_autocast_dtype(device, dtype)
    for target, args, kwargs in (case for file in cases.files.values() for case in file):
        name = str(target)
        if name in found or not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), f"Autocast{device.upper()}"):
            continue

        def result(enabled, *dtypes):
            """Dtype of the first output for inputs of these dtypes, the last for all further ones; None if it is refused."""
            given = iter(dtypes)

            def fake(tensor):
                kind = next(given, dtypes[-1]) if tensor.is_floating_point() else tensor.dtype
                return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)

            with FakeTensorMode():
                inputs, named = pytree.tree_map_only(torch.Tensor, fake, (args, kwargs))
                torch.set_autocast_enabled(device, enabled)
                try:
                    out = target(*inputs, **named)
                except RuntimeError:
                    return None
                finally:
                    torch.set_autocast_enabled(device, False)
            return pytree.tree_leaves(out)[0].dtype

        plain = result(False, torch.float32)
        if plain is None or not (plain.is_floating_point or plain.is_complex):  # it reads numbers, or makes integers
            continue
        if result(True, torch.float32) == dtype:
            found[name] = "low"
        elif result(True, dtype) is None:
            found[name] = "refused"
        elif result(True, dtype) == torch.float32:
            found[name] = "full"
        else:
            found[name] = "widest"
    return dict(sorted(found.items()))


def main(folder):
    torch.set_num_threads(1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    text = json.dumps({"torch": torch.__version__.split("+")[0]} | {d: choices(d) for d in ("cpu", "cuda")}, indent=1)
    (Path(folder) / "autocast.json").write_text(text + "\n")
    scales(Path(folder) / "scales.safetensors")
    for name in FAMILIES:
        print(name)
        family(name, folder)


if __name__ == "__main__":
    main(sys.argv[1])
