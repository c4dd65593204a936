"""`gravure::recurrent`, an LSTM, GRU or RNN as one operator: traced, cut and run, in eager's bits.

On a GPU cuDNN runs it (test_cudnn_recurrent_cuda.py). Here eager's modules on the CPU play cuDNN.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import gravure
import pytest
import torch
from gravure.library.load import program_class
from gravure.torch_api import cudnn_recurrent
from gravure.torch_api.dispatch import plainly
from recurrent import KINDS, Packed, Tagger, in_one_graph
from running import bits, need_library
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from training import replays, same_as_eager

need_library()
pytestmark = pytest.mark.usefixtures("fresh", "played_cudnn")

WIDTH, BYTES, FILL = 8, 48, 7
EAGERS = [torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru]  # by cuDNN's number of the mode


def _by_eager(
    x: Tensor, weights: Sequence[Tensor], hx: Tensor, cx: Tensor | None, mode: int, *settings: Any
) -> list[Tensor]:
    hidden: Any = hx if cx is None else [hx, cx]
    return list(EAGERS[mode](x, hidden, list(weights), *settings))


def _forward(x: Tensor, weights: Any, hx: Tensor, cx: Any, mode: int, *rest: Any) -> Any:
    *settings, reserve, _, _ = rest
    with torch.set_grad_enabled(reserve != 0):  # by which oneDNN chooses its kernel
        output, hy, *cy = _by_eager(x, weights, hx, cx, mode, *settings)
    if settings[-1]:  # as cuDNN lays it out
        output = output.transpose(0, 1).contiguous().transpose(0, 1)
    count = BYTES * x.shape[0] * x.shape[1] if reserve == -1 else reserve
    kept = torch.full((count,), FILL, dtype=torch.uint8)
    return output.clone(), hy.clone(), cy[0].clone() if cy else hx.new_empty(0), kept


def _backward(
    x: Tensor, weights: Any, hx: Tensor, cx: Any, output: Tensor, reserve: Tensor,
    d_output: Any, d_hy: Any, d_cy: Any, mode: int, has_biases: bool, layers: int, dropout: float,
    bidirectional: bool, batch_first: bool, offsets: Any, flat: int, of_weights: bool,
) -> list[Tensor]:  # fmt: skip
    if not reserve.numel():
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    assert bool((reserve == FILL).all()) and reserve.numel() == BYTES * x.shape[0] * x.shape[1]
    assert len(offsets) == len(weights)
    with plainly(), torch.enable_grad():
        states = [hx] if cx is None else [hx, cx]
        given = [each.detach().requires_grad_() for each in (x, *states, *weights)]
        inner = given[len(states) + 1 :], given[1], given[2] if cx is not None else None
        made = _by_eager(
            given[0], *inner, mode, has_biases, layers, dropout, True, bidirectional, batch_first
        )
        above = [d for d in (d_output, d_hy, d_cy) if d is not None]
        of = [m for m, d in zip(made, (d_output, d_hy, d_cy), strict=False) if d is not None]
        found = list(torch.autograd.grad(of, given, above))
    if cx is None:
        found.insert(2, hx.new_empty(0))
    return [d.clone() for d in (found if of_weights else found[:3])]


@pytest.fixture
def played_cudnn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each of the two backwards ran."""
    ran: Counter[str] = Counter()

    def kept(*args: Any) -> list[Tensor]:
        ran["kept"] += 1
        return _backward(*args)

    def donated(*args: Any) -> list[Tensor]:
        ran["donated"] += 1
        found = _backward(*args)
        args[5].fill_(FILL + 1)  # as cuDNN writes over it
        return found

    def layout(asked: Any) -> Any:
        reserve = BYTES * asked.x[0] * asked.x[1] if asked.settings.train else 0
        return cudnn_recurrent._Layout(tuple(range(len(asked.weights))), 100, reserve)

    program_class()
    monkeypatch.setattr(cudnn_recurrent, "_takes", lambda device, dtype, enabled: True)
    monkeypatch.setattr(cudnn_recurrent, "_layout", layout)
    library = torch.library.Library("gravure", "IMPL", "CPU")
    library.impl("recurrent", _forward)
    library.impl("recurrent_backward", kept)
    library.impl("recurrent_backward_donated", donated)
    yield ran
    library._destroy()


