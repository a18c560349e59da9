"""Dropout as the identity and random masks as their means: two programs that draw different random numbers cannot be compared, so
that what is recorded is the model without them. Everything else is in training mode, batch norm's statistics too.
"""

import inspect

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .masks import Means

# Functions that return their input when nothing is dropped.
IDENTITY = {
    getattr(module, name)
    for module in (F, torch)
    for name in (
        "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "feature_dropout_", "alpha_dropout",
        "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_",
    )
    if hasattr(module, name)
}  # fmt: skip
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
RATES = ("dropout_p", "dropout")


class WithoutDropout(TorchFunctionMode):
    """While it is entered, every dropout of a module is the identity, and every random mask its mean. `count` says how many calls
    of dropout that changed."""

    def __init__(self):
        super().__init__()
        self.count, self.means = 0, Means()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in IDENTITY:
            rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
            self.count += bool(rate and training)
            return kwargs.get("input", args[0] if args else None)
        if func is torch.native_dropout:
            self.count += bool(args[1])
            return args[0], torch.ones_like(args[0], dtype=torch.bool)
        if func is F.scaled_dot_product_attention:
            args = self.zero(args, kwargs, 4)
        elif func is F.multi_head_attention_forward:
            args = self.zero(args, kwargs, list(inspect.signature(func).parameters).index("dropout_p"))
        elif getattr(func, "__name__", "") in RECURRENT:
            packed = torch.is_tensor(args[1]) and not args[1].is_floating_point()
            args = self.zero(args, kwargs, 6 if packed else 5)
        else:
            found = self.means.call(func, getattr(func, "__name__", ""), args, kwargs)
            if found is not NotImplemented:
                return found
        return func(*args, **kwargs)

    def zero(self, args, kwargs, position):
        """Sets the rate, which is given by its name or at `position`, to 0."""
        name = next((n for n in RATES if n in kwargs), None)
        if name is None and len(args) <= position:
            return args
        self.count += bool(kwargs[name] if name else args[position])
        if name:
            kwargs[name] = 0.0
            return args
        return (*args[:position], 0.0, *args[position + 1 :])


def silenced(target, args, kwargs):
    """A call of an exported graph with its dropout's rate at 0: the arguments, and whether that changed them."""
    schema = getattr(target, "_schema", None)
    names = [a.name for a in schema.arguments] if schema else []
    own = ("p",) if schema and "dropout" in schema.name else ()
    given = {**dict(zip(names, args)), **kwargs}
    rate = next((n for n in (*own, *RATES) if isinstance(given.get(n), (int, float)) and given[n]), None)
    if rate is None or given.get("train") is False:
        return args, kwargs, False
    for name, value in ((rate, 0.0), ("train", False)):
        if name in names and names.index(name) < len(args):
            args = (*args[: names.index(name)], value, *args[names.index(name) + 1 :])
        elif name in names:
            kwargs = {**kwargs, name: value}
    return args, kwargs, True
