"""Runs a few optimizer steps in PyTorch, for a loss curve to compare with."""

import copy
import inspect
import math
import re
from dataclasses import dataclass, field

import torch

from .dropout import WithoutDropout
from .masks import RANDOM, refusal

# Arguments of torch.optim's classes that choose an implementation and change no number.
HOW = {"params", "foreach", "capturable", "differentiable", "fused"}


class Optimizer:
    """An optimizer of `torch.optim` by its name, and the settings around it. Defaults are PyTorch's.

        Optimizer("SGD", lr=0.1, momentum=0.9, weight_decay=1e-4, schedule={"name": "step", "every": 1000})

    decay: "all", or "matrices": weight decay for tensors of two and more dimensions only, none for norms and biases; or "none".
    clip_norm: the gradients' global L2 norm is clipped to this by `clip_grad_norm_`; clip_value: each element.
    warmup: the first `warmup` steps rise linearly, step t (from 0) having lr * (t + 1) / warmup.
    schedule: what follows, by Headwater's name of it or a table with `name` and settings (docs/settings.md):
        "constant", "linear", "cosine", "polynomial", "step", "multistep", "exponential", "onecycle", "restarts", "inverse_sqrt".
    end: the share of the learning rate that linear, cosine, polynomial and restarts end at.
    groups: parameters with settings of their own, as `[[groups]]` of docs/settings.md has them:
        [{"parameters": "encoder.*", "lr": 1e-5}, {"parameters": "*.bias", "weight_decay": 0.0}]. A parameter is of the first group
        whose pattern is its name, `*` matching any characters. A group's `lr` follows the schedule in proportion.
    accumulate: a step averages the gradients of so many batches.
    autocast: the low precision of `torch.autocast`, such as "bfloat16". Headwater compares no such curve with its own.
    """

    def __init__(
        self, name, *, decay="all", clip_norm=None, clip_value=None, schedule="constant", warmup=0, end=0.0, groups=(), accumulate=1,
        autocast=None, **options,
    ):  # fmt: skip
        made = getattr(torch.optim, name, None)
        if made is None:
            raise ValueError(f"torch.optim has no {name}")
        closure = inspect.signature(made.step).parameters.get("closure")
        if closure and closure.default is closure.empty:
            raise ValueError(
                f"torch.optim.{name} asks for the loss several times in a step, where a recorded step, as one of Headwater's, computes "
                "it once: take another optimizer, such as Optimizer(\"AdamW\")"
            )
        if decay not in ("all", "matrices", "none"):
            raise ValueError(f"decay is 'all', 'matrices' or 'none', not {decay!r}")
        known = {n: p.default for n, p in inspect.signature(made).parameters.items() if n not in HOW}
        if unknown := options.keys() - known.keys():
            raise ValueError(f"torch.optim.{name} has no {', '.join(sorted(unknown))}; it has: {', '.join(known)}")
        # Every number is written down; a switch or what may be None only where it differs.
        self.options = {
            n: options.get(n, default)
            for n, default in known.items()
            if n in options and options[n] != default or isinstance(default, (float, int, tuple)) and not isinstance(default, bool)
        }
        self.groups = [dict(group) for group in groups]
        for group in self.groups:
            if not isinstance(group.get("parameters"), str) or len(group) < 2:
                raise ValueError(f"a group has `parameters`, the pattern of their names, and what differs for them, unlike {group}")
            if unknown := group.keys() - known.keys() - {"parameters"}:
                raise ValueError(f"torch.optim.{name} has no {', '.join(sorted(unknown))}; it has: {', '.join(known)}")
            if group.get("lr") and not options.get("lr", known["lr"]):
                raise ValueError(f"the group {group['parameters']} has a learning rate, and the optimizer's own is 0")
        if accumulate < 1:
            raise ValueError(f"a step has at least one batch, not accumulate={accumulate}")
        self.name, self.decay, self.clip_norm, self.clip_value = name, decay, clip_norm, clip_value
        self.schedule, self.warmup, self.end, self.autocast = schedule, warmup, end, autocast
        self.accumulate = accumulate
        self.rate(0, 1)  # refuses a schedule that it does not know

    def rate(self, step, steps):
        """The learning rate of a step, counted from 0, of a run of `steps`."""
        lr = self.options["lr"]
        if step < self.warmup:
            return lr * (step + 1) / self.warmup
        shape = {"name": self.schedule} if isinstance(self.schedule, str) else dict(self.schedule)
        every = max(1, steps - self.warmup)
        return lr * factor(step - self.warmup, every, self.end, self.warmup, **shape)

    def decays(self, name, parameter):
        own = self.own(name, parameter)
        return bool(own.get("weight_decay", self.options.get("weight_decay", 0.0)))

    def own(self, name, parameter):
        """The settings of a parameter that differ from the optimizer's, as `crates/runtime/src/optim/groups.rs` has it."""
        pattern = next((g for g in self.groups if matches(g["parameters"], name)), {})
        own = {n: v for n, v in pattern.items() if n != "parameters"}
        decays = {"all": True, "matrices": parameter.ndim >= 2, "none": False}[self.decay]
        if not decays and self.options.get("weight_decay"):
            own.setdefault("weight_decay", 0.0)
        return own

    def build(self, parameters):
        """The optimizer of named parameters; those of equal settings are a group, with their peak learning rate as `peak`."""
        parameters = list(parameters)
        for group in self.groups:
            if not any(matches(group["parameters"], name) for name, _ in parameters):
                raise ValueError(f"no parameter is called {group['parameters']}; there are: {', '.join(n for n, _ in parameters)}")
        found = []
        for name, parameter in parameters:
            own = self.own(name, parameter)
            same = next((g for g in found if g[0] == own), None)
            if same is None:
                found.append(same := (own, []))
            same[1].append(parameter)
        groups = [{"params": members, **own, "peak": own.get("lr", self.options["lr"])} for own, members in found]
        return getattr(torch.optim, self.name)(groups, **self.options)

    def metadata(self):
        found = {"name": self.name, **self.options, "decay": self.decay, "clip_norm": self.clip_norm, "schedule": self.schedule}
        found |= {"warmup": self.warmup, "autocast": self.autocast} | self.around()
        return found | {n: v for n, v in (("clip_value", self.clip_value), ("end", self.end)) if v}

    def around(self):
        found = {"groups": self.groups} if self.groups else {}
        return found | ({"accumulate": self.accumulate} if self.accumulate > 1 else {})

    def settings(self):
        """The same as Headwater's settings of a training run have it. `autocast` is none of them: `metadata` has it, and
        `headwater migrate --new` says that such a curve is not compared."""
        found = {"optimizer": {"name": self.name.lower(), **self.options}, "decay": self.decay, "schedule": self.schedule}
        found |= {"warmup": self.warmup, "end": self.end} | self.around()
        return found | {n: v for n, v in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)) if v is not None}


