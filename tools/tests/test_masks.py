"""Random masks as their means: what recipes draw is recorded, other random numbers are refused by name."""

import pytest
import torch
import torch.nn.functional as F
from headwater_tools import Optimizer, export, record, train
from headwater_tools.dropout import WithoutDropout
from safetensors import safe_open
from torch import nn

BATCH = torch.export.Dim("batch", min=2)


class Classifier(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        logits = self.model(x)
        logits = getattr(logits, "logits", logits)
        return F.cross_entropy(logits, labels), logits


def atto(rate):
    timm = pytest.importorskip("timm")
    return timm.create_model("convnext_atto", drop_path_rate=rate, num_classes=5, depths=(1, 1, 2, 1), dims=(8, 8, 16, 16))


def convnext(rate):
    tf = pytest.importorskip("transformers")
    config = tf.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 2, 1, 1], drop_path_rate=rate, num_labels=5)
    return tf.ConvNextForImageClassification(config)


def swin(rate):
    tf = pytest.importorskip("transformers")
    config = tf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=rate, num_labels=5
    )
    return tf.SwinForImageClassification(config)


def efficient(rate):
    ops = pytest.importorskip("torchvision.ops")
    blocks = [ops.StochasticDepth(rate, mode) if rate else nn.Identity() for mode in ("row", "batch")]
    return nn.Sequential(nn.Conv2d(3, 4, 3), blocks[0], nn.ReLU(), blocks[1], nn.Flatten(), nn.LazyLinear(5))


@pytest.mark.parametrize("build", [atto, convnext, swin, efficient])
@pytest.mark.parametrize("decompose", [False, True])
def test_stochastic_depth_is_recorded_as_its_mean(tmp_path, build, decompose):
    torch.manual_seed(0)
    x, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    found = {}
    for rate in 0.0, 0.3:
        torch.manual_seed(1)
        module = Classifier(build(rate)).train()
        module(x, labels)  # lazy layers
        torch.manual_seed(2)
        for p in module.parameters():
            nn.init.normal_(p, std=0.2)
        name = f"m{rate}"
        shapes = {"x": {0: BATCH}, "labels": {0: BATCH}}
        export(module, (x, labels), tmp_path / f"{name}.pt2", dynamic_shapes=shapes, decompose=decompose)
        path = tmp_path / f"{name}.golden.safetensors"
        found[rate] = record(module, (x, labels), path, steps=3, optimizer=Optimizer("SGD", lr=0.01))
        with safe_open(path, "pt") as golden:
            assert golden.metadata().get("dropout") == ("identity" if rate else None)
            found[rate, "curve"] = golden.get_tensor("curve.loss")
    # Without stochastic depth the same numbers come out, up to roundings of p / p and x / p · p.
    for plain, depth in zip(found[0.0].outputs, found[0.3].outputs, strict=True):
        torch.testing.assert_close(depth, plain, rtol=1e-11, atol=1e-12)
    assert found[0.0].grads.keys() == found[0.3].grads.keys()
    for key, gradient in found[0.0].grads.items():
        torch.testing.assert_close(found[0.3].grads[key], gradient, rtol=1e-9, atol=1e-11, msg=key)
    torch.testing.assert_close(found[0.3, "curve"], found[0.0, "curve"], rtol=1e-4, atol=0)
    assert found[0.0].dropouts == 0 and found[0.3].dropouts > 0


