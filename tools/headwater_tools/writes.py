"""Goldens of what an importer must get right beyond single operators: writes in place, through views, into buffers and
while gradients are off; tied, shared and strided weights; every dtype; symbolic sizes; branches and loops.

    python -m headwater_tools.writes goldens/writes/          # all of them
    python -m headwater_tools.writes goldens/writes/ loops    # the models named

Every model has one weight `w` (or a few parameters), returns a scalar, and is written in both forms, with its golden.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from .exporter import export
from .recorder import SUFFIX, record
from .training import AdamW


class Write(nn.Module):
    """`body` writes to a copy of its input. Everything it returns depends on the weight."""

    def __init__(self, body, *shape):
        super().__init__()
        self.w = nn.Parameter(torch.randn(*shape))
        self.body = body

    def forward(self, x):
        return self.body(x * self.w.sin(), self.w)


def slices(x, w):
    x[:, 1:3].copy_(w[:, 1:3] * 2)
    x[::2, -1].add_(1.0)
    return (x * x * w).sum()


def selects(x, w):
    x.select(0, 1).add_(w[0])
    x[2, 3].mul_(3.0)
    x[-1] = w[0]
    return (x * x).sum()


def reshapes(x, w):
    flat = x.view(-1)
    flat[2:7].mul_(w.view(-1)[2:7])
    x.reshape(5, 4).add_(1.0)
    x.flatten()[0] = 3.0
    x.unsqueeze(1).squeeze(1).neg_()
    return (flat * x.view(20) * w.reshape(20)).sum()


def copies(x, w):
    """`reshape` of a transposed tensor is a copy: a write to it does not reach the base."""
    copy = x.t().reshape(-1)
    copy.mul_(2.0)
    same = x.contiguous()
    same.add_(1.0)
    other = x.t().contiguous()
    other.add_(5.0)
    return (x * w).sum() + (copy * copy).sum() + (other * w.t()).sum()


def transposes(x, w):
    t = x.transpose(0, 1)
    t[1].add_(w[:, 1])
    x.t().add_(1.0)
    x.permute(1, 0)[2:4].mul_(0.5)
    return (t * w.t() * t).sum()


def chains(x, w):
    a = x.unsqueeze(0).permute(0, 2, 1)
    b = a[:, ::2, 1:]
    b.mul_(2.0)
    b[0, 0].fill_(0.5)
    c = x.view(2, 2, 5)
    c[1].add_(w.view(2, 2, 5)[0])
    return (x.pow(3) * w).sum() + b.sum()


def later_reads(x, w):
    """A view made before a write shows it."""
    v = x[1:]
    y = v + w[1:]
    x.add_(1.0)
    z = v + w[1:]
    x.mul_(0.5)
    return (y * z * v).sum()


def pieces(x, w):
    """PyTorch takes writes to one of several views only while gradients are off."""
    with torch.no_grad():
        a, b = x.chunk(2, 0)
        a.add_(b)
        s = x.split([1, 3], 0)
        s[1].sub_(1.0)
        p = x.unbind(1)
        p[2].mul_(w[:, 0])
        total = (a * p[0][:2, None]).sum()
    x.narrow(1, 1, 2).div_(2.0)
    return (x * x * w).sum() * total


def diagonals(x, w):
    x.copy_(w[:1].expand(4, 5))
    x[:, 0].zero_()
    x.diagonal().add_(w[0, :4])
    return (x * x).sum()


def masks(x, w):
    x.masked_fill_(w > 0, 0.1)
    x[w < -1] = 0.25
    x[torch.tensor([0, 2])] = w[:2]
    return (x * x * w).sum()


def scatters(x, w):
    y = torch.zeros_like(x)
    y.scatter_(1, w.argmax(1, keepdim=True), 1.0)
    z = torch.zeros(4, 5).index_add_(0, torch.tensor([0, 0, 3, 1]), x * w)
    z.clamp_(min=-1.0)
    z.relu_()
    return (y * x * w + z).sum()


def no_grad(x, w):
    """A write while gradients are off is not recorded: gradients pass it by."""
    v = x[1:]
    with torch.no_grad():
        a, b = x.chunk(2, 0)
        a.add_(b)
        x[3].mul_(2.0)
        scale = (x * w).sum()
        v[0].sub_(1.0)
    x.detach()[0].add_(4.0)
    return (x * w * scale).sum() + (v * v).sum()


def selections(x, w):
    """Elements that a mask selects, of which sums and means are taken; of the others there is no logarithm or root."""
    kept, rows = x[x > 0], x[w[:, 0] > 0]
    total = (kept.log() * 2).mean() + kept.sqrt().sum() + (F.gelu(rows) * w[0]).pow(2).mean(-1).sum()
    total = total + F.mse_loss(rows, torch.ones_like(rows)) + (rows + 1).sum(0).pow(2).sum() + rows.mean((0, 1))
    return total + torch.masked_select(x, w < 0).abs().sum() + (F.linear(rows, w) * F.linear(rows, w).detach()).sum() / 3


WRITES = (slices, selects, reshapes, copies, transposes, chains, later_reads, pieces, diagonals, masks, scatters, no_grad)


class Buffers(nn.Module):
    """State: batch norm's, a counter, a running mean, a cache written by index and through views."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ema", torch.ones(3))
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64), persistent=False)

    def forward(self, x, at):
        y = self.bn(x)
        self.steps.add_(1)
        self.ema.mul_(0.9).add_(0.1 * x.detach().mean(0))
        self.cache[at] = x[:1].detach()
        self.cache[:2, 1:].mul_(0.5)
        self.counts.view(2, 2)[1].add_(1)
        self.counts[at] = 5
        return (y * self.ema).pow(2).sum() + (self.cache * y[:4]).sum()


