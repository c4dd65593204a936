"""Recurrent modules have eager's bits (law 1); an LSTM whose trace has them breaks no graph."""

from __future__ import annotations

import copy
from typing import Any

import gravure
import pytest
import torch
from recurrent import KINDS, Packed
from running import bits, need_library
from torch import Tensor, nn
from training import replays, same_as_eager

need_library()
pytestmark = pytest.mark.usefixtures("fresh")


class Words(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], dropout: float = 0.0, **sizes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.cells = kind(16, 16, num_layers=2, batch_first=True, dropout=dropout, **sizes)
        self.head = nn.Linear(sizes.get("proj_size", 16), 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cells(self.table(ids))[0])


def words(_: int) -> tuple[Tensor]:
    return (torch.randint(50, (4, 9)),)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_law_1_an_lstm_breaks_no_graph(dropout: float) -> None:
    report = same_as_eager(Words(nn.LSTM, dropout), words)
    assert [graph.graph_break for graph in report.graphs] == [""]
    assert replays(report)


@pytest.mark.parametrize("options", [{}, {"codegen": "inductor"}], ids=str)
def test_an_lstm_is_traced_in_one_piece(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its input is. Inductor took minutes for a turn at each point of time."""

    def turn(*_: Any) -> Any:
        raise AssertionError("PyTorch's Python version was asked")

    monkeypatch.setattr(torch._decomp.decompositions, "lstm_cell", turn)
    model, given = Words(nn.LSTM), words(0)
    parameters = [*model.parameters()]
    expected = torch.autograd.grad(model(*given).square().mean(), parameters)
    compiled = torch.compile(model, backend="gravure", options=options, fullgraph=True)
    for _ in range(4):
        found = torch.autograd.grad(compiled(*given).square().mean(), parameters)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert replays(gravure.report())


def test_a_step_by_inductor_has_an_lstm_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._decomp.decompositions, "lstm_cell", None)
    model, given = Words(nn.LSTM), words(0)
    expected = model(*given).square().mean().detach()
    step = gravure.compile_step(
        lambda ids: model(ids).square().mean(), options={"codegen": "inductor"}
    )
    torch.testing.assert_close(step(*given), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, nn.LSTM])
def test_law_1_recurrent_modules_have_eagers_bits(
    kind: type[nn.RNNBase], dtype: torch.dtype
) -> None:
    same_as_eager(Words(kind, 0.3).to(dtype), words)


def test_law_1_a_projection_has_eagers_bits() -> None:
    same_as_eager(Words(nn.LSTM, proj_size=8), words)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_law_1_an_lstm_on_a_gpu(dtype: torch.dtype) -> None:
    same_as_eager(Words(nn.LSTM, 0.3).to("cuda", dtype), lambda i: (words(i)[0].cuda(),))


@pytest.mark.parametrize("kind", KINDS)
def test_law_1_packed_sequences(kind: str) -> None:
    def batch(i: int) -> tuple[Tensor, Tensor]:
        return torch.randn(6, 3, 8), torch.tensor([6, 2 + i % 3, 4])

    same_as_eager(Packed(kind, 8), batch)


def test_other_backends_are_told_what_dynamo_says() -> None:
    model = Words(nn.LSTM)
    torch.compile(model, backend="gravure")(*words(0))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="LSTM"):
        torch.compile(model, backend="eager", fullgraph=True)(*words(0))


def test_a_step_with_an_lstm_in_half_precision_says_that_bits_differ(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Without such a processor eager takes the LSTM apart, and so does the step.
    one_dnn_runs_it = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for dtype in (torch.float32, torch.bfloat16):
        cells = nn.LSTM(8, 8, num_layers=2).to(dtype)
        step = gravure.compile_step(lambda x, cells=cells: cells(x)[0].float().square().sum())
        with caplog.at_level("WARNING", "gravure"):
            step(torch.randn(6, 3, 8, dtype=dtype))
        said = [r.getMessage() for r in caplog.records if "nn.LSTM" in r.getMessage()]
        assert bool(said) == (dtype == torch.bfloat16 and one_dnn_runs_it)


@pytest.mark.parametrize("width", [4, 8, 16, 40])  # of vectors, and of what is left behind them
@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_law_1_cells_have_eagers_bits(kind: type[nn.RNNCellBase], width: int) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(width, width)

        def forward(self, x: Tensor) -> Tensor:
            state: Any = x[0].tanh()
            state = (state, state) if kind is nn.LSTMCell else state
            for row in x:
                state = self.cell(row, state)
            return state[0] if kind is nn.LSTMCell else state

    report = same_as_eager(Steps(), lambda _: (torch.randn(3, 4, width),))
    assert replays(report)


@pytest.mark.parametrize("width", [8, 40])
@pytest.mark.parametrize(
    "settings",
    [
        {"num_layers": 2},
        {"bidirectional": True, "num_layers": 2},
        {"batch_first": True, "bias": False},
        {"num_layers": 3, "dropout": 0.15},
        {"bidirectional": True, "batch_first": True, "num_layers": 2, "dropout": 0.3},
    ],
    ids=lambda settings: "-".join(settings),
)
@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_law_1_a_step_has_eagers_bits(
    kind: type[nn.RNNBase], settings: dict[str, Any], width: int
) -> None:
    """compile_step, which has no graph breaks, traces them."""
    cells = kind(width, width, **settings)
    twin = copy.deepcopy(cells)
    step = gravure.compile_step(lambda x: cells(x)[0].square().mean())
    for i in range(4):
        x = torch.randn(5, 3, width, generator=torch.Generator().manual_seed(i))
        torch.manual_seed(i)
        expected = twin(x)[0].square().mean()
        expected.backward()
        torch.manual_seed(i)
        assert bits(step(x)) == bits(expected)
        gradients = [bits(p.grad) for p in cells.parameters()]
        assert gradients == [bits(p.grad) for p in twin.parameters()]


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_where_a_graph_ends_at_a_module_the_report_names_it_with_a_cure(
    kind: type[nn.RNNBase],
) -> None:
    model = Words(kind)
    compiled = torch.compile(model, backend="gravure")
    compiled(*words(0)).sum().backward()
    for said in (str(gravure.report()), str(gravure.explain(model, *words(0)))):
        # Other tests' functions may be in the report, too.
        named = "forward at test_recurrent" if torch.__version__ < "2.12" else "`self.cells`"
        (line,) = [line for line in said.splitlines() if named in line]
        assert "test_recurrent_modules.py:" in line and "GRU" in line
        assert "gravure.compile_step takes it" in line and "(delayed)" not in said


def test_its_cure_holds() -> None:
    model = Words(nn.GRU)
    twin = copy.deepcopy(model)
    step = gravure.compile_step(lambda ids: model(ids).square().mean())
    for i in range(4):
        ids = words(i)[0]
        expected = twin(ids).square().mean()
        expected.backward()
        assert bits(step(ids)) == bits(expected)
    assert [bits(p.grad) for p in model.parameters()] == [bits(p.grad) for p in twin.parameters()]
