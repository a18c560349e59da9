"""`apex.amp` on Headwater: a model is compiled in place, its parameters stay f32 and are their own masters.

The rules are those of NVIDIA apex up to May 2025, when `apex.amp` was removed from it: levels and their settings, loss scales,
skipped steps, checkpoints. O1 and O2 are casts in the plans; what plans cannot take runs in eager mode under the same policy, which
is said once."""

import contextlib
import functools
from collections import OrderedDict
from typing import Any, Callable, Iterator, Optional, Union

import torch

from headwater import precision
from headwater.apex.state import AmpState, LossScaler, Properties, Stash, _amp_state, say

__all__ = [
    "disable_casts",
    "float_function",
    "half_function",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]


def initialize(
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Optional[torch.dtype] = None,
    patch_torch_functions: Optional[bool] = None,
    keep_batchnorm_fp32: Union[None, bool, str] = None,
    master_weights: Optional[bool] = None,
    loss_scale: Union[None, float, str] = None,
    cast_model_outputs: Optional[torch.dtype] = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: Optional[float] = None,
    max_loss_scale: float = 2.0**24,
    combine_grad: Optional[bool] = None,
    combine_ddp: Optional[bool] = None,
    ddp_replica_count: int = 4,
    check_combined_tensors: Optional[bool] = None,
    user_cast_preferred: Optional[bool] = None,
    dtype: torch.dtype = torch.float16,
) -> Any:
    """Prepares models and optimizers for mixed precision, in place, and returns them: lists where lists were given, the models
    alone without optimizers.

    At O1 and O2 models are compiled by `torch.compile`'s backend "headwater" with f32 parameters; O2 casts each of them once in
    a run. At O3, and at O2 without master weights, parameters themselves are cast. Results are f32. Outside of models,
    torch's functions compute in what they are given. `dtype` is O1's low precision. The arguments of Ascend's apex that
    concern combined tensors change no number and are ignored.

    Raises `RuntimeError` for combinations that apex refuses, and for what is not a float32 model."""
    _amp_state.verbosity = verbosity
    if not enabled:
        _amp_state.properties = Properties(enabled=False)
        return models if optimizers is None else (models, optimizers)
    properties = Properties.of(opt_level, dtype)
    properties.override(
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    say(f"Selected optimization level {opt_level}: {properties.summary}")
    say("\n".join(["Settings:", *(f"{name:22} : {value}" for name, value in properties.shown())]))
    all_models = list(models) if isinstance(models, (list, tuple)) else [models]
    all_optimizers = [] if optimizers is None else list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    for model in all_models:
        _check_model(model, properties)
    for optimizer in all_optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise RuntimeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer")
        if hasattr(optimizer, "_amp_stash"):
            raise RuntimeError("A given optimizer should only be passed through amp.initialize once.")
    _amp_state.properties = properties
    for model in all_models:
        _prepare(model, properties, cast_model_outputs)
    for optimizer in all_optimizers:
        optimizer._amp_stash = Stash()  # type: ignore[attr-defined]
        # State of a checkpoint takes the dtype that parameters have now.
        if optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())
    _amp_state.loss_scalers = [
        LossScaler(properties.loss_scale, min_loss_scale=min_loss_scale, max_loss_scale=max_loss_scale) for _ in range(num_losses)
    ]
    if properties.patch_torch_functions:
        _patch_registered()
    same = lambda given, all: all if isinstance(given, (list, tuple)) else all[0]  # noqa: E731
    if optimizers is None:
        return same(models, all_models)
    return same(models, all_models), same(optimizers, all_optimizers)


def _check_model(model: Any, properties: Properties) -> None:
    if not isinstance(model, torch.nn.Module):
        raise RuntimeError(f"amp.initialize takes modules, not {type(model).__name__}")
    if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
        raise RuntimeError(
            f"the model is in a {type(model).__name__}: wrap it after amp.initialize has returned it"
        )
    if properties.opt_level == "O0":
        return
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.dtype is not torch.float32:
            raise RuntimeError(f"the parameter {name} is of {p.dtype}: amp.initialize takes models of float32")


