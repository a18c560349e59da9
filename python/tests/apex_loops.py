"""Loops of scripts that import apex, as people write them, and what runs them: here with Headwater's apex, or beside it with one
in float64 that scales nothing.

`python -m headwater.apex --devices npu,cuda apex_loops.py headwater|f32|float64` prints a JSON object: for each loop its losses."""

import json
import sys
import types
from typing import Any

#: What the scripts have in common: models, and batches that a model can learn.
PRELUDE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 16, 5)
    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        return self.fc(F.avg_pool2d(x, 2).flatten(1))

def mlp(i=6, o=3):
    return nn.Sequential(nn.Linear(i, 16), nn.GELU(), nn.Linear(16, o))

def images(n=6, count=8):
    for _ in range(count):
        x = torch.randn(n, 1, 8, 8)
        yield x, (x[:, 0, :5, 0]).argmax(1)

def rows(n=8, i=6, o=3, count=8):
    for _ in range(count):
        x = torch.randn(n, i)
        yield x, x[:, :o].argmax(1)

losses = []
"""

LOOPS = {
    "modelzoo_o2_static": """
import torch_npu
from apex import amp
torch.npu.set_device('npu:0')
model = Net().to('npu:0')
criterion = nn.CrossEntropyLoss().to('npu:0')
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale=128.0, combine_grad=True)
model.train()
for images_, target in images():
    images_, target = images_.to('npu:0', non_blocking=True), target.to(torch.int32).to('npu:0').long()
    output = model(images_)
    loss = criterion(output, target)
    losses.append(loss.item())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
""",
    "o1_dynamic_adam": """
from apex import amp
model = mlp().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1')
for x, y in rows():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.cuda()), y.cuda())
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "npu_fused_sgd": """
from apex import amp
from apex.optimizers import NpuFusedSGD
model = Net().npu()
optimizer = NpuFusedSGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale=1024, verbosity=0)
for x, y in images():
    loss = F.cross_entropy(model(x.npu()), y.npu())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "npu_fused_adam_clipped_masters": """
from apex import amp
from apex.optimizers import NpuFusedAdam
model = mlp().npu()
optimizer = NpuFusedAdam(model.parameters(), lr=1e-2, weight_decay=1e-3)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale='dynamic')
for x, y in rows():
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
""",
    "npu_fused_adamw_scheduler": """
