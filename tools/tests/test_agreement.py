"""A golden is recorded only where the archive computes what the module computes; what differs is refused with its cause."""

import copy
import json
import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from headwater_tools import export, exporter, record
from headwater_tools.agreement import ExportWarning, ModuleDiffers
from safetensors import safe_open
from torch import nn
from torch.utils.checkpoint import checkpoint


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.5 * g


class Round(torch.autograd.Function):
    """Straight-through rounding, in the newer form with `setup_context`."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class WideClamp(torch.autograd.Function):
    """Passes the gradient wherever the value is clamped, too."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-0.1, 0.1)

    @staticmethod
    def backward(ctx, g):
        return g


class ScaledProduct(torch.autograd.Function):
    """Two inputs, saved tensors, one gradient that is not requested."""

    @staticmethod
    def forward(ctx, x, w, factor):
        ctx.save_for_backward(x, w)
        return x * w * factor

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x, None  # without the factor


KEPT = WideClamp.apply  # taken before anybody looks


class Net(nn.Module):
    """Two layers, between which `between` is applied."""

    def __init__(self, between=lambda h, s: h):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.between = between

    def forward(self, x):
        h = self.between(self.first(x), self)
        return self.last(h).pow(2).mean()


def batch():
    return (torch.randn(5, 3, generator=torch.Generator().manual_seed(1)),)


def taken(module, args, folder, change=lambda m: None, **how):
    """Exports, changes the module, and records; returns the golden's statement and its tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(module, args, folder / "m.pt2", **how)
    change(module)
    record(module, args, folder / "m.golden.safetensors", intermediates="none")
    with safe_open(folder / "m.golden.safetensors", "pt") as golden:
        return json.loads(golden.metadata()["module"]), {n: golden.get_tensor(n) for n in golden.keys()}


def tensor_hook(h, s):
    h.register_hook(lambda g: 2 * g)
    return h


def detached_statistic(h, s):
    with torch.no_grad():
        size = h.pow(2).mean()
    return h / size


def inference(h, s):
    with torch.inference_mode():
        size = h.pow(2).mean()
    return h / size.clone()


def packed(h, s):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1.5, lambda t: t):
        return h.pow(2)


def reentrant(h, s):
    return checkpoint(lambda x: torch.tanh(x), h, use_reentrant=True)


def way_of_export(h, s):
    return h * 2 if torch.compiler.is_exporting() else h * 3


def count(h, s):
    s.calls = getattr(s, "calls", 0) + 1
    return h * s.calls


def node_hook(h, s):
    h.grad_fn.register_prehook(lambda grads: tuple(2 * g for g in grads))
    return h


def hook(attribute, *args, **kwargs):
    def add(module):
        getattr(module, attribute)(*args, **kwargs)
        return module

    return add


def doubled(module, args, out):
    return 2 * out


LOST = {  # name: the module, what is done between export and record, arguments of export, words of the refusal
    "gradient_reversal": (Net(lambda h, s: Reverse.apply(h)), {}, "autograd function Reverse.*test_agreement.py:.*detach"),
    "straight_through": (Net(lambda h, s: Round.apply(h)), {}, "autograd function Round"),
    "wide_clamp_kept_under_another_name": (Net(lambda h, s: KEPT(h)), {}, "autograd function WideClamp"),
    "two_inputs": (Net(lambda h, s: ScaledProduct.apply(h, s.first.bias, 3.0)), {}, "autograd function ScaledProduct"),
    "two_functions": (Net(lambda h, s: Reverse.apply(Round.apply(h))), {}, "Round, Reverse|Reverse, Round"),
    "tensor_hook": (Net(tensor_hook), {}, "hooks on tensors.*test_agreement.py"),
    "parameter_hook": (hook_of := Net(), {}, "hooks on parameters.*`first.weight`"),
    "accumulated_hook": (accumulated := Net(), {}, "hooks on parameters.*`first.weight`"),
    "full_backward_hook": (backward := Net(), {}, "backward hooks.*`first`"),
    "backward_pre_hook": (before := Net(), {}, "backward hooks.*`last`"),
    "no_grad_decomposed": (Net(detached_statistic), {"decompose": True}, "run_decompositions leaves out.*decompose=False"),
    "inference_mode": (Net(inference), {}, "inference_mode.*torch.no_grad"),
    "saved_tensors": (Net(packed), {}, "saved tensors by hooks"),
    "reentrant": (Net(reentrant), {}, "use_reentrant=False"),
    "exporting": (Net(way_of_export), {}, "another way while it is exported"),
    "state_in_python": (Net(count), {}, "state in Python \\(`calls`\\)"),
    "node_hook": (Net(node_hook), {}, "The cause was not found. Looked for were: other weights"),
    "function_and_hook": (Net(lambda h, s: tensor_hook(Reverse.apply(h), s)), {}, "(?s)Reverse.* And it .*hooks on tensors"),
}
hook_of.first.weight.register_hook(lambda g: 3 * g)
accumulated.first.weight.register_post_accumulate_grad_hook(lambda p: print(p.grad.mul_(3)))
backward.first.register_full_backward_hook(lambda m, gi, go: tuple(2 * g for g in gi) if gi[0] is not None else None)
backward.last.register_full_backward_hook(lambda m, gi, go: tuple(2 * g for g in gi))
before.last.register_full_backward_pre_hook(lambda m, go: (2 * go[0],))


@pytest.mark.parametrize("name", LOST)
def test_a_lost_gradient_is_refused_with_its_cause(name, tmp_path):
    module, how, words = LOST[name]
    with pytest.raises(ModuleDiffers, match=words) as refused:
        taken(module.train(), batch(), tmp_path, **how)
    assert "does not compute what the module computes" in str(refused.value)
    assert not (tmp_path / "m.golden.safetensors").exists()


class Spectral(nn.Module):
    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = norm(nn.Linear(3, 4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))).pow(2).mean()


def test_data_of_a_tensor_is_refused_by_export(tmp_path):
    with pytest.raises(ValueError, match="uses `.data`.*detach"):
        export(Net(lambda h, s: h / h.data.norm()), batch(), tmp_path / "m.pt2")


@pytest.mark.parametrize("norm", [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm])
def test_spectral_norm(norm, tmp_path):
    """Decomposed, it loses the `no_grad` of its power iteration: the old one 1.6 % of the gradient, the new one 1.7e-10, because it
    iterates 15 times when it is made. The train form is right."""
    with pytest.raises(ModuleDiffers, match="iterates under `no_grad`.*`body.*decompose=False"):
        taken(Spectral(norm).train(), batch(), tmp_path, decompose=True)
    assert taken(Spectral(norm).train(), batch(), tmp_path)[0]["agrees"]


class HandWritten(torch.autograd.Function):
    """A derivative with a constant of ten digits, as BLOOM has one of its GELU."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (0.1 * x).tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = (0.1 * x).tanh()
        return g * (t + x * (1 - t * t) * 0.1000000001)


