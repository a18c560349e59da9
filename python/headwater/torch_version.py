"""The release of PyTorch that the package works with."""

import torch

from headwater import _headwater

TORCH = (2, 15)


def check_version() -> None:
    """Raises `ImportError` for another release."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) != TORCH:
        raise ImportError(
            f"headwater {_headwater.__version__} needs torch {TORCH[0]}.{TORCH[1]}, this is torch {torch.__version__}: "
            "graphs of TorchDynamo and their export change with each release"
        )
