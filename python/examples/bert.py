"""Hugging Face's BERT, trained to fill in masked tokens: a plain PyTorch script, and one line of Headwater.

    python bert.py --steps 200 --out run          # trains and saves
    python bert.py --steps 300 --out run --resume # goes on from there, to step 300

The data are made up, so that nothing is downloaded: sequences of one number. The lines that eager mode has in place of the step
are in the comment below it."""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

import headwater

NUMBERS, MASK = 16, 16


def batch(generator: torch.Generator, size: int = 16, length: int = 24) -> dict[str, torch.Tensor]:
    start = torch.randint(0, NUMBERS, (size, 1), generator=generator)
    tokens = start.repeat(1, length)
    masked = torch.rand(size, length, generator=generator) < 0.15
    masked[:, 0] = True
    return {
        "input_ids": tokens.masked_fill(masked, MASK),
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens.masked_fill(~masked, -100),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="steps in all")
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=NUMBERS + 1,
        hidden_size=64,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)  # type: ignore[no-untyped-call]
    data = torch.Generator().manual_seed(1)
    first = 0
    if args.resume:
        saved = torch.load(args.out / "training.pt", weights_only=True)
        model.load_state_dict(BertForMaskedLM.from_pretrained(args.out).state_dict())
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        data.set_state(saved["data"])
        torch.set_rng_state(saved["rng"])
        first = saved["step"]

    step = headwater.compile_step(model, optimizer, clip_norm=1.0)
    for i in range(first, args.steps):
        loss = step(**batch(data))
        # loss = model(**batch(data)).loss
        # optimizer.zero_grad()
        # loss.backward()
        # torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        # optimizer.step()
        schedule.step()
        if (i + 1) % 10 == 0 or i + 1 == args.steps:
            print(f"step {i + 1}: loss {loss.item():.6f}, norm {step.norm:.4f}, rate {schedule.get_last_lr()[0]:.2e}")

    model.save_pretrained(args.out)
    torch.save(
        {
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "data": data.get_state(),
            "rng": torch.get_rng_state(),
            "step": args.steps,
        },
        args.out / "training.pt",
    )


if __name__ == "__main__":
    main()
