"""Archives whose weights are left out and drawn again; Headwater, where it is built, refuses them without."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from headwater_tools import weightless

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "goldens/gpt2/gpt2.train.pt2"
BUILT = [Path(p) for p in (os.environ.get("HEADWATER", ""), ROOT / "target/release/headwater", ROOT / "target/debug/headwater") if p]
HEADWATER = next((p for p in BUILT if p.is_file()), None)


def test_weights_are_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setattr(weightless, "LEAST", 1 << 10)
    bare, full, other = tmp_path / "bare.pt2", tmp_path / "full.pt2", tmp_path / "other.pt2"
    size = weightless.strip(GOLDEN, bare)
    assert size > 50_000 and bare.stat().st_size < GOLDEN.stat().st_size - size
    with pytest.raises(Exception, match="weight_0|deserializ"):
        torch.export.load(bare)
    if HEADWATER:
        refused = subprocess.run([HEADWATER, "inspect", bare], capture_output=True, text=True)
        assert refused.returncode == 1
        assert "HW-I005: the archive has no `data/weights/weight_0`" in " ".join(refused.stderr.split())

    assert weightless.fill(bare, full, seed=3) == size
    first = full.read_bytes()
    weightless.fill(bare, full, seed=3)
    weightless.fill(bare, other, seed=4)
    assert full.read_bytes() == first != other.read_bytes()
    drawn, true = torch.export.load(full).state_dict, torch.export.load(GOLDEN).state_dict
    assert drawn.keys() == true.keys()
    assert drawn["model.lm_head.weight"].data_ptr() == drawn["model.transformer.wte.weight"].data_ptr()
    for name, value in true.items():
        if value.numel() * 4 < 1 << 10:
            assert torch.equal(value, drawn[name]), name
        else:
            assert not torch.equal(value, drawn[name])
            assert abs(drawn[name].std() / value.std() - 1) < 0.1, name
    with pytest.raises(weightless.NotWeightless, match="has its weights"):
        weightless.fill(GOLDEN, full)
    with pytest.raises(weightless.NotWeightless, match="no archive of torch.export"):
        weightless.strip(other_archive(tmp_path), full)


def other_archive(folder):
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("a/b", "")
    return folder / "other.zip"


def test_the_command_needs_a_seed_and_no_pytorch(tmp_path):
    run = "import sys; sys.modules['torch'] = None; from headwater_tools import weightless; weightless.main()"
    command = [sys.executable, "-c", run]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}

    def result(*args):
        return subprocess.run([*command, *map(str, args)], capture_output=True, text=True, env=environment)

    assert result("strip", GOLDEN, tmp_path / "bare.pt2").returncode == 0
    assert "--seed" in result("fill", tmp_path / "bare.pt2", tmp_path / "full.pt2").stderr
    assert result("fill", tmp_path / "bare.pt2", tmp_path / "full.pt2", "--seed", 1).returncode == 0
    refused = result("fill", GOLDEN, tmp_path / "full.pt2", "--seed", 1)
    assert refused.returncode == 1 and "has its weights" in refused.stderr
    assert "not a zip file" in result("fill", __file__, tmp_path / "full.pt2", "--seed", 1).stderr
