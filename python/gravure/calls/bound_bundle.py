"""How a program that bundles what its forward saves is called: graphs/saved_bundle.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..text.entry_call import Call


@dataclass(frozen=True)
class Bundle:
    """What a forward bundles and its backward takes apart, and how both are called.

    Its numbers are positions among the outputs and inputs of entries.
    """

    calls: list[Call]  # of the forward and the backward, with the bundle as one value
    outputs: list[int]  # of the forward: the members of the bundle
    inputs: list[int]  # of the backward: those that are members
    members: list[int]  # for each of `inputs`, which of `outputs` it is

    def bind(self, program: Any) -> None:
        """Has `program` make the bundle, and take it apart."""
        forward, backward = self.calls
        program.bundle_outputs(forward.entry, self.outputs)
        program.bundle_inputs(backward.entry, self.inputs, self.members)


def bundle_of(calls: list[Call], results: range, inputs: range) -> Bundle:
    """The bundle of a program that is called by `calls`, which know nothing of it.

    `results`, `inputs`: its members, by position among the forward's results and the backward's
    placeholders.
    """
    forward, backward = calls
    plain = {p for i, (p, _) in enumerate(forward.results) if i not in results}
    positions = sorted({forward.results[i][0] for i in results} - plain - {-1})
    member = {p: i for i, p in enumerate(positions)}
    others = (p for p in range(1 + max(p for p, _ in forward.results)) if p not in member)
    left = {p: i for i, p in enumerate(others)}

    def moved(result: tuple[int, Any]) -> tuple[int, Any]:
        return (left[result[0]], None) if result[0] >= 0 else result

    before, after = forward.results[: results.start], forward.results[results.stop :]
    reduced = [*map(moved, before), (len(left), None), *map(moved, after)]
    taken = [(j, i) for j, i in enumerate(backward.taken) if i in inputs]
    members = [member[forward.results[results[inputs.index(i)]][0]] for _, i in taken]
    fewer = len(inputs) - 1
    further = [i if i < inputs.start else i - fewer for i in backward.taken if i not in inputs]
    reduced_calls = [
        replace(forward, results=reduced),
        replace(
            backward,
            arguments=backward.arguments - fewer,
            taken=[inputs.start, *further] if taken else further,
        ),
    ]
    return Bundle(reduced_calls, positions, [j for j, _ in taken], members)
