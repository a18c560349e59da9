"""Records optimizers: parameters after each of a few steps with given gradients, in float64.

    python -m headwater_tools.optimizers goldens/optimizers.safetensors
"""

import json
import sys

import torch

from .recorder import save

STEPS = 5
SETTINGS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-6}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
]


def main(path):
    generator = torch.Generator().manual_seed(0)
    cases, tensors = [], {}
    for number, (name, settings) in enumerate(SETTINGS):
        parameter = torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()
        optimizer = getattr(torch.optim, name)([parameter], **settings)
        cases.append({"case": str(number), "optimizer": name, "settings": settings, "steps": STEPS})
        tensors[f"{number}.parameter.0"] = parameter.detach().clone()
        for step in range(STEPS):
            parameter.grad = torch.randn(3, 5, generator=generator, dtype=torch.float64) * 10.0 ** (1 - step)
            tensors[f"{number}.grad.{step}"] = parameter.grad.clone()
            optimizer.step()
            tensors[f"{number}.parameter.{step + 1}"] = parameter.detach().clone()
    metadata = {"format": "headwater-optimizers-1", "torch": torch.__version__.split("+")[0], "cases": json.dumps(cases)}
    save(tensors, path, metadata)


if __name__ == "__main__":
    main(sys.argv[1])
