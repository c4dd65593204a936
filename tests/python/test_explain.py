"""gravure.explain: how a model or a step will be cut, told before anything of it runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from running import bits, need_library
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from training import Mlp, Normed, images, rows

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Broken(nn.Module):
    """Three graphs of Dynamo's, with dropout and batch norm, that assigns attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.norm(self.first(x)).relu(), 0.1)
        self.calls += 1
        torch._dynamo.graph_break()
        self.last = y * self.first.weight.sum()
        torch._dynamo.graph_break()
        return self.second(self.last).square().mean()


def _everything(model: nn.Module, values: tuple[Any, ...]) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), *values]
    found = [(id(t), bits(t), t._version, bits(t.grad), t.requires_grad) for t in tensors]
    names = [sorted(vars(module)) for module in model.modules()]
    others = [module.calls for module in model.modules() if hasattr(module, "calls")]
    return [found, names, others, bits(torch.get_rng_state()), random.getstate()]


def _loss_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    return loss


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "model": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="gravure"),
    "function": _loss_of,
    "step": lambda model: gravure.compile_step(_loss_of(model)),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(
    ("make", "batch"), [(lambda: Mlp(0.1), rows), (Normed, images)], ids=["dropout", "batch norm"]
)
def test_nothing_is_run_or_changed(way: str, make: Any, batch: Any) -> None:
    model = make()
    model(*batch(0)).sum().backward()
    call, values = WAYS[way](model), batch(1)
    before = _everything(model, values)
    explanation = gravure.explain(call, values)
    assert _everything(model, values) == before
    assert len(explanation.graphs) == 1 and not explanation.graphs[0].failure


def test_graph_breaks_leave_nothing_behind() -> None:
    model, values = Broken(), rows(0)
    before = _everything(model, values)
    explanation = gravure.explain(model, values)
    assert _everything(model, values) == before
    assert len(explanation.graphs) == 3 and not explanation.stopped
    assert any("graph_break()" in reason for reason in explanation.graph_breaks)


def test_no_kernel_runs() -> None:
    ran = []
    library = torch.library.Library("explained", "DEF")
    library.define("seen(Tensor x) -> Tensor")

    def seen(x: Tensor) -> Tensor:
        ran.append(x)
        return x.clone()

    library.impl("seen", seen, "CPU")
    torch.library.register_fake("explained::seen", torch.empty_like, lib=library)

    def call(x: Tensor) -> Tensor:
        return torch.ops.explained.seen(x * 2).relu()

    (x,) = rows(0)
    explanation = gravure.explain(call, (x,))
    assert ran == [] and explanation.graphs[0].plan["entries"][0]["calls"] == 3
    call(x)
    assert len(ran) == 1


@pytest.mark.parametrize("way", ["model", "step"])
def test_the_plan_is_the_one_that_is_run(way: str) -> None:
    model = Mlp(0.1)
    call = WAYS[way](model)
    (x,) = rows(0)
    options = {"host": ["aten::gelu"], "order": "program"}
    explained = gravure.explain(call, (x,), options=options).graphs[0]
    if way == "model":
        torch.compile(model, backend="gravure", options=options)(x).sum().backward()
    else:
        gravure.compile_step(_loss_of(model), options=options)(x)
    program = gravure.report().graphs[-1].programs[0]
    assert explained.host_nodes == program.host_nodes and explained.host_nodes
    planned = {entry: len(states) for entry, states in program.partitions.items()}
    found = dict.fromkeys(planned, 0)
    for partition in explained.plan["partitions"]:
        found[partition["entry"]] += 1
    assert found == planned and sum(found.values()) > 0


def test_what_is_printed() -> None:
    def loss(x: Tensor) -> Tensor:
        scale = model(x).sum().item()
        torch._check(scale != 3)
        return model(x).square().mean() * scale

    model = Mlp()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        explanation = gravure.explain(gravure.compile_step(loss), rows(0))
    text = str(explanation)
    assert "1 on the host, host-sync: aten::_local_scalar_dense at test_explain.py:" in text
    assert "160 bytes staged a step; planned arena of" in text and "partitions of" in text
    data = json.loads(explanation.as_json())
    plan = data["graphs"][0]["plan"]
    assert plan["staged_bytes"] == 5 * 8 * 4  # x
    assert plan["arena_bytes"] >= plan["live_bytes"] > 0
    assert {"kind", "name", "node", "source"} <= data["graphs"][0]["remarks"][0].keys()


