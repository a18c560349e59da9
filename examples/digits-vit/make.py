"""Makes everything else in this folder: the data, the exported model, what PyTorch computes with it and how it trains it.

    pip install ../../tools[digits]
    python make.py
"""

from pathlib import Path

import torch
from headwater_tools import AdamW, export, record, train
from headwater_tools.recorder import save
from model import DigitsViT
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
SEED, HELD_OUT, BATCH, EPOCHS = 0, 360, 64, 25
SETTINGS = AdamW(lr=3e-3, weight_decay=0.2, decay="matrices", clip_norm=1.0, schedule="cosine", warmup=100)


def data():
    """Images [n, 1, 8, 8] from 0 to 1 and labels [n]: the training part and the held-out part."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    labels = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    parts = order[:-HELD_OUT], order[-HELD_OUT:]
    return [{"images": images[part], "labels": labels[part]} for part in parts]


def batches(count):
    """Sample indices [steps, batch]: a new order each epoch, its last incomplete batch dropped."""
    generator = torch.Generator().manual_seed(SEED)
    whole = count // BATCH * BATCH
    epochs = [torch.randperm(count, generator=generator)[:whole].view(-1, BATCH) for _ in range(EPOCHS)]
    return torch.cat(epochs)


def evaluate(module, part):
    with torch.no_grad():
        loss, logits = module(part["images"], part["labels"])
    return loss.double(), (logits.argmax(1) == part["labels"]).double().mean()


def main():
    torch.set_num_threads(1)  # for the same result whatever the machine
    training, held_out = data()
    save(training, HERE / "train.safetensors", {})
    save(held_out, HERE / "heldout.safetensors", {})

    torch.manual_seed(SEED)
    module = DigitsViT().train()
    order = batches(len(training["labels"]))
    runs = [(training["images"][indices], training["labels"][indices]) for indices in order]
    batch = torch.export.Dim("batch", min=1)
    example = tuple(x[:4] for x in runs[0])
    export(module, example, HERE / "digits_vit.pt2", dynamic_shapes={"images": {0: batch}, "labels": {0: batch}})

    curve = train(module, runs, SETTINGS)
    loss, accuracy = evaluate(curve.module, held_out)
    record(
        module, example, HERE / "digits_vit.golden.safetensors",
        optimizer=SETTINGS, batches=runs, seed=SEED,
        extra={"curve.order": order, "curve.eval_loss": loss, "curve.eval_accuracy": accuracy},
    )
    print(f"{len(order)} steps, last loss {curve.loss[-1]:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
