"""Goldens of attention whose masks leave some queries no key: by large numbers, by minus infinity, by False. Spelled out and fused.

    python -m headwater_tools.masked goldens/attention/

Rows masked by numbers see all keys alike, as large as the numbers may be: their weights are 1/n, and so they are in the gradient.
Beside numbers from 1e4 to 1e12 the scores of such a row are rounded, in float32 more than in float64: there its query is zero, so
that they are equal in both.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from .exporter import export
from .recorder import SUFFIX, record
from .training import AdamW

MIN = torch.finfo(torch.float32).min
BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 2, 4, 5, 3


class Rows(nn.Module):
    """Heads of queries, keys and values, times a number; forms of attention are added up, each with weights of its own."""

    def __init__(self, heads=HEADS, shared=HEADS):
        super().__init__()
        self.q = nn.Parameter(torch.randn(BATCH, heads, QUERIES, SIZE))
        self.k, self.v = (nn.Parameter(torch.randn(BATCH, shared, KEYS, SIZE)) for _ in range(2))

    def blank(self, seen):
        """Makes zeros of the queries that see no key."""
        with torch.no_grad():
            self.q *= seen.amax(-1, keepdim=True)
        return self

    def scores(self, x, i):
        return (self.q * (x + 0.1 * i)) @ self.k.transpose(-2, -1) * SIZE**-0.5

    def spelled(self, scores, i=0):
        y = scores.softmax(-1) @ self.v
        return (y * torch.sin(torch.arange(y.numel()).reshape(y.shape) + float(i))).sum()

    def fused(self, x, i, **how):
        y = F.scaled_dot_product_attention(self.q * (x + 0.1 * i), self.k, self.v, **how)
        return (y * torch.sin(torch.arange(y.numel()).reshape(y.shape) + float(i))).sum()


class Added(Rows):
    """Numbers of all sizes that models use, added to all keys of some queries, and to some keys of the others if they are negative."""

    sizes = -1e4, -1e9, 1e9, -1e12, 1e30, -1e30, MIN

    def forward(self, x, seen):
        hidden = {False: 1.0 - seen.amax(-1, keepdim=True), True: 1.0 - seen}
        return sum(self.spelled(self.scores(x, i) + hidden[size < 0] * size, i) for i, size in enumerate(self.sizes))


class Chosen(Rows):
    """Scores that are replaced: `where`, `masked_fill`, and a bias made by either."""

    def forward(self, x, seen):
        ok = seen > 0.5
        bias = torch.zeros(seen.shape).masked_fill(~ok, MIN)
        forms = (
            lambda s: torch.where(ok, s, MIN), lambda s: s.masked_fill(~ok, -1e9), lambda s: s + torch.where(ok, 0.0, MIN),
            lambda s: bias + s, lambda s: s.masked_fill(~ok, -1e4), lambda s: torch.where(ok, s, torch.full((), -1e12)),
        )  # fmt: skip
        return sum(self.spelled(form(self.scores(x, i)), i) for i, form in enumerate(forms))


class Planes(Rows):
    """A causal plane and one of padding, added and chosen; the first queries see no key, or none that is no padding."""

    def forward(self, x, seen):
        later = torch.ones(QUERIES, KEYS).triu(1).bool()
        causal = torch.zeros(QUERIES, KEYS).masked_fill(later, -1e30)
        padding = (1.0 - seen[:, :, :1]) * -1e30
        both = torch.where(later | (seen[:, :, :1] < 0.5), MIN, 0.0)
        forms = (lambda s: s + (causal + padding), lambda s: s + causal + padding, lambda s: s + both, lambda s: torch.minimum(causal, padding) + s)
        return sum(self.spelled(form(self.scores(x, i)), i) for i, form in enumerate(forms))


class Grouped(Rows):
    """Heads that share keys and values, with dropout."""

    def __init__(self):
        super().__init__(heads=4, shared=2)

    def forward(self, x, seen):
        k, v = (
            t[:, :, None].expand(BATCH, 2, 2, KEYS, SIZE).reshape(BATCH, 4, KEYS, SIZE) for t in (self.k, self.v)
        )
        total = 0.0
        for i, size in enumerate((-1e30, MIN)):
            scores = (self.q * (x + 0.1 * i)) @ k.transpose(-2, -1) * 0.6 + (1.0 - seen) * size
            y = F.dropout(scores.softmax(-1), 0.2) @ v
            total = total + (y * torch.cos(torch.arange(y.numel()).reshape(y.shape) + float(i))).sum()
        return total


class Fused(Rows):
    """The fused operator under numbers, with a scale of its own among them, and shared heads."""

    def __init__(self, sizes):
        super().__init__(heads=4, shared=2)
        self.sizes = sizes

    def forward(self, x, seen):
        hidden = {False: 1.0 - seen.amax(-1, keepdim=True), True: 1.0 - seen}
        total = 0.0
        for i, size in enumerate(self.sizes):
            how = {"scale": 0.4} if i % 2 else {}
            total = total + self.fused(x, i, attn_mask=hidden[size < 0] * size, enable_gqa=True, **how)
        return total


class Unseen(Rows):
    """The fused operator where nothing is seen: zeros. By False or by minus infinity, beside queries that see."""

    def __init__(self, infinite):
        super().__init__()
        self.infinite = infinite

    def forward(self, x, seen):
        ok = seen > 0.5
        return self.fused(x, 0, attn_mask=torch.zeros(seen.shape).masked_fill(~ok, -torch.inf) if self.infinite else ok)


class Undefined(Rows):
    """The softmax spelled out where nothing is seen: NaN, as PyTorch has it. The gradients of queries that see are numbers."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x, seen):
        ok, scores = seen > 0.5, self.scores(x, 0)
        y = {
            "added": lambda: scores + torch.where(ok, 0.0, -torch.inf),
            "planes": lambda: scores + (torch.where(ok, 0.0, -torch.inf) + torch.where(ok, 0.0, -torch.inf)),
            "filled": lambda: scores.masked_fill(~ok, -torch.inf),
        }[self.how]()
        return self.spelled(y)


