"""NVIDIA's fused optimizers, as `torch.optim.Optimizer`s: see `optimizers`."""

import math
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import Optimizer

Tensors = list[torch.Tensor]


class Fused(Optimizer):
    """Base of these optimizers: the protocol of `GradScaler`, clipping, and steps over lists of tensors."""

    #: `GradScaler` then sets `grad_scale` and `found_inf`, and does not unscale itself.
    _step_supports_amp_scaling = True

    #: Largest global norm of the gradients; 0: any.
    max_grad_norm: float = 0.0

    #: True if groups keep the number of their step, from 1, as apex's do.
    counts = False

    def __init__(self, params: Any, defaults: dict[str, Any], max_grad_norm: float = 0.0) -> None:
        super().__init__(params, defaults)
        self.max_grad_norm = max_grad_norm or 0.0

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=set_to_none)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Optional[Callable[[], Any]] = None,
        *,
        grad_scale: Optional[torch.Tensor] = None,
        found_inf: Optional[torch.Tensor] = None,
    ) -> Any:
        """Makes a step. `grad_scale` divides gradients; the step is left out if `found_inf` is not 0."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = getattr(self, "grad_scale", None) if grad_scale is None else grad_scale
        inf = getattr(self, "found_inf", None) if found_inf is None else found_inf
        if inf is not None and bool(inf):
            return loss
        if scale is not None and float(scale) != 1.0 and (own := self._gradients()):
            torch._foreach_mul_(own, 1.0 / float(scale))
        if self.max_grad_norm > 0.0:
            self.clip_optimizer_grad_norm_fused(self.max_grad_norm)
        for group in self.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            for p in members:
                if p.grad.is_sparse:
                    raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            if self.counts:
                group["step"] = group.get("step", 0) + 1
            for dtype in {p.dtype for p in members}:
                own = [p for p in members if p.dtype is dtype]
                self._group(group, own, [p.grad for p in own])
        return loss

    def _gradients(self) -> Tensors:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def clip_optimizer_grad_norm_fused(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales all gradients so that their norm is at most `max_norm`; returns the norm before."""
        own = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(own, max_norm, norm_type)

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        """Steps parameters of one group and dtype."""
        raise NotImplementedError

    def _moments(self, params: Tensors, *names: str, fill: float = 0.0) -> list[Tensors]:
        """State of the size of each parameter, created where missing."""
        found: list[Tensors] = [[] for _ in names]
        for p in params:
            state = self.state[p]
            for name, own in zip(names, found):
                if name not in state:
                    state[name] = torch.full_like(p, fill, memory_format=torch.preserve_format)
                own.append(state[name])
        return found


def _adam(
    group: dict[str, Any], params: Tensors, grads: Tensors, m: Tensors, v: Tensors, step: int, decoupled: bool, corrected: bool
) -> None:
    """Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter, 2019); ε is added after the correction of
    biases."""
    beta1, beta2 = group["betas"]
    if corrected:
        steps = [torch.tensor(float(step))] * len(params)
        kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        kernel(
            params,
            grads,
            m,
            v,
            [],
            steps,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        return
    if group["weight_decay"] and not decoupled:
        grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
    torch._foreach_lerp_(m, grads, 1.0 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, grads, grads, 1.0 - beta2)
    root = torch._foreach_sqrt(v)
    torch._foreach_add_(root, group["eps"])
    if group["weight_decay"] and decoupled:
        torch._foreach_mul_(params, 1.0 - float(group["lr"]) * group["weight_decay"])
    torch._foreach_addcdiv_(params, m, root, -float(group["lr"]))


class FusedAdam(Fused):
    """apex's FusedAdam: AdamW, or with `adam_w_mode=False` Adam with L2 decay. `max_grad_norm` clips the
    global norm first. `capturable` and `master_weights` change no number here."""

    counts = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, max_grad_norm)
        self.adam_w_mode, self.set_grad_none = bool(adam_w_mode), set_grad_none

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        step = int(group["step"])
        m, v = self._moments(params, "exp_avg", "exp_avg_sq")
        _adam(group, params, grads, m, v, step, self.adam_w_mode, bool(group["bias_correction"]))


