"""torch.compile(backend="gravure") trains as eager does, bit for bit, whatever a user does."""

from __future__ import annotations

import copy
import gc
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gravure
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from gravure.runtime import library_path
from running import bits
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from training import Side, replays, same_as_eager, state_of, train_step, uncaptured

try:
    library_path()
except FileNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch.manual_seed(0)
    gc.collect()
    yield
    torch._dynamo.reset()
    gc.collect()


def rows(_: int) -> tuple[Tensor]:
    return (torch.randn(5, 8),)


def images(_: int) -> tuple[Tensor]:
    return (torch.randn(3, 3, 8, 8),)


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.gelu(self.first(x)), self.dropout, self.training))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_two_layers_are_captured_and_replayed() -> None:
    report = same_as_eager(Mlp(), rows)
    assert len(report.graphs) == 1 and not report.graphs[0].failure
    program = report.graphs[0].programs[0]
    assert program.partitions == {"forward": ["captured"], "backward": ["captured"]}
    assert program.stats["replays"] == 10  # two warm-ups of each entry, then five of seven steps


def test_dropout_draws_what_eager_draws() -> None:
    assert replays(same_as_eager(Mlp(0.15), rows))


def test_running_statistics_are_written() -> None:
    assert replays(same_as_eager(Normed(), images))


def test_activation_checkpointing_keeps_its_masks() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def _block(self, x: Tensor, layer: nn.Module) -> Tensor:
            return x + F.dropout(F.gelu(layer(x)), 0.3, self.training)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(self._block, x, layer, use_reentrant=False)
            return x

    report = same_as_eager(Checkpointed(), rows)
    assert replays(report)
    assert any("uncapturable-rng" in node for node in report.graphs[0].programs[0].host_nodes)


def test_graph_breaks_and_several_frames() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Mlp(), nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            y = self.parts[0](x)
            torch._dynamo.graph_break()
            return self.parts[1](y.relu())

    report = same_as_eager(Broken(), rows)
    assert len(report.graphs) == 2 and all(graph.programs for graph in report.graphs)


class Aliases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x)
        wide = y.expand(2, *y.shape)
        return y.t(), y, y.view(-1), x.view(-1), wide, self.linear.weight, x[:, ::2] + 0, wide + 1


def _inference(model: Any, _: Any, batch: tuple[Tensor, ...]) -> Any:
    with torch.no_grad():
        return model(*batch)


@pytest.mark.parametrize("step", [train_step, _inference])
def test_outputs_that_are_views(step: Any) -> None:
    same_as_eager(Aliases(), rows, step)


@pytest.mark.parametrize("steps", [1, 6])
def test_outputs_share_memory_as_in_eager(steps: int) -> None:
    class Shared(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x + 1
            return y, y.view(-1), y[1:], (x * 2).expand(3, *x.shape)

    compiled = torch.compile(Shared(), backend="gravure")
    for _ in range(steps):
        with torch.no_grad():
            whole, flat, tail, wide = compiled(torch.zeros(4, 2))
    assert wide.stride() == (0, 2, 1)
    flat[7] = 5
    assert whole[3, 1] == 5 and tail[2, 1] == 5


def test_a_buffer_and_an_argument_are_written_in_place() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.mean(0))
            self.count += 1
            x.mul_(2)
            return self.linear(x + self.mean)

    same_as_eager(Writes(), rows)


def test_none_and_numbers_as_arguments() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor | None, scale: int) -> tuple[Any, ...]:
            y = self.linear(x) * scale
            return (y if mask is None else y * mask), None, scale

    same_as_eager(Optional(), lambda i: (*rows(i), None if i % 2 else torch.rand(8), i % 3))


def test_inference_without_a_gradient() -> None:
    report = same_as_eager(Mlp(), rows, _inference)
    assert report.graphs[0].programs[0].partitions == {"step": ["captured"]}


@pytest.mark.parametrize("model", [Mlp(0.2), Normed()])
def test_evaluation_between_training_steps(model: nn.Module) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        trained = train_step(model, optimizer, batch)
        model.eval()
        with torch.no_grad():
            evaluated = model(*batch)
        model.train()
        return trained, evaluated

    batches = images if isinstance(model, Normed) else rows
    report = same_as_eager(model, batches, step)
    assert len(report.graphs) == 2 and all(g.programs[0].stats["replays"] for g in report.graphs)


