"""Modules over `headwater.ops`: PyTorch's, with the same parameters and names, whose operators run as plans in eager mode."""

import torch

from headwater import ops

__all__ = ["Embedding", "RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` over the last dimension. Without `eps` it is the dtype's epsilon, as PyTorch has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.normalized_shape) != 1:
            raise ValueError(f"headwater.nn.RMSNorm normalizes the last dimension, not {self.normalized_shape}")
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return ops.rms_norm(x, self.weight, eps)


class Embedding(torch.nn.Embedding):
    """`torch.nn.Embedding` without `max_norm` and `sparse`."""

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        if self.max_norm is not None or self.sparse:
            raise ValueError("headwater.nn.Embedding has neither max_norm nor sparse gradients")
        return ops.embedding(indices, self.weight, self.padding_idx, self.scale_grad_by_freq)
