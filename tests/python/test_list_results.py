"""Operators that return a list among other results: each member is a value of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
from running import DEVICE, bits, need_library
from torch import Tensor

need_library()

Results = tuple[Tensor, list[Tensor], Tensor]


def scaled(x: Tensor, count: int) -> Results:
    return x * 2, [x + i for i in range(count)], x.sum(0)


@pytest.fixture(scope="module")
def operators() -> Iterator[Any]:
    with torch.library._scoped_library("gravure_lists", "DEF") as library:
        library.define("scaled(Tensor x, int count) -> (Tensor, Tensor[], Tensor)")
        library.define("rows(Tensor(a) x) -> (Tensor, Tensor(a)[])")
        library.impl("scaled", scaled, "CompositeExplicitAutograd")
        library.impl("rows", lambda x: (x.sum(), list(x.unbind())), "CompositeExplicitAutograd")
        torch.library.register_fake("gravure_lists::scaled", scaled, lib=library)
        yield torch.ops.gravure_lists


@pytest.mark.parametrize("count", [0, 1, 3])
def test_its_members_are_planned_as_other_results(operators: Any, count: int) -> None:
    def step(x: Tensor) -> Tensor:
        first, members, last = operators.scaled(x.relu(), count)
        return first.sin() + sum(members, last).cos()

    run = torch.compile(step, backend="gravure")
    for i in range(6):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(i)).to(DEVICE)
        assert bits(run(x)) == bits(step(x))
    (program,) = gravure.report().graphs[0].programs
    assert program.partitions == {"step": ["captured"]}
    assert (program.remarks, program.host_nodes) == ({}, {})


def test_a_list_of_another_length_than_traced_is_an_error(operators: Any) -> None:
    made = [3]

    def grown(x: Tensor, count: int) -> Results:
        return scaled(x, made[0])

    with torch.library._scoped_library("gravure_lists", "FRAGMENT") as library:
        library.define("grown(Tensor x, int count) -> (Tensor, Tensor[], Tensor)")
        library.impl("grown", grown, "CompositeExplicitAutograd")
        torch.library.register_fake("gravure_lists::grown", scaled, lib=library)

        def step(x: Tensor) -> Tensor:
            first, members, last = torch.ops.gravure_lists.grown(x, 3)
            return first + sum(members, last)

        run = torch.compile(step, backend="gravure")
        x = torch.ones(4, 8, device=DEVICE)
        run(x)
        made[0] = 2
        with pytest.raises(RuntimeError, match="returned a list of 2 where the program has 3"):
            run(x)


def test_members_that_are_views_share_their_operands_memory(operators: Any, tmp_path: Path) -> None:
    """A member is written, and what it is a view of is read then."""
    row = "Float(3, strides=[1], device=cpu)"
    both = "Float(2, 3, strides=[3, 1], device=cpu)"
    (tmp_path / "program.gv").write_text(
        f"""gravure 1
graph step(%x : {both} {{user_input "x"}}):
  %y : {both} = aten::mul.Tensor(%x, %x)
  %sum : Float(device=cpu), %first : {row}, %second : {row} = gravure_lists::rows(%y)
  %w : {row} = aten::mul_.Scalar(%second, 3)
  %z : {both} = aten::sin(%y)
  return (%sum {{output "sum"}}, %z {{output "z"}})
"""
    )
    program = gravure.load(tmp_path, "host", poison=True)
    for i in range(6):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(i))
        y = x * x
        total = y.sum()
        y[1] *= 3
        assert [bits(value) for value in program.run([x])] == [bits(total), bits(y.sin())]
    assert program.partition_states() == ["captured"]
    assert "unexpected-alias" not in [remark["name"] for remark in program.remarks()]
