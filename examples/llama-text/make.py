"""Makes a small Llama and a text for it in a folder outside the repository, and the job that trains it.

    pip install ../../tools[families]
    python make.py FOLDER

The text is this repository's own: its pages and the comments of its source, byte by byte.
"""

import re
import sys
from pathlib import Path

import torch
import transformers as tf
from headwater_tools import export
from headwater_tools.families import TextLoss
from headwater_tools.recorder import save

ROOT = Path(__file__).resolve().parents[2]
SEED, BATCH, TOKENS, HELD_OUT = 0, 8, 128, 0.05
CONFIG = dict(
    vocab_size=256, hidden_size=256, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, intermediate_size=688,
    max_position_embeddings=TOKENS, use_cache=False,
)


def text():
    """Pages, then comments of the source, files in the order of their names."""
    pages = sorted(p for p in ROOT.rglob("*.md") if "target" not in p.parts)
    comments = [
        "\n".join(re.findall(r"^\s*//[/!] ?(.*)$", source.read_text(), re.M)) for source in sorted(ROOT.glob("crates/*/src/**/*.rs"))
    ]
    return "\n\n".join([p.read_text() for p in pages] + comments).encode()


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = torch.frombuffer(bytearray(text()), dtype=torch.uint8)
    samples = data[: len(data) // TOKENS * TOKENS].view(-1, TOKENS)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(SEED))
    held = int(len(samples) * HELD_OUT)
    for name, part in ("heldout", order[:held]), ("train", order[held:]):
        tokens = samples[part].to(torch.int64)
        save({"input_ids": tokens, "labels": tokens}, folder / f"{name}.safetensors", {})
    torch.manual_seed(SEED)
    module = TextLoss(tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG))).train()
    tokens = samples[order[:BATCH]].to(torch.int64)
    export(module, (tokens, tokens), folder / "llama.pt2", compress=True)
    print(f"{len(samples)} samples of {TOKENS} bytes, {sum(p.numel() for p in module.parameters())} parameters")
    (folder / "train.toml").write_text((Path(__file__).parent / "train.toml").read_text())


if __name__ == "__main__":
    main(sys.argv[1])
