"""Run with `pytest tools/tests`."""

import json
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from headwater_tools import AdamW, Optimizer, export, operators, record, train
from headwater_tools.data import load, permutation
from headwater_tools.recorder import save
from safetensors import safe_open
from torch import nn
from torch.optim import lr_scheduler as schedules


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


class Dropping(nn.Module):
    """Dropout as a module, as a function, in attention and in a recurrent layer."""

    def __init__(self, rate, alpha):
        super().__init__()
        self.alpha = alpha
        self.first = nn.Sequential(nn.Linear(4, 8), nn.Dropout(rate), nn.BatchNorm1d(8))
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
        self.recurrent = nn.LSTM(8, 3, num_layers=2, dropout=rate, batch_first=True)
        self.rate = rate

    def forward(self, x, labels):
        h = F.dropout(self.first(x), self.rate, self.training).view(-1, 2, 4)
        h = F.alpha_dropout(h, self.rate, self.training) if self.alpha else h
        h = torch.cat([h, h], 2)
        h = self.attention(h, h, h, need_weights=False)[0]
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=self.rate if self.training else 0.0)
        logits = self.recurrent(h)[0][:, -1]
        return F.cross_entropy(logits, labels), logits


@pytest.mark.parametrize("decompose", [False, True])
def test_dropout_is_the_identity_in_what_is_recorded(tmp_path, decompose):
    torch.manual_seed(0)
    args = torch.randn(6, 4), torch.randint(3, (6,))
    found = []
    for rate in 0.0, 0.5:
        torch.manual_seed(1)
        module = Dropping(rate, alpha=not decompose).train()  # decomposed it is `bernoulli`, which may be anything
        export(module, args, tmp_path / "m.pt2", decompose=decompose)
        record(module, args, tmp_path / "m.golden.safetensors", steps=3, intermediates="none")
        with safe_open(tmp_path / "m.golden.safetensors", "pt") as golden:
            assert golden.metadata().get("dropout") == ("identity" if rate else None)
            found.append({n: golden.get_tensor(n).clone() for n in golden.keys()})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=0, msg=name)


def test_other_random_numbers_are_refused(tmp_path):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x * self.w + torch.randn_like(x)).sum()

    args = (torch.randn(1, 4),)
    export(Noisy(), args, tmp_path / "m.pt2")
    with pytest.raises(ValueError, match="random numbers that are neither dropout"):
        record(Noisy(), args, tmp_path / "m.golden.safetensors")
    with pytest.raises(ValueError, match="random numbers that are neither dropout"):
        train(Noisy(), [args])


def test_what_cannot_be_exported_says_the_way_out(tmp_path):
    class Branch(nn.Module):
        def forward(self, x):
            return x.sum() if x.sum() > 0 else x.mean()

    for module, args, way_out in [
        (nn.Linear(4, 2), (torch.randn(3, 4),), "a tensor of shape .3, 2.*return out.loss, out.logits"),
        (Branch(), (torch.randn(3),), "torch.where"),
    ]:
        with pytest.raises(ValueError, match=f"(?s){way_out}"):
            export(module, args, tmp_path / "m.pt2")


