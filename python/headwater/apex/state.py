"""What `apex.amp` keeps between calls: the level's properties, loss scalers, and gradients that are set aside."""

import dataclasses
from typing import Any, Callable, Iterator, Optional, Union

import torch

LEVELS = ("O0", "O1", "O2", "O3")

_SUMMARIES = {
    "O0": "Pure FP32 training.",
    "O1": "Casts around functions of torch, by lists.",
    "O2": "Low precision with FP32 batch norm and FP32 master weights.",
    "O3": "Low precision alone.",
}


@dataclasses.dataclass
class Properties:
    """Settings of an optimization level, as apex names them."""

    enabled: bool = True
    opt_level: str = "O0"
    cast_model_type: Optional[torch.dtype] = None
    patch_torch_functions: bool = False
    keep_batchnorm_fp32: Optional[bool] = None
    master_weights: Optional[bool] = None
    loss_scale: Union[float, str] = 1.0
    #: The low precision.
    low: torch.dtype = torch.float16

    @classmethod
    def of(cls, level: str, low: torch.dtype) -> "Properties":
        """The defaults of a level. In bf16, which has the range of f32, no loss is scaled."""
        if level not in LEVELS:
            raise RuntimeError(
                f"Unexpected optimization level {level}. Options are 'O0', 'O1', 'O2', 'O3'. Note that in `O0`, `O1`, etc., "
                "the prefix O is the letter O, not the number zero."
            )
        dynamic: Union[float, str] = "dynamic" if low is torch.float16 else 1.0
        if level == "O0":
            return cls(True, level, torch.float32, False, None, False, 1.0, low)
        if level == "O1":
            return cls(True, level, None, True, None, None, dynamic, low)
        if level == "O2":
            return cls(True, level, low, False, True, True, dynamic, low)
        return cls(True, level, low, False, False, False, 1.0, low)

    @property
    def summary(self) -> str:
        return _SUMMARIES[self.opt_level]

    def shown(self) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(self):
            if field.name != "low":
                yield field.name, getattr(self, field.name)

    def override(self, **given: Any) -> None:
        """Changes single properties; raises `RuntimeError` where apex does."""
        if (value := given["patch_torch_functions"]) is not None:
            if self.opt_level != "O1" and value:
                raise RuntimeError("Currently, patch_torch_functions=True should only be set by selecting opt_level='O1'.")
            self.patch_torch_functions = bool(value)
        if (value := given["cast_model_type"]) is not None:
            if self.opt_level == "O1" and value is not False:
                raise RuntimeError(
                    f"O1 casts around functions; its weights stay FP32. cast_model_type was {value}: use O2 or O3 for it"
                )
            if value not in (False, torch.float32, torch.float16, torch.bfloat16):
                raise RuntimeError(f"cast_model_type is float16, bfloat16 or float32, not {value}")
            self.cast_model_type = value or None
            if value in (torch.float16, torch.bfloat16):
                self.low = value
                if value is torch.bfloat16 and self.opt_level == "O2":
                    self.loss_scale = 1.0
        if (value := given["keep_batchnorm_fp32"]) is not None:
            if self.opt_level == "O1":
                raise RuntimeError(f"With opt_level O1, batch norm is FP32 already: keep_batchnorm_fp32 was {value}, leave it out")
            if value not in (True, False, "True", "False"):
                raise RuntimeError(f"keep_batchnorm_fp32 must be a boolean, 'True' or 'False', it is {value}")
            self.keep_batchnorm_fp32 = value in (True, "True")
        if (value := given["master_weights"]) is not None:
            if self.opt_level == "O1":
                raise RuntimeError("master_weights makes no sense at O1, whose weights are FP32 themselves")
            self.master_weights = bool(value)
        if (value := given["loss_scale"]) is not None:
            self.loss_scale = value if value == "dynamic" else float(value)
        low = self.cast_model_type in (torch.float16, torch.bfloat16)
        if self.master_weights and not low:
            raise RuntimeError("master_weights=True needs a cast_model_type of 16 bits")


