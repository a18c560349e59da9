"""What follows a run, read by those for whom it is meant: metrics by Prometheus's parser, the log by pandas."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = [Path(p) for p in (os.environ.get("HEADWATER", ""), ROOT / "target/release/headwater", ROOT / "target/debug/headwater") if p]
HEADWATER = next((p for p in BUILT if p.is_file()), None)
DIGITS = ROOT / "examples/digits-vit"

pytestmark = pytest.mark.skipif(HEADWATER is None, reason="the program is not built")


def train(out, *more):
    files = [DIGITS / "digits_vit.pt2", "--data", DIGITS / "train.safetensors", "--eval", DIGITS / "heldout.safetensors"]
    return [str(a) for a in (HEADWATER, "train", *files, "--batch", 32, "--out", out, *more)]


@contextlib.contextmanager
def serving(out):
    """A run that serves metrics: its URL. It is interrupted at the end."""
    run = subprocess.Popen(
        train(out, "--steps", 1_000_000, "--eval-every", 3, "--metrics", 0), stderr=subprocess.PIPE, text=True
    )
    try:
        yield next(line.split()[1] for line in run.stderr if line.startswith("metrics: "))
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)


def test_prometheus_reads_the_metrics_of_a_run(tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    with serving(tmp_path / "run") as url:
        for _ in range(600):
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                text = answer.read().decode()
            families = {f.name: f for f in parser.text_string_to_metric_families(text)}
            if "headwater_evaluation_step" in families:
                break
            time.sleep(0.1)
    assert families["headwater_samples"].type == "counter" and families["headwater_loss"].type == "gauge"
    assert all(f.documentation for f in families.values())
    metrics = {s.labels["metric"]: s.value for s in families["headwater_evaluation"].samples}
    assert metrics["loss"] > 0 and 0 <= metrics["accuracy"] <= 1


def test_the_log_is_read_as_the_page_says(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    subprocess.run(train("run", "--steps", 25), check=True, capture_output=True)
    page = (ROOT / "docs/following.md").read_text()
    block = page.split("```python\n")[1].split("```")[0]
    exec(compile(block, "docs/following.md", "exec"), {})  # noqa: S102
    loss, when = capsys.readouterr().out.split(" ", 1)
    assert 0 < float(loss) < 5 and when.startswith(time.strftime("%Y-", time.gmtime()))
