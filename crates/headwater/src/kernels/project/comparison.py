"""Results of the kernels beside PyTorch's in float64, within derived bounds."""

import argparse
import sys

import torch


def gamma(k):
    """The relative error of `k` roundings to float32 in turn is at most this; `k` is a number or a tensor."""
    return k * 2.0**-24 / (1 - k * 2.0**-24)


class Comparison:
    """Compares tensors, prints a line for each, and ends the script with status 1 if any is outside of its bound."""

    def __init__(self, kernels, family, description):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--device", default="npu:0", help="where to run the kernels (default: npu:0)")
        device = parser.parse_args().device
        if device.startswith("npu"):
            import torch_npu  # noqa: F401  (without it PyTorch knows no such device)
        self.device = torch.device(device)
        self.failed = 0
        self.cases = []
        for name, (of, dtype, index, shape) in kernels.items():
            if of == family:
                self.cases.append((name, getattr(torch, dtype), index and getattr(torch, index), shape))
        torch.manual_seed(0)

    def random(self, shape, dtype):
        """Normal random numbers on the CPU, which `dtype` has exactly."""
        return torch.randn(shape, dtype=torch.float32).to(dtype)

    def check(self, label, got, truth, bound):
        """`got` against `truth` in float64; `bound` is for results in float32, and a float16 is rounded once more."""
        if got.dtype == torch.float16:
            bound = bound + (truth.abs() + bound) * 2.0**-11 + 2.0**-25
        error = (got.detach().double().cpu() - truth).abs()
        good = got.shape == truth.shape and bool((error <= bound).all())
        share = torch.where(error == 0, 0.0, error / bound).max().item()
        print(f"{label}: largest error {error.max().item():.3g}, {share:.2f} of its bound{'' if good else ': FAILED'}")
        self.failed += not good

    def expect(self, label, good):
        """Something that is true or not."""
        print(f"{label}: {'yes' if good else 'no: FAILED'}")
        self.failed += not good

    def end(self):
        """The exit status."""
        print(f"{self.failed} failed" if self.failed else "all passed")
        sys.exit(1 if self.failed else 0)