def test_a_derivative_with_rounded_constants_is_recorded_with_a_remark(tmp_path):
    export(module := Net(lambda h, s: HandWritten.apply(h)).train(), batch(), tmp_path / "m.pt2")
    with pytest.warns(ExportWarning, match="agree up to 9.3e-10 only. The cause: HandWritten in the model"):
        record(module, batch(), tmp_path / "m.golden.safetensors")
    with safe_open(tmp_path / "m.golden.safetensors", "pt") as golden:
        statement = json.loads(golden.metadata()["module"])
    assert statement["agrees"] and "HandWritten" in statement["close"] and 1e-12 < statement["worst"] < 2**-30


class Moco(nn.Module):
    """A momentum encoder: its weights are written under no_grad."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.mul_(0.9).add_(q, alpha=0.1)
            k = self.key(x)
        return (self.query(x) * k).sum(1).exp().mean()


def test_a_parameter_written_in_the_forward_pass(tmp_path):
    with pytest.raises(ValueError, match="writes the parameter `key.weight`, as momentum encoders do.*decompose=False"):
        taken(Moco().train(), batch(), tmp_path, decompose=True)
    statement, tensors = taken(Moco().train(), batch(), tmp_path)
    assert statement["agrees"] and {n for n in tensors if n.startswith("grad.")} == {"grad.query.weight", "grad.query.bias"}


class Quantized(nn.Module):
    """VQ-VAE: nearest codes, a straight-through estimator by `detach`, and a commitment loss."""

    def __init__(self, through):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.codes, self.decoder = nn.Linear(3, 4), nn.Embedding(6, 4), nn.Linear(4, 3)
        self.through = through

    def forward(self, x):
        h = self.encoder(x)
        with torch.no_grad():
            nearest = torch.cdist(h, self.codes.weight).argmin(1)
        q = self.codes(nearest)
        loss = F.mse_loss(q, h.detach()) + 0.25 * F.mse_loss(h, q.detach())
        return F.mse_loss(self.decoder(self.through(h, q)), x) + loss


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, q):
        return q.clone()

    @staticmethod
    def backward(ctx, g):
        return g, None


def test_a_quantized_autoencoder(tmp_path):
    for decompose in False, True:
        written = Quantized(lambda h, q: h + (q - h).detach()).train()
        assert taken(written, batch(), tmp_path, decompose=decompose)[0]["agrees"]
    with pytest.raises(ModuleDiffers, match="autograd function Copy"):
        taken(Quantized(Copy.apply).train(), batch(), tmp_path)


# ------------------------------------------------------------------------------------- changes after the export


def trained(module):
    with torch.no_grad():
        module.first.weight.mul_(1.0 + 1e-6)


def frozen(module):
    module.first.weight.requires_grad_(False)


def more(module):
    module.scale = nn.Parameter(torch.ones(()))


def less(module):
    module.last.bias = None


def evaluated(module):
    module.eval()


def hooked_later(module):
    module.first.register_forward_hook(doubled)


class Batched(Net):
    def __init__(self):
        super().__init__(lambda h, s: F.dropout(s.norm(h), 0.5, s.training))
        self.norm = nn.BatchNorm1d(4)


def forwarded(module):
    module(*batch())


AFTER = {
    "trained": (Net, trained, "`first.weight` is not the archive's.*Record right after the export"),
    "frozen": (Net, frozen, "`first.weight` is frozen, and was trainable"),
    "more": (Net, more, "the module has `scale`, which the archive has not"),
    "less": (Net, less, "the archive has a parameter `last.bias`, and the module has none"),
    "forwarded": (Batched, forwarded, "buffer `norm.running_mean` is not the archive's.*forward pass"),
    "evaluated": (Batched, evaluated, "is in evaluation mode, and was exported in the other one"),
    "hooked": (Net, hooked_later, "forward hooks that were not there"),
    "other_dtype": (Net, lambda m: m.double(), "`first.weight` is torch.float64 .4, 3. in the module and torch.float32"),
}


@pytest.mark.parametrize("name", AFTER)
def test_a_module_that_is_not_the_one_exported_is_refused(name, tmp_path):
    make, change, words = AFTER[name]
    with pytest.raises(ModuleDiffers, match=words):
        taken(make().train(), batch(), tmp_path, change)


def test_two_parameters_in_one_memory(tmp_path):
    module = Net()
    module.other = nn.Parameter(module.first.weight.data)
    module.between = lambda h, s: h + s.other.sum(1)
    with pytest.raises(ModuleDiffers, match="`other` and `first.weight` are two parameters in one memory"):
        taken(module.train(), batch(), tmp_path)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.weights = [self.w]

    def forward(self, x):
        return (x * self.w * self.weights[0]).sum()


def test_a_parameter_in_a_list_is_a_constant_of_the_archive(tmp_path):
    with pytest.raises(ModuleDiffers, match="holds the values of `w` as constants.*ParameterList"):
        taken(Listed(), batch(), tmp_path)


class Median(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.w).quantile(0.5, dim=-1).sum()


def test_a_choice_among_equal_elements_is_named(tmp_path):
    """PyTorch's own quantile takes other ones of equal elements for a tensor of a subclass."""
    with pytest.raises(ModuleDiffers, match="among equal elements"):
        taken(Median(), (torch.tensor([[1.0, 2.0, 2.0, 1.0]]),), tmp_path)
    assert taken(Median(), (torch.tensor([[1.0, 2.0, 3.0, 4.0]]),), tmp_path)[0]["agrees"]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x, y):
        return (x * self.w * y).sum()


