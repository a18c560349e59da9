"""The compiled part: see crates/python."""

from typing import Any, Callable, Iterable, Optional, Sequence

__version__: str

def _fail(message: str) -> None: ...
def command(args: Sequence[str]) -> int: ...
def command_json(args: Sequence[str]) -> str: ...
def open_device(name: str, threads: int) -> None: ...
def interrupt(signal: int) -> None: ...

class Program:
    random: bool
    trained: list[str]
    written: list[str]
    notes: list[str]
    def __new__(cls, json: bytes, tensors: Sequence[Any], trained: Iterable[str], function: bool = False) -> "Program": ...
    def still(self) -> "Program": ...

class Scaler:
    scales: bool
    state: tuple[float, int]
    def __new__(cls, amp: str) -> "Scaler": ...
    def resume(self, scale: float, counter: int) -> None: ...
    def next(self, found_inf: bool, largest: float) -> bool: ...

def compare(
    program: Program,
    outputs: Sequence[str],
    wanted: Sequence[str],
    feeds: Sequence[int],
    tensors: dict[str, tuple[int, int]],
    got: dict[str, tuple[int, int]],
    want: dict[str, tuple[int, int]],
) -> tuple[list[tuple[str, float, float]], list[tuple[str, float, float]]]: ...

class Context:
    idle_bytes: int
    def __new__(cls, threads: int) -> "Context": ...

class Activations: ...

class Halves:
    inputs: list[tuple[str, str, str, list[int], bool]]
    results: list[tuple[str, str, str, list[int], bool]]
    gradients: list[tuple[str, int, int, list[int], list[str]]]
    buckets: list[tuple[str, int]]
    missing: list[tuple[str, str]]
    activation_bytes: tuple[int, int]
    def __new__(cls, program: Program, context: Context, outputs: Sequence[str], wanted: Sequence[str]) -> "Halves": ...
    def forward(self, inputs: Sequence[int], results: Sequence[int]) -> Activations: ...
    def backward(
        self,
        activations: Activations,
        inputs: Sequence[int],
        results: Sequence[int],
        cotangents: Sequence[int],
        buckets: Sequence[int],
    ) -> None: ...

def planned_memory(
    program: Program,
    groups: Sequence[tuple[str, list[str]]],
    *,
    clip_norm: Optional[float],
    clip_value: Optional[float],
    accumulate: int,
    sum: bool,
    scaled: bool,
    device: str,
    threads: int,
) -> list[tuple[str, int]]: ...

class Step:
    places: dict[tuple[str, str], tuple[int, int]]
    segments: list[str]
    trained: list[str]
    missing: list[tuple[str, str]]
    def __new__(
        cls,
        program: Program,
        tensors: dict[str, tuple[int, int]],
        groups: Sequence[tuple[str, list[str]]],
        *,
        clip_norm: Optional[float],
        clip_value: Optional[float],
        accumulate: int,
        sum: bool,
        scaled: bool,
        device: str,
        threads: int,
        memory: Callable[[str, int], tuple[int, Any]],
    ) -> "Step": ...
    def add(self, program: Program) -> int: ...
    def gradients(self, program: int, feeds: Sequence[int], key: tuple[int, int], begins: bool) -> float: ...
    def update(self, groups: Sequence[tuple[float, int]]) -> tuple[float, float, bool]: ...
    def set_loss_scale(self, scale: float) -> None: ...
    def set_groups(self, settings: Sequence[str]) -> None: ...
    def update_plans(self) -> int: ...
    def upload(self, tensors: Sequence[tuple[str, str, int, int]]) -> None: ...
    def download(self, tensors: Sequence[tuple[str, str, int, int]]) -> None: ...
    def memory(self) -> list[tuple[str, int]]: ...
    def check(
        self,
        number: Optional[int],
        program: Program,
        feeds: Sequence[int],
        tensors: dict[str, tuple[int, int]],
        loss: float,
        gradients: dict[str, tuple[int, int]],
    ) -> tuple[list[tuple[str, float, float]], list[tuple[str, float, float]]]: ...
