"""Projects that `headwater kernels OPERATOR --project` writes, with PyTorch on a CPU.

What is run: the packages' operators with stand-ins for their kernels; the build scripts with stand-ins for CANN's
compilers; and whole projects, built and tested by their own commands, where a stand-in for CANN has the simulator run
the kernels. Needed are binaries of this repository, or the tests are skipped:

    cargo build -p headwater -p headwater-ascend-standin
    pytest tools/tests/test_kernel_project.py
"""

import importlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

ROOT = Path(__file__).resolve().parents[2]
STANDINS = Path(__file__).resolve().parent / "kernel_project"
LINUX = f"{platform.machine()}-linux"


def built(name):
    """The newest binary of that name that cargo has built, or a skipped test."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [path for profile in ("debug", "release") if (path := target / profile / name).is_file()]
    if not found:
        pytest.skip(f"{name} is not built")
    return max(found, key=lambda path: path.stat().st_mtime)


def run(*command, status=0, **options):
    """A command's output; its exit status is checked."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
    done = subprocess.run([str(part) for part in command], check=False, **options)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def write(folder, operator, chip, *shapes):
    """Writes a project."""
    shapes = [word for shape in shapes for word in ("--shape", shape)]
    run(built("headwater"), "kernels", operator, "--target", chip, *shapes, "--project", "--out", folder)
    return folder


# Operators with stand-ins for their kernels.


def rms_norm(x, weight, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * weight).to(x.dtype), rstd


def rms_norm_backward(grad_output, x, rstd, weight):
    n, g = x * rstd, grad_output * weight
    grad_x = rstd * (g - n * (g * n).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), (grad_output * n).flatten(0, -2).sum(0).to(weight.dtype)


def embedding_dense_backward(grad_output, indices, num_weights, padding_idx):
    table = grad_output.new_zeros(num_weights, grad_output.shape[-1])
    table.index_add_(0, indices.flatten(), grad_output.flatten(0, -2))
    if padding_idx >= 0:
        table[padding_idx] = 0
    return table, torch.tensor([0, -1, 0, 0, 0, 0, 0, 0], dtype=torch.int32)


KERNELS = {
    "add": {"add": lambda x, y: x + y},
    "rms_norm": {"rms_norm": rms_norm, "rms_norm_backward": rms_norm_backward},
    "rms_norm_grad": {"rms_norm_backward": rms_norm_backward},
    "embedding_grad": {"embedding_dense_backward": embedding_dense_backward},
}
SHAPE = {"add": "6", "rms_norm": "64x256", "rms_norm_grad": "64x256", "embedding_grad": "100x50x64"}


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """The package of each operator, as it is written, with stand-ins for its kernels on the CPU."""
    packages, libraries = {}, []
    for operator, kernels in KERNELS.items():
        name = f"headwater_{operator}"
        folder = write(tmp_path_factory.mktemp(operator), operator, "910b1", SHAPE[operator])
        sys.path.insert(0, str(folder / "src"))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            packages[operator] = importlib.import_module(name)
        assert [str(w.message) for w in said] == [f"{name} is not built: its operators can be traced and not run"]
        libraries.append(torch.library.Library(name, "IMPL"))
        for kernel, function in kernels.items():
            libraries[-1].impl(kernel, function, "CPU")
    yield packages


