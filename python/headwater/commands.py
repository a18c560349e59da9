"""What needs no PyTorch: exported models, by the command line's own code."""

import json
import os
from typing import Any, Union

from headwater import _headwater

Path = Union[str, "os.PathLike[str]"]


def inspect(model: Path, *, device: str = "cpu") -> dict[str, Any]:
    """Operators, parameters and memory of an exported model (`.pt2`), as `headwater inspect --json` prints them: the keys
    are in docs/json.md.

    Raises `headwater.Error`, with its code, for a file that cannot be read or run."""
    return _report("inspect", model, "--device", device)


def check(model: Path, golden: Path, *, precision: str = "f64", device: str = "cpu") -> dict[str, Any]:
    """Compares an exported model with PyTorch's recorded results, as `headwater check --json` does: the keys are in
    docs/json.md.

    Raises `headwater.Error`, with its code, if the two cannot be compared."""
    return _report("check", model, golden, "--precision", precision, "--device", device)


def _report(*args: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(_headwater.command_json([os.fspath(a) for a in args]))
    return made
