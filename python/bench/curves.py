"""Curves of losses: our distance from eager mode beside that of eager mode from itself.

    python python/bench/curves.py [--steps 100] [bert vit resnet llama]

The measure is eager mode whose weights were multiplied by 1 + 2⁻²³ at the start, the largest of three such runs with different
parameters chosen: curves part by rounding alone. Small models of Hugging Face's, AdamW at 1e-3, clipping to 1, new random batches;
largest relative distance of losses after 10, 30 and 100 steps. Bar: ours is at most 10 times the measure, and after 10 steps at most
5e-6."""

import argparse
import copy
import sys
from typing import Any, Callable, Iterator

import torch
import transformers as tf

import headwater


def bert() -> tuple[Any, Callable[[Any], dict[str, torch.Tensor]]]:
    config = tf.BertConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
    )

    def batch(g: Any) -> dict[str, torch.Tensor]:
        ids = torch.randint(1000, (8, 32), generator=g)
        return {"input_ids": ids, "labels": ids[:, 0] % 5}

    return tf.BertForSequenceClassification(config), batch


def llama() -> tuple[Any, Callable[[Any], dict[str, torch.Tensor]]]:
    config = tf.LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        use_cache=False,
    )

    def batch(g: Any) -> dict[str, torch.Tensor]:
        ids = torch.randint(500, (4, 32), generator=g)
        return {"input_ids": ids, "labels": ids}

    return tf.LlamaForCausalLM(config), batch


def images(size: int, channels: int = 3) -> Callable[[Any], dict[str, torch.Tensor]]:
    def batch(g: Any) -> dict[str, torch.Tensor]:
        pixels = torch.randn(8, channels, size, size, generator=g)
        return {"pixel_values": pixels, "labels": (pixels[:, 0, 0, 0] > 0).long()}

    return batch


def vit() -> tuple[Any, Callable[[Any], dict[str, torch.Tensor]]]:
    config = tf.ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
    )
    return tf.ViTForImageClassification(config), images(32)


def resnet() -> tuple[Any, Callable[[Any], dict[str, torch.Tensor]]]:
    config = tf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=5)
    return tf.ResNetForImageClassification(config), images(32)


MODELS = {f.__name__: f for f in (bert, vit, resnet, llama)}


def batches(make: Callable[[Any], dict[str, torch.Tensor]], steps: int) -> Iterator[dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(7)
    for _ in range(steps):
        yield make(g)


def eager(model: Any, make: Callable[[Any], dict[str, torch.Tensor]], steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches(make, steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def ours(model: Any, make: Callable[[Any], dict[str, torch.Tensor]], steps: int) -> list[float]:
    step = headwater.compile_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), clip_norm=1.0)
    losses = [step(**batch).item() for batch in batches(make, steps)]
    step.close()
    return losses


def perturbed(model: Any, which: int) -> Any:
    """A copy whose parameters, each third from `which` on or all, are multiplied by 1 + 2⁻²³."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for i, p in enumerate(twin.parameters()):
            if which == 0 or i % 3 == which:
                p.mul_(1.0 + 2.0**-23)
    return twin


def apart(a: list[float], b: list[float]) -> list[float]:
    """The largest relative distance up to each step."""
    found, largest = [], 0.0
    for x, y in zip(a, b):
        largest = max(largest, abs(x - y) / abs(y))
        found.append(largest)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS), choices=[*MODELS, []])
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    marks = [n for n in (10, 30, 100, 300) if n <= given.steps] or [given.steps]
    good = True
    print(f"{'':8} {'step':>5} {'ours':>9} {'measure':>9}")
    for name in given.models:
        torch.manual_seed(0)
        model, make = MODELS[name]()
        model.train()
        exact = eager(copy.deepcopy(model), make, given.steps)
        measures = [apart(eager(perturbed(model, which), make, given.steps), exact) for which in range(3)]
        own = apart(ours(copy.deepcopy(model), make, given.steps), exact)
        for n in marks:
            measure = max(m[n - 1] for m in measures)
            held = own[n - 1] <= 10 * measure and (n > 10 or own[n - 1] <= 5e-6)
            good &= held
            print(f"{name:8} {n:5} {own[n - 1]:9.1e} {measure:9.1e}{'' if held else '  beyond the bar'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
