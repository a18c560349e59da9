"""`apex.normalization`: PyTorch's norms under apex's names. In plans they are one operator each."""

import torch

__all__ = ["FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"]


class FusedLayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm`; `memory_efficient` changes no number."""

    def __init__(
        self, normalized_shape: object, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)  # type: ignore[arg-type]


class FusedRMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm`; `memory_efficient` changes no number."""

    def __init__(
        self, normalized_shape: object, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)  # type: ignore[arg-type]


MixedFusedLayerNorm = FusedLayerNorm
MixedFusedRMSNorm = FusedRMSNorm
