"""Builds the package: kernels by CANN's compiler, the operators' implementation by the host's.

    pip install --no-build-isolation .
"""

import importlib.util
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
import build_kernels  # noqa: E402  (of this folder)

PACKAGE = build_kernels.PACKAGE
NATIVE = f"{PACKAGE}._native"

# Found and not imported: that would need an NPU.
found = importlib.util.find_spec("torch_npu")
if found is None or found.origin is None:
    sys.exit("torch_npu is not installed: the version that belongs to this PyTorch is needed")
TORCH_NPU = Path(found.origin).resolve().parent


class Build(BuildExtension):
    """The extension, and the kernels beside it."""

    def run(self):
        super().run()
        build_kernels.build(Path(self.get_ext_fullpath(NATIVE)).parent / "kernels")


setup(
    name=PACKAGE,
    version="1.0",
    description="@DESCRIPTION@",
    license="Apache-2.0",
    python_requires=">=3.8",
    install_requires=["torch>=2.4"],
    package_dir={"": "src"},
    packages=[PACKAGE],
    ext_modules=[
        CppExtension(
            NATIVE,
            [str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc").glob("*.cpp"))],
            include_dirs=[str(TORCH_NPU / "include"), str(TORCH_NPU / "include/third_party/acl/inc")],
            library_dirs=[str(TORCH_NPU / "lib")],
            libraries=["torch_npu"],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": Build},
)
