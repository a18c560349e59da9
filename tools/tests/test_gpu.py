"""The script for a machine with a GPU: over the stand-in for NVIDIA's libraries, and with programs that hang or crash.

Needed for the first are binaries of this repository and a C++ compiler, or it is skipped:

    cargo test --workspace --no-run
    pytest tools/tests/test_gpu.py
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from headwater_tools import gpu, gpu_bundle

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LIBRARIES = ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"]
GOLDEN = ROOT / "goldens/gpt2/gpt2.train.pt2"


def newest(name, reason):
    """The newest file of that name that cargo has built, or a skipped test."""
    found = [p for profile in ("debug", "release") for p in (TARGET / profile / name, TARGET / profile / "deps" / name) if p.is_file()]
    if not found:
        pytest.skip(reason)
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture
def headwater():
    named = os.environ.get("HEADWATER")
    return Path(named) if named else newest("headwater", "the program is not built")


@pytest.fixture
def standin(tmp_path, monkeypatch):
    """The stand-in where the libraries are searched for."""
    if shutil.which(os.environ.get("CXX") or "c++") is None:
        pytest.skip("there is no C++ compiler, which the stand-in needs")
    library = newest("libheadwater_cuda_standin.so", "the stand-in is not built")
    folder = tmp_path / "standin"
    folder.mkdir()
    for name in LIBRARIES:
        (folder / name).symlink_to(library)
    monkeypatch.setenv("HEADWATER_CUDA_PATH", str(folder))
    monkeypatch.setenv("HEADWATER_STANDIN_FAST", "1")


def program(path, text):
    """An executable script."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def measured(out, *args):
    """Runs the script in a process without PyTorch in sight; what it printed, and its results."""
    command = [sys.executable, "-m", "headwater_tools.gpu", "--out", out, *args]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT / "tools")
    assert (out / "results.json").is_file(), done.stderr
    return done, json.loads((out / "results.json").read_text())


def rows(results, part):
    return dict(results["parts"][part]["rows"])


def test_all_parts_run_or_are_refused_over_the_standin(tmp_path, headwater, standin):
    wrapped = program(tmp_path / "wrapped", f'#!/bin/sh\nexec "{headwater}" "$@"\n')
    bundle = tmp_path / "bundle"
    made = gpu_bundle.make(bundle, wrapped, "sm_90", operators="add,softmax", goldens=["gpt2"], workloads=[])
    assert made["cache"]["kernels"] > 50 and not made["cache"]["remarks"], made
    assert made["bytes"] < gpu_bundle.CARRIED and bundle.with_name("bundle.tar.gz").is_file()

    limits = ["--minutes", "10", "--operators", "add,softmax", "--check-limit", "200"]
    done, results = measured(tmp_path / "out", "--bundle", bundle, *limits)
    states = {name: (part["state"], part["why"]) for name, part in results["parts"].items()}
    assert list(states) == ["machine", "conformance", "goldens", "workloads", "floors", "sanitizer"]
    assert all(state == "done" for name, (state, _) in states.items() if name != "sanitizer"), (states, done.stdout)
    assert states["sanitizer"][0] == "refused" and "stand-in checks every access" in states["sanitizer"][1]
    assert done.returncode == 0 and not results["hardware"] and results["on"] == gpu.STANDIN

    conformance = results["parts"]["conformance"]
    assert set(conformance["ran"]) == {"add", "softmax"} and all(conformance["ran"].values())
    assert conformance["wrong"] == {} and conformance["host"] == {}
    # All their kernels were in the bundle.
    assert rows(results, "conformance")["kernels compiled here"].startswith("0, and "), conformance["rows"]
    goldens = results["parts"]["goldens"]
    assert set(goldens["checks"]) == {"gpt2.train in f32", "gpt2.train in bf16"}
    assert all(check["values"] > 10 and not check["differ"] for check in goldens["checks"].values())
    assert len(goldens["hashes"]) == 2 and len(set(goldens["hashes"])) == 1
    ours = results["parts"]["workloads"]["workloads"]["gpt2.train"]["headwater"]
    assert ours["seconds"] > 0 and ours["memory"] > 0 and ours["loss"] > 0
    assert len(results["parts"]["floors"]["steps"]) > 20 and len(rows(results, "floors")) == 11
    # Every row of the table says that this is no hardware.
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(lines) > 25 and all(line.endswith(f"| {gpu.STANDIN} |") for line in lines), lines


