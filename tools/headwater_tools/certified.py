"""Adds to the repository's goldens the statement that module and archive agree, where they were recorded without it. Tensors and
archives stay as they are.

    python -m headwater_tools.certified goldens/          # all of them
    python -m headwater_tools.certified goldens/ writes   # a folder of them
"""

import hashlib
import json
import sys
from pathlib import Path

import torch

from . import cancelling, complex_numbers, families, lifting, writes
from .agreement import ModuleDiffers, archived
from .recorder import SUFFIX, certify


def modules(folder):
    """Name, module and inputs of each golden of a folder."""
    if folder in families.FAMILIES:
        yield folder, *families.build(folder)
        return
    made = {"writes": writes, "complex": complex_numbers, "cancelling": cancelling}[folder].models()
    yield from ((name, module, args) for name, (module, args, *_) in made.items())


def main(goldens, only=()):
    torch.set_num_threads(1)
    for folder in only or (*families.FAMILIES, "writes", "complex", "cancelling"):
        manifest = Path(goldens) / ("" if folder in families.FAMILIES else folder) / "manifest.json"
        text = json.loads(manifest.read_text())
        hashes = (text["families"][folder] if folder in families.FAMILIES else text)["sha256"]
        for name, module, args in modules(folder):
            for golden in sorted((Path(goldens) / folder).glob(f"{name}*{SUFFIX}")):
                if golden.name.removesuffix(SUFFIX) not in (name, f"{name}.train", f"{name}.core"):
                    continue
                before = golden.read_bytes()
                restore(module, golden.with_name(golden.name.removesuffix(SUFFIX) + ".pt2"))
                try:
                    found = certify(module, args, golden)
                except ModuleDiffers as error:
                    print(f"{golden.name}: NOT CERTIFIED: {error}")
                    continue
                at = f" {found.where}" if found.where else ""
                print(f"{golden.name}: {found.gradients} gradients, worst {found.worst:.1e} of {found.bound:.1e}{at}; {found.dtype} {found.why}")
                assert tail(before) == tail(golden.read_bytes()), "tensors changed"
                hashes[golden.name] = hashlib.sha256(golden.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")


def restore(module, archive):
    """Gives a module the archive's parameters and buffers: on another machine, those of the same seed may differ in the last bit."""
    mine = dict(lifting.state(module))
    with torch.no_grad():
        for name, tensor in archived(torch.export.load(archive)).items():
            mine[name].copy_(tensor)


def tail(file):
    """The tensors of a safetensors file."""
    return file[8 + int.from_bytes(file[:8], "little") :]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