def test_a_run_on_data_is_recorded_as_a_job_repeats_it(tmp_path):
    torch.manual_seed(0)
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x, y):
            logits = self.body(x)
            return F.cross_entropy(logits, y), logits

    module, x, y = Classifier().train(), torch.randn(11, 4), torch.randint(3, (11,))
    save({"x": x, "target": y}, tmp_path / "d.safetensors", {})
    args, rows = (x[:2], y[:2]), {0: torch.export.Dim("batch", min=1)}
    export(module, args, tmp_path / "m.pt2", dynamic_shapes={"x": rows, "y": rows})
    settings = Optimizer("SGD", lr=0.5, momentum=0.9, schedule={"name": "step", "every": 3}, decay="none")
    golden = tmp_path / "m.golden.safetensors"
    record(
        module, args, golden, data=tmp_path / "d.safetensors", eval=tmp_path / "d.safetensors", batch=4, epochs=3, seed=7,
        names={"y": "target"}, optimizer=settings,
    )  # fmt: skip
    with safe_open(golden, "pt") as file:
        metadata, order, losses = file.metadata(), file.get_tensor("curve.order"), file.get_tensor("curve.loss")
        assert file.get_tensor("curve.lr").tolist() == [0.5, 0.5, 0.5, 0.05, 0.05, 0.05]
        assert 0 <= file.get_tensor("curve.eval_accuracy") <= 1
    run = json.loads(metadata["train"])
    assert run["optimizer"] == {"name": "sgd", "lr": 0.5, "momentum": 0.9, "dampening": 0, "weight_decay": 0}
    assert (run["batch"], run["epochs"], run["seed"], run["schedule"]) == (4, 3, 7, {"name": "step", "every": 3})
    assert run["data"] == {"train": "d.safetensors", "last": "drop", "eval": "d.safetensors", "names": {"y": "target"}}
    # Two batches an epoch, no sample twice in one.
    assert order.shape == (6, 4)
    assert all(len(set(epoch.tolist())) == 8 for epoch in order.view(3, 8))
    by_hand = train(module, [(x[i], y[i]) for i in order], settings)
    assert losses.tolist() == by_hand.loss


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, labels):
        logits = self.linear(x)
        return F.cross_entropy(logits, labels), logits


def linear(tmp_path, dynamic=True, **data):
    torch.manual_seed(0)
    module, args = Linear().train(), (torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}, "labels": {0: torch.export.Dim("batch", min=1)}} if dynamic else None
    export(module, args, tmp_path / "m.pt2", dynamic_shapes=shapes)
    from safetensors.torch import save_file

    save_file({"x": torch.randn(12, 3), "labels": torch.randint(0, 2, (12,))} | data, tmp_path / "d.safetensors")
    return lambda **how: record(module, args, tmp_path / "m.golden.safetensors", data=tmp_path / "d.safetensors", **how)


def test_data_that_the_trainer_refuses_is_refused(tmp_path):
    wide = torch.full((12, 3), 0.1, dtype=torch.float64)
    run = linear(tmp_path, x=wide)
    with pytest.raises(ValueError, match=r"takes x as torch.float32, .* 0.1 in sample 0 does not: .*cast=\"round\""):
        run(steps=2)
    run(steps=2, cast="round")
    with safe_open(tmp_path / "m.golden.safetensors", "pt") as golden:
        assert json.loads(golden.metadata()["train"])["data"]["cast"] == "round"
    linear(tmp_path, x=wide.round())(steps=2)  # values that fit
    with pytest.raises(ValueError, match="0.5 in sample 3 does not: they are no values"):
        linear(tmp_path, labels=torch.tensor([0, 1, 1, 0.5] * 3))(steps=2)
    with pytest.raises(ValueError, match="takes batches of 4, .* not of 6"):
        linear(tmp_path, dynamic=False)(steps=2, batch=6)
    linear(tmp_path, dynamic=False)(steps=2)


