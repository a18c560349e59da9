"""Random masks as their means, as dropout is the identity: stochastic depth multiplies a branch by a mask of mean 1.

A mask is drawn by `bernoulli`, or from uniform numbers by a comparison with a number or by `floor(p + u)`. Its mean is its
probability, which takes the mask's place in products, in `where` and in `masked_fill`. Whatever else depends on random numbers,
such as an order sorted by them, has no mean that a model could be computed with, and is refused by name.

A product with a mask counts it once: the square of a mask of 0 and 1 is the mask. Other functions of what is masked are those of
the mean, as for dropout.

`crates/core/src/pass/masks/` does the same with a graph; both must know the same operators.
"""

import math
import operator
from dataclasses import dataclass, field, replace

import torch
from torch.utils.weak import WeakIdKeyDictionary

COMPARISONS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}
# Names of functions and methods of Python, where they are not ATen's.
SPELLED = {
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "not_equal": "ne", "invert": "bitwise_not",
    "multiply": "mul", "divide": "div", "true_divide": "div", "truediv": "div", "rtruediv": "rdiv", "subtract": "sub", "negative": "neg",
    "radd": "add", "rmul": "mul", "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "_to_copy": "to",
}  # fmt: skip
CASTS = {"to", "type_as", "float", "double", "half", "bfloat16", "bool", "type", "int", "long"}
# What gives a tensor of the same numbers, elsewhere or in another shape.
SAME = {
    "clone", "detach", "contiguous", "alias", "view", "reshape", "expand", "expand_as", "view_as", "reshape_as", "unsqueeze", "squeeze",
    "flatten", "unflatten",
}  # fmt: skip
# Of these, what keeps places, counted from the last dimension, though not the shape.
NOT_MOVED = {"expand", "expand_as"}
# What asks a tensor for anything but its numbers.
FACTS = {"get", "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "element_size", "ndimension", "len", "repr", "hash"}
FACTS |= {"nelement", "storage_offset", "is_contiguous", "sym_size", "sym_numel", "sym_stride", "get_device", "data_ptr", "_assert_tensor_metadata"}
# What takes a second tensor for its type or shape alone.
LIKE = {"to", "type_as", "expand_as", "view_as", "reshape_as"}
DRAWS = {"rand", "rand_like", "uniform", "uniform_", "bernoulli", "bernoulli_"}
OTHERS = {
    "randn", "randn_like", "normal", "normal_", "randint", "randint_like", "randperm", "multinomial", "poisson", "exponential_", "random_",
    "log_normal_", "cauchy_", "geometric_", "rrelu", "rrelu_", "binomial",
}  # fmt: skip


@dataclass
class Drawn:
    """What is known of a tensor that is `shift + scale · v`, where v is uniform in [0, 1), or 1 with probability `mean`, else 0."""

    by: str  # the function that drew v
    uniform: bool
    mean: float = None  # None: probabilities that are a tensor
    scale: float = 1.0
    shift: float = 0.0
    root: object = field(default_factory=object)  # the draw
    # What the elements are, place by place from the last dimension: two of one event are equal, others of one root are not independent.
    event: object = field(default_factory=object)

    def compared(self, holds):
        """The probability that a comparison with a number holds; None where it is not known."""
        if self.uniform or self.mean is None:
            return None
        return self.mean * holds(self.shift + self.scale) + (1 - self.mean) * holds(self.shift)

    def below(self, number):
        """The probability that it is below a number, of a uniform number."""
        if not self.scale:
            return None
        at = min(max((number - self.shift) / self.scale, 0.0), 1.0)
        return at if self.scale > 0 else 1 - at


def plain(name):
    """A function's name as ATen has it, and whether it writes to its first argument."""
    dunder = name.startswith("__") and name.endswith("__")
    name = name.strip("_") if dunder else name
    name = SPELLED.get(name, name)
    return (name[:-1], True) if name.endswith("_") else (SPELLED.get(name, name), False)


class Means:
    """Follows random numbers from call to call. `count` masks have been replaced; `others` names what else was drawn."""

    def __init__(self):
        self.drawn, self.count, self.others = WeakIdKeyDictionary(), 0, []
        # Masks that tensors are products with, by their draw; the event is None where it is not known.
        self.factors = WeakIdKeyDictionary()

    def call(self, func, name, args, kwargs, where=""):
        """The result of a call that draws a mask or computes with one; NotImplemented for every other call."""
        base, writes = plain(name)
        tensors = [a for a in (*args, *kwargs.values()) if torch.is_tensor(a)]
        tensors = tensors[:1] if base in LIKE else tensors
        known = [self.drawn[t] for t in tensors if t in self.drawn] if len(self.drawn) else []
        if name in DRAWS:
            return self.draw(base, writes, args, kwargs, where)
        if name in OTHERS:
            self.others.append(f"`{name}`{where}")
        if base in FACTS or not known and not any(t in self.factors for t in tensors):
            return NotImplemented
        found, factors = self.product(func, base, args, kwargs)
        if found is NotImplemented and known:
            found = self.follow(func, base, args, kwargs)
        if found is None or found is NotImplemented and any(self.unknown(t) for t in tensors):
            raise ValueError(refusal(f"{known[0].by}, read by `{name}`{where}"))
        if found is not NotImplemented and writes and found is not args[0]:
            known = self.drawn.get(found)
            args[0].copy_(found)
            found = args[0]
            self.drawn.pop(found, None)
            if known:
                self.drawn[found] = known
        elif found is NotImplemented and writes:
            self.drawn.pop(args[0], None)  # what is computed from a mask's mean is no mask
        if writes:
            self.factors.pop(args[0], None)
        if factors:
            found = func(*args, **kwargs) if found is NotImplemented else found
            kept = base in NOT_MOVED or found.shape == args[0].shape or base == "mul"
            self.factors[found] = factors if kept else dict.fromkeys(factors)
        return found

    def product(self, func, name, args, kwargs):
        """Keeps account of masks in products: the masks of the result, and the result where a factor has a mask already, which
        then counts as what it is where that is not 0; NotImplemented elsewhere, None where places do not match."""

        def of(tensor):
            return dict(self.factors.get(tensor, ()))

        first, second = args[0] if args else None, args[1] if len(args) > 1 else None
        found, factors = NotImplemented, {}
        if name == "mul" and torch.is_tensor(first) and torch.is_tensor(second):
            factors = {**of(first), **of(second)}
            for mask, other in ((first, second), (second, first)):
                this = self.drawn.get(mask)
                if this is None or this.uniform or other in self.drawn:
                    continue
                if this.root not in of(other):
                    factors[this.root] = this.event if this.shift == 0 else None
                elif of(other)[this.root] is this.event:
                    dtype = mask.dtype if mask.is_floating_point() else other.dtype
                    found = other * torch.full(mask.shape, this.scale + this.shift, dtype=dtype)
                else:
                    found = None
        elif torch.is_tensor(first) and (name in ("neg", "div", "mul") or name in SAME or name in CASTS):
            factors = of(first)
        return found, factors

    def unknown(self, tensor):
        """True for a tensor whose numbers mean nothing: uniform numbers, and bools of a mask."""
        known = self.drawn.get(tensor)
        return known is not None and (known.uniform or tensor.dtype is torch.bool)

    def draw(self, base, writes, args, kwargs, where):
        kwargs = {k: v for k, v in kwargs.items() if k != "generator" and v is not None}
        if base == "rand":
            made, known = torch.empty(*args, **kwargs).fill_(0.5), Drawn("`rand`" + where, True)
        elif base == "rand_like":
            made, known = torch.empty_like(*args, **kwargs).fill_(0.5), Drawn("`rand_like`" + where, True)
        elif base == "uniform":
            low, high = (*args[1:], *(kwargs.get(k, d) for k, d in (("from", 0.0), ("to", 1.0))[len(args) - 1 :]))
            made = (args[0] if writes else torch.empty_like(args[0])).fill_((low + high) / 2)
            known = Drawn("`uniform`" + where, True, scale=high - low, shift=low)
        else:
            x, p = args[0], kwargs.get("p", args[1] if len(args) > 1 else 0.5 if writes else None)
            if not x.is_floating_point():
                self.others.append(f"`bernoulli` of {x.dtype}{where}")
                return NotImplemented
            with torch.no_grad():
                p = x.detach().clone() if p is None else p
                made = x if writes else torch.empty_like(x)
                made = made.copy_(p) if torch.is_tensor(p) else made.fill_(p)
            known = Drawn("`bernoulli`" + where, False, None if torch.is_tensor(p) else p)
            self.count += 1
        self.drawn[made] = known
        return made

    def follow(self, func, name, args, kwargs):
        """The result of a call with such a tensor; None if it has no mean, NotImplemented if it is what the call gives with means."""
        x = args[0] if args else kwargs.get("input", kwargs.get("self"))
        this = self.drawn.get(x) if torch.is_tensor(x) else None
        other = next((v for v in (*args[1:], *(v for k, v in kwargs.items() if k in ("other", "value"))) if not isinstance(v, bool)), None)
        number = other if isinstance(other, (int, float)) else None
        if this is None or x.dtype is torch.bool or name not in LIKE and self.bools(args, kwargs):
            return self.masked(func, name, args, kwargs, this if this and x.dtype is torch.bool else None)
        second = self.drawn.get(other) if torch.is_tensor(other) and name not in LIKE else None
        if second and second.root is this.root and name in ("mul", "div"):
            return self.square(x, other, this, second) if name == "mul" and not this.uniform else None
        if name == "square" or name == "pow" and number == 2 or name == "pow" and kwargs.get("exponent") == 2:
            return None if this.uniform else self.square(x, x, this, this)
        if name in SAME:
            return self.move(name, func(*args, **kwargs), this, x)
        if name in CASTS:
            made = func(*args, **kwargs)
            if made.is_floating_point():
                return self.keep(made.clone() if made is x else made, this, x)
            if made.dtype is not torch.bool or this.uniform:
                return None
            return self.truth(made, this, lambda v: v != 0)
        if name in COMPARISONS and number is not None and not kwargs:
            holds = COMPARISONS[name]
            made = torch.empty(x.shape, dtype=torch.bool)
            if not this.uniform:
                return self.truth(made, this, lambda v: holds(v, number))
            below = this.below(number)
            probability = None if below is None else {"lt": below, "le": below, "gt": 1 - below, "ge": 1 - below}.get(name)
            self.count += 1
            return self.mask(made, this, probability)
        affine = AFFINE.get(name)
        if affine and (number is not None or name == "neg") and not set(kwargs) - {"other"}:
            made = func(*args, **kwargs)
            scale, shift = affine(this, number)
            return self.keep(made, replace(this, scale=scale, shift=shift), x)
        if name == "floor" and this.uniform and this.scale == 1:
            if not 0 <= this.shift <= 1:
                return None
            self.count += 1
            return self.numbers(torch.full_like(x, this.shift), this, this.shift)
        return NotImplemented

    def masked(self, func, name, args, kwargs, this):
        """A call with a mask of bools; NotImplemented if there is none."""
        bools = self.bools(args, kwargs)
        if not bools:
            return NotImplemented
        # A second mask is a number like any other, if it is one of floats and independent.
        others = [t for t in (*args, *kwargs.values()) if torch.is_tensor(t) and t in self.drawn and t is not bools[0]]
        root = self.drawn[bools[0]].root
        if name not in LIKE and any(self.unknown(t) or self.drawn[t].root is root for t in others):
            return None
        find = {**dict(zip(SIGNATURES.get(name, ()), args)), **kwargs}
        if this and name in SAME:
            return self.move(name, func(*args, **kwargs), this, args[0])
        if this and name in ("bitwise_not", "logical_not"):
            return self.mask(torch.empty_like(args[0]), this, 1 - this.mean)
        if this and name in CASTS:
            made = func(*args, **kwargs)
            if made.dtype is torch.bool:
                return self.keep(made.clone() if made is args[0] else made, this, args[0])
            return self.numbers(made.fill_(this.mean), this, this.mean, this.event) if made.is_floating_point() else None
        if name in ("mul", "div") and len(args) == 2:
            other = args[1] if this else args[0]
            dtype = other.dtype if torch.is_tensor(other) else torch.get_default_dtype() if isinstance(other, float) else None
            if torch.is_tensor(other) and other in self.drawn and other.dtype is torch.bool or not (dtype and dtype.is_floating_point):
                return None
            mask = bools[0]
            mean = torch.full(mask.shape, self.drawn[mask].mean, dtype=dtype)
            return func(*((mean, other) if this else (other, mean)), **kwargs)
        if name == "where" and (mask := self.drawn.get(find.get("condition"))):
            return mixed(mask.mean, find["self"], find["other"], args[0].shape)
        if name == "masked_fill" and (mask := self.drawn.get(find.get("mask"))):
            return mixed(mask.mean, find["value"], find["self"], find["mask"].shape)
        return None

    def square(self, x, y, this, other):
        """The product of two masks of floats of one draw; None where their places do not match."""
        if this.event is not other.event:
            return None
        dtype = torch.promote_types(x.dtype, y.dtype)
        shape = torch.broadcast_shapes(x.shape, y.shape)
        if this.mean is None:  # m · m = m
            if x is not y or (this.scale, this.shift) != (1, 0):
                return None
            return self.keep(x.clone(), this, x)
        no, yes = this.shift * other.shift, (this.scale + this.shift) * (other.scale + other.shift)
        made = torch.full(shape, no + (yes - no) * this.mean, dtype=dtype)
        return self.keep(made, replace(this, scale=yes - no, shift=no), x)

    def keep(self, made, known, source):
        if made is not source:
            self.drawn[made] = known
            return made
        self.drawn[source] = known
        return made

    def move(self, name, made, known, source):
        """The same numbers in another shape."""
        moved = made.shape != source.shape and name not in NOT_MOVED
        return self.keep(made, replace(known, event=object()) if moved else known, source)

    def bools(self, args, kwargs):
        """Masks of bools among the arguments."""
        return [t for t in (*args, *kwargs.values()) if torch.is_tensor(t) and t.dtype is torch.bool and t in self.drawn]

    def numbers(self, made, this, probability, event=None):
        """A mask of floats."""
        self.drawn[made] = Drawn(this.by, False, probability, root=this.root, event=event or object())
        return made

    def truth(self, made, this, holds):
        """Where something holds of a mask's numbers: the mask itself as bools, or another."""
        itself = holds(this.scale + this.shift) and not holds(this.shift)
        return self.mask(made, this, this.compared(holds), this.event if itself else None)

    def mask(self, made, this, probability, event=None):
        if probability is None:
            return None
        made.fill_(True)
        self.drawn[made] = Drawn(this.by, False, probability, root=this.root, event=event or object())
        return made


SIGNATURES = {"where": ("condition", "self", "other"), "masked_fill": ("self", "mask", "value")}
AFFINE = {
    "add": lambda d, n: (d.scale, d.shift + n),
    "sub": lambda d, n: (d.scale, d.shift - n),
    "rsub": lambda d, n: (-d.scale, n - d.shift),
    "mul": lambda d, n: (d.scale * n, d.shift * n),
    "div": lambda d, n: (d.scale / n, d.shift / n),
    "neg": lambda d, n: (-d.scale, -d.shift),
}


def mixed(mean, yes, no, shape):
    """The mean of a choice by a mask; None where that is not a float."""
    tensors = [v for v in (yes, no) if torch.is_tensor(v)]
    numbers = [v for v in (yes, no) if not torch.is_tensor(v)]
    if not tensors or not all(t.is_floating_point() for t in tensors) or not all(math.isfinite(n) for n in numbers):
        return None
    if torch.broadcast_shapes(shape, *(t.shape for t in tensors)) not in {t.shape for t in tensors}:
        return None
    return yes * mean + no * (1 - mean)


RANDOM = "the model draws random numbers that are neither dropout's nor a mask's"


def refusal(what=""):
    """What a model is refused with; `what` names the numbers."""
    return f"{RANDOM}{f': {what}' if what else ''}. Two runs of it cannot be compared: draw them outside and feed them as an input"
