"""Data files as Headwater reads them, and the order in which it walks their samples: both sides train on the same batches."""

import inspect
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

MASK = (1 << 64) - 1


def arguments(args):
    """The example arguments of forward as a tuple. Raises TypeError, with the way out, for one tensor or for NumPy arrays."""
    if torch.is_tensor(args):
        raise TypeError("args is a tuple with a tensor for each argument of forward: (x,) for one, not x itself")
    for i, leaf in enumerate(pytree.tree_leaves(tuple(args))):
        if type(leaf).__module__ == "numpy":
            raise TypeError(f"argument {i} of forward is a numpy.{type(leaf).__name__}: give torch.as_tensor(array)")
    return tuple(args)


def load(path):
    """The tensors of a `.safetensors` or `.npz` file, by name. Raises ValueError, with the way out, for any other."""
    kind = Path(path).suffix
    if kind not in (".safetensors", ".npz"):
        raise ValueError(
            f"{path}: a run is recorded on a .safetensors or .npz file. Tables, and folders of images or texts, become one by "
            f"`headwater data {path} --out train.safetensors`, which writes what a run would be fed (docs/data.md); without Headwater "
            "here, write the samples as tensors named like the inputs of forward, safetensors.torch.save_file({\"x\": x, "
            "\"labels\": labels}, \"train.safetensors\"). Train on that file on both sides"
        )
    if kind == ".npz":
        import numpy

        with numpy.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    from safetensors.torch import load_file

    return load_file(path)


def inputs(module, tensors, names=None):
    """The tensors that `module.forward` takes, in its order; `names` maps an input to a tensor that is called differently."""
    wanted = [p.name for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]
    names = {n: (names or {}).get(n, n) for n in wanted}
    if missing := {n: t for n, t in names.items() if t not in tensors}:
        first = next(iter(missing))
        raise ValueError(
            f"the data has no {', '.join(missing.values())}; it has: {', '.join(sorted(tensors))}. Where a tensor is called differently "
            f"from forward's argument, say so: names={{\"{first}\": \"{min(tensors, default='…')}\"}}"
        )
    found = [tensors[n] for n in names.values()]
    if len({len(t) for t in found}) != 1:
        sizes = ", ".join(f"{n} {len(t)}" for n, t in zip(names.values(), found))
        raise ValueError(f"the first dimension counts samples and must be the same for all inputs: {sizes}")
    return found


def fits(tensor, dtype):
    """True of the elements that `dtype` holds as they are, as `crates/runtime/src/data/convert.rs` has it. NaN stays NaN."""
    if dtype == tensor.dtype:
        return torch.ones_like(tensor, dtype=torch.bool)
    if dtype.is_floating_point:
        rounded = tensor.to(dtype)
        if tensor.is_floating_point():
            return (rounded.to(torch.float64) == tensor.to(torch.float64)) | tensor.isnan()
        # 2^63 itself is no int64, and would come back as the largest.
        return (rounded.to(torch.int64) == tensor.to(torch.int64)) & (rounded < 2.0**63)
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    inside = (tensor >= low) & ((tensor < 2.0**63) if dtype == torch.int64 and tensor.is_floating_point() else (tensor <= high))
    return inside & (tensor == tensor.trunc()) if tensor.is_floating_point() else inside


def converted(tensor, dtype, name, round=False):
    """The samples in the dtype that the module takes. Raises ValueError for values that it does not hold, as Headwater's trainer
    does, unless they are to be rounded."""
    if not (round and dtype.is_floating_point) and not (kept := fits(tensor, dtype)).all():
        at = int((~kept).flatten().nonzero()[0])
        value, sample = tensor.flatten()[at].item(), at // max(1, tensor[0].numel())
        way = f"write {dtype} or say cast=\"round\"" if dtype.is_floating_point else "they are no values of it"
        raise ValueError(
            f"the module takes {name} as {dtype}, the data has {tensor.dtype}, and not all of its values fit; {value} in sample {sample} "
            f"does not: {way}"
        )
    return tensor.to(dtype)


def permutation(n, seed, epoch):
    """The order of an epoch: Durstenfeld's shuffle (1964) by SplitMix64 (Steele, Lea and Flood 2014) with Lemire's bounded
    numbers (2019), as `crates/runtime/src/data/order.rs` has it."""
    state = (seed * 0x9E3779B97F4A7C15 & MASK) ^ (epoch * 0xD1B54A32D192ED03 & MASK)

    def below(limit):
        nonlocal state
        while True:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            z = state
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
            wide = (z ^ (z >> 31)) * limit
            if wide & MASK >= (1 << 64) % limit:
                return wide >> 64

    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def batches(samples, batch, steps, seed=0, sequential=False):
    """Indices [steps, batch] of the samples of each step; what does not fill a batch at the end of an epoch is left out."""
    per_epoch = samples // batch
    if not per_epoch:
        raise ValueError(f"{samples} samples do not fill one batch of {batch}")
    found, epoch = [], 0
    while len(found) < steps:
        order = list(range(samples)) if sequential else permutation(samples, seed, epoch)
        whole = order[: per_epoch * batch]
        found += [whole[i : i + batch] for i in range(0, len(whole), batch)]
        epoch += 1
    return torch.tensor(found[:steps])
