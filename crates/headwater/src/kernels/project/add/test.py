"""Compares `add` with PyTorch in float64, for every kernel that is built.

    python test_add.py [--device npu:0]
"""

import torch
from headwater_OPERATOR import KERNELS, add

from comparison import Comparison, gamma

comparison = Comparison(KERNELS, "add", __doc__)
for name, dtype, _, shape in comparison.cases:
    x, y = (comparison.random(shape, dtype) for _ in range(2))
    truth = x.double() + y.double()
    z = add(x.to(comparison.device), y.to(comparison.device))
    # One rounding, to the dtype of the result.
    bound = gamma(1) * truth.abs() if z.element_size() == 4 else torch.zeros_like(truth)
    comparison.check(f"{name}: z", z, truth, bound)
comparison.end()
