"""Small models that are awkward, against their own autograd: operator × selection × mask × cast × tie × empty × form of export.

    python -m headwater_tools.awkward DIR --headwater target/release/headwater            # 1,000 cases in f64, f32 and bf16
    python -m headwater_tools.awkward DIR --headwater ... --count 60 --seed 7 --device ascend-sim:910b1
    python -m headwater_tools.awkward DIR --headwater ... --only 412 --reduce             # one case, without what it does not need

A case is drawn from its number and the seed, exported, recorded (`record` compares the archive with the module's own float64
gradients), and checked by `headwater check`. Each precision of a case is `pass`, `differs`, `not proved`, `refused` with a code, or
`crash`: a panic, a code that says that Headwater is at fault, or an exit status that has no meaning. Archives and goldens of all
but passes stay in DIR, results in `DIR/awkward.json`.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from .agreement import ModuleDiffers
from .exporter import export
from .recorder import SUFFIX, record

BATCH, ROWS, WIDTH = 2, 5, 4
PRECISIONS = "f64", "f32", "bf16"
DEFECTS = {"HW-C001", "HW-C010", "HW-I016"}  # codes of rules that the compiler itself breaks
PASSED, FAILED, DIFFERS, NOT_PROVED = 0, 1, 3, 4  # exit status of `headwater check`
MIN = torch.finfo(torch.float32).min


def operators():
    """Name to function of (h, m): h is `[2, 5, 4]` or what a selection has left of it, m the model with its parameters."""

    def attention(h, m, **how):
        return F.scaled_dot_product_attention(h @ m.square, h, h, **how)

    def eager(h, m, mask=None):
        scores = (h @ m.square) @ h.mT / 2
        return (scores if mask is None else m.masked(scores)).softmax(-1) @ h

    def rows(h):
        return h.reshape(-1, h.shape[-1])

    def images(h):
        return h.reshape(1, -1, h.shape[-1])

    def ids(h, count):
        return torch.arange(rows(h).shape[0]) % count

    def written(h, m):
        h = h.clone()
        h[..., 0] = m.weight[0]
        h[..., 1:3] *= 2
        h.view(-1)[:1].add_(m.weight[1])
        return h

    def masked_in_place(h, m):
        return h.clone().masked_fill_(h > 0.5, 0.25).clamp_(-1.0, 1.0)

    def scattered(h, m):
        return torch.zeros(h.shape[-1], h.shape[-1], dtype=h.dtype).index_add(0, ids(h, 3), rows(h))

    def untied(h):
        """Without equal elements in a row, of which PyTorch leaves open which one these operators choose."""
        return h + torch.linspace(0.0, 1e-2, h.shape[-1], dtype=h.dtype)

    def sum_of_empty(h, m):
        return h + h[..., :0].sum() + (h[..., :0] * 2).sum(-1, keepdim=True)

    return {
        "identity": lambda h, m: h,
        "softmax": lambda h, m: m.masked(h).softmax(-1),
        "softmax_rows": lambda h, m: h.softmax(0),
        "log_softmax": lambda h, m: m.masked(h).log_softmax(-1).clamp_min(-50.0),
        "logsumexp": lambda h, m: m.masked(h).logsumexp(-1),
        "layer_norm": lambda h, m: F.layer_norm(h, h.shape[-1:]),
        "rms_norm": lambda h, m: F.rms_norm(h, h.shape[-1:]),
        "manual_norm": lambda h, m: (h - h.mean(-1, keepdim=True)) * (h.var(-1, keepdim=True) + 1e-3).rsqrt(),
        "batch_norm": lambda h, m: m.norm(rows(h)) if h.shape[-1] == WIDTH and rows(h).shape[0] > 1 else h,
        "attention": lambda h, m: attention(h, m) if h.dim() > 1 and h.shape[-1] == WIDTH else h,
        "causal": lambda h, m: attention(h, m, is_causal=True) if h.dim() > 1 and h.shape[-1] == WIDTH else h,
        "attention_1_head": lambda h, m: attention(h.unsqueeze(-3), m).squeeze(-3) if h.dim() > 1 and h.shape[-1] == WIDTH else h,
        "eager_attention": lambda h, m: eager(h, m, True) if h.dim() > 1 and h.shape[-1] == WIDTH else h,
        "linear": lambda h, m: F.linear(h, m.square) if h.shape[-1] == WIDTH else h,
        "matmul": lambda h, m: h.mT @ h if h.dim() > 1 else h,
        "einsum": lambda h, m: torch.einsum("...i,...j->...ij", h, h),
        "bilinear": lambda h, m: (h.unsqueeze(-2) @ h.unsqueeze(-1)).squeeze(-1),
        "conv1d": lambda h, m: F.conv1d(images(h), m.weight.view(1, 1, -1).expand(images(h).shape[1], 1, -1), padding=2, groups=images(h).shape[1]),
        "max_pool": lambda h, m: F.max_pool1d(images(h), 2, 1, padding=1),
        "avg_pool": lambda h, m: F.avg_pool1d(images(h), 2, ceil_mode=True),
        "adaptive_max": lambda h, m: F.adaptive_max_pool1d(images(h), 2),
        "interpolate": lambda h, m: F.interpolate(images(h), scale_factor=2.0, mode="linear", align_corners=True),
        "pad_circular": lambda h, m: F.pad(images(h), (1, 1), mode="circular"),
        "pad": lambda h, m: F.pad(h, (1, 0), value=0.5),
        "unfold": lambda h, m: h.unfold(-1, 2, 1) if h.shape[-1] > 1 else h,
        "gelu": lambda h, m: F.gelu(h),
        "silu": lambda h, m: F.silu(h),
        "relu6": lambda h, m: F.relu6(h * 3),
        "hardswish": lambda h, m: F.hardswish(h * 3),
        "abs": lambda h, m: h.abs(),
        "sign_times": lambda h, m: h.sign() * h * h,
        "clamp": lambda h, m: h.clamp(-0.5, 0.5),
        "clamp_tensor": lambda h, m: torch.minimum(torch.maximum(h, m.weight.mean()), h.detach().mean() + 1),
        "round_detached": lambda h, m: h + (h.round() - h).detach(),
        "remainder": lambda h, m: torch.remainder(h, 0.7),
        "where": lambda h, m: torch.where(h > 0, h * h, torch.zeros_like(h)),
        "where_nan": lambda h, m: torch.where(h > 0.1, h.clamp_min(0.1).sqrt(), h * 0.5),
        "atan2": lambda h, m: torch.atan2(h, h.roll(1, -1) + 3),
        "lerp": lambda h, m: torch.lerp(h, h.flip(-1), 0.3),
        "pow": lambda h, m: h.abs().add(0.1).pow(1.5),
        "exp": lambda h, m: (h * 0.5).exp(),
        "log1p": lambda h, m: h.abs().log1p(),
        "prod": lambda h, m: h.prod(-1),
        "cumsum": lambda h, m: h.cumsum(-1),
        "cumprod": lambda h, m: h.cumprod(-1),
        "cummax": lambda h, m: h.cummax(-1).values,
        "logcumsumexp": lambda h, m: h.logcumsumexp(-1),
        "max": lambda h, m: h.max(-1).values,
        "amax": lambda h, m: h.amax(-1),
        "amin_all": lambda h, m: h * h.amin(),
        "max_all": lambda h, m: h * h.max(),
        "median": lambda h, m: h.median(-1).values,
        "median_all": lambda h, m: h * h.median(),
        "nanmedian_all": lambda h, m: h * h.nanmedian(),
        "quantile": lambda h, m: untied(h).quantile(0.5, dim=-1) if h.dtype in (torch.float32, torch.float64) else h.mean(-1),
        "kthvalue": lambda h, m: untied(h).kthvalue(1, -1).values,
        "sort": lambda h, m: h.sort(dim=-1, stable=True).values * torch.arange(1.0, h.shape[-1] + 1),
        "argsort_gather": lambda h, m: h.gather(-1, h.argsort(dim=-1, stable=True)) * torch.arange(1.0, h.shape[-1] + 1),
        "topk": lambda h, m: untied(h).topk(min(2, h.shape[-1]), -1).values,
        "std": lambda h, m: h.std(-1, unbiased=False),
        "var_mean": lambda h, m: sum(torch.var_mean(h, -1, correction=0)),
        "norm": lambda h, m: h.norm(dim=-1),
        "norm_1": lambda h, m: h.norm(p=1, dim=-1),
        "norm_inf": lambda h, m: h.norm(p=float("inf"), dim=-1),
        "normalize": lambda h, m: F.normalize(h, dim=-1),
        "cosine": lambda h, m: F.cosine_similarity(h, h.roll(1, -1) + 0.5, dim=-1),
        "cdist": lambda h, m: torch.cdist(rows(h), rows(h).roll(1, 0) + 1),
        "index_add": scattered,
        "scatter_add": lambda h, m: torch.zeros_like(h).scatter_add(-1, ids(h, h.shape[-1]).view(*h.shape[:-1], 1).expand_as(h), h),
        "scatter_reduce": lambda h, m: torch.zeros_like(h).scatter_reduce(
            -1, (torch.arange(h.shape[-1]) // 2).expand_as(h), h, "amax", include_self=True
        ),
        "index_put": lambda h, m: rows(h).index_put((torch.tensor([0, 0]),), m.weight[: h.shape[-1]].sum(), accumulate=True),
        "gather": lambda h, m: h.gather(-1, torch.zeros(*h.shape[:-1], 2, dtype=torch.int64)),
        "index_select": lambda h, m: h.index_select(0, torch.tensor([0, 0])),
        "embedding": lambda h, m: F.embedding(ids(h, 3), m.table) * rows(h).sum(-1, keepdim=True),
        "embedding_bag": lambda h, m: F.embedding_bag(ids(h, 3).view(1, -1), m.table, mode="max") * h.mean(),
        "roll_flip": lambda h, m: h.roll(1, 0).flip(-1) * m.weight[: 1],
        "tril": lambda h, m: h.tril() if h.dim() > 1 else h,
        "diag_embed": lambda h, m: h.diag_embed(),
        "diagonal_written": lambda h, m: torch.diagonal_scatter(rows(h), rows(h).diagonal() * 3),
        "stack_unbind": lambda h, m: torch.stack(h.unbind(-1)[::-1]).sum(0),
        "split_cat": lambda h, m: torch.cat(h.split(3, -1)[::-1], -1),
        "repeat_interleave": lambda h, m: h.repeat_interleave(2, -1),
        "expand": lambda h, m: h.unsqueeze(-1).expand(*h.shape, 3),
        "written": written,
        "masked_in_place": masked_in_place,
        "sum_of_empty": sum_of_empty,
        "cat_empty": lambda h, m: torch.cat([h, h[..., :0], h[..., :1]], -1),
        "detached_scale": lambda h, m: h / h.detach().abs().max().clamp_min(0.5),
        "no_grad_scale": lambda h, m: m.without_grad(h),
        "cross_entropy": lambda h, m: F.cross_entropy(rows(h), ids(h, h.shape[-1]), label_smoothing=0.1) + h.mean(),
        "cross_entropy_ignored": lambda h, m: F.cross_entropy(
            rows(h), torch.where(ids(h, 2) == 0, -100, ids(h, h.shape[-1])), reduction="sum"
        ) + h.mean(),
        "kl_div": lambda h, m: F.kl_div(h.log_softmax(-1), h.detach().flip(-1).softmax(-1), reduction="batchmean") + h.mean(),
        "huber": lambda h, m: F.huber_loss(h, torch.zeros_like(h), delta=0.5, reduction="none"),
        "smooth_l1": lambda h, m: F.smooth_l1_loss(h, h.detach().round(), reduction="none"),
        "bce": lambda h, m: F.binary_cross_entropy_with_logits(h, torch.full_like(h, 0.3), reduction="none"),
        "margin": lambda h, m: F.relu(1 - h + h.roll(1, -1)),
        "complex": lambda h, m: torch.fft.rfft(h.float(), dim=-1).abs().to(h.dtype) if h.shape[-1] > 1 else h,
    }  # fmt: skip


SELECTIONS = {
    "all": lambda h: h,
    "last_row": lambda h: h[:, -1] if h.dim() > 1 else h,
    "first_row": lambda h: h[:, 0] if h.dim() > 1 else h,
    "rows_from_2": lambda h: h[:, 2:] if h.dim() > 1 and h.shape[1] > 2 else h,
    "every_other": lambda h: h[..., ::2],
    "one_column": lambda h: h[..., 1:2] if h.shape[-1] > 1 else h,
    "transposed_last": lambda h: h.transpose(0, 1)[-1] if h.dim() > 1 else h,
    "first_of_batch": lambda h: h[0],
    "list_of_rows": lambda h: h[:, [0, -1]] if h.dim() > 1 else h,
    "narrow": lambda h: h.narrow(-1, 0, min(2, h.shape[-1])),
    "chunk": lambda h: h.chunk(2, -1)[0],
    "unbind": lambda h: h.unbind(0)[-1],
    "masked_rows": lambda h: torch.where((torch.arange(h.shape[-1]) % 2 == 0), h, torch.zeros_like(h)),
    "expanded": lambda h: h[:1].expand(3, *h.shape[1:]),
    "permuted": lambda h: h.permute(*reversed(range(h.dim()))),
    "flat": lambda h: h.reshape(-1),
    "empty_added": lambda h: h + h[:0].sum(0) if h.dim() > 1 else h,
}
MASKS = "none", "min_add", "min_fill", "large_add", "minus_inf_fill", "bool_where", "row_of_min", "product", "causal"
CASTS = "none", "float", "double", "bfloat16_and_back", "type_as", "float_after"
TIES = "none", "equal_columns", "zeros", "equal_rows"
FORMS = "train", "core"


@dataclass(frozen=True)
class Case:
    """One model, by the names of its parts."""

    first: str = "identity"
    selection: str = "all"
    second: str = "identity"
    mask: str = "none"
    cast: str = "none"
    tie: str = "none"
    end: str = "square"
    form: str = "train"
    seed: int = 0

    def __str__(self):
        parts = [self.first, self.selection, self.second, self.end, self.form]
        return " ".join(parts + [f"{k}={v}" for k, v in (("mask", self.mask), ("cast", self.cast), ("tie", self.tie)) if v != "none"])


ENDS = {
    "square": lambda h: h.pow(2).mean(),
    "weighted": lambda h: (h.flatten() * torch.linspace(-1.0, 2.0, h.numel(), dtype=h.dtype)).sum(),
    "sum_and_mean": lambda h: h.sum() * 0.1 + h.mean(),
    "norm": lambda h: (h * h).sum().add(1e-2).sqrt(),
}


def at_least_1d(h):
    return h if h.dim() else h.reshape(1)


class Awkward(nn.Module):
    def __init__(self, case):
        super().__init__()
        g = torch.Generator().manual_seed(case.seed)
        self.case, self.operators = case, operators()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, generator=g)), nn.Parameter(torch.randn(WIDTH, generator=g) * 0.1)
        self.square, self.table = (nn.Parameter(torch.randn(n, WIDTH, generator=g)) for n in (WIDTH, 3))
        self.norm = nn.BatchNorm1d(WIDTH)
        if case.tie == "equal_columns":  # columns 1 and 2 are equal, and so are 0 and 3
            with torch.no_grad():
                self.weight[2], self.bias[2] = self.weight[1], self.bias[1]
                self.weight[3], self.bias[3] = self.weight[0], self.bias[0]
        elif case.tie == "zeros":
            nn.init.zeros_(self.weight), nn.init.zeros_(self.bias)

    def masked(self, scores):
        """The scores with a mask over the last dimension; where it masks all of a row, it is a large number."""
        kind, n = self.case.mask, scores.shape[-1]
        kept = torch.arange(n) % 3 != 1
        low = torch.finfo(scores.dtype).min if scores.dtype.is_floating_point else MIN
        if kind == "min_add":
            return scores + torch.zeros(n, dtype=scores.dtype).masked_fill(~kept, low)
        if kind == "min_fill":
            return scores.masked_fill(~kept, low)
        if kind == "large_add":
            return scores + (1.0 - kept.to(scores.dtype)) * -1e4
        if kind == "minus_inf_fill":
            return scores.masked_fill(~kept, float("-inf"))
        if kind == "bool_where":
            return torch.where(kept, scores, -1e9)
        if kind == "row_of_min":
            return scores + torch.full((n,), low, dtype=scores.dtype)
        if kind == "product":
            return scores * kept - 1e4 * ~kept
        if kind == "causal" and scores.dim() > 1:
            return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), low)
        return scores

    def without_grad(self, h):
        with torch.no_grad():
            size = h.abs().mean()
        return h * size

    def cast(self, h):
        kind = self.case.cast
        if kind == "float":
            return h.float() + 0.5
        if kind == "double":
            return h.double().pow(2).to(h.dtype)
        if kind == "bfloat16_and_back":
            return h.to(torch.bfloat16).to(torch.float32)
        if kind == "type_as":
            return (h > 0).type_as(h) * h
        return h

    def forward(self, x):
        h = self.cast(x * self.weight + self.bias)
        h = at_least_1d(self.operators[self.case.first](h, self))
        h = at_least_1d(SELECTIONS[self.case.selection](h))
        h = self.operators[self.case.second](h, self)
        if self.case.cast == "float_after":
            h = h.float()
        used = (self.square.sum() + self.table.sum() + self.norm.weight.sum()) * 1e-3
        return ENDS[self.case.end](h) + used


def drawn(seed, number):
    """The case of a number."""
    r, names = random.Random(f"{seed}.{number}"), list(operators())
    plain = r.random() < 0.3  # two operators alone, as often as anything else is added
    return Case(
        first=names[number % len(names)],  # each operator equally often
        selection=r.choice(list(SELECTIONS)),
        second=r.choice(names) if r.random() < 0.6 else "identity",
        mask="none" if plain else r.choice(MASKS),
        cast="none" if plain else r.choice(CASTS),
        tie="none" if plain else r.choice(TIES),
        end=r.choice(list(ENDS)),
        form=r.choice(FORMS),
        seed=r.randrange(2**31),
    )


def example(case):
    g = torch.Generator().manual_seed(case.seed + 1)
    x = torch.randn(BATCH, ROWS, WIDTH, generator=g)
    if case.tie == "equal_columns":
        x[..., 2], x[..., 3] = x[..., 1], x[..., 0]
    elif case.tie == "equal_rows":
        x[:, 1], x[:, 3] = x[:, 0], x[:, 4]
    return (x,)


@dataclass
class Result:
    number: int
    case: str
    stage: str  # where it ended: "export", "record" or "check"
    verdicts: dict  # precision, with its device, to verdict
    said: str = ""


def run(case, number, folder, binary, precisions=PRECISIONS, devices=("cpu",)):
    """Makes a case and checks it."""
    name = f"{number:04d}"
    archive, golden = folder / f"{name}.pt2", folder / f"{name}{SUFFIX}"
    module, args = Awkward(case).train(), example(case)
    try:
        # What runs in eager PyTorch must be exported, and what is exported recorded.
        module_runs(module, args)
    except Exception as error:
        return Result(number, str(case), "module", {}, first_line(error))
    stage = "export"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(module, args, archive, decompose=case.form == "core")
            stage = "record"
            record(module, args, golden, intermediates="none")
    except ModuleDiffers as error:
        archive.unlink()
        return Result(number, str(case), "differs from its module", {}, str(error))
    except Exception as error:
        archive.unlink(missing_ok=True)
        return Result(number, str(case), stage, {}, first_line(error))
    result = Result(number, str(case), "check", {})
    for device in devices:
        for precision in precisions if device == "cpu" else [p for p in precisions if p != "f64"]:
            verdict, said = check(binary, archive, golden, precision, device)
            result.verdicts[precision if device == "cpu" else f"{precision} {device}"] = verdict
            if verdict != "pass" and not result.said:
                result.said = f"{precision}: {said}"
    if all(v == "pass" for v in result.verdicts.values()):
        archive.unlink()
        golden.unlink()
    return result


def module_runs(module, args):
    state = torch.get_rng_state()
    Awkward(module.case).train()(*args).backward()
    torch.set_rng_state(state)


def first_line(error):
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]


def check(binary, archive, golden, precision, device="cpu"):
    """The verdict of `headwater check`, and what it said."""
    command = [str(binary), "check", str(archive), str(golden), "--precision", precision, "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "crash", "no answer in 300 s"
    text = (done.stdout + done.stderr).strip()
    code = re.search(r"HW-[A-Z]\d{3}", done.stderr)
    said = next((line for line in done.stderr.splitlines() if "HW-" in line), text.splitlines()[-1] if text else "")[:400]
    panicked = "panicked" in text or code and code.group() in DEFECTS
    if done.returncode == PASSED and not panicked:
        return "pass", ""
    if done.returncode == DIFFERS and not panicked:
        rows = [line for line in done.stdout.splitlines() if "DIFFERS" in line]
        return "differs", " | ".join(" ".join(r.split()) for r in rows[:3])[:400] or said
    if done.returncode == NOT_PROVED and not panicked:
        return "not proved", said
    if done.returncode == FAILED and code and not panicked:
        return f"refused {code.group()}", said
    # A signal, or an end that `headwater check --help` does not have.
    return "crash", f"status {done.returncode}: {said}"


def reduced(case, number, folder, binary, precisions, devices):
    """The case without the parts that its verdicts do not need."""
    wanted = run(case, number, folder, binary, precisions, devices)
    for field, plain in (
        ("second", "identity"), ("mask", "none"), ("cast", "none"), ("tie", "none"), ("selection", "all"), ("first", "identity"),
        ("end", "square"), ("form", "train"),
    ):  # fmt: skip
        simpler = replace(case, **{field: plain})
        found = run(simpler, number, folder, binary, precisions, devices)
        if (found.stage, found.verdicts) == (wanted.stage, wanted.verdicts):
            case = simpler
    return case, run(case, number, folder, binary, precisions, devices)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m headwater_tools.awkward", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--headwater", type=Path, required=True, help="the binary")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", action="append", default=[], help="a further device, such as ascend-sim:910b1")
    parser.add_argument("--precision", action="append", default=[], help="f64, f32, bf16 or f16; else the first three")
    parser.add_argument("--only", type=int, help="one case")
    parser.add_argument("--reduce", action="store_true", help="leave parts of a case out that its verdict does not need")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    numbers = [given.only] if given.only is not None else range(given.first, given.first + given.count)
    precisions, devices = given.precision or PRECISIONS, ("cpu", *given.device)
    results, counts = [], Counter()
    for number in numbers:
        case = drawn(given.seed, number)
        if given.reduce:
            case, result = reduced(case, number, given.folder, given.headwater, precisions, devices)
            print(asdict(case))
        else:
            result = run(case, number, given.folder, given.headwater, precisions, devices)
        results.append(result)
        for where, verdict in result.verdicts.items() or [(result.stage, "not checked")]:
            counts[where, verdict] += 1
        if result.said:
            print(f"{number:4} {result.case}: {result.stage} {result.verdicts or ''} {result.said}", flush=True)
        (given.folder / "awkward.json").write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    for (where, verdict), count in sorted(counts.items()):
        print(f"{where:20} {verdict:20} {count:5}")
    bad = [r for r in results if r.stage == "check" and any(v in ("differs", "crash") for v in r.verdicts.values())]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