from apex import amp
from apex.optimizers import NpuFusedAdamW
model = mlp()
no_decay = [p for n, p in model.named_parameters() if 'bias' in n]
decay = [p for n, p in model.named_parameters() if 'bias' not in n]
optimizer = NpuFusedAdamW([{'params': decay, 'weight_decay': 0.05}, {'params': no_decay, 'weight_decay': 0.0}], lr=2e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1', loss_scale=128.)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
for x, y in rows():
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(loss.item())
""",
    "registered_functions": """
from apex import amp
amp.register_half_function(torch, 'bmm')
amp.register_float_function(torch, 'sigmoid')
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(4, 3)
    def forward(self, x):
        h = self.a(x).view(-1, 3, 4)
        h = torch.bmm(h, h.transpose(1, 2)).sum(1, keepdim=True)
        return self.b(torch.sigmoid(F.pad(h, (0, 1))).squeeze(1))
model = Gated()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1', loss_scale='dynamic')
for x, y in rows():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "dcgan_lists_and_three_losses": """
from apex import amp
netD, netG = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
optimizerD, optimizerG = torch.optim.Adam(netD.parameters(), lr=1e-2, betas=(0.5, 0.999)), torch.optim.Adam(netG.parameters(), lr=1e-2, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
[netD, netG], [optimizerD, optimizerG] = amp.initialize([netD, netG], [optimizerD, optimizerG], opt_level='O1', num_losses=3)
for real, _ in rows():
    netD.zero_grad()
    output = netD(real)
    errD_real = criterion(output, torch.ones_like(output))
    with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
        errD_real_scaled.backward()
    fake = netG(torch.randn(8, 4))
    output = netD(fake.detach())
    errD_fake = criterion(output, torch.zeros_like(output))
    with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
        errD_fake_scaled.backward()
    optimizerD.step()
    netG.zero_grad()
    output = netD(fake)
    errG = criterion(output, torch.ones_like(output))
    with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
        errG_scaled.backward()
    optimizerG.step()
    losses += [(errD_real + errD_fake).item(), errG.item()]
""",
    "accumulated_with_delayed_unscale": """
from apex import amp
model = mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale=256.0)
for i, (x, y) in enumerate(rows(count=12)):
    loss = F.cross_entropy(model(x), y) / 3
    last = (i + 1) % 3 == 0
    with amp.scale_loss(loss, optimizer, delay_unscale=not last) as scaled_loss:
        scaled_loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
""",
    "accumulated_unscaled": """
from apex import amp
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1', loss_scale='dynamic')
for i, (x, y) in enumerate(rows(count=9)):
    loss = F.cross_entropy(model(x), y) / 3
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
""",
    "checkpoint": """
import io
from apex import amp
def make():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return amp.initialize(model, optimizer, opt_level='O2', loss_scale='dynamic')
def train(model, optimizer, batches):
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
data = list(rows())
model, optimizer = make()
train(model, optimizer, data[:4])
file = io.BytesIO()
torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'amp': amp.state_dict()}, file)
file.seek(0)
model, optimizer = make()
checkpoint = torch.load(file, map_location='npu:0')
model.load_state_dict(checkpoint['model'])
optimizer.load_state_dict(checkpoint['optimizer'])
amp.load_state_dict(checkpoint['amp'])
train(model, optimizer, data[4:])
""",
    "model_alone": """
from apex import amp
model = Net().npu()
model = amp.initialize(model, opt_level='O2', verbosity=0)
model.eval()
with torch.no_grad():
    for x, y in images():
        losses.append(F.cross_entropy(model(x.npu()), y).item())
""",
    "fused_layer_norm": """
from apex import amp
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.qkv, self.out = nn.Embedding(11, 8), FusedLayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 11)
    def forward(self, ids):
        h = self.embed(ids)
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + torch.softmax(q @ k.transpose(1, 2) / 8 ** 0.5, -1) @ v
        return self.out(h)
model = Block()
optimizer = FusedAdam(model.parameters(), lr=1e-2, weight_decay=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1')
for _ in range(8):
    ids = torch.randint(11, (4, 7))
    loss = F.cross_entropy(model(ids).view(-1, 11), ids.flip(1).view(-1))
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "fp16_optimizer": """
from apex.fp16_utils import FP16_Optimizer, network_to_half
model = network_to_half(mlp()).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = FP16_Optimizer(optimizer, dynamic_loss_scale=True, dynamic_loss_args={'init_scale': 2 ** 10})
for x, y in rows():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).float(), y)
    optimizer.backward(loss)
    optimizer.clip_master_grads(0.5)
    optimizer.step()
    losses.append(loss.item())
""",
    "distributed": """
import os, tempfile
from apex import amp
from apex.parallel import DistributedDataParallel as DDP, convert_syncbn_model
torch.distributed.init_process_group('hccl', init_method='file://' + tempfile.mktemp(), rank=0, world_size=1)
model = mlp().npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale=128.0)
model = DDP(model, delay_allreduce=True)
for x, y in rows():
    loss = F.cross_entropy(model(x.npu()), y.npu())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch.distributed.destroy_process_group()
""",
    "sync_batch_norm": """