def test_what_a_newcomer_hands_over_is_refused_with_the_way_out(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    module, x, labels = Linear(), torch.randn(8, 3), torch.arange(8) % 2
    archive, golden = tmp_path / "m.pt2", tmp_path / "m.golden.safetensors"
    export(module, (x, labels), archive)
    columns = {"x": torch.randn(64, 3), "labels": torch.arange(64) % 2}
    columns["labels"][17] = 5
    save_file(columns, tmp_path / "outside.safetensors")
    save_file({"features": columns["x"], "labels": columns["labels"]}, tmp_path / "named.safetensors")
    for words, kind, call in [
        ("sample 17 of .*outside.safetensors.*Target 5", ValueError, lambda: record(module, (x, labels), golden, data=tmp_path / "outside.safetensors", epochs=1)),
        ('names={"x": "features"}', ValueError, lambda: record(module, (x, labels), golden, data=tmp_path / "named.safetensors", epochs=1)),
        ('Optimizer\\("SGD", lr', TypeError, lambda: record(module, (x, labels), golden, optimizer=torch.optim.SGD(module.parameters()))),
        ("argument 1 of forward is a numpy.ndarray", TypeError, lambda: record(module, (x, labels.numpy()), golden)),
        ("argument 0 of forward is a numpy.ndarray", TypeError, lambda: export(module, (x.numpy(), labels), archive)),
        ("args is a tuple", TypeError, lambda: export(module, x, archive)),
        ("more tensors than forward has arguments", ValueError, lambda: export(module, (x, labels, x), archive)),
    ]:  # fmt: skip
        with pytest.raises(kind, match=words):
            call()
    # The classes that the message about a missing loss shows run as they are pasted.
    from headwater_tools.training import WRAPPER

    scope = {"torch": torch}
    exec(textwrap.dedent(WRAPPER.split("\n\n", 1)[1]), scope)
    loss, logits = scope["Training"](nn.Linear(3, 4))(x, labels)
    assert loss.ndim == 0 and logits.shape == (8, 4)
    assert "forward" in vars(scope["TextTraining"])


def test_an_evaluation_that_never_runs_is_said(tmp_path):
    run = linear(tmp_path)
    with pytest.warns(UserWarning, match="eval= is not recorded.* curve_steps=2 of 4"):
        run(steps=4, curve_steps=2, eval=tmp_path / "d.safetensors")
    run(steps=4, eval=tmp_path / "d.safetensors")
    with safe_open(tmp_path / "m.golden.safetensors", "pt") as golden:
        assert "curve.eval_loss" in golden.keys()


def test_one_tensor_for_two_inputs_stays_two_inputs(tmp_path):
    ids = torch.tensor([1, 3, 2])

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 5)

        def forward(self, input_ids, labels):
            return F.cross_entropy(self.table(input_ids), labels)

    module = Embedded().train()
    program = export(module, (ids, ids), tmp_path / "m.pt2")
    assert [n.name for n in program.graph.nodes if n.op == "placeholder" and n.users][1:] == ["input_ids", "labels"]


def test_values_that_fit_are_those_of_the_rust_side():
    from headwater_tools.data import fits

    def of(values, source, to):
        return fits(torch.tensor(values, dtype=source), to).tolist()

    f32, f64, i64 = torch.float32, torch.float64, torch.int64
    assert of([0.5, float("nan"), float("inf"), 0.1], f64, f32) == [True, True, True, False]
    assert of([1.0, -0.0, 7.5, float("nan"), 9.3e18], f64, i64) == [True, True, False, False, False]
    assert of([1 << 24, (1 << 24) + 1, 2**63 - 1, 1 << 62], i64, f32) == [True, False, False, True]
    assert of([0, 1, 2], i64, torch.bool) == [True, True, False]
    assert of([127, 128], i64, torch.int8) == [True, False]


