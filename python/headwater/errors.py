"""Exceptions of the package."""

from typing import Iterable, NamedTuple, Optional


class Error(RuntimeError):
    """Headwater refused, or failed. `code` is stable, such as "HW-I015"; docs/errors.md lists all."""

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code


class Refusal(NamedTuple):
    """Something in a model or an optimizer that is not supported."""

    what: str
    #: Path of the module, such as "encoder.layer.0"; empty where it is in none.
    module: str = ""
    #: Line of the source, such as "model.py:12"; empty where it has none.
    line: str = ""

    def __str__(self) -> str:
        place = " ".join(([f"in {self.module}"] if self.module else []) + ([f"at {self.line}"] if self.line else []))
        return f"{self.what} ({place})" if place else self.what


class Unsupported(Error):
    """The step cannot be compiled. `refusals` names all reasons that were found; the model goes on in eager mode."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = list(refusals)
        super().__init__("not supported: " + "; ".join(map(str, self.refusals)), "HW-I015")

    @classmethod
    def of(cls, refusals: Iterable[tuple[str, str, str]]) -> "Unsupported":
        return cls(Refusal(*r) for r in refusals)


class UnsupportedWarning(UserWarning):
    """A graph of `torch.compile` runs elsewhere: names operator, module and line."""


class Mismatch(Error):
    """The first step differs from PyTorch's eager mode by more than rounding. The module is as it was."""

    def __init__(self, differences: Iterable[tuple[str, float, float]]) -> None:
        #: Name of a parameter or "loss", relative error, and the bound that it exceeds.
        self.differences = list(differences)
        said = "; ".join(f"{name}: {error:.2e}, the bound is {bound:.2e}" for name, error, bound in self.differences[:8])
        more = f"; and {len(self.differences) - 8} more" if len(self.differences) > 8 else ""
        super().__init__(f"the first step differs from eager mode: {said}{more}")
