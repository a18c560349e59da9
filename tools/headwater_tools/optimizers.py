"""Records optimizers: parameters after each of 50 steps with given gradients, in float64.

    python -m headwater_tools.optimizers goldens/optimizers.safetensors

`torch.optim` is asked where it has the optimizer. The others are the formulas of their papers, written here parameter by
parameter as plainly as can be, with the source named.
"""

import json
import sys

import torch

from .recorder import save

STEPS = 50
SHAPES = [(3, 5), (7,)]
SETTINGS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05, "maximize": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-6, "maximize": True}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "betas": [0.3, 0.9]}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "betas": [0.8, 0.9]}),
    ("Adamax", {"lr": 0.01}),
    ("Adamax", {"lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.01, "betas": [0.3, 0.9], "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.05, "initial_accumulator_value": 0.3, "eps": 1e-3}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.05}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05, "momentum": 0.7}),
    ("RMSprop", {"lr": 0.01, "alpha": 0.9, "centered": True, "eps": 1e-3}),
    ("RMSprop", {"lr": 0.01, "alpha": 0.9, "centered": True, "eps": 1e-3, "momentum": 0.7, "maximize": True}),
    ("RMSpropTF", {"lr": 0.01}),
    ("RMSpropTF", {"lr": 0.01, "momentum": 0.9, "eps": 1e-3, "weight_decay": 0.05, "alpha": 0.95}),
    ("RMSpropTF", {"lr": 0.01, "momentum": 0.9, "eps": 1e-3, "weight_decay": 0.05, "lr_in_momentum": False}),
    ("RMSpropTF", {"lr": 0.01, "momentum": 0.9, "eps": 1e-3, "centered": True, "weight_decay": 0.1, "decoupled_decay": True}),
    ("BertAdam", {"lr": 0.01}),
    ("BertAdam", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.0}),
    ("LAMB", {"lr": 0.01}),
    ("LAMB", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1, "grad_averaging": False}),
    ("LAMB", {"lr": 0.01, "weight_decay": 0.0, "bias_correction": False}),
    ("LAMB", {"lr": 0.01, "weight_decay": 0.0, "use_nvlamb": True}),
    ("NovoGrad", {"lr": 0.01}),
    ("NovoGrad", {"lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.1, "grad_averaging": True}),
    ("NovoGrad", {"lr": 0.01, "bias_correction": True, "init_zero": True, "weight_decay": 0.05}),
    ("AdamP", {"lr": 0.01}),
    ("AdamP", {"lr": 0.01, "weight_decay": 0.1, "delta": 1.0, "eps": 1e-3}),
    ("AdamP", {"lr": 0.01, "weight_decay": 0.1, "delta": 0.6, "wd_ratio": 0.5, "nesterov": True}),
    ("Lion", {}),
    ("Lion", {"lr": 0.01, "betas": [0.8, 0.95], "weight_decay": 0.1}),
    ("LARC", {"optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}}),
    ("LARC", {"trust_coefficient": 0.5, "clip": False, "eps": 1e-3, "optimizer": {"name": "SGD", "lr": 0.1}}),
    ("LARC", {"trust_coefficient": 0.5, "optimizer": {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1}}),
]


class Formula:
    """One parameter under a formula. `settings` are the defaults of the source, replaced by those given."""

    settings = {}

    def __init__(self, parameter, given):
        unknown = given.keys() - self.settings.keys()
        assert not unknown, unknown
        self.p = parameter
        self.t = 0
        for name, value in (self.settings | given).items():
            setattr(self, name, value)
        self.start()

    def zeros(self):
        return torch.zeros_like(self.p)


class RMSpropTF(Formula):
    """tf.compat.v1.train.RMSPropOptimizer's documentation:
    mean_square = decay * mean_square + (1 - decay) * gradient ** 2;
    mom = momentum * mom + learning_rate * gradient / sqrt(mean_square + epsilon); variable -= mom;
    with mean_square starting at 1 as in its code. The other settings and the defaults are those of timm.optim.RMSpropTF."""

    settings = dict(
        lr=1e-2, alpha=0.9, eps=1e-10, weight_decay=0.0, momentum=0.0, centered=False, decoupled_decay=False,
        lr_in_momentum=True,
    )

    def start(self):
        self.square, self.mean, self.mom = torch.ones_like(self.p), self.zeros(), self.zeros()

    def step(self, g):
        if self.decoupled_decay:
            self.p = self.p * (1 - self.lr * self.weight_decay)
        else:
            g = g + self.weight_decay * self.p
        self.square = self.alpha * self.square + (1 - self.alpha) * g**2
        denominator = self.square
        if self.centered:
            self.mean = self.alpha * self.mean + (1 - self.alpha) * g
            denominator = self.square - self.mean**2
        d = g / torch.sqrt(denominator + self.eps)
        rate_inside, rate_outside = (self.lr, 1.0) if self.lr_in_momentum else (1.0, self.lr)
        self.mom = self.momentum * self.mom + rate_inside * d
        self.p = self.p - rate_outside * self.mom


class BertAdam(Formula):
    """github.com/google-research/bert, optimization.py, AdamWeightDecayOptimizer: m and v without bias correction,
    update = m / (sqrt(v) + epsilon) + weight_decay * param. Before it pytorch-pretrained-BERT's BertAdam clips each parameter's
    gradient by clip_grad_norm_."""

    settings = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, max_grad_norm=1.0)

    def start(self):
        self.m, self.v = self.zeros(), self.zeros()

    def step(self, g):
        b1, b2 = self.betas
        if self.max_grad_norm > 0:
            g = g * min(1.0, self.max_grad_norm / (norm(g) + 1e-6))
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        self.p = self.p - self.lr * (self.m / (torch.sqrt(self.v) + self.eps) + self.weight_decay * self.p)


class LAMB(Formula):
    """arXiv:1904.00962, algorithm 2 with phi the identity, r = m^ / (sqrt(v^) + epsilon) + lambda x and
    x -= rate * |x| / |r| * r. Settings and defaults of apex's FusedLAMB, which adapts the rate only where there is weight decay
    unless use_nvlamb; a norm of 0 leaves the rate alone."""

    settings = dict(
        lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, bias_correction=True, grad_averaging=True, use_nvlamb=False,
    )

    def start(self):
        self.m, self.v = self.zeros(), self.zeros()

    def step(self, g):
        b1, b2 = self.betas
        self.m = b1 * self.m + (1 - b1 if self.grad_averaging else 1.0) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        c1, c2 = (1 - b1**self.t, 1 - b2**self.t) if self.bias_correction else (1.0, 1.0)
        r = (self.m / c1) / (torch.sqrt(self.v / c2) + self.eps) + self.weight_decay * self.p
        ratio = 1.0
        if (self.use_nvlamb or self.weight_decay != 0) and norm(self.p) > 0 and norm(r) > 0:
            ratio = norm(self.p) / norm(r)
        self.p = self.p - self.lr * ratio * r


class NovoGrad(Formula):
    """arXiv:1905.11286, algorithm 1: v_1 = |g_1|^2, v_t = b2 v + (1 - b2) |g|^2, m = b1 m + (g / (sqrt(v) + epsilon) + d w),
    w -= rate * m. grad_averaging, bias_correction and init_zero are apex's FusedNovoGrad's."""

    settings = dict(
        lr=0.01, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False, bias_correction=False, init_zero=False,
    )

    def start(self):
        self.m, self.v = self.zeros(), 0.0

    def step(self, g):
        b1, b2 = self.betas
        first = self.t == 1 and not self.init_zero
        self.v = norm(g) ** 2 if first else b2 * self.v + (1 - b2) * norm(g) ** 2
        c1, c2 = (1 - b1**self.t, 1 - b2**self.t) if self.bias_correction else (1.0, 1.0)
        gain = 1 - b1 if self.grad_averaging else 1.0
        self.m = b1 * self.m + gain * (g / ((self.v / c2) ** 0.5 + self.eps) + self.weight_decay * self.p)
        self.p = self.p - self.lr * self.m / c1


class AdamP(Formula):
    """arXiv:2006.08217, algorithm 2, as in github.com/clovaai/AdamP: Adam's step u is projected to be orthogonal to w, channel by
    channel or over the whole parameter, where |cos(w, g)| < delta / sqrt(dim w)."""

    settings = dict(
        lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, delta=0.1, wd_ratio=0.1, nesterov=False,
    )

    def start(self):
        self.m, self.v = self.zeros(), self.zeros()

    def step(self, g):
        b1, b2 = self.betas
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        denominator = torch.sqrt(self.v) / (1 - b2**self.t) ** 0.5 + self.eps
        u = (b1 * self.m + (1 - b1) * g if self.nesterov else self.m) / denominator
        ratio = 1.0
        if self.p.ndim > 1:
            for view in self.p.flatten(1), self.p.flatten()[None]:
                rows = view.shape
                similar = torch.nn.functional.cosine_similarity(g.reshape(rows), view, dim=1, eps=self.eps).abs()
                if similar.max() < self.delta / rows[1] ** 0.5:
                    n = view / (view.norm(dim=1, keepdim=True) + self.eps)
                    u = (u.reshape(rows) - n * (n * u.reshape(rows)).sum(1, keepdim=True)).reshape(self.p.shape)
                    ratio = self.wd_ratio
                    break
        self.p = self.p * (1 - self.lr * self.weight_decay * ratio) - self.lr / (1 - b1**self.t) * u


class Lion(Formula):
    """arXiv:2302.06675, program 1: update = sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g, p -= rate * (update + decay * p).
    Defaults are those of the authors' code."""

    settings = dict(lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0)

    def start(self):
        self.m = self.zeros()

    def step(self, g):
        b1, b2 = self.betas
        update = torch.sign(b1 * self.m + (1 - b1) * g)
        self.m = b2 * self.m + (1 - b2) * g
        self.p = self.p - self.lr * (update + self.weight_decay * self.p)


class LARC(Formula):
    """arXiv:1708.03888: the local rate trust * |w| / (|g| + decay * |w|), with the epsilon and the clipping of apex's LARC, multiplies
    gradient plus decay * w, on which an optimizer of torch.optim without decay takes its step."""

    settings = dict(trust_coefficient=0.02, clip=True, eps=1e-8, optimizer=None)

    def start(self):
        inner = dict(self.optimizer)
        self.weight_decay = inner.pop("weight_decay", 0.0)
        self.w = self.p.clone().requires_grad_()
        self.inner = getattr(torch.optim, inner.pop("name"))([self.w], weight_decay=0.0, **inner)

    def step(self, g):
        w, lr = self.w.detach(), self.inner.param_groups[0]["lr"]
        if norm(w) > 0 and norm(g) > 0:
            rate = self.trust_coefficient * norm(w) / (norm(g) + norm(w) * self.weight_decay + self.eps)
            if self.clip:
                rate = min(rate / lr, 1.0)
            g = rate * (g + self.weight_decay * w)
        self.w.grad = g
        self.inner.step()
        self.p = self.w.detach()


def norm(x):
    return x.norm().item()


FORMULAS = {f.__name__: f for f in (RMSpropTF, BertAdam, LAMB, NovoGrad, AdamP, Lion, LARC)}


def by_torch(name, settings, parameters, gradients):
    """Yields the parameters after each step of an optimizer of `torch.optim`."""
    parameters = [p.clone().requires_grad_() for p in parameters]
    optimizer = getattr(torch.optim, name)(parameters, **settings)
    for step in gradients:
        for p, g in zip(parameters, step):
            p.grad = g.clone()
        optimizer.step()
        yield [p.detach().clone() for p in parameters]


def by_formula(name, settings, parameters, gradients):
    """The same by a formula."""
    running = [FORMULAS[name](p.clone(), settings) for p in parameters]
    for step in gradients:
        for one, g in zip(running, step):
            one.t += 1
            one.step(g)
        yield [one.p.clone() for one in running]


def main(path):
    # NAdam keeps the product of its momenta in the default type.
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    parameters = [draw(shape) for shape in SHAPES]
    # Sizes from 10 to 1e-3, so that epsilons show.
    gradients = [[draw(shape) * 10.0 ** (1 - step % 5) for shape in SHAPES] for step in range(STEPS)]
    tensors = {f"grad.{i}": torch.stack([g[i] for g in gradients]) for i in range(len(SHAPES))}
    tensors |= {f"parameter.{i}": p for i, p in enumerate(parameters)}
    cases = []
    for number, (name, settings) in enumerate(SETTINGS):
        record = by_formula if name in FORMULAS else by_torch
        after = list(record(name, settings, parameters, gradients))
        cases.append({"case": str(number), "optimizer": name, "settings": settings})
        tensors |= {f"{number}.parameter.{i}": torch.stack([a[i] for a in after]) for i in range(len(SHAPES))}
    metadata = {"format": "headwater-optimizers-2", "torch": torch.__version__.split("+")[0], "cases": json.dumps(cases)}
    save(tensors, path, metadata)


if __name__ == "__main__":
    main(sys.argv[1])
