"""Gradients of an RMS norm on Ascend NPUs. Written by Headwater; README.md says how to use it."""

from ._kernels import CHIP, KERNELS
from ._library import load
from ._rms_norm import rms_norm
from ._rms_norm_backward import rms_norm_backward

__all__ = ["CHIP", "KERNELS", "rms_norm", "rms_norm_backward"]

load()
