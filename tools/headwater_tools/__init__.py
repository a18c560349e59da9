"""Exports PyTorch models for Headwater and records what PyTorch computes with them.

    export(module, args, "model.pt2")                       # the graph and the weights
    record(module, args, "model.golden.safetensors",        # outputs and gradients in float64, and a training run
           data="train.safetensors", epochs=3, optimizer=Optimizer("SGD", lr=0.1))

`module.forward` returns its loss, alone or as the first of several outputs.
"""

from .agreement import ExportWarning, ModuleDiffers
from .exporter import export
from .recorder import certify, record
from .training import AdamW, Optimizer, train

__all__ = ["AdamW", "ExportWarning", "ModuleDiffers", "Optimizer", "certify", "export", "record", "train"]
