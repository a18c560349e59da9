"""torch's tensors beside the state of a step that another device holds."""

from typing import Iterable

import torch

from headwater import _headwater
from headwater.errors import Error


class Mirror:
    """Tensors of torch's that are copies of a step's state. The device's are the newer ones after a step, until `pull`; those
    that were written here since then go to the device by `push`."""

    def __init__(self, step: _headwater.Step) -> None:
        self._step = step
        #: By role and name: the tensor, its address and its version when both sides were last equal.
        self._tensors: dict[tuple[str, str], tuple[torch.Tensor, int, int]] = {}
        #: True if the device has newer contents.
        self._behind = False

    def add(self, role: str, name: str, tensor: torch.Tensor, equal: bool) -> None:
        """Takes a tensor; `equal`: its contents are the device's."""
        version = tensor._version if equal else -1
        self._tensors[role, name] = (tensor, tensor.data_ptr(), version)

    def stepped(self) -> None:
        """Notes that the device has newer contents."""
        self._behind = True

    def push(self) -> None:
        """Copies what was written here to the device.

        Raises `Error` for what was written over contents that were old."""
        written = self._written()
        if not written:
            return
        self._refuse(written)
        self._step.upload(self._located(written))
        self._note(written)

    def pull(self) -> None:
        """Copies the device's contents here.

        Raises `Error` for what was written over contents that were old."""
        if not self._behind:
            return
        self._refuse(self._written())
        for tensor, address, _ in self._tensors.values():
            if not tensor.is_contiguous():
                tensor.data = tensor.data.contiguous()
        self._step.download(self._located(self._tensors))
        torch.autograd.graph.increment_version([t for t, _, _ in self._tensors.values()])
        self._behind = False
        self._note(self._tensors)

    def restore(self, names: set[str]) -> None:
        """Gives the device these buffers as they are here."""
        keys = [key for key in self._tensors if key[0] == "buffer" and key[1] in names]
        self._step.upload(self._located(keys))
        self._note(keys)

    def _written(self) -> list[tuple[str, str]]:
        tensors = self._tensors.items()
        return [key for key, (t, at, version) in tensors if t._version != version or t.data_ptr() != at]

    def _refuse(self, written: list[tuple[str, str]]) -> None:
        if self._behind and written:
            role, name = written[0]
            what = f"the {role} {name} was written while the device had a newer one: call step.sync() before writing"
            raise Error(what)

    def _located(self, keys: Iterable[tuple[str, str]]) -> list[tuple[str, str, int, int]]:
        self._kept = [(key, self._tensors[key][0].detach().contiguous()) for key in keys]
        return [(role, name, t.data_ptr(), t.numel() * t.element_size()) for (role, name), t in self._kept]

    def _note(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            tensor = self._tensors[key][0]
            self._tensors[key] = (tensor, tensor.data_ptr(), tensor._version)
