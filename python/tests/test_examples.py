"""The examples run as they stand: they train, save and resume."""

import contextlib
import importlib.machinery
import math
import re
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parent.parent / "examples"


def bert(capsys: pytest.CaptureFixture[str], *args: str) -> dict[int, str]:
    """Lines that it prints, by step."""
    argv, sys.argv = sys.argv, ["bert.py", *args]
    try:
        runpy.run_path(str(EXAMPLES / "bert.py"), run_name="__main__")
    finally:
        sys.argv = argv
    lines = capsys.readouterr().out.splitlines()
    return {int(m[1]): m[2] for line in lines if (m := re.fullmatch(r"step (\d+): (.*)", line))}


def test_bert_trains_saves_and_resumes_to_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = bert(capsys, "--steps", "80", "--out", str(tmp_path / "whole"))
    loss = {step: float(re.search(r"loss ([\d.]+)", line)[1]) for step, line in whole.items()}
    assert loss[80] < 0.9 * loss[10], loss
    bert(capsys, "--steps", "60", "--out", str(tmp_path / "parts"))
    resumed = bert(capsys, "--steps", "80", "--out", str(tmp_path / "parts"), "--resume")
    assert resumed == {70: whole[70], 80: whole[80]}


README = (EXAMPLES.parent / "README.md").read_text()


#: What the blocks print, in their order.
PRINTED = {
    "whole_step": r"0\.\d+, norm \d+\.\d+",
    "amp": r"torch\.float32 65536\.0 O2 in f16",
    "compile": r"Counters\(graphs=1, plans=\d, refused=0\)",
    "apex": r".*'loss_scaler0'.*'loss_scale': 65536\.0, 'unskipped': 100.*",
    "trackers": r"\['loss', 'norm', 'scale'\]",
    "trainer": r"(?s:.*)steps 10",
    "operators": "True",
}
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_each_block_of_the_readme_is_tested() -> None:
    assert len(BLOCKS) == len(PRINTED)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """Stand-ins for wandb and mlflow, with the calls of theirs that the examples and `report_to` make; what they were given."""
    monkeypatch.chdir(tmp_path)
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    given: dict[str, list[dict[str, Any]]] = {"wandb": [], "mlflow": []}

    class Config(dict[str, Any]):
        def update(self, *args: Any, allow_val_change: bool = False, **kwargs: Any) -> None:
            super().update(*args, **kwargs)

    class Run:
        summary: dict[str, Any] = {}

        def _label(self, code: str) -> None: ...

        def log(self, numbers: dict[str, Any], step: int | None = None) -> None:
            given["wandb"].append({**numbers, "step": step})

        def __enter__(self) -> "Run":
            return self

        def __exit__(self, *error: object) -> None:
            wandb.run = None  # type: ignore[attr-defined]

    def init(**settings: Any) -> Run:
        wandb.run = Run()  # type: ignore[attr-defined]
        return wandb.run

    def log(numbers: dict[str, Any]) -> None:
        wandb.run.log(numbers)  # type: ignore[attr-defined]

    wandb = module(
        monkeypatch, "wandb", run=None, config=Config(), init=init, log=log,
        define_metric=lambda *a, **k: None, termwarn=lambda *a, **k: None,
    )  # fmt: skip
    for name in "wandb.sdk", "wandb.sdk.lib":
        module(monkeypatch, name)
    module(monkeypatch, "wandb.sdk.lib.config_util", ConfigError=type("ConfigError", (Exception,), {}))

    runs: list[Any] = []

    @contextlib.contextmanager
    def leave() -> Iterator[Any]:
        yield runs[-1]
        runs.pop()

    def start_run(**settings: Any) -> Any:
        runs.append(types.SimpleNamespace(info=types.SimpleNamespace(run_id="1")))
        return leave()

    def log_metrics(metrics: dict[str, float], step: int, synchronous: bool = True) -> None:
        given["mlflow"].append({**metrics, "step": step})

    validation = module(monkeypatch, "mlflow.utils.validation", MAX_PARAM_VAL_LENGTH=250, MAX_PARAMS_TAGS_PER_BATCH=100)
    module(
        monkeypatch, "mlflow", __version__="3.0.0", utils=types.SimpleNamespace(validation=validation), start_run=start_run,
        end_run=lambda *a: runs.pop() if runs else None, active_run=lambda: runs[-1] if runs else None, log_metrics=log_metrics,
        log_params=lambda *a, **k: None, is_tracking_uri_set=lambda: True, get_tracking_uri=lambda: "here",
    )  # fmt: skip
    return given


def run(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102


def test_trackers_get_loss_norm_and_scale_from_a_loop(logged: dict[str, list[dict[str, Any]]]) -> None:
    run(dict(zip(PRINTED, BLOCKS))["trackers"])
    assert logged["wandb"] == logged["mlflow"]
    assert [numbers["step"] for numbers in logged["wandb"]] == list(range(10, 101, 10))
    for numbers in logged["wandb"]:
        assert all(isinstance(numbers[name], float) and math.isfinite(numbers[name]) for name in ("loss", "norm", "scale"))
        assert numbers["norm"] > 0 and numbers["scale"] >= 1
    assert logged["wandb"][-1]["loss"] < logged["wandb"][0]["loss"]


def test_trackers_get_loss_norm_and_scale_from_a_trainer(logged: dict[str, list[dict[str, Any]]]) -> None:
    run(dict(zip(PRINTED, BLOCKS))["trainer"])
    for name, prefix in ("wandb", "train/"), ("mlflow", ""):
        for key in "loss", "grad_norm", "learning_rate", "scale":
            found = [numbers[prefix + key] for numbers in logged[name] if prefix + key in numbers]
            assert len(found) >= 2 and all(math.isfinite(value) for value in found), (name, key, logged[name])


@pytest.mark.parametrize("block, printed", list(zip(BLOCKS, PRINTED.values())), ids=PRINTED)
@pytest.mark.usefixtures("logged")
def test_examples_of_the_readme_run(block: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(block)
    said = capsys.readouterr().out
    assert re.fullmatch(printed + "\n", said), said


def test_the_reference_is_what_docstrings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(EXAMPLES.parent / "reference.py"), run_name="__main__")
    assert done.value.code == 0


def test_examples_are_typed() -> None:
    mypy = pytest.importorskip("mypy.api")
    said, _, code = mypy.run(["--strict", "--follow-imports=silent", "--ignore-missing-imports", str(EXAMPLES / "bert.py")])
    assert code == 0, said