def AdamW(**settings):
    """`torch.optim.AdamW`, see `Optimizer`."""
    return Optimizer("AdamW", **settings)


def matches(pattern, name):
    """True if a name fits a pattern, in which `*` stands for any characters."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def factor(t, T, end, warmup, name, **of):
    """The share of the peak learning rate in step `t` of `T` after the warm-up, as `crates/runtime/src/schedule.rs` has it."""

    def falling(share):
        return end + (1 - end) * share

    def half_cosine(done):
        return (1 + math.cos(math.pi * done)) / 2

    def settings(**defaults):
        if unknown := of.keys() - defaults.keys():
            raise ValueError(f"the schedule {name} has no {', '.join(sorted(unknown))}")
        if missing := [n for n, v in defaults.items() if v is None and n not in of]:
            raise ValueError(f"the schedule {name} needs {', '.join(missing)}")
        return (of.get(n, v) for n, v in defaults.items())

    done = min(1.0, t / T)
    if name == "polynomial":
        (power,) = settings(power=1.0)
        return falling((1 - done) ** power)
    if name == "step":
        every, gamma = settings(every=None, gamma=0.1)
        return gamma ** (t // every)
    if name == "multistep":
        milestones, gamma = settings(milestones=None, gamma=0.1)
        return gamma ** sum(m <= t for m in milestones)
    if name == "exponential":
        (gamma,) = settings(gamma=None)
        return gamma**t
    if name == "onecycle":
        pct_start, div_factor, final_div_factor = settings(pct_start=0.3, div_factor=25.0, final_div_factor=1e4)
        first, peak, last = 1 / div_factor, pct_start * T - 1, T - 1
        t = min(t, last)
        if t < peak:
            return 1 + (first - 1) * half_cosine(t / peak)
        low = first / final_div_factor
        return low + (1 - low) * half_cosine((t - peak) / (last - peak))
    if name == "restarts":
        length, longer = settings(t_0=None, t_mult=1)
        while longer > 1 and t >= length:
            t, length = t - length, length * longer
        return falling(half_cosine(t % length / length))
    settings()
    simple = {
        "constant": 1.0, "linear": falling(1 - done), "cosine": falling(half_cosine(done)),
        "inverse_sqrt": math.sqrt(max(1, warmup) / (t + warmup + 1)),
    }  # fmt: skip
    if name == "plateau":
        raise ValueError(
            "plateau follows evaluations of the run itself, and has no rates to record: record the run with \"constant\", and its "
            "curve is compared up to the step at which the rate first falls"
        )
    if name not in simple:
        raise ValueError(f"there is no schedule {name!r}")
    return simple[name]


@dataclass
class Curve:
    loss: list = field(default_factory=list)  # of each step's batch, before its update
    lr: list = field(default_factory=list)
    norm: list = field(default_factory=list)  # global L2 norm of the gradients, before clipping
    module: torch.nn.Module = None  # as trained


def train(module, batches, settings=None, steps=None):
    """Trains a copy of `module` on `batches`, argument tuples with a length, one step each or as many as are accumulated. Returns
    the `Curve`.

    Dropout is the identity, a random mask its mean. `steps` is the length of the whole run, where `batches` are only its beginning.
    Raises ValueError when the module draws other random numbers.
    """
    settings = settings or AdamW()
    module = copy.deepcopy(module)
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    parameters, optimizer = [p for _, p in named], settings.build(named)
    low = settings.autocast and getattr(torch, settings.autocast)
    curve, random_state = Curve(module=module), torch.get_rng_state()
    together = settings.accumulate
    count, rest = len(batches) // together, iter(batches)
    for step in range(count):
        rate = settings.rate(step, steps or count)
        for group in optimizer.param_groups:
            group["lr"] = rate if group["peak"] == settings.options["lr"] else rate * (group["peak"] / settings.options["lr"])
        optimizer.zero_grad()
        mean = 0.0
        for micro in range(together):
            with torch.autocast("cpu", dtype=low, enabled=bool(low)), WithoutDropout() as without:
                loss = loss_of(run(module, batches, step * together + micro, next(rest)))
            (loss / together).backward()
            mean += loss.item() / together
        norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if settings.clip_norm is None else settings.clip_norm)
        if settings.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, settings.clip_value)
        optimizer.step()
        curve.loss.append(mean)
        curve.lr.append(rate)
        curve.norm.append(norm.item())
    if not torch.equal(random_state, torch.get_rng_state()):
        raise ValueError(refusal(", ".join(dict.fromkeys(without.means.others))))
    return curve


def run(module, batches, number, args):
    """`module(*args)`, a batch of a run. Raises ValueError that names the batch, and its samples where `batches` come of a file."""
    try:
        return module(*args)
    except Exception as error:
        if RANDOM in str(error):
            raise
        where = f": {batches.blame(module, number, error)}" if hasattr(batches, "blame") else ""
        raise ValueError(f"forward fails on batch {number}{where}: {error}") from error


WRAPPER = """wrap the model, so that forward takes the data's tensors and returns the loss first:

    class Training(torch.nn.Module):  # of a module that returns logits
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            logits = self.model(x)
            return torch.nn.functional.cross_entropy(logits, labels), logits

    class TextTraining(Training):  # of a Hugging Face model
        def forward(self, input_ids, labels):
            out = self.model(input_ids=input_ids, labels=labels)
            return out.loss, out.logits
"""


def loss_of(outputs):
    """The loss among what a module returns. Raises ValueError, with the way out, if there is none."""
    loss = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    if torch.is_tensor(loss) and loss.numel() == 1 and loss.is_floating_point():
        return loss
    kind = f"a tensor of shape {list(loss.shape)}" if torch.is_tensor(loss) else f"a {type(loss).__name__}"
    raise ValueError(f"forward must return its loss first, one number; it returns {kind}. Please {WRAPPER}")
