"""Sixty awkward models of the generator, checked by `headwater` in f64, f32 and bf16; `.ci/long` has a thousand."""

import os
from pathlib import Path

import pytest
import torch
from headwater_tools import awkward

BINARY = Path(os.environ.get("HEADWATER", Path(__file__).parents[2] / "target/debug/headwater"))
SEED, COUNT = 20, 60


def test_cases_follow_from_their_seed_and_number_and_reach_every_part():
    cases = [awkward.drawn(SEED, number) for number in range(1000)]
    assert cases == [awkward.drawn(SEED, number) for number in range(1000)]
    assert cases != [awkward.drawn(SEED + 1, number) for number in range(1000)]
    for field, values in (
        ("first", awkward.operators()), ("second", awkward.operators()), ("selection", awkward.SELECTIONS), ("mask", awkward.MASKS),
        ("cast", awkward.CASTS), ("tie", awkward.TIES), ("end", awkward.ENDS), ("form", awkward.FORMS),
    ):  # fmt: skip
        assert {getattr(case, field) for case in cases} == set(values), field


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
@pytest.mark.parametrize("number", range(COUNT))
def test_an_awkward_model(number, tmp_path):
    torch.set_num_threads(1)
    case = awkward.drawn(SEED, number)
    result = awkward.run(case, number, tmp_path, BINARY)
    bad = {where: verdict for where, verdict in result.verdicts.items() if verdict in ("differs", "crash")}
    assert not bad, f"{case}: {bad} {result.said}"


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_a_wrong_gradient_is_seen(tmp_path):
    """The net itself has no hole: a golden with one gradient halved differs."""
    from safetensors import safe_open

    from headwater_tools.recorder import save

    case = awkward.Case(first="layer_norm", end="weighted", seed=3)
    archive, golden = tmp_path / "m.pt2", tmp_path / "m.golden.safetensors"
    module, args = awkward.Awkward(case).train(), awkward.example(case)
    awkward.export(module, args, archive)
    awkward.record(module, args, golden, intermediates="none")
    assert awkward.check(BINARY, archive, golden, "f64")[0] == "pass"
    with safe_open(golden, "pt") as file:
        tensors, metadata = {n: file.get_tensor(n).clone() for n in file.keys()}, file.metadata()
    tensors["grad.weight"] *= 0.5
    save(tensors, golden, metadata)
    for precision in awkward.PRECISIONS:
        assert awkward.check(BINARY, archive, golden, precision)[0] == "differs"


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("exit 0", "pass"),
        ("exit 3", "differs"),
        ("exit 4", "not proved"),
        ("echo 'error: HW-I002: no' >&2; exit 1", "refused HW-I002"),
        ("echo 'error: HW-C001: defect' >&2; exit 1", "crash"),
        ("echo 'error: without a code' >&2; exit 1", "crash"),
        ("exit 2", "crash"),
        ("exit 101", "crash"),
        ("echo \"thread 'main' panicked\" >&2; exit 4", "crash"),
        ("kill -9 $$", "crash"),
    ],
)
def test_an_end_without_a_meaning_is_a_crash(script, verdict, tmp_path):
    binary = tmp_path / "headwater"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    assert awkward.check(binary, "model.pt2", "model.golden.safetensors", "f64")[0] == verdict
