"""Ways to get a wrong gradient past `record` and `headwater check`. Each is refused, or differs, or is listed as out of reach."""

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from headwater_tools import ModuleDiffers, certify, export, record
from headwater_tools.recorder import save
from safetensors import safe_open
from test_agreement import Net, Reverse, batch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook
from torch.utils._python_dispatch import TorchDispatchMode

BINARY = Path(os.environ.get("HEADWATER", Path(__file__).parents[2] / "target/debug/headwater"))
needs_binary = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
pytestmark = pytest.mark.filterwarnings("ignore")


def recorded(module, folder, args=None, **how):
    args = args or batch()
    export(module, args, folder / "m.pt2")
    record(module, args, folder / "m.golden.safetensors", intermediates="none", **how)
    return folder / "m.golden.safetensors"


def check(folder):
    command = [BINARY, "check", folder / "m.pt2", folder / "m.golden.safetensors", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


def rewritten(golden, change):
    """Writes a golden anew, after `change(tensors, metadata)`."""
    with safe_open(golden, "pt") as file:
        tensors, metadata = {n: file.get_tensor(n).clone() for n in file.keys()}, file.metadata()
    change(tensors, metadata)
    save(tensors, golden, metadata)


def test_1_a_hook_of_all_modules(tmp_path):
    handle = register_module_full_backward_hook(lambda m, gi, go: tuple(g if g is None else 2 * g for g in gi))
    try:
        with pytest.raises(ModuleDiffers, match="backward hooks.*all modules: "):
            recorded(Net().train(), tmp_path)
    finally:
        handle.remove()


def test_2_a_module_that_copies_itself_clean(tmp_path):
    class Clean(Net):
        def __deepcopy__(self, memo):
            other = Net()
            other.load_state_dict(self.state_dict())
            return other

    with pytest.raises(ValueError, match="`__deepcopy__` of its own"):
        recorded(Clean(lambda h, s: Reverse.apply(h)).train(), tmp_path)


def test_3_a_backward_pass_that_is_wrong_in_one_element(tmp_path):
    class Slip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            g = g.clone()
            g[0, 0] *= 1 + 1e-7
            return g

    with pytest.raises(ModuleDiffers, match="autograd function Slip"):
        recorded(Net(lambda h, s: Slip.apply(h)).train(), tmp_path)


def test_4_a_function_within_a_function(tmp_path):
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                x = torch.zeros_like(g).requires_grad_()
                return torch.autograd.grad(Reverse.apply(x), x, g)[0]

    with pytest.raises(ModuleDiffers, match="autograd function Outer"):
        recorded(Net(lambda h, s: Outer.apply(h)).train(), tmp_path)


def test_5_gradients_written_by_hand(tmp_path):
    """A parameter's gradient is made by another parameter's hook."""
    module = Net()
    module.first.bias.register_post_accumulate_grad_hook(lambda p: print(module.first.weight.data_ptr(), p.grad.neg_()))
    with pytest.raises(ModuleDiffers, match="hooks on parameters.*`first.bias`"):
        recorded(module.train(), tmp_path)


def test_6_another_class_under_the_same_weights(tmp_path):
    """The archive is of a clean module; a module with the same weights and another backward pass records."""
    export(Net().train(), batch(), tmp_path / "m.pt2")
    with pytest.raises(ModuleDiffers, match="autograd function Reverse"):
        record(Net(lambda h, s: Reverse.apply(h)).train(), batch(), tmp_path / "m.golden.safetensors")


@needs_binary
def test_7_another_program_than_the_archive(tmp_path):
    """`record` is given a program that is not the archive's: what it records is not what the archive computes."""
    module = Net(lambda h, s: 2 * h).train()
    program = export(module, batch(), tmp_path / "other.pt2")
    export(Net().train(), batch(), tmp_path / "m.pt2")
    record(module, batch(), tmp_path / "m.golden.safetensors", program=program, intermediates="none")
    assert check(tmp_path)[0] == 3


@needs_binary
def test_8_a_golden_that_is_edited(tmp_path):
    golden = recorded(Net().train(), tmp_path)
    assert check(tmp_path)[0] == 0
    rewritten(golden, lambda tensors, metadata: tensors["grad.first.bias"].neg_())
    assert check(tmp_path)[0] == 3
    with pytest.raises(ModuleDiffers, match="the golden does not hold what the module computes.*`first.bias`"):
        certify(Net().train(), batch(), golden)


@needs_binary
def test_9_a_golden_without_the_statement(tmp_path):
    golden = recorded(Net().train(), tmp_path)
    assert check(tmp_path)[1]["module"] is None
    rewritten(golden, lambda tensors, metadata: metadata.pop("module"))
    status, report = check(tmp_path)
    assert status == 0 and "does not state that the archive computes what its PyTorch module computes" in report["module"]
    rewritten(golden, lambda tensors, metadata: metadata.update(module='{"agrees": false}'))
    assert "does not state" in check(tmp_path)[1]["module"]
    certify(Net().train(), batch(), golden)
    assert check(tmp_path)[1]["module"] is None


@needs_binary
def test_10_an_archive_that_is_exported_again(tmp_path):
    recorded(Net().train(), tmp_path)
    export(Net(lambda h, s: h * 1.0).train(), batch(), tmp_path / "m.pt2")
    assert "was recorded from" in check(tmp_path)[1]["foreign"]


def test_11_saved_tensors_that_are_unpacked_otherwise(tmp_path):
    class Unpacked(Net):
        def forward(self, x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 2 * t):
                return super().forward(x)

    with pytest.raises(ModuleDiffers, match="gradient of `first.weight` differs"):
        recorded(Unpacked().train(), tmp_path)


@pytest.mark.parametrize("before", [True, False])
def test_12_hooks_of_nodes_of_the_graph(tmp_path, before):
    def hooked(h, s):
        y = h * 1.0
        if y.grad_fn is not None and before:
            y.grad_fn.register_prehook(lambda outer: tuple(-g for g in outer))
        elif y.grad_fn is not None:
            y.grad_fn.register_hook(lambda inner, outer: tuple(g if g is None else -g for g in inner))
        return y

    with pytest.raises(ModuleDiffers, match="gradient of `first.weight` differs by 200 %"):
        recorded(Net(hooked).train(), tmp_path)


def test_13_another_way_while_it_is_exported(tmp_path):
    with pytest.raises(ModuleDiffers, match="another way while it is"):
        recorded(Net(lambda h, s: h.detach() + 0 * h if torch.compiler.is_exporting() else h).train(), tmp_path)


def test_14_a_parameter_that_the_forward_pass_freezes(tmp_path):
    class Freezes(Net):
        def forward(self, x):
            self.first.bias.requires_grad_(False)
            out = super().forward(x)
            self.first.bias.requires_grad_(True)
            return out

    with pytest.raises(ModuleDiffers, match="`first.bias` is missing in the module"):
        recorded(Freezes().train(), tmp_path)


@needs_binary
def test_15_an_operator_of_ones_own_with_a_wrong_derivative(tmp_path):
    @torch.library.custom_op("smuggling::same", mutates_args=())
    def same(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    same.register_fake(torch.empty_like)
    same.register_autograd(lambda ctx, g: -g)
    recorded(Net(lambda h, s: same(h)).train(), tmp_path)
    assert check(tmp_path)[0] == 1  # an operator that Headwater has not is refused


def test_16_a_parametrization(tmp_path):
    class Scaled(nn.Module):
        def forward(self, x):
            return Reverse.apply(x)

    module = Net()
    nn.utils.parametrize.register_parametrization(module.first, "weight", Scaled())
    with pytest.raises(ModuleDiffers, match="autograd function Reverse"):
        recorded(module.train(), tmp_path)


def test_17_a_mode_of_functions_around_the_recording(tmp_path):
    class Halved(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            return out.detach() * 0.5 + out * 0.5 if function is nn.functional.linear else out

    module = Net().train()
    export(module, batch(), tmp_path / "m.pt2")
    with Halved(), pytest.raises(ModuleDiffers, match="gradient of `first.weight` differs"):
        record(module, batch(), tmp_path / "m.golden.safetensors", intermediates="none")


@needs_binary
def test_18_a_mode_of_dispatch_around_the_recording(tmp_path):
    """It changes what the archive computes in PyTorch as well: what is recorded is not what the archive says."""

    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            return out * 2 if function is torch.ops.aten.sum.dim_IntList else out  # gradients of biases

    module = Net().train()
    export(module, batch(), tmp_path / "m.pt2")
    with Doubled():
        record(module, batch(), tmp_path / "m.golden.safetensors", intermediates="none")
    assert check(tmp_path)[0] == 3


@needs_binary
def test_19_a_golden_without_a_gradient_or_with_none_of_numbers(tmp_path):
    golden = recorded(Net().train(), tmp_path)
    rewritten(golden, lambda tensors, metadata: tensors["grad.first.weight"].fill_(float("nan")))
    assert check(tmp_path)[0] == 3
    rewritten(golden, lambda tensors, metadata: [tensors.pop("grad.first.weight"), tensors.pop("grad.first.bias")])
    status, report = check(tmp_path)
    assert status == 3 and len(report["missing"]) == 2


@needs_binary
def test_20_an_archive_with_another_weight(tmp_path):
    recorded(Net().train(), tmp_path)
    archive, changed = tmp_path / "m.pt2", False
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(tmp_path / "new.pt2", "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if re.search(r"weights/weight_\d+$", entry.filename) and not changed:
                content, changed = content[:3] + bytes([content[3] ^ 0x80]) + content[4:], True  # a sign
            new.writestr(entry.filename, content)
    (tmp_path / "new.pt2").replace(archive)
    status, report = check(tmp_path)
    assert changed and status == 3 and "was recorded from" in report["foreign"]


def test_out_of_reach_a_backward_pass_that_is_right_on_the_recorded_batch(tmp_path):
    """One batch is compared: what another batch would show is not seen. tools/README.md says so."""

    class Sometimes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.large = bool(x.abs().max() > 1e3)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return -g if ctx.large else g

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Net(lambda h, s: Sometimes.apply(h) if not torch.compiler.is_exporting() else h.clone())

        def forward(self, x):
            return self.body(x)

    assert recorded(Module().train(), tmp_path).exists()