def random(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def test_functions_are_no_modules(packages):
    for package in packages.values():
        for name in package.__all__:
            assert not isinstance(getattr(package, name), type(sys)), f"{package.__name__}.{name} is a module"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_operators_are_registered_rightly(packages, dtype):
    torch.manual_seed(0)
    ops = torch.ops
    x, weight = random(2, 3, 8, dtype=dtype), random(8, dtype=dtype)
    opcheck(ops.headwater_add.add.default, (x, random(2, 3, 8, dtype=dtype)))
    opcheck(ops.headwater_rms_norm.rms_norm.default, (x, weight, 1e-6))
    # Gradients can be differentiated once, so none of their operands requests it.
    x, weight = x.detach(), weight.detach()
    rstd = rms_norm(x, weight, 1e-6)[1]
    for library in (ops.headwater_rms_norm, ops.headwater_rms_norm_grad):
        opcheck(library.rms_norm_backward.default, (random(2, 3, 8, dtype=dtype, grad=False), x, rstd, weight))
    for index in (torch.int32, torch.int64):
        indices = torch.randint(5, (2, 3), dtype=index)
        operands = random(2, 3, 4, dtype=dtype), indices, 5, 2
        opcheck(ops.headwater_embedding_grad.embedding_dense_backward.default, operands)


def test_gradients_are_those_of_central_differences(packages):
    torch.manual_seed(0)
    assert gradcheck(packages["add"].add, (random(2, 3), random(2, 3)))
    assert gradgradcheck(packages["add"].add, (random(2, 3), random(2, 3)))
    x, weight = random(2, 3, 8), random(8)
    for operator in ("rms_norm", "rms_norm_grad"):
        norm = packages[operator].rms_norm
        assert gradcheck(lambda x, w: norm(x, w, 1e-6), (x, weight))
        (first,) = torch.autograd.grad(norm(x, weight, 1e-6).sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="differentiated once"):
            first.sum().backward()
    indices = torch.tensor([[0, 3, 3], [1, 4, 0]])
    embedding = packages["embedding_grad"].embedding
    for padding in (None, 3, -1):
        table = random(5, 4)
        assert gradgradcheck(lambda w: embedding(indices, w, padding), table)
        if padding is None:
            assert gradcheck(lambda w: embedding(indices, w), table)


def test_gradients_are_pytorchs(packages):
    torch.manual_seed(0)
    for operator in ("rms_norm", "rms_norm_grad"):
        x, weight, grad = random(2, 3, 8), random(8), random(2, 3, 8, grad=False)
        own = torch.autograd.grad(packages[operator].rms_norm(x, weight, 1e-6), (x, weight), grad)
        torch.testing.assert_close(own, torch.autograd.grad(F.rms_norm(x, (8,), weight, 1e-6), (x, weight), grad))
    indices, table, grad = torch.randint(5, (7,)), random(5, 4), random(7, 4, grad=False)
    for padding in (None, 3, -1):
        own = packages["embedding_grad"].embedding(indices, table, padding)
        assert torch.equal(own, F.embedding(indices, table, padding))
        (own,) = torch.autograd.grad(own, table, grad)
        torch.testing.assert_close(own, torch.autograd.grad(F.embedding(indices, table, padding), table, grad)[0])
    with pytest.raises(AssertionError, match="padding_idx|Padding_idx"):
        packages["embedding_grad"].embedding(indices, table, 5)


def test_operators_are_exported_and_compiled(packages):
    class Model(torch.nn.Module):
        def forward(self, x, weight):
            return packages["rms_norm"].rms_norm(x, weight, 1e-6) + packages["rms_norm_grad"].rms_norm(x, weight, 1e-6)

    x, weight = random(3, 8, grad=False), random(8, grad=False)
    program = torch.export.export(Model(), (x, weight))
    assert "headwater_rms_norm.rms_norm.default" in str(program.graph)
    torch.testing.assert_close(program.module()(x, weight), 2 * F.rms_norm(x, (8,), weight, 1e-6))


# Build scripts with stand-ins for CANN's compilers.

RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$(dirname "$0")/log"
case "$*" in *--cce-disable-kernel-global-attr-check*) {known} ;; esac
{fault}
while [ "$1" != -o ]; do shift; done
echo object > "$2"
"""


def cann(folder, tools, headers, known=True, fault=""):
    """A folder with what the build looks for; its compilers note how they are called."""
    (folder / tools).mkdir(parents=True)
    (folder / headers).mkdir(parents=True)
    (folder / headers / "kernel_operator.h").touch()
    for name in ("ccec", "ld.lld"):
        tool = folder / tools / name
        tool.write_text(RECORDER.format(known=":" if known else "exit 1", fault=fault if name == "ccec" else ""))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "ASCEND_HOME_PATH": str(folder)}


@pytest.mark.parametrize(
    ("chip", "target", "tools", "headers", "known"),
    [
        ("310p", "dav-m200", "compiler/ccec_compiler/bin", "compiler/tikcpp/tikcfw", False),
        ("910b1", "dav-c220-vec", "tools/bisheng_compiler/bin", f"{LINUX}/asc/include/basic_api", True),
    ],
)
def test_kernels_are_compiled_for_the_chip(tmp_path, chip, target, tools, headers, known):
    project = write(tmp_path / "project", "add", chip, "64x32")
    environment = cann(tmp_path / "cann", tools, headers, known)
    said = run(sys.executable, project / "build_kernels.py", tmp_path / "out", env=environment)
    assert said == f"2 kernels in {tmp_path / 'out'}\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["add_f16_2048.o", "add_f32_2048.o"]
    log = (tmp_path / "cann" / tools / "log").read_text().splitlines()
    compiled = [line for line in log if line.startswith("ccec ") and "empty.cpp" not in line]
    linked = [line for line in log if line.startswith("ld.lld ")]
    assert len(compiled) == len(linked) == 2
    for line in compiled:
        assert f"-c -x cce -O3 -std=c++17 -DTILING_KEY_VAR=0 --cce-aicore-only --cce-aicore-arch={target} " in line
        assert f"-I{tmp_path / 'cann' / headers} " in line and f"{project}/kernels/add_f" in line
        assert ("--cce-disable-kernel-global-attr-check" in line) == known
        assert "--cce-auto-sync" not in line
    assert all(line.startswith("ld.lld -m aicorelinux -Ttext=0 ") and " -static -o " in line for line in linked)


def test_a_build_that_cannot_be_says_why(tmp_path):
    project = write(tmp_path / "project", "add", "310p", "64x32")
    script = [sys.executable, project / "build_kernels.py", tmp_path / "out"]
    without = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND")}
    assert "source CANN's set_env.sh first" in run(*script, status=1, env=without)
    (tmp_path / "none").mkdir()
    assert "ccec or bisheng is not below" in run(*script, status=1, env={**without, "ASCEND_HOME_PATH": tmp_path / "none"})
    broken = cann(tmp_path / "cann", "bin", "include", fault="case $* in *f32*) echo no such instruction; exit 3 ;; esac")
    said = run(*script, status=1, env=broken)
    assert "add_f32_2048.cpp" in said and "failed with 3:\nno such instruction" in said
    (tmp_path / "cann/include/kernel_operator.h").unlink()
    assert "kernel_operator.h is not below" in run(*script, status=1, env=broken)


# Whole projects in front of the simulator.

MARK, ROOM = b"STANDIN-SETTINGS", 256
SINCE_81 = (
    b"aclrtBinaryLoadFromFile",
    b"aclrtKernelArgsInit",
    b"aclrtKernelArgsAppend",
    b"aclrtKernelArgsFinalize",
    b"aclrtLaunchKernelWithConfig",
)


def install_cann(home, soc, old):
    """A stand-in for CANN with one device. `old` lacks what 8.1 brought."""
    library = built("libheadwater_ascend_standin.so").read_bytes()
    settings = MARK + f"{soc};1;{1 << 30};{'8.0.0' if old else '8.1.RC1'}".encode()
    room = MARK + bytes(ROOM - len(MARK))
    assert library.count(room) == 1
    library = library.replace(room, settings + bytes(ROOM - len(settings)))
    for name in SINCE_81 if old else ():
        assert b"\0" + name + b"\0" in library
        library = library.replace(b"\0" + name + b"\0", b"\0-" + name[1:] + b"\0")
    for folder in ("lib64", "compiler/ccec_compiler/bin", "compiler/tikcpp/tikcfw"):
        (home / folder).mkdir(parents=True)
    (home / "lib64/libascendcl.so").write_bytes(library)
    (home / "compiler/tikcpp/tikcfw/kernel_operator.h").touch()
    for name in ("ccec", "ld.lld"):
        shutil.copy(built("headwater-standin-compiler"), home / "compiler/ccec_compiler/bin" / name)


def install_torch_npu(site, home):
    """A stand-in for torch_npu over it."""
    package = site / "torch_npu"
    headers = package / "include/torch_npu/csrc"
    for folder in (headers / "core/npu", headers / "framework", package / "lib"):
        folder.mkdir(parents=True)
    shutil.copy(STANDINS / "NPUStream.h", headers / "core/npu")
    shutil.copy(STANDINS / "OpCommand.h", headers / "framework")
    library = package / "lib/libtorch_npu.so"
    torch_folder = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    includes = [f"-I{torch_folder / 'include'}", f"-I{package / 'include'}"]
    links = [f"-L{home / 'lib64'}", "-lascendcl", f"-L{torch_folder / 'lib'}", "-lc10", "-pthread"]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", abi, *includes, STANDINS / "torch_npu.cpp", "-o", library]
    run(*command, *links, "-Wl,-soname,libtorch_npu.so")
    (package / "__init__.py").write_text(f"import ctypes\n\nimport torch\n\nctypes.CDLL({str(library)!r})\n")


# Further uses, by operator; every one ends with an assertion.
FURTHER = {
    "add": """
