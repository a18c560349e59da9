"""Writes docs/python.md, and its Chinese page, from the package's docstrings.

    python python/reference.py            # writes both
    python python/reference.py --check    # fails if one is not what would be written
"""

import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"

#: Modules, and their names in the order of the page. A class is followed by its public methods.
NAMES: dict[str, list[str]] = {
    "headwater": [
        "compile_step",
        "Step",
        "StepReport",
        "ProgramReport",
        "explain",
        "Report",
        "GraphReport",
        "counters",
        "Counters",
        "reset",
        "inspect",
        "check",
        "Error",
        "Unsupported",
        "Refusal",
        "Mismatch",
        "UnsupportedWarning",
    ],
    "headwater.hf": ["prepare"],
    "headwater.ops": [
        "rms_norm",
        "rms_norm_backward",
        "embedding",
        "embedding_dense_backward",
        "layer_norm",
        "cross_entropy",
        "attention",
        "map",
    ],
    "headwater.nn": ["RMSNorm", "Embedding"],
    "headwater.apex": ["install"],
    "headwater.apex.amp": [
        "initialize",
        "scale_loss",
        "master_params",
        "state_dict",
        "load_state_dict",
        "disable_casts",
        "half_function",
        "float_function",
        "promote_function",
        "register_half_function",
        "register_float_function",
        "register_promote_function",
    ],
    "headwater.apex.optimizers": [
        "FusedAdam",
        "FusedSGD",
        "FusedAdagrad",
        "FusedLAMB",
        "FusedNovoGrad",
        "NpuFusedSGD",
        "NpuFusedAdam",
        "NpuFusedAdamW",
        "NpuFusedLamb",
        "NpuFusedAdadelta",
        "NpuFusedRMSprop",
        "NpuFusedRMSpropTF",
        "NpuFusedBertAdam",
        "NpuFusedAdamP",
    ],
    "headwater.apex.parallel": ["DistributedDataParallel", "convert_syncbn_model"],
    "headwater.apex.fp16_utils": ["FP16_Optimizer", "network_to_half"],
    "headwater.apex.contrib.gradient_fusion": ["GradientFusion"],
}

ABOUT = {
    "en": {
        "title": "# The Python package",
        "lead": (
            "Written by `python/reference.py` from docstrings: do not edit. Five minutes with it are in "
            "[python/README.md](../python/README.md)."
        ),
        "head": "| module | |",
        "headwater": "whole steps, and what was compiled",
        "headwater.hf": "`transformers.Trainer`",
        "headwater.ops": "operators",
        "headwater.nn": "modules over them",
        "headwater.apex": "apex for scripts",
        "headwater.apex.amp": "mixed precision as apex has it",
        "headwater.apex.optimizers": "optimizers of NVIDIA's and Ascend's apex",
        "headwater.apex.parallel": "distributed training under apex's names",
        "headwater.apex.fp16_utils": "models that are cast by hand",
        "headwater.apex.contrib.gradient_fusion": "gradients in contiguous buffers",
    },
    "zh": {
        "title": "# Python 包",
        "lead": (
            "由 `python/reference.py` 生成，请勿手工修改。五分钟入门见 [python/README.md](../../python/README.md)；"
            "各名称的说明以[英文页](../python.md)为准，此处给出签名与一句话说明。"
        ),
        "head": "| 模块 | |",
        "headwater": "整步训练，以及编译了什么",
        "headwater.hf": "`transformers.Trainer`",
        "headwater.ops": "算子",
        "headwater.nn": "基于这些算子的模块",
        "headwater.apex": "供脚本使用的 apex",
        "headwater.apex.amp": "与 apex 相同的混合精度",
        "headwater.apex.optimizers": "NVIDIA 与昇腾 apex 的优化器",
        "headwater.apex.parallel": "沿用 apex 名称的分布式训练",
        "headwater.apex.fp16_utils": "手工转换精度的模型",
        "headwater.apex.contrib.gradient_fusion": "梯度放在连续缓冲区中",
    },
}

