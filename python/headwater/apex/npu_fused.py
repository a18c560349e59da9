"""The optimizers of Ascend's apex, as `torch.optim.Optimizer`s: see `optimizers`."""

import math
from typing import Any

import torch

from headwater.apex.fused import Fused, FusedAdam, FusedSGD, Tensors


class NpuFusedSGD(FusedSGD):
    """SGD of Ascend's apex: PyTorch's."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, max_grad_norm=max_grad_norm)


class NpuFusedAdam(FusedAdam):
    """Adam of Ascend's apex: PyTorch's, with L2 decay."""

    _DECOUPLED = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            adam_w_mode=self._DECOUPLED,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            max_grad_norm=max_grad_norm,
        )


class NpuFusedAdamW(NpuFusedAdam):
    """AdamW of Ascend's apex: PyTorch's."""

    _DECOUPLED = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, max_grad_norm)


class NpuFusedLamb(Fused):
    """Lamb of Ascend's apex: without global clipping, and by default without correction of biases; the norm
    of a parameter that scales its rate is at most 10."""

    counts = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
        use_global_grad_norm: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, 1.0 if use_global_grad_norm and not max_grad_norm else max_grad_norm)
        self.adam = adam

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        beta1, beta2 = group["betas"]
        m, v = self._moments(params, "exp_avg", "exp_avg_sq")
        torch._foreach_lerp_(m, grads, 1.0 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, grads, grads, 1.0 - beta2)
        root = torch._foreach_sqrt(v)
        torch._foreach_add_(root, group["eps"])
        steps = list(torch._foreach_div(m, root))
        if group["weight_decay"]:
            torch._foreach_add_(steps, params, alpha=group["weight_decay"])
        if not self.adam:
            norms = zip(torch._foreach_norm(params), torch._foreach_norm(steps))
            limited = ((min(float(p), 10.0), float(s)) for p, s in norms)
            torch._foreach_mul_(steps, [p / s if p > 0.0 and s > 0.0 else 1.0 for p, s in limited])
        torch._foreach_add_(params, steps, alpha=-float(group["lr"]))


class NpuFusedAdadelta(Fused):
    """Adadelta of Ascend's apex: PyTorch's."""

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}, max_grad_norm)

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        squares, deltas = self._moments(params, "square_avg", "acc_delta")
        rho, eps = group["rho"], group["eps"]
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        torch._foreach_mul_(squares, rho)
        torch._foreach_addcmul_(squares, grads, grads, 1.0 - rho)
        steps = torch._foreach_sqrt(torch._foreach_div(torch._foreach_add(deltas, eps), torch._foreach_add(squares, eps)))
        steps = list(torch._foreach_mul(steps, grads))
        torch._foreach_mul_(deltas, rho)
        torch._foreach_addcmul_(deltas, steps, steps, 1.0 - rho)
        torch._foreach_add_(params, steps, alpha=-float(group["lr"]))


class NpuFusedRMSprop(Fused):
    """RMSprop of Ascend's apex: PyTorch's."""

    #: First mean square.
    _FIRST = 0.0

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(params, defaults, max_grad_norm)

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        (squares,) = self._moments(params, "square_avg", fill=self._FIRST)
        alpha, lr = group["alpha"], float(group["lr"])
        grads = self._decayed(group, params, grads)
        torch._foreach_mul_(squares, alpha)
        torch._foreach_addcmul_(squares, grads, grads, 1.0 - alpha)
        variance: Any = squares
        if group["centered"]:
            (means,) = self._moments(params, "grad_avg")
            torch._foreach_lerp_(means, grads, 1.0 - alpha)
            variance = torch._foreach_addcmul(squares, means, means, -1.0)
        roots = self._roots(variance, group["eps"])
        if not group["momentum"]:
            torch._foreach_addcdiv_(params, grads, roots, -lr)
            return
        (buffers,) = self._moments(params, "momentum_buffer")
        inside = lr if group.get("lr_in_momentum") else 1.0
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_addcdiv_(buffers, grads, roots, inside)
        torch._foreach_add_(params, buffers, alpha=-lr / inside)

    def _decayed(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> Tensors:
        if not group["weight_decay"]:
            return grads
        if group.get("decoupled_decay"):
            torch._foreach_mul_(params, 1.0 - float(group["lr"]) * group["weight_decay"])
            return grads
        return list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))

    def _roots(self, variance: Tensors, eps: float) -> Tensors:
        roots = torch._foreach_sqrt(variance)
        torch._foreach_add_(roots, eps)
        return list(roots)


class NpuFusedRMSpropTF(NpuFusedRMSprop):
    """RMSprop as TensorFlow's, with the defaults of `timm.optim.RMSpropTF`: ε under the root, mean squares
    that start at 1, and the rate inside of the momentum."""

    _FIRST = 1.0

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        decoupled_decay: bool = False,
        lr_in_momentum: bool = True,
        max_grad_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered, max_grad_norm)
        for group in self.param_groups:
            group["decoupled_decay"], group["lr_in_momentum"] = decoupled_decay, lr_in_momentum
        self.defaults |= {"decoupled_decay": decoupled_decay, "lr_in_momentum": lr_in_momentum}

    def _roots(self, variance: Tensors, eps: float) -> Tensors:
        return list(torch._foreach_sqrt(torch._foreach_add(variance, eps)))


class NpuFusedBertAdam(Fused):
    """The Adam of BERT's original training: no correction of biases, decay times the rate, each parameter's
    gradient clipped by itself. Schedules: `warmup_linear`, `warmup_constant`, `warmup_cosine` over `t_total`
    steps; −1: a constant rate."""

    counts = True

    def __init__(
        self,
        params: Any,
        lr: float,
        warmup: float = -1.0,
        t_total: int = -1,
        schedule: str = "warmup_linear",
        b1: float = 0.9,
        b2: float = 0.99,
        e: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ) -> None:
        if schedule not in ("warmup_linear", "warmup_constant", "warmup_cosine"):
            raise ValueError(f"Invalid schedule parameter: {schedule}")
        defaults = {
            "lr": lr,
            "schedule": schedule,
            "warmup": warmup,
            "t_total": t_total,
            "b1": b1,
            "b2": b2,
            "e": e,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        done = group["step"] - 1
        m, v = self._moments(params, "exp_avg", "exp_avg_sq")
        if group["max_grad_norm"] > 0.0:
            for p in params:
                torch.nn.utils.clip_grad_norm_(p, group["max_grad_norm"])
        torch._foreach_lerp_(m, grads, 1.0 - group["b1"])
        torch._foreach_mul_(v, group["b2"])
        torch._foreach_addcmul_(v, grads, grads, 1.0 - group["b2"])
        root = torch._foreach_sqrt(v)
        torch._foreach_add_(root, group["e"])
        steps = list(torch._foreach_div(m, root))
        if group["weight_decay"]:
            torch._foreach_add_(steps, params, alpha=group["weight_decay"])
        torch._foreach_add_(params, steps, alpha=-float(group["lr"]) * self._factor(group, done))

    @staticmethod
    def _factor(group: dict[str, Any], done: int) -> float:
        if group["t_total"] < 0:
            return 1.0
        progress, warmup = done / group["t_total"], max(group["warmup"], 0.0)
        if progress < warmup:
            return progress / warmup
        if group["schedule"] == "warmup_constant":
            return 1.0
        if group["schedule"] == "warmup_cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return max((progress - 1.0) / (warmup - 1.0), 0.0)


class NpuFusedAdamP(Fused):
    """AdamP (Heo and others, 2021): where the step is nearly orthogonal to the weights, its part along them
    is taken out."""

    counts = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
        max_grad_norm: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "delta": delta,
            "wd_ratio": wd_ratio,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, max_grad_norm)

    def _group(self, group: dict[str, Any], params: Tensors, grads: Tensors) -> None:
        step = int(group["step"])
        beta1, beta2 = group["betas"]
        lr, eps = float(group["lr"]), group["eps"]
        first, second = 1.0 - beta1**step, 1.0 - beta2**step
        m, v = self._moments(params, "exp_avg", "exp_avg_sq")
        torch._foreach_lerp_(m, grads, 1.0 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, grads, grads, 1.0 - beta2)
        for p, g, moment, square in zip(params, grads, m, v):
            denominator = (square.sqrt() / math.sqrt(second)).add_(eps)
            own = (beta1 * moment + (1.0 - beta1) * g if group["nesterov"] else moment) / denominator
            ratio = 1.0
            if p.dim() > 1:
                own, ratio = self._projected(group, p, g, own)
            if group["weight_decay"]:
                p.mul_(1.0 - lr * group["weight_decay"] * ratio)
            p.add_(own, alpha=-lr / first)

    @staticmethod
    def _projected(group: dict[str, Any], p: torch.Tensor, g: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, float]:
        eps = group["eps"]
        # By channels, then as a whole.
        for rows in (p.shape[0], 1):
            weights, gradient = p.reshape(rows, -1), g.reshape(rows, -1)
            scale = weights.norm(dim=1).add(eps) * gradient.norm(dim=1).add(eps)
            cosine = (weights * gradient).sum(1).abs() / scale
            if float(cosine.max()) < group["delta"] / math.sqrt(weights.shape[1]):
                unit = weights / weights.norm(dim=1, keepdim=True).add(eps)
                flat = own.reshape(rows, -1)
                return (flat - unit * (unit * flat).sum(1, keepdim=True)).reshape(own.shape), group["wd_ratio"]
        return own, 1.0


