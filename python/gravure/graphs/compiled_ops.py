"""Compiled code as an operator: what Inductor made of a region of a program, called by name.

A program that holds one calls Python in warm-up and capture (and in the emulated replays of the
host device), never in a replay on a GPU. `ir/facts/compiled_op.h` says what passes know of it.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..library.load import program_class
from ..library.namespace import LIBRARY
from ..torch_api.dispatch import not_traced, plainly
from .attention_seeds import place_seeds

_SCHEMA = "(str name, int calls, Tensor[] inputs, int[] numbers=[]) -> Tensor[]"
LIBRARY.define(f"compiled{_SCHEMA}")
LIBRARY.define(f"compiled_random{_SCHEMA}", tags=(torch.Tag.nondeterministic_seeded,))
_COMMUNICATING = (
    "(str name, int calls, Tensor[] inputs, str[] groups, str[] collectives, int[] numbers=[])"
    " -> Tensor[]"
)
LIBRARY.define(f"compiled_communicating{_COMMUNICATING}")
LIBRARY.define(
    f"compiled_communicating_random{_COMMUNICATING}", tags=(torch.Tag.nondeterministic_seeded,)
)
LIBRARY.define(
    "compiled_donated(str name, int calls, Tensor[] inputs, Tensor(a!)[] donated) -> Tensor[]"
)

_NUMBERS = itertools.count(1)
_LIVE: weakref.WeakValueDictionary[str, CompiledCode] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory. None stands for what is known only at run time."""

    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]

    @functools.cached_property
    def is_open(self) -> bool:
        return None in self.size or None in self.stride

    def fits(self, tensor: Tensor) -> bool:
        """Whether the sizes are these."""
        if not self.is_open or len(self.size) != tensor.dim():
            return tensor.shape == self.size
        sizes = zip(tensor.shape, self.size, strict=True)
        return all(wanted is None or found == wanted for found, wanted in sizes)

    def conforms(self, tensor: Tensor) -> bool:
        """Whether sizes and strides are these; no stride matters where there is one element."""
        if not self.fits(tensor):
            return False
        if self.is_open or tensor.numel() == 0 or tensor.stride() == self.stride:
            return True
        strides = zip(tensor.shape, tensor.stride(), self.stride, strict=True)
        return all(size == 1 or found == wanted for size, found, wanted in strides)

    def seen_in(self, tensor: Tensor) -> Tensor:
        """The same memory in these sizes, where it has as many elements in the same order.

        Inductor ends a reduction over two axes with a sum that leaves out the axes of one element
        (`mix_order_reduction`), and goes by the memory alone.
        """
        if self.fits(tensor) or self.is_open or not tensor.is_contiguous():
            return tensor
        same = tensor.numel() == math.prod(self.size)  # type: ignore[arg-type]
        return tensor.view(self.size) if same else tensor  # type: ignore[arg-type]

    def copy_of(self, tensor: Tensor) -> Tensor:
        """A copy that lies so. Raises RuntimeError for other sizes."""
        if not self.fits(tensor):
            raise RuntimeError(
                f"compiled code met a tensor of {list(tensor.shape)} where its graph has "
                f"{list(self.size)}"
            )
        size, stride = (tensor.shape, tensor.stride()) if self.is_open else (self.size, self.stride)
        copy = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor)


class CompiledCode:
    """A function of tensors, and ints after them, as `gravure::compiled` or one of its kind.

    The last `donated` of its tensors it may write over. `collectives`: what it communicates, by
    groups' names. `seeds`: which of its tensors attention_seeds.py is about. It lives as long as
    somebody holds it; a program that calls it by its name then does not.
    """

    def __init__(
        self,
        label: str,
        run: Callable[[list[Any]], Sequence[Tensor]],
        inputs: list[Layout],
        outputs: list[Layout],
        *,
        random: bool,
        donated: int = 0,
        collectives: Sequence[tuple[str, str]] = (),
        seeds: Collection[int] = (),
    ) -> None:
        assert not ((random or collectives) and donated)
        self.name = f"{label} #{next(_NUMBERS)}"
        kind = "compiled_donated" if donated else "compiled"
        kind += "_communicating" * bool(collectives) + "_random" * random
        self.operator = getattr(torch.ops.gravure, kind).default
        self._collectives = collectives
        self._seeds = seeds
        self._kept = len(inputs) - donated
        self._run = run
        self._inputs = inputs
        self._outputs = outputs
        _LIVE[self.name] = self

    def arguments(self, calls: int, inputs: Any, numbers: Any) -> tuple[Any, ...]:
        """Of its operator, where nothing is donated. `calls`: the operator calls that it is for."""
        met = [list(each) for each in zip(*self._collectives, strict=True)]
        return (self.name, calls, inputs, *met, numbers)

    def __call__(self, inputs: list[Tensor], numbers: list[int]) -> list[Tensor]:
        """Each result has the strides of the graph, and memory that no input and no other result
        has. One may lie where an input was that the code has let go of.

        Of `inputs` those that the runtime handed over have no memory from watch_operands() on.
        """
        program = program_class()
        results = []
        addresses = [tensor.untyped_storage().data_ptr() for tensor in inputs]
        with plainly():
            given: list[Any] = program.watch_operands(inputs)
            watched = [*map(program.is_watched_operand, given)]
            held = set(addresses[: self._kept])
            for at, layout in enumerate(self._inputs):
                # The graph says that nobody else has the memory of one that is donated.
                is_shared = at >= self._kept and addresses[at] in held
                if is_shared or not layout.conforms(given[at]):
                    given[at] = layout.copy_of(given[at])
                held.add(addresses[at])
            place_seeds(given, self._seeds)
            given += numbers
            made = self._run(given)  # the list is the code's to empty, and nobody else's
        pairs = zip(addresses, watched, strict=True)
        taken = {address for address, is_watched in pairs if not is_watched}
        for found, layout in zip(made, self._outputs, strict=True):
            tensor = layout.seen_in(found)
            address = tensor.untyped_storage().data_ptr()
            is_taken = address in taken or program.is_watched_operand(tensor)
            if (is_taken and tensor.numel() > 0) or not layout.conforms(tensor):
                tensor = layout.copy_of(tensor)
                address = tensor.untyped_storage().data_ptr()
            taken.add(address)
            results.append(tensor)
        return results


def _call(
    name: str, _calls: int, inputs: list[Tensor], numbers: Sequence[int] = ()
) -> list[Tensor]:
    code = _LIVE.get(name)
    if code is None:
        raise RuntimeError(
            f'the compiled code "{name}" is gone; keep what torch.compile or compile_step returned '
            "for as long as its program runs"
        )
    return code(inputs, list(numbers))


def _call_donated(
    name: str, calls: int, inputs: list[Tensor], donated: list[Tensor]
) -> list[Tensor]:
    return _call(name, calls, [*inputs, *donated])


def _call_communicating(
    name: str,
    calls: int,
    inputs: list[Tensor],
    _groups: Sequence[str],
    _collectives: Sequence[str],
    numbers: Sequence[int] = (),
) -> list[Tensor]:
    return _call(name, calls, inputs, numbers)


for _name in ("compiled_communicating", "compiled_communicating_random"):
    LIBRARY.impl(_name, not_traced(_call_communicating), "CompositeExplicitAutograd")
for _name in ("compiled", "compiled_random"):
    # A backward that autograd calls without Python may run where Dynamo watches.
    LIBRARY.impl(_name, not_traced(_call), "CompositeExplicitAutograd")
LIBRARY.impl("compiled_donated", not_traced(_call_donated), "CompositeExplicitAutograd")
