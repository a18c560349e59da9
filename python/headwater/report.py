"""`headwater.explain`: what `torch.compile(model, backend="headwater")` would do with a model, before it
does; and what a `Step` has done."""

import html
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

import torch
from torch._dynamo.utils import counters as dynamo_counters

from headwater import _headwater, backend, eager
from headwater.errors import Error, Refusal, Unsupported
from headwater.function import capture


@dataclass
class GraphReport:
    """A graph of TorchDynamo."""

    #: Calls of torch's functions in it.
    calls: int
    #: Why it would run in eager mode; empty if it would not.
    refusals: list[Refusal] = field(default_factory=list)
    #: Arguments that require a gradient and get none, and why.
    without_gradient: list[tuple[str, str]] = field(default_factory=list)
    #: Bytes from a forward pass to its backward pass, and how many of these the backward pass reads.
    activation_bytes: tuple[int, int] = (0, 0)
    #: Notes of the importer: parts of the program that it dropped or assumed.
    notes: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The graphs of a model."""

    graphs: list[GraphReport]
    #: Places at which TorchDynamo ends a graph, and how often.
    breaks: dict[str, int]

    @property
    def refusals(self) -> list[Refusal]:
        """All reasons why a graph would run in eager mode."""
        return [r for graph in self.graphs for r in graph.refusals]

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph{'s' * (len(self.graphs) != 1)}"]
        for i, graph in enumerate(self.graphs):
            if graph.refusals:
                lines.append(f"  {i}: {graph.calls} calls, in eager mode:")
                lines += [f"     {r}" for r in graph.refusals]
            else:
                held, read = graph.activation_bytes
                lines.append(f"  {i}: {graph.calls} calls, one plan; activations {held:,} bytes, of which {read:,} are read later")
            lines += [f"     no gradient for {name}: {why}" for name, why in graph.without_gradient]
            lines += [f"     note: {note}" for note in graph.notes]
        lines += [f"  graph ends {count} ×: {reason.splitlines()[0]}" for reason, count in self.breaks.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass
class ProgramReport:
    """A program of a step."""

    #: Dtype and sizes of what is fed.
    sizes: list[str]
    #: Calls of torch's functions in it.
    calls: int
    #: True if the model was in training mode.
    training: bool
    #: Notes of the importer: parts of the program that it dropped or assumed.
    notes: list[str] = field(default_factory=list)


@dataclass
class StepReport:
    """The programs that a `Step` has compiled, and what it has checked so far."""

    programs: list[ProgramReport]
    #: Such as "f32" or "O2 in bf16".
    precision: str
    #: Times that the update was planned: once for a state, and again when a setting of the optimizer that is a constant of
    #: its plan has changed.
    update_plans: int
    #: Values of the first step that agree with eager mode's within a bound that is wider than the value
    #: itself, so that nothing is proved of them: name, relative error, bound. `None` if the step was not
    #: compared.
    unproved: Optional[list[tuple[str, float, float]]]
    #: Bytes, by kind.
    memory: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{len(self.programs)} program{'s' * (len(self.programs) != 1)}, {self.precision}"]
        if self.update_plans > 1:
            lines.append(f"the update was planned {self.update_plans} times, for settings of the optimizer have changed")
        for i, p in enumerate(self.programs):
            mode = "training" if p.training else "evaluation"
            lines.append(f"  {i}: {p.calls} calls, {mode} mode, fed {', '.join(p.sizes) or 'nothing'}")
            lines += [f"     note: {note}" for note in p.notes]
        if self.unproved is None:
            lines.append("the first step was not compared with eager mode")
        elif not self.unproved:
            lines.append("the first step agrees with eager mode within bounds smaller than each value that is not 0")
        else:
            lines.append("the first step agrees with eager mode; not proved, for their bounds are wider than the values:")
            lines += [f"  {name}: relative error {error:.2e}, bound {bound:.2e}" for name, error, bound in self.unproved]
        lines += [f"{kind}: {size:,} bytes" for kind, size in self.memory.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """The graphs that TorchDynamo makes of `model(*args, **kwargs)`, and what would run in eager mode and why.

    The model runs once, in eager mode; its buffers, attributes and torch's generator are put back."""
    graphs: list[GraphReport] = []

    def record(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        calls = sum(node.op.startswith("call") for node in graph.graph.nodes)
        report = GraphReport(calls)
        graphs.append(report)
        values = [int(e) if isinstance(e, torch.SymInt) else e for e in examples]
        names = backend.names(graph)
        try:
            if torch.is_autocast_enabled("cpu"):
                raise Unsupported([Refusal("torch.autocast around the call")])
            function = capture(graph, values, names)
            cotangents = tuple(d and bool(function.wanted) for d in function.differentiable)
            halves = backend._Half(function, _headwater.Context(torch.get_num_threads()), cotangents).halves
        except Unsupported as e:
            report.refusals = e.refusals
        except Error as e:
            report.refusals = [Refusal(str(e))]
        else:
            own = {inner: names[at] for at, inner in function.names.items()}
            report.without_gradient = [(own[name], reason) for name, reason in halves.missing]
            report.activation_bytes = halves.activation_bytes
            report.notes = function.program.notes
        return graph.forward

    modules = [model] if isinstance(model, torch.nn.Module) else []
    before = dict(dynamo_counters["graph_break"])
    with eager.traceless(modules):
        torch.compile(model, backend=record, isolate_recompiles=True)(*args, **kwargs)
    after = dynamo_counters["graph_break"]
    return Report(graphs, {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)})
