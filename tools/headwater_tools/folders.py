"""Data as other programs write them, each with a model and its golden, for Headwater's tests.

    python -m headwater_tools.folders FOLDER

A table of people by pandas' `to_csv`, photographs with masks by Pillow, and folders of texts with the
tokenizers that `save_pretrained` writes for models of GPT-2's, BERT's, Llama's and T5's kinds.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import PreTrainedTokenizerFast

from . import export, record, tokenizers

WORK = ["Private", "Self-emp-not-inc", "Local-gov", "?"]
MARRIED = ["Married-civ-spouse", "Never-married", "Divorced"]
NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "hours-per-week"]
LENGTH = 12


def write(place, module, args, dynamic):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(module.train(), args, place / "model.pt2", dynamic_shapes=dynamic, compress=True)
        record(module, args, place / "model.golden.safetensors", intermediates="none")


def batches(*names):
    batch = torch.export.Dim("batch", min=1)
    return {name: {0: batch} for name in names}


class Adult(nn.Module):
    """Five numbers and two categories of a person; one logit of the second class of income."""

    def __init__(self):
        super().__init__()
        self.work, self.married = nn.Embedding(len(WORK), 4), nn.Embedding(len(MARRIED), 4)
        self.norm = nn.BatchNorm1d(5)
        self.body = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers, workclass, marital, labels):
        parts = [self.norm(numbers), self.work(workclass), self.married(marital)]
        logit = self.body(torch.cat(parts, 1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(logit, labels.float()), logit


def people(n, seed):
    """As the adult data of the UCI repository: a quarter earns more, by education, hours, age, marriage."""
    import pandas as pd

    r = np.random.default_rng(seed)
    married = r.integers(0, len(MARRIED), n)
    table = pd.DataFrame({
        "age": r.integers(17, 80, n),
        "workclass": np.array(WORK)[r.integers(0, len(WORK), n)],
        "fnlwgt": r.integers(20_000, 900_000, n),
        "education-num": r.integers(1, 17, n).astype(float),
        "marital-status": np.array(MARRIED)[married],
        "capital-gain": np.where(r.random(n) < 0.1, r.integers(100, 20_000, n), 0),
        "hours-per-week": r.integers(10, 80, n) + 0.5,
    })
    score = table["education-num"] / 4 + table["hours-per-week"] / 16 + table["age"] / 30 + 2.0 * (married == 0)
    score += r.normal(0, 0.5, n)
    table["income"] = np.where(score > 9.2, ">50K", "<=50K")
    return table


def adult(place):
    people(500, 0).to_csv(place / "train-1.csv")
    people(100, 1).to_csv(place / "train-2.csv")
    people(200, 2).to_csv(place / "heldout.csv", index=False)
    columns = ", ".join(f'"{name}"' for name in NUMBERS)
    (place / "table.toml").write_text(
        f'[vectors]\nnumbers = [{columns}]\n\n[classes]\nworkclass = {json.dumps(WORK)}\nmarital-status = "auto"\nincome = "auto"\n'
    )
    torch.manual_seed(0)
    numbers = torch.tensor(people(8, 3)[NUMBERS].to_numpy(), dtype=torch.float32)
    pick = lambda n: torch.randint(0, n, (8,))
    args = numbers, pick(len(WORK)), pick(len(MARRIED)), torch.tensor([0, 1, 1, 0, 0, 1, 0, 1])
    write(place, Adult(), args, batches("numbers", "workclass", "marital", "labels"))


class Segment(nn.Module):
    """Classes of pixels; 255 is ignored."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, images, masks):
        logits = self.body(images)
        return F.cross_entropy(logits, masks, ignore_index=255), logits