def test_the_driver_is_found_by_the_system(tmp_path, headwater, standin, monkeypatch):
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    if not loader.is_file():
        pytest.skip(f"there is no {loader}, which is told a folder to search")
    monkeypatch.delenv("HEADWATER_CUDA_PATH")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    command = [loader, "--library-path", tmp_path / "standin", headwater, "doctor", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["cuda"]
    assert [gpu["chip"] for gpu in found["gpus"]] == ["Stand-in for a GPU (sm_90)"], found


FAKE = """#!{python}
# A program that answers like Headwater on a GPU named in `CARD`, and hangs or crashes where it is told to.
import json, os, signal, sys, time
args = sys.argv[1:]
say = lambda found: print(json.dumps(found))
if args[0] == "--version":
    print("headwater 0")
elif args[0] == "inspect":
    say(["first", "second", "third", "fourth"])
elif args[0] == "doctor" and "--conformance" in args:
    names = args[args.index("--conformance") + 1].split(",")
    if "second" in names:
        os.kill(os.getpid(), signal.SIGSEGV)
    wrong = ["third (plain) in f32: y0 element 0 is 1, not 2"] if "third" in names else []
    # What comes after a failure fails with it.
    wrong += ["fourth (plain) in f32: the device has failed"] if len(names) > 1 else []
    say({{"ran": {{n: 2 for n in names}}, "host": {{}}, "refused": {{}}, "wrong": wrong}})
elif args[0] == "doctor":
    gpu = {{"name": "cuda:0", "chip": {card!r}, "free": 1, "total": 1}}
    say({{"cuda": {{"libraries": [{{"name": "libcuda.so.1", "path": None, "state": "found"}}], "gpus": [gpu] if {card!r} else []}}}})
elif args[0] == "check":
    if os.fork() == 0:
        open({marks!r} + "/" + str(os.getpid()), "w")
    time.sleep(600)
elif args[0] == "bench":
    def span(name, dur, flops, bytes, product):
        facts = {{"bytes": bytes, "flops": flops, "product": product, "operands": "bf16[8] → bf16[8]", "line": "m.py:1", "module": ""}}
        return {{"ph": "X", "name": name, "cat": "forward", "dur": dur, "args": facts}}
    spans = [span("add", 100, 0, 4.8e8, False), span("linear", 900, 989e9 * 0.8, 0, True), span("sum", 250, 0, 4.8e8, False)]
    json.dump({{"traceEvents": spans}}, open(args[args.index("--trace") + 1], "w"))
    say({{}})
"""


def fake(tmp_path, card="Stand-in for a GPU (sm_90)"):
    """That program, with a bundle that has one golden."""
    (tmp_path / "marks").mkdir()
    folder = tmp_path / "goldens/gpt2"
    folder.mkdir(parents=True)
    for file in (GOLDEN, GOLDEN.with_suffix(".golden.safetensors")):
        shutil.copy(file, folder)
    return program(tmp_path / "headwater", FAKE.format(python=sys.executable, card=card, marks=str(tmp_path / "marks")))


def test_a_part_that_hangs_ends_at_its_limit(tmp_path):
    fake(tmp_path)
    begin = time.monotonic()
    parts = ["--parts", "goldens", "sanitizer"]
    done, results = measured(tmp_path / "out", "--bundle", tmp_path, "--minutes", "0.2", *parts)
    # 12 seconds in shares of 2, 3 and 2; what the machine's part leaves is for the next one.
    assert 8 < time.monotonic() - begin < 30
    hung = results["parts"]["goldens"]
    assert hung["state"] == "timed out" and 6 < hung["seconds"] < 15, hung
    assert results["parts"]["machine"]["state"] == "done" and results["parts"]["sanitizer"]["state"] == "refused"
    assert done.returncode == 1 and "| **goldens** | timed out" in done.stdout
    # It has ended, with what it has started.
    started = [int(mark.name) for mark in (tmp_path / "marks").iterdir()]
    assert started
    time.sleep(0.2)
    assert not any(alive(pid) for pid in started)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_golden_that_hangs_leaves_time_to_the_next(tmp_path):
    fake(tmp_path)
    args = ["--minutes", "1", "--parts", "goldens", "--check-limit", "1"]
    _, results = measured(tmp_path / "out", "--bundle", tmp_path, *args)
    assert results["parts"]["goldens"]["state"] == "failed"
    found = rows(results, "goldens")
    assert found["gpt2.train in f32"] == found["gpt2.train in bf16"] == "no answer in 1.0 s"


def test_operators_that_crash_or_fail_are_repeated_alone(tmp_path):
    fake(tmp_path)
    args = ["--minutes", "1", "--parts", "conformance", "--operators", "first,second,third,fourth"]
    _, results = measured(tmp_path / "out", "--bundle", tmp_path, *args)
    part = results["parts"]["conformance"]
    assert part["state"] == "failed" and set(part["wrong"]) == {"second", "third"}, part
    assert "status -11" in part["wrong"]["second"] and "y0 element 0" in part["wrong"]["third"]
    assert set(part["repeated"]) == {"first", "fourth"} and part["ran"]["fourth"] == 2


def test_without_a_gpu_parts_say_so(tmp_path):
    fake(tmp_path, card="")
    done, results = measured(tmp_path / "out", "--bundle", tmp_path, "--minutes", "1")
    assert {part["state"] for part in results["parts"].values()} == {"refused"} and done.returncode == 1
    assert all("finds no GPU (libcuda.so.1: found)" in part["why"] for part in results["parts"].values())
    assert results["on"] == "no GPU"


def test_steps_are_ordered_by_what_they_take_beyond_their_floor(tmp_path, monkeypatch):
    card = "NVIDIA H200 (sm_90)"
    m = gpu.Measurement(gpu.argparse.Namespace(out=tmp_path, bundle=tmp_path, minutes=1, headwater=fake(tmp_path, card), device="cuda"))
    m.card, m.part, m.limits = card, {}, dict(zip(("copy", "bf16", "f32"), gpu.SHEETS["H200"])) | {"sheet": "H200"}
    m.parts["floors"] = m.part
    monkeypatch.setattr(gpu, "prepared", lambda _: [("model", GOLDEN, None, None)])
    gpu.floors(m)
    found = [row[0] for row in m.part["rows"]]
    # 150, 100 and 0 µs.
    assert found[1:] == ["1. sum (forward)", "2. linear (forward)", "3. add (forward)"]
    assert "floor 0.10 ms, 40 %" in m.part["rows"][1][1] and "data sheet of H200" in m.part["rows"][0][1]


def test_both_sides_measure_the_same_step(tmp_path, headwater):
    """PyTorch's worker on the CPU, beside Headwater's step of the same archive and batch."""
    batch = tmp_path / "batch.safetensors"
    inputs = torch.export.load(GOLDEN).example_inputs[0]
    token = {"shape": list(inputs[0].shape), "below": 64}
    gpu.draw_batch(batch, {"input_ids": token, "labels": token}, seed=0)
    command = [sys.executable, "-m", "headwater_tools.gpu_torch", "steps", GOLDEN, batch, "eager", "cpu"]
    done = subprocess.run(list(map(str, command)), input="2\n", capture_output=True, text=True, cwd=ROOT / "tools")
    assert done.returncode == 0, done.stderr
    first, then = map(json.loads, done.stdout.splitlines())
    assert len(then["seconds"]) == 2 and first["loss"] == then["losses"][0] > then["losses"][3]
    command = [headwater, "bench", "step", GOLDEN, "--inputs", batch, "--precision", "bf16", "--steps", "2", "--quick", "--json"]
    ours = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["step"]["losses"]
    assert ours[:4] == pytest.approx(then["losses"][:4], rel=1e-2)
