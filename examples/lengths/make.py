"""Makes everything in this folder: a text classifier exported for any batch and length, and sentences of several lengths."""

import json
import random

import torch
from headwater_tools import export
from torch import nn

LONGEST = 64  # bytes
WIDTH = 32


class Classifier(nn.Module):
    """Bytes to one of two classes: attention that leaves padding out, and the mean over what is no padding."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, input_ids, attention_mask, labels):
        batch, length = input_ids.shape
        x = self.tokens(input_ids) + self.places(torch.arange(length, device=input_ids.device))
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None, None, :])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        x = x + self.drop(self.mlp(x))
        kept = attention_mask[:, :, None].to(x.dtype)
        logits = self.head((x * kept).sum(1) / kept.sum(1))
        return nn.functional.cross_entropy(logits, labels), logits


def sentence(draw):
    """Words, most of them short; the class is whether one of the words is a number."""
    words = ["the", "rain", "falls", "on", "a", "hill", "and", "river", "runs", "by", "stone", "wind"]
    chosen = [draw.choice(words) for _ in range(1 + min(int(draw.expovariate(0.35)), 8))]
    number = draw.random() < 0.5
    if number:
        chosen[draw.randrange(len(chosen))] = str(draw.randrange(10, 999))
    return {"text": " ".join(chosen), "label": int(number)}


def main():
    draw = random.Random(1)
    for name, count in ("train", 2000), ("heldout", 400):
        with open(f"{name}/texts.jsonl", "w") as file:
            file.writelines(json.dumps(sentence(draw)) + "\n" for _ in range(count))
    torch.manual_seed(1)
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=2, max=LONGEST)
    ids = torch.randint(97, 122, (4, 24))
    example = ids, torch.ones(4, 24, dtype=torch.bool), torch.tensor([0, 1, 0, 1])
    both = {0: batch, 1: length}
    shapes = {"input_ids": both, "attention_mask": both, "labels": {0: batch}}
    export(Classifier().train(), example, "classifier.pt2", dynamic_shapes=shapes, compress=True)


main()
