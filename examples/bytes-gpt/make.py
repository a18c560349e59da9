"""Makes everything else in this folder: a text, a causal language model of its bytes, and what PyTorch computes with it.

    pip install ../../tools[families]
    python make.py

The text is this repository's own documentation, which comes with the repository's licence.
"""

from pathlib import Path

import torch
from headwater_tools import Optimizer, export, record
from headwater_tools.recorder import save
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).parent
PAGES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "goldens/README.md", "docs/mixed-precision.md", "docs/glossary.md"]
SEED, TOKENS, HELD_OUT, BATCH, STEPS = 0, 64, 100, 16, 600
CONFIG = dict(n_layer=2, n_head=4, n_embd=48, n_positions=TOKENS, vocab_size=128, use_cache=False, bos_token_id=0, eos_token_id=0)


class Training(torch.nn.Module):
    """The model with its loss. Each token is predicted from those before it: the model shifts the labels itself."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        out = self.model(input_ids=input_ids, labels=labels)
        return out.loss, out.logits


def text():
    """The pages in ASCII; other characters are left out."""
    return b"\n".join((HERE / "../.." / page).read_text().encode("ascii", "ignore") for page in PAGES)


def main():
    torch.set_num_threads(1)
    data = torch.frombuffer(bytearray(text()), dtype=torch.uint8)
    samples = data[: len(data) // TOKENS * TOKENS].view(-1, TOKENS)
    samples = samples[torch.randperm(len(samples), generator=torch.Generator().manual_seed(SEED))]
    save({"input_ids": samples[:-HELD_OUT]}, HERE / "train.safetensors", {})
    save({"input_ids": samples[-HELD_OUT:]}, HERE / "heldout.safetensors", {})
    torch.manual_seed(SEED)
    module = Training(GPT2LMHeadModel(GPT2Config(**CONFIG))).train()
    batch = torch.export.Dim("batch", min=1)
    ids = samples[:4].long()
    shapes = {"input_ids": {0: batch}, "labels": {0: batch}}
    example = ids, ids.clone()  # of one tensor given twice, an export reads one place alone
    export(module, example, HERE / "gpt.pt2", dynamic_shapes=shapes, compress=True)
    record(
        module, example, HERE / "gpt.golden.safetensors", data=HERE / "train.safetensors", eval=HERE / "heldout.safetensors",
        names={"labels": "input_ids"}, batch=BATCH, steps=STEPS, seed=SEED, intermediates="none",
        optimizer=Optimizer("AdamW", lr=3e-3, weight_decay=0.1, decay="matrices", clip_norm=1.0, schedule="cosine", warmup=60),
    )  # fmt: skip


if __name__ == "__main__":
    main()
