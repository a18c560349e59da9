"""`torch.compile(model, backend="headwater")` beside eager mode on awkward programs; see `awkward.py`."""

import copy
import os
import sys
import threading
import warnings
from typing import Any

import pytest
import torch
from awkward import CASES, Case, M, compare, linear, observed, x

import headwater
from headwater import backend

F = torch.nn.functional


def compiled(module: torch.nn.Module) -> Any:
    return torch.compile(module, backend="headwater")


def judge(case: Case) -> None:
    """Raises `AssertionError` if a case is not what eager mode is, or was refused and must not be."""
    headwater.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = observed(case, compiled)
    said = [str(w.message) for w in caught if issubclass(w.category, headwater.UnsupportedWarning)]
    compare(got, observed(case))
    assert headwater.counters().refused <= len(said) or len(said) == len(set(said)), said
    if case.must:
        assert not said, f"{case.name} was refused: {said}"
        assert case.blind or headwater.counters().plans > 0


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Case) -> None:
    judge(case)


def test_there_are_ninety_of_different_names() -> None:
    assert len({c.name for c in CASES}) == len(CASES) >= 90
    assert sum(c.must for c in CASES) >= 90


#: Cases of each kind, for faults on purpose: a compilation of each.
FAULTY = ["linear", "several", "chunks", "batch_norm", "written_input_returned", "optimizer", "no_grad", "retained", "two_models"]


@pytest.mark.parametrize("case", [c for c in CASES if c.name in FAULTY], ids=lambda c: c.name)
def test_results_off_by_a_hundredth_are_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    right = backend._Half.compute

    def wrong(self: Any, *args: Any) -> Any:
        results, new, activations = right(self, *args)
        for t in results:
            t.mul_(1.01) if t.dtype.is_floating_point else None
        return results, new, activations

    monkeypatch.setattr(backend._Half, "compute", wrong)
    with pytest.raises(AssertionError, match="off by"):
        judge(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in FAULTY and c.name != "no_grad"], ids=lambda c: c.name)
def test_gradients_off_by_a_hundredth_are_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    right = backend._Half.gradients

    def wrong(self: Any, *args: Any) -> Any:
        return [g if g is None else g * 1.01 for g in right(self, *args)]

    monkeypatch.setattr(backend._Half, "gradients", wrong)
    with pytest.raises(AssertionError, match="off by"):
        judge(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.must], ids=lambda c: c.name)
def test_a_backend_that_refuses_everything_is_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise headwater.Unsupported([headwater.Refusal("everything")])

    monkeypatch.setattr(backend, "capture", refuse)
    with pytest.raises(AssertionError, match="was refused"):
        judge(case)


def test_gradcheck_in_f64() -> None:
    norm = torch.nn.BatchNorm1d(4).double()
    module = M(lambda m, x: F.softmax(m.norm(x @ m.w) * m.v, 1), torch.float64, norm=norm)
    f = compiled(module)
    headwater.reset()
    a = x(dtype=torch.float64, grad=True)
    assert torch.autograd.gradcheck(f, (a,))
    assert headwater.counters().refused == 0
    # A wrong derivative fails.
    module.register_forward_hook(lambda m, i, o: Wrong.apply(o))
    with pytest.raises(sys.modules["torch.autograd.gradcheck"].GradcheckError):
        torch.autograd.gradcheck(module, (a,))


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
        return t.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 1.01


