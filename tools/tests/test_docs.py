"""Code blocks of the pages that a newcomer follows run as they stand, and so do the commands between them."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The program, if it is built: `HEADWATER`, or that of a debug or release build.
BUILT = [Path(p) for p in (os.environ.get("HEADWATER", ""), ROOT / "target/release/headwater", ROOT / "target/debug/headwater") if p]
HEADWATER = next((p for p in BUILT if p.is_file()), None)


def pieces(page):
    """Python blocks and commands of a page in their order: ("python", text) and ("headwater", line)."""
    found, fence, block = [], None, []
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            if fence == "python":
                found.append(("python", "\n".join(block)))
            fence, block = (line[3:] if fence is None else None), []
        elif fence is not None:
            block.append(line)
        elif line.startswith("    headwater "):
            found.append(("headwater", line.split("  #")[0].strip()))
    return found


def runs(page, folder, monkeypatch, skip=()):
    monkeypatch.chdir(folder)
    scope = {"__name__": page.name}
    for kind, text in pieces(ROOT / page):
        if any(word in text for word in skip):
            continue
        if kind == "python":
            exec(compile(text, f"{page}: {text.splitlines()[0]}", "exec"), scope)  # noqa: S102
        elif HEADWATER:
            args = shlex.split(text)[1:]
            done = subprocess.run([HEADWATER, *args], capture_output=True, text=True, env={**os.environ, "HEADWATER_THREADS": "1"})
            assert done.returncode == 0, f"{text}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return scope


@pytest.mark.skipif(HEADWATER is None, reason="the program is not built")
def test_the_first_hour_runs_as_it_stands(tmp_path, monkeypatch):
    runs(Path("docs/first-hour.md"), tmp_path, monkeypatch)
    assert (tmp_path / "out" / tmp_path.name / "report.html").exists() and (tmp_path / "run/report.html").exists()


@pytest.mark.skipif(HEADWATER is None, reason="the program is not built")
def test_fine_tuning_runs_as_it_stands(tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    import torch
    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM

    # Two commands are of another model, `model.pt2`.
    scope = runs(Path("docs/fine-tuning.md"), tmp_path, monkeypatch, skip=("model.pt2",))
    adapters = load_file("adapters.safetensors")
    assert len(adapters) == 8 and all("lora_" in name for name in adapters)
    assert any(t.abs().max() > 0 for name, t in adapters.items() if "lora_B" in name)  # zero before training
    # The trained model, by the checkpoint, by the adapters and merged.
    module, ids = scope["module"].eval(), scope["ids"][:2]
    merged = LlamaForCausalLM.from_pretrained("merged")(ids).logits
    module = scope["Training"](peft.get_peft_model(fresh(LlamaForCausalLM, scope), scope["lora"])).eval()
    module.load_state_dict(load_file("out/run/step-00000060/model.safetensors"))
    torch.testing.assert_close(merged, module(ids, ids)[1], rtol=1e-4, atol=1e-5)
    saved = peft.PeftModel.from_pretrained(fresh(LlamaForCausalLM, scope), "adapters").eval()
    assert peft.get_peft_model_state_dict(saved).keys() == peft.get_peft_model_state_dict(module.model).keys()


def fresh(cls, scope):
    """The page's base model, before the adapters."""
    return cls(cls.config_class.from_pretrained("merged"))


def test_the_pages_have_code(tmp_path):
    counts = [len(pieces(ROOT / page)) for page in ("docs/first-hour.md", "tools/README.md")]
    assert counts[0] >= 9 and counts[1] >= 4
    assert re.search("record\\(", pieces(ROOT / "tools/README.md")[0][1])