#: A sentence in Chinese for each name.
CHINESE = {
    "compile_step": "把模型及其优化器编译为一个完整的训练步：前向、反向、梯度裁剪与更新。",
    "Step": "一个训练步，见 `compile_step`。",
    "Step.__call__": "对一个批次执行该步，返回损失。",
    "Step.backward": "执行前向与反向并返回损失；梯度累加，直到调用 `update`。",
    "Step.update": "用累加的梯度更新参数；若梯度不是有限数则返回假，且什么都不改变。",
    "Step.close": "结束该步：参数、缓冲区和动量各自拿回自己的内存。",
    "Step.memory": "该步占用的字节数，按种类列出；给出一个批次时只做计划，不运行。",
    "Step.sync": "把其他设备上的参数、缓冲区和动量取回到 PyTorch 的张量；`state_dict` 会自动调用。",
    "Step.scale": "下一步的损失在求导前乘以的系数；梯度再除以它。",
    "Step.explain": "已编译的程序、其精度、检查结果与内存占用。",
    "Step.state_dict": "损失缩放系数，以及距下次增大的无溢出步数。",
    "Step.load_state_dict": "从 `state_dict` 恢复损失缩放系数。",
    "explain": "预先说明模型中哪些图会被编译，哪些会留在 eager 模式以及原因。",
    "Report": "一个模型的各个图。",
    "GraphReport": "TorchDynamo 的一个图。",
    "StepReport": "一个训练步到目前为止编译和检查了什么。",
    "ProgramReport": "一个训练步中的一个程序。",
    "Counters": "自上次 `headwater.reset()` 以来：TorchDynamo 给出的图、为其制作的计划、被拒绝的图。",
    "counters": "自 `reset()` 以来编译了什么。",
    "reset": "计数清零，警告可以再次发出。",
    "inspect": "导出模型（`.pt2`）的算子、参数与内存；不需要 PyTorch。",
    "check": "把导出的模型与 PyTorch 记录的结果比较；不需要 PyTorch。",
    "Error": "Headwater 拒绝或失败；`code` 是稳定的错误码。",
    "Unsupported": "不支持；`refusals` 列出全部原因。",
    "Refusal": "模型或优化器中不支持的一处。",
    "Mismatch": "第一步与 eager 模式的差别超出舍入误差；模块保持原样。",
    "UnsupportedWarning": "`torch.compile` 的一个图在别处运行：给出算子、模块与行号。",
    "prepare": "让一个 `transformers.Trainer` 实例改用整步训练。",
    "rms_norm": "最后一维上的 RMS 归一化。",
    "rms_norm_backward": "`rms_norm` 对输入和权重的梯度。",
    "embedding": "取出 `weight` 中给定下标的行；下标会被检查。",
    "embedding_dense_backward": "embedding 权重的梯度。",
    "layer_norm": "最后一维上的层归一化。",
    "cross_entropy": "交叉熵的均值。",
    "attention": "缩放点积注意力，不含 dropout。",
    "map": "让扩展中的一个算子改用 Headwater 的算子。",
    "RMSNorm": "`torch.nn.RMSNorm`，在最后一维上。",
    "Embedding": "`torch.nn.Embedding`，不支持 `max_norm` 和 `sparse`。",
    "install": "把本包安装为 `apex`；`devices` 让 npu、cuda 这些设备名表示 CPU。",
    "initialize": "为混合精度准备模型和优化器。",
    "scale_loss": "给出乘以缩放系数的损失；离开时还原梯度，溢出则跳过下一步。",
    "master_params": "优化器更新的参数，即 f32 主权重。",
    "state_dict": "每个损失缩放器的系数和连续未跳过的步数。",
    "load_state_dict": "恢复 `state_dict` 中的缩放系数。",
    "disable_casts": "其中的模型和已注册函数以 f32 计算。",
    "half_function": "装饰器：O1 下函数得到低精度输入。",
    "float_function": "装饰器：O1 下函数得到 f32 输入。",
    "promote_function": "装饰器：O1 下函数的输入提升到其中最宽的类型。",
    "register_half_function": "O1 下让某模块的函数得到低精度输入。",
    "register_float_function": "O1 下让某模块的函数得到 f32 输入。",
    "register_promote_function": "O1 下让某模块的函数输入提升到最宽的类型。",
    "FusedAdam": "apex 的 FusedAdam：AdamW，或带 L2 衰减的 Adam。",
    "FusedSGD": "apex 的 FusedSGD，即 PyTorch 的 SGD。",
    "FusedAdagrad": "apex 的 FusedAdagrad。",
    "FusedLAMB": "apex 的 FusedLAMB。",
    "FusedNovoGrad": "apex 的 FusedNovoGrad。",
    "NpuFusedSGD": "昇腾 apex 的 SGD。",
    "NpuFusedAdam": "昇腾 apex 的 Adam，带 L2 衰减。",
    "NpuFusedAdamW": "昇腾 apex 的 AdamW。",
    "NpuFusedLamb": "昇腾 apex 的 Lamb。",
    "NpuFusedAdadelta": "昇腾 apex 的 Adadelta。",
    "NpuFusedRMSprop": "昇腾 apex 的 RMSprop。",
    "NpuFusedRMSpropTF": "与 TensorFlow 相同的 RMSprop。",
    "NpuFusedBertAdam": "BERT 原始训练所用的 Adam。",
    "NpuFusedAdamP": "AdamP。",
    "DistributedDataParallel": "带 apex 参数的 PyTorch DistributedDataParallel。",
    "convert_syncbn_model": "转换为 `torch.nn.SyncBatchNorm`。",
    "FP16_Optimizer": "为 16 位参数保存 f32 主权重的优化器。",
    "network_to_half": "把模块转为 f16，批归一化保持 f32。",
    "GradientFusion": "返回模型本身：计划的反向过程本来就把梯度写在一个缓冲区里。",
}

