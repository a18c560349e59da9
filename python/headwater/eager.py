"""The first step in PyTorch's eager mode, to compare with, leaving no trace in the model."""

import contextlib
import inspect
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

#: Functions that take the rate `p` and whether they are in training.
DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
}
#: The same in C++: `(input, p, train)`.
NATIVE_DROPOUTS = {
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.alpha_dropout_,
    torch.feature_dropout,
    torch.feature_dropout_,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
}
RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}


class WithoutDropout(TorchFunctionMode):
    """No dropout, of attention and recurrent layers too; all else as it is in training."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = list(args), dict(kwargs or {})
        if func in DROPOUTS:
            return self._call(func, args, kwargs, p=0.0)
        if func in NATIVE_DROPOUTS:
            args[1] = 0.0
        elif func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args[4] = 0.0
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        elif func is F.multi_head_attention_forward:
            return self._call(func, args, kwargs, dropout_p=0.0)
        elif func in RECURRENT:
            # (input, hx, params, bias, layers, dropout, …), or with the sizes of packed batches after the input.
            at = 6 if isinstance(args[1], torch.Tensor) and isinstance(args[3], (list, tuple)) else 5
            args[at] = 0.0
        return func(*args, **kwargs)

    @staticmethod
    def _call(func: Any, args: list[Any], kwargs: dict[str, Any], **changed: Any) -> Any:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.arguments.update(changed)
        return func(*bound.args, **bound.kwargs)


@contextlib.contextmanager
def traceless(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Puts back what runs of these modules change: buffers, attributes (lists, dicts and sets among them one level deep), and
    torch's generator."""
    own = [module for root in modules for module in root.modules()]
    attributes = [(m, dict(m.__dict__)) for m in own]
    containers = [(v, v.copy()) for m in own for v in m.__dict__.values() if isinstance(v, (list, dict, set))]
    buffers = [(b, b.detach().clone()) for root in modules for b in root.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for container, before in containers:
                container.clear()
                container.extend(before) if isinstance(container, list) else container.update(before)
            for module, before in attributes:
                module.__dict__.clear()
                module.__dict__.update(before)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def gradients(
    loss_of: Callable[..., Any],
    modules: Sequence[torch.nn.Module],
    parameters: dict[str, torch.nn.Parameter],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[float, dict[str, Optional[torch.Tensor]]]:
    """The loss of a batch and its gradient for each parameter, `None` where the loss does not depend on it."""
    with traceless(modules), torch.enable_grad(), WithoutDropout():
        loss = loss_of(*args, **kwargs)
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            return float(loss), {name: None for name in parameters}
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return float(loss.detach()), dict(zip(parameters, found))
