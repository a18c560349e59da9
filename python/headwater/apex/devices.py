"""Names of missing devices, read as the CPU: for scripts that say `.npu()` or `device="cuda:0"`.

Only on request, and printed: who compares an NPU with a CPU must not compare the CPU with itself."""

import sys
import types
from typing import Any, Callable, Sequence

import torch
from torch.overrides import TorchFunctionMode

#: Names that are read as the CPU.
_NAMES: list[str] = []

KNOWN = ("npu", "cuda")


def as_cpu(devices: Sequence[str]) -> None:
    """From now on these names mean the CPU, in `.npu()`, `.cuda()`, `.to("npu:0")`, `device=`, `torch.npu`, `torch.cuda` and process
    groups of `hccl` and `nccl`, which are gloo's. `torch.npu.is_available()` is true; `torch.cuda.is_available()` stays false.

    Raises `ValueError` for other names."""
    for name in devices:
        if name not in KNOWN:
            raise ValueError(f"devices: {name!r} is none of {', '.join(KNOWN)}")
    fresh = [name for name in devices if name not in _NAMES]
    if not fresh:
        return
    first = not _NAMES
    _NAMES.extend(fresh)
    print(f"headwater.apex: the device name{'s' * (len(_NAMES) > 1)} {', '.join(_NAMES)} mean{'s' * (len(_NAMES) == 1)} the CPU", flush=True)
    if "npu" in fresh:
        _npu()
    if "cuda" in fresh:
        _cuda()
    if first:
        _groups()
        _AsCpu().__enter__()


def _cpu(value: Any) -> Any:
    """A device by another name as the CPU; other values as they are."""
    if isinstance(value, str) and value.split(":")[0] in _NAMES:
        return "cpu"
    if isinstance(value, torch.device) and value.type in _NAMES:
        return torch.device("cpu")
    return value


class _AsCpu(TorchFunctionMode):
    """Reads the names in arguments of torch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _number(_cpu(kwargs["device"]))}
        if func is torch.Tensor.to or func is torch.Tensor.type or func is torch.load:
            args = tuple(_cpu(a) for a in args)
        return func(*args, **kwargs)


def _number(device: Any) -> Any:
    """A number alone is a device of the accelerator's."""
    return "cpu" if isinstance(device, int) and not isinstance(device, bool) else device


def _same(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self


def _module_to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    kwargs = {key: _number(_cpu(v)) if key == "device" else v for key, v in kwargs.items()}
    args = tuple(_number(_cpu(a)) if i == 0 else a for i, a in enumerate(args))
    return _MODULE_TO(self, *args, **kwargs)  # type: ignore[no-any-return]


_MODULE_TO: Callable[..., Any] = torch.nn.Module.to
_LOAD: Callable[..., Any] = torch.load


def _load(*args: Any, **kwargs: Any) -> Any:
    if "map_location" in kwargs and not callable(kwargs["map_location"]):
        kwargs["map_location"] = _number(_cpu(kwargs["map_location"]))
    return _LOAD(*args, **kwargs)


class Event:
    """`torch.npu.Event` and `torch.cuda.Event`: a time of the CPU's clock, in ms."""

    def __init__(self, enable_timing: bool = False, **kwargs: Any) -> None:
        self._time = 0.0

    def record(self, stream: Any = None) -> None:
        import time

        self._time = time.perf_counter()

    def elapsed_time(self, end: "Event") -> float:
        return (end._time - self._time) * 1e3

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True


class _Device:
    """`torch.npu.device(…)`: nothing changes inside."""

    def __init__(self, device: Any = None) -> None:
        pass

    def __enter__(self) -> "_Device":
        return self

    def __exit__(self, *args: Any) -> None:
        pass


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


#: Calls of torch.npu and torch.cuda that scripts make, where there is one device, the CPU.
_CALLS: dict[str, Any] = {
    "Event": Event,
    "current_device": lambda: 0,
    "device": _Device,
    "device_count": lambda: 1,
    "empty_cache": _nothing,
    "get_device_name": lambda device=None: "CPU",
    "init": _nothing,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "manual_seed": _nothing,
    "manual_seed_all": _nothing,
    "max_memory_allocated": lambda device=None: 0,
    "max_memory_reserved": lambda device=None: 0,
    "memory_allocated": lambda device=None: 0,
    "memory_reserved": lambda device=None: 0,
    "reset_peak_memory_stats": _nothing,
    "set_device": _nothing,
    "synchronize": _nothing,
}

#: What scripts for NPUs set, which is about their compiler.
_NPU_ONLY: dict[str, Any] = {
    "finalize_dump": _nothing,
    "global_step_inc": _nothing,
    "init_dump": _nothing,
    "set_aoe": _nothing,
    "set_compile_mode": _nothing,
    "set_dump": _nothing,
    "set_option": _nothing,
}


class _Npu(types.ModuleType):
    """`torch.npu` on the CPU."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.npu.{name}: headwater.apex has {', '.join(sorted({**_CALLS, **_NPU_ONLY}))}, and not this")


def _npu() -> None:
    # The only one of torch's ways that dynamo lives with: it asks every backend for its streams.
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend("npu")
    npu = _Npu("torch.npu")
    npu.__spec__ = None
    own = torch.npu if hasattr(torch, "npu") else None
    for name, call in {**_CALLS, **_NPU_ONLY}.items():
        setattr(npu, name, call)
    # What torch itself asks the backend for.
    for name in dir(own):
        if not name.startswith("__") and name not in npu.__dict__:
            setattr(npu, name, getattr(own, name))
    npu.amp = torch.amp  # type: ignore[attr-defined]
    torch.npu = npu  # type: ignore[attr-defined]
    torch_npu = types.ModuleType("torch_npu")
    torch_npu.npu = npu  # type: ignore[attr-defined]
    torch_npu.__spec__ = None
    for name, module in (("torch.npu", npu), ("torch_npu", torch_npu), ("torch_npu.npu", npu)):
        from importlib.machinery import ModuleSpec

        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module
    torch.Tensor.npu = _same  # type: ignore[attr-defined]
    torch.nn.Module.npu = _same  # type: ignore[attr-defined]
    _moves()


def _cuda() -> None:
    # Not `is_available`: PyTorch itself asks it, and would go on to call the driver.
    for name in _CALLS.keys() - {"device_count", "init", "is_available", "is_initialized"}:
        call = _CALLS[name]
        if isinstance(call, types.FunctionType):
            # Each by itself: TorchDynamo has a rule for each of torch's functions.
            call = types.FunctionType(call.__code__, call.__globals__, name, call.__defaults__, call.__closure__)
        setattr(torch.cuda, name, call)
    torch.Tensor.cuda = _same  # type: ignore[method-assign, assignment]
    torch.nn.Module.cuda = _same  # type: ignore[method-assign, assignment]
    _moves()


def _moves() -> None:
    torch.nn.Module.to = _module_to  # type: ignore[method-assign, assignment]
    torch.load = _load


def _groups() -> None:
    """Process groups of the devices' libraries are gloo's, said once."""
    if not torch.distributed.is_available():
        return
    init = torch.distributed.init_process_group
    said: list[str] = []

    def on_gloo(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend in ("hccl", "nccl"):
            if backend not in said:
                said.append(backend)
                print(f"headwater.apex: {backend} is gloo", flush=True)
            backend = "gloo"
        return init(backend, *args, **kwargs)

    torch.distributed.init_process_group = on_gloo
