"""A module as it stands, run in float64: its tensors claim the dtypes that they have, and hold float64.

A tensor of float32 (float16, bfloat16, complex64) is a `Claimed`: Python, hooks, functions of one's own and autograd see float32,
so that `finfo(x.dtype).min`, `x.float()` and decisions by dtype are what they are when the module is exported. Below autograd each
operator computes on what the tensor holds, with casts and new tensors lifted as `truth.LiftedGraph` lifts them.
"""

import contextlib
import copy

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from .dropout import WithoutDropout
from .truth import ATEN, LIFTED, RMS_NORMS, WIDE, by_definition, default_float64, lift, view_or_copy, with_epsilon



class Claimed(torch.Tensor):
    """Claims a dtype; `held` has the float64 values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held, dtype):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=dtype, layout=held.layout,
            device=held.device,
        )  # fmt: skip
        made.held = held
        if held.is_conj() or held.is_neg():  # views that are conjugated or negated when they are read
            torch._C._set_conj(made, held.is_conj())
            torch._C._set_neg(made, held.is_neg())
        return made

    def __repr__(self, *, tensor_contents=None):
        return f"Claimed({self.held}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Lifting().__torch_dispatch__(func, types, args, kwargs)  # outside of a run, as when a result is printed


def held(value):
    """The float64 values of a tensor; everything else is kept."""
    if isinstance(value, Claimed):
        return value.held.detach()
    return value.detach() if torch.is_tensor(value) else value


def claim(tensor):
    """A tensor's value, copied and lifted."""
    wide = lift(tensor)
    return Claimed(wide, tensor.dtype) if tensor.dtype in LIFTED else wide


CLAIMS = {}  # a call's dtypes, tensor by tensor, and other arguments' types -> the dtypes of its results


class Lifting(TorchDispatchMode):
    """While it is entered, operators compute in float64. `disturb(tensor)` may change what an operator has computed."""

    def __init__(self, disturb=None):
        super().__init__()
        self.disturb = disturb
        self.lifted = WeakIdKeyDictionary()  # tensors that were made before: a module's constants, Python's numbers

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is ATEN.view.dtype and (args[0].dtype in LIFTED or args[1] in LIFTED):
            raise NotImplementedError(f"{func} reads the bits of a value, which have no float64 counterpart")
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.claimed, (args, kwargs))
        if func in RMS_NORMS:
            args, kwargs = with_epsilon(args[0].dtype, args, kwargs)
        inner = pytree.tree_map(inside, (args, kwargs), is_leaf=lambda x: isinstance(x, torch.Tensor))
        with default_float64():
            if func is ATEN.view.default:  # PyTorch lays out the results of some operators otherwise in other dtypes
                out = view_or_copy(*inner[0])
            else:
                out = WIDE.get(func, func)(*inner[0], **inner[1])
        schema = func._schema
        if self.disturb and not any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            for tensor in pytree.tree_leaves(out):
                if torch.is_tensor(tensor) and tensor.dtype in (torch.float64, torch.complex128):
                    self.disturb(tensor)
        dtypes = iter(claims(func, args, kwargs, out))
        out = pytree.tree_map_only(torch.Tensor, lambda t: outside(t, next(dtypes)), out)
        return written(func, args, kwargs, out)

    def claimed(self, tensor):
        if isinstance(tensor, Claimed) or tensor.dtype not in LIFTED or tensor.device.type == "meta":
            return tensor
        if tensor not in self.lifted:
            self.lifted[tensor] = claim(tensor)
        return self.lifted[tensor]


def written(func, args, kwargs, out):
    """An operator's results, of which those that it writes in place are the arguments themselves."""
    if torch.Tag.inplace_view in func.tags:  # whose shape changes
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
    given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    own = {
        next(iter(a.alias_info.before_set)): given[a.name]
        for a in func._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name in given
    }
    results = out if isinstance(out, (tuple, list)) else [out]
    if not own or len(func._schema.returns) != len(results):
        return out
    found = [
        own.get(next(iter(r.alias_info.before_set), None), o) if r.alias_info is not None and r.alias_info.is_write else o
        for r, o in zip(func._schema.returns, results)
    ]
    return type(out)(found) if isinstance(out, (tuple, list)) else found[0]


def inside(value):
    if isinstance(value, Claimed):
        return value.held
    return LIFTED.get(value, value) if isinstance(value, torch.dtype) else value


def outside(tensor, dtype):
    return Claimed(tensor, dtype) if dtype in LIFTED and tensor.dtype == LIFTED[dtype] else tensor


