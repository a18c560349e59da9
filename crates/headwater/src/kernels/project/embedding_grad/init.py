"""Embedding with a dense gradient on Ascend NPUs. Written by Headwater; README.md says how to use it."""

from ._embedding import embedding
from ._embedding_dense_backward import embedding_dense_backward
from ._kernels import CHIP, KERNELS
from ._library import load

__all__ = ["CHIP", "KERNELS", "embedding", "embedding_dense_backward"]

load()