def _prepare(model: torch.nn.Module, properties: Properties, cast_model_outputs: Optional[torch.dtype]) -> None:
    """Compiles a model in place, or casts it."""
    if properties.patch_torch_functions or properties.master_weights:
        amp: dict[str, Any] = {"dtype": properties.low}
        if properties.patch_torch_functions:
            amp["level"] = "O1"
            # Losses outside compute in what they are given, where apex's patches cast it to f32.
            cast_model_outputs = cast_model_outputs or torch.float32
        else:
            amp |= {"level": "O2", "keep_batchnorm": bool(properties.keep_batchnorm_fp32)}
        model.compile(backend="headwater", options={"amp": amp})
    elif properties.cast_model_type not in (None, torch.float32):
        low = properties.low
        _to_low(model, low, bool(properties.keep_batchnorm_fp32))

        def cast_inputs(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            return _applied(args, low), _applied(kwargs, low)

        model.register_forward_pre_hook(cast_inputs, with_kwargs=True)
        if cast_model_outputs is None:
            cast_model_outputs = torch.float32
        model.compile(backend="headwater")
    elif properties.cast_model_type is torch.float32:
        model.to(torch.float32)
    if cast_model_outputs is not None:
        to = cast_model_outputs
        model.register_forward_hook(lambda module, args, output: _applied(output, to))


def _to_low(model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm: bool) -> None:
    kept = [m for m in model.modules() if keep_batchnorm and isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    model.to(dtype)
    for module in kept:
        module.float()


def _applied(value: Any, dtype: torch.dtype) -> Any:
    """Floats among arguments or results in another dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if hasattr(value, "_fields"):
        return type(value)(*(_applied(v, dtype) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_applied(v, dtype) for v in value)
    if isinstance(value, dict):
        # Results of transformers' models are dicts of their own types.
        changed = {key: _applied(v, dtype) for key, v in value.items()}
        return changed if type(value) is dict else type(value)(**changed)
    return value


@contextlib.contextmanager
def scale_loss(
    loss: Any,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Any]:
    """Gives the loss times its scale, whose backward pass is to run inside. On leaving, gradients of the optimizers' parameters
    are divided by the scale; if one is not finite, the scale is halved and the next step of these optimizers is left out.

    `delay_unscale`: gradients stay scaled, to add up with those of further batches. Gradients that were there before, and are
    not scaled, are added to those of this backward pass."""
    properties = _amp_state.properties
    if properties is None:
        raise RuntimeError("amp.scale_loss before amp.initialize")
    if not properties.enabled:
        yield loss
        return
    scaler = _amp_state.loss_scalers[loss_id]
    given = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    for optimizer in given:
        if not hasattr(optimizer, "_amp_stash"):
            raise RuntimeError("amp.scale_loss: this optimizer was not given to amp.initialize")
    scale = scaler.loss_scale()
    if not properties.master_weights and not scaler.dynamic and scale == 1.0:
        yield loss.float()
        return
    if not delay_unscale:
        for optimizer in given:
            optimizer._amp_stash.set_aside(optimizer)
    yield loss.float() * scale
    if delay_unscale:
        for optimizer in given:
            optimizer._amp_stash.scaled = True
        return
    scaler.clear_overflow_state()
    for optimizer in given:
        optimizer._amp_stash.unscale(optimizer, scaler)
    if not delay_overflow_check and scaler.update_scale():
        for optimizer in given:
            _skip_next(optimizer, scaler, loss_id)


def _skip_next(optimizer: torch.optim.Optimizer, scaler: LossScaler, loss_id: int) -> None:
    """Leaves out the optimizer's next step."""
    stash = optimizer._amp_stash  # type: ignore[attr-defined]
    if stash.skips:
        return
    own = optimizer.__dict__.get("step")
    stash.skips = True

    def skip(closure: Any = None) -> None:
        if closure is not None:
            raise RuntimeError("Currently, Amp does not support closure use with optimizers.")
        say(f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scaler.loss_scale()}")
        stash.skips = False
        # Schedulers look at this, to warn those who never step.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        if own is None:
            del optimizer.step
        else:
            optimizer.step = own  # type: ignore[method-assign]

    optimizer.step = skip  # type: ignore[method-assign, assignment]


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    """The parameters that the optimizer steps: the f32 masters, which are the model's own."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: Any = None) -> dict[str, dict[str, Any]]:
    """Scale, and steps without overflow, of each loss scaler: `{"loss_scaler0": {"loss_scale": …, "unskipped": …}}`."""
    found = OrderedDict() if destination is None else destination
    for i, scaler in enumerate(_amp_state.loss_scalers):
        found[f"loss_scaler{i}"] = {"loss_scale": scaler.loss_scale(), "unskipped": scaler._unskipped}
    return found


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Takes the scales of a `state_dict`; call it after `initialize`."""
    scalers = {f"loss_scaler{i}": scaler for i, scaler in enumerate(_amp_state.loss_scalers)}
    if len(state_dict) != len(scalers):
        say(f"Warning: state_dict contains {len(state_dict)} entries, while {len(scalers)} loss_scalers are used")
    unexpected = [key for key in state_dict if "loss_scaler" not in key]
    for key, saved in state_dict.items():
        if key in scalers:
            scalers[key]._loss_scale = saved["loss_scale"]
            scalers[key]._unskipped = saved["unskipped"]
        elif key not in unexpected:
            say(f"Skipping loss_scaler {key}, since num_losses was set to {len(scalers)}")
    if unexpected:
        raise RuntimeError(f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {', '.join(unexpected)}.")


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Inside, models and registered functions compute in f32, in eager mode."""
    before, _amp_state.casts = _amp_state.casts, False
    try:
        with precision.plain():
            yield
    finally:
        _amp_state.casts = before


# Functions that the user puts on O1's lists.


def _caster(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        properties = _amp_state.properties
        if properties is None or not properties.patch_torch_functions or not _amp_state.casts:
            return function(*args, **kwargs)
        if kind == "half":
            to = properties.low
        elif kind == "float":
            to = torch.float32
        else:
            floats = [v.dtype for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.is_floating_point()]
            if len(set(floats)) < 2:
                return function(*args, **kwargs)
            to = functools.reduce(torch.promote_types, floats)
        return function(*_applied(args, to), **_applied(kwargs, to))

    return call


def half_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: at O1 the function gets its floats in low precision."""
    return _caster(function, "half")


def float_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: at O1 the function gets its floats in f32."""
    return _caster(function, "float")


def promote_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: at O1 the function gets its floats in the widest dtype among them."""
    return _caster(function, "promote")


def register_half_function(module: Any, function_name: str) -> None:
    """At O1 `module.function_name` gets its floats in low precision; call it before `initialize`."""
    _register(module, function_name, "half")


def register_float_function(module: Any, function_name: str) -> None:
    """At O1 `module.function_name` gets its floats in f32; call it before `initialize`."""
    _register(module, function_name, "float")


def register_promote_function(module: Any, function_name: str) -> None:
    """At O1 `module.function_name` gets its floats in the widest dtype among them; call it before `initialize`."""
    _register(module, function_name, "promote")


#: What was registered, and not yet patched.
_REGISTERED: list[tuple[Any, str, str]] = []


def _register(module: Any, name: str, kind: str) -> None:
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}.")
    if module is torch.Tensor:
        # TorchDynamo calls methods of tensors by themselves: a patch would be lost without a word.
        raise ValueError(f"{name} is a method of torch.Tensor: register the function of torch or torch.nn.functional")
    if (module, name, kind) not in _REGISTERED:
        _REGISTERED.append((module, name, kind))


def _patch_registered() -> None:
    while _REGISTERED:
        module, name, kind = _REGISTERED.pop(0)
        _amp_state.patched.append((module, name, getattr(module, name)))
        setattr(module, name, _caster(getattr(module, name), kind))


def _reset() -> None:
    """Forgets all: functions are as they were before."""
    for module, name, function in reversed(_amp_state.patched):
        setattr(module, name, function)
    _REGISTERED.clear()
    fresh = AmpState()
    _amp_state.__dict__.update(fresh.__dict__)

