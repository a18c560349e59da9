"""NVIDIA's and Ascend's `apex` on Headwater: `amp`, optimizers and what scripts import beside them, without a GPU or an NPU.

`from headwater.apex import amp`, or `headwater.apex.install()` before a script's own `from apex import amp`, or without editing
it `python -m headwater.apex train.py …`."""

import sys
from typing import Sequence

from headwater.apex import amp, contrib, fp16_utils, normalization, optimizers, parallel, state
from headwater.apex.contrib import gradient_fusion

__all__ = ["amp", "contrib", "fp16_utils", "install", "normalization", "optimizers", "parallel"]

#: Printed by scripts. The last version of apex that had `amp`.
__version__ = "0.1"

#: What is put under the name apex.
_MODULES = {
    "apex": sys.modules[__name__],
    "apex.amp": amp,
    "apex.amp._amp_state": state,
    "apex.amp.scaler": state,
    "apex.contrib": contrib,
    "apex.contrib.gradient_fusion": gradient_fusion,
    "apex.fp16_utils": fp16_utils,
    "apex.normalization": normalization,
    "apex.normalization.fused_layer_norm": normalization,
    "apex.optimizers": optimizers,
    "apex.parallel": parallel,
}


def install(devices: Sequence[str] = ()) -> None:
    """Puts this package under the name `apex`.

    `devices`, of "npu" and "cuda", makes these names mean the CPU in the whole process, which is printed: see
    `headwater.apex.devices`. Without it, calls for missing devices fail as before."""
    if devices:
        from headwater.apex.devices import as_cpu

        as_cpu(devices)
    for name, module in _MODULES.items():
        sys.modules[name] = module
