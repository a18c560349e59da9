"""Makes everything else in this folder: an encoder with weights learned from text without labels, saved as Hugging Face
saves models, and a classifier on it to be trained from these weights.

    pip install ../../tools[families]
    python make.py

Samples are pieces of this repository's own files; the class is the kind of file: Markdown, Rust, Python, TOML.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from headwater_tools import Optimizer, export, record
from headwater_tools.recorder import save
from transformers import BertConfig, BertForMaskedLM, BertModel

HERE = Path(__file__).parent
ROOT = HERE / "../.."
KINDS = ["*.md", "crates/core/src/*.rs", "tools/headwater_tools/*.py", "**/Cargo.toml"]
SEED, TOKENS, TRAIN, HELD_OUT, BATCH, EPOCHS = 0, 48, 80, 60, 16, 12
MASK, PIECES = 1, 4000
CONFIG = dict(
    vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
    max_position_embeddings=TOKENS, type_vocab_size=1, pad_token_id=0,
)  # fmt: skip


class Classifier(torch.nn.Module):
    """The encoder's states, averaged, to a class."""

    def __init__(self, config):
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = torch.nn.Linear(config.hidden_size, len(KINDS))

    def forward(self, input_ids, labels):
        logits = self.head(self.encoder(input_ids=input_ids).last_hidden_state.mean(1))
        return F.cross_entropy(logits, labels), logits


def pieces(pattern):
    """Pieces [n, TOKENS] of the ASCII bytes of all files of a kind."""
    files = sorted(p for p in ROOT.glob(pattern) if "target" not in p.parts)
    text = b"\n".join(p.read_text().encode("ascii", "ignore") for p in files)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return data[: len(data) // TOKENS * TOKENS].view(-1, TOKENS)


def pretrain(config, samples):
    """Three hundred steps of filling in masked bytes."""
    torch.manual_seed(SEED)
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(300):
        ids = samples[torch.randint(len(samples), (16,))].long()
        hidden = torch.rand(ids.shape) < 0.15
        loss = model(input_ids=ids.masked_fill(hidden, MASK), labels=ids.masked_fill(~hidden, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss of masked bytes {loss.item():.3f}")
    return model.bert


def main():
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(SEED)
    config = BertConfig(**CONFIG)
    kinds = [pieces(k) for k in KINDS]
    kinds = [k[torch.randperm(len(k), generator=random)] for k in kinds]
    parts = {"train": slice(HELD_OUT, HELD_OUT + TRAIN // len(KINDS) * 4), "heldout": slice(0, HELD_OUT)}
    for name, part in parts.items():
        ids = torch.cat([k[part] for k in kinds])
        labels = torch.cat([torch.full((len(k[part]),), i) for i, k in enumerate(kinds)])
        order = torch.randperm(len(ids), generator=random)
        save({"input_ids": ids[order], "labels": labels[order]}, HERE / f"{name}.safetensors", {})
    unlabelled = torch.cat([k[HELD_OUT:] for k in kinds])
    encoder = pretrain(config, unlabelled[torch.randperm(len(unlabelled), generator=random)[:PIECES]])
    encoder.save_pretrained(HERE / "encoder")

    torch.manual_seed(SEED)
    module = Classifier(config).train()
    batch = torch.export.Dim("batch", min=1)
    example = torch.cat([k[:1] for k in kinds]).long(), torch.arange(len(KINDS))
    shapes = {"input_ids": {0: batch}, "labels": {0: batch}}
    export(module, example, HERE / "classifier.pt2", dynamic_shapes=shapes, compress=True)
    record(module, example, HERE / "classifier.golden.safetensors", seed=SEED, intermediates="none")


if __name__ == "__main__":
    main()