def test_one_tensor_given_twice(tmp_path, monkeypatch):
    x = torch.tensor([1.0, 5.0, 2.0])
    assert taken(Pair(), (x, x), tmp_path)[0]["agrees"]  # `export` makes two of them
    # An archive that torch.export wrote itself.
    monkeypatch.setattr(exporter, "apart", tuple)
    with pytest.raises(ModuleDiffers, match="inputs 0 and 1 were the same tensor"):
        taken(Pair(), (x, x), tmp_path)
    assert taken(Pair(), (x, x.clone()), tmp_path)[0]["agrees"]  # equal, but two


# -------------------------------------------------------------------------------------------------- neighbours


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.student, self.teacher = nn.Linear(3, 4), nn.Linear(3, 4).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x).softmax(-1)
        return F.kl_div(self.student(x).log_softmax(-1), target, reduction="batchmean")


class Masked(nn.Module):
    """Masks of the smallest number of the tensor's own dtype, added twice, with a row that has no key: float32's must be meant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.v = nn.Linear(3, 4), nn.Linear(3, 4)
        self.register_buffer("ok", torch.tensor([[True, False, True, True, False]] * 4 + [[False] * 5]))

    def forward(self, x):
        a = self.q(x) @ self.q(x).mT
        low = torch.finfo(a.dtype).min
        plane = torch.zeros(5, 5, dtype=a.dtype).masked_fill(~self.ok, low)
        a = a.masked_fill(~self.ok, low) / 2 + plane / 2
        return (a.float().softmax(-1).to(a.dtype) @ self.v(x)).pow(2).mean()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x))).pow(2).mean()


class Half(nn.Module):
    """Weights of 16 bits, casts of its own, and arithmetic that requests dtypes."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4).to(dtype)

    def forward(self, x):
        h = self.body(x.to(self.body.weight.dtype))
        if h.dtype == torch.float16:
            h = h.clamp(-100.0, 100.0)
        g = h.float() + torch.arange(4) / 3
        return (g - g.mean(-1, keepdim=True)).to(torch.bfloat16).float().pow(2).mean()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.gru = nn.LSTM(3, 4, 2, batch_first=True, dropout=0.3, bidirectional=True), nn.GRU(8, 3)

    def forward(self, x):
        return self.gru(self.rnn(x[None])[0])[0].pow(2).mean()


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.first, self.body = nn.Linear(3, 4), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.body(self.first(x)[None], mask=mask, is_causal=True).pow(3).mean()


