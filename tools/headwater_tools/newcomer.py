"""Small files as a newcomer brings them, for Headwater's tests: `python -m headwater_tools.newcomer FOLDER`.

Models of a table and of images with masks, models that are exported the wrong way, and one with stochastic depth.
"""

import sys
import unittest.mock
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from . import Optimizer, export, exporter, record
from .recorder import save


class Loss(nn.Module):
    def __init__(self, body, loss=F.cross_entropy):
        super().__init__()
        self.body, self.loss = body, loss

    def forward(self, x, labels):
        logits = self.body(x)
        return self.loss(logits, labels), logits


class Logits(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 2)

    def forward(self, x):
        return self.body(x)


class Unread(nn.Module):
    """Reads one of two inputs."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 2)

    def forward(self, x, weight, labels):
        logits = self.body(x)
        return F.cross_entropy(logits, labels), logits


class Segment(nn.Module):
    """Classes of pixels; 255 is ignored."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image, mask):
        logits = self.body(image)
        return F.cross_entropy(logits, mask, ignore_index=255), logits


class Depth(nn.Module):
    """Stochastic depth as timm, transformers and torchvision write it, and masks by comparison."""

    def __init__(self):
        from timm.layers import DropPath
        from torchvision.ops import StochasticDepth
        from transformers.models.convnext.modeling_convnext import ConvNextDropPath

        super().__init__()
        self.drops = nn.ModuleList([DropPath(0.1), ConvNextDropPath(0.2), StochasticDepth(0.3, "row")])
        self.bodies = nn.ModuleList([nn.Linear(6, 6) for _ in self.drops])
        self.head = nn.Linear(6, 2)

    def forward(self, x, labels):
        for body, drop in zip(self.bodies, self.drops):
            x = x + drop(body(x).tanh())
        x = x * (torch.rand_like(x) > 0.1) / 0.9
        x = x.masked_fill(torch.rand(x.shape[0], 1) < 0.05, 0.0)
        logits = self.head(x)
        return F.cross_entropy(logits, labels), logits


def depth(folder):
    torch.manual_seed(0)
    module, batch = Depth().train(), torch.export.Dim("batch", min=1)
    x = torch.randn(200, 6)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    save({"x": x[:160], "labels": labels[:160]}, folder / "depth.train.safetensors", {})
    save({"x": x[160:], "labels": labels[160:]}, folder / "depth.eval.safetensors", {})
    example = x[:8], labels[:8]
    export(module, example, folder / "depth.pt2", dynamic_shapes={"x": {0: batch}, "labels": {0: batch}}, compress=True)
    record(
        module, example, folder / "depth.golden.safetensors", data=folder / "depth.train.safetensors", steps=40, batch=16,
        eval=folder / "depth.eval.safetensors", optimizer=Optimizer("AdamW", lr=1e-2), intermediates="all",
    )  # fmt: skip


def archives(folder):
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1)

    def write(name, module, args, train=True):
        inputs = [n for n in module.forward.__code__.co_varnames[1 : 1 + len(args)]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(module.train(train), args, folder / name, dynamic_shapes={n: {0: batch} for n in inputs}, compress=True)

    x, labels = torch.randn(4, 6), torch.tensor([0, 1, 1, 0])
    write("table.pt2", Loss(nn.Linear(6, 2)), (x, labels))
    # `export` refuses a module without a loss; torch.export.save does not.
    with unittest.mock.patch.object(exporter, "returns_loss", lambda program: None):
        write("no_loss.pt2", Logits(), (x,))
    write("unread.pt2", Unread(), (x, torch.ones(4), labels))
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(2))
    normed(torch.randn(4, 3, 8, 8))
    write("evaluation_mode.pt2", Loss(normed), (torch.randn(4, 3, 8, 8), labels), train=False)
    write("segment.pt2", Segment(), (torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4, 8, 8))))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    archives(place)
    depth(place)