def rows(seed: int, length: int = 7) -> tuple[Tensor]:
    return (torch.randn(length, 4, WIDTH, generator=torch.Generator().manual_seed(seed)),)


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_layers": 2}, {"bidirectional": True, "bias": False}],
    ids=lambda settings: "-".join(settings) or "plain",
)
@pytest.mark.parametrize("kind", KINDS)
def test_law_1_a_module_is_one_operator(kind: str, settings: dict[str, Any]) -> None:
    report = same_as_eager(Tagger(kind, WIDTH, **settings), rows)
    assert replays(report)
    assert in_one_graph(report)


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_a_backward_writes_over_what_was_left_for_it(
    codegen: str, played_cudnn: Counter[str]
) -> None:
    """No step copies it; one whose graph is kept finds it as it was, also behind such steps."""
    model = Tagger("lstm", WIDTH, num_layers=2)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gravure", options={"codegen": codegen})
    for seed, backwards in enumerate((1, 1, 1, 1, 2, 1, 3, 1)):
        found = []
        for call, of in ((twin, twin), (compiled, model)):
            of.zero_grad()
            scores, hidden, _ = call(*rows(seed))
            loss = scores.square().mean() + hidden.sum()
            for left in reversed(range(backwards)):
                loss.backward(retain_graph=left > 0)
            found.append([scores, hidden, *(p.grad for p in of.parameters())])
        torch.testing.assert_close(found[0], found[1])
        if codegen == "aten":
            assert [bits(value) for value in found[0]] == [bits(value) for value in found[1]]
    assert set(played_cudnn) == {"donated"}
    assert in_one_graph(gravure.report())


def test_what_a_hook_on_saved_tensors_sees_stays_as_it_was(played_cudnn: Counter[str]) -> None:
    model, seen = Tagger("gru", WIDTH), []
    compiled = torch.compile(model, backend="gravure")

    def pack(value: Tensor) -> Tensor:
        seen.append(value)
        return value

    for seed in range(4):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            scores, last = compiled(*rows(seed))
        (scores.square().mean() + last.sum()).backward()
    reserves = [value for value in seen if value.dtype == torch.uint8]
    assert reserves and all(bool((value == FILL).all()) for value in reserves)
    assert "donated" not in played_cudnn


def test_law_1_dropout_draws_in_order() -> None:
    """The operator draws: between other draws it keeps its place."""

    class Model(Tagger):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            found = super().forward(nn.functional.dropout(x, 0.2))
            return (nn.functional.dropout(found[0], 0.2), *found[1:])

    model = Model("gru", WIDTH, num_layers=2, dropout=0.3)
    compiled = torch.compile(model, backend="gravure")
    for seed in range(6):
        found = []
        for call in (model, compiled):
            torch.manual_seed(seed)
            with torch.no_grad():
                found.append([bits(value) for value in (*call(*rows(seed)), torch.rand(2))])
        assert found[0] == found[1]
    assert replays(gravure.report())