def segments(place):
    from PIL import Image

    (place / "photos").mkdir(exist_ok=True)
    (place / "masks").mkdir(exist_ok=True)
    r = np.random.default_rng(0)
    for i in range(12):
        height, width = (16, 16) if i % 2 else (20, 32)
        rows, columns = np.mgrid[:height, :width]
        y, x = r.integers(4, height - 4), r.integers(4, width - 4)
        mask = np.where((rows - y) ** 2 + (columns - x) ** 2 < 16, 1, 0) + 2 * (columns > width - 4)
        mask = np.where(rows == 0, 255, mask.clip(0, 2)).astype(np.uint8)
        colours = np.array([[40, 40, 40], [200, 60, 40], [40, 60, 200]])
        image = colours[mask % 3] + r.integers(0, 30, (height, width, 3))
        Image.fromarray(image.astype(np.uint8)).save(place / "photos" / f"{i:02}.png")
        if i % 3:
            Image.fromarray(mask).save(place / "masks" / f"{i:02}.png")
        else:  # colours by number, as VOC's masks are
            coloured = Image.fromarray(mask, "P")
            coloured.putpalette(list(range(256)) * 3)
            coloured.save(place / "masks" / f"{i:02}.png")
    (place / "images.toml").write_text(
        'channels = 3\nheight = 16\nwidth = 16\nmasks = "masks"\nclasses = ["ground", "disc", "edge"]\n'
    )
    torch.manual_seed(1)
    masks = torch.randint(0, 3, (4, 16, 16))
    masks[:, 0] = 255
    write(place, Segment(), (torch.rand(4, 3, 16, 16), masks), batches("images", "masks"))


class Language(nn.Module):
    """A model of Hugging Face with its own loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, labels):
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        return out.loss, out.logits


def model(kind, vocabulary):
    small = dict(vocab_size=vocabulary, pad_token_id=0, bos_token_id=1, eos_token_id=1)
    if kind == "gpt2":
        c = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=LENGTH, use_cache=False, **small)
        return transformers.GPT2LMHeadModel(c)
    width = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    if kind == "llama":
        c = transformers.LlamaConfig(num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=LENGTH, use_cache=False, **width, **small)
        return transformers.LlamaForCausalLM(c)
    if kind == "bert":
        c = transformers.BertConfig(max_position_embeddings=LENGTH, num_labels=2, **width, **small)
        return transformers.BertForSequenceClassification(c)
    c = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0, use_cache=False, **small
    )
    return transformers.T5ForConditionalGeneration(c)


SENTENCES = ["hello world, hello there!", "the quick brown fox", "don't you'll we're", "The lazy dog, 12 345 of them.", "x² ½ café"]
KINDS = {"gpt2": tokenizers.byte_level, "bert": tokenizers.bert, "llama": tokenizers.llama, "t5": tokenizers.t5}


def texts(place, kind):
    made, special = KINDS[kind]()
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(place)
    for other in place.iterdir():
        if other.name != "tokenizer.json":
            other.unlink()
    r = np.random.default_rng(0)
    lines = [" ".join(SENTENCES[j] for j in r.integers(0, 5, r.integers(1, 3))) for _ in range(64)]
    rows = [{"text": line, "label": "long" if len(line) > 30 else "short"} for line in lines]
    (place / "texts.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    pad = special.get("pad_token") or special["eos_token"]
    labels = 'label = "label"\n' if kind == "bert" else ""
    (place / "text.toml").write_text(f'tokenizer = "tokenizer.json"\nlength = {LENGTH}\npad = "{pad}"\ntruncate = true\n{labels}')
    torch.manual_seed(2)
    language = Language(model(kind, made.get_vocab_size()))
    ids, mask = torch.randint(2, made.get_vocab_size(), (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, -4:] = False
    labels = torch.tensor([0, 1]) if kind == "bert" else ids.clone().masked_fill(~mask, -100)
    write(place, language, (ids, mask, labels), batches("input_ids", "attention_mask", "labels"))


if __name__ == "__main__":
    for name in ["adult", "segments", *KINDS]:
        place = Path(sys.argv[1]) / name
        place.mkdir(parents=True, exist_ok=True)
        {"adult": adult, "segments": segments}.get(name, lambda place: texts(place, name))(place)
