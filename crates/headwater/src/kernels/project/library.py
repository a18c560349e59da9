"""The library of operators: `torch.ops.headwater_OPERATOR`."""

import warnings
from pathlib import Path

import torch

NAMESPACE = "headwater_OPERATOR"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def define(schema):
    """Declares an operator, which `torch.compile` and `torch.export` take as it stands."""
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def fake(operator):
    """Registers shapes and dtypes of an operator's results, for meta and fake tensors."""
    return torch.library.register_fake(f"{NAMESPACE}::{operator}", lib=LIBRARY)


def autograd(operator, backward, setup_context=None):
    """Registers the gradient of an operator."""
    torch.library.register_autograd(f"{NAMESPACE}::{operator}", backward, setup_context=setup_context, lib=LIBRARY)


def load():
    """Loads the operators' implementation for NPUs, which `pip install` builds. Without it they can be traced and
    exported, and not run."""
    native = sorted(Path(__file__).resolve().parent.glob("_native*.so"))
    if not native:
        warnings.warn(f"{NAMESPACE} is not built: its operators can be traced and not run", stacklevel=3)
        return
    import torch_npu  # noqa: F401  (the library is linked with torch_npu's)

    torch.ops.load_library(str(native[0]))