class Kept(nn.Module):
    """Tensors that are not registered: a constant in a list, and one left over by a call before."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(3))
        self.constants, self.last = [torch.linspace(0, 1, 3)], None

    def forward(self, x):
        self.last = x * self.w * self.constants[0] + self.w
        return self.last.pow(2).sum()


class Writing(nn.Module):
    """Writes through views and into buffers, in place and by assignment."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("last", torch.zeros(5, 3), persistent=False)

    def forward(self, x):
        h = x * self.w
        same, other = h.float(), h.double()
        same[:, 1].mul_(2.0)
        other[:, 0].mul_(5.0)
        self.steps += 1
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.last = h.detach() * 2
        return (h * h).sum() + other.sum().float() * 1e-3


def checkpointed(h, s):
    return checkpoint(lambda x: torch.tanh(s.first.bias * x), h, use_reentrant=False)


def forward_hooked():
    module = Net()
    module.first.register_forward_hook(doubled)
    module.last.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    return module


def reversal_by_detach(h, s):
    return -0.5 * h + (1.5 * h).detach()


BESIDE = {
    "plain": (Net, True),
    "teacher_under_no_grad": (Teacher, True),
    "statistic_under_no_grad": (lambda: Net(detached_statistic), False),
    "checkpoint": (lambda: Net(checkpointed), True),
    "reversal_by_detach": (lambda: Net(reversal_by_detach), True),
    "dropout_and_batch_norm": (Batched, True),
    "forward_hooks": (forward_hooked, True),
    "masks_of_finfo_min": (Masked, True),
    "tied": (Tied, True),
    "bfloat16": (lambda: Half(torch.bfloat16), True),
    "float16": (lambda: Half(torch.float16), True),
    "recurrent": (Recurrent, True),
    "transformer": (Transformer, True),
    "kept_tensors": (Kept, True),
    "writes": (Writing, True),
    "weight_norm": (lambda: Spectral(nn.utils.parametrizations.weight_norm), True),
    "old_weight_norm": (lambda: Spectral(nn.utils.weight_norm), True),
}


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("name", BESIDE)
def test_what_an_export_keeps_is_recorded(name, decompose, tmp_path):
    make, both = BESIDE[name]
    if decompose and not both:
        return
    statement, tensors = taken(make().train(), batch(), tmp_path, decompose=decompose)
    assert statement["agrees"] and statement["dtype"] == "float64" and not statement.get("why")
    assert statement["gradients"] == sum(n.startswith("grad.") for n in tensors) > 0
    assert statement["worst"] < 1e-12 and len(statement["weights"]) == 64


