"""The file of input values beside a program: {entry: {input name: tensor or number}}."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..graphs.names import InputSpec
from ..torch_api.fake_tensors import storage_key


def save_inputs(entries: dict[str, list[InputSpec]], path: Path) -> None:
    """Writes what `torch::pickle_load` and `torch.load(weights_only=True)` read.

    Tensors are on the CPU: the program's text says on which device each belongs. Tensors that share
    a storage still do. Values that `forward` computes for `backward` are left out.
    """
    storages = _Storages([s.value for specs in entries.values() for s in specs])
    values: dict[str, dict[str, Any]] = {}
    for entry, specs in entries.items():
        values[entry] = {s.name: storages.on_cpu(s.value) for s in specs if s.value is not None}
    torch.save(values, path)


class _Storages:
    """Each storage is copied to the CPU once, whole if several tensors need it."""

    def __init__(self, values: list[Any]) -> None:
        self._users: dict[int, set[int]] = {}
        self._copies: dict[int, torch.UntypedStorage] = {}
        for value in values:
            if isinstance(value, torch.Tensor):
                self._users.setdefault(storage_key(value), set()).add(id(value))

    def on_cpu(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return int(value) if isinstance(value, (int, torch.SymInt)) else value
        tensor = value.detach()
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        alone = len(self._users[key]) == 1
        if alone and storage.nbytes() > 2 * tensor.nbytes and 0 not in tensor.stride():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(
                tensor
            )
        if storage.device.type == "cpu":
            return tensor
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = storage.cpu()
        plain = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return plain.set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride())
