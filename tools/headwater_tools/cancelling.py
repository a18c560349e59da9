"""Goldens of sums that cancel or that are long: what a comparison must not call different where rounding is all that is left.

    python -m headwater_tools.cancelling goldens/cancelling/
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from .exporter import export
from .recorder import SUFFIX, record


class OneKey(nn.Module):
    """Attention over a single key, fused and spelled out: its weights are 1 whatever queries and keys are."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        h = F.scaled_dot_product_attention(self.q(x), self.k(y), self.v(y))
        weights = torch.softmax(self.q(h) @ self.k(y).transpose(1, 2), -1)
        return ((weights @ self.v(y)) ** 2).mean()


class Normed(nn.Module):
    """The mean of normalized values: it is 0, and so are all gradients."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 32), nn.LayerNorm(32, elementwise_affine=False)

    def forward(self, x):
        return self.norm(self.linear(x)).mean()


class Averaged(nn.Module):
    """The mean of a convolution, as critics return it: its bias has a gradient of many equal terms, 0.5 each."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 2, 5)

    def forward(self, x):
        return self.conv(x).mean()


class TwoNorms(nn.Module):
    """The mean of a group norm over a batch norm: the gradient of the lower one's bias is zero, and so are the terms of its sum."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.over = nn.Linear(8, 8), nn.BatchNorm3d(1), nn.GroupNorm(1, 1)

    def forward(self, x):
        return self.over(self.norm(self.linear(x).view(-1, 1, 2, 2, 2))).mean()


class BatchNormed(nn.Module):
    """The mean of a batch norm: a bias before it changes nothing, to any order."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8, track_running_stats=False)

    def forward(self, x):
        return self.norm(self.linear(x)).mean()


class Transposed(nn.Module):
    """The mean of a transposed convolution: as `Averaged`, with a bias of its own in the graph."""

    def __init__(self):
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 8), nn.ConvTranspose1d(1, 2, 3, stride=2)

    def forward(self, x):
        return self.conv(self.linear(x).unsqueeze(1)).mean()


def models():
    """Name to module and inputs."""
    found = {}
    for name, make, shapes in (
        ("one_key", OneKey, [(3, 7, 8), (3, 1, 8)]),
        ("normed", Normed, [(8, 16)]),
        ("averaged", Averaged, [(64, 3, 33)]),
        ("two_norms", TwoNorms, [(4, 8)]),
        ("batch_normed", BatchNormed, [(4, 8)]),
        ("transposed", Transposed, [(4, 8)]),
    ):
        torch.manual_seed(0)
        found[name] = make(), tuple(torch.randn(s) for s in shapes)
    return found


def main(folder):
    hashes = {}
    torch.set_num_threads(1)
    for name, (module, args) in models().items():
        archive = Path(folder) / f"{name}.pt2"
        export(module, args, archive, compress=True)
        golden = archive.with_name(f"{name}{SUFFIX}")
        record(module, args, golden)
        hashes |= {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (archive, golden)}
    manifest = {"torch": torch.__version__.split("+")[0], "seed": 0, "sha256": hashes}
    (Path(folder) / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
