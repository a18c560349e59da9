"""Runs a few optimizer steps in PyTorch, for a loss curve to compare with."""

import copy
import math
from dataclasses import asdict, dataclass, field

import torch


@dataclass(frozen=True)
class AdamW:
    """`torch.optim.AdamW` with the settings around it. The defaults are PyTorch's.

    decay: "all", or "matrices": weight decay for tensors of two and more dimensions only, none for norms and biases.
    clip_norm: the gradients' global L2 norm is clipped to this by `clip_grad_norm_`.
    warmup: the first `warmup` steps rise linearly, step t (from 0) having lr * (t + 1) / warmup.
    schedule: after it "constant", "linear" or "cosine" down to 0, which the step after the last would have.
    autocast: the low precision of `torch.autocast`, such as "bfloat16".
    """

    lr: float = 1e-3
    betas: tuple = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    decay: str = "all"
    clip_norm: float | None = None
    schedule: str = "constant"
    warmup: int = 0
    autocast: str | None = None

    def rate(self, step, steps):
        """The learning rate of a step, counted from 0, of a run of `steps`."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        factor = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        return self.lr * factor[self.schedule]

    def decays(self, parameter):
        return {"all": True, "matrices": parameter.ndim >= 2}[self.decay]

    def metadata(self):
        return {"name": "AdamW", **asdict(self)}


@dataclass
class Curve:
    loss: list = field(default_factory=list)  # of each step's batch, before its update
    lr: list = field(default_factory=list)
    norm: list = field(default_factory=list)  # global L2 norm of the gradients, before clipping
    module: torch.nn.Module = None  # as trained


def train(module, batches, settings=AdamW()):
    """Trains a copy of `module` on `batches`, a sequence of argument tuples, one step each. Returns the `Curve`."""
    module = copy.deepcopy(module)
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if settings.decays(p)], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if not settings.decays(p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], settings.lr, settings.betas, settings.eps)
    low = settings.autocast and getattr(torch, settings.autocast)
    curve = Curve(module=module)
    for step, args in enumerate(batches):
        rate = settings.rate(step, len(batches))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=low, enabled=bool(low)):
            outputs = module(*args)
        loss = outputs if torch.is_tensor(outputs) else outputs[0]
        loss.backward()
        limit = settings.clip_norm if settings.clip_norm is not None else math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        curve.loss.append(loss.item())
        curve.lr.append(rate)
        curve.norm.append(norm.item())
    return curve