class LargeScores(nn.Module):
    """Losses of scores so large that the logarithm of a sum is rounded away beside them."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))

    def forward(self, x, target):
        total = 0.0
        for shift in 1e9, -1e9, 1e30, MIN / 2:
            scores = self.w * x + shift
            total = total + F.cross_entropy(scores, target, label_smoothing=0.1) + F.nll_loss(F.log_softmax(scores, 1), target)
            total = total + (scores.softmax(1) * torch.arange(12.0).reshape(4, 3)).sum()
        return total


class InfiniteSums(nn.Module):
    """logsumexp, logaddexp and logcumsumexp with rows of minus infinity alone: NaN gradients, as PyTorch has them."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.tensor([[-torch.inf] * 3, [0.1, 0.2, -torch.inf], [0.5, 0.3, 1.0]])) for _ in range(3))

    def forward(self, x):
        sums = torch.logsumexp(self.a * x, 1), torch.logaddexp(self.b * x, self.b.detach()), torch.logcumsumexp(self.c * x, 1)
        return sum(torch.where(s.isinf(), 0.0, s).sum() for s in sums)


class Language(nn.Module):
    """A model of Hugging Face's with its own attention, and the mean loss over all tokens: padding counts."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask, labels):
        logits = self.model(input_ids=ids, attention_mask=mask).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        return loss, logits


def languages():
    """Small models with random weights and no dropout, whose attention is spelled out."""
    from transformers import (
        BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM,
    )  # fmt: skip

    eager = {"attn_implementation": "eager", "vocab_size": 23}
    common = {**eager, "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 16}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {
        "padded_gpt2": GPT2LMHeadModel(
            GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **eager)
        ),
        "padded_llama": LlamaForCausalLM(LlamaConfig(intermediate_size=16, num_key_value_heads=1, **common)),
        "padded_opt": OPTForCausalLM(
            OPTConfig(ffn_dim=16, word_embed_proj_dim=8, dropout=0.0, attention_dropout=0.0, pad_token_id=0, **common)
        ),
        "padded_bert": BertForMaskedLM(BertConfig(intermediate_size=16, **quiet, **common)),
    }


def write(folder, name, module, args, **how):
    """An archive and its golden."""
    export(module.train(), args, folder / f"{name}.pt2", compress=True)
    record(module, args, folder / f"{name}{SUFFIX}", intermediates="none", **how)


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    seen = (torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.4).float()
    seen[0, :, 1], seen[1, :, 0], seen[1, :, 3] = 0.0, 0.0, 0.0
    x = torch.full((1,), 1.5)
    forms = {
        "masked_added": lambda: Added().blank(seen), "masked_chosen": Chosen, "masked_planes": Planes, "masked_grouped": Grouped,
        "masked_fused": lambda: Fused((-1e9, 1e9, -1e12, 1e30, MIN)).blank(seen),
        "masked_fused_low": lambda: Fused((-1e4, -3e4)).blank(seen),  # which half precision has too
        "unseen_bool": lambda: Unseen(False), "unseen_infinite": lambda: Unseen(True), "unseen_added": lambda: Undefined("added"), "unseen_planes": lambda: Undefined("planes"),
        "unseen_filled": lambda: Undefined("filled"),
    }  # fmt: skip
    for name, make in forms.items():
        torch.manual_seed(0)
        write(folder, name, make(), (x, seen))
    torch.manual_seed(0)
    write(folder, "large_scores", LargeScores(), (torch.randn(4, 3), torch.tensor([0, 2, 1, 1])))
    write(folder, "infinite_sums", InfiniteSums(), (torch.ones(3, 3),))
    ids = torch.randint(1, 23, (8, 8), generator=torch.Generator().manual_seed(5))
    mask = (torch.arange(8) >= torch.tensor([8, 3, 0, 6, 1, 0, 7, 2])[:, None]).long()  # one sample is all padding
    ids = ids * mask
    labels = ids.roll(-1, 1)
    for name, model in languages().items():
        torch.manual_seed(0)
        for p in model.parameters():  # larger than Hugging Face's own: gradients are not all rounding
            nn.init.normal_(p, 0.0, 0.3) if p.dim() > 1 else None
        for n, p in model.named_parameters():  # a bias of all keys changes no weight: its gradient is rounding
            p.requires_grad_(not n.endswith(("key.bias", "k_proj.bias")))
        write(folder, name, Language(model), (ids, mask, labels), steps=50, optimizer=AdamW(lr=3e-3))


if __name__ == "__main__":
    main(sys.argv[1])