x, y = torch.randn(2, 1003, 2).half().unbind(-1)
z = add(x[0], y[0])
assert torch.equal(z, x[0] + y[0]) and z.is_contiguous()  # of operands that are not
assert add(x[:0], y[:0]).shape == (0, 1003)
refused(lambda: add(x, y), "no kernel is built for float16 2006 (elements). Built are: float16 1003, float32 1003",
        "headwater kernels add --target 310p --shape 1003 --shape 2006 --project --out DIR")
refused(lambda: add(x[0].bfloat16(), y[0].bfloat16()), "no kernel is built for BFloat16 1003")
refused(lambda: add(x[0], y[0].float()), "both must be alike")
""",
    "rms_norm": """
x, weight = torch.randn(2, 5, 8, 64), torch.randn(64)
y = rms_norm(x.transpose(1, 2)[:, :, :4], weight)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x.transpose(1, 2)[:, :, :4], (64,), weight, EPS))
assert rms_norm(x[:0], weight).shape == (0, 5, 8, 64)
refused(lambda: rms_norm(x, weight), "no kernel is built for float32 80x64 (rows x columns)")
refused(lambda: rms_norm(x, weight, 1e-3), "built for eps 1e-06, not for 0.001")
refused(lambda: rms_norm(x, weight.half()), "both must be alike")
refused(lambda: rms_norm(x, weight[1:]), "the last of x")
""",
    "rms_norm_grad": """
