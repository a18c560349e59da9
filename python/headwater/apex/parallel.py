"""`apex.parallel`: PyTorch's distributed training under apex's names."""

from typing import Any, Optional

import torch

__all__ = ["DistributedDataParallel", "SyncBatchNorm", "convert_syncbn_model"]

SyncBatchNorm = torch.nn.SyncBatchNorm


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """PyTorch's DistributedDataParallel with apex's arguments. Those that change no number are ignored; gradients are averaged.

    Raises `RuntimeError` for `gradient_average=False` and another predivision than 1."""

    def __init__(
        self,
        module: torch.nn.Module,
        message_size: int = 10000000,
        delay_allreduce: bool = False,
        shared_param: Any = None,
        allreduce_trigger_params: Any = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Any = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: Any = None,
        prof: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        if not gradient_average:
            raise RuntimeError("gradient_average=False: gradients are averaged over the ranks here")
        if gradient_predivide_factor != 1.0:
            raise RuntimeError(f"gradient_predivide_factor={gradient_predivide_factor}: it is 1 here")
        # With delayed reduction apex waits for the whole backward pass, in which parameters may be unused.
        super().__init__(module, find_unused_parameters=find_unused_parameters or delay_allreduce)


def convert_syncbn_model(module: torch.nn.Module, process_group: Any = None, channel_last: bool = False) -> torch.nn.Module:
    """`torch.nn.SyncBatchNorm.convert_sync_batchnorm`; without a process group its modules are plain batch norm."""
    return torch.nn.SyncBatchNorm.convert_sync_batchnorm(module, process_group)


def create_syncbn_process_group(group_size: int) -> Optional[Any]:
    """The process group of `group_size` ranks that this rank belongs to; `None`, all ranks, for 0."""
    if group_size == 0:
        return None
    world = torch.distributed.get_world_size()
    if world % group_size:
        raise ValueError(f"group_size {group_size} does not divide the {world} ranks")
    own = None
    for first in range(0, world, group_size):
        ranks = list(range(first, first + group_size))
        group = torch.distributed.new_group(ranks)
        own = group if torch.distributed.get_rank() in ranks else own
    return own
