"""Exported programs through libgravure: load, warm up, capture on the host device, replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gravure
import models
import pytest
import torch
from running import bits, need_library

need_library()

STEPS = 6


def _held(model: models.Model, program: gravure.Program) -> dict[str, torch.Tensor]:
    """The program's parameters and buffers as the module holds them, by the program's names."""
    named = dict(model.module.named_parameters(remove_duplicate=False))
    named |= dict(model.module.named_buffers(remove_duplicate=False))
    held = {}
    for slot in program.inputs():
        if slot.role in ("parameter", "buffer"):
            short = slot.name if slot.name in named else slot.name.partition(".")[2]
            held[slot.name] = named[short]
    return held


class Engraved:
    """One program bound to a copy of the module's state, so that eager's own stays eager's."""

    def __init__(self, model: models.Model, folder: Path, **options: Any) -> None:
        self.program = gravure.load(folder, **options)
        self.program.bind_saved()
        self.state = {n: t.detach().clone() for n, t in _held(model, self.program).items()}
        self.program.bind(self.state)

    def __call__(self, args: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        values = self.program.run(args)
        found: dict[str, Any] = {}
        for slot, value in zip(self.program.outputs(), values, strict=True):
            if slot.role == "loss":
                found["loss"] = value
            elif slot.role == "gradient":
                found[slot.name] = value
        return found | {f"state of {name}": tensor for name, tensor in self.state.items()}


def _eager(model: models.Model, args: tuple[torch.Tensor, ...], held: dict[str, Any]) -> Any:
    model.module.zero_grad(set_to_none=True)
    result = model.fn(*args)
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {name: t.grad for name, t in held.items() if t.grad is not None}
    return found | {f"state of {name}": tensor.detach() for name, tensor in held.items()}


def _same(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """The names whose values differ."""
    keys = left.keys() | right.keys()
    return sorted(k for k in keys if bits(left.get(k)) != bits(right.get(k)))


@pytest.mark.parametrize("name", [n for n in models.ALL if n != "checkpointed"])
def test_law_1_steps_equal_eager_in_bits(name: str, tmp_path: Path) -> None:
    model = models.ALL[name]()
    folder = gravure.export_step(model.fn, model.args, tmp_path, is_compiling=model.is_compiling)
    engraved = Engraved(model, folder)
    held = _held(model, engraved.program)
    for step in range(STEPS):
        args = models.next_args(model.args, step)
        torch.manual_seed(step)
        expected = _eager(model, args, held)
        torch.manual_seed(step)
        assert _same(engraved(args), expected) == [], f"step {step}"
    assert "captured" in engraved.program.partition_states()
    assert engraved.program.stats()["replays"] > 0


@pytest.mark.parametrize("name", ["llama", "checkpointed"])
def test_law_1_captured_equals_uncaptured(name: str, tmp_path: Path) -> None:
    model = models.ALL[name]()
    folder = gravure.export_step(model.fn, model.args, tmp_path)
    captured = Engraved(model, folder)
    reference = Engraved(model, folder, uncaptured=True)
    for step in range(STEPS):
        args = models.next_args(model.args, step)
        torch.manual_seed(step)
        expected = reference(args)
        torch.manual_seed(step)
        assert _same(captured(args), expected) == [], f"step {step}"
    assert reference.program.stats()["captures"] == 0


@pytest.fixture
def small(tmp_path: Path) -> tuple[models.Model, Path]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu().square().mean()

    model = models.Model(loss, (torch.randn(4, 8),), layer)
    return model, gravure.export_step(model.fn, model.args, tmp_path)


def test_inputs_by_name_and_in_order(small: tuple[models.Model, Path]) -> None:
    model, folder = small
    program = gravure.load(folder)
    saved = program.saved_inputs()
    by_name = program.run(saved)
    in_order = program.run([saved.get(slot.name) for slot in program.inputs()])
    assert [bits(v) for v in by_name] == [bits(v) for v in in_order]
    program.bind_saved()
    assert [bits(v) for v in program.run(model.args)] == [bits(v) for v in by_name]


def _bound_twice(program: gravure.Program, saved: dict[str, Any]) -> None:
    program.bind_saved()
    program.run(saved)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda program, saved: program.run({**saved, "nobody": 1}), "no input nobody"),
        (lambda program, saved: program.run({}), "needs the"),
        (_bound_twice, "bound"),
        (lambda program, saved: program.run([]), "takes .* inputs"),
        (lambda program, saved: program.run(saved, "backwards"), "no entry 'backwards'"),
        (lambda program, saved: program.inject_fault("lunch"), "no fault point 'lunch'"),
    ],
)
def test_wrong_calls_are_told(
    small: tuple[models.Model, Path], call: Callable[[Any, Any], Any], said: str
) -> None:
    program = gravure.load(small[1])
    with pytest.raises((KeyError, RuntimeError), match=said):
        call(program, program.saved_inputs())


