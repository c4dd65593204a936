"""A model that logs is one graph, and its log is eager's."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import gravure
import pytest
import torch
from running import bits, need_library
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

need_library()
pytestmark = pytest.mark.usefixtures("fresh")

NAME = "a.library"
told = logging.getLogger(NAME)


class Once(logging.Logger):
    @functools.lru_cache(None)  # noqa: B019  as transformers has it
    def warning_once(self, *args: object) -> None:
        self.warning(*args)


once = Once("a.library.once")


class Telling(nn.Module):
    """Logs in itself, in what it calls, and in a loop."""

    def __init__(self, tell: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.tell = tell

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        self.tell(y)
        return self.last(y)


def constants(_: Tensor) -> None:
    told.warning("of a setting")
    told.info("of %s and %d", "a name", 3)
    told.log(logging.ERROR, f"of {NAME}")


def nested(x: Tensor) -> None:
    for _ in range(2):
        constants(x)


def of_one_that_warns_once(_: Tensor) -> None:
    once.warning_once("once")


def under_a_condition(x: Tensor) -> None:
    if told.isEnabledFor(logging.INFO):
        told.info("is enabled")
    if x.shape[0] > 2:
        told.warning("of %s", x.shape[1])


def of_values(x: Tensor) -> None:
    y = x.detach().clone()
    told.warning("it is %s", y[0, 0])
    y.mul_(2)


def with_keywords(_: Tensor) -> None:
    told.warning("with keywords", extra={"key": 1}, stacklevel=2)


CASES = [constants, nested, of_one_that_warns_once, under_a_condition, of_values, with_keywords]
# A value may change behind the call, Dynamo drops keywords, and an answer would have to be watched.
BREAK = [of_values, with_keywords, under_a_condition]


def _trained(model: nn.Module, call: Callable[[Tensor], Tensor]) -> list[object]:
    generator = torch.Generator().manual_seed(1)
    seen: list[object] = []
    for _ in range(6):
        model.zero_grad()
        result = call(torch.randn(3, 4, generator=generator))
        result.square().sum().backward()
        seen.append((bits(result), [bits(p.grad) for p in model.parameters()]))
    return seen


@pytest.mark.parametrize("tell", CASES)
def test_the_log_is_eagers(
    tell: Callable[[Tensor], None], caplog: pytest.LogCaptureFixture
) -> None:
    once.addHandler(caplog.handler)
    model = Telling(tell)
    found = []
    with caplog.at_level(logging.INFO, "a.library"):
        for compiles in (False, True):
            Once.warning_once.cache_clear()
            caplog.clear()
            call = torch.compile(model, backend="gravure") if compiles else model
            seen = _trained(model, call)
            records = [r for r in caplog.records if r.name.startswith("a.library")]
            found.append((seen, [(r.name, r.levelname, r.message) for r in records]))
    once.removeHandler(caplog.handler)
    assert found[0] == found[1]
    assert len(found[0][1]) > 0
    graphs = gravure.report().graphs
    assert (len(graphs) > 1 or any(g.graph_break for g in graphs)) == (tell in BREAK)
    assert any(p.stats["replays"] > 0 for g in graphs for p in g.programs)


def test_a_level_that_changes_holds_in_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    model = Telling(constants)
    compiled = torch.compile(model, backend="gravure")
    for level, count in ((logging.WARNING, 2), (logging.INFO, 3), (logging.CRITICAL, 0)):
        with caplog.at_level(level, "a.library"):
            caplog.clear()
            compiled(torch.ones(3, 4))
            assert len([r for r in caplog.records if r.name == "a.library"]) == count


def test_in_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Eager says it in the backward again, and Gravure at least once."""
    model = Telling(constants)
    compiled = torch.compile(lambda x: checkpoint(model, x, use_reentrant=False), backend="gravure")
    with caplog.at_level(logging.WARNING, "a.library"):
        seen = _trained(model, compiled)
        assert "of a setting" in caplog.text
    assert seen == _trained(model, lambda x: checkpoint(model, x, use_reentrant=False))


def test_other_backends_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    model = Telling(constants)
    torch.compile(model, backend="gravure")(torch.ones(3, 4))
    torch._dynamo.reset()
    torch.compile(model, backend=backend)(torch.ones(3, 4))
    assert len(graphs) > 1


def test_what_the_user_told_dynamo_holds(caplog: pytest.LogCaptureFixture) -> None:
    named = {logging.Logger.warning, logging.Logger.info, logging.Logger.log}
    ignored = torch._dynamo.config.patch(ignore_logging_functions=named)
    with ignored, caplog.at_level(logging.INFO, "a.library"):
        torch.compile(Telling(constants), backend="gravure")(torch.ones(3, 4))
    assert not [r for r in caplog.records if r.name == "a.library"]


def test_transformers_language_model_is_one_graph() -> None:
    """Its loss warns once of a setting that its defaults have not got."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    compiled = torch.compile(model, backend="gravure")
    tokens = torch.randint(32, (2, 8))
    for _ in range(5):
        compiled(input_ids=tokens, labels=tokens).loss.backward()
    (graph,) = gravure.report().graphs
    assert graph.graph_break == ""
