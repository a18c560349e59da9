"""Types and numbers that cases name often."""

import torch

F64, I64, BOOL = torch.float64, torch.int64, torch.bool
INF = float("inf")