def test_an_rms_norm_without_epsilon_has_float32s_in_float64_too(tmp_path):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, x):
            return F.rms_norm(x * self.w * 1e-3, (3,)).pow(3).sum()

    x = batch()[0].double() * torch.tensor([1.0, 2.0, 3.0]).double() * 1e-3
    expected = (x * (x.pow(2).mean(1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()).pow(3).sum()
    for decompose in False, True:
        _, tensors = taken(Norm(), batch(), tmp_path, decompose=decompose)
        torch.testing.assert_close(tensors["output.0"], expected, rtol=1e-13, atol=0)


def test_the_module_is_left_as_it_was(tmp_path):
    module = Writing().train()
    before = copy.deepcopy(module.state_dict())
    taken(module, batch(), tmp_path)
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items()) and module.w.grad is None


class Sparse(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, 4, sparse=sparse, padding_idx=2)
        self.bag = nn.EmbeddingBag(10, 4, mode="sum", sparse=sparse)
        self.head = nn.Linear(4, 3)

    def forward(self, ids, labels):
        return F.cross_entropy(self.head(self.table(ids).mean(1) + self.bag(ids)), labels)


@pytest.mark.parametrize("decompose", [False, True])
def test_gradients_of_sparse_embeddings_are_recorded_dense(decompose, tmp_path):
    args, found = (torch.tensor([[1, 2, 2, 7], [7, 0, 9, 1]]), torch.tensor([0, 2])), []
    for sparse in True, False:
        statement, tensors = taken(Sparse(sparse).train(), args, tmp_path, decompose=decompose)
        assert statement["agrees"]
        found.append(tensors)
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(a, found[1][n]) for n, a in found[0].items())
    assert found[0]["grad.table.weight"][3].eq(0).all() and found[0]["grad.table.weight"][7].ne(0).any()


def warned(module, args, folder, **how):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        export(module, args, folder / "m.pt2", **how)
    return [str(w.message) for w in found if w.category is ExportWarning]


FORESEEN = {
    "gradient_reversal": "autograd functions.*Reverse in the model .test_agreement.py:",
    "wide_clamp_kept_under_another_name": "autograd functions.*WideClamp",
    "tensor_hook": "hooks on tensors.*`register_hook` in the model .test_agreement.py:",
    "parameter_hook": "hooks on parameters.*`first.weight`",
    "full_backward_hook": "backward hooks of modules.*`first`",
    "inference_mode": "inference_mode.*test_agreement.py:",
    "saved_tensors": "hooks on saved tensors",
    "reentrant": "reentrant.*use_reentrant=False",
    "no_grad_decomposed": "no_grad is lost by decompose=True",
}


@pytest.mark.parametrize("name", FORESEEN)
def test_export_warns_of_what_it_loses(name, tmp_path):
    module, how, _ = LOST[name]
    assert any(re.search(FORESEEN[name], text) for text in warned(module.train(), batch(), tmp_path, **how))


def test_export_warns_of_modes_and_inputs(tmp_path):
    x, y = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([3.0, 2.0, 1.0])
    assert warned(Pair(), (x, y), tmp_path) == []
    one = warned(Pair(), (x, x), tmp_path)
    assert "`x` and `y` are equal" in one[0] and len(one) == 1
    assert "`x` and `y` are equal" in warned(Pair(), (x, x.clone()), tmp_path)[0]

    class Unread(Pair):
        def forward(self, x, y):
            return (x * self.w).sum()

    assert warned(Unread(), (x, y), tmp_path) == ["nothing reads the input `y`"]
    assert "the module is in evaluation mode" in warned(Batched().eval(), batch(), tmp_path)[0]
    module = Batched().train()
    module.norm.eval()
    assert "`norm` is in evaluation mode" in warned(module, batch(), tmp_path)[0]
    for name in "plain", "checkpoint", "recurrent", "transformer", "writes", "forward_hooks":
        assert warned(BESIDE[name][0]().train(), batch(), tmp_path) == [], name


def test_nothing_to_train_is_said(tmp_path):
    with pytest.raises(ValueError, match="depends on no trainable parameter.*first.weight"):
        taken(Frozen(), batch(), tmp_path)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)

    def forward(self, x):
        return self.first(x).detach().sum()


def test_rounding_is_no_difference_and_a_small_change_is(tmp_path):
    """The bound of an ill-conditioned value grows with what rounding does to it, and no further."""
    from headwater_tools.agreement import Judge, Run, values

    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 3.0, 7.0]))

        def forward(self, x):
            y = (x * self.w).exp()
            return ((y + 1e7) - y.mean() - 1e7).pow(2).sum()

    module, args = Cancelling(), (torch.tensor([0.1, 0.2, 0.3]),)
    program = torch.export.export(module, args, strict=False)
    mine = values(module, args)
    for change, found in (1e-12, False), (1e-4, True), (-2.0, True):
        theirs = {n: v * (1 + change) if n == "grad.w" else v for n, v in mine.items()}
        assert bool(Judge(module, args, program, Run()).differences(mine, theirs)[0]) == found, change
    theirs = {n: v + math.ulp(0.0) if n == "grad.w" else v for n, v in mine.items()}
    assert not Judge(module, args, program, Run()).differences(mine, theirs)[0]