def test_groups_and_accumulation_are_those_of_torch(tmp_path):
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x, y):
            logits = self.head(torch.tanh(self.body(x)))
            return F.cross_entropy(logits, y), logits

    module, x, y = Two().train(), torch.randn(24, 4), torch.randint(3, (24,))
    groups = [{"parameters": "body.*", "lr": 0.0}, {"parameters": "*.bias", "lr": 0.05, "weight_decay": 0.5}]
    settings = Optimizer("SGD", lr=0.1, momentum=0.9, weight_decay=0.01, decay="matrices", schedule="linear", groups=groups, accumulate=3)
    save({"x": x, "y": y}, tmp_path / "d.safetensors", {})
    args = x[:2], y[:2]
    export(module, args, tmp_path / "m.pt2")
    golden = tmp_path / "m.golden.safetensors"
    record(module, args, golden, data=tmp_path / "d.safetensors", batch=2, epochs=2, optimizer=settings)
    with safe_open(golden, "pt") as file:
        metadata, order, losses = file.metadata(), file.get_tensor("curve.order"), file.get_tensor("curve.loss")
    # 24 batches in steps of three.
    assert order.shape == (24, 2) and losses.shape == (8,) and metadata["steps"] == "8"
    run = json.loads(metadata["train"])
    assert (run["groups"], run["accumulate"]) == (groups, 3)
    assert json.loads(metadata["optimizer"])["groups"] == groups
    # A frozen parameter's group comes first, and weight decay of a group is kept whatever `decay` says.
    assert json.loads(metadata["no_decay"]) == ["body.bias"]

    by_hand, expected = Two(), []
    by_hand.load_state_dict(module.state_dict())
    sgd = torch.optim.SGD(
        [
            {"params": by_hand.head.weight, "weight_decay": 0.01, "of": 1.0},
            {"params": by_hand.head.bias, "weight_decay": 0.5, "of": 0.5},
        ],
        lr=0.1, momentum=0.9,
    )  # fmt: skip
    for step, batches in enumerate(order.view(8, 3, 2)):
        for group in sgd.param_groups:
            group["lr"] = 0.1 * (1 - step / 8) * group["of"]
        by_hand.zero_grad()
        losses_of = [by_hand(x[i], y[i])[0] for i in batches]
        (sum(losses_of) / 3).backward()
        sgd.step()
        expected.append(sum(loss.item() for loss in losses_of) / 3)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0)
    assert losses[-1] < losses[0]
    for wrong in [{"lr": 0.1}], [{"parameters": "*"}], [{"parameters": "*", "rate": 0.1}]:
        with pytest.raises(ValueError):
            Optimizer("SGD", lr=0.1, groups=wrong)
    with pytest.raises(ValueError, match="no parameter is called tail"):
        train(module, [args], Optimizer("SGD", lr=0.1, groups=[{"parameters": "tail.*", "lr": 0.0}]))
    with pytest.raises(ValueError, match="record the run with .constant"):
        Optimizer("SGD", lr=0.1, schedule="plateau")


def test_the_order_is_that_of_the_rust_side():
    # As in crates/runtime/src/data/order.rs.
    assert permutation(10, 7, 0) == [0, 1, 3, 5, 6, 4, 8, 9, 2, 7] and permutation(10, 7, 1) == [2, 6, 5, 8, 7, 0, 3, 4, 1, 9]


def test_schedules_are_those_of_torch():
    def rates(make, steps=12):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
        schedule, found = make(optimizer), []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    for shape, make in [
        ({"name": "polynomial", "power": 2.0}, lambda o: schedules.PolynomialLR(o, 12, 2.0)),
        ({"name": "step", "every": 5}, lambda o: schedules.StepLR(o, 5)),
        ({"name": "multistep", "milestones": [3, 8], "gamma": 0.5}, lambda o: schedules.MultiStepLR(o, [3, 8], 0.5)),
        ({"name": "exponential", "gamma": 0.9}, lambda o: schedules.ExponentialLR(o, 0.9)),
        ("onecycle", lambda o: schedules.OneCycleLR(o, 2.0, total_steps=12, cycle_momentum=False)),
        ({"name": "restarts", "t_0": 3, "t_mult": 2}, lambda o: schedules.CosineAnnealingWarmRestarts(o, 3, 2)),
        ("cosine", lambda o: schedules.CosineAnnealingLR(o, 12)),
    ]:
        ours = Optimizer("SGD", lr=2.0, schedule=shape)
        assert [ours.rate(t, 12) for t in range(12)] == pytest.approx(rates(make), rel=1e-12, abs=1e-15), shape
    for wrong in "cosin", "step", {"name": "step", "every": 3, "gama": 1}:
        with pytest.raises(ValueError):
            Optimizer("SGD", schedule=wrong)
    with pytest.raises(ValueError, match="no momentun"):
        Optimizer("SGD", momentun=0.9)


def test_what_cannot_be_recorded_says_the_way_out(tmp_path):
    with pytest.raises(ValueError, match="LBFGS asks for the loss several times in a step.*AdamW"):
        Optimizer("LBFGS", lr=1.0)
    for name in "train.parquet", "train.pt", "train.npy", "folder":
        with pytest.raises(ValueError, match=f"{name}: a run is recorded on a .safetensors or .npz file.*headwater data .*{name} --out train.safetensors.*save_file"):
            load(tmp_path / name)


