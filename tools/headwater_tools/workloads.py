"""The four workloads that training steps are measured on, built from Hugging Face classes with random weights.

    python -m headwater_tools.workloads DIR              # exports all four, core and training form, with a batch
    python -m headwater_tools.workloads DIR llama gpt2   # some of them, and of those in `further`

Dropout is 0: what is measured is the same arithmetic on both sides. Attention is `sdpa`, as transformers chooses by itself.
"""

import argparse
import inspect
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import save_file

from .exporter import export
from .families import ImageLoss, TextLoss
from .further import FURTHER, images, tokens

SEED = 0


def vit():
    """ViT-Ti/16 at 224, batch 16: 5.7 M parameters, 197 tokens."""
    config = tf.ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, image_size=224, patch_size=16,
        num_labels=1000, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return ImageLoss(tf.ViTForImageClassification(config)), images(16, 224)


def llama():
    """A Llama of 6 layers (d 512, 8 heads, 4 key-value heads, FFN 1376, vocabulary 32,000), 4 × 256 tokens: 48 M parameters."""
    config = tf.LlamaConfig(
        vocab_size=32000, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1376, max_position_embeddings=2048, use_cache=False,
    )
    return TextLoss(tf.LlamaForCausalLM(config)), tokens(4, 256, 32000)


def bert():
    """A BERT of 6 layers (d 384, 6 heads, vocabulary 30,522) under masked-language loss, 16 × 128 tokens: 23 M parameters."""
    config = tf.BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
        max_position_embeddings=512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
    return TextLoss(tf.BertForMaskedLM(config)), tokens(16, 128, 30522)


def resnet():
    """ResNet-18 at 128, batch 16: 11.7 M parameters."""
    config = tf.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000,
    )
    return ImageLoss(tf.ResNetForImageClassification(config)), images(16, 128)


WORKLOADS = {f.__name__: f for f in (vit, llama, bert, resnet)}


def build(name):
    """The module in training mode, its loss first, and one batch."""
    torch.manual_seed(SEED)
    module, batch = (WORKLOADS | FURTHER)[name]()
    return module.train(), batch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS | FURTHER))
    args = parser.parse_args()
    for name in args.names:
        for form in ("core", "train"):
            module, batch = build(name)
            path = args.dir / f"{name}.{form}.pt2"
            export(module, batch, path, decompose=form == "core")
            count = sum(p.numel() for p in module.parameters())
            print(f"{path}: {count / 1e6:.1f} M parameters, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        names = list(inspect.signature(module.forward).parameters)
        save_file(dict(zip(names, map(torch.Tensor.contiguous, batch))), args.dir / f"{name}.batch.safetensors")


if __name__ == "__main__":
    main()
