"""Where a graph with open sizes finds the values of its integer symbols: in its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ..torch_api.fake_tensors import expression_of, is_nested_number

# Which argument, and which of its sizes; -1: the argument itself.
Source = tuple[int, int]


class SymbolSizes(dict[Any, Source]):
    """By symbol of one graph, in order, where its value is found."""

    @classmethod
    def of(cls, module: fx.GraphModule) -> SymbolSizes:
        """Of those symbols that stand alone in an argument, or in one of its sizes."""
        found = cls()
        for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
            value = node.meta.get("val")
            is_tensor = isinstance(value, torch.Tensor)
            for d, size in enumerate(value.shape if is_tensor else [value]):
                symbolic = isinstance(size, torch.SymInt) and not is_nested_number(size)
                if symbolic and (symbol := expression_of(size)).is_Symbol:
                    found.setdefault(symbol, (i, d if is_tensor else -1))
        return found

    def read(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The values that they have in a call."""
        return tuple([args[i] if d < 0 else args[i].shape[d] for i, d in self.values()])

    def known(self, sizes: tuple[int, ...]) -> dict[Any, int]:
        """The values by symbol. Of no sizes nothing is known."""
        return dict(zip(self, sizes, strict=False))

    def shared_with(self, other: SymbolSizes) -> SymbolSizes:
        """Those that `other` has, too, where `other` finds them; in this order."""
        return SymbolSizes({symbol: other[symbol] for symbol in self if symbol in other})