def test_an_input_of_the_wrong_shape_names_it(small: tuple[models.Model, Path]) -> None:
    program = gravure.load(small[1])
    saved = program.saved_inputs() | {"x": torch.randn(5, 8)}
    with pytest.raises(RuntimeError, match='"x"|%x'):
        program.run(saved)


def test_a_device_that_is_none_is_refused(small: tuple[models.Model, Path]) -> None:
    with pytest.raises(RuntimeError, match="expected host, cuda or cuda:N, found 'tpu'"):
        gravure.load(small[1], "tpu")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"host": "aten::mm"}, "'host': expected a list of operators"),  # it would name letters
        ({"order": "up"}, "'order': expected 'levels' or 'program'"),
        ({"results": "mine"}, "'results': expected 'owned' or"),
        ({"shadow": -1}, "'shadow': expected a whole number"),
        ({"memory_growth": "much"}, "'memory_growth': expected a share"),
        ({"max_in_flight": 0}, "'max_in_flight': expected a whole number of at least 1"),
    ],
)
def test_an_option_that_is_none_is_refused(
    small: tuple[models.Model, Path], option: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gravure.load(small[1], **option)


def test_a_missing_gpu_is_told(small: tuple[models.Model, Path]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="no CUDA device"):
        gravure.load(small[1], "cuda")


@pytest.mark.parametrize("point", ["capture-begin", "capture-call", "capture-end", "launch"])
def test_law_6_a_fault_costs_a_graph_and_no_bits(
    small: tuple[models.Model, Path], point: str
) -> None:
    model, folder = small
    captured, reference = Engraved(model, folder), Engraved(model, folder, uncaptured=True)
    captured.program.inject_fault(point)
    for step in range(STEPS):
        args = models.next_args(model.args, step)
        assert _same(captured(args), reference(args)) == [], f"step {step}"
    assert any(r["kind"] == "missed" for r in captured.program.remarks())


def test_what_a_program_tells_about_itself(small: tuple[models.Model, Path]) -> None:
    model, folder = small
    engraved = Engraved(model, folder)
    assert engraved.program.entries == ["step"]
    assert engraved.program.partition_states() == ["cold"]
    before = repr(engraved.program)
    assert "device='host', entries=['step'], nodes=" in before and str(folder) in before
    assert "captured='nothing of 100 % yet'" in before and "\n" not in before
    for step in range(STEPS):
        engraved(models.next_args(model.args, step))
    assert engraved.program.partition_states() == ["captured"]
    assert "captured='100 %'" in repr(engraved.program)
    assert "nothing, as asked" in repr(gravure.load(folder, uncaptured=True))
    assert "entry step" in engraved.program.plan()
    assert "cudagraph::launch" in engraved.program.text()
    assert engraved.program.stats()["steps"] == STEPS
    assert {"kind", "pass", "name", "message"} <= engraved.program.remarks()[0].keys()
    assert engraved.program.remarks_text()
    engraved.program.shutdown()
    assert "captured='released'" in repr(engraved.program)


def test_law_5_results_outlive_the_program(small: tuple[models.Model, Path]) -> None:
    model, folder = small
    engraved = Engraved(model, folder)
    for step in range(STEPS):
        results = engraved(models.next_args(model.args, step))
    before = {name: bits(value) for name, value in results.items()}
    engraved.program.shutdown()
    del engraved
    junk = [torch.full((64,), 7.0) for _ in range(100)]
    assert {name: bits(value) for name, value in results.items()} == before
    del junk


def test_a_guard_that_fails_is_said_of_each_entry(tmp_path: Path) -> None:
    """Inputs of two entries that have one position."""
    of = "Float(4, 4, strides=[4, 1], device=cpu)"
    lines = ["gravure 1"]
    for entry in ("forward", "backward"):
        lines += [
            f'graph {entry}(%w : {of} {{parameter "w"}}, %x : {of} {{user_input "x"}}):',
            f"  %s : {of} = aten::mul.Tensor(%w, %x)",
            f"  %y : {of} = aten::add.Tensor(%s, %w)",
            '  return (%y {output "y"})',
        ]
    path = tmp_path / "two.gv"
    path.write_text("\n".join([*lines, ""]))
    program = gravure.load(path)
    x, moved = torch.rand(4, 4), torch.rand(4, 4)
    for w in [torch.rand(4, 4)] * STEPS + [moved]:
        for entry in program.entries:
            program.run([w, x], entry=entry)
    said = [r["message"] for r in program.remarks() if r["name"] == "guard-failed"]
    assert [message.split(":")[0] for message in said] == [
        'parameter "w" (input 0 of forward)',
        'parameter "w" (input 0 of backward)',
    ]