from apex import amp
from apex.parallel import convert_syncbn_model
model = convert_syncbn_model(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', keep_batchnorm_fp32=True, loss_scale=128.0)
for x, y in images():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "gradient_fusion": """
from apex import amp
from apex.contrib.gradient_fusion import GradientFusion
from apex.optimizers import FusedAdam
model = mlp().npu()
optimizer = FusedAdam(model.parameters(), lr=1e-2, max_grad_norm=0.1, capturable=True)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale='dynamic')
model = GradientFusion(model, fusion_size=8)
for x, y in rows():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.npu()), y.npu())
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "fused_lamb": """
from apex import amp
from apex.optimizers import FusedLAMB
model = mlp()
optimizer = FusedLAMB(model.parameters(), lr=2e-2, weight_decay=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale='dynamic')
for x, y in rows():
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    losses.append(loss.item())
""",
    "o3": """
from apex import amp
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = amp.initialize(model, optimizer, opt_level='O3', keep_batchnorm_fp32='True', loss_scale='128.0')
for x, y in images():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "o0": """
from apex import amp
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = amp.initialize(model, optimizer, opt_level='O0')
for x, y in images():
    loss = F.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "clip_optimizer_grad_norm_fused": """
from apex import amp
from apex.optimizers import NpuFusedAdam
model = mlp().npu()
optimizer = NpuFusedAdam(model.parameters(), lr=1e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level='O2', loss_scale=128.0, combine_grad=True)
for x, y in rows():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.clip_optimizer_grad_norm_fused(0.1)
    optimizer.step()
    losses.append(loss.item())
""",
    "torch_scaler_with_a_fused_optimizer": """
from apex.optimizers import FusedAdam
model = mlp()
optimizer = FusedAdam(model.parameters(), lr=1e-2, adam_w_mode=False, weight_decay=0.01)
scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)
for x, y in rows():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
""",
    "lstm_o1": """
from apex import amp
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(9, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 9)
    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])
model = Tagger()
optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1', loss_scale='dynamic')
for _ in range(8):
    ids = torch.randint(9, (4, 5))
    loss = F.cross_entropy(model(ids).reshape(-1, 9), ids.reshape(-1))
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
    "two_optimizers_of_one_loss": """
from apex import amp
from apex.optimizers import NpuFusedSGD, NpuFusedAdadelta
class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(6, 5), nn.Linear(5, 3)
    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))
model = Scorer()
opts = [NpuFusedSGD(model.body.parameters(), lr=0.1), NpuFusedAdadelta(model.head.parameters(), lr=1.0)]
model, opts = amp.initialize(model, opts, opt_level='O1')
for x, y in rows():
    for o in opts:
        o.zero_grad()
    loss = F.cross_entropy(model(x), y)
    with amp.scale_loss(loss, opts) as scaled_loss:
        scaled_loss.backward()
    for o in opts:
        o.step()
    losses.append(loss.item())
""",
    "decorated_function": """
from apex import amp
@amp.half_function
def mixed(x, w):
    return x @ w.t()
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 6) / 3)
    def forward(self, x):
        return mixed(x, self.w)
model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
model, optimizer = amp.initialize(model, optimizer, opt_level='O1')
for x, y in rows():
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    losses.append(loss.item())
""",
}