def test_it_does_not_change_what_is_compiled_next() -> None:
    """Another batch size would become symbolic, and a full cache would refuse to compile."""
    model = Mlp()
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for size in range(2, 6):
            assert not gravure.explain(model, (torch.randn(size, 8),)).stopped
        torch.compile(model, backend="gravure")(torch.randn(7, 8)).sum().backward()
    assert gravure.report().graphs[-1].programs[0].sizes == []


def test_what_is_compiled_already_stays() -> None:
    model = Mlp()
    compiled = torch.compile(model, backend="gravure")
    (x,) = rows(0)
    compiled(x).sum().backward()
    before = [graph.number for graph in gravure.report().graphs]
    gravure.explain(compiled, (x,))
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x).sum().backward()
    assert [graph.number for graph in gravure.report().graphs] == before


def test_symbolic_sizes() -> None:
    def call(x: Tensor) -> Tensor:
        return (x * 2).relu().sum(0)

    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    graph = gravure.explain(call, (x,)).graphs[0]
    assert graph.sizes == [6] and not graph.failure
    assert "Float(6, 4" in graph.text


def test_a_value_that_python_needs_ends_it() -> None:
    model = Mlp()

    def call(x: Tensor) -> Tensor:
        y = model(x)
        return y * 2 if y.sum().item() > 0 else y

    explanation = gravure.explain(call, rows(0))
    assert len(explanation.graphs) == 1
    assert "needs a value: aten._local_scalar_dense" in explanation.stopped
    assert "seen up to here" in str(explanation)


def test_a_backward_inside_ends_it() -> None:
    model = Mlp()

    def train(x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    explanation = gravure.explain(train, rows(0))
    assert len(explanation.graphs) == 1 and "compile_step" in explanation.stopped
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_become_a_program_is_told() -> None:
    def call(x: Tensor) -> Tensor:
        return while_loop(lambda x: x.sum() < 0, lambda x: (x + 1,), (x,))[0]

    graph = gravure.explain(call, rows(0)).graphs[0]
    assert "while_loop" in graph.failure and "runs as it is" in str(graph)
    with pytest.raises(gravure.ExportError, match="does not require a gradient"):
        gravure.explain(gravure.compile_step(lambda x: x.sum()), rows(0))


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="not a int"):
        gravure.explain(3)  # type: ignore[arg-type]


def test_one_tensor_is_one_argument() -> None:
    """And not its rows: a tensor of one row was explained as a vector, without a word."""
    found = gravure.explain(lambda x: x.mm(torch.ones(3, 2)).sum(), torch.randn(1, 3))
    assert found.stopped == "" and [graph.failure for graph in found.graphs] == [""]


def test_a_mapping_is_one_argument() -> None:
    found = gravure.explain(lambda batch: batch["x"].sin().sum(), {"x": torch.randn(3)})
    assert found.stopped == "" and len(found.graphs) == 1


@pytest.mark.parametrize("function", [gravure.explain, gravure.diagnose])
def test_keywords_of_the_model_are_told_their_place(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r'no argument input_ids, labels; .*"input_ids": …'):
        function(Mlp(), input_ids=1, labels=2)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="did you mean 'host'"):
        gravure.explain(Mlp(), rows(0), options={"hots": []})


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        (Mlp, (), r"Mlp cannot be called .* missing a required argument: 'x'; .*explain\(fn"),
        (lambda: _loss_of(Mlp()), (1, 2), "loss cannot be called .* too many positional"),
        (lambda: gravure.compile_step(_loss_of(Mlp())), (), "loss cannot be called .* 'x'"),
    ],
)
def test_arguments_that_do_not_fit_are_an_error(
    made: Callable[[], Any], given: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        gravure.explain(made(), given)


def test_a_hook_that_gives_a_module_its_arguments_is_let_be() -> None:
    model = Mlp()
    model.register_forward_pre_hook(lambda module, args: rows(0))
    assert gravure.explain(model).graphs
