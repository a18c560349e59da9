"""All that is to be measured where a GPU is at hand for some minutes: one command, bounded in time.

    python -m headwater_tools.gpu --minutes 14

Runs from a folder that `python -m headwater_tools.gpu_bundle` has made on a machine with Rust. Here it needs Python alone; where
PyTorch with CUDA is installed, the limits of the card and PyTorch's steps are measured too. Six parts, the most valuable first:
the machine, conformance of the operators, goldens and repeated runs, training steps beside PyTorch, the steps farthest from their
floor, compute-sanitizer. Each part ends at its share of the time: what it has found until then is kept, and the next one begins.

Results are in `results.json` as soon as they are known, and in a table at the end. What ran on the stand-in for NVIDIA's libraries
is marked "stand-in, not hardware".
"""

import argparse
import array
import concurrent.futures
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import weightless

STANDIN = "stand-in, not hardware"
SHARES = {"machine": 2, "conformance": 4, "goldens": 3, "workloads": 5, "floors": 1, "sanitizer": 2}  # of the time
SMALL = ["add", "softmax", "linear", "embedding"]  # operators for the stand-in, which is slow
# Kernels of each kind, for compute-sanitizer.
SANITIZED = [
    "add", "softmax", "layer_norm", "cross_entropy_loss", "sum", "linear", "embedding", "embedding_dense_backward", "cumsum",
    "philox_uniform", "max_pool2d_with_indices", "attention",
]  # fmt: skip
GROUP = 24  # operators in a process
# Data sheets, for floors where nothing could be measured: bytes a second; operations a second in bf16 and f32.
SHEETS = {
    "H200": (4.8e12, 989e12, 67e12), "H100 PCIe": (2.0e12, 756e12, 51e12), "H100": (3.35e12, 989e12, 67e12),
    "B200": (8.0e12, 2250e12, 75e12), "A100": (2.0e12, 312e12, 19.5e12), "L40S": (0.864e12, 362e12, 91.6e12),
}  # fmt: skip


class Refused(Exception):
    """The part cannot run here, for this reason."""


class Failed(Exception):
    """A command failed, with this message."""


class Late(Exception):
    """The time of the part is over."""


def end(process):
    """Ends a process and those that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def first_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return (errors or lines[-1:] or ["no message"])[0][:500]


def places_of_libraries():
    """Folders of CUDA's libraries: packages of this Python, and where distributions have them."""
    packages = [path for at in sys.path if at for path in sorted(Path(at).glob("nvidia/*/lib"))]
    toolkits = sorted(Path("/usr/local").glob("cuda*/lib64"), reverse=True)
    system = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
    return [str(path) for path in (*packages, *toolkits, *system) if path.is_dir()]


