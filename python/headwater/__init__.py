"""PyTorch training loops on Headwater: `compile_step` makes one planned step of forward pass, backward pass and update."""

from typing import TYPE_CHECKING, Any

from headwater._headwater import __version__
from headwater.errors import Error, Mismatch, Refusal, Unsupported

if TYPE_CHECKING:
    from headwater.step import Step, compile_step

__all__ = ["Error", "Mismatch", "Refusal", "Step", "Unsupported", "__version__", "compile_step"]


def __getattr__(name: str) -> Any:
    # What needs PyTorch is loaded when it is asked for.
    if name in ("Step", "compile_step"):
        from headwater import step

        return getattr(step, name)
    raise AttributeError(f"module 'headwater' has no attribute {name!r}")