WIDTH = 110


def signature(name: str, value: Any) -> str:
    """The call as it is written, one argument a line if it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    shown = str(inspect.Signature(parameters, return_annotation=found.return_annotation))
    plain = short(f"{name}{shown}")
    if len(plain) <= WIDTH:
        return plain
    lines, starred = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        lines.append(short(str(p)))
    returned = "" if found.return_annotation is found.empty else short(str(inspect.Signature(return_annotation=found.return_annotation)))[2:]
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){returned}"


def short(text: str) -> str:
    """Annotations without the modules that their types are in."""
    text = re.sub(r"Optional\[([^][]+)\]", r"\1 | None", text.replace("NoneType", "None"))
    return re.sub(r"\b(typing|collections\.abc|torch\.optim\.optimizer|torch\.nn\.modules\.module|torch|headwater(\.[a-z_]+)*)\.(?=[A-Z])", "", text)


def fields(value: type) -> list[str]:
    """The fields of a dataclass, with the comments above them."""
    lines, said = [], []
    for line in inspect.getsource(value).splitlines():
        if comment := re.match(r"    #: ?(.*)", line):
            said.append(comment[1])
        elif field := re.match(r"    (\w+): ([^=]+)", line):
            lines.append(f"* `{field[1]}: {field[2].strip()}`" + (f": {' '.join(said)}" if said else ""))
            said = []
    return lines


def entries(module: str) -> list[tuple[str, str, str, list[str]]]:
    """Name, signature, docstring and fields of what a module has."""
    found = []
    for name in NAMES[module]:
        value = getattr(importlib.import_module(module), name)
        text = inspect.getdoc(value) or ""
        if not inspect.isclass(value):
            found.append((name, signature(name, value), text, []))
            continue
        made = dataclasses.is_dataclass(value) or issubclass(value, Exception) or name in ("Step", "Refusal")
        own = fields(value) if dataclasses.is_dataclass(value) or issubclass(value, tuple) else []
        found.append((name, name if made else signature(name, value), text, own))
        for method, inner in vars(value).items() if name == "Step" else ():
            said = inspect.getdoc(inner) or ""
            if isinstance(inner, property):
                found.append((f"{name}.{method}", f"step.{method}", said, []))
            elif callable(inner) and (not method.startswith("_") or method == "__call__"):
                call = signature(f"step.{method}".replace(".__call__", ""), inner)
                found.append((f"{name}.{method}", call, said, []))
    return found


def page(language: str) -> str:
    about = ABOUT[language]
    lines = [about["title"], "", *textwrap.wrap(about["lead"], 130, break_long_words=False, break_on_hyphens=False), ""]
    lines += [about["head"], "|---|---|", *(f"| `{m}` | {about[m]} |" for m in NAMES), ""]
    for module in NAMES:
        lines += [f"## {module}", ""]
        for name, call, text, own in entries(module):
            lines += [f"### {name}", "", "```python", call, "```", ""]
            lines += [CHINESE[name] if language == "zh" else text.strip(), ""]
            lines += [*own, ""] if own and language == "en" else []
    return "\n".join(lines)


def main() -> int:
    good = True
    for language, path in (("en", DOCS / "python.md"), ("zh", DOCS / "zh-CN" / "python.md")):
        text = page(language)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what python/reference.py writes", file=sys.stderr)
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
