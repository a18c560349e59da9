"""`apex.optimizers`: NVIDIA's fused optimizers and those of Ascend's apex, as `torch.optim.Optimizer`s.

SGD, Adam, AdamW and Adagrad are one kernel of PyTorch's a parameter, others are its operations over lists. State has apex's keys.
`torch.amp.GradScaler` hands its scale to `step`, which divides by it and leaves the step out if a gradient was not finite."""

from headwater.apex.fused import FusedAdagrad, FusedAdam, FusedLAMB, FusedNovoGrad, FusedSGD
from headwater.apex.npu_fused import (
    NpuFusedAdadelta,
    NpuFusedAdam,
    NpuFusedAdamP,
    NpuFusedAdamW,
    NpuFusedBertAdam,
    NpuFusedLamb,
    NpuFusedRMSprop,
    NpuFusedRMSpropTF,
    NpuFusedSGD,
)

__all__ = [
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedNovoGrad",
    "FusedSGD",
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]