class Measurement:
    """One run of the script: what it measures with, and what it has found."""

    def __init__(self, args):
        self.args, self.out = args, args.out
        self.begin = time.monotonic()
        self.last = self.begin + 60 * args.minutes
        self.until = self.last  # end of the part that runs
        self.lock = threading.Lock()
        self.parts, self.part = {}, {}
        self.card, self.standin, self.limits = None, False, {}
        made = args.bundle / "bundle.json"
        self.revision = json.loads(made.read_text()).get("revision") if made.is_file() else None
        self.environment = {**os.environ, "HEADWATER_CACHE": str(self.out / "cache")}
        named = [os.environ.get("HEADWATER_CUDA_PATH"), os.environ.get("LD_LIBRARY_PATH"), *places_of_libraries()]
        self.environment["HEADWATER_CUDA_PATH"] = os.pathsep.join(filter(None, named))
        tools = str(Path(__file__).parents[1])
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [tools, os.environ.get("PYTHONPATH")]))

    def left(self):
        """Seconds of the part that are left."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise Late
        return left

    def keep(self):
        """Writes what is known so far."""
        with self.lock:
            found = {
                "card": self.card, "on": self.on(), "hardware": self.card is not None and not self.standin,
                "headwater": self.part_of("machine", "version"), "revision": self.revision, "minutes": self.args.minutes,
                "seconds": round(time.monotonic() - self.begin, 1), "parts": self.parts,
            }  # fmt: skip
            part = self.out / "results.json.part"
            part.write_text(json.dumps(found, indent=1, default=str))
            part.replace(self.out / "results.json")

    def on(self):
        return STANDIN if self.standin else self.card or "no GPU"

    def part_of(self, part, key):
        return self.parts.get(part, {}).get(key)

    def note(self, what, found):
        """Adds a row to the table, and keeps it."""
        with self.lock:
            rows = self.part.setdefault("rows", [])
            rows[:] = [row for row in rows if row[0] != what] + [[what, found]]
        self.keep()

    def set(self, **facts):
        with self.lock:
            self.part.update(facts)
        self.keep()

    def run(self, command, limit=None):
        """A command's exit status, standard output and standard error."""
        limit = min(self.left(), limit or float("inf"))
        process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=self.environment, start_new_session=True,
        )  # fmt: skip
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end(process)
            process.communicate()
            raise Late from None
        return process.returncode, out, error

    def headwater(self, *args, limit=None, device=True):
        """The JSON that a command of Headwater prints."""
        named = ["--device", self.args.device] if device else []
        code, out, error = self.run([self.args.headwater, *args, *named, "--json"], limit)
        try:
            found = json.loads(out)
        except ValueError:
            raise Failed(f"headwater {args[0]} ended with status {code}: {first_line(error or out)}") from None
        if isinstance(found, dict) and found.keys() >= {"error", "code"}:
            raise Failed(f"headwater {args[0]}: {found['error']}")
        return found

    def gpu(self):
        """Refuses where there is none."""
        if self.card is None:
            raise Refused(self.part_of("machine", "without") or f"no GPU was found: {self.part_of('machine', 'why')}")


def duration(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"


def machine(m):
    """Card, driver and libraries; bandwidth of a copy, and rate of large products."""
    found = m.headwater("doctor", device=False)
    code, version, _ = m.run([m.args.headwater, "--version"])
    m.set(doctor=found, version=version.strip() if code == 0 else None)
    m.note("headwater", f"{m.part['version']}, revision {m.revision or 'unknown'}")
    cuda = found["cuda"] or {"libraries": [], "gpus": []}
    for library in cuda["libraries"]:
        m.note(library["name"], library["state"])
    if not cuda["gpus"]:
        states = "; ".join(f"{library['name']}: {library['state']}" for library in cuda["libraries"])
        m.set(without=f"headwater doctor finds no GPU ({states or 'none of CUDA’s libraries is found'})")
        raise Refused(m.part["without"])
    number = int(m.args.device.partition(":")[2] or 0)
    gpu = next((g for g in cuda["gpus"] if g["name"] == f"cuda:{number}"), None)
    if gpu is None:
        m.set(without=f"there is no {m.args.device}, there are {', '.join(g['name'] for g in cuda['gpus'])}")
        raise Refused(m.part["without"])
    m.card, m.standin = gpu["chip"], "stand-in" in gpu["chip"].lower()
    m.note("GPU", f"{gpu['chip']}, {gpu['free'] / 2**30:.1f} of {gpu['total'] / 2**30:.1f} GiB free")
    if shutil.which("nvidia-smi") and not m.standin:
        query = "name,driver_version,clocks.max.sm,power.limit,mig.mode.current"
        code, out, _ = m.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], limit=20)
        m.note("nvidia-smi", out.strip() if code == 0 else f"ended with status {code}")
    first = m.headwater("doctor", "--conformance", "add", "--dtypes", "f32")
    m.note("first kernel (add, f32)", "; ".join(first["wrong"]) or f"{sum(first['ran'].values())} cases agree")
    if m.standin:
        return m.note("limits", "not measured: the stand-in has none")
    try:
        m.limits = last_answer(m, "limits")
    except Failed as error:
        name = next((name for name in SHEETS if all(word in m.card for word in name.split())), None)
        if name is None:
            return m.note("limits", f"not measured: {error}; the card's data sheet is not known here")
        m.limits = dict(zip(("copy", "bf16", "f32"), SHEETS[name])) | {"sheet": name}
        m.note("limits", f"not measured: {error}")
    m.set(limits=m.limits)
    source = f"data sheet of {m.limits['sheet']}" if "sheet" in m.limits else f"by PyTorch {m.limits['torch']}"
    m.note("copy, read and written", f"{m.limits['copy'] / 1e9:.0f} GB/s ({source})")
    for dtype in ("bf16", "f32"):
        if dtype in m.limits:
            m.note(f"product 8192³ in {dtype}", f"{m.limits[dtype] / 1e12:.1f} TFLOP/s ({source})")