def test_gradients_accumulate_over_micro_batches() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        losses = []
        for k in range(3):
            loss = model(batch[0] + k).square().mean() / 3
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    assert replays(same_as_eager(Mlp(), rows, step)) > 30


@pytest.mark.parametrize("reverse", [False, True])
def test_two_forwards_before_a_backward(reverse: bool) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        losses = [model(x).square().mean() for x in (batch[0], batch[0] * 2)]
        for loss in reversed(losses) if reverse else losses:
            loss.backward()
        optimizer.step()
        return [loss.detach() for loss in losses]

    assert replays(same_as_eager(Mlp(0.2), rows, step))


def test_one_backward_through_two_forwards() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        loss = (model(batch[0]) + model(batch[0] * 2)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    same_as_eager(Mlp(), rows, step)


def test_retain_graph_keeps_saved_values() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        loss = model(*batch).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert replays(same_as_eager(Mlp(), rows, step))


def test_double_backward_is_an_error() -> None:
    model = torch.compile(Mlp(), backend="gravure")
    x = torch.randn(5, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_autocast() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            result = model(*batch)
        loss = result.float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), result

    assert replays(same_as_eager(Mlp(0.1), rows, step))


def test_results_that_are_held_stay_as_they_are() -> None:
    model = torch.compile(Mlp(), backend="gravure", options={"poison": True})
    held = []
    for i in range(7):
        result = model(torch.full((5, 8), float(i)))
        result.sum().backward()
        held.append((result, bits(result)))
        assert all(bits(tensor) == before for tensor, before in held)


def test_another_batch_size_compiles_anew() -> None:
    report = same_as_eager(Mlp(), lambda i: (torch.randn((5, 7, 3)[i // 4], 8),), steps=12)
    assert len(report.graphs) == 2 and replays(report)


def test_dynamic_sizes_are_captured_one_by_one() -> None:
    report = same_as_eager(
        Mlp(0.2), lambda i: (torch.randn((5, 7, 3)[i % 3], 8),), steps=15, dynamic=True
    )
    (graph,) = report.graphs
    assert sorted(p.sizes for p in graph.programs) == [[3], [5], [7]]
    assert all(p.stats["replays"] for p in graph.programs)


def test_more_sizes_than_allowed_run_uncaptured(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(
            Mlp(),
            lambda i: (torch.randn(2 + i % 4, 8),),
            steps=12,
            dynamic=True,
            options={"max_shapes": 2},
        )
    assert "max_shapes" in caplog.text
    assert [p.sizes for p in report.graphs[0].programs] == [[2], [3], []]


def test_tensors_that_are_read_on_the_host() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            parts = self.linear(x).split(sizes.tolist())
            return torch.cat([(i + 1) * part for i, part in enumerate(parts)]).relu()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        report = same_as_eager(
            Reads(), lambda i: (torch.randn(6, 8), torch.tensor([1 + i % 3, 2, 3 - i % 3]))
        )
    assert any("host-sync" in node for graph in report.graphs for node in _host_nodes(graph))


def _host_nodes(graph: Any) -> list[str]:
    return [node for program in graph.programs for node in program.host_nodes]


def _triple(parameter: Tensor) -> None:
    parameter.grad.mul_(3)


def test_hooks_on_parameters_run() -> None:
    model, twin = Mlp(), Mlp()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="gravure")
    for each in (model, twin):
        each.first.weight.register_hook(lambda gradient: gradient * 2)
        each.second.weight.register_post_accumulate_grad_hook(_triple)
    for _ in range(5):
        x = torch.randn(5, 8)
        for each, call in ((model, compiled), (twin, twin)):
            each.zero_grad()
            call(x).square().sum().backward()
        assert state_of(model) == state_of(twin)


def test_a_replaced_parameter_is_used() -> None:
    model, twin = nn.Linear(8, 4), nn.Linear(8, 4)
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="gravure")
    for i in range(8):
        if i == 4:
            for each in (model, twin):
                each.weight = nn.Parameter(torch.full((4, 8), 0.5))
        x = torch.randn(3, 8)
        results = compiled(x), twin(x)
        for each, result in zip((model, twin), results, strict=True):
            each.zero_grad()
            result.square().sum().backward()
        assert bits(results[0]) == bits(results[1])
        assert bits(model.weight.grad) == bits(twin.weight.grad)


def test_threads_take_turns() -> None:
    model = Mlp()
    compiled = torch.compile(model, backend="gravure", options={"poison": True})
    x = torch.randn(5, 8)
    with torch.no_grad():
        expected = bits(model(x))
        for _ in range(4):
            compiled(x)

        def work(_: int) -> bool:
            with torch.no_grad():
                return all(bits(compiled(x)) == expected for _ in range(50))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(8)))


def _layers() -> tuple[nn.Sequential, nn.Sequential]:
    class Layer(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return x + F.pad(super().forward(x), (0, 4))

    model = nn.Sequential(*[Layer(0.2) for _ in range(4)])
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("limit", [256, 2])
def test_layers_that_are_compiled_one_by_one(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    older = [graph.number for graph in gravure.report().graphs]
    model, twin = _layers()
    for layer in model:
        layer.compile(backend="gravure", options={"poison": True, "max_modules": limit})
    sides = Side(model, model), Side(twin, twin)
    with caplog.at_level(logging.WARNING, "gravure"):
        for i in range(9):
            batch = rows(i)
            found, expected = (side.run(train_step, batch, i) for side in sides)
            assert found == expected and state_of(model) == state_of(twin)
    graphs = [graph for graph in gravure.report().graphs if graph.number not in older]
    served = sum(p.stats["replays"] > 0 for graph in graphs for p in graph.programs)
    if limit > 4:
        assert served == 4 and len(graphs) < 4 and not caplog.text
    else:
        assert served >= 2 and "max_modules" in caplog.text


def test_modules_of_one_class_in_turn() -> None:
    models = [Mlp(0.1) for _ in range(3)]
    twins = copy.deepcopy(models)
    call = torch.compile(lambda model, x: model(x), backend="gravure", options={"poison": True})
    for i in range(12):
        x = torch.randn(5, 8)
        seen = []
        for run, group in ((call, models), (lambda model, x: model(x), twins)):
            torch.manual_seed(i)
            loss = sum(run(model, x).square().sum() for model in group[: 1 + i % 3])
            loss.backward()
            seen.append([bits(loss), *map(state_of, group)])
        assert seen[0] == seen[1]


@pytest.mark.parametrize("dynamic", [None, True])
def test_saved_values_on_the_cpu_of_several_sizes(dynamic: bool | None) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return train_step(model, optimizer, batch)

    sizes = lambda i: (torch.randn(2 + i % 3, 8),)  # noqa: E731
    same_as_eager(Mlp(0.1), sizes, step, steps=10, dynamic=dynamic)


def test_saved_values_on_the_cpu() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return train_step(model, optimizer, batch)

    same_as_eager(Mlp(0.1), rows, step)


def test_compiled_autograd() -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        with compiled_autograd._enable(torch.compile(backend="gravure")):
            return train_step(model, optimizer, batch)

    model = Mlp()
    twin = copy.deepcopy(model)
    sides = Side(model, torch.compile(model, backend="gravure")), Side(twin, twin)
    for i in range(5):
        batch = rows(i)
        found = sides[0].run(step, batch, i)
        assert found == sides[1].run(train_step, batch, i) and state_of(model) == state_of(twin)


def test_tensor_subclasses() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gravure", options={"poison": True})
    for _ in range(6):
        x = torch.randn(5, 8)
        found = []
        for each, call in ((model, compiled), (twin, twin)):
            each.zero_grad()
            result = call(TwoTensor(x, x * 2))
            result.sum().backward()
            grad = each[0].weight.grad
            found.append([bits(t) for t in (result.a, result.b, grad.a, grad.b)])
        assert found[0] == found[1]


def test_dynamic_sizes_with_checkpointed_dropout() -> None:
    class Checkpointed(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    sizes = lambda i: (torch.randn(2 + i % 2, 8),)  # noqa: E731
    assert replays(same_as_eager(Checkpointed(0.3), sizes, steps=10, dynamic=True))


# ---- what cannot be compiled


def test_an_lstm_runs_as_it_is_where_it_must() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            scale = torch.ops.prims.cbrt(x.detach()).mean()
            return self.lstm(x)[0] * self.weight * scale

    with torch._dynamo.config.patch(allow_rnn=True):
        report = same_as_eager(Tagger(), lambda i: (torch.rand(2, 5, 8),))
    assert "prims::cbrt" in report.graphs[0].failure


def test_nested_tensors_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(8, 4)
    compiled = torch.compile(model, backend="gravure")
    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
    with caplog.at_level(logging.WARNING, "gravure"):
        assert bits(compiled(x).values()) == bits(model(x).values())
    assert "nested tensor" in caplog.text


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.prims.cbrt(x.detach()) * self.weight


def test_what_cannot_be_imported_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gravure"):
        report = same_as_eager(Sparse(), rows)
    assert "prims::cbrt" in report.graphs[0].failure and not report.graphs[0].programs
    for part in ("prims::cbrt", "only Python knows this operator", "compute this with"):
        assert part in caplog.text  # node, reason, remedy
    assert "runs as it is" in str(report)


def test_on_missed_raise() -> None:
    model = torch.compile(Sparse(), backend="gravure", options={"on_missed": "raise"})
    with pytest.raises(Exception, match="prims::cbrt.*only Python knows this operator"):
        model(*rows(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hots": ["aten::mm"]}, "there is no option 'hots'; did you mean 'host'"),
        ({"require_captures": True}, "did you mean 'require_capture'"),
        ({"host": "aten::mm"}, "option 'host': expected a list"),
        ({"order": "random"}, "expected 'levels' or 'program', found 'random'"),
        ({"poison": 1}, "expected True or False"),
        ({"max_shapes": 0}, "at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    model = torch.compile(Mlp(), backend="gravure", options=options)
    with pytest.raises(Exception, match=message.replace("(", r"\(")):
        model(*rows(0))


def test_host_option_keeps_an_operator_out_of_graphs() -> None:
    report = same_as_eager(Mlp(), rows, options={"host": ["aten::gelu", "second"]})
    requested = [n for n in _host_nodes(report.graphs[0]) if "user-request" in n]
    assert any("aten::gelu at test_compile.py" in node for node in requested)
    assert any("aten::addmm" in node and "in second" in node for node in requested)


def test_the_report_says_that_a_backward_is_missing() -> None:
    compiled = torch.compile(Mlp(), backend="gravure")
    for i in range(5):
        compiled(*rows(i))
    text = str(gravure.Report(gravure.report().graphs[-1:]))
    assert "backward-missing" in text and "torch.no_grad()" in text


def test_uncaptured_option() -> None:
    report = same_as_eager(Mlp(), rows, options={"uncaptured": True})
    assert replays(report) == 0 and uncaptured(report) == 14


def test_the_report_at_exit_names_what_is_gone(tmp_path: Path) -> None:
    script = """
import gc, torch, gravure
def train():
    model = torch.compile(torch.nn.Linear(4, 4), backend="gravure")
    for _ in range(6):
        model(torch.randn(2, 4)).sum().backward()
train()
torch._dynamo.reset()
gc.collect()
assert str(gravure.report()) == "no compiled graph"
"""
    written = tmp_path / "report.txt"
    environment = os.environ | {"GRAVURE_REPORT": str(written)}
    environment["PYTHONPATH"] = str(Path(gravure.__file__).parents[1])
    environment["GRAVURE_LIBRARY"] = str(library_path())
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    text = written.read_text()
    assert "backward: 1 partitions: 1 captured" in text and "4 replays" in text


def test_gradients_never_share_memory() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
            self.flat = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.a + self.b + self.flat.view(2, 2)) * x

    model = Sum()
    compiled = torch.compile(model, backend="gravure")
    for _ in range(6):
        model.zero_grad()
        compiled(torch.full((2, 2), 3.0)).sum().backward()
        model.a.grad.zero_()
        assert model.b.grad.eq(3).all() and model.flat.grad.eq(3).all()


def test_micro_batches_with_gradients_kept(tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any, batch: tuple[Tensor, ...]) -> Any:
        optimizer.zero_grad(set_to_none=False)
        for k in range(2):
            model(batch[0] + k).square().mean().backward()
        optimizer.step()

    report = same_as_eager(Mlp(0.1), rows, step, steps=9)
    assert replays(report) > 20
