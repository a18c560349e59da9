"""Memory that PyTorch and plans share: anonymous private mappings, with a storage of torch's for each tensor in them."""

import mmap
from typing import Any, Sequence

import torch

#: Bytes from which huge pages are requested.
LARGE = 2 << 20


def mapping(size: int) -> mmap.mmap:
    """Zeroed memory. Private: a forked child that writes has a copy, and leaves its parent's weights alone. It is never
    closed, for tensors may outlive all else; the system takes it back with the last of them."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def tensor(memory: mmap.mmap, dtype: torch.dtype, shape: Sequence[int], offset: int) -> torch.Tensor:
    """A contiguous tensor at a byte of a mapping, with a storage of its own: what is saved of it is its bytes alone."""
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


class Segments:
    """The segments of a step's state, lent to it as it requests them."""

    def __init__(self) -> None:
        self._by_name: dict[str, mmap.mmap] = {}

    def lend(self, name: str, size: int) -> tuple[int, Any]:
        """Address of a new segment, and the object that holds it."""
        memory = self._by_name[name] = mapping(size)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        return whole.data_ptr(), whole

    def tensor(self, name: str, dtype: torch.dtype, shape: Sequence[int], offset: int) -> torch.Tensor:
        """A tensor in a segment; an empty one has no memory."""
        if torch.Size(shape).numel() == 0:
            return torch.empty(shape, dtype=dtype)
        return tensor(self._by_name[name], dtype, shape, offset)