def float64() -> dict[str, types.ModuleType]:
    """An apex whose models compute in float64, whose losses have no scale, and whose optimizers are PyTorch's; LAMB is as its
    paper has it, with the global clipping of apex."""
    import contextlib

    import torch
    import torch.nn.functional as F

    def cast(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def doubled(model: Any) -> Any:
        model.double()
        model.register_forward_pre_hook(lambda m, args: tuple(cast(a) for a in args))
        return model

    def initialize(models: Any, optimizers: Any = None, **settings: Any) -> Any:
        for model in models if isinstance(models, list) else [models]:
            doubled(model)
        return models if optimizers is None else (models, optimizers)

    for name in ("mse_loss", "binary_cross_entropy_with_logits"):
        inner = getattr(F, name)
        setattr(F, name, lambda x, y, *a, inner=inner, **k: inner(x, y.to(x.dtype), *a, **k))
    modules = {}

    def module(name: str, **members: Any) -> None:
        modules[name] = types.ModuleType(name)
        modules[name].__dict__.update(members)

    @contextlib.contextmanager
    def scale_loss(loss: Any, optimizers: Any, **settings: Any) -> Any:
        yield loss

    class Clipped:
        """Clips all gradients before a step, and by request."""

        def __init__(self, *args: Any, max_grad_norm: float = 0.0, capturable: bool = False, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self.limit = max_grad_norm

        def clip_optimizer_grad_norm_fused(self, limit: float) -> None:
            torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], limit)  # type: ignore[attr-defined]

        def step(self, closure: Any = None) -> None:
            if self.limit:
                self.clip_optimizer_grad_norm_fused(self.limit)
            super().step()  # type: ignore[misc]

    class Adam(Clipped, torch.optim.Adam):
        pass

    class AdamW(Clipped, torch.optim.AdamW):
        pass

    def fused_adam(params: Any, adam_w_mode: bool = True, weight_decay: float = 0.0, **settings: Any) -> Any:
        return (AdamW if adam_w_mode else Adam)(params, weight_decay=weight_decay, **settings)

    class Lamb(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
            super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
            self.t = 0

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            self.t += 1
            group = self.param_groups[0]
            whole = torch.cat([p.grad.flatten() for p in group["params"]]).norm()
            for p in group["params"]:
                g = p.grad / max(1.0, float(whole))
                s = self.state[p]
                s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
                s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g * g
                u = (s["m"] / (1 - 0.9**self.t)) / ((s["v"] / (1 - 0.999**self.t)).sqrt() + 1e-6)
                u = u + group["weight_decay"] * p
                p -= group["lr"] * p.norm() / u.norm() * u

    class Plain:
        """FP16_Optimizer without a scale."""

        def __init__(self, optimizer: Any, **settings: Any) -> None:
            self.optimizer = optimizer

        def zero_grad(self) -> None:
            self.optimizer.zero_grad()

        def backward(self, loss: Any) -> None:
            loss.backward()

        def clip_master_grads(self, limit: float) -> None:
            torch.nn.utils.clip_grad_norm_([p for g in self.optimizer.param_groups for p in g["params"]], limit)

        def step(self) -> None:
            self.optimizer.step()

    nothing = lambda *args, **settings: None  # noqa: E731
    module(
        "apex.amp",
        initialize=initialize,
        scale_loss=scale_loss,
        master_params=lambda o: (p for g in o.param_groups for p in g["params"]),
        state_dict=dict,
        load_state_dict=nothing,
        register_half_function=nothing,
        register_float_function=nothing,
        half_function=lambda f: f,
    )
    module(
        "apex.optimizers",
        FusedAdam=fused_adam,
        FusedLAMB=Lamb,
        NpuFusedSGD=torch.optim.SGD,
        NpuFusedAdam=Adam,
        NpuFusedAdamW=AdamW,
        NpuFusedAdadelta=torch.optim.Adadelta,
    )
    module("apex.normalization", FusedLayerNorm=torch.nn.LayerNorm)
    module("apex.fp16_utils", FP16_Optimizer=Plain, network_to_half=doubled)
    ddp = torch.nn.parallel.DistributedDataParallel
    module(
        "apex.parallel",
        DistributedDataParallel=lambda m, delay_allreduce: ddp(m, find_unused_parameters=delay_allreduce),
        convert_syncbn_model=torch.nn.SyncBatchNorm.convert_sync_batchnorm,
    )
    module("apex.contrib.gradient_fusion", GradientFusion=lambda model, fusion_size: model)
    module("apex.contrib", gradient_fusion=modules["apex.contrib.gradient_fusion"])
    parts = {name.split(".")[1]: m for name, m in modules.items() if name.count(".") == 1}
    module("apex", **parts)
    return modules


def main(kind: str, names: list[str]) -> None:
    import torch

    import headwater
    from headwater.apex import amp

    torch.set_num_threads(1)
    if kind == "float64":
        for name, module in float64().items():
            sys.modules[name] = module
    elif kind == "f32":
        # Levels without casts, and all else as it is.
        right = amp.initialize

        def plain(models: Any, optimizers: Any = None, **settings: Any) -> Any:
            settings.pop("keep_batchnorm_fp32", None)
            scale = settings.pop("loss_scale", "dynamic")
            return right(models, optimizers, **{**settings, "opt_level": "O0", "loss_scale": scale})

        amp.initialize = plain
        sys.modules["apex.fp16_utils"].network_to_half = lambda m: m  # type: ignore[attr-defined]
    found = {}
    for name in names or LOOPS:
        torch.manual_seed(0)
        torch._dynamo.reset()
        headwater.reset()
        amp._reset()
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(PRELUDE + LOOPS[name], f"{name}.py", "exec"), scope)
        found[name] = {"losses": scope["losses"], "plans": headwater.counters().plans, "refused": headwater.counters().refused}
    print("RESULTS " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
