"""Exports PyTorch models for Headwater and records what PyTorch computes with them.

    export(module, args, "model.pt2")                       # the graph and the weights
    record(module, args, "model.golden.safetensors",        # outputs and gradients in float64, and a training run
           data="train.safetensors", epochs=3, optimizer=Optimizer("SGD", lr=0.1))

`module.forward` returns its loss, alone or as the first of several outputs.
"""

from importlib import import_module

# The modules that need PyTorch are imported when they are used: measuring a GPU (`headwater_tools.gpu`) needs Python alone.
PLACES = {
    "AdamW": "training",
    "ExportWarning": "agreement",
    "ModuleDiffers": "agreement",
    "Optimizer": "training",
    "certify": "recorder",
    "export": "exporter",
    "record": "recorder",
    "train": "training",
}
__all__ = list(PLACES)  # noqa: PLE0604


def __getattr__(name):
    if name in PLACES:
        return getattr(import_module(f".{PLACES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
