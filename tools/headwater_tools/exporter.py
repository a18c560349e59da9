"""Writes a module as a `.pt2` archive."""

import re
import site
import struct
import sysconfig
import zipfile
from pathlib import Path

import torch

# A stack trace names the line of the model first and its callers above it. The innermost calls are what a reader needs.
FRAMES = 2


def export(module, args, path, dynamic_shapes=None, decompose=False, compress=False):
    """Exports `module(*args)` to the archive `path` and returns the exported program.

    The module is exported in the mode it is in: call `module.train()` before, and set dropout to 0 if the run is to be
    compared with PyTorch. `decompose=False` keeps the training form, with in-place operators and views;
    `decompose=True` writes the functional form, after `run_decompositions({})`. `dynamic_shapes` is torch.export's.
    `compress` deflates the graph to about a tenth of its size and leaves the weights as they are.

    Stack traces are shortened to the two innermost calls, with paths relative to the place where packages are installed
    or to the working directory, so that an archive does not tell where its author keeps files.
    """
    program = torch.export.export(module, tuple(args), strict=False, dynamic_shapes=dynamic_shapes)
    if decompose:
        program = program.run_decompositions({})
    for graph_module in program.graph_module.modules():
        for node in getattr(graph_module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("from_node", None)  # holds addresses of Python objects: no two exports would be the same
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = shorten(trace)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, path)
    if compress:
        deflate_graph(path)
    return program


def shorten(trace):
    """The innermost frames of a stack trace, with relative paths."""
    frames = re.split(r'(?m)^(?=\s*File ")', trace)
    trace = "".join(frames[-FRAMES:])
    for root in (*site.getsitepackages(), sysconfig.get_paths()["purelib"], str(Path.cwd())):
        trace = trace.replace(f'File "{root}/', 'File "')
    return re.sub(r'File "/[^"]*/', 'File "', trace)  # elsewhere: the file's name alone


def deflate_graph(path):
    """Deflates the JSON entries of an archive. All others stay stored and start at multiples of 64, to be memory-mapped."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            if name.endswith(".json"):
                info.compress_type = zipfile.ZIP_DEFLATED
            else:
                padding = -(archive.fp.tell() + 30 + len(name.encode()) + 4) % 64  # 30: a local header, 4: this field's
                info.extra = struct.pack("<2sH", b"FB", padding) + bytes(padding)
            archive.writestr(info, data)
