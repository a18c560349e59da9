"""What needs no PyTorch: reports of exported models, and the command line."""

import pathlib
import resource
import signal
import subprocess
import sys

import pytest

import headwater

GOLDENS = pathlib.Path(__file__).parents[2] / "goldens"


def golden() -> tuple[pathlib.Path, pathlib.Path]:
    """A small model with its recorded results."""
    found = [p for p in sorted(GOLDENS.rglob("*.pt2"), key=lambda p: p.stat().st_size)]
    pairs = ((p, p.with_name(p.name.removesuffix(".pt2") + ".golden.safetensors")) for p in found)
    return next((model, results) for model, results in pairs if results.exists())


def test_inspect_and_check_return_what_json_prints() -> None:
    model, results = golden()
    found = headwater.inspect(model)
    assert found["parameters"] and found["memory"], found.keys()
    report = headwater.check(model, results)
    assert report["compared"] and all(c["verdict"] == "proved" for c in report["compared"])


def test_a_wrong_golden_is_seen_and_errors_have_codes(tmp_path: pathlib.Path) -> None:
    model, _ = golden()
    with pytest.raises(headwater.Error, match="nothing.pt2") as e:
        headwater.inspect(tmp_path / "nothing.pt2")
    assert e.value.code == "HW-I001", e.value.code
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(headwater.Error) as e:
        headwater.inspect(tmp_path / "text.pt2")
    assert e.value.code is not None and e.value.code.startswith("HW-I")
    with pytest.raises(headwater.Error, match="device"):
        headwater.inspect(model, device="abacus")


def test_nothing_is_installed_in_this_process() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS)]
    caught = pathlib.Path("/proc/self/status").read_text()
    headwater.inspect(golden()[0])
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS)] == before
    after = pathlib.Path("/proc/self/status").read_text()
    masks = [[line for line in text.splitlines() if line.startswith("SigCgt")] for text in (caught, after)]
    assert masks[0] == masks[1] != []


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "headwater", *args], capture_output=True, text=True, timeout=120)


def test_the_command_line() -> None:
    assert run("inspect", str(golden()[0])).returncode == 0
    help = run("--help")
    assert help.returncode == 0 and "headwater migrate" in help.stdout
    wrong = run("inspect", "--nonsense")
    assert wrong.returncode == 2 and "--nonsense" in wrong.stderr
    assert run("inspect", "/nothing.pt2").returncode == 1


def test_torch_is_not_loaded() -> None:
    code = f"import sys, headwater; headwater.inspect({str(golden()[0])!r}); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_import_takes_less_than_50_ms() -> None:
    def seconds(code: str) -> float:
        """Of the processor, in a process of its own."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The least of several runs, to which a busy machine only adds.
    ours, bare = (min(seconds(code) for _ in range(9)) for code in ("import headwater", "pass"))
    assert ours - bare < 0.05, (ours, bare)
