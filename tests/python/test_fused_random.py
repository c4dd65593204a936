"""fused_random=True: compiled code draws Inductor's own random numbers, each from a seed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gravure
import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.nn as nn
import torch.nn.functional as F
from gravure.calls.program_maker import ProgramMaker
from gravure.errors import ExportError
from gravure.graphs import codegen
from gravure.graphs.compiled_regions import CutGraph
from gravure.options import CompileOptions
from running import bits, need_library
from torch import Tensor, fx
from torch._inductor import compile_fx, inductor_prims
from torch.utils.checkpoint import checkpoint
from training import Checkpointed, Mlp, leaves, replays, rows, state_of, with_gradients

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

FUSED = {"codegen": "inductor", "fused_random": True}


class Draws(nn.Module):
    """Each way to draw, and a number read on the host: regions, and ATen's operators between."""

    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(F.silu(self.first(x)), 0.2, self.training)
        h = h + torch.randn_like(h) * torch.rand(h.shape) + torch.randint(0, 9, h.shape)
        if self.reads:
            count = (h.detach().abs() > 0.1).sum().clamp(1, 3).item()
            torch._check(count >= 1)
            torch._check(count <= 3)
            h = h * count
        return self.second(F.dropout(h, 0.4, self.training).tanh())


MODELS = {"mlp": Mlp(0.5), "draws": Draws(), "reads": Draws(reads=True), "again": Checkpointed(2)}


@pytest.mark.parametrize("way", ["backend", "divided", "undivided"])
@pytest.mark.parametrize("name", MODELS)
def test_captured_draws_are_those_of_the_same_kernels_uncaptured(name: str, way: str) -> None:
    """Every step draws anew, a replay moves the generator as far as an uncaptured step, and a seed
    repeats a step."""
    models = [copy.deepcopy(MODELS[name]) for _ in range(2)]
    wanted = FUSED | {"poison": True}, FUSED | {"uncaptured": True}
    calls = [with_gradients(*each) for each in zip(models, (way, way), wanted, strict=True)]
    (x,) = rows(0)
    seen = []
    for seed in (3, None, None, None, None, 3, None):
        if seed is not None:
            torch.manual_seed(seed)
        before, found = torch.get_rng_state(), []
        for model, call in zip(models, calls, strict=True):
            torch.set_rng_state(before)
            model.zero_grad()
            result = leaves(call(x))
            found.append((result, state_of(model), bits(torch.get_rng_state())))
        assert found[0] == found[1]
        seen.append(found[0])
    assert seen[5:] == seen[:2] and len({str(each) for each in seen}) == 5
    report = gravure.report()
    assert replays(report) and all(not p.remarks for g in report.graphs for p in g.programs)
    assert "(Inductor's kernels, fused_random)" in str(report)


@pytest.mark.parametrize("how", [{}, {"dynamic": True}], ids=["static", "dynamic"])
def test_draws_without_a_gradient(how: dict[str, bool]) -> None:
    model = Draws()
    calls = [
        torch.compile(model, backend="gravure", options=FUSED | more, **how)
        for more in ({"on_missed": "raise"}, {"uncaptured": True})
    ]
    (x,) = rows(0)
    with torch.no_grad():
        for i in range(5):
            found = []
            for call in calls:
                torch.manual_seed(i)
                found.append((bits(call(x)), bits(torch.get_rng_state())))
            assert found[0] == found[1]
    assert replays(gravure.report())