MASKS = {
    "comparison": (lambda x: x * (torch.rand(4, 1) < 0.25), lambda x: 0.25 * x),
    "scaled comparison": (lambda x: x * (torch.rand_like(x) * 2 - 0.5 >= 1.0).float() / 0.25, lambda x: x),
    "floor in place": (lambda x: x * torch.rand(4, 1).add_(0.6).floor_(), lambda x: 0.6 * x),
    "floor as bools": (lambda x: x * (torch.rand(4, 1) + 0.25).floor().bool().float() * 2, lambda x: 0.5 * x),
    "uniform_": (lambda x: torch.where(torch.empty(4, 3).uniform_() > 0.9, x, -x), lambda x: 0.1 * x - 0.9 * x),
    "inverted": (lambda x: x.masked_fill(~(torch.rand(4, 3) < 0.9), 5.0), lambda x: 0.9 * x + 0.1 * 5),
    "as bools": (lambda x: x.masked_fill((1 - torch.empty_like(x).bernoulli_(0.8)).bool(), 0) / 0.8, lambda x: x),
    "probabilities": (lambda x: x * torch.bernoulli(torch.full((3,), 0.5)), lambda x: 0.5 * x),
    "shared": (lambda x: (m := torch.rand(4, 1) < 0.5) * x + ~m * x * 3, lambda x: 2 * x),
    # A mask counts once in a product.
    "square": (lambda x: x * ((m := torch.bernoulli(torch.full((4, 1), 0.0), p=0.25)) * m), lambda x: 0.25 * x),
    "power": (lambda x: x * (torch.empty(4, 1).bernoulli_(0.25) / 0.25) ** 2, lambda x: 4 * x),
    "complement": (lambda x: x + (m := torch.empty(4, 1).bernoulli_(0.25)) * (1 - m), lambda x: x),
    "twice": (lambda x: x * (m := torch.rand(4, 1) < 0.25) * m * m.float(), lambda x: 0.25 * x),
    "twice, of probabilities": (lambda x: -(x * (m := torch.bernoulli(torch.full((3,), 0.5)))) * m, lambda x: -0.5 * x),
    "two": (lambda x: x * ((torch.rand(4, 1) < 0.5) * torch.empty(4, 1).bernoulli_(0.25)), lambda x: 0.125 * x),
    "type": (lambda x: x.type_as(m := (torch.rand(4, 1) < 0.5).type_as(x)) * m, lambda x: 0.5 * x),
}


class Drawn(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw, self.w = draw, nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x):
        y = self.draw(x * self.w)
        return (y * y).sum() + y.sum(), y


@pytest.mark.parametrize("kind", MASKS)
def test_masks_have_their_means_in_module_and_graph(tmp_path, kind):
    draw, mean = MASKS[kind]
    args, module = (torch.linspace(-2, 3, 12).reshape(4, 3),), Drawn(draw).train()
    expected = mean((args[0] * module.w).double())
    state = torch.get_rng_state()
    with WithoutDropout() as without:
        torch.testing.assert_close(module(*args)[1], expected.float())
    assert without.means.count and torch.equal(state, torch.get_rng_state())
    program = export(module, args, tmp_path / "m.pt2")  # PyTorch does not read the argument `from` of `uniform_` back
    truth = record(module, args, tmp_path / "m.golden.safetensors", steps=2, program=program)
    torch.testing.assert_close(truth.outputs[1], expected.detach(), rtol=1e-6, atol=1e-6)


REFUSED = {
    "places": (lambda x: x * ((m := torch.empty(4, 1).bernoulli_(0.5)) * m.reshape(1, 4)).sum(1, keepdim=True), "`bernoulli`.*read by `mul"),
    "quotient": (lambda x: x * ((m := torch.empty(4, 1).bernoulli_(0.5)) / m), "`bernoulli`.*read by `(true)?div"),
    "of itself": (lambda x: x * ((m := torch.rand(4, 1) < 0.5) * m.float()), "`rand`.*read by `mul"),
    "noise": (lambda x: x + 0.1 * torch.randn_like(x), "`randn_like`"),
    "uniform noise": (lambda x: x + torch.rand_like(x), "`rand_like`.*read by `add"),
    "order": (lambda x: x[torch.rand(4).argsort()], "`rand`.*read by `argsort"),
    "integers": (lambda x: x[torch.randint(0, 4, (4,))], "`randint`"),
    "half of a permutation": (lambda x: x * (torch.randperm(3) > 0), "`randperm`"),
    "integers of a mask": (lambda x: x * (torch.rand(4, 1) + 0.5).floor().long(), "`rand`.*read by `(long|to)"),
    "floor of more": (lambda x: x * (torch.rand(4, 1) + 1.5).floor(), "`rand`.*read by `floor"),
    "infinite": (lambda x: x.masked_fill(torch.rand(4, 3) < 0.5, float("-inf")).softmax(-1), "read by `masked_fill"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_random_numbers_are_refused_by_name(tmp_path, kind):
    draw, said = REFUSED[kind]
    args = (torch.randn(4, 3),)
    export(Drawn(draw), args, tmp_path / "m.pt2")
    with pytest.raises(ValueError, match=f"(?s)neither dropout's nor a mask's: .*{said}"):
        record(Drawn(draw), args, tmp_path / "m.golden.safetensors")
    with pytest.raises(ValueError, match="neither dropout's nor a mask's"):
        train(Drawn(draw), [args])
