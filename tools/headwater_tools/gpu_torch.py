"""The sides of `headwater_tools.gpu` that PyTorch computes, each in a process of its own: the limits of a GPU, and training steps.

    python -m headwater_tools.gpu_torch limits
    python -m headwater_tools.gpu_torch steps model.pt2 batch.safetensors eager         # or compile
    python -m headwater_tools.gpu_torch steps model.pt2 batch.safetensors eager cpu     # for tests

Prints lines of JSON. `steps` prints one when its first step is done, then measures as many steps as each line of its input says.
The module is the archive itself, as `torch.export.load` gives it, so that no model code is needed.
"""

import json
import struct
import sys
import time
from statistics import median

DTYPES = {"F32": "float32", "I64": "int64", "I32": "int32", "BOOL": "bool"}


def say(**found):
    print(json.dumps(found), flush=True)


def seconds(torch, run, repeat=10):
    """Median seconds of a call on the GPU, after three calls that do not count."""
    times = []
    for i in range(3 + repeat):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) / 1e3)
    return median(times)


def limits():
    """Bytes a second of a copy, read and written, and operations a second of products of 8192 × 8192, of random numbers."""
    import torch

    if not torch.cuda.is_available():
        return say(missing="PyTorch here has no CUDA, or sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    size = 1 << 30
    source = torch.randint(256, (size,), dtype=torch.uint8, device="cuda")
    to = torch.empty_like(source)
    copy = 2 * size / seconds(torch, lambda: to.copy_(source))
    del source, to
    found = {"copy": copy, "torch": torch.__version__, "card": torch.cuda.get_device_name(0)}
    say(**found)
    for name in ("bf16", "f32"):
        dtype = torch.bfloat16 if name == "bf16" else torch.float32
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        found[name] = 2 * 8192**3 / seconds(torch, lambda a=a, b=b: a @ b)
        say(**found)


def tensors(torch, path):
    """The tensors of a safetensors file."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header, data = json.loads(file.read(size)), bytearray(file.read())
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            dtype = getattr(torch, DTYPES[entry["dtype"]])
            found[name] = torch.frombuffer(data[start:end], dtype=dtype).reshape(entry["shape"])
    return found


def without_assertions(torch, module):
    """Takes out what asserts the dtypes that casts had when the module was exported: under autocast they are others."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in list(part.graph.nodes):
                if node.target is torch.ops.aten._assert_tensor_metadata.default:
                    part.graph.erase_node(node)
            part.recompile()


def steps(path, batch, mode, device="cuda"):
    """Training steps under autocast to bf16: forward, backward, `clip_grad_norm_(1.0)`, fused AdamW."""
    import torch
    from torch.export.passes import move_to_device_pass

    begin = time.perf_counter()
    program = move_to_device_pass(torch.export.load(path), device)
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    module = program.module()
    without_assertions(torch, module)
    given = tensors(torch, batch)
    inputs = [given[name].to(device) for name in names]
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-3, fused=True)
    forward = torch.compile(module) if mode == "compile" else module
    losses = []

    def step():
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = forward(*inputs)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the step

    step()
    say(first=time.perf_counter() - begin, loss=losses[0])
    step()
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        say(seconds=times, memory=torch.cuda.max_memory_allocated() if on_gpu else None, losses=losses[:8])


if __name__ == "__main__":
    {"limits": limits, "steps": steps}[sys.argv[1]](*sys.argv[2:])