grad, x, weight = torch.randn(7, 64), torch.randn(7, 64), torch.randn(64)
refused(lambda: rms_norm_backward(grad, x, torch.ones(6), weight), "it must have 7 elements")
refused(lambda: rms_norm_backward(grad[1:], x, torch.ones(7), weight), "both must be alike")
refused(lambda: rms_norm_backward(grad, x, torch.ones(7), weight), "no kernel is built for float32 7x64")
first, second = rms_norm_backward(grad[:0], x[:0], torch.ones(0), weight)
assert first.shape == (0, 64) and torch.equal(second, torch.zeros(64))
""",
    "embedding_grad": """
grad, indices = torch.randn(4, 25, 64), torch.randint(50, (4, 25))
table = embedding_dense_backward(grad, indices, 50)
torch.testing.assert_close(table, torch.zeros(50, 64).index_add(0, indices.flatten(), grad.flatten(0, 1)))
empty = embedding_dense_backward(grad[:0], indices[:0], 50, check_indices=True)
assert torch.equal(empty, torch.zeros(50, 64))
refused(lambda: embedding_dense_backward(grad, indices, 51), "no kernel is built for float32 by int64 100x51x64",
        "--shape 100x50x64 --shape 100x51x64 --project --out DIR")
refused(lambda: embedding_dense_backward(grad, indices[:2], 50), "one row for each index")
""",
}
PREAMBLE = """
import torch
from headwater_{operator} import *

def refused(call, *parts):
    try:
        call()
    except RuntimeError as error:
        assert all(part in str(error) for part in parts), error
    else:
        raise AssertionError("nothing was refused")
"""


@pytest.mark.parametrize(
    ("operator", "chip", "soc", "shapes", "old"),
    [
        # 1003 elements are not a multiple of a block: 310P reads and writes past them.
        ("add", "310p", "Ascend310P3", ["1003"], True),
        ("rms_norm", "910b1", "Ascend910B1", ["64x64", "67x256"], False),
        ("rms_norm_grad", "310p", "Ascend310P3", ["67x256"], True),
        ("embedding_grad", "310p", "Ascend310P3", ["100x50x64"], False),
    ],
)
def test_whole_projects_run_in_the_simulator(tmp_path, operator, chip, soc, shapes, old):
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    home, site, installed = tmp_path / "cann", tmp_path / "site", tmp_path / "installed"
    install_cann(home, soc, old)
    install_torch_npu(site, home)
    project = write(tmp_path / "project", operator, chip, *shapes)
    environment = {
        **os.environ,
        "ASCEND_HOME_PATH": str(home),
        "LD_LIBRARY_PATH": str(home / "lib64"),
        "PYTHONPATH": os.pathsep.join([str(installed), str(site)]),
        "CFLAGS": f"-include {STANDINS / 'cpu_for_npu.h'} -O0",
        "CXXFLAGS": f"-include {STANDINS / 'cpu_for_npu.h'} -O0",
    }
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", installed, "."]
    run(*pip, cwd=project, env=environment)
    assert sorted(path.stem for path in (installed / f"headwater_{operator}/kernels").glob("*.o")) == sorted(
        path.stem for path in (project / "kernels").glob("*.cpp")
    )
    said = run(sys.executable, f"test_{operator}.py", "--device", "cpu", cwd=project, env=environment)
    assert said.endswith("all passed\n") and "of its bound" in said, said
    code = PREAMBLE.format(operator=operator) + FURTHER[operator]
    run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    if operator == "add":
        # A kernel that computes something else is found.
        kernel = installed / "headwater_add/kernels/add_f32_1003.o"
        assert kernel.read_bytes().count(b" add dst=") == 1
        kernel.write_bytes(kernel.read_bytes().replace(b" add dst=", b" sub dst="))
        said = run(sys.executable, "test_add.py", "--device", "cpu", cwd=project, env=environment, status=1)
        assert "add_f16_1003: z: largest" in said and said.count(": FAILED") == 1 and said.endswith("1 failed\n"), said
