"""Small files as a newcomer brings them, for Headwater's tests: `python -m headwater_tools.newcomer FOLDER`.

Models of a table and of images with masks, and models that are exported the wrong way.
"""

import sys
import unittest.mock
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from . import export, exporter


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
