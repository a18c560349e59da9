"""PyTorch training loops on Headwater: `compile_step` makes one planned step of forward pass, backward pass and update, and
`torch.compile(model, backend="headwater")` planned passes for loops that keep PyTorch's optimizer."""

import importlib
from typing import TYPE_CHECKING, Any

from headwater._headwater import __version__
from headwater.commands import check, inspect
from headwater.errors import Error, Mismatch, Refusal, Unsupported, UnsupportedWarning

if TYPE_CHECKING:
    from headwater import apex, hf, nn, ops
    from headwater.backend import Counters, counters, reset
    from headwater.report import GraphReport, ProgramReport, Report, StepReport, explain
    from headwater.step import Step, compile_step

__all__ = [
    "Counters",
    "Error",
    "GraphReport",
    "Mismatch",
    "ProgramReport",
    "Refusal",
    "Report",
    "Step",
    "StepReport",
    "Unsupported",
    "UnsupportedWarning",
    "__version__",
    "apex",
    "check",
    "compile_step",
    "counters",
    "explain",
    "hf",
    "inspect",
    "nn",
    "ops",
    "reset",
]

#: Names that need PyTorch, by the module that has them: loaded at first use.
_LAZY = {
    "Counters": "backend",
    "GraphReport": "report",
    "ProgramReport": "report",
    "Report": "report",
    "Step": "step",
    "StepReport": "report",
    "compile_step": "step",
    "counters": "backend",
    "explain": "report",
    "reset": "backend",
}

#: Modules that need PyTorch.
_MODULES = ("apex", "hf", "nn", "ops")


def __getattr__(name: str) -> Any:
    if module := _LAZY.get(name):
        return getattr(importlib.import_module(f"headwater.{module}"), name)
    if name in _MODULES:
        return importlib.import_module(f"headwater.{name}")
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")
