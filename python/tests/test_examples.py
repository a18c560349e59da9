"""The examples run as they stand: they train, save and resume."""

import re
import runpy
import sys
from pathlib import Path

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
    "operators": "True",
}
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_each_block_of_the_readme_is_tested() -> None:
    assert len(BLOCKS) == len(PRINTED)


@pytest.mark.parametrize("block, printed", list(zip(BLOCKS, PRINTED.values())), ids=PRINTED)
def test_examples_of_the_readme_run(block: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102
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
