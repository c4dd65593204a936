"""What Gravure knows of PyTorch's operators, held against schemas, tags and runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gravure
import operator_walk
import pytest
import torch
from running import need_library

need_library()

WALK = Path(__file__).with_name("operator_walk.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a walk in a process of its own, which forks: nothing else may have started a thread."""
    path = tmp_path_factory.mktemp("walk") / "report.json"
    command = [sys.executable, str(WALK), "--report", str(path)]
    sources = str(Path(gravure.__file__).parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": sources}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2400)
    assert path.is_file(), run.stderr[-4000:]
    return json.loads(path.read_text())


def test_nothing_that_is_known_of_an_operator_is_contradicted(report: Any) -> None:
    assert report["wrong"] == {}


def test_most_operators_were_run(report: Any) -> None:
    assert len(report["judged"]) > 3000


def test_what_nobody_could_judge_is_listed(report: Any) -> None:
    if not operator_walk.UNJUDGED.is_file():
        pytest.skip(f"nobody has listed the operators of torch {operator_walk.RELEASE}")
    listed = set(operator_walk.UNJUDGED.read_text().splitlines())
    found = set(report["text"].splitlines())
    assert sorted(found - listed) == [] and sorted(listed - found) == [], (
        "run tests/python/operator_walk.py --update, and look at what changed"
    )


_ROWS = (torch.ones(4, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5)
_SQUARE = torch.eye(3)

DAMAGES = [
    ("aten::native_batch_norm", _ROWS, {"writes": frozenset()}, "it writes 'running_mean'"),
    ("aten::mul_.Scalar", (_SQUARE, 2), {"writes": frozenset()}, "its schema writes 'self'"),
    ("aten::_unsafe_view", (_SQUARE, [9]), {"aliases": (frozenset(),)}, "shares the memory"),
    ("aten::dropout", (_SQUARE, 0.5, False), {"aliases": (frozenset(),)}, "shares the memory"),
    ("aten::rand_like", (_SQUARE,), {"flags": frozenset()}, "it draws from the default generator"),
    ("aten::linalg_svd", (_SQUARE,), {"reason": None}, "it calls aten::_linalg_svd"),
    ("aten::equal", (_SQUARE, _SQUARE), {"reason": None}, "it reads nothing"),
    ("_dtensor::shard_dim_alltoall", None, {"flags": frozenset()}, "does not communicate"),
]


@pytest.mark.parametrize(("name", "operands", "damage", "said"), DAMAGES, ids=lambda v: str(v)[:30])
def test_a_fact_that_is_not_true_is_noticed(
    name: str, operands: tuple[Any, ...] | None, damage: dict[str, Any], said: str
) -> None:
    schema = operator_walk.registered()[name]
    known = operator_walk.Known.of(schema)
    assert known is not None
    operator_walk.INNER["aten::_linalg_svd"] = replace(known, reason="unsafe-operator")

    def contradictions(facts: operator_walk.Known) -> list[str]:
        found = list(operator_walk.against_schema(name, schema, facts))
        if operands is not None:
            sample = operator_walk.Sample(operator_walk.overload_of(schema), operands, {})
            found += operator_walk.against_run(schema, facts, operator_walk.observe(sample, "cpu"))
        return found

    assert contradictions(known) == []
    assert any(said in each for each in contradictions(replace(known, **damage)))
