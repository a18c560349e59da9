"""Compiles the kernels by CANN's compiler: each `kernels/NAME.cpp` becomes `NAME.o`, which ACL loads.

    python build_kernels.py [FOLDER]     into FOLDER, or build/kernels

`pip install` does the same. CANN 8.0 or later is needed, and its `set_env.sh` sourced; no NPU is.
"""

import os
import platform
import runpy
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = "headwater_OPERATOR"
KERNELS = runpy.run_path(str(ROOT / "src" / PACKAGE / "_kernels.py"))["KERNELS"]

# For the cores of the chip. Kernels set their own flags and barriers, so the compiler adds none (`--cce-auto-sync`).
FLAGS = """
@FLAGS@
""".split()
# Given where the compiler knows it: kernels are plain `__global__ __aicore__` functions.
NEWER = ["--cce-disable-kernel-global-attr-check"]


def cann():
    """CANN's folder, as `set_env.sh` names it."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if os.environ.get(name):
            return Path(os.environ[name])
    sys.exit("ASCEND_HOME_PATH is not set: source CANN's set_env.sh first, such as\n"
             "    source /usr/local/Ascend/ascend-toolkit/set_env.sh")


def tool(home, *names):
    """The path of the first executable that is installed."""
    linux = f"{platform.machine()}-linux"
    folders = ["tools/bisheng_compiler/bin", "compiler/ccec_compiler/bin", "tools/ccec_compiler/bin"]
    folders += [f"{linux}/ccec_compiler/bin", "bin"]
    for path in (home / folder / name for name in names for folder in folders):
        if path.is_file():
            return str(path)
    sys.exit(f"{' or '.join(names)} is not below {home}: the CANN toolkit is needed, a runtime alone has no compiler")


def headers(home):
    """Flags for the folders of Ascend C's headers, which differ between versions of CANN."""
    linux = f"{platform.machine()}-linux"
    tikcfw = [home / "compiler/tikcpp/tikcfw", home / linux / "tikcpp/tikcfw"]
    folders = [base / part for base in tikcfw for part in ("", "interface", "impl")]
    asc = ["include", *(f"{a}/{b}" for a in ("include", "impl") for b in ("basic_api", "adv_api", "utils"))]
    folders += [home / linux / "asc" / part for part in asc]
    folders += [home / "include"]
    folders = [folder for folder in folders if folder.is_dir()]
    if not any((folder / "kernel_operator.h").is_file() for folder in folders):
        sys.exit(f"kernel_operator.h is not below {home}: the CANN toolkit has it")
    flags = [f"-I{folder}" for folder in folders]
    version = home / "compiler/include/version/cann_version.h"
    return flags + (["-include", str(version)] if version.is_file() else [])


def run(command):
    """Runs a compiler; the command and what it said where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stdout}")


def known(compiler, flag, folder):
    """True if the compiler takes a flag."""
    empty = Path(folder) / "empty.cpp"
    empty.touch()
    command = [compiler, "-c", *FLAGS, flag, str(empty), "-o", str(Path(folder) / "empty.o")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(folder):
    """Compiles and links every kernel into a folder."""
    home, folder = cann(), Path(folder)
    compiler, linker, includes = tool(home, "ccec", "bisheng"), tool(home, "ld.lld"), headers(home)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as objects:
        newer = [flag for flag in NEWER if known(compiler, flag, objects)]

        def one(name):
            unlinked = str(Path(objects) / f"{name}.o")
            source = str(ROOT / "kernels" / f"{name}.cpp")
            run([compiler, "-c", *FLAGS, *newer, *includes, source, "-o", unlinked])
            run([linker, "-m", "aicorelinux", "-Ttext=0", unlinked, "-static", "-o", str(folder / f"{name}.o")])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, KERNELS))
    print(f"{len(KERNELS)} kernels in {folder}")


if __name__ == "__main__":
    build(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "kernels")