def test_autocast_is_recorded_and_no_setting_of_headwater():
    optimizer = AdamW(autocast="bfloat16")
    assert optimizer.metadata()["autocast"] == "bfloat16" and AdamW().metadata()["autocast"] is None
    assert "autocast" not in json.dumps(optimizer.settings())


def test_learning_rates():
    cosine = AdamW(lr=1.0, schedule="cosine", warmup=2)
    assert [round(cosine.rate(t, 6), 6) for t in range(6)] == [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447]
    linear = AdamW(lr=1.0, schedule="linear")
    assert [linear.rate(t, 4) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_curve_goes_down(case):
    module, args = case
    curve = train(module, [args] * 20, AdamW(lr=0.05, decay="matrices", clip_norm=1.0))
    assert curve.loss[-1] < curve.loss[0] / 2


def test_pyarrow_writes_the_rows_that_the_reader_is_tested_with(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.feather as feather
    import pyarrow.parquet as pq
    from headwater_tools import tables

    def stream(path):
        with pa.ipc.open_stream(str(path)) as reader:
            return reader.read_all()

    kept = Path(__file__).parents[2] / "crates/runtime/tests/it/files"
    for ending, read in ("parquet", pq.read_table), ("feather", lambda p: feather.read_table(str(p))), ("arrow", stream):
        tables.write(tmp_path / f"new.{ending}")
        for folder in tmp_path, kept:
            [file] = folder.glob(f"*.{ending}")
            assert read(file).to_pylist() == [tables.row(i) for i in range(tables.ROWS)]
    assert pq.ParquetFile(kept / "pyarrow.parquet").num_row_groups == 3


def test_operators_that_pytorch_lacks_are_skipped(tmp_path, capsys, monkeypatch):
    def collect(c):
        c("relu.default", c.f(3))
        c("no_such_operator.default", c.f(2))
        c("neg.default", c.f(3))

    monkeypatch.setattr("headwater_tools.operator_cases.collect", collect)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        operators.main(tmp_path)
        assert "has no aten.no_such_operator.default" in capsys.readouterr().out
        first = json.loads((tmp_path / "manifest.json").read_text())
        assert sorted(first["sha256"]) == ["neg.safetensors", "relu.safetensors"]
        assert first["targets"] == ["aten.neg.default", "aten.relu.default"]
        (tmp_path / "neg.safetensors").unlink()
        operators.main(tmp_path, "neg")
        assert json.loads((tmp_path / "manifest.json").read_text()) == first
        with pytest.raises(SystemExit, match="no cases of sigmoid"):
            operators.main(tmp_path, "sigmoid")
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


class Masked(nn.Module):
    """Attention, fused or spelled out, of a query whose keys are all masked by a large number."""

    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(1, 2, 3, 4)) for _ in range(3))

    def forward(self, x):
        mask = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]) * torch.finfo(torch.float32).min
        if self.fused:
            y = F.scaled_dot_product_attention(self.q * x, self.k, self.v, mask)
        else:
            y = ((self.q * x) @ self.k.mT / 2 + mask).softmax(-1) @ self.v
        return (y * torch.arange(24.0).reshape(y.shape).sin()).sum()


@pytest.mark.parametrize("decompose", [False, True])
def test_attention_is_recorded_by_its_definition(tmp_path, decompose):
    # The fused kernel's own gradient is too large by the number of keys in the masked row.
    x, truths = torch.ones(1), []
    for fused in True, False:
        path = tmp_path / f"masked{fused}.golden.safetensors"
        export(Masked(fused), (x,), tmp_path / f"masked{fused}.pt2", decompose=decompose)
        truths.append(record(Masked(fused), (x,), path))
    fused, spelled = (t.grads for t in truths)
    assert fused.keys() == spelled.keys() == {"q", "k", "v"}
    for name, gradient in fused.items():
        assert torch.allclose(gradient, spelled[name], rtol=1e-12, atol=1e-14), name