def test_double_backward_is_refused_in_torchs_words() -> None:
    module = M(linear)
    a = x(grad=True)
    (g,) = torch.autograd.grad(compiled(module)(a).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        g.sum().backward()


def test_dropout_follows_torchs_generator() -> None:
    module = M(lambda m, x: F.dropout(x @ m.w, 0.5))
    f, a = compiled(module), x(500, 4)
    torch.manual_seed(3)
    first, second = f(a), f(a)
    torch.manual_seed(3)
    again = f(a)
    assert torch.equal(first, again) and not torch.equal(first, second)
    kept = first != 0
    assert 0.45 < kept.float().mean().item() < 0.55
    torch.testing.assert_close(first, torch.where(kept, 2 * (a @ module.w), 0.0), rtol=2e-6, atol=2e-6)
    # The backward pass has the masks of its forward pass, also when that runs again.
    first.sum().backward(retain_graph=True)
    want = 2 * a.t() @ kept.float()
    torch.testing.assert_close(module.w.grad, want, rtol=2e-5, atol=2e-5)
    module.w.grad = None
    first.sum().backward()
    torch.testing.assert_close(module.w.grad, want, rtol=2e-5, atol=2e-5)


@torch.library.custom_op("headwater_tests::odd", mutates_args=())
def odd(x: torch.Tensor) -> torch.Tensor:
    return x * 3


odd.register_fake(torch.empty_like)
odd.register_autograd(lambda ctx, g: g * 3)


def test_one_warning_names_operator_module_and_line() -> None:
    def forward(m: M, x: torch.Tensor) -> torch.Tensor:
        h = m.l(x)
        return odd(h)

    module = M(forward, l=torch.nn.Linear(4, 3))
    f = compiled(module)
    headwater.reset()
    with pytest.warns(headwater.UnsupportedWarning) as caught:
        for _ in range(3):
            f(x()).sum().backward()
    said = [str(w.message) for w in caught if issubclass(w.category, headwater.UnsupportedWarning)]
    assert len(said) == 1 and "headwater_tests.odd" in said[0] and "test_cases.py:" in said[0], said
    assert headwater.counters().refused == 1
    with pytest.raises(headwater.Unsupported) as e:
        torch.compile(copy.deepcopy(module), backend="headwater", options={"unsupported": "error"})(x())
    assert "headwater_tests.odd" in e.value.refusals[0].what


def test_options() -> None:
    for options, message in (({"unsuported": "eager"}, "no option"), ({"unsupported": "maybe"}, "'eager', 'error'")):
        with pytest.raises(Exception, match=message):
            torch.compile(M(linear), backend="headwater", options=options)(x())


def test_default_backend_and_module_names() -> None:
    module = M(linear)
    names = list(module.state_dict())
    headwater.reset()
    torch.compiler.set_default_backend("headwater")
    try:
        torch.compile(lambda a: module(a))(x())
    finally:
        torch.compiler.set_default_backend("inductor")
    assert headwater.counters().graphs == 1
    module.compile(backend="headwater")
    module(x()).sum().backward()
    assert headwater.counters().graphs == 2 and list(module.state_dict()) == names


def test_explain_says_beforehand_what_is_refused() -> None:
    def forward(m: M, x: torch.Tensor) -> torch.Tensor:
        h = m.norm(x @ m.w)
        print(end="")
        return odd(h * m.v)

    module = M(forward, norm=torch.nn.BatchNorm1d(4))
    before = copy.deepcopy(module.state_dict())
    report = headwater.explain(module, x())
    assert len(report.graphs) == 2 and len(report.refusals) == 1, report
    assert "headwater_tests.odd" in str(report) and "one plan" in str(report) and report.breaks
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    missing = headwater.explain(M(lambda m, x: (x * m.u.detach()) @ m.w), x()).graphs[0].without_gradient
    assert [name for name, _ in missing] == ["u"] and "detach" in missing[0][1], missing


def test_arenas_return_with_their_graphs() -> None:
    module = M(lambda m, x: torch.tanh(x @ m.w) @ m.w)
    f, a = compiled(module), x(64, 4)
    graphs = []
    original = backend._Plans.run
    try:
        backend._Plans.run = lambda self, args: (graphs.append(self), original(self, args))[1]
        outs = [f(a) for _ in range(3)]
        context = graphs[0]._context
        held = graphs[0].half(graphs[0].expected).halves.activation_bytes[0]
        assert held > 0 and context.idle_bytes == 0
        del outs
        assert context.idle_bytes == 3 * held
        for _ in range(5):
            f(a).sum().backward()
        assert context.idle_bytes == 3 * held
    finally:
        backend._Plans.run = original


def test_check_compares_the_first_run_with_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> M:
        made = M(lambda m, x: F.dropout(m.norm(x @ m.w + m.v), 0.3) * m.u, norm=torch.nn.BatchNorm1d(4))
        return made

    module = model()
    before = copy.deepcopy(module.norm.state_dict())
    f = torch.compile(module, backend="headwater", options={"check": True})
    headwater.reset()
    f(x(16, 4)).sum().backward()
    with torch.no_grad():
        f(x(16, 4))
    assert headwater.counters().refused == 0
    assert module.norm.num_batches_tracked == before["num_batches_tracked"] + 2, "the comparison writes nothing"
    right = backend._Half.gradients

    def wrong(self: Any, *args: Any) -> Any:
        return [g if g is None else g * 1.0001 for g in right(self, *args)]

    monkeypatch.setattr(backend._Half, "gradients", wrong)
    # Otherwise the second model would run the graph of the first, which was compared.
    torch._dynamo.reset()
    with pytest.raises(headwater.Mismatch) as e:
        torch.compile(model(), backend="headwater", options={"check": True})(x(16, 4))
    assert {"the gradient of w", "the gradient of u"} <= {name for name, *_ in e.value.differences}, e.value
    with pytest.raises(headwater.Unsupported, match="only graphs of float32"):
        torch.compile(M(linear, torch.float64), backend="headwater", options={"check": True})(x(dtype=torch.float64))


def test_which_results_get_cotangents_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0
    right = backend._Half.compute

    def counted(self: Any, *args: Any) -> Any:
        nonlocal runs
        runs += 1
        return right(self, *args)

    monkeypatch.setattr(backend._Half, "compute", counted)
    f = compiled(M(lambda m, x: (x @ m.w, (x * m.v).exp())))
    # One forward pass for each backward pass, once the loop is known: always the first, then alternately.
    for pattern in ([0] * 6, [0, 1] * 5):
        counts = []
        for at in pattern:
            runs = 0
            f(x())[at].sum().backward()
            counts.append(runs)
        assert counts[4:] == [1] * len(counts[4:]), counts


def test_threads_and_a_forked_child() -> None:
    module = M(lambda m, x: torch.tanh(x @ m.w) @ m.w)
    f = compiled(module)
    batches = [x(32, 4, grad=True) for _ in range(8)]
    f(batches[0]).sum().backward()
    found: dict[int, torch.Tensor] = {}

    def work(at: int) -> None:
        for _ in range(20):
            (found[at],) = torch.autograd.grad(f(batches[at]).sum(), batches[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, batch in enumerate(batches):
        (want,) = torch.autograd.grad(module(batch).sum(), batch)
        compare(found[at], want)
    with torch.no_grad():
        want = module(batches[0])
        f(batches[0])
        child = os.fork()
        if child == 0:
            close = torch.allclose(f(batches[0]), want, rtol=1e-4, atol=1e-5)
            os._exit(0 if close else 1)
        assert os.waitpid(child, 0)[1] == 0
