"""`apex.fp16_utils`: models that are cast by hand, and an optimizer with f32 masters for them."""

from typing import Any, Iterable, Optional

import torch

from headwater.apex.amp import _applied, _to_low
from headwater.apex.state import LossScaler

__all__ = [
    "BN_convert_float",
    "FP16Model",
    "FP16_Optimizer",
    "LossScaler",
    "clip_grad_norm",
    "convert_network",
    "master_params_to_model_params",
    "model_grads_to_master_grads",
    "network_to_half",
    "prep_param_lists",
    "to_python_float",
    "tofp16",
]

clip_grad_norm = torch.nn.utils.clip_grad_norm_


def to_python_float(t: Any) -> float:
    """The number in a tensor of one element, or in a list."""
    return float(t.item() if hasattr(t, "item") else t[0])


class tofp16(torch.nn.Module):
    """Casts its input to f16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


def BN_convert_float(module: torch.nn.Module) -> torch.nn.Module:
    """Batch norm of a module back to f32."""
    for m in module.modules():
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.affine:
            m.float()
    return module


def convert_network(network: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A module in another dtype, batch norm with separate weights."""
    _to_low(network, dtype, True)
    return network


def network_to_half(network: torch.nn.Module) -> torch.nn.Module:
    """A module in f16 with its batch norm in f32, and a cast of its input before it."""
    return torch.nn.Sequential(tofp16(), BN_convert_float(network.half()))


class FP16Model(torch.nn.Module):
    """A module in f16 with its batch norm in f32, whose inputs are cast."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, torch.float16)

    def forward(self, *inputs: Any) -> Any:
        return self.network(*_applied(inputs, torch.float16))


def prep_param_lists(model: torch.nn.Module, flat_master: bool = False) -> tuple[list[Any], list[Any]]:
    """A model's trained parameters, and f32 masters of them: one flat one if `flat_master`."""
    own = [p for p in model.parameters() if p.requires_grad]
    if flat_master:
        flat = torch.nn.Parameter(torch.cat([p.detach().float().reshape(-1) for p in own]))
        return own, [flat]
    return own, [torch.nn.Parameter(p.detach().clone().float()) for p in own]


@torch.no_grad()
def model_grads_to_master_grads(model_params: Any, master_params: Any, flat_master: bool = False) -> None:
    """Gives the masters the model's gradients, in f32."""
    if flat_master:
        master_params[0].grad = torch.cat([p.grad.float().reshape(-1) for p in model_params])
        return
    for model, master in zip(model_params, master_params):
        master.grad = None if model.grad is None else model.grad.float()


@torch.no_grad()
def master_params_to_model_params(model_params: Any, master_params: Any, flat_master: bool = False) -> None:
    """Gives the model the masters' values."""
    if flat_master:
        parts = master_params[0].split([p.numel() for p in model_params])
        master_params = [part.reshape(p.shape) for p, part in zip(model_params, parts)]
    for model, master in zip(model_params, master_params):
        model.copy_(master)


class DynamicLossScaler(LossScaler):
    """A loss scale by apex's rule, with the arguments of `dynamic_loss_args`."""

    def __init__(self, init_scale: float = 2.0**32, scale_factor: float = 2.0, scale_window: int = 1000) -> None:
        super().__init__("dynamic", init_scale, scale_factor, scale_window, max_loss_scale=float("inf"))


class FP16_Optimizer:
    """An optimizer whose parameters of 16 bits have f32 masters. `backward(loss)` in place of `loss.backward()`; a step whose
    gradients are not finite is left out, with a dynamic scale."""

    def __init__(
        self,
        init_optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Optional[dict[str, Any]] = None,
        verbose: bool = True,
    ) -> None:
        self.optimizer = init_optimizer
        self.loss_scaler = (
            DynamicLossScaler(**(dynamic_loss_args or {})) if dynamic_loss_scale else LossScaler(static_loss_scale)
        )
        self.verbose, self.overflow, self.first_closure_call_this_step = verbose, False, True
        #: Parameters of the model and what the optimizer steps instead of them.
        self._pairs: list[tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        for group in init_optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                if not p.requires_grad or p.dtype not in (torch.float16, torch.bfloat16):
                    continue
                master = torch.nn.Parameter(p.detach().clone().float())
                group["params"][i] = master
                self._pairs.append((p, master))
                if p in init_optimizer.state:
                    init_optimizer.state[master] = init_optimizer.state.pop(p)
        if init_optimizer.state:
            init_optimizer.load_state_dict(init_optimizer.state_dict())
        #: Gradients of f32 parameters from before the last backward pass.
        self._scaled = False

    @property
    def loss_scale(self) -> float:
        return self.loss_scaler.loss_scale()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def _masters(self) -> Iterable[torch.nn.Parameter]:
        return (p for group in self.optimizer.param_groups for p in group["params"])

    def zero_grad(self, set_grads_to_None: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for p, _ in self._pairs:
            p.grad = None
        self._scaled = False

    def backward(self, loss: torch.Tensor, update_master_grads: bool = True, retain_graph: bool = False) -> None:
        """Runs the backward pass of the loss times its scale. Gradients add up, scaled, until `update_master_grads`."""
        (loss.float() * self.loss_scale).backward(retain_graph=retain_graph)
        self._scaled = True
        if update_master_grads:
            self.update_master_grads()

    @torch.no_grad()
    def update_master_grads(self) -> None:
        """Gives the masters the model's gradients, in f32 and without the scale."""
        for model, master in self._pairs:
            master.grad = None if model.grad is None else model.grad.float()
        grads = [p.grad for p in self._masters() if p.grad is not None]
        if self._scaled:
            torch._foreach_mul_(grads, 1.0 / self.loss_scale)
        self._scaled = False
        self.overflow = not all(bool(torch.isfinite(g).all()) for g in grads)
        self.loss_scaler._has_overflow = self.overflow

    @torch.no_grad()
    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> float:
        """Clips the masters' gradients; −1 after an overflow."""
        if self.overflow:
            return -1
        return float(torch.nn.utils.clip_grad_norm_(list(self._masters()), max_norm, norm_type))

    def step(self, closure: Any = None) -> Any:
        """Steps the masters and copies them to the model."""
        if closure is not None:
            raise RuntimeError("FP16_Optimizer.step takes no closure here")
        before = self.loss_scale
        if self.loss_scaler.update_scale():
            if self.verbose:
                print(f"OVERFLOW! Skipping step. Attempted loss scale: {before}, reducing to {self.loss_scale}", flush=True)
            return None
        done = self.optimizer.step()
        with torch.no_grad():
            for model, master in self._pairs:
                model.copy_(master)
        return done

    def inspect_master_grad_data(self) -> Optional[list[Any]]:
        if self.overflow:
            return None
        return [[p.grad for p in group["params"]] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        scaler = self.loss_scaler
        return {
            "loss_scaler": {"loss_scale": scaler._loss_scale, "unskipped": scaler._unskipped, "dynamic": scaler.dynamic},
            "overflow": self.overflow,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": [master.detach().clone() for _, master in self._pairs],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["loss_scaler"]
        self.loss_scaler._loss_scale, self.loss_scaler._unskipped = saved["loss_scale"], saved["unskipped"]
        self.overflow = state_dict["overflow"]
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        for (model, master), kept in zip(self._pairs, state_dict["fp32_from_fp16"]):
            master.copy_(kept)
            model.copy_(kept)