def claims(func, args, kwargs, out):
    """The dtypes that an operator's results would have without lifting, in order."""
    results = [t for t in pytree.tree_leaves(out) if torch.is_tensor(t)]
    if not any(t.dtype in (torch.float64, torch.complex128) for t in results):
        return [t.dtype for t in results]
    leaves = pytree.tree_leaves((args, kwargs))
    key = (func, len(results), torch.get_default_dtype(), *(
        (x.dtype, x.dim() == 0) if torch.is_tensor(x) else x if isinstance(x, torch.dtype) else type(x) for x in leaves
    ))  # fmt: skip
    if key not in CLAIMS:
        CLAIMS[key] = ask(func, args, kwargs, results)
    return CLAIMS[key]


def ask(func, args, kwargs, results):
    """The dtypes of an operator's results, by a call on tensors that have the dtypes that ours claim."""
    state = torch.get_rng_state()
    for place in "cpu", "meta":  # float16 has fewer kernels than types
        def given(x):
            if not isinstance(x, torch.Tensor):
                return x
            x = x.held.to(x.dtype) if isinstance(x, Claimed) else x.clone()
            return x.to(place)

        try:
            with torch.no_grad():
                found = func(*pytree.tree_map(given, args), **pytree.tree_map(given, kwargs))
            return [t.dtype for t in pytree.tree_leaves(found) if torch.is_tensor(t)]
        except (RuntimeError, NotImplementedError, IndexError):
            continue
        finally:
            torch.set_rng_state(state)
    dtypes = [x.dtype for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Claimed)]
    narrow = dtypes[0] if dtypes else torch.get_default_dtype()
    return [narrow if t.dtype == LIFTED.get(narrow) else t.dtype for t in results]


class Copying(TorchFunctionMode):
    """While it is entered, `copy.deepcopy` makes tensors by `make`: those that a module keeps without having registered them."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self.make(tensor)
            return memo[id(tensor)]
        return func(*args, **kwargs or {})


class Calls(TorchFunctionMode):
    """Calls of PyTorch's functions by a lifted module: gradients of embeddings are dense, what an object of PyTorch outside of
    the module refers to is the module's own, and `.data = x` writes."""

    def __init__(self, known):
        super().__init__()
        self.known = known  # the id of a tensor of the original module -> the lifted one

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: self.known.get(id(t), t), (args, kwargs))
        if func == torch.Tensor.data.__set__:
            with torch.no_grad():
                args[0].copy_(args[1])
            return None
        if getattr(func, "__name__", "") in ("embedding", "embedding_bag") and "sparse" in kwargs:
            kwargs["sparse"] = False
        elif func is torch.embedding:
            args = (*args[:4], False) if len(args) > 4 else args
        elif func is torch.embedding_bag:
            args = (*args[:5], False, *args[6:]) if len(args) > 5 else args
        return func(*args, **kwargs)


class Module:
    """A copy of a module, lifted, that runs as the original would. The original is left as it was."""

    def __init__(self, module, lift=True):
        self.lift, self.known, self.parameters = lift, {}, []
        make = claim if lift else lambda tensor: tensor.detach().clone()
        for name, tensor in state(module):
            if id(tensor) not in self.known:
                made = make(tensor)
                if isinstance(tensor, torch.nn.Parameter):
                    made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
                self.known[id(tensor)] = made
            if isinstance(tensor, torch.nn.Parameter):
                self.parameters.append((name, tensor, self.known[id(tensor)]))
        with Copying(make):
            self.module = copy.deepcopy(module, dict(self.known))
        if {id(t) for _, t in state(self.module)} != {id(t) for t in self.known.values()}:
            raise ValueError(
                f"a copy of the module has other parameters or buffers than the module: {type(module).__name__} or a part of it has a "
                "`__deepcopy__` of its own, so that no run of it can be compared"
            )

    def trainable(self):
        """Names and tensors of trainable parameters, tied ones under each of their names."""
        return [(name, made) for name, _, made in self.parameters if made.requires_grad]

    def hook(self):
        """Registers the parameters' own hooks, which a copy does not have."""
        for original, made in {id(made): (original, made) for _, original, made in self.parameters}.values():
            for hook in (original._backward_hooks or {}).values():
                made.register_hook(hook)
            for hook in (getattr(original, "_post_accumulate_grad_hooks", None) or {}).values():
                made.register_post_accumulate_grad_hook(hook)


def state(module):
    """Names and tensors of parameters, then buffers, tied ones under each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


@contextlib.contextmanager
def running(lifted, disturb=None, calls=Calls):
    """The context of a module's forward and backward pass: dropout the identity, and float64 and attention by its definition if it is lifted."""
    enabled = torch._C._get_mkldnn_enabled()
    if lifted.lift:
        torch._C._set_mkldnn_enabled(False)  # whose layers are chosen by the dtype that is claimed, and compute no other
    try:
        wide = (Lifting(disturb), by_definition()) if lifted.lift else ()
        with contextlib.ExitStack() as stack:
            for context in (*wide, calls(lifted.known), WithoutDropout()):
                stack.enter_context(context)
            yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
