"""Makes everything else in this folder: the data, the exported model, and what PyTorch computes with it.

    pip install ../../tools[digits]
    python make.py
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from headwater_tools import Optimizer, export, record
from headwater_tools.recorder import save
from sklearn.datasets import load_breast_cancer
from torch import nn

HERE = Path(__file__).parent
SEED, HELD_OUT, BATCH, EPOCHS = 0, 119, 30, 40


class Tabular(nn.Module):
    """Thirty numbers to two classes: two hidden layers with batch norm and dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2),
        )  # fmt: skip

    def forward(self, features, labels):
        logits = self.body(features)
        return F.cross_entropy(logits, labels), logits


def main():
    torch.set_num_threads(1)
    features, labels = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    features, labels = torch.tensor(features)[order], torch.tensor(labels)[order]
    training = features[:-HELD_OUT]
    # Scaled by the training part alone.
    features = ((features - training.mean(0)) / training.std(0)).float()
    for name, part in ("train", slice(None, -HELD_OUT)), ("heldout", slice(-HELD_OUT, None)):
        save({"features": features[part], "labels": labels[part]}, HERE / f"{name}.safetensors", {})
    torch.manual_seed(SEED)
    module = Tabular().train()
    batch = torch.export.Dim("batch", min=2)
    example = features[:BATCH], labels[:BATCH]
    shapes = {"features": {0: batch}, "labels": {0: batch}}
    export(module, example, HERE / "tabular.pt2", dynamic_shapes=shapes, compress=True)
    record(
        module, example, HERE / "tabular.golden.safetensors", data=HERE / "train.safetensors", eval=HERE / "heldout.safetensors",
        batch=BATCH, epochs=EPOCHS, seed=SEED, intermediates="modules",
        optimizer=Optimizer("SGD", lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3, schedule={"name": "step", "every": 300}),
    )  # fmt: skip


if __name__ == "__main__":
    main()
