"""Makes the folder that `headwater_tools.gpu` runs from, on a machine with Rust; it is carried to one with a GPU.

    cargo build --release
    python -m headwater_tools.gpu_bundle bundle --headwater target/release/headwater --arch sm_90

In it: the program, stripped; the script; kernels compiled for the kind of GPU, where NVRTC is found (docs/cuda.md); the goldens of
nine model families, the job of examples/digits-vit; and training steps to measure, without their weights, where transformers is
installed. `bundle.tar.gz` beside it has the same.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import weightless

ROOT = Path(__file__).parents[2]
SCRIPT = ["__init__.py", "gpu.py", "gpu_torch.py", "weightless.py"]
FAMILIES = ["vit", "resnet", "bert", "gpt2", "llama", "qwen2", "clip", "deepseek_v3", "internvl"]
DIGITS = ["digits_vit.pt2", "digits_vit.golden.safetensors", "train.safetensors", "heldout.safetensors", "migrate.toml"]
CARRIED = 64 << 20  # bytes that are easy to carry


def gpt2(tf):
    """GPT-2 124M, 16 × 1024 tokens."""
    config = tf.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return tf.GPT2LMHeadModel(config), (16, 1024), config.vocab_size


def bert(tf):
    """BERT-base under masked-language loss, 64 × 128 tokens."""
    config = tf.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return tf.BertForMaskedLM(config), (64, 128), config.vocab_size


def llama(tf):
    """Llama 3.2 1B, 8 × 2048 tokens: 5 GB of weights while it is made."""
    config = tf.LlamaConfig(
        vocab_size=128256, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=8192, max_position_embeddings=131072, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config), (8, 2048), config.vocab_size


WORKLOADS = {f.__name__: f for f in (gpt2, bert, llama)}


def export_workload(name, folder):
    """Writes a workload without its weights, and what its batch is made of."""
    import torch
    import transformers as tf

    from .exporter import export
    from .families import TextLoss

    torch.manual_seed(0)
    model, shape, vocabulary = WORKLOADS[name](tf)
    ids, labels = (torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / f"{name}.pt2"
        # In the training form, the nearest to what eager PyTorch runs.
        export(TextLoss(model).train(), (ids, labels), path)
        weightless.strip(path, folder / f"{name}.weightless.pt2", moments=lambda data: statistics(torch, data))
    token = {"shape": list(shape), "below": vocabulary}
    spec = {"about": WORKLOADS[name].__doc__, "inputs": {"input_ids": token, "labels": token}, "tokens": ids.numel(), "unit": "tokens"}
    (folder / f"{name}.json").write_text(json.dumps(spec, indent=1))


def statistics(torch, data):
    numbers = torch.frombuffer(bytearray(data), dtype=torch.float32)
    return numbers.double().mean().item(), numbers.double().std(correction=0).item()


def fill_cache(headwater, folder, arch, operators):
    """Compiles kernels into the cache. Returns what was compiled, or why nothing was."""
    models = [path for path in folder.glob("goldens/*/*.pt2")] + [folder / "digits-vit/digits_vit.pt2"]
    models += folder.glob("workloads/*.pt2")
    common = ["--device", f"cuda:{arch}", "--cache", folder / "cache", "--json"]
    jobs = [["--operators", operators]]
    for model in filter(Path.is_file, models):
        jobs += [[model], [model, "--amp", "O2", "--dtype", "bf16"]]
    compiled, remarks = 0, []
    with tempfile.TemporaryDirectory() as temporary:
        for job in jobs:
            if str(job[0]).endswith(".weightless.pt2"):
                filled = Path(temporary) / "model.pt2"
                weightless.fill(job[0], filled)
                job = [filled, *job[1:]]
            done = subprocess.run([headwater, "compile", *job, *common], capture_output=True, text=True)
            if done.returncode:
                remarks.append(f"{job[0]}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
                if "nvrtc" in done.stderr.lower():
                    break
            else:
                found = json.loads(done.stdout)
                compiled += found["compiled"]
                nvrtc = ".".join(map(str, found["nvrtc"]))
    return {"kernels": compiled, "nvrtc": nvrtc if compiled else None, "arch": arch, "remarks": remarks}


def copy(sources, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        shutil.copy2(source, folder / source.name)


def make(folder, headwater, arch, operators="all", goldens=FAMILIES, workloads=("gpt2", "bert"), cache=True):
    """Makes the folder and the archive. Returns what is in it."""
    folder.mkdir(parents=True)
    shutil.copy2(headwater, folder / "headwater")
    remarks = []
    stripped = subprocess.run(["strip", folder / "headwater"], capture_output=True, text=True) if shutil.which("strip") else None
    if stripped is None or stripped.returncode:
        remarks.append(f"the program is not stripped: {stripped.stderr.strip() if stripped else 'there is no `strip`'}")
    copy([Path(__file__).parent / name for name in SCRIPT], folder / "headwater_tools")
    for family in goldens:
        files = [ROOT / "goldens" / family / f"{family}.train{end}" for end in (".pt2", ".golden.safetensors")]
        copy(files, folder / "goldens" / family)
    copy([ROOT / "examples/digits-vit" / name for name in DIGITS], folder / "digits-vit")
    (folder / "workloads").mkdir()
    for name in workloads:
        try:
            export_workload(name, folder / "workloads")
        except ImportError as error:
            remarks.append(f"the workload {name} is left out: {error}")
    version = subprocess.run([headwater, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    revision = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    found = {"headwater": version, "revision": revision.stdout.strip() or None, "remarks": remarks}
    if cache:
        found["cache"] = fill_cache(headwater, folder, arch, operators)
        remarks += [f"not compiled: {remark}" for remark in found["cache"]["remarks"]]
    (folder / "bundle.json").write_text(json.dumps(found, indent=1))
    archive = folder.with_name(folder.name + ".tar.gz")
    with tarfile.open(archive, "w:gz") as out:
        out.add(folder, folder.name)
    found["bytes"] = archive.stat().st_size
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="to be made")
    parser.add_argument("--headwater", type=Path, default=ROOT / "target/release/headwater", help="the program")
    parser.add_argument("--arch", default="sm_90", help="kind of the GPU, such as sm_80, sm_90 (H100, H200) or sm_100")
    parser.add_argument("--workloads", nargs="*", default=["gpt2", "bert"], choices=list(WORKLOADS), help="steps to measure")
    parser.add_argument("--operators", default="all", help="operators whose kernels are compiled, separated by commas")
    args = parser.parse_args()
    if not args.headwater.is_file():
        parser.error(f"there is no {args.headwater}: `cargo build --release` makes it, --headwater names another")
    if args.folder.exists():
        parser.error(f"{args.folder} is there already")
    found = make(args.folder, args.headwater, args.arch, args.operators, workloads=args.workloads)
    for remark in found["remarks"]:
        print(f"warning: {remark}", file=sys.stderr)
    print(f"{args.folder}.tar.gz: {found['bytes'] / 2**20:.1f} MiB, {found['cache']['kernels']} kernels by NVRTC {found['cache']['nvrtc']}")
    if found["bytes"] > CARRIED:
        print(f"warning: that is more than {CARRIED >> 20} MiB; name fewer --workloads or --operators", file=sys.stderr)


if __name__ == "__main__":
    main()