class FusedSGD(Fused):
    """apex's FusedSGD: PyTorch's SGD. `wd_after_momentum` adds the decay to the step, not to the gradient."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, max_grad_norm)
        self.wd_after_momentum, self.materialize_master_grads = wd_after_momentum, materialize_master_grads

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        momentum, decay, lr = group["momentum"], group["weight_decay"], float(group["lr"])
        if decay and not self.wd_after_momentum:
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        steps = grads
        if momentum:
            fresh = [p for p in params if self.state[p].get("momentum_buffer") is None]
            begun = {id(p) for p in fresh}
            for p, g in zip(params, grads):
                if id(p) in begun:
                    self.state[p]["momentum_buffer"] = g.clone()
            old = [(self.state[p]["momentum_buffer"], g) for p, g in zip(params, grads) if id(p) not in begun]
            if old:
                buffers = [b for b, _ in old]
                torch._foreach_mul_(buffers, momentum)
                torch._foreach_add_(buffers, [g for _, g in old], alpha=1.0 - group["dampening"])
            steps = [self.state[p]["momentum_buffer"] for p in params]
            if group["nesterov"]:
                steps = list(torch._foreach_add(grads, steps, alpha=momentum))
        if decay and self.wd_after_momentum:
            steps = list(torch._foreach_add(steps, params, alpha=decay))
        torch._foreach_add_(params, steps, alpha=-lr)


class FusedAdagrad(Fused):
    """apex's FusedAdagrad (Duchi and others, 2011): ε is added to the root. `adagrad_w_mode` decouples the
    weight decay."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, max_grad_norm)
        self.adagrad_w_mode = bool(adagrad_w_mode)

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        (sums,) = self._moments(params, "sum")
        lr, decay = float(group["lr"]), group["weight_decay"]
        if decay and not self.adagrad_w_mode:
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        torch._foreach_addcmul_(sums, grads, grads)
        root = torch._foreach_sqrt(sums)
        torch._foreach_add_(root, group["eps"])
        if decay and self.adagrad_w_mode:
            torch._foreach_mul_(params, 1.0 - lr * decay)
        torch._foreach_addcdiv_(params, grads, root, -lr)


class FusedLAMB(Fused):
    """apex's FusedLAMB (You and others, 2020): the global norm of the gradients is clipped to
    `max_grad_norm`, and the rate of each parameter that decays, or with `use_nvlamb` of every one, is
    multiplied by its norm over that of its step."""

    counts = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLAMB does not support the AMSGrad variant.")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
        }
        super().__init__(params, defaults, max_grad_norm)
        self.adam_w_mode, self.use_nvlamb = bool(adam_w_mode), use_nvlamb

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        step = int(group["step"])
        beta1, beta2 = group["betas"]
        decay, lr = group["weight_decay"], float(group["lr"])
        m, v = self._moments(params, "exp_avg", "exp_avg_sq")
        if decay and not self.adam_w_mode:
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        torch._foreach_mul_(m, beta1)
        torch._foreach_add_(m, grads, alpha=1.0 - beta1 if group["grad_averaging"] else 1.0)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, grads, grads, 1.0 - beta2)
        first, second = (1.0 - beta1**step, 1.0 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
        root = torch._foreach_sqrt(torch._foreach_div(v, second))
        torch._foreach_add_(root, group["eps"])
        steps = list(torch._foreach_div(torch._foreach_div(m, first), root))
        if decay and self.adam_w_mode:
            torch._foreach_add_(steps, params, alpha=decay)
        if decay or self.use_nvlamb:
            norms = zip(torch._foreach_norm(params), torch._foreach_norm(steps))
            ratios = [float(p / s) if float(p) > 0.0 and float(s) > 0.0 else 1.0 for p, s in norms]
            torch._foreach_mul_(steps, ratios)
        torch._foreach_add_(params, steps, alpha=-lr)


class FusedNovoGrad(Fused):
    """apex's FusedNovoGrad (Ginsburg and others, 2019): the second moment is one norm a parameter, kept in
    `exp_avg_sq` of the group. `norm_type` is 2."""

    counts = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
        max_grad_norm: float = 0.0,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedNovoGrad does not support the AMSGrad variant.")
        if norm_type != 2:
            raise RuntimeError(f"FusedNovoGrad has the norm of type 2 here, not {norm_type}")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults, max_grad_norm)
        self.reg_inside_moment = reg_inside_moment

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        step = int(group["step"])
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        first, second = (1.0 - beta1**step, math.sqrt(1.0 - beta2**step)) if group["bias_correction"] else (1.0, 1.0)
        kept = 1.0 - beta1 if group["grad_averaging"] else 1.0
        (m,) = self._moments(params, "exp_avg")
        for p, g, moment, norm in zip(params, grads, m, torch._foreach_norm(grads)):
            state = self.state[p]
            if "exp_avg_sq" not in state:
                # The root of the second moment, as apex keeps it.
                state["exp_avg_sq"] = torch.zeros_like(norm) if group["init_zero"] else norm.clone()
            state["exp_avg_sq"].copy_((beta2 * state["exp_avg_sq"] ** 2 + (1.0 - beta2) * norm**2).sqrt())
            scale = state["exp_avg_sq"] / second + group["eps"]
            if self.reg_inside_moment:
                moment.mul_(beta1).add_(g / scale + decay * p, alpha=kept)
                own = moment / first
            else:
                moment.mul_(beta1).add_(g, alpha=kept)
                own = moment / first / scale + decay * p
            p.add_(own, alpha=-float(group["lr"]))