def last_answer(m, *what):
    """The last line that a process with PyTorch prints."""
    code, out, error = m.run([sys.executable, "-m", "headwater_tools.gpu_torch", *what])
    if code != 0:
        raise Failed(f"PyTorch: {first_line(error)}")
    answer = json.loads(out.splitlines()[-1])
    if "missing" in answer:
        raise Failed(answer["missing"])
    return answer


def conformance(m):
    """Every operator with its gradients within derived bounds. What fails is repeated in a process of its own."""
    m.gpu()
    all_names = m.headwater("inspect", "--operators", device=False)
    names = m.args.operators.split(",") if m.args.operators else SMALL if m.standin else all_names
    cached = binaries(m)
    m.set(operators=len(names), ran={}, host={}, refused={}, wrong={}, repeated={}, unknown=[])
    groups = [names[i : i + GROUP] for i in range(0, len(names), GROUP)]

    def one(group, limit):
        """Operators of a group that did not end well, each with the reason."""
        try:
            found = m.headwater("doctor", "--conformance", ",".join(group), "--dtypes", m.args.dtypes, limit=limit)
        except Failed as error:
            return dict.fromkeys(group, str(error))
        except Late:
            m.left()
            return dict.fromkeys(group, f"no answer in {limit} s")
        with m.lock:
            for key in ("ran", "host", "refused"):
                m.part[key].update(found[key])
        wrong = {}
        for line in found["wrong"]:
            wrong.setdefault(line.split(" (")[0], line)
        return wrong

    workers = max(1, min(4, (os.cpu_count() or 1) // 4))
    doubtful = {}

    def several(groups, limit):
        """Runs groups in several processes; each group with what did not end well."""
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            jobs = {pool.submit(one, group, limit): group for group in groups}
            late = False
            for job in concurrent.futures.as_completed(jobs):
                try:
                    yield jobs[job], job.result()
                except Late:
                    late = True
            if late:
                raise Late

    def count():
        ran = sum(1 for cases in m.part["ran"].values() if cases)
        m.note("operators that ran", f"{ran} of {len(names)}" + ("" if len(names) == len(all_names) else f", of {len(all_names)} in all"))
        m.note("cases, with gradients", f"{sum(m.part['ran'].values())} in {m.args.dtypes}")
        m.note("operators with steps on the host", str(len(m.part["host"])))
        m.note("refused", str(len(m.part["refused"])))
        m.note("wrong", str(len(m.part["wrong"])) + (f", {len(doubtful)} to be repeated" if doubtful else ""))
        m.note("kernels compiled here", f"{binaries(m) - cached}, and {cached} were in the cache")

    try:
        for _, wrong in several(groups, 60):
            doubtful |= wrong
            count()
        # A failure ends all work of its process, so that what comes after it fails too.
        for group, wrong in several([[name] for name in doubtful], 20):
            name = group[0]
            (m.part["wrong"] if wrong else m.part["repeated"])[name] = wrong.get(name) or doubtful[name]
            count()
        doubtful.clear()
    finally:
        m.part["wrong"] |= {k: v for k, v in doubtful.items() if k not in m.part["repeated"]}
        doubtful.clear()
        count()
        for name, line in list(m.part["wrong"].items())[:20]:
            m.note(f"wrong: {name}", line)
    if m.part["wrong"]:
        raise Failed(f"{len(m.part['wrong'])} operators are wrong")


def binaries(m):
    """Kernels in the cache."""
    return sum(1 for path in (m.out / "cache").rglob("*") if path.is_file())


def goldens(m):
    """Models with what PyTorch computed in f64, in f32 and bf16; then the same short run several times, with one hash."""
    m.gpu()
    found = sorted((m.args.bundle / "goldens").glob("*/*.pt2"), key=lambda path: path.stat().st_size)
    pairs = [(path, path.with_suffix(".golden.safetensors")) for path in found]
    pairs = [pair for pair in pairs if pair[1].is_file()]
    if not pairs:
        raise Refused(f"there are no goldens in {m.args.bundle / 'goldens'}")
    bad = []
    m.set(checks={})
    for path, golden in pairs[:1] if m.standin else pairs:
        for precision in ("f32", "bf16"):
            name = f"{path.stem} in {precision}"
            try:
                report = m.headwater("check", path, golden, "--precision", precision, limit=m.args.check_limit)
            except Failed as error:
                bad.append(name)
                m.note(name, str(error))
                continue
            except Late:
                m.left()
                bad.append(name)
                m.note(name, f"no answer in {m.args.check_limit} s")
                continue
            verdicts = [c["verdict"] for c in report["compared"]]
            differ = [c["name"] for c in report["compared"] if c["verdict"] == "differs"] + report["missing"]
            m.part["checks"][name] = {"values": len(verdicts), "proved": verdicts.count("proved"), "differ": differ}
            bad += [name] if differ else []
            m.note(name, f"{verdicts.count('proved')} of {len(verdicts)} values proved, {len(differ)} differ")
    bad += repeated(m)
    if bad:
        raise Failed(", ".join(bad))


def repeated(m):
    """Runs the same training several times; what was not the same."""
    job = m.args.bundle / "digits-vit"
    if not job.is_dir():
        m.note("repeated runs", f"not run: there is no {job}")
        return []
    runs, steps = (2, 2) if m.standin else (10, 20)
    hashes = []
    for i in range(runs):
        out = m.out / "runs" / str(i)
        shutil.rmtree(out, ignore_errors=True)
        try:
            m.headwater("train", job / "digits_vit.pt2", "--config", job / "migrate.toml", "--steps", steps, "--out", out)
        except Failed as error:
            m.note("repeated runs", str(error))
            return ["repeated runs"]
        digest = hashlib.sha256()
        files = sorted(out.glob("step-*/*.safetensors"))
        for file in files:
            digest.update(file.name.encode() + file.read_bytes())
        hashes.append(digest.hexdigest() if files else "no checkpoint")
        shutil.rmtree(out, ignore_errors=True)
        m.set(hashes=hashes)
        kinds = sorted(set(hashes))
        m.note("repeated runs", f"{len(hashes)} runs of {steps} steps: {len(kinds)} hash{'es' * (len(kinds) > 1)}, {kinds[0][:16]}")
    return ["repeated runs differ"] if len(set(hashes)) > 1 or "no checkpoint" in hashes else []


class Rival:
    """PyTorch's steps of a model, in a process that lives from round to round."""

    def __init__(self, m, path, batch, mode):
        self.m, self.seconds, self.memory = m, [], None
        command = [sys.executable, "-m", "headwater_tools.gpu_torch", "steps", str(path), str(batch), mode]
        self.log = open(m.out / f"{path.stem}.{mode}.log", "w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=m.environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            first = self.answer()
        except BaseException:
            self.close()
            raise
        self.first, self.loss = first["first"], first["loss"]

    def answer(self):
        # A line may not come: the process is ended when the time is over.
        timer = threading.Timer(self.m.left(), end, [self.process])
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self.m.left()
            self.log.seek(0)
            raise Failed(f"PyTorch: {first_line(self.log.read())}")
        return json.loads(line)

    def measure(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.answer()
        self.seconds += answer["seconds"]
        self.memory = answer["memory"]

    def close(self):
        end(self.process)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            stream.close()


class Ours:
    """Headwater's steps of a model."""

    def __init__(self, m, path, batch):
        self.m, self.seconds, self.memory, self.first, self.loss = m, [], None, None, None
        given = ["--inputs", batch] if batch else []
        self.command = ["bench", "step", path, *given, "--precision", "bf16"]

    def measure(self, steps):
        found = self.m.headwater(*self.command, "--steps", steps)["step"]
        self.seconds.append(found["step"]["seconds"])
        self.memory, self.loss = found["memory"]["planned"], found["losses"][0]
        self.first = self.first or found["start"]["total"]

    def close(self):
        pass


def draw_batch(path, inputs, seed):
    """Writes a safetensors file of drawn inputs: `{name: {"shape", "below"}}`, floats without `below`."""
    header, data = {}, []
    for name, spec in inputs.items():
        count, draw = 1, random.Random(f"{seed} {name}")
        for size in spec["shape"]:
            count *= size
        below = spec.get("below")
        numbers = (draw.randrange(below) if below else draw.gauss(0, 1) for _ in range(count))
        block = array.array("q" if below else "f", numbers)
        if sys.byteorder == "big":
            block.byteswap()
        start = sum(map(len, data))
        data.append(block.tobytes())
        header[name] = {"dtype": "I64" if below else "F32", "shape": spec["shape"], "data_offsets": [start, start + len(data[-1])]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def prepared(m):
    """Workloads of the bundle, weights filled in: name, archive, batch, samples or tokens in a step."""
    if m.standin:
        smallest = min((m.args.bundle / "goldens").glob("*/*.pt2"), key=lambda p: p.stat().st_size, default=None)
        return [(smallest.stem, smallest, None, None)] if smallest else []
    found = []
    for file in sorted((m.args.bundle / "workloads").glob("*.json")):
        spec = json.loads(file.read_text())
        name, folder = file.stem, m.out / "workloads"
        if m.args.workloads and name not in m.args.workloads:
            continue
        folder.mkdir(exist_ok=True)
        path, batch = folder / f"{name}.pt2", folder / f"{name}.batch.safetensors"
        if not path.is_file():
            part = folder / f"{name}.part"
            weightless.fill(file.with_name(f"{name}.weightless.pt2"), part, seed=0)
            part.replace(path)
            draw_batch(batch, spec["inputs"], seed=0)
        found.append((name, path, batch, spec))
    return found


def workloads(m):
    """Training steps in bf16 beside PyTorch's, eager and compiled, alternately."""
    m.gpu()
    models = prepared(m)
    if not models:
        raise Refused(f"there are no workloads in {m.args.bundle / 'workloads'}: `gpu_bundle` writes them where transformers is installed")
    m.set(workloads={})
    failures, steps, rounds = [], 1 if m.standin else 20, 1 if m.standin else 3
    # Whatever one model takes, the others have their share.
    ends = [m.left() * (i + 1) / len(models) for i in range(len(models))]
    begin, until = time.monotonic(), m.until
    for (name, path, batch, spec), share in zip(models, ends):
        m.until = min(until, begin + share)
        sides = {}
        try:
            sides["headwater"] = Ours(m, path, batch)
            sides["headwater"].measure(1)
            sides["headwater"].seconds.clear()
            for mode in () if m.standin else ("eager", "compile"):
                try:
                    sides[mode] = Rival(m, path, batch, mode)
                except Failed as error:
                    m.note(f"{name}, PyTorch {mode}", f"not measured: {error}")
            for _ in range(rounds):
                for mode, side in list(sides.items()):
                    try:
                        side.measure(steps)
                    except Failed as error:
                        if mode == "headwater":
                            raise
                        m.note(f"{name}, PyTorch {mode}", f"ended: {error}")
                        sides.pop(mode).close()
                shown(m, name, sides, spec)
        except Late:
            failures.append(f"{name}: its time was over")
        except (Failed, OSError, ValueError) as error:
            failures.append(f"{name}: {error}")
            m.note(name, str(error))
        finally:
            shown(m, name, sides, spec)
            for side in sides.values():
                side.close()
            m.until = until
    m.left()
    if failures:
        raise Failed("; ".join(failures))


def shown(m, name, sides, spec):
    """A row for each side that was measured, and the ratios."""
    tokens = spec and spec["tokens"]
    times = {side: statistics.median(one.seconds) for side, one in sides.items() if one.seconds}
    for side, seconds in times.items():
        one = sides[side]
        facts = {"seconds": seconds, "runs": len(one.seconds), "first": one.first, "loss": one.loss, "memory": one.memory}
        m.part["workloads"].setdefault(name, {})[side] = facts
        rate = f", {tokens / seconds:.0f} {spec['unit']}/s" if tokens else ""
        kind = "planned" if side == "headwater" else "allocated"
        label = side if side == "headwater" else f"PyTorch {side}"
        start = f"{one.first:.1f} s to the first step, first loss {one.loss:.4f}"
        m.note(f"{name}, {label}", f"{duration(seconds)}{rate}, {one.memory / 2**30:.2f} GiB {kind}, {start}")
    for side in times.keys() - {"headwater"}:
        if "headwater" in times:
            memory = sides["headwater"].memory / sides[side].memory
            m.note(f"{name}, {side} over headwater", f"{times[side] / times['headwater']:.2f}×; memory {memory:.2f}×")


def floors(m):
    """The ten steps of a training step that are farthest from the time that memory traffic and arithmetic take at least."""
    m.gpu()
    models = prepared(m)
    if not models:
        raise Refused("there are no workloads")
    name, path, batch, _ = models[0]
    trace = m.out / f"{name}.trace.json"
    given = ["--inputs", batch] if batch else []
    m.headwater("bench", "step", path, *given, "--precision", "bf16", "--steps", 1 if m.standin else 7, "--trace", trace)
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("ph") == "X" and "flops" in e.get("args", {})]
    rows = []
    for span in spans:
        args = span["args"]
        rate = m.limits.get("f32" if "f32[" in args["operands"].split("→")[-1] else "bf16")
        parts = [args["bytes"] / m.limits["copy"]] if "copy" in m.limits else []
        parts += [args["flops"] / rate] if args["product"] and rate else []
        rows.append((span["dur"] / 1e6, max(parts, default=None), span))
    whole = sum(row[0] for row in rows)
    rows.sort(key=lambda row: (row[1] or 0) - row[0])
    source = f"limits: data sheet of {m.limits['sheet']}" if "sheet" in m.limits else "limits: measured"
    source = source if m.limits else "no limits are known: by time alone"
    m.note(f"{name}, sum of {len(rows)} steps", f"{duration(whole)} ({source})")
    m.set(model=name, steps=[{"seconds": s, "floor": f, "name": span["name"], **span["args"]} for s, f, span in rows])
    for i, (seconds, floor, span) in enumerate(rows[:10], 1):
        of = f", floor {duration(floor)}, {100 * floor / max(seconds, 1e-12):.0f} %" if floor is not None else ""
        place = span["args"]["line"] or span["args"]["module"]
        m.note(f"{i}. {span['name']} ({span['cat']})", f"{duration(seconds)}{of}; {place}; {span['args']['operands'][:80]}")


def sanitizer(m):
    """NVIDIA's compute-sanitizer over kernels of each kind."""
    m.gpu()
    if m.standin:
        raise Refused("compute-sanitizer is for hardware; the stand-in checks every access itself")
    places = ["/usr/local/cuda/bin", *os.environ.get("PATH", "").split(os.pathsep)]
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if tool is None:
        raise Refused("compute-sanitizer is not installed (it is not in PATH, nor in /usr/local/cuda/bin)")
    bad = []
    m.set(tools={})
    for kind in ("memcheck", "initcheck", "racecheck", "synccheck"):
        for name in SANITIZED:
            command = [tool, "--tool", kind, "--error-exitcode", "86", m.args.headwater, "doctor", "--conformance", name]
            code, out, error = m.run([*command, "--dtypes", "f32,bf16", "--device", m.args.device])
            m.part["tools"].setdefault(kind, {})[name] = code
            if code != 0:
                bad.append(f"{kind} of {name}")
                lines = [line for line in (out + error).splitlines() if line.startswith("=========")]
                m.note(f"{kind} of {name}", "; ".join(lines[1:4]) or f"ended with status {code}")
            clean = list(m.part["tools"][kind].values()).count(0)
            m.note(kind, f"{clean} of {len(m.part['tools'][kind])} operators clean")
    if bad:
        raise Failed(", ".join(bad))


PARTS = {part.__name__: part for part in (machine, conformance, goldens, workloads, floors, sanitizer)}


def measure(m):
    """Runs the parts, each until its share of the time is over; what earlier ones leave is for later ones."""
    whole, upto = sum(SHARES[name] for name in m.args.parts), 0
    for name in m.args.parts:
        upto += SHARES[name]
        m.until = m.begin + (m.last - m.begin) * upto / whole
        begin = time.monotonic()
        m.part = m.parts[name] = {"state": "running", "limit": round(m.until - begin, 1), "rows": []}
        m.keep()
        print(f"{name}: {PARTS[name].__doc__.splitlines()[0]} At most {m.until - begin:.0f} s.", flush=True)
        try:
            PARTS[name](m)
            state, why = "done", None
        except Refused as error:
            state, why = "refused", str(error)
        except Late:
            state, why = "timed out", "what was found until then is kept"
        except Exception as error:  # the next part runs whatever happens in this one
            state, why = "failed", str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        m.set(state=state, why=why, seconds=round(time.monotonic() - begin, 1))
        print(f"{name} ({m.on()}): {state}{f': {why}' if why else ''}", flush=True)


def table(m):
    """The results as Markdown."""
    cell = lambda text: re.sub(r"\s+", " ", str(text)).replace("|", "\\|")  # noqa: E731
    lines = ["| part | what | found | on |", "|---|---|---|---|"]
    for name, part in m.parts.items():
        spent = f"{part['state']}, {part.get('seconds', 0)} s of {part['limit']} s"
        lines.append(f"| **{name}** | {spent} | {cell(part.get('why') or '')} | {m.on()} |")
        lines += [f"| {name} | {cell(what)} | {cell(found)} | {m.on()} |" for what, found in part["rows"]]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m headwater_tools.gpu", description=__doc__.splitlines()[0])
    here = Path(__file__).parents[1]
    parser.add_argument("--minutes", type=float, default=14, help="for everything (default: 14)")
    parser.add_argument("--bundle", type=Path, default=here, help="what gpu_bundle has written (default: where this file is)")
    parser.add_argument("--headwater", type=Path, help="the program (default: that of the bundle)")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results (default: gpu-results)")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run, with the machine")
    parser.add_argument("--operators", help="operators of the conformance, separated by commas (default: all)")
    parser.add_argument("--dtypes", default="f32,f16,bf16", help="their dtypes")
    parser.add_argument("--workloads", nargs="*", help="workloads to measure (default: all of the bundle)")
    parser.add_argument("--check-limit", type=float, default=60, help="seconds for a golden in a precision")
    args = parser.parse_args(argv)
    args.parts = [name for name in PARTS if name == "machine" or name in args.parts]
    args.bundle, args.out = args.bundle.resolve(), args.out.resolve()
    args.headwater = (args.headwater or args.bundle / "headwater").resolve()
    if not args.headwater.is_file():
        parser.error(f"there is no {args.headwater}: name the program by --headwater, or make a bundle by headwater_tools.gpu_bundle")
    args.out.mkdir(parents=True, exist_ok=True)
    if (args.bundle / "cache").is_dir():
        shutil.copytree(args.bundle / "cache", args.out / "cache", dirs_exist_ok=True)
    m = Measurement(args)
    measure(m)
    text = table(m)
    (args.out / "results.md").write_text(text + "\n")
    print(f"\n{text}\n\n{args.out / 'results.json'}")
    states = [part["state"] for part in m.parts.values()]
    return 0 if not {"failed", "timed out"} & set(states) and m.card else 1


if __name__ == "__main__":
    sys.exit(main())
