"""How a program that bundles what its forward saves is called: graphs/saved_bundle.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..text.entry_call import Call


def bind_bundle(program: Any, calls: list[Call], results: range, inputs: range) -> list[Call]:
    """Tells `program` what its forward bundles and its backward takes apart; how both are called.

    `results`, `inputs`: the members among the forward's results and the backward's placeholders.
    """
    if not results:
        return calls
    forward, backward = calls
    plain = {p for i, (p, _) in enumerate(forward.results) if i not in results}
    positions = sorted({forward.results[i][0] for i in results} - plain - {-1})
    left = [p for p in range(1 + max(p for p, _ in forward.results)) if p not in positions]

    def moved(result: tuple[int, Any]) -> tuple[int, Any]:
        return (left.index(result[0]), None) if result[0] >= 0 else result

    before, after = forward.results[: results.start], forward.results[results.stop :]
    reduced = [*map(moved, before), (len(left), None), *map(moved, after)]
    program.bundle_outputs(forward.entry, positions)

    taken = [(j, i) for j, i in enumerate(backward.taken) if i in inputs]
    members = [positions.index(forward.results[results[inputs.index(i)]][0]) for _, i in taken]
    program.bundle_inputs(backward.entry, [j for j, _ in taken], members)
    fewer = len(inputs) - 1
    others = [i if i < inputs.start else i - fewer for i in backward.taken if i not in inputs]
    return [
        replace(forward, results=reduced),
        replace(
            backward,
            arguments=backward.arguments - fewer,
            taken=[inputs.start, *others] if taken else others,
        ),
    ]
