"""`apex.contrib.gradient_fusion`: gradients in few contiguous buffers, as backward passes of plans have them anyway."""

import torch

__all__ = ["GradientFusion"]


def GradientFusion(model: torch.nn.Module, fusion_size: int = 8) -> torch.nn.Module:
    """Returns the model itself, so that names in its `state_dict` stay. A plan's backward pass writes all gradients of one dtype
    into one buffer, which is the largest fusion there is; the size changes no number, and is ignored but for its sign."""
    if fusion_size < 1:
        raise ValueError(f"fusion_size must be at least 1, it is {fusion_size}")
    return model