class LossScaler:
    """The scale of a loss: a number, or "dynamic", by apex's rule. It starts at 2¹⁶, is halved by a step whose gradients are not
    finite, and doubled after 2000 steps in a row without."""

    def __init__(
        self,
        loss_scale: Union[float, str],
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
        min_loss_scale: Optional[float] = None,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        self.dynamic = loss_scale == "dynamic"
        self._loss_scale: float = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._min_loss_scale, self._max_loss_scale = min_loss_scale, max_loss_scale
        self._scale_seq_len, self._scale_factor = scale_window, scale_factor
        self._unskipped = 0
        self._has_overflow = False

    def loss_scale(self) -> float:
        return self._loss_scale

    def clear_overflow_state(self) -> None:
        self._has_overflow = False

    def update_scale(self) -> bool:
        """Moves the scale by what the last gradients were; true if their step is to be left out. A scale that is a number stays,
        and no step is left out."""
        skip = self._has_overflow and self.dynamic
        if skip:
            lower = self._loss_scale / self._scale_factor
            self._loss_scale = lower if self._min_loss_scale is None else max(self._min_loss_scale, lower)
            self._unskipped = 0
        else:
            self._unskipped += 1
        if self._unskipped == self._scale_seq_len and self.dynamic:
            self._loss_scale = min(self._max_loss_scale, self._loss_scale * self._scale_factor)
            self._unskipped = 0
        return skip


class Stash:
    """What an optimizer keeps for `scale_loss`."""

    def __init__(self) -> None:
        #: True if gradients are of the loss times its scale, because `delay_unscale` asked so.
        self.scaled = False
        #: True if the next step will be left out.
        self.skips = False
        self._aside: dict[torch.nn.Parameter, torch.Tensor] = {}

    def set_aside(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes gradients away that are not scaled: those of the backward pass to come are."""
        self._aside = {}
        if not self.scaled:
            for p in _parameters(optimizer):
                if p.grad is not None:
                    self._aside[p], p.grad = p.grad, None

    def unscale(self, optimizer: torch.optim.Optimizer, scaler: LossScaler) -> None:
        """Divides gradients by the scale, and adds those that were set aside."""
        with torch.no_grad():
            factor = 1.0 / scaler.loss_scale()
            for p in _parameters(optimizer):
                if p.grad is not None and p.grad.is_sparse:
                    p.grad = p.grad.coalesce()
            fresh = [p.grad for p in _parameters(optimizer) if p.grad is not None]
            for dense in _by_dtype(fresh):
                if factor != 1.0:
                    torch._foreach_mul_(dense, factor)
                if not scaler._has_overflow:
                    scaler._has_overflow = not all(bool(torch.isfinite(g).all()) for g in dense)
            for p, before in self._aside.items():
                if p.grad is None:
                    p.grad = before
                else:
                    p.grad.add_(before)
        self._aside, self.scaled = {}, False


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _by_dtype(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for t in tensors:
        kinds.setdefault(t.dtype, []).append(t._values() if t.is_sparse else t)
    return list(kinds.values())


@dataclasses.dataclass
class AmpState:
    """apex's `_amp_state`."""

    properties: Optional[Properties] = None
    loss_scalers: list[LossScaler] = dataclasses.field(default_factory=list)
    verbosity: int = 1
    #: False inside of `disable_casts`.
    casts: bool = True
    #: Functions that were put on lists: where they are, their names, and what they were.
    patched: list[tuple[Any, str, Callable[..., Any]]] = dataclasses.field(default_factory=list)

    @property
    def opt_properties(self) -> Optional[Properties]:
        return self.properties


_amp_state = AmpState()


def say(text: str) -> None:
    if _amp_state.verbosity > 0:
        print(text, flush=True)
