"""The compiled part: see crates/python."""

from typing import Any, Callable, Iterable, Optional, Sequence

__version__: str

def _fail(message: str) -> None: ...

class Program:
    random: bool
    trained: list[str]
    written: list[str]
    notes: list[str]
    def __new__(cls, json: bytes, tensors: Sequence[Any], trained: Iterable[str]) -> "Program": ...

class Step:
    places: dict[tuple[str, str], tuple[int, int]]
    segments: list[str]
    trained: list[str]
    missing: list[tuple[str, str]]
    planned_bytes: int
    def __new__(
        cls,
        program: Program,
        tensors: dict[str, tuple[int, int]],
        groups: Sequence[tuple[str, list[str]]],
        *,
        clip_norm: Optional[float],
        accumulate: int,
        threads: int,
        memory: Callable[[str, int], tuple[int, Any]],
    ) -> "Step": ...
    def add(self, program: Program) -> int: ...
    def gradients(self, program: int, feeds: Sequence[int], key: tuple[int, int], begins: bool) -> float: ...
    def update(self, groups: Sequence[tuple[float, int]]) -> tuple[float, bool]: ...
    def set_groups(self, settings: Sequence[str]) -> None: ...
    def check(
        self,
        number: int,
        program: Program,
        feeds: Sequence[int],
        tensors: dict[str, tuple[int, int]],
        loss: float,
        gradients: dict[str, tuple[int, int]],
    ) -> list[tuple[str, float, float]]: ...