class Tied(nn.Module):
    """One weight under two names, a frozen one, and one that is a transposed part of a larger storage."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.emb.weight
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.strided = nn.Parameter(torch.randn(8, 6)[2:, :].t())

    def forward(self, ids, labels):
        return F.cross_entropy(self.head((self.emb(ids) * self.frozen) @ self.strided), labels)


class Dtypes(nn.Module):
    """A tensor of every dtype."""

    INTEGERS = dict(i64=torch.int64, i32=torch.int32, i16=torch.int16, i8=torch.int8, u8=torch.uint8)
    FLOATS = dict(f64=torch.float64, f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16)

    def __init__(self):
        super().__init__()
        for name, dtype in self.FLOATS.items():
            self.register_parameter(name, nn.Parameter(torch.randn(3, 4).to(dtype)))
        for name, dtype in self.INTEGERS.items():
            self.register_buffer(name, torch.randint(0, 5, (3, 4)).to(dtype))
        self.register_buffer("flag", torch.tensor([True, False, True, True]))

    def forward(self, x):
        y = self.f64 + self.f32 + self.f16.float() + self.bf16.float()
        y = y * (self.i64 + self.i32 + self.i16 + self.i8 + self.u8)
        return (torch.where(self.flag, y, y * 0.5) + x.to(torch.float64)).sum()


class Symbolic(nn.Module):
    """Sizes that are chosen when binding, among them one that is twice another."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4))

    def forward(self, x, y):
        batch, length, _ = x.shape
        h = (x @ self.w).reshape(batch * length, -1)
        h[: length // 2].mul_(2.0)
        pairs = y.view(batch, length, 2) * torch.arange(length)[:, None]
        return (h * h).mean() + (pairs * self.w[0, :2]).sum() / (batch * (length + 1))


class Branches(nn.Module):
    """`torch.cond` with parameters on both sides, one within the other, several results, and a predicate of sizes."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        y = x @ self.w
        high = lambda a: (a.exp() * self.w[0], a.sum(1))  # noqa: E731
        low = lambda a: (torch.cond(a.max() > 1, torch.sin, torch.cos, (a,)), a.mean(1))  # noqa: E731
        a, b = torch.cond(y.sum() > 0, high, low, (y,))
        c, d = torch.cond(y.sum() <= 0, high, low, (y,))
        return (a * c).sum() + (b * d).mean()


class Loops(nn.Module):
    """`scan` with a state of two tensors, and `map`, of which parameters are operands."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x):
        def step(state, row):
            hidden, total = state
            new = torch.tanh(hidden @ self.w + row)
            return (new, total + row), (new * total, new.sum())

        (hidden, total), (products, sums) = scan(step, (torch.zeros(4), x[0] * 2), x)
        mapped = map_rows(lambda row, w: w @ row, x, self.w)
        return hidden.sum() + (total * products).mean() + (sums[:, None] * mapped).sum()


class Norms(nn.Module):
    """Weights divided by their largest singular value, for which each step writes two vectors twice, and by lengths."""

    def __init__(self):
        super().__init__()
        self.spectral = spectral_norm(nn.Linear(4, 3), n_power_iterations=2)
        self.filters = spectral_norm(nn.Conv1d(1, 2, 2))
        self.lengths = weight_norm(nn.Linear(3, 4))

    def forward(self, x):
        return (self.lengths(self.spectral(x)) * self.filters(x[:, None]).sum((1, 2))[:, None]).pow(2).mean()


class Embeddings(nn.Module):
    """Weights that the forward pass writes: rows held to a norm when they are read, of one table and of a tied one."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(7, 4, max_norm=1.0)
        self.tied = nn.Embedding(7, 4, max_norm=0.8, norm_type=1.0)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tied.weight

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(self.emb(ids) * self.tied(labels)), ids)


class Momentum(nn.Module):
    """A momentum encoder: the weights of `key` follow those of `query` while gradients are off, and have none."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.mul_(0.8).add_(q, alpha=0.2)
            key = F.normalize(self.key(x), dim=1)
        query = F.normalize(self.head(torch.tanh(self.query(x))), dim=1)
        return F.cross_entropy(query @ key.t() / 0.2, torch.arange(len(x)))


RECORDED = {name: {"steps": 12, "optimizer": AdamW(lr=0.1)} for name in ("embeddings", "momentum")}
# Decomposed, PyTorch cuts the gradients of weights that are written, and leaves out `no_grad`.
TRAIN_ALONE = {"embeddings", "momentum", "pieces", "no_grad", "norms"}


def models():
    """Name to module, inputs and dynamic shapes."""
    torch.manual_seed(0)
    found = {body.__name__: (Write(body, 4, 5), (torch.randn(4, 5),), None) for body in WRITES}
    found["buffers"] = Buffers(), (torch.randn(5, 3), torch.tensor([2])), None
    found["tied"] = Tied(), (torch.randint(0, 11, (5,)), torch.randint(0, 11, (5,))), None
    found["dtypes"] = Dtypes(), (torch.randn(3, 4),), None
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=4, max=32)
    sizes = {"x": {0: batch, 1: length}, "y": {0: batch, 1: 2 * length}}
    found["symbolic"] = Symbolic(), (torch.randn(2, 5, 6), torch.randn(2, 10)), sizes
    found["selections"] = Write(selections, 4, 5), (torch.randn(4, 5),), None
    found["branches"] = Branches(), (torch.randn(3, 4),), None
    found["loops"] = Loops(), (torch.randn(3, 4),), None
    found["norms"] = Norms(), (torch.randn(3, 4),), None
    found["embeddings"] = Embeddings(), (torch.tensor([0, 1, 1, 3, 5]), torch.tensor([2, 4, 0, 0, 6])), None
    found["momentum"] = Momentum(), (torch.randn(6, 4),), None
    return found


def write(models, folder, only=(), **recorded):
    """Exports models in both forms into a folder, with goldens and a manifest; `recorded` are arguments of `record`. With
    `only`, the models named; the others stay as they are."""
    manifest = Path(folder) / "manifest.json"
    text = {"torch": torch.__version__.split("+")[0], "seed": 0, "sha256": {}}
    if only:
        text = json.loads(manifest.read_text())
    for name, (module, args, dynamic_shapes) in models.items():
        if only and name not in only:
            continue
        print(name)
        for form in ("train",) if name in TRAIN_ALONE else ("train", "core"):
            archive = Path(folder) / f"{name}.{form}.pt2"
            export(module, args, archive, dynamic_shapes=dynamic_shapes, decompose=form == "core", compress=True)
            golden = archive.with_name(f"{name}.{form}{SUFFIX}")
            record(module, args, golden, **recorded | RECORDED.get(name, {}))
            text["sha256"] |= {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (archive, golden)}
    manifest.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write(models(), sys.argv[1], sys.argv[2:], intermediates="none")