def test_a_step_with_its_optimizer() -> None:
    """Its update is captured by itself, behind what draws."""
    models, seen = [Mlp(0.5)], []
    models.append(copy.deepcopy(models[0]))
    for model, more in zip(models, ({"poison": True}, {"uncaptured": True}), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
        step = gravure.compile_step(
            lambda x, model=model: model(x).square().mean(),
            optimizer=optimizer,
            options=FUSED | more,
        )
        torch.manual_seed(0)
        (x,) = rows(0)
        found = [(bits(step(x)), state_of(model), bits(torch.get_rng_state())) for _ in range(6)]
        assert replays(gravure.report()) or more == {"uncaptured": True}
        seen.append(found)
    assert seen[0] == seen[1]


def test_a_dropout_takes_one_seed_from_the_generator_and_no_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[bool, str]] = []
    make = compile_fx.compile_fx_inner

    def noted(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        made.append((inductor_config.fallback_random, str(module.graph)))
        return make(module, *args, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", noted)
    options = {"mode": "reduce-overhead", "fused_random": True}
    step = with_gradients(Mlp(0.5), "backend", options)
    (x,) = rows(0)
    for _ in range(5):
        torch.manual_seed(7)
        step(x)
        after = bits(torch.get_rng_state())
        torch.manual_seed(7)
        torch.randint(-(2**63), 2**63 - 1, (1,))
        assert after == bits(torch.get_rng_state())
    (_, forward), (_, backward) = made
    assert not any(fallback for fallback, _ in made)
    assert "inductor_random" in forward and "dropout" not in forward
    assert "inductor_seeds" not in backward
    assert "(Inductor's kernels, mode reduce-overhead, fused_random)" in str(gravure.report())


# ---- the backward's draws are the forward's


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x.exp(), 0.5)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(dropped, x, use_reentrant=False).sin().exp() - 1


def random_mask(x: Tensor) -> Tensor:
    return (torch.rand(x.shape) > 0.5) * x.exp()


def same_masks(results: Tensor, x: Tensor) -> bool:
    """Whether what was dropped in the forward, and nothing else, got no gradient."""
    (gradient,) = torch.autograd.grad(results, x, torch.ones_like(results))
    zeros = results == 0
    return bool(zeros.any()) and bool((~zeros).any()) and bool(((gradient == 0) == zeros).all())


def argument() -> Tensor:
    return torch.rand(16, 16).requires_grad_()


@pytest.mark.parametrize("fn", [dropped, checkpointed, random_mask])
def test_a_backward_has_the_mask_of_its_forward(fn: Callable[[Tensor], Tensor]) -> None:
    """Also of several calls in flight, in any order."""
    call = torch.compile(fn, backend="gravure", options=FUSED | {"on_missed": "raise"})
    for _ in range(5):
        x = argument()
        assert same_masks(call(x), x)
    for _ in range(3):
        xs = [argument() for _ in range(3)]
        results = [call(x) for x in xs]
        assert len({bits(y == 0) for y in results}) == 3
        assert all(same_masks(y, x) for y, x in zip(results, xs, strict=True))
    report = gravure.report().graphs[-1]
    assert replays(gravure.Report([report]))
    backward = report.programs[0].plan.partition("entry backward")[2].partition("arena")[0]
    assert "= gravure::compiled" in backward and "= gravure::compiled_random" not in backward


def test_a_cut_that_would_draw_its_seeds_twice_is_not_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = torch.compile(random_mask, backend="gravure", options=FUSED | {"on_missed": "raise"})
    with functorch_config.patch(activation_memory_budget=0.0):
        for _ in range(5):
            x = argument()
            assert same_masks(call(x), x)
    assert replays(gravure.report()) and "inductor_seeds.default anew" in caplog.text


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return checkpointed(x * self.scale)


def test_a_graph_that_runs_as_it_is_repeats_its_draws_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a module beyond those that can have a program."""
    first, second = Scaled(), Scaled()
    for layer in (first, second):
        layer.compile(backend="gravure", options=FUSED)
    x = argument()
    assert same_masks(first(x), x)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ExportError("test", "there is no program", "none")

    monkeypatch.setattr(ProgramMaker, "make", refuse)
    seen = set()
    for i in (0, 1, 2, 0):
        torch.manual_seed(i)
        x = argument()
        results = second(x)
        assert same_masks(results, x)
        seen.add(bits(results))
    assert len(seen) == 3 and "runs as it is" in caplog.text


def test_a_draw_that_no_code_of_inductors_has_is_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of PyTorch's that draws by a seed does not look at it."""
    monkeypatch.setattr(codegen, "compile_regions", lambda module, *_: CutGraph(module))
    call = torch.compile(checkpointed, backend="gravure", options=FUSED | {"on_missed": "raise"})
    for _ in range(5):
        x = argument()
        assert same_masks(call(x), x)
    assert replays(gravure.report())


# ---- what is refused


@pytest.mark.parametrize("options", [{"fused_random": True}, FUSED | {"codegen": "aten"}])
def test_without_inductors_kernels_it_is_refused(options: dict[str, Any]) -> None:
    for way in (
        lambda: torch.compile(Mlp(), backend="gravure", options=options),
        lambda: gravure.compile_step(lambda x: x.sum(), options=options),
    ):
        with pytest.raises(ValueError, match="'fused_random' is about Inductor's kernels"):
            way()


def test_what_asks_for_eagers_draws_excludes_it() -> None:
    with pytest.raises(ValueError, match="'eager_rng' asks for eager's: leave one of them out"):
        torch.compile(Mlp(), backend="gravure", options=FUSED | {"eager_rng": True})
    optimizer = torch.optim.SGD(Mlp().parameters(), 0.1)
    with pytest.raises(ValueError, match="takes no option 'fused_random'"):
        gravure.compile_optimizer(optimizer, options={"fused_random": True})


def test_a_default_of_it_gives_way_to_atens_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVURE_OPTIONS", "codegen=inductor,fused_random=1")
    assert CompileOptions.parse(None).fused_random
    assert CompileOptions.parse({"mode": "max-autotune"}).fused_random
    assert not CompileOptions.parse({"codegen": "aten"}).fused_random
    monkeypatch.setenv("GRAVURE_OPTIONS", "fused_random=1")
    with pytest.raises(ValueError, match="GRAVURE_OPTIONS: option 'fused_random'"):
        CompileOptions.parse(None)


def test_a_torch_without_draws_by_seeds_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(inductor_prims, "seeds")
    model, (x,) = Mlp(0.5), rows(0)
    torch.manual_seed(0)
    expected = bits(model(x))
    torch.manual_seed(0)
    call = torch.compile(model, backend="gravure", options=FUSED)
    assert bits(call(x)) == expected  # as it is
    assert '"fused_random" is refused' in caplog.text
    torch._dynamo.reset()
    strict = torch.compile(Mlp(0.5), backend="gravure", options=FUSED | {"on_missed": "raise"})
    with pytest.raises(Exception, match='"fused_random" is refused'):
        strict(x)
    with pytest.raises(ExportError, match='"fused_random" is refused'):
        gravure.compile_step(lambda x: model(x).mean(), options=FUSED)(x)
