"""Run with `pytest tools/tests`."""

import json
import zipfile

import pytest
import torch
import torch.nn.functional as F
from headwater_tools import AdamW, export, record, train
from safetensors import safe_open
from torch import nn


class Model(nn.Module):
    """Casts of its own, a tied and a frozen parameter, one without influence, state, and writes through views."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, ids, labels):
        self.steps.add_(1)
        x = self.norm(self.embedding(ids)) * self.frozen
        half = x.to(torch.bfloat16)
        copy = half.to(torch.float32)
        copy[:, 1:3].mul_(2)  # writes to the copy and not to x
        x.to(torch.float32)[:, 0].mul_(3)  # no copy: writes to x
        logits = self.head(torch.tanh(copy + x))
        return F.cross_entropy(logits, labels), logits


@pytest.fixture
def case():
    torch.manual_seed(0)
    return Model().train(), (torch.randint(0, 11, (5,)), torch.randint(0, 11, (5,)))


def lifted(module, ids, labels):
    """By hand what `record` must find."""
    module = module.double()
    x = module.norm(module.embedding(ids)) * module.frozen
    copy = x * torch.tensor([1.0, 2, 2, 1, 1, 1], dtype=torch.float64)
    logits = module.head(torch.tanh(copy + x * torch.tensor([3.0, 1, 1, 1, 1, 1], dtype=torch.float64)))
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    return loss.detach(), module.embedding.weight.grad


@pytest.mark.parametrize("decompose", [False, True])
def test_golden_is_the_float64_model(case, tmp_path, decompose):
    module, args = case
    export(module, args, tmp_path / "m.pt2", decompose=decompose)
    record(module, args, tmp_path / "m.golden.safetensors", steps=2)
    assert module.steps == 0 and module.embedding.weight.grad is None  # as it was
    with safe_open(tmp_path / "m.golden.safetensors", "pt") as golden:
        metadata, names = golden.metadata(), set(golden.keys())
        loss, grad = lifted(module, *args)
        torch.testing.assert_close(golden.get_tensor("output.0"), loss, rtol=1e-14, atol=0)
        torch.testing.assert_close(golden.get_tensor("grad.embedding.weight"), grad, rtol=1e-12, atol=1e-15)
        assert golden.get_tensor("buffer.steps") == 1
        assert golden.get_tensor("curve.loss").shape == (2,)
    assert {n for n in names if n.startswith("grad.")} == {"grad.embedding.weight", "grad.norm.weight", "grad.norm.bias"}
    assert json.loads(metadata["tied"]) == {"head.weight": "embedding.weight"}
    assert json.loads(metadata["unreached"]) == ["unused"]


def test_archives_tell_no_paths_and_repeat(case, tmp_path):
    module, args = case
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        export(module, args, tmp_path / name / "m.pt2", decompose=True, compress=True)
    assert (tmp_path / "a/m.pt2").read_bytes() == (tmp_path / "b/m.pt2").read_bytes()
    with zipfile.ZipFile(tmp_path / "a/m.pt2") as archive:
        assert 'File \\"/' not in archive.read("m/models/model.json").decode()
    torch.export.load(tmp_path / "a/m.pt2")


def test_random_numbers_are_refused(tmp_path):
    module = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.5), nn.Flatten(0)).train()
    args = (torch.randn(1, 4),)
    export(module, args, tmp_path / "m.pt2")
    with pytest.raises(ValueError, match="random"):
        record(module, args, tmp_path / "m.golden.safetensors")


def test_learning_rates():
    cosine = AdamW(lr=1.0, schedule="cosine", warmup=2)
    assert [round(cosine.rate(t, 6), 6) for t in range(6)] == [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]
    linear = AdamW(lr=1.0, schedule="linear")
    assert [linear.rate(t, 4) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_curve_goes_down(case):
    module, args = case
    curve = train(module, [args] * 20, AdamW(lr=0.05, decay="matrices", clip_norm=1.0))
    assert curve.loss[-1] < curve.loss[0] / 2