@pytest.mark.parametrize("options", [{}, {"codegen": "inductor"}], ids=["aten", "inductor"])
def test_law_1_gradients_of_states(options: dict[str, Any]) -> None:
    cells = nn.LSTM(WIDTH, WIDTH, num_layers=2)
    compiled = torch.compile(cells, backend="gravure", options=options)
    for seed in range(5):
        found = []
        for call in (cells, compiled):
            drawn = torch.Generator().manual_seed(seed)
            shapes = (6, 3, WIDTH), (2, 3, WIDTH), (2, 3, WIDTH)
            given = [torch.randn(shape, generator=drawn).requires_grad_() for shape in shapes]
            cells.zero_grad()
            _, (hidden, cell) = call(given[0], (given[1], given[2]))
            (hidden.square().sum() + cell.sum()).backward()
            grads = [each.grad for each in (*given, *cells.parameters())]
            found.append([bits(value) for value in (hidden, cell, *grads)])
        assert found[0] == found[1]
    assert replays(gravure.report())


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_law_1_lengths_that_vary(codegen: str) -> None:
    """Sizes become open at the second one; each program knows how much its backward reads."""
    model = Tagger("gru", WIDTH)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gravure", options={"codegen": codegen})
    for seed, length in enumerate((7, 7, 7, 9, 9, 5, 7, 9, 5, 5, 11, 9, 11, 5, 7, 9)):
        x, found = rows(seed, length), []
        for call, of in ((twin, twin), (compiled, model)):
            of.zero_grad()
            scores, last = call(*x)
            (scores.square().mean() + last.sum()).backward()
            found.append([scores, last, *(p.grad for p in of.parameters())])
        if codegen == "aten":
            assert [bits(value) for value in found[0]] == [bits(value) for value in found[1]]
        else:
            torch.testing.assert_close(found[0], found[1])
    report = gravure.report()
    assert not any(graph.graph_break for graph in report.graphs)
    assert len(report.graphs) == 2 and replays(report) > 4


def test_evaluation_with_gradients_is_captured_and_its_backward_fails() -> None:
    """As eager's does on a GPU, in its words."""
    cells = nn.GRU(WIDTH, WIDTH).eval()
    compiled = torch.compile(cells, backend="gravure")
    for seed in range(6):
        with torch.no_grad():
            expected = cells(*rows(seed))[0]
        found = compiled(*rows(seed))[0]
        assert bits(found) == bits(expected)
        with pytest.raises(RuntimeError, match="can only be called in training mode"):
            found.sum().backward()


def test_evaluation_without_gradients_keeps_nothing() -> None:
    model = Tagger("lstm", WIDTH, num_layers=2).eval()
    compiled = torch.compile(model, backend="gravure")
    with torch.no_grad():
        for seed in range(5):
            found, expected = compiled(*rows(seed)), model(*rows(seed))
            assert [bits(value) for value in found] == [bits(value) for value in expected]
    assert in_one_graph(gravure.report()) and replays(gravure.report())


@pytest.mark.parametrize("codegen", ["aten", "inductor"])
def test_a_block_that_is_recomputed(codegen: str) -> None:
    class Model(Tagger):
        def forward(self, x: Tensor) -> Any:
            return checkpoint(super().forward, x, use_reentrant=False)

    model = Model("lstm", WIDTH, num_layers=2)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="gravure", options={"codegen": codegen})
    for seed in range(6):
        found = []
        for call, of in ((twin, twin), (compiled, model)):
            of.zero_grad()
            scores, hidden, _ = call(*rows(seed))
            (scores.square().mean() + hidden.sum()).backward()
            found.append([scores, *(p.grad for p in of.parameters())])
        torch.testing.assert_close(found[0], found[1])
        if codegen == "aten":
            assert [bits(value) for value in found[0]] == [bits(value) for value in found[1]]
    assert replays(gravure.report())


@pytest.mark.parametrize("kind", KINDS)
def test_law_1_packed_sequences_are_eagers(kind: str) -> None:
    same_as_eager(Packed(kind, WIDTH), lambda i: (*rows(i), torch.tensor([7, 2 + i % 3, 4, 1])))


def test_a_compiled_step_has_it_too(played_cudnn: Counter[str]) -> None:
    model = Tagger("rnn", WIDTH, num_layers=2)
    twin = copy.deepcopy(model)
    step = gravure.compile_step(lambda x: model(x)[0].square().mean())
    for seed in range(5):
        expected = twin(*rows(seed))[0].square().mean()
        expected.backward()
        assert bits(step(*rows(seed))) == bits(expected)
        assert [bits(p.grad) for p in model.parameters()] == [
            bits(p.grad) for p in twin.parameters()
        ]
    assert set(played_cudnn) == {"donated"}
